"""One handle's copy of a ledger's record, and the loop that changes the record by compare-and-swap.

An update is a pair of pure functions on records: *needed* reports whether a change is left to make, *transform* returns
the new record. The loop only writes what it derived from the record that it read at exactly that version. After a
conflict it reads again and starts over. Only the content that it finds matters, not who wrote it. Hence a write whose
reply was lost needs no special case: either *needed* is now false, which is success, or the swap is repeated.

A store may answer a read from a replica that lags behind. A record older than the copy, or as old as the one that just
failed, is never installed: the loop waits and reads again (X-36).

A loop may belong to the holder of the ledger's lock (`ledger_lock.py`). It writes nothing after the lock is lost.

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
from bookies.protocol.pacing import doubled
from bookies.runtime.ports import Runtime

T = TypeVar("T")
PROMPT_CONFLICTS = 3  # retried at once; then with growing, jittered pauses
BACKOFF_FIRST_S = 0.01
BACKOFF_MAX_S = 1.0
FAILURES_MAX = 8  # consecutive failures of the store; then, after some seconds, its error is raised
PATIENCE_S = 20.0  # or this long after the first of them began, but never after a single failure


class MetadataLoop:
    """One handle's copy of a ledger's record. Updates through one handle are serialised.

    `lock`: the ledger's lock, if the caller holds it. `on_trouble`: called at the first store failure of an update,
    which then retries for about `PATIENCE_S`.
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
        self._gave_up: tuple[float, MetadataError] | None = None  # loop time and error of the last update that gave up
        self.current = versioned

    async def update(
        self, needed: Callable[[LedgerMetadata], bool], transform: Callable[[LedgerMetadata], LedgerMetadata]
    ) -> Versioned:
        """Change the record until *needed* is false, and return it. Safe to cancel: no partial change.

        Raises what the functions raise, `LedgerNotFound`, and `MetadataError` if the store stays unusable; then the
        update may or may not have happened.
        """
        asked_s = asyncio.get_running_loop().time()
        async with self._turn:
            if self._gave_up is not None and self._gave_up[0] > asked_s:
                raise self._gave_up[1]  # The store failed for the full patience while this update waited.
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
        """Raise `SessionExpired` if the ledger's lock was held and is lost."""
        if self._lock is not None and not self._driver.recovery.is_held(self._lock):
            raise lock_lost(self._lock.ledger_id)

    async def _pause(self, count: int) -> None:
        if count > 0:
            await back_off(self._runtime, count)


async def repeated(runtime: Runtime, call: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `call`, repeated while the store fails with errors that may pass.

    For calls that detect whether an earlier attempt succeeded and only its reply was lost: a creation by its token, a
    deletion by the missing record. Source: client-protocol 2.2 and 2.19 (X-73).
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
    """Consecutive failures of the store. `on_first`: called with the first one."""

    def __init__(self, on_first: Callable[[MetadataError], None] | None = None) -> None:
        self.count = 0
        self._on_first = on_first
        self._since_s = 0.0  # loop time at which the first failed call began

    def begin(self) -> None:
        """Note that a request to the store begins."""
        if not self.count:
            self._since_s = asyncio.get_running_loop().time()

    def end(self) -> None:
        """Note that the store has answered."""
        self.count = 0

    def add(self, error: MetadataError) -> None:
        """Count a failure. Raises the error if it is permanent, or the store has failed too often or too long."""
        self.count += 1
        if self.count == 1 and error.retriable and self._on_first is not None:
            self._on_first(error)
        took_s = asyncio.get_running_loop().time() - self._since_s
        if not error.retriable or self.count >= FAILURES_MAX or (self.count > 1 and took_s >= PATIENCE_S):
            raise error


async def back_off(runtime: Runtime, count: int) -> None:
    """Wait before attempt `count` + 1: exponentially longer, with jitter."""
    longest = doubled(BACKOFF_FIRST_S, BACKOFF_MAX_S, count)
    await asyncio.sleep(runtime.random.uniform(longest / 2, longest))
