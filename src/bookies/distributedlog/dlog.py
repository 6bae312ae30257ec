"""`Dlog`: one log of a namespace of DistributedLog, with the words of `bookies.Log` where the meaning is the same.

A log has one *leader* at a time, who appends to it (`lead`). Source: distributedlog 4 to 6.
"""

from __future__ import annotations

import asyncio
from functools import partial

from bookies.client.base import Opening
from bookies.client.base.arguments import TimeLimit, quorums, seconds, switch, whole_number
from bookies.client.base.metadata_loop import repeated
from bookies.client.log.base.log_operations import Patience
from bookies.client.read import LedgerReader
from bookies.distributedlog.dlog_reader import DlogReader
from bookies.distributedlog.dlog_reader import Record as Record
from bookies.distributedlog.dlog_writer import DlogWriter, WriterOptions, take_over
from bookies.distributedlog.formats.compression import codec_of
from bookies.distributedlog.formats.dlsn import BEFORE_FIRST, FIRST, INVALID, Dlsn, dlsn_of
from bookies.distributedlog.formats.entries import CONTROL, END_OF_STREAM, ENTRY_SIZE_MAX, SlotRecord
from bookies.distributedlog.formats.segment import Segment
from bookies.distributedlog.model.segment_list import (
    CHANGE_ATTEMPTS_MAX,
    Segments,
    first_to_read,
    is_ended,
    readable,
    removable,
    removable_by_txid,
    segments_from_txid,
    truncations,
)
from bookies.distributedlog.model.txid_search import Probe, probe_of, search
from bookies.distributedlog.parts import (
    LogParts,
    end_to_read,
    last_of,
    last_record,
    last_user_record,
    records_of,
    recover,
)
from bookies.distributedlog.store import LogLock, Ownership
from bookies.errors import (
    BookKeeperError,
    InvalidArgument,
    LedgerNotFound,
    LogEnded,
    LogFenced,
    LogRecordCorrupt,
    NotSupported,
    VersionConflict,
)

LOCK_TIMEOUT_S = 30.0
AGE_MAX_S = 1e12  # older than every segment


class Locks:
    """The locks of one namespace that are held, to be taken again when the session is lost."""

    def __init__(self) -> None:
        self._held: set[LogLock] = set()

    def add(self, lock: LogLock) -> None:
        """Note a lock, until it is released."""
        self._held = {held for held in self._held if not held.is_released} | {lock}

    def session_lost(self) -> None:
        """Take the locks again."""
        for lock in self._held:
            lock.session_lost()


class Dlog:
    """One log by its name. Made by `Namespace.log`, which sends no request: the log may or may not exist."""

    def __init__(self, parts: LogParts, locks: Locks) -> None:
        self._parts = parts
        self._locks = locks

    @property
    def name(self) -> str:
        return self._parts.name

    @property
    def first_lssn(self) -> int:
        """The number of the first segment that the log had, or will have."""
        return self._parts.first_lssn

    def __repr__(self) -> str:
        return f"<Dlog {self.name}>"

    # -- the log as a whole --------------------------------------------------------------------------------------
    async def create(self, *, exist_ok: bool = False, timeout: float | None = None) -> None:
        """Create the log, without records. `timeout`: seconds. Raises `LogExists` unless `exist_ok`."""
        async with TimeLimit(timeout, f"create log {self.name}"):
            await self._parts.store.create(exist_ok=switch("exist_ok", exist_ok))

    async def exists(self, *, timeout: float | None = None) -> bool:
        """Report whether the log exists."""
        async with TimeLimit(timeout, f"look for log {self.name}"):
            return await self._parts.exists()

    async def segments(self, *, timeout: float | None = None) -> Segments:
        """Return the segments, the oldest first. Raises `LogNotFound`."""
        async with TimeLimit(timeout, f"read the segments of log {self.name}"):
            return await self._parts.segments()

    async def recover(
        self, *, skip_damaged: bool = False, timeout: float | None = None
    ) -> tuple[LogRecordCorrupt, ...]:
        """Complete the segments of a writer that has died. A writer that is alive is stopped.

        * `skip_damaged`: end a segment whose last entries are damaged before them, and return their errors. Their
          records are lost.

        Raises `LogRecordCorrupt` for a damaged end, unless it is skipped, and for a segment without an intact record.
        """
        damage: list[LogRecordCorrupt] | None = [] if switch("skip_damaged", skip_damaged) else None
        async with TimeLimit(timeout, f"recover log {self.name}"):
            ownership = Ownership(self._parts.runtime, self._parts.store)
            await ownership.load()
            await recover(self._parts, ownership, damage)
        return tuple(damage or ())

    async def delete(self, *, timeout: float | None = None) -> None:
        """Delete the log, its ledgers and its subscriptions for ever. One that does not exist counts as deleted.

        With locks it waits for the present writer to end. Raises `LogInUse`.
        """
        async with TimeLimit(timeout, f"delete log {self.name}"):
            if not await self.exists():
                return
            lock = await self._locked(None, LOCK_TIMEOUT_S, self._parts.store.paths.lock)
            try:
                segments = await self._parts.segments()
                for segment in segments:
                    await self._remove(segment, is_fencing=not segment.is_completed)
                reserved = await self._parts.store.reserved_ledger()
                if reserved is not None:
                    await self._parts.delete_ledger(reserved)
            finally:
                if lock is not None:
                    await lock.release()
            await self._parts.store.delete_all()

    async def _remove(self, segment: Segment, *, is_fencing: bool = False) -> None:
        """Delete a segment: its ledger, then its znode, so that a crash between leaves what a repetition deletes."""
        if is_fencing:  # Otherwise its writer would go on in a ledger that no reader finds.
            try:
                await (await self._parts.client.recover(segment.ledger_id, password=self._parts.password)).close()
            except LedgerNotFound:
                pass
        await self._parts.delete_ledger(segment.ledger_id)
        await self._parts.store.remove(segment)

    # -- writing -------------------------------------------------------------------------------------------------
    def lead(
        self,
        *,
        ensemble: int = 3,
        write_quorum: int | None = None,
        ack_quorum: int | None = None,
        roll_size: int = 256 << 20,
        roll_age: float = 7200.0,
        entry_size: int = 64 << 10,
        batch_delay: float = 0.005,
        compression: str = "none",
        eager: bool = True,
        create: bool = True,
        lock: bool | None = None,
        lock_timeout: float = LOCK_TIMEOUT_S,
        timeout: float | None = None,
    ) -> Opening[DlogWriter]:
        """Become the leader, who appends: `async with log.lead() as writer`, or await it.

        * `ensemble`, `write_quorum`, `ack_quorum`: of each segment's ledger; see `Client.create`.
        * `roll_size`, `roll_age`: bytes, and seconds, after which records go to a new segment.
        * `entry_size`: bytes of records that share an entry at most.
        * `batch_delay`: seconds that a record waits for others at most while entries are in flight.
        * `compression`: of entries, "none" or "lz4".
        * `eager`: readers see a record about `batch_delay` after it was appended. Otherwise when a later one is sent,
          or at `flush`.
        * `create`: create the log if it is missing.
        * `lock`: take the log's lock, so that the present leader is waited for, not stopped. None: if the namespace has
          locks. Without it, the present leader is stopped and gets `LogFenced`; its acknowledged records stay.
        * `lock_timeout`: seconds to wait for the lock.
        * `timeout`: seconds.

        Leaving the block closes the writer; leaving it by an exception only releases it. Raises `LogInUse` (another
        process has the lock), `LogNotFound`, `LogEnded`, `InvalidArgument`, `ConfigError`, and `RecoveryFailed`
        and other errors that last too long.
        """
        batch_delay, lock_timeout = (
            seconds(batch_delay, "batch_delay") or 0.0,
            seconds(lock_timeout, "lock_timeout") or 0.0,
        )
        if not seconds(roll_age, "roll_age"):
            raise InvalidArgument(f"roll_age={roll_age!r}: must be a number of seconds above 0")
        options = WriterOptions(
            *quorums(ensemble, write_quorum, ack_quorum),
            whole_number("roll_size", roll_size, 1),
            roll_age,
            whole_number("entry_size", entry_size, 1, ENTRY_SIZE_MAX),
            batch_delay,
            codec_of(compression),
            switch("eager", eager),
        )

        async def make() -> DlogWriter:
            store = self._parts.store
            if create:
                await repeated(self._parts.runtime, store.create)
            elif not await self._parts.exists():
                raise store.missing()
            held = await self._locked(lock, lock_timeout, store.paths.lock)
            try:
                writer = await self._taken_over(held, options)
                if is_ended(writer.last_txid):
                    await writer.abandon()
                    raise LogEnded(f"log {self.name} has its end-of-stream record: it can only be read")
                return writer
            except BaseException:
                if held is not None:
                    await held.release()
                raise

        return Opening(make, timeout, f"take the lead of log {self.name}")

    async def _taken_over(self, lock: LogLock | None, options: WriterOptions) -> DlogWriter:
        duels, patience = 0, Patience(self._parts.runtime)
        while True:
            try:
                return await take_over(self._parts, lock, options)
            except LogFenced:  # Another process changed the list in between: begin again with what it left.
                duels += 1
                if duels == CHANGE_ATTEMPTS_MAX:
                    raise
            except BookKeeperError as error:
                await patience.pause(error)

    async def _locked(self, wanted: bool | None, timeout: float, path: str) -> LogLock | None:
        parts = self._parts
        if wanted is None:
            wanted = parts.has_locks
        if not wanted:
            return None
        if not parts.has_locks:
            raise NotSupported(f"the namespace of log {self.name} has no locks: use lock=False")
        lock = LogLock(parts.runtime, parts.store.tree, path, parts.owner)
        self._locks.add(lock)
        try:
            await lock.acquire(timeout)
        except BaseException:
            await lock.release()
            raise
        return lock

    # -- reading -------------------------------------------------------------------------------------------------
    def open(self, *, timeout: float | None = None) -> Opening[DlogReader]:
        """Open the log for reading and tailing. Raises `LogNotFound`. `timeout`: seconds."""

        async def make() -> DlogReader:
            if not await self._parts.exists():
                raise self._parts.store.missing()
            return DlogReader(self._parts)

        return Opening(make, timeout, f"open log {self.name}")

    def open_exclusively(
        self, *, lock_timeout: float = LOCK_TIMEOUT_S, timeout: float | None = None
    ) -> Opening[DlogReader]:
        """Open the log as the only reader that does so: others wait. Java's readers with the lock count.

        `lock_timeout`: seconds to wait for the lock. Raises `LogInUse`, `LogNotFound`, `NotSupported`.
        """

        async def make() -> DlogReader:
            return DlogReader(self._parts, await self._locked(True, lock_timeout, self._parts.store.paths.read_lock))

        return Opening(make, timeout, f"open log {self.name} exclusively")

    async def first(self, *, timeout: float | None = None) -> Record | None:
        """Return the first record that is not truncated; None: there is none."""
        async with TimeLimit(timeout, f"read the first record of log {self.name}"), self.open() as reader:
            return await anext(reader.read(), None)

    async def last(self, *, timeout: float | None = None) -> Record | None:
        """Return the last visible record; None: there is none. No writer is disturbed."""
        async with TimeLimit(timeout, f"read the last record of log {self.name}"):
            last = await last_of(self._parts)
            return None if last is None else _as_record(*last)

    async def find(self, txid: int, *, timeout: float | None = None) -> Dlsn:
        """Return the position of the first record with this transaction id, or a greater one.

        Without such a record it is the position after the last one. Transaction ids must not decrease in the log.
        """
        txid = whole_number("txid", txid)
        async with TimeLimit(timeout, f"search log {self.name} for transaction id {txid}"):
            for segment in segments_from_txid(await self._parts.segments(), txid):
                async with self._parts.reading(segment) as ledger:
                    probe = await _search(segment, ledger, txid)
                if probe is not None:
                    return max(Dlsn(segment.lssn, probe.entry, probe.slot), segment.min_dlsn)
            last = await self.last()
            return FIRST if last is None else last.position.next

    async def count(self, since: Dlsn | None = None, *, timeout: float | None = None) -> int:
        """Return the number of visible records from a position on; None: from the beginning."""
        start = FIRST if since is None else dlsn_of("since", since)
        async with TimeLimit(timeout, f"count the records of log {self.name}"):
            segments = readable(await self._parts.segments())
            begin = first_to_read(segments, start)
            total = 0
            for segment in segments:
                if begin is None or segment.lssn < begin.lssn:
                    continue
                least = max(start, segment.min_dlsn)
                if segment.is_completed and least <= segment.first_dlsn:
                    total += segment.record_count
                    continue
                async with self._parts.reading(segment) as ledger:
                    total += await _count(segment, ledger, least)
            return total

    async def is_ended(self, *, timeout: float | None = None) -> bool:
        """Report whether the log has its end-of-stream record, visible or not."""
        async with TimeLimit(timeout, f"look for the end of log {self.name}"):
            ownership = Ownership(self._parts.runtime, self._parts.store)
            await ownership.load()
            if is_ended(ownership.max_txid):
                return True
            segments = await self._parts.segments()
            if not segments or segments[-1].is_completed:
                return False
            async with self._parts.reading(segments[-1]) as ledger:
                last = await last_record(segments[-1], ledger, await ledger.read_last_add_confirmed(), ignored=CONTROL)
            return last is not None and bool(last[1].flags & END_OF_STREAM)

    # -- truncation, retention -----------------------------------------------------------------------------------
    async def truncate(self, before: Dlsn, *, timeout: float | None = None) -> None:
        """Truncate the log before a position: earlier records cannot be read any more. Nothing is deleted.

        Any client may do this, also while a leader writes; the segment that it writes is left alone. Two truncations at
        the same time may leave the lower one: repeat it then.
        """
        before = dlsn_of("before", before)
        async with TimeLimit(timeout, f"truncate log {self.name}"):
            if before == INVALID:
                return
            for attempt in range(1, CHANGE_ATTEMPTS_MAX + 1):
                changes = truncations(await self._parts.segments(), before)
                if not changes:
                    return
                try:
                    await self._parts.store.replace(changes)
                    return
                except VersionConflict:
                    if attempt == CHANGE_ATTEMPTS_MAX:
                        raise

    async def apply_retention(
        self,
        *,
        max_age: float | None = None,
        below_txid: int | None = None,
        only_truncated: bool = False,
        dry_run: bool = False,
        timeout: float | None = None,
    ) -> Segments:
        """Delete old segments with their ledgers; return them. The newest completed one always stays.

        * `max_age`: seconds since a segment was completed.
        * `below_txid`: segments whose transaction ids are all below.
        * `only_truncated`: only those that `truncate` has passed.
        * `dry_run`: delete nothing.
        """
        if (max_age is None) == (below_txid is None) or (only_truncated and max_age is None):
            raise InvalidArgument("apply_retention: pass either max_age, with or without only_truncated, or below_txid")
        async with TimeLimit(timeout, f"apply the retention of log {self.name}"):
            segments = await self._parts.segments()
            if max_age is not None:
                age_s = min(seconds(max_age, "max_age") or 0.0, AGE_MAX_S)
                end_ms = self._parts.runtime.clock.wall_ms() - int(age_s * 1000)
                chosen = removable(segments, end_ms, only_truncated=switch("only_truncated", only_truncated))
            else:
                chosen = removable_by_txid(segments, whole_number("below_txid", below_txid))
            for segment in () if dry_run else chosen:
                await self._remove(segment)
            return chosen

    # -- subscriptions -------------------------------------------------------------------------------------------
    async def cursors(self, *, timeout: float | None = None) -> dict[str, Dlsn]:
        """Return the named cursors: the positions that subscribers, Java's included, have committed."""
        async with TimeLimit(timeout, f"read the cursors of log {self.name}"):
            return await repeated(self._parts.runtime, self._parts.store.cursors)

    async def cursor(self, name: str, *, timeout: float | None = None) -> Dlsn:
        """Return the position of one cursor; of one that does not exist, the position before the first record."""
        async with TimeLimit(timeout, f"read cursor {name} of log {self.name}"):
            return await repeated(self._parts.runtime, partial(self._parts.store.cursor, name)) or BEFORE_FIRST

    async def move_cursor(self, name: str, position: Dlsn, *, timeout: float | None = None) -> None:
        """Move a cursor before a record, forward or back. A cursor that does not exist is created.

        `record.position.next` marks the record as processed. The last of several moves at the same time stays.
        """
        position = dlsn_of("position", position)
        async with TimeLimit(timeout, f"move cursor {name} of log {self.name}"):
            await repeated(self._parts.runtime, partial(self._parts.store.move_cursor, name, position))

    async def delete_cursor(self, name: str, *, timeout: float | None = None) -> None:
        """Delete a cursor. One that does not exist counts as deleted."""
        async with TimeLimit(timeout, f"delete cursor {name} of log {self.name}"):
            await repeated(self._parts.runtime, partial(self._parts.store.delete_cursor, name))


def _as_record(segment: Segment, entry_id: int, record: SlotRecord) -> Record:
    dlsn = Dlsn(segment.lssn, entry_id, record.slot)
    return Record(record.payload, record.txid, dlsn, segment.exposed_start_sequence_id + record.position - 1)


async def _search(segment: Segment, ledger: LedgerReader, txid: int) -> Probe | None:
    """Find a transaction id in a segment. Its first user record counts: control records repeat an id."""

    async def probe(entry_id: int) -> Probe:
        entry = await ledger.read_entry(entry_id)
        return probe_of(entry_id, records_of(segment, entry_id, entry.payload), txid)

    searching = search(await end_to_read(segment, ledger), txid)
    try:
        entries = next(searching)
        while True:
            entries = searching.send(await asyncio.gather(*map(probe, entries)))
    except StopIteration as end:
        result: Probe | None = end.value
        return result


async def _count(segment: Segment, ledger: LedgerReader, start: Dlsn) -> int:
    """Count a segment's user records from a position on."""
    end = await last_user_record(segment, ledger)
    if end is None:
        return 0
    last_entry, last = end
    if start.segment < segment.lssn or start.entry > last_entry:
        return last.position if start.segment < segment.lssn else 0
    async for entry in ledger.read(max(start.entry, 0), last_entry):
        for record in records_of(segment, entry.id, entry.payload):
            is_user = not record.flags & (CONTROL | END_OF_STREAM)
            if is_user and Dlsn(segment.lssn, entry.id, record.slot) >= start:
                return last.position - record.position + 1
    return 0
