"""The records of ledgers as the collection reads them: the part of the metadata store, with limits of time and rate.

F-31: only an explicit "no such ledger" for its id proves a ledger deleted. An error, a timeout or another cluster's
store proves nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Protocol

from bookies.errors import BookKeeperError, LedgerNotFound, MetadataError
from bookies.model import LedgerMetadata
from bookies.protocol.pacing import RateLimit
from bookies.protocol.pacing.rate_limit import BURST_S
from bookies.runtime.tasks import throttle

METADATA_S = 30.0  # for one operation of the metadata store


class Stored(Protocol):
    """A ledger's record in a metadata store."""

    @property
    def metadata(self) -> LedgerMetadata: ...


class LedgerLocks(Protocol):
    """Ledger locks; implemented by `RecoveryStore`."""

    async def lock(self, ledger_id: int, owner: str, *, needs_mark: bool) -> Any: ...

    async def unlock(self, lock: Any) -> None: ...

    async def locks(self) -> Mapping[int, str]: ...


class LedgerRecords(Protocol):
    """The part of a metadata store that collection uses; implemented by `MetadataDriver`."""

    @property
    def recovery(self) -> LedgerLocks: ...

    async def instance_id(self) -> str | None: ...

    def ledger_ids(self) -> AsyncIterator[Sequence[int]]: ...

    async def read_ledger(self, ledger_id: int) -> Stored: ...

    async def current_ledgers(self, ledger_ids: Sequence[int]) -> Sequence[Stored | Exception | None]: ...


class RecordReader:
    """Reads of a cluster's records, one at a time. `instance_id`: of the cluster; None: accept the first one read."""

    def __init__(self, records: LedgerRecords, instance_id: str | None, rate: float) -> None:
        self._records = records
        self._instance_id = instance_id
        self.throttle = RateLimit(rate, BURST_S)

    async def check_instance(self) -> None:
        """Raise MetadataError if this is not the cluster that the bookie belongs to."""
        async with asyncio.timeout(METADATA_S):
            instance_id = await self._records.instance_id()
        self._instance_id = self._instance_id or instance_id
        if instance_id is None or instance_id != self._instance_id:
            raise MetadataError(
                f"the metadata store belongs to cluster {instance_id}, not {self._instance_id}: no ledger was removed"
            )

    async def ledger_ids(self) -> AsyncIterator[Sequence[int]]:
        """Yield the ids of all ledgers, in ascending ranges. Raises: MetadataError, TimeoutError."""
        ranges = aiter(self._records.ledger_ids())
        while True:
            await throttle(self.throttle, 1)
            try:
                async with asyncio.timeout(METADATA_S):
                    ledger_ids = await anext(ranges)
            except StopAsyncIteration:
                return
            yield ledger_ids

    async def read(self, ledger_id: int) -> LedgerMetadata | None:
        """Return a ledger's record; None only for an explicit "no such ledger". Raises: MetadataError, TimeoutError."""
        await throttle(self.throttle, 1)
        try:
            async with asyncio.timeout(METADATA_S):
                return (await self._records.read_ledger(ledger_id)).metadata
        except LedgerNotFound:
            return None

    async def read_current(self, ledger_id: int) -> LedgerMetadata | None:
        """Return what `read` returns, as a majority of the store's servers has it: for what cannot be undone.

        Raises: MetadataError, TimeoutError.
        """
        await throttle(self.throttle, 1)
        async with asyncio.timeout(METADATA_S):
            [record] = await self._records.current_ledgers([ledger_id])
        if isinstance(record, Exception):
            raise record
        return None if record is None else record.metadata

    async def is_proven_deleted(self, ledger_id: int) -> bool:
        try:
            return await self.read_current(ledger_id) is None
        except (BookKeeperError, TimeoutError):
            return False  # F-31: an error is no proof.

    async def locked_ids(self) -> Mapping[int, str]:
        """Return the locked ledgers and their owners."""
        async with asyncio.timeout(METADATA_S):
            return await self._records.recovery.locks()

    async def lock(self, ledger_ids: Sequence[int], owner: str, locks: dict[int, Any]) -> None:
        """Add the locks of those ledgers that no other owner has locked."""
        for ledger_id in ledger_ids:
            await throttle(self.throttle, 1)
            try:
                async with asyncio.timeout(METADATA_S):
                    lock = await self._records.recovery.lock(ledger_id, owner, needs_mark=False)
            except (MetadataError, TimeoutError):
                continue
            if lock is not None:
                locks[ledger_id] = lock

    async def unlock(self, lock: Any) -> None:
        await self._records.recovery.unlock(lock)
