"""The loop on virtual time, participants that die or stop, and workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from random import Random

import pytest

from bookies.lab.sim.world.loop import Deadlock, Livelock, Overdue, Participant, SimLoop
from bookies.lab.sim.world.workers import SimWorkers


def test_time_is_virtual() -> None:
    loop = SimLoop()

    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.Event().wait()
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(5))
            group.create_task(asyncio.sleep(7))
        return loop.time()

    assert loop.run(main()) == 3607
    loop.close()


def test_deadlock_names_who_waits_for_what() -> None:
    loop = SimLoop()

    async def wait_for_nobody() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.create_task(wait_for_nobody(), name="patient")

    with pytest.raises(Deadlock, match=r"patient: .*wait_for_nobody.*Event\.wait"):
        loop.run(main())
    loop.close()


def test_overdue_and_livelock() -> None:
    loop = SimLoop()

    async def for_ever(pause: float) -> None:
        while True:  # noqa: ASYNC110
            await asyncio.sleep(pause)

    with pytest.raises(Overdue):
        loop.run(for_ever(1), deadline_s=100)
    with pytest.raises(Livelock):
        loop.run(for_ever(0))
    loop.close()


def test_killed_participant_stops_where_it_is() -> None:
    """None of its `finally` blocks runs, and none of its callbacks, whoever scheduled them."""
    loop = SimLoop()
    log: list[float] = []

    async def work(signal: asyncio.Future[None]) -> None:
        try:
            await signal
            log.append(loop.time())
            while True:
                await asyncio.sleep(1)
                log.append(loop.time())
        finally:
            log.append(-1)
            await asyncio.sleep(1)
            log.append(-2)

    async def main() -> None:
        signals = [loop.create_future() for _ in range(2)]
        first, second = Participant(loop, "first"), Participant(loop, "second")
        first.create_task(work(signals[0]), "work")
        second.create_task(work(signals[1]), "work")
        signals[0].set_result(None)
        await asyncio.sleep(2.5)
        assert loop.leftover_tasks(first)[0].startswith("work: ")
        first.kill()
        second.kill()
        signals[1].set_result(None)
        await asyncio.sleep(10)
        assert log == [0, 1, 2]

    loop.run(main())
    loop.close()
    assert not loop.errors


def test_fuse_kills_at_any_callback() -> None:
    stopped_at = []
    for steps in range(1, 8):
        loop = SimLoop()
        log: list[int] = []

        async def count(log: list[int] = log) -> None:
            for number in range(5):
                await asyncio.sleep(0)
                log.append(number)

        async def main(loop: SimLoop = loop, steps: int = steps) -> None:
            victim = Participant(loop, "victim")
            victim.light_fuse(steps, victim.kill)
            victim.create_task(count())
            await asyncio.sleep(1)

        loop.run(main())
        loop.close()
        stopped_at.append(len(log))
    assert stopped_at == [0, 0, 1, 2, 3, 4, 5]


def test_paused_participant_goes_on_in_order() -> None:
    loop = SimLoop()
    log: list[object] = []

    async def main() -> None:
        sleeper = Participant(loop, "sleeper")
        for delay in (3, 1, 2):
            sleeper.call(loop.call_later, delay, log.append, delay)
        sleeper.pause()
        await asyncio.sleep(10)
        assert not log
        sleeper.resume()
        await asyncio.sleep(0)
        assert log == [1, 2, 3]

    loop.run(main())
    loop.close()


def test_callback_errors_are_kept() -> None:
    loop = SimLoop()

    async def main() -> None:
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(1)

    loop.run(main())
    loop.close()
    assert "ZeroDivisionError" in loop.errors[0]


def test_worker_runs_in_order_and_dies_with_its_owner() -> None:
    loop = SimLoop()
    log: list[int] = []

    async def main() -> None:
        owner = Participant(loop, "owner")
        worker = owner.call(SimWorkers(Random(1)).start, "disk")

        async def ask() -> None:
            futures = [worker.run(log.append, number) for number in range(3)]
            await asyncio.gather(*futures)
            with pytest.raises(ZeroDivisionError):
                await worker.run(lambda: 1 // 0)
            log.append(loop.time() > 0)
            for number in range(10, 1000):
                worker.run(log.append, number)

        await owner.create_task(ask())
        assert log == [0, 1, 2, True]
        await asyncio.sleep(0.01)
        owner.kill()
        await asyncio.sleep(10)
        assert 4 < len(log) < 900

    loop.run(main())
    loop.close()


def test_the_end_of_a_run_ends_what_waits_in_an_asynchronous_generator() -> None:
    loop = SimLoop()
    released: list[str] = []

    async def hold(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)  # No longer granted: the clean-up goes on nevertheless.
            released.append(name)

    async def rows() -> AsyncIterator[int]:
        try:
            yield 1
            await hold("inner")
        finally:
            released.append("generator")

    async def work() -> None:
        async for _ in rows():
            pass

    async def main() -> None:
        loop.create_task(work())
        await asyncio.sleep(1)

    loop.run(main())
    loop.close()
    assert released == ["generator"]
