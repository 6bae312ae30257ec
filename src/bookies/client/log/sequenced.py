"""`SequencedWriter`: appends of numbered entries, each of which a log holds once. See `protocol/log/sequences.py`.

It works on behalf of the leader, and ends with it. After an append whose outcome is unknown it refuses every other one:
the caller takes the lead again, which decides the outcome, and repeats the append with the same number.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol
from weakref import WeakValueDictionary

from bookies.client.base.arguments import whole_number
from bookies.client.base.metadata_loop import back_off
from bookies.client.log.base.cursor_store import SEQUENCES
from bookies.client.log.base.log_operations import LogContext
from bookies.client.log.base.log_reader import LogReader
from bookies.client.log.base.seeking import points_of
from bookies.client.write.writer import Payload
from bookies.encoding.envelope import Record, pack_record
from bookies.encoding.record_sets import codec_of, pack_sets
from bookies.errors import (
    BookKeeperError,
    InvalidArgument,
    LogError,
    LogFenced,
    LogTruncated,
    MetadataCorrupt,
    NotSupported,
    RecordNotFound,
    SequenceGap,
    VersionConflict,
)
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.driver import RecordWrite
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.log_model import ENVELOPE, MIGRATED_FROM, PARTED, RAW, SETS
from bookies.protocol.log.log_times import Point, ended_ms
from bookies.protocol.log.sequences import (
    CURSOR,
    HEADER,
    NUMBER_MAX,
    Run,
    Sequences,
    check_writer,
    number_of,
    pack_number,
    parse_sequences,
)

SNAPSHOT_ENTRIES = 10_000  # numbered entries after which the state is stored again
SNAPSHOT_SIZE = 16 << 20  # or bytes of them
SAVE_S = 5.0  # seconds for a leader's snapshot; without it the next leader reads more
CONFLICTS_MAX = 8

Append = Callable[[Sequence[Payload]], Awaitable[Position]]


class Appended(NamedTuple):
    """Result of an append. `first`, `last`: positions; None: not known any more, because many entries followed.

    `repeated`: entries at the front that the log held before.
    """

    first: Position | None
    last: Position | None
    repeated: int


class Leader(Protocol):
    """The leader that appends. `LogWriter` documents the members."""

    @property
    def name(self) -> str: ...

    @property
    def epoch(self) -> int: ...

    @property
    def ledger_id(self) -> int: ...


class SequencedWriter:
    """Writer of numbered entries of one log, for any number of named writers. Made by `Log.sequenced`.

    `append`: the leader's, of packed entries.
    """

    def __init__(self, parts: LogContext, driver: MetadataDriver, leader: Leader, append: Append) -> None:
        self._parts = parts
        self._driver = driver
        self._leader = leader
        self._append_entries = append
        self._record = SEQUENCES + leader.name
        self._version = 0  # of that record
        self._sequences = Sequences()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by writer
        self._end = Position(leader.ledger_id, 0)  # every numbered entry before it is in the state, or in flight
        self._ledgers = {leader.ledger_id}  # that `_end` has been in
        self._floors: dict[object, Position] = {}  # of the appends in flight, in their order: `_end` when they began
        self._saved: Position | None = None
        self._unsaved = (0, 0)  # entries and bytes since then
        self._unknown: BookKeeperError | None = None  # what made an outcome unknown

    @property
    def unknown(self) -> BookKeeperError | None:
        """Return what made an outcome unknown. This writer appends nothing any more then: take the lead again."""
        return self._unknown

    @classmethod
    async def begin(cls, parts: LogContext, driver: MetadataDriver, leader: Leader, append: Append) -> SequencedWriter:
        """Return a writer that knows all numbers in the log. Raises as `Log.sequenced`."""
        if parts.records.current.record_format == RAW:
            raise InvalidArgument(
                f"log {leader.name} keeps raw values, without room for a writer's number: create a log with "
                f"record_format={ENVELOPE}, or append without a number"
            )
        writer = cls(parts, driver, leader, append)
        for conflicts in range(CONFLICTS_MAX):
            if await writer._load():
                return writer
            await back_off(parts.runtime, conflicts)
        raise VersionConflict(f"the list or the cursors of log {leader.name} change all the time: try again")

    async def append(self, writer: str, first: int, records: Sequence[Record]) -> Appended:
        """Append the entries of a writer, numbered `first`, `first + 1`, ..., and return where they are, once durable.

        Entries that the log holds already, by their numbers, are not appended again. Raises `SequenceGap`,
        `InvalidArgument` (nothing was appended), and the errors of `LogWriter.append_many`; then some may be in the
        log: take the lead again, and repeat the call.
        """
        check_writer(writer)
        first = whole_number("first", first)
        if not records or first + len(records) > NUMBER_MAX:
            raise InvalidArgument(f"{len(records)} entries from number {first} on: at least one, below {NUMBER_MAX}")
        turn = self._turns.setdefault(writer, asyncio.Lock())
        async with turn:
            if self._unknown is not None:
                raise LogError(f"nothing was sent: the outcome of an earlier append is unknown: {self._unknown}")
            now_ms = self._parts.runtime.clock.wall_ms()
            try:
                repeated = self._sequences.stored(writer, first, len(records))
            except SequenceGap:
                await self._check_lead()
                raise
            if repeated < len(records):
                self._sequences.make_room(writer, now_ms)
                await self._send(writer, first + repeated, records[repeated:], now_ms)
            at = self._sequences.position_of
            return Appended(at(writer, first), at(writer, first + len(records) - 1), repeated)

    async def _check_lead(self) -> None:
        """Check that the state is the log's. Raises `LogFenced` if another leader may have appended what is missing."""
        manifest = await self._parts.records.refresh()
        if manifest.epoch != self._leader.epoch:
            self._unknown = LogFenced(f"another process leads log {self._leader.name} now, nothing was sent")
            raise self._unknown

    async def _send(self, writer: str, first: int, records: Sequence[Record], now_ms: int) -> None:
        entries, runs = self._packed([_numbered(*row, writer, now_ms) for row in enumerate(records, first)], first)
        epoch, append = self._leader.epoch, object()
        self._floors[append] = self._end
        try:
            last = await self._append_entries(entries)
            if self._leader.epoch != epoch:  # They may be in two ledgers.
                raise LogError(f"a ledger of log {self._leader.name} was replaced: the positions are unknown")
        except InvalidArgument:
            raise  # Nothing was sent.
        except BaseException as error:
            self._unknown = error if isinstance(error, BookKeeperError) else LogError("cancelled")
            raise
        finally:
            del self._floors[append]
        start = last.entry_id - len(entries) + 1
        for run in runs:
            at = Position(last.ledger_id, start + run.position.entry_id)
            self._sequences.add(writer, run._replace(position=at), now_ms)
        self._advance(last.next)
        count, size = self._unsaved
        self._unsaved = count + len(records), size + sum(map(len, entries))
        if self._unsaved[0] >= SNAPSHOT_ENTRIES or self._unsaved[1] >= SNAPSHOT_SIZE:
            self._unsaved = 0, 0  # A failure is repeated after as many again.
            try:
                await self.save()
            except BookKeeperError:
                pass  # The next leader reads more of the log then.

    def _packed(self, records: Sequence[Record], first: int) -> tuple[list[bytes], list[Run]]:
        """Return records as entries, and the runs of their numbers; their positions count from the first entry."""
        manifest = self._parts.records.current
        if manifest.record_format != SETS:
            return [pack_record(record) for record in records], [Run(first, len(records), Position(0, 0))]
        sets = pack_sets(records, codec_of(manifest.compression), records[0].timestamp_us or 0)
        firsts = accumulate((count for count, _ in sets), initial=first)
        runs = [
            Run(start, count, Position(0, index), is_set=True)
            for index, (start, (count, _)) in enumerate(zip(firsts, sets, strict=False))
        ]
        return [entry for _, entry in sets], runs

    def _advance(self, end: Position) -> None:
        """Move `_end` forward. Answers may arrive in another order than the entries have."""
        if end.ledger_id not in self._ledgers:
            self._ledgers.add(end.ledger_id)
            self._end = end
        elif end.ledger_id == self._end.ledger_id:
            self._end = max(self._end, end)

    # -- the snapshot ------------------------------------------------------------------------------------------------
    async def save(self, confirmed: Position | None = None) -> None:
        """Store the state, so that the next leader reads less, and truncation may pass these entries.

        `confirmed`: the position after the leader's last confirmed entry, if that is known. Raises `MetadataError`,
        `LogNotFound`, `LogTruncated`.
        """
        if confirmed is not None and not self._floors:
            self._advance(confirmed)  # The entries up to there that are not in the state have no number.
        for conflicts in range(CONFLICTS_MAX):
            position = next(iter(self._floors.values()), self._end)
            if position == self._saved or self._unknown is not None:
                return
            try:
                await self._store(position)
                return
            except VersionConflict:
                self._version = (await self._stored())[1]
                await back_off(self._parts.runtime, conflicts)
        raise VersionConflict(f"the list or the cursors of log {self._leader.name} change all the time")

    async def _store(self, position: Position) -> None:
        data = self._sequences.pack(self._parts.records.current.token, position)
        other = RecordWrite(self._record, data, self._version)
        self._version = await self._parts.cursors.move_with(CURSOR, lambda *_: (position, other))
        self._saved, self._unsaved = position, (0, 0)

    async def _stored(self) -> tuple[bytes, int]:
        try:
            return await self._driver.read_record(self._record)
        except RecordNotFound:
            return b"", 0

    async def _load(self) -> bool:
        """Read the numbers that the log holds; False: another process has changed the records meanwhile."""
        data, self._version = await self._stored()
        snapshot = parse_sequences(self._leader.name, self._parts.records.current.token, data) if data else None
        if snapshot is None:
            manifest = await self._parts.records.refresh()
            if not manifest.extra.keys().isdisjoint((MIGRATED_FROM, PARTED)):  # Its snapshot may be left behind.
                self._ledgers = set()
                await self._read(None)
            elif (extent := manifest.find(self._end)) is not None:
                # The first snapshot precedes the first numbered entry, so the log has none yet.
                self._end = Position(extent.ledger_id, extent.first)
            try:
                await self._store(self._end)
            except (VersionConflict, LogTruncated):
                return False
            return True
        self._sequences, self._end = snapshot
        self._ledgers = {self._end.ledger_id}
        await self._read(self._end)
        return True

    async def _read(self, start: Position | None) -> None:
        """Note the numbered entries from a position on; None: of the whole log."""
        reader = LogReader(self._parts)
        try:
            await self._scan(reader, start)
        except LogTruncated:
            await self._scan(reader, None)  # A forced truncation has passed the cursor.
        finally:
            await reader.close()

    async def _scan(self, reader: LogReader, start: Position | None) -> None:
        now_ms, points = self._parts.runtime.clock.wall_ms(), list[Point]()
        with contextlib.suppress(MetadataCorrupt, NotSupported):  # All writers count as active then.
            points = await points_of(self._parts)
        entries = reader.read(start)
        decode = entries.decode
        manifest, is_complete, foreign, ends = None, False, set[int](), dict[int, int]()
        async for batch in entries.batches():
            if reader.manifest is not manifest:
                manifest = reader.manifest
                is_complete = start is not None and not _is_compacted(manifest, start)
                foreign |= {extent.ledger_id for extent in manifest.extents if extent.txn is not None}
                ended = ended_ms(manifest, points)
                ends = {extent.ledger_id: ended.get(extent.seq, now_ms) for extent in manifest.extents}
            self._advance(Position(batch.ledger_id, batch.last_entry_id).next)
            if batch.ledger_id in foreign:
                continue
            # A record's own time is the application's, perhaps long before the append.
            seen_ms = min(ends.get(batch.ledger_id, now_ms), now_ms)
            for record in decode.intact(batch.ledger_id, batch.entry_ids, batch.payloads()):
                if (numbered := number_of(record)) is not None:
                    writer, number = numbered
                    run = Run(number, 1, record.position, decode.is_sets)
                    self._sequences.add(writer, run, seen_ms, is_complete=is_complete)


class NumberedAppends:
    """The one writer of numbered entries of a leader; the first use reads the numbers that the log holds."""

    def __init__(self, open_parts: Callable[[], Awaitable[LogContext]], driver: MetadataDriver) -> None:
        self._open_parts = open_parts
        self._driver = driver
        self._turn = asyncio.Lock()
        self._writer: SequencedWriter | None = None

    async def writer(self, leader: Leader, append: Append) -> SequencedWriter:
        """Return the writer, which appends through `leader`, by its `append`. Raises as `Log.sequenced`."""
        async with self._turn:
            if self._writer is None:
                self._writer = await SequencedWriter.begin(await self._open_parts(), self._driver, leader, append)
            return self._writer

    async def save(self, confirmed: Position | None) -> None:
        """Store the numbers, if there are some, as `SequencedWriter.save`. Best effort."""
        if self._writer is not None:
            with contextlib.suppress(BookKeeperError, TimeoutError):
                async with asyncio.timeout(SAVE_S):
                    await self._writer.save(confirmed)


def _is_compacted(manifest: Manifest, start: Position) -> bool:
    """Report whether a compaction has removed entries from a position on, so that numbers may be missing."""
    begin = manifest.find(start)
    return any(extent.kept is not None for extent in manifest.extents if begin is None or extent.seq >= begin.seq)


def _numbered(number: int, record: Record, writer: str, now_ms: int) -> Record:
    headers = (*(record.headers or ()), (HEADER, pack_number(writer, number)))
    timestamp_us = now_ms * 1000 if record.timestamp_us is None else record.timestamp_us
    return record._replace(headers=headers, timestamp_us=timestamp_us)
