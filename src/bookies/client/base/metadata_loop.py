"""One handle's copy of a ledger's record, and the loop that changes the record by compare-and-swap.

An update is a pair of pure functions on records: *needed* says whether anything is left to do, *transform* makes the
new record. The loop only ever writes what it derived from the record that it read at that very version. After a
conflict it reads again and begins anew; whose write it meets does not matter, only the content does. Hence a write
whose reply was lost needs no special case: either *needed* is now false, which is success, or the swap is repeated.

A store may answer a read from a replica that lags behind. A record older than the copy, or as old as the one that
just failed, is never installed: the loop waits and reads again (X-36).

A loop may belong to somebody who holds the ledger's lock (`ledger_lock.py`). Then nothing is written once that is lost.

Source: client-protocol 2.12; the pairs are in `protocol/ledger/ledger.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from bookies.errors import MetadataError, VersionConflict
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.driver import Versioned
from bookies.metadata.interface.recovery_store import LedgerLock, lock_lost
from bookies.model import LedgerMetadata
from bookies.runtime.ports import Runtime

T = TypeVar("T")
PROMPT_CONFLICTS = 3  # retried at once; then with growing, jittered pauses
BACKOFF_FIRST_S = 0.01
BACKOFF_MAX_S = 1.0
FAILURES_MAX = 8  # of the store itself, in a row; then its error is passed on, after some seconds
PATIENCE_S = 20.0  # or so long after they began, if each takes long, but never after a single one


class MetadataLoop:
    """The record of one ledger as one handle knows it. Updates of one handle follow each other.

    `lock`: the ledger's, which whoever has the loop holds. `on_trouble`: called when the store has failed the first
    time in an update, which goes on for about `PATIENCE_S`.
    """

    def __init__(
        self,
        runtime: Runtime,
        driver: MetadataDriver,
        versioned: Versioned,
        lock: LedgerLock | None = None,
        on_trouble: Callable[[MetadataError], None] | None = None,
    ) -> None:
        self._runtime = runtime
        self._driver = driver
        self._lock = lock
        self._on_trouble = on_trouble
        self._turn = asyncio.Lock()
        self._gave_up: tuple[float, MetadataError] | None = None  # when, loop time, and of what
        self.current = versioned

    async def update(
        self, needed: Callable[[LedgerMetadata], bool], transform: Callable[[LedgerMetadata], LedgerMetadata]
    ) -> Versioned:
        """Bring the record into a state in which nothing is needed; return it. Safe to cancel: nothing half done.

        Raises what the functions raise, `LedgerNotFound`, and `MetadataError` when the store stays unusable; then
        the update may or may not have happened.
        """
        asked_s = asyncio.get_running_loop().time()
        async with self._turn:
            if self._gave_up is not None and self._gave_up[0] > asked_s:
                raise self._gave_up[1]  # Of a store that was asked for long enough while this one waited for its turn.
            conflicts, failures = 0, Failures(self._on_trouble)
            while needed(self.current.metadata):
                new = transform(self.current.metadata)
                self.check_lock()
                failures.begin()
                try:
                    self.current = await self._driver.write_ledger(new, self.current.version, self._lock)
                    break
                except VersionConflict:
                    conflicts += 1
                    failures.end()
                except MetadataError as error:
                    self._failed(failures, error)
                await self._pause(max(0, conflicts - PROMPT_CONFLICTS) + failures.count)
                failures.begin()
                try:
                    read = await self._driver.read_ledger(new.ledger_id)
                except MetadataError as error:
                    self._failed(failures, error)
                else:
                    if read.version > self.current.version:
                        self.current = read
            return self.current

    def _failed(self, failures: Failures, error: MetadataError) -> None:
        try:
            failures.add(error)
        except MetadataError:
            self._gave_up = asyncio.get_running_loop().time(), error
            raise

    def check_lock(self) -> None:
        """Raises `SessionExpired` when the ledger's lock was held and is lost."""
        if self._lock is not None and not self._driver.recovery.is_held(self._lock):
            raise lock_lost(self._lock.ledger_id)

    async def _pause(self, count: int) -> None:
        if count > 0:
            await back_off(self._runtime, count)


async def repeated(runtime: Runtime, call: Callable[[], Awaitable[T]]) -> T:
    """The result of `call`, which is made again while the store fails in a way that may pass.

    For calls that find out by themselves whether an earlier one was done and only its reply lost: a creation by its
    token, a deletion because there is nothing left. Source: client-protocol 2.2 and 2.19 (X-73).
    """
    failures = Failures()
    while True:
        failures.begin()
        try:
            return await call()
        except MetadataError as error:
            failures.add(error)
        await back_off(runtime, failures.count)


class Failures:
    """Those of the store itself, in a row. `on_first`: called with the first of them."""

    def __init__(self, on_first: Callable[[MetadataError], None] | None = None) -> None:
        self.count = 0
        self._on_first = on_first
        self._since_s = 0.0  # loop time at which the call began that failed first

    def begin(self) -> None:
        """The store is asked."""
        if not self.count:
            self._since_s = asyncio.get_running_loop().time()

    def end(self) -> None:
        """It has answered."""
        self.count = 0

    def add(self, error: MetadataError) -> None:
        """It has not. Raises the error when that will not pass, or has been so for too often or too long."""
        self.count += 1
        if self.count == 1 and error.retriable and self._on_first is not None:
            self._on_first(error)
        took_s = asyncio.get_running_loop().time() - self._since_s
        if not error.retriable or self.count >= FAILURES_MAX or (self.count > 1 and took_s >= PATIENCE_S):
            raise error


async def back_off(runtime: Runtime, count: int) -> None:
    """Wait before try number `count` + 1, longer each time, and nobody knows how long exactly."""
    longest = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2**count)
    await asyncio.sleep(runtime.random.uniform(longest / 2, longest))
