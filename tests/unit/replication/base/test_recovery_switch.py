"""No answer about the switch is older than the change that was reported before the question."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from bookies.errors import MetadataError
from bookies.lab.sim.world.loop import SimLoop
from bookies.metadata.interface import RecoveryStore, Watch
from bookies.replication.base.recovery_switch import Switch

ANSWER_S = 1.0


class NoWatch(Watch):
    def cancel(self) -> None:
        return


class DistantStore:
    """A store that answers `ANSWER_S` later with the state that it had when it was asked."""

    def __init__(self) -> None:
        self.is_on = True
        self.reads: list[float] = []  # when each began
        self.failures = 0  # the next reads that fail
        self._changed: list[Callable[[], None]] = []

    def watch_switch(self, callback: Callable[[], None]) -> Watch:
        self._changed.append(callback)
        return NoWatch()

    def turn(self, *, is_on: bool) -> None:
        self.is_on = is_on
        for callback in self._changed:
            callback()

    async def is_enabled(self) -> bool:
        self.reads.append(asyncio.get_running_loop().time())
        answer, fails = self.is_on, self.failures > 0
        self.failures -= fails
        await asyncio.sleep(ANSWER_S)
        if fails:
            raise MetadataError("the store is away")
        return answer


def run(scenario: Callable[[DistantStore, Switch], Awaitable[None]]) -> None:
    loop = SimLoop()  # type: ignore[abstract]

    async def main() -> None:
        store = DistantStore()
        switch = Switch(cast(RecoveryStore, store))
        await switch.start()
        await scenario(store, switch)
        switch.stop()

    loop.run(main())
    loop.close()


def test_a_question_during_a_read_is_answered_by_a_read_that_began_after_it() -> None:
    async def scenario(store: DistantStore, switch: Switch) -> None:
        store.turn(is_on=True)
        first = asyncio.ensure_future(switch.is_off())
        await asyncio.sleep(ANSWER_S / 2)
        store.is_on = False  # The watch reports it later.
        assert [await switch.is_off(), await first] == [True, False]

    run(scenario)


def test_no_question_is_answered_from_before_a_reported_change() -> None:
    """Neither the one that reads, nor those that ask while it does."""

    async def scenario(store: DistantStore, switch: Switch) -> None:
        store.turn(is_on=False)
        assert await asyncio.gather(*(switch.is_off() for _ in range(5))) == [True] * 5

    run(scenario)


def test_questions_share_the_reads_that_began_after_them() -> None:
    async def scenario(store: DistantStore, switch: Switch) -> None:
        store.turn(is_on=False)
        await asyncio.gather(*(switch.is_off() for _ in range(100)))
        assert store.reads == [0, 1, 2]  # the first at the start
        assert await switch.is_off()
        assert len(store.reads) == 3

    run(scenario)


def test_questions_share_a_failure_too_and_the_next_one_reads_again() -> None:
    async def scenario(store: DistantStore, switch: Switch) -> None:
        store.failures = 2
        store.turn(is_on=False)
        answers = await asyncio.gather(*(switch.is_off() for _ in range(100)), return_exceptions=True)
        assert {type(answer) for answer in answers} == {MetadataError}
        assert store.reads == [0, 1, 2]
        assert await switch.is_off()

    run(scenario)


def test_a_reader_that_is_cancelled_leaves_the_question_to_the_next_one() -> None:
    async def scenario(store: DistantStore, switch: Switch) -> None:
        store.turn(is_on=False)
        reader = asyncio.ensure_future(switch.is_off())
        await asyncio.sleep(ANSWER_S / 2)
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
        assert await switch.is_off()

    run(scenario)


def test_a_change_during_the_read_of_a_waiter_wakes_it() -> None:
    """It was asked before the change, so it brings the old state."""

    async def scenario(store: DistantStore, switch: Switch) -> None:
        store.turn(is_on=False)
        waiting = asyncio.ensure_future(switch.wait_on())
        await asyncio.sleep(ANSWER_S / 2)
        store.turn(is_on=True)
        async with asyncio.timeout(10 * ANSWER_S):
            await waiting

    run(scenario)
