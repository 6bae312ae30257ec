"""One handle's copy of a ledger's record, and the loop that changes the record by compare-and-swap.

An update is a pair of pure functions on records: *needed* says whether anything is left to do, *transform* makes the
new record. The loop only ever writes what it derived from the record that it read at that very version. After a
conflict it reads again and begins anew; whose write it meets does not matter, only the content does. Hence a write
whose reply was lost needs no special case: either *needed* is now false, which is success, or the swap is repeated.

A store may answer a read from a replica that lags behind. A record older than the copy, or as old as the one that
just failed, is never installed: the loop waits and reads again (X-36).

A loop may belong to somebody who holds the ledger's lock (`ledger_lock.py`). Then nothing is written once that is lost.

Source: client-protocol 2.12; the pairs are in `protocol/ledger.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from bookies.errors import MetadataError, VersionConflict
from bookies.metadata.driver import MetadataDriver, Versioned
from bookies.metadata.recovery_store import LedgerLock, lock_lost
from bookies.model import LedgerMetadata
from bookies.runtime.ports import Runtime

T = TypeVar("T")
PROMPT_CONFLICTS = 3  # retried at once; then with growing, jittered pauses
BACKOFF_FIRST_S = 0.01
BACKOFF_MAX_S = 1.0
FAILURES_MAX = 8  # of the store itself, in a row; then its error is passed on, after some seconds


class MetadataLoop:
    """The record of one ledger as one handle knows it. Updates of one handle follow each other.

    `lock`: the ledger's, which whoever has the loop holds.
    """

    def __init__(
        self, runtime: Runtime, driver: MetadataDriver, versioned: Versioned, lock: LedgerLock | None = None
    ) -> None:
        self._runtime = runtime
        self._driver = driver
        self._lock = lock
        self._turn = asyncio.Lock()
        self.current = versioned

    async def update(
        self, needed: Callable[[LedgerMetadata], bool], transform: Callable[[LedgerMetadata], LedgerMetadata]
    ) -> Versioned:
        """Bring the record into a state in which nothing is needed; return it. Safe to cancel: nothing half done.

        Raises what the functions raise, `LedgerNotFound`, and `MetadataError` when the store stays unusable; then
        the update may or may not have happened.
        """
        async with self._turn:
            conflicts = failures = 0
            while needed(self.current.metadata):
                new = transform(self.current.metadata)
                self.check_lock()
                try:
                    self.current = await self._driver.write_ledger(new, self.current.version, self._lock)
                    break
                except VersionConflict:
                    conflicts += 1
                    failures = 0
                except MetadataError as error:
                    failures += 1
                    if not error.retriable or failures >= FAILURES_MAX:
                        raise
                await self._pause(max(0, conflicts - PROMPT_CONFLICTS) + failures)
                try:
                    read = await self._driver.read_ledger(new.ledger_id)
                except MetadataError as error:
                    failures += 1
                    if not error.retriable or failures >= FAILURES_MAX:
                        raise
                else:
                    if read.version > self.current.version:
                        self.current = read
            return self.current

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
    failures = 0
    while True:
        try:
            return await call()
        except MetadataError as error:
            failures += 1
            if not error.retriable or failures >= FAILURES_MAX:
                raise
        await back_off(runtime, failures)


async def back_off(runtime: Runtime, count: int) -> None:
    """Wait before try number `count` + 1, longer each time, and nobody knows how long exactly."""
    longest = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2**count)
    await asyncio.sleep(runtime.random.uniform(longest / 2, longest))
