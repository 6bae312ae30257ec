"""Deleted ledgers: finds them by comparing local ledgers with the metadata, quarantines them, and deletes them.

Invariants
- The local ledgers are listed before the metadata is read (`collection_policy.Comparison`).
- F-31: delete a ledger only after an explicit "no such ledger" for its id. An error, a timeout or another cluster's
  store keeps the ledger.
- A ledger is proven deleted twice: before its quarantine, and before its deletion.
- A deletion is remembered while entry logs have the ledger (R-23), so a client cannot create it anew beside them.
- A ledger whose record does not name this bookie refuses entries before its lock is taken, and is deleted under the
  lock. A repair that has copied it here either holds the lock until the record names this bookie, or has given up.

On the loop's thread. Source: storage 7.2, 7.3.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from bookies.errors import BookKeeperError
from bookies.model import LedgerMetadata
from bookies.protocol.ledger.offload import is_given_up, may_be_forgotten
from bookies.runtime.events import Events
from bookies.runtime.ports import Clock
from bookies.storage.engine import StorageParts
from bookies.storage.engine.quarantine_format import QuarantineRecord, QuarantineState
from bookies.storage.gc.collection_policy import Comparison, is_implausible, is_surplus
from bookies.storage.gc.ledger_records import LedgerRecords, RecordReader

REMEMBERED_MS = 7 * 86_400_000  # for which the id of a deleted ledger is kept at least
REMEMBERED_MAX = 100_000  # ids that are kept longer, because entry logs have the ledgers; bounds list and memory
START_MS_MAX = 3_600_000  # minimum of a quarantine after a start, regardless of the wall clock
BATCH = 1000  # ledgers deleted at once
LOCKED_BATCH = 64  # ledgers locked and deleted at once
RECORDS_S = 3600.0  # between two reads of every ledger's record


class QuarantineClock:
    """Time that ledgers have spent in quarantine.

    The wall clock counts only for the time before this process began, so later changes of it end no quarantine.
    """

    def __init__(self, clock: Clock, length_ms: int) -> None:
        self._clock = clock
        self._length_ms = length_ms
        self._started_ms = clock.wall_ms()
        self._seen: dict[tuple[int, int], float] = {}  # (ledger, since) -> monotonic clock when first seen

    def observe(self, quarantined: Mapping[int, QuarantineRecord]) -> None:
        """Learn which ledgers are in quarantine now."""
        now = self._clock.monotonic()
        keys = [(ledger_id, removal.since_ms) for ledger_id, removal in quarantined.items()]
        self._seen = {key: self._seen.get(key, now) for key in keys}

    def left_ms(self, ledger_id: int, removal: QuarantineRecord) -> int:
        """Return the time that a ledger stays in quarantine; 0: it may be deleted."""
        now = self._clock.monotonic()
        seen_ms = int((now - self._seen.get((ledger_id, removal.since_ms), now)) * 1000)
        before_ms = max(0, self._started_ms - removal.since_ms)
        return max(0, self._length_ms - before_ms - seen_ms, min(self._length_ms, START_MS_MAX) - seen_ms)


class LedgerCollection:
    """Detection and removal of deleted ledgers. `alarm`: why no ledger is removed at present, or None.

    `on_returned`: called when a deleted ledger is in the metadata again, so the usage of the logs must be recounted.
    """

    def __init__(
        self, parts: StorageParts, records: LedgerRecords, bookie: str, instance_id: str | None, events: Events
    ) -> None:
        self.alarm: str | None = None
        self.deleted_count = 0
        self.on_returned: Callable[[], None] = lambda: None
        self.quarantine = QuarantineClock(parts.runtime.clock, parts.config.gc_quarantine_ms)
        self._clock = parts.runtime.clock
        self._parts = parts
        self._index = parts.index
        self._removals = parts.removals
        self._records = RecordReader(records, instance_id, parts.config.gc_metadata_rate)
        self._bookie = bookie
        self._events = events
        self._surplus_since: dict[int, float] = {}
        self._records_due = self._clock.monotonic() + RECORDS_S

    def reconfigure(self) -> None:
        """Use the settings that `StorageParts.config` has now."""
        self._records.throttle.rate = self._parts.config.gc_metadata_rate

    async def collect(self, *, is_forced: bool, with_surplus: bool = False) -> None:
        """Run one pass.

        `with_surplus`: delete closed ledgers whose records do not name this bookie now; their quarantine lasts for the
        attempt only. Raises: MetadataError, StorageError, OSError; ledgers not decided by then are kept.
        """
        await self._removals.finish()
        local = sorted(self._index.ledger_ids())
        await self._records.check_instance()
        missing, reappeared = await self._compare(local)
        self._events.info("gc.compared", ledgers=len(local), missing=len(missing))
        garbage = [
            ledger_id
            for ledger_id in missing
            if self._removals.get(ledger_id) is None and await self._records.is_proven_deleted(ledger_id)
        ]
        surplus = await self._find_surplus(local, is_forced=is_forced, with_surplus=with_surplus)
        if is_implausible(len(garbage) + len(surplus), len(local), self._parts.config.gc_share_max) and not is_forced:
            self.alarm = (
                f"{len(garbage) + len(surplus):,} of {len(local):,} ledgers are missing from the metadata; none was "
                f"removed. If that is right, run `bk bookie gc{' --surplus' if with_surplus else ''} --force`"
            )
            self._events.error("gc.implausible", missing=len(garbage), surplus=len(surplus), ledgers=len(local))
            return
        self.alarm = None
        now_ms = self._clock.wall_ms()
        await self._removals.quarantine(garbage, QuarantineState.QUARANTINED, now_ms)
        if with_surplus:
            await self._delete_surplus([*surplus, *self._removals.in_state(QuarantineState.SURPLUS)], now_ms)
        else:
            await self._removals.quarantine(surplus, QuarantineState.SURPLUS, now_ms)
        if garbage or surplus:
            self._events.info("gc.quarantined", ledgers=len(garbage), surplus=len(surplus))
        await self.lift(reappeared)
        await self._delete_expired(set(missing), now_ms)

    async def orphans(self) -> list[dict[str, object]]:
        """Return the local ledgers without a record, and surplus ones in quarantine, with the rest of their quarantine.

        Changes nothing. `left_ms`: None outside of quarantine. Raises: MetadataError.
        """
        local = sorted(self._index.ledger_ids())
        await self._records.check_instance()
        missing, _ = await self._compare(local)
        surplus = self._removals.in_state(QuarantineState.SURPLUS)
        rows: list[dict[str, object]] = []
        for ledger_id in sorted({*missing, *surplus}):
            removal = self._removals.get(ledger_id)
            row: dict[str, object] = {"ledger": ledger_id, "state": "found", "since_ms": None, "left_ms": None}
            if removal is not None:
                row |= {"state": removal.state.name.lower(), "since_ms": removal.since_ms}
                row["left_ms"] = self.quarantine.left_ms(ledger_id, removal) if removal.is_quarantined else None
            rows.append(row)
        return rows

    async def _compare(self, local: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return (local ledgers that the metadata does not list, removed or quarantined ledgers that it lists)."""
        states = (QuarantineState.QUARANTINED, QuarantineState.PINNED, QuarantineState.DELETED)
        removals = set(self._removals.in_state(*states))
        comparison = Comparison(local)
        missing: list[int] = []
        reappeared: list[int] = []
        async for ledger_ids in self._records.ledger_ids():
            missing += comparison.listed(ledger_ids)
            if removals:
                reappeared += [ledger_id for ledger_id in ledger_ids if ledger_id in removals]
        return missing + comparison.rest(), reappeared

    async def is_unwanted(self, ledger_id: int) -> bool:
        """Report whether the metadata certainly wants no entry of this ledger here."""
        try:
            metadata = await self._records.read_current(ledger_id)  # A server that lags behind does not count.
        except (BookKeeperError, TimeoutError):
            return False
        return metadata is None or self._is_unlisted(metadata)

    def _is_unlisted(self, metadata: LedgerMetadata) -> bool:
        return may_be_forgotten(metadata) or is_surplus(metadata, self._bookie)

    async def rebuild_lost(self, ledger_ids: Iterable[int]) -> None:
        """Rebuild the index of those ledgers, missing from the index, that the metadata wants here.

        Their fences and explicit LACs are lost, and entries may be, so they stay uncertain. The record of a ledger that
        comes back from files has allowed this bookie to delete it: what its logs lack is not lost.

        Like deleted ledgers they refuse fences until that is durable: replay would make a new ledger of a fence, which
        denies what the logs have. A client may have made one while the record was read: it is rebuilt too.
        Raises: StorageError, OSError.
        """
        rebuilt: list[int] = []
        for ledger_id in ledger_ids:
            try:
                metadata = await self._records.read_current(ledger_id)
            except (BookKeeperError, TimeoutError):
                continue
            if metadata is not None and self._is_wanted(metadata) and self._removals.get(ledger_id) is None:
                await self._removals.find(ledger_id, self._clock.wall_ms())
                await self._rebuild(ledger_id, metadata)
                rebuilt.append(ledger_id)
        if rebuilt:
            await self._parts.checkpointer.checkpoint()
            await self._removals.lift(rebuilt)

    def _is_wanted(self, metadata: LedgerMetadata) -> bool:
        """Report whether entries of the ledger have to be here."""
        return metadata.names(self._bookie) and not may_be_forgotten(metadata)

    async def _rebuild(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        """Rebuild the index of a ledger that this bookie has lost or deleted."""
        if self._index.is_known(ledger_id):
            await self._index.mark_uncertain(ledger_id)  # made by a client or another program
        elif is_given_up(metadata):
            await self._index.rebuild_if_missing(ledger_id)
        else:
            self._events.error(
                "gc.ledger_lost", ledger=ledger_id, consequence="its index is rebuilt from the entry logs"
            )
            self._index.file_missing(ledger_id)
        if not is_given_up(metadata):
            await self._index.distrust(ledger_id)  # The logs may lack entries too.

    async def _find_surplus(self, local: Sequence[int], *, is_forced: bool, with_surplus: bool) -> list[int]:
        """Return the closed ledgers that have not named this bookie for `gc_surplus_ms`, and those kept elsewhere.

        `with_surplus`: the former regardless of that time. It reads every record, so without `gc_surplus_ms` it runs
        only every `RECORDS_S`.
        """
        now = self._clock.monotonic()
        if not (self._parts.config.gc_surplus_ms or is_forced or with_surplus or now >= self._records_due):
            return []
        self._records_due = now + RECORDS_S
        since: dict[int, float] = {}
        surplus: list[int] = []
        for ledger_id in local:
            try:
                metadata = await self._records.read(ledger_id) if self._removals.get(ledger_id) is None else None
            except (BookKeeperError, TimeoutError):
                continue
            if metadata is None:
                continue
            if may_be_forgotten(metadata) or (with_surplus and is_surplus(metadata, self._bookie)):
                surplus.append(ledger_id)
            elif self._parts.config.gc_surplus_ms and is_surplus(metadata, self._bookie):
                since[ledger_id] = self._surplus_since.get(ledger_id, now)
        self._surplus_since = since
        surplus += [
            ledger_id for ledger_id, start in since.items() if (now - start) * 1000 >= self._parts.config.gc_surplus_ms
        ]
        if not surplus:
            return []
        locked = await self._records.locked_ids()  # A repair may be copying a locked ledger to this bookie.
        return [ledger_id for ledger_id in surplus if ledger_id not in locked]

    async def lift(self, ledger_ids: Iterable[int]) -> None:
        """Restore the quarantined or deleted ledgers that the metadata wants here again.

        A deleted ledger refuses fences until its limbo is durable: one that created it anew would deny its entries. A
        pinned one that the metadata wants elsewhere stays pinned: otherwise the next collection would remove it again.
        """
        for ledger_id in ledger_ids:
            removal = self._removals.get(ledger_id)
            is_lost = self._removals.is_deleted(ledger_id) or ledger_id in self._removals.found
            read = self._records.read_current if is_lost else self._records.read
            try:
                metadata = await read(ledger_id)
            except (BookKeeperError, TimeoutError):
                continue
            is_kept = removal is not None and removal.state in (QuarantineState.SURPLUS, QuarantineState.PINNED)
            if metadata is None or (is_kept and self._is_unlisted(metadata)):
                continue
            self._events.warning("gc.ledger_reappeared", ledger=ledger_id)
            if is_lost and self._is_wanted(metadata):
                # The logs may still have entries of it: recount their usage, and rebuild the ledger's index.
                await self._removals.find(ledger_id, self._clock.wall_ms())
                self.on_returned()
                await self._rebuild(ledger_id, metadata)
            if self._removals.is_deleted(ledger_id):
                await self._removals.forget([ledger_id])
                self.on_returned()
            else:
                await self._removals.lift([ledger_id])

    async def _delete_expired(self, missing: set[int], now_ms: int) -> None:
        """Delete ledgers whose quarantine has ended and that are proven deleted again."""
        due: list[int] = []
        surplus: list[int] = []
        quarantined = self._removals.in_state(QuarantineState.QUARANTINED, QuarantineState.SURPLUS)
        self.quarantine.observe(quarantined)
        for ledger_id, removal in quarantined.items():
            is_listed = removal.state is QuarantineState.QUARANTINED and ledger_id not in missing
            if is_listed or self.quarantine.left_ms(ledger_id, removal) > 0:
                continue
            if removal.state is QuarantineState.SURPLUS:
                surplus.append(ledger_id)
            else:
                due.append(ledger_id)
        for start in range(0, len(due), BATCH):
            # The proof is of the last second or two, not of before all other batches.
            batch = due[start : start + BATCH]
            if proven := [ledger_id for ledger_id in batch if await self._records.is_proven_deleted(ledger_id)]:
                await self._delete(proven, now_ms)
        await self._delete_surplus(surplus, now_ms)

    async def forget_old(self, may_hold: Callable[[Collection[int]], Awaitable[Collection[int]]]) -> None:
        """Forget old deletions of ledgers of which the entry logs have nothing. Raises: StorageError, OSError.

        `may_hold`: return those of these ledgers of which the logs may have entries. If the record of one came back, a
        fence would make a new ledger of it, which denies these entries.
        """
        now_ms = self._clock.wall_ms()
        since = {
            ledger_id: removal.since_ms
            for ledger_id, removal in self._removals.in_state(QuarantineState.DELETED).items()
            if now_ms - removal.since_ms > REMEMBERED_MS
        }
        if since:
            held = sorted(await may_hold(since), key=lambda ledger_id: -since[ledger_id])
            await self._removals.forget(since.keys() - held[:REMEMBERED_MAX])

    async def _delete_surplus(self, ledger_ids: Sequence[int], now_ms: int) -> None:
        """Delete those of these ledgers that can be locked and are surplus then; later, the others.

        A ledger that is not in quarantine enters it before the lock, and leaves it afterwards unless it is deleted.
        """
        for start in range(0, len(ledger_ids), LOCKED_BATCH):
            batch, locks = ledger_ids[start : start + LOCKED_BATCH], dict[int, Any]()
            new = [ledger_id for ledger_id in batch if self._removals.get(ledger_id) is None]
            try:
                await self._removals.quarantine(new, QuarantineState.SURPLUS, now_ms)
                await self._records.lock(batch, self._bookie, locks)
                due = {ledger_id: None for ledger_id in locks if await self.is_unwanted(ledger_id)}
                if due:
                    await self._delete(list(due), now_ms)
                await self.lift([ledger_id for ledger_id in locks if ledger_id not in due])
            finally:
                for lock in locks.values():
                    await self._records.unlock(lock)
                kept = self._removals.in_state(QuarantineState.SURPLUS)
                await self._removals.lift([ledger_id for ledger_id in new if ledger_id in kept])

    async def _delete(self, ledger_ids: Sequence[int], now_ms: int) -> None:
        deleted = await self._removals.delete(ledger_ids, now_ms)
        self.deleted_count += len(deleted)
        self._events.info("gc.ledgers_deleted", count=len(deleted))
