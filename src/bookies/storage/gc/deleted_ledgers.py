"""Deleted ledgers: found by comparing what is stored here with the metadata, and led out one step at a time.

Invariants
- The ledgers stored here are noted before the metadata is read (`collection.Comparison`).
- Whatever is no proof keeps the ledger: an error, a timeout, a store of another cluster.
- A ledger is proven gone twice: before its quarantine, and before its deletion.
- What is deleted because its record does not name this bookie is deleted under the ledger's lock, for whoever repairs
  the ledger may be about to name it.

On the loop's thread. Source: storage 7.2, 7.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from bookies.config import BookieConfig
from bookies.errors import BookKeeperError, LedgerNotFound, MetadataError
from bookies.model import LedgerMetadata
from bookies.protocol.ledger.offload import may_be_forgotten
from bookies.runtime.events import Events
from bookies.runtime.ports import Runtime
from bookies.storage.disks.rate_limit import DiskRateLimit
from bookies.storage.engine import StorageParts
from bookies.storage.engine.quarantine_format import QuarantineRecord, QuarantineState
from bookies.storage.gc.collection_policy import Comparison, is_implausible, is_surplus

METADATA_S = 30.0  # for one operation of the metadata store
REMEMBERED_MS = 7 * 86_400_000  # that a ledger was deleted
START_MS_MAX = 3_600_000  # that a quarantine lasts after a start whatever the wall clock says
BATCH = 1000  # ledgers deleted at once
LOCKED_BATCH = 64  # the same of those that are locked meanwhile
RECORDS_S = 3600.0  # between two looks at every ledger's record


class Stored(Protocol):
    """A ledger's record as a metadata store has it."""

    @property
    def metadata(self) -> LedgerMetadata: ...


class LedgerLocks(Protocol):
    """See `RecoveryStore`, which is one."""

    async def lock(self, ledger_id: int, owner: str, *, needs_mark: bool) -> Any: ...

    async def unlock(self, lock: Any) -> None: ...

    async def locks(self) -> Mapping[int, str]: ...


class LedgerRecords(Protocol):
    """What collection needs of a metadata store; see `MetadataDriver`, which is one."""

    @property
    def recovery(self) -> LedgerLocks: ...

    async def instance_id(self) -> str | None: ...

    def ledger_ids(self) -> AsyncIterator[Sequence[int]]: ...

    async def read_ledger(self, ledger_id: int) -> Stored: ...


class LedgerCollection:
    """Which ledgers are garbage, and their way out. `alarm`: why nothing is removed at present, if so.

    `on_returned`: ledgers that were deleted here are wanted again, and what the logs hold has to be counted anew.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: BookieConfig,
        parts: StorageParts,
        records: LedgerRecords,
        bookie: str,
        events: Events,
    ) -> None:
        self.instance_id: str | None = None
        self.alarm: str | None = None
        self.deleted_count = 0
        self.on_returned: Callable[[], None] = lambda: None
        self._clock = runtime.clock
        self._config = config
        self._index = parts.index
        self._removals = parts.removals
        self._records = records
        self._bookie = bookie
        self._events = events
        self._throttle = DiskRateLimit(config.gc_metadata_rate)
        self._surplus_since: dict[int, float] = {}
        self._started_ms = runtime.clock.wall_ms()
        self._noted: dict[
            tuple[int, int], float
        ] = {}  # (ledger, since) -> monotonic clock when first seen in quarantine
        self._records_due = runtime.clock.monotonic() + RECORDS_S

    async def collect(self, *, is_forced: bool, with_surplus: bool = False) -> None:
        """One pass. `with_surplus`: closed ledgers whose records do not name this bookie go now, without a quarantine.

        Raises: MetadataError, StorageError, OSError; what was not decided by then is kept.
        """
        local = sorted(self._index.ledger_ids())
        await self._check_instance()
        missing, reappeared = await self._compare(local)
        self._events.info("gc.compared", ledgers=len(local), missing=len(missing))
        garbage = [each for each in missing if self._removals.get(each) is None and await self._is_gone(each)]
        surplus = await self._find_surplus(local, is_forced=is_forced, with_surplus=with_surplus)
        if is_implausible(len(garbage) + len(surplus), len(local), self._config.gc_share_max) and not is_forced:
            self.alarm = (
                f"{len(garbage) + len(surplus):,} of {len(local):,} ledgers are not in the metadata any more; nothing "
                f"was removed. If that is right: bk bookie gc{' --surplus' if with_surplus else ''} --force"
            )
            self._events.error("gc.implausible", missing=len(garbage), surplus=len(surplus), ledgers=len(local))
            return
        self.alarm = None
        now_ms = self._clock.wall_ms()
        await self._removals.quarantine(garbage, QuarantineState.QUARANTINED, now_ms)
        if with_surplus:
            leaving = self._removals.in_state(QuarantineState.SURPLUS)
            await self._delete_surplus([*surplus, *leaving], now_ms)
        else:
            await self._removals.quarantine(surplus, QuarantineState.SURPLUS, now_ms)
        if garbage or surplus:
            self._events.info("gc.quarantined", ledgers=len(garbage), surplus=len(surplus))
        await self.lift(reappeared)
        await self._delete_expired(set(missing), now_ms)

    async def _check_instance(self) -> None:
        """Raises MetadataError if this is not the cluster that the bookie belongs to."""
        async with asyncio.timeout(METADATA_S):
            found = await self._records.instance_id()
        self.instance_id = self.instance_id or found
        if found is None or found != self.instance_id:
            raise MetadataError(f"the metadata store is of cluster {found}, not of {self.instance_id}: nothing removed")

    async def _compare(self, local: Sequence[int]) -> tuple[list[int], list[int]]:
        """(local ledgers that the metadata does not list, ledgers on their way out that it lists)"""
        leaving = (QuarantineState.QUARANTINED, QuarantineState.PINNED, QuarantineState.DELETED)
        on_their_way = set(self._removals.in_state(*leaving))
        comparison = Comparison(local)
        missing: list[int] = []
        reappeared: list[int] = []
        ranges = aiter(self._records.ledger_ids())
        while True:
            await self._throttle.take(1)
            try:
                async with asyncio.timeout(METADATA_S):
                    ledger_ids = await anext(ranges)
            except StopAsyncIteration:
                return missing + comparison.rest(), reappeared
            missing += comparison.listed(ledger_ids)
            if on_their_way:
                reappeared += [each for each in ledger_ids if each in on_their_way]

    async def read(self, ledger_id: int) -> LedgerMetadata | None:
        """A ledger's record; None only when the store says that there is none. Raises: MetadataError, TimeoutError."""
        await self._throttle.take(1)
        try:
            async with asyncio.timeout(METADATA_S):
                return (await self._records.read_ledger(ledger_id)).metadata
        except LedgerNotFound:
            return None

    async def _is_gone(self, ledger_id: int) -> bool:
        try:
            return await self.read(ledger_id) is None
        except (BookKeeperError, TimeoutError):
            return False  # Whatever it is, it is no proof.

    async def is_unwanted(self, ledger_id: int) -> bool:
        """Whether the metadata wants nothing of this ledger here, for certain."""
        try:
            metadata = await self.read(ledger_id)
        except (BookKeeperError, TimeoutError):
            return False
        return metadata is None or self._is_unlisted(metadata)

    def _is_unlisted(self, metadata: LedgerMetadata) -> bool:
        return may_be_forgotten(metadata) or is_surplus(metadata, self._bookie)

    async def look_for(self, ledger_ids: Iterable[int]) -> None:
        """Of ledgers that the index does not know: have the logs read for those that the metadata wants here.

        What was promised about them is forgotten, and parts may be gone, so they stay uncertain. Raises: StorageError.
        """
        for ledger_id in ledger_ids:
            try:
                metadata = await self.read(ledger_id)
            except (BookKeeperError, TimeoutError):
                continue
            if metadata is None or may_be_forgotten(metadata) or not metadata.names(self._bookie):
                continue
            if self._index.is_known(ledger_id) or self._removals.get(ledger_id) is not None:
                continue
            self._events.error("gc.ledger_lost", ledger=ledger_id, consequence="its index is built from the entry logs")
            await self._index.look_for(ledger_id)

    async def _find_surplus(self, local: Sequence[int], *, is_forced: bool, with_surplus: bool) -> list[int]:
        """Closed ledgers without this bookie for long enough, and those whose entries are kept elsewhere.

        `with_surplus`: the former however long.

        Every record is read for that, so without a limit for the former only now and then.
        """
        now = self._clock.monotonic()
        if not (self._config.gc_surplus_ms or is_forced or with_surplus or now >= self._records_due):
            return []
        self._records_due = now + RECORDS_S
        since: dict[int, float] = {}
        found: list[int] = []
        for ledger_id in local:
            try:
                metadata = await self.read(ledger_id) if self._removals.get(ledger_id) is None else None
            except (BookKeeperError, TimeoutError):
                continue
            if metadata is None:
                continue
            if may_be_forgotten(metadata) or (with_surplus and is_surplus(metadata, self._bookie)):
                found.append(ledger_id)
            elif self._config.gc_surplus_ms and is_surplus(metadata, self._bookie):
                since[ledger_id] = self._surplus_since.get(ledger_id, now)
        self._surplus_since = since
        found += [each for each, start in since.items() if (now - start) * 1000 >= self._config.gc_surplus_ms]
        if not found:
            return []
        async with asyncio.timeout(METADATA_S):
            locked = await self._records.recovery.locks()  # Perhaps they are being copied here.
        return [each for each in found if each not in locked]

    async def lift(self, ledger_ids: Iterable[int]) -> None:
        """Let go of those that the metadata wants here again."""
        for ledger_id in ledger_ids:
            removal = self._removals.get(ledger_id)
            try:
                metadata = await self.read(ledger_id)
            except (BookKeeperError, TimeoutError):
                continue
            is_surplus_still = removal is not None and removal.state is QuarantineState.SURPLUS
            if metadata is None or (is_surplus_still and self._is_unlisted(metadata)):
                continue
            self._events.warning("gc.ledger_reappeared", ledger=ledger_id)
            if self._removals.is_deleted(ledger_id):
                # Something of it may still be in the logs: they have to be looked at, and are counted anew.
                await self._removals.forget([ledger_id])
                self.on_returned()
                await self.look_for([ledger_id])
            else:
                await self._removals.lift([ledger_id])

    def quarantine_left_ms(self, ledger_id: int, removal: QuarantineRecord) -> int:
        """How long a ledger stays in quarantine yet; 0: it may go.

        The wall clock counts only for the time before this process began: afterwards a change of it ends nothing.
        """
        now = self._clock.monotonic()
        seen_ms = int((now - self._noted.get((ledger_id, removal.since_ms), now)) * 1000)
        before_ms = max(0, self._started_ms - removal.since_ms)
        length_ms = self._config.gc_quarantine_ms
        return max(0, length_ms - before_ms - seen_ms, min(length_ms, START_MS_MAX) - seen_ms)

    async def _delete_expired(self, missing: set[int], now_ms: int) -> None:
        """Delete what was in quarantine long enough, and is proven gone once more; forget what was deleted long ago."""
        due: list[int] = []
        surplus: list[int] = []
        now = self._clock.monotonic()
        quarantined = self._removals.in_state(QuarantineState.QUARANTINED, QuarantineState.SURPLUS)
        keys = [(ledger_id, removal.since_ms) for ledger_id, removal in quarantined.items()]
        self._noted = {each: self._noted.get(each, now) for each in keys}
        for ledger_id, removal in quarantined.items():
            is_listed = removal.state is QuarantineState.QUARANTINED and ledger_id not in missing
            if is_listed or self.quarantine_left_ms(ledger_id, removal) > 0:
                continue
            if removal.state is QuarantineState.SURPLUS:
                surplus.append(ledger_id)
            elif await self._is_gone(ledger_id):
                due.append(ledger_id)
        for start in range(0, len(due), BATCH):
            await self._delete(due[start : start + BATCH], now_ms)
        await self._delete_surplus(surplus, now_ms)
        deleted_before = self._removals.in_state(QuarantineState.DELETED)
        await self._removals.forget(
            [each for each, removal in deleted_before.items() if now_ms - removal.since_ms > REMEMBERED_MS]
        )

    async def _delete_surplus(self, ledger_ids: Sequence[int], now_ms: int) -> None:
        """Delete those that can be locked, and that are still not wanted here then; the others have time."""
        for start in range(0, len(ledger_ids), LOCKED_BATCH):
            locks: dict[int, Any] = {}
            try:
                await self._lock(ledger_ids[start : start + LOCKED_BATCH], locks)
                await self.lift([each for each in locks if self._removals.get(each) is not None])
                due = [each for each in locks if await self.is_unwanted(each)]
                new = [each for each in due if self._removals.get(each) is None]
                await self._removals.quarantine(new, QuarantineState.SURPLUS, now_ms)
                if due:
                    await self._delete(due, now_ms)
            finally:
                for lock in locks.values():
                    await self._records.recovery.unlock(lock)

    async def _lock(self, ledger_ids: Sequence[int], locks: dict[int, Any]) -> None:
        """Add the locks of those that nobody else has."""
        for ledger_id in ledger_ids:
            await self._throttle.take(1)
            try:
                async with asyncio.timeout(METADATA_S):
                    lock = await self._records.recovery.lock(ledger_id, self._bookie, needs_mark=False)
            except (MetadataError, TimeoutError):
                continue
            if lock is not None:
                locks[ledger_id] = lock

    async def _delete(self, ledger_ids: Sequence[int], now_ms: int) -> None:
        deleted = await self._removals.delete(ledger_ids, now_ms)
        self.deleted_count += len(deleted)
        self._events.info("gc.ledgers_deleted", count=len(deleted))
