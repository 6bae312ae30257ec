"""What dies is started again, counted and shown, and never takes anybody with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any

import pytest

from bookies.errors import MetadataError
from bookies.lab.sim.world.cluster import SimClock
from bookies.lab.sim.world.loop import SimLoop
from bookies.replication.daemon.supervision import PAUSE_FIRST_S, PAUSE_MAX_S, SOUND_S, Supervised, supervise
from bookies.runtime.events import Events


def longest(low: float, high: float) -> float:
    return high


def test_a_task_that_dies_is_started_again_with_pauses_that_grow() -> None:
    loop = SimLoop()  # type: ignore[abstract]
    task, starts = Supervised("worker"), list[float]()

    async def work() -> None:
        starts.append(loop.time())
        if len(starts) == 9:
            await asyncio.sleep(SOUND_S)
        raise MetadataError("the store is away") if len(starts) % 2 else ValueError("a mistake")

    async def main() -> None:
        events = Events("recovery", SimClock(loop, 0))
        running = loop.create_task(supervise(task, work, events, longest))
        await asyncio.sleep(400)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    loop.run(main())
    loop.close()
    pauses = [after - before for before, after in pairwise(starts)]
    assert pauses[:3] == [PAUSE_FIRST_S, 2 * PAUSE_FIRST_S, 4 * PAUSE_FIRST_S]
    assert pauses[7] == PAUSE_MAX_S
    assert pauses[8] == SOUND_S + PAUSE_FIRST_S  # it had lived long enough
    assert task.failures == task.starts
    assert task.error in ("MetadataError: the store is away", "ValueError: a mistake")


def cancel(work: Callable[[SimLoop], Coroutine[Any, Any, None]], *at: float) -> None:
    """Supervise it, cancel that at these times, and wait for its end."""
    loop = SimLoop()  # type: ignore[abstract]

    async def main() -> None:
        events = Events("recovery", SimClock(loop, 0))
        running = loop.create_task(supervise(Supervised("worker"), lambda: work(loop), events, longest))
        for when in at:
            await asyncio.sleep(when - loop.time())
            running.cancel()
        await asyncio.wait((running,))
        assert running.cancelled()

    loop.run(main())
    loop.close()


def test_whoever_cancels_it_waits_for_its_end() -> None:
    ends: list[float] = []

    async def work(loop: SimLoop) -> None:
        try:
            await asyncio.sleep(1_000)
        finally:
            await asyncio.sleep(3)
            ends.append(loop.time())

    cancel(work, 10)
    assert ends == [13.0]


def test_whoever_cancels_it_twice_leaves_nothing_running_either() -> None:
    ends: list[float] = []

    async def work(loop: SimLoop) -> None:
        try:
            await asyncio.sleep(1_000)
        finally:
            try:
                await asyncio.sleep(3)  # gives something back, which the second cancellation interrupts
            finally:
                await asyncio.sleep(2)
                ends.append(loop.time())
                raise MetadataError("the store is away")  # nobody is there for it any more

    cancel(work, 10, 11)
    assert ends == [13.0]
