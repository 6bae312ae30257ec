"""Threads as workers: how outcomes come back, and what happens around the end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from bookies.runtime.threads import SlowCalls, ThreadWorkers


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts wake-ups from other threads."""

    wakeups = 0

    def call_soon_threadsafe(self, *arguments, **options):  # type: ignore[no-untyped-def]
        self.wakeups += 1
        return super().call_soon_threadsafe(*arguments, **options)


def test_a_burst_of_outcomes_is_one_wake_up() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CountingLoop)
        worker = ThreadWorkers().start("burst")
        await worker.run(int)
        before = loop.wakeups
        gate = threading.Event()
        futures = [worker.run(gate.wait)] + [worker.run(int) for _ in range(999)]
        gate.set()
        worker.close()  # All have run; the loop has seen none of them.
        await asyncio.gather(*futures)
        assert loop.wakeups == before + 1

    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        runner.run(main())


def test_several_workers_share_the_way_back() -> None:
    async def main() -> None:
        workers = ThreadWorkers()
        started = [workers.start(f"w{number}") for number in range(4)]
        barrier = threading.Barrier(4)
        assert len(await asyncio.gather(*(worker.run(barrier.wait) for worker in started))) == 4
        names = await asyncio.gather(*(worker.run(lambda: threading.current_thread().name) for worker in started))
        assert names == ["w0", "w1", "w2", "w3"]
        for worker in started:
            worker.close()

    asyncio.run(main())


def test_a_closed_worker_takes_nothing() -> None:
    async def main() -> None:
        worker = ThreadWorkers().start("closed")
        worker.close()
        with pytest.raises(RuntimeError, match="closed"):
            await worker.run(int)

    asyncio.run(main())


def test_base_exceptions_come_back_too() -> None:
    async def main() -> None:
        worker = ThreadWorkers().start("exits")

        def leave() -> None:
            raise GeneratorExit("never mind")

        with pytest.raises(GeneratorExit):
            await worker.run(leave)
        assert await worker.run(int) == 0, "the thread lives on"
        worker.close()

    asyncio.run(main())


def test_an_outcome_after_the_loop_s_end_is_dropped() -> None:
    gate = threading.Event()
    ended: list[int] = []

    async def main() -> object:
        worker = ThreadWorkers().start("late")
        worker.run(lambda: (gate.wait(), ended.append(1)))
        return worker

    worker = asyncio.run(main())
    gate.set()
    worker.close()  # type: ignore[attr-defined]
    assert ended == [1]


def test_slow_calls_do_not_pile_up_and_do_not_keep_the_loop() -> None:
    """A KDC that is silent holds each call for half a minute, and clients try again before that."""
    gate, begun = threading.Event(), []
    calls = SlowCalls()

    def slow() -> int:
        begun.append(threading.current_thread().daemon)
        assert gate.wait(60)
        return len(begun)

    async def abandon() -> None:
        for _ in range(5):
            task = asyncio.ensure_future(calls.run("a", slow))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        assert await calls.run("b", lambda: "another key") == "another key"

    async def succeed() -> None:
        waiting = asyncio.ensure_future(calls.run("a", slow))
        await asyncio.sleep(0)
        gate.set()
        assert await waiting == 2
        with pytest.raises(ZeroDivisionError):
            await calls.run("a", lambda: 1 // 0)
        assert await calls.run("a", int) == 0

    asyncio.run(abandon())  # returns although the call goes on
    asyncio.run(succeed())
    assert begun == [True, True]
