"""Parts of a log's writer: the appends that wait, for the ledger to change or for its end, and when it is followed.

Source: client-protocol 5.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct

from bookies.client.log.base.log_operations import FutileLedgers
from bookies.errors import BookKeeperError

ROLL_RETRY_S = 10.0  # seconds after a roll that could not begin; until then the present ledger is used


class Pace(NamedTuple):
    """When a writer goes on to the next ledger, after payload bytes or seconds, and how long a record set is open."""

    roll_size: int
    roll_age_s: float
    linger_s: float


class Failed(Struct):
    """An append that waits for its ledger's end. `number`: in order of arrival."""

    number: int
    decided: asyncio.Future[None]


class FailedAppends:
    """Appends whose ledger failed, until its recovery decides what it holds. `is_recovering`: the recovery runs.

    `futile`: consecutive ledgers that failed.
    """

    def __init__(self, futile: FutileLedgers) -> None:
        self.is_recovering = False
        self.futile = futile
        self._appends: list[Failed] = []

    def add(self, number: int) -> asyncio.Future[None]:
        """Return the future of one append, which ends when its ledger's end is decided."""
        failed = Failed(number, asyncio.get_running_loop().create_future())
        self._appends.append(failed)
        return failed.decided

    def wake(self, unknown: Callable[[], BookKeeperError] | None) -> None:
        """End the wait of all appends, in their order, with the error that `unknown` makes for each, if any."""
        self.is_recovering = False
        order, self._appends = sorted(self._appends, key=lambda failed: failed.number), []
        for failed in order:
            if failed.decided.done():
                continue
            if unknown is None:
                failed.decided.set_result(None)
            else:
                failed.decided.set_exception(unknown())


class Gate:
    """Keeps appends from the ledger while it changes. `is_busy`: it is closed, or earlier appends still wait.

    `changing`: held by operations that change the ledger, so that one roll or recovery runs at a time.
    """

    def __init__(self) -> None:
        self.is_busy = False
        self.changing = asyncio.Lock()
        self._lock = asyncio.Lock()
        self._count = 0  # appends that wait

    async def pass_through(self) -> None:
        """Wait behind earlier appends."""
        self._count += 1
        self.is_busy = True
        try:
            async with self._lock:
                pass
        finally:
            self._count -= 1
            self._update()

    async def __aenter__(self) -> None:
        await self._lock.acquire()
        self.is_busy = True

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()
        self._update()

    def _update(self) -> None:
        self.is_busy = self._count > 0 or self._lock.locked()


class RollSchedule:
    """When a ledger is followed by the next one: after `size` payload bytes, or `age_s` seconds if it has entries."""

    def __init__(self, size: int, age_s: float, on_age: Callable[[], None]) -> None:
        self.size = size
        self.is_rolling = False
        self._age_s = age_s
        self._on_age = on_age
        self._loop = asyncio.get_running_loop()
        self._not_before = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def may_roll(self) -> bool:
        return not self.is_rolling and self._loop.time() >= self._not_before

    def postpone(self) -> None:
        """Use the present ledger for a while after a roll that could not begin."""
        self._not_before = self._loop.time() + ROLL_RETRY_S

    def await_age(self) -> None:
        """Call `on_age` when the present ledger, or its next span of time, is over."""
        self.stop()
        self._timer = self._loop.call_later(self._age_s, self._on_age)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
