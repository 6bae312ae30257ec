"""Replay: restores into the storage, at the start, what the journals recorded since the last checkpoint.

Invariants
- A missing first file, a gap between files or a file of an unknown version stops the start. The operator can correct
  it; continuing would lose acknowledged data.
- Damage anywhere but at the end of the newest file is a hole: its content is unknown, and the rest is applied. Any
  ledger may have been in it, so no ledger's entries are reported as missing afterwards
  (`LedgerIndex.mark_all_uncertain`).
- The torn end of the newest file is left by a crash, and no record in it was acknowledged.
- R-8: replay inserts meta records again unconditionally, and the flush after replay makes them durable. F-23: of keys
  the first known one stays; a new key is accepted only if the stored one is empty or zeros.
- F-13: a ledger without a known key is created, fenced and without key, and reported. Refusing writes is safe; losing
  a fence or an entry is not.
- A group with a correct checksum is what was written. Of a damaged group only records that prove themselves are
  applied.
- A damaged group of sealed entries is not applied without their keys: nothing would tell which of them are intact.
- Only the last group can be torn inside its records, at sector boundaries. A record there whose ids lie in two sectors,
  the second of which was never written, ends the replay. Any other record in more than one sector is doubtful, and
  never replaces an intact stored copy.
- An index page that replay finds may be only in the page cache, if the process crashed and the machine did not. So
  everything that replay touches becomes dirty, even if it does not change.
- The mark that replay returns is the end of the newest file, so that its torn end is never read again.

Source: storage 2.10.
"""

from __future__ import annotations

import posixpath
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from bookies import kernels
from bookies.config import BookieConfig
from bookies.errors import CorruptRecord, ReadFailed, StorageError
from bookies.kernels import Records
from bookies.model import ENTRY_HEADER_SIZE, DigestType
from bookies.runtime.ports import Disk, File, Runtime, Worker
from bookies.storage.cache import WriteCache
from bookies.storage.cache.merge import concat_runs
from bookies.storage.checkpoint.flushes import Flusher
from bookies.storage.engine.log_pieces import pieces_of
from bookies.storage.index import LedgerIndex
from bookies.storage.index.index_format import ENTRY_ID_MAX, EXPLICIT_LAC_SIZE_MIN, STATE_FENCED, IndexHeader
from bookies.storage.index.index_ledger import Ledger, is_vacant
from bookies.storage.index.index_readers import Readers
from bookies.storage.journal import LogMark, journal_format
from bookies.storage.journal.journal import journal_ids
from bookies.storage.journal.page_cache import READ_STEP, DroppedPrefix, SparseReader
from bookies.storage.records import Batch, EndKind
from bookies.storage.records.record_scan import Pread, RunIds, ScanEnd, Trust
from bookies.storage.sealing import sealed_format
from bookies.storage.sealing.sealer import Sealer

SECTOR = 512  # bytes that a device writes atomically
KEY_END = 4 + sealed_format.HEAD_SIZE  # bytes from the start of a sealed record to the end of its key id
JUMP_MAX = 1 << 20  # entries by which a client can be ahead of this bookie's last entry of a ledger
RUN_LENGTH_MIN = 4  # average entries per run from which on a batch is applied run by run


class ReplayReport(Struct):
    """The result of a replay.

    `torn`: (path, offset, problem) of the end of the newest file, if it was not clean. `keyless`: ledgers that were
    created without a key. `holes`: the problem of each acknowledged part of a journal that is lost. `kept_count`:
    doubtful entries that did not replace a stored copy. `skipped_count`: records of unknown kinds, and those that the
    crash certainly cut off. `deleted_count`: records of deleted ledgers. R-22: replay tolerates them. `is_covered`: the
    checkpoint after the replay has succeeded. `has_losses`: losses of directories are not applied yet.
    `is_encryption_noted`: the cookies say that entries may be encrypted.
    """

    file_count: int = 0
    entry_count: int = 0
    size: int = 0
    skipped_count: int = 0
    kept_count: int = 0
    deleted_count: int = 0
    torn: list[tuple[str, int, str]] = field(default_factory=list)
    keyless: list[int] = field(default_factory=list)
    holes: list[str] = field(default_factory=list)
    is_covered: bool = False
    has_losses: bool = False
    is_encryption_noted: bool = False


class JournalReader:
    """Reader of the files of one journal from a mark on. Blocks; confined to one worker.

    `lost_version`: assumed for a file whose header is lost.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        mark: LogMark,
        record_size_max: int,
        lost_version: int = journal_format.VERSION,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._mark = mark
        self._record_size_max = record_size_max
        self._file: File | None = None
        self._search: Pread
        self._size = 0
        self._journal_id = 0
        self._version = lost_version
        self._lost_version = lost_version
        self.is_newest = False
        self._batches: Iterator[Batch | ScanEnd] = iter(())
        self._dropped = DroppedPrefix(READ_STEP)
        self.ids: list[int] = []

    def find(self) -> list[int]:
        """Return the ids of the files to replay. Raises StorageError if one is missing."""
        ids = [number for number in journal_ids(self._disk, self._directory) if number >= self._mark.journal_id]
        if self._mark.journal_id > 0 and (not ids or ids[0] != self._mark.journal_id):
            name = journal_format.file_name(self._mark.journal_id)
            raise StorageError(
                f"{self._directory}: journal {name}, where replay has to begin, is missing; acknowledged entries would "
                "be lost. Nothing was changed. Restore the file, or decommission this bookie: bk bookie format"
            )
        for index in range(1, len(ids)):
            if ids[index] != ids[index - 1] + 1:
                name = journal_format.file_name(ids[index - 1] + 1)
                raise StorageError(
                    f"{self._directory}: journal {name} is missing between others; acknowledged entries would be lost. "
                    "Nothing was changed. Restore the file, or decommission this bookie: bk bookie format"
                )
        self._check_newest(ids)
        self.ids = ids
        return ids

    def _check_newest(self, ids: list[int]) -> None:
        names = self._disk.list(self._directory)
        newest = max(
            (number for name in names if (number := journal_format.parse_newest_name(name)) is not None), default=-1
        )
        if newest > max(ids, default=newest):
            raise StorageError(
                f"{self._directory}: journal {journal_format.file_name(newest)}, the newest one, is missing; "
                "acknowledged entries would be lost. Nothing was changed. Restore the file, or decommission this "
                "bookie: bk bookie format"
            )

    def open(self, journal_id: int) -> tuple[str, int]:
        """Open a file for reading; return (path, size)."""
        self.close()
        path = posixpath.join(self._directory, journal_format.file_name(journal_id))
        self._file = file = self._disk.open(path, "r")
        self._search = SparseReader(file)
        self._size = file.size()
        self._dropped = DroppedPrefix(READ_STEP)
        self._journal_id = journal_id
        self.is_newest = journal_id == self.ids[-1]
        damage: ScanEnd | None
        try:
            self._version, start = journal_format.parse_header(file.pread(24, 0), self._size, path=path)
        except CorruptRecord as error:
            if error.offset != 0:  # an unknown version: another release wrote it and can read it
                raise
            damage = ScanEnd(EndKind.CORRUPT, 0, str(error))
        else:
            if journal_id == self._mark.journal_id and self._mark.offset > 0:
                start = self._mark.offset
            damage = journal_format.find_wrong_version(self._search, self._size, start, self._version, journal_id)
        if damage is None:
            self._scan(start)
        else:
            self._version, self._batches = self._lost_version, iter([damage])
        return path, self._size

    @property
    def is_sealed(self) -> bool:
        """Report whether the entries of the file are sealed."""
        return self._version == journal_format.SEALED_VERSION

    def _scan(self, start: int) -> None:
        assert self._file is not None
        self._batches = journal_format.scan(
            self._file.pread,
            self._size,
            start,
            self._version,
            is_newest=self.is_newest,
            journal_id=self._journal_id,
            record_size_max=self._record_size_max,
            search=self._search,
        )

    def resume(self, end: ScanEnd) -> int | None:
        """Continue after the damage at which a scan ended; return the offset, or None if no record follows."""
        assert self._file is not None
        start = end.next_record
        if start is None:
            start = journal_format.find_record(
                self._search,
                self._size,
                end.offset,
                self._record_size_max,
                after_padding=self.is_newest,
            )
        if start is not None:
            self._scan(start)
        return start

    def next(self) -> Batch | ScanEnd:
        """Return the next batch of the file, or the end of the scan."""
        item = next(self._batches)
        if self._file is not None:
            self._dropped.grow(self._file, item.offset)
        return item

    def is_zero_sector(self, offset: int) -> bool:
        """Report whether the sector at this offset of the file is all zeros."""
        assert self._file is not None
        return not self._file.pread(SECTOR, offset).strip(b"\0")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


async def replay(
    runtime: Runtime,
    config: BookieConfig,
    directory: str,
    mark: LogMark,
    worker: Worker,
    target: Restorer,
) -> LogMark:
    """Replay one journal from `mark` on; return the mark after it, or `mark` if there are no files.

    Raises: CorruptRecord, StorageError, OSError; then the bookie must not start.
    """
    reader = JournalReader(runtime.disk, directory, mark, config.frame_size_max + 64 * 1024, target.lost_version)
    doubtful_size = config.journal_group_size_max + 2 * config.frame_size_max
    try:
        for journal_id in await worker.run(reader.find):
            path, size = await worker.run(reader.open, journal_id)
            target.begin_file(path, is_sealed=reader.is_sealed)
            while True:
                end = await _replay_part(reader, path, doubtful_size, worker, target)
                if not _is_hole(end):
                    break
                resumed = await worker.run(reader.resume, end)
                until = "the end" if resumed is None else f"byte {resumed:,}"
                target.report.holes.append(f"{path}: from byte {end.offset:,} to {until}: {end.problem}")
                if resumed is None:
                    break
            target.report.file_count += 1
            mark = LogMark(journal_id, max(size, end.offset))
    finally:
        await worker.run(reader.close)
    return mark


def _is_hole(end: ScanEnd) -> bool:
    """Report whether acknowledged records are missing: each group is synced before the next one is written."""
    return end.kind is EndKind.CORRUPT or end.next_record is not None


async def _replay_part(
    reader: JournalReader, path: str, doubtful_size: int, worker: Worker, target: Restorer
) -> ScanEnd:
    """Apply a file from the reader's position to its end, or to damage; return the end of the scan."""
    # Batches wait here until they are certain not to be the end of the file.
    waiting: deque[Batch] = deque()
    ahead = worker.run(reader.next)
    while isinstance(item := await ahead, Batch):
        ahead = worker.run(reader.next)  # read the next batch while this one is applied
        ahead.add_done_callback(lambda read: read.cancelled() or read.exception())  # retrieved if applying fails first
        if item.trust is not Trust.UNPROVEN:
            while waiting:
                await target.apply(waiting.popleft(), None)
            await target.apply(item, None)
            continue
        waiting.append(item)
        while item.end - waiting[0].end > doubtful_size:
            await target.apply(waiting.popleft(), None)
    may_be_torn = reader.is_newest and not _is_hole(item)
    doubtful_from = waiting[-1].end - doubtful_size if waiting and may_be_torn else None
    cut: int | None = None
    while waiting and cut is None:
        batch = waiting.popleft()
        if doubtful_from is not None:
            cut = await _find_cut(batch, doubtful_from, reader, worker)
            batch = batch if cut is None else _cut_at(batch, cut)
        await target.apply(batch, doubtful_from)
    if cut is not None:
        target.report.torn.append((path, cut, "a record reaches into a sector that was never written"))
    elif item.kind is EndKind.TORN and not _is_hole(item):
        target.report.torn.append((path, item.offset, item.problem))
    return item


async def _find_cut(batch: Batch, doubtful_from: int, reader: JournalReader, worker: Worker) -> int | None:
    """Return the file offset of the first record that a crash cut off within its ids, or anywhere if it is a note.

    The rest of such a record lies in a sector of zeros. A complete record never looks like that, because the sector
    would also contain the record's LAC, or the bytes after the note.
    """
    data, starts = batch.records.data, batch.records.starts
    for index, (_, entry_id) in enumerate(batch.ids):
        start, end = batch.offset + starts[index], batch.offset + starts[index + 1]
        boundary = start - start % SECTOR + SECTOR
        if start < doubtful_from or boundary >= (min(end, start + 20) if entry_id >= 0 else end):
            continue
        at = boundary - batch.offset
        if not data[at : at + SECTOR].strip(b"\0") and await worker.run(reader.is_zero_sector, boundary):
            return start
    return None


def _cut_at(batch: Batch, offset: int) -> Batch:
    """Return the records that begin before a file offset."""
    count = bisect_left(batch.records.starts, offset - batch.offset)
    return Batch(batch.offset, batch.records.slice(0, count), batch.ids[:count])


def _proven_records(batch: Batch, is_intact: Callable[[bytes], bool]) -> Batch:
    """Return the records of a damaged group that are certainly correct, and the fences, as refusing writes is safe.

    Keys are left out, because a wrong key would lock out the ledger's owner.
    """
    records = batch.records
    indexes = [
        index
        for index, (_, entry_id) in enumerate(batch.ids)
        if entry_id == journal_format.FENCE
        or (entry_id >= 0 and is_intact(records.body(index)))
        or (entry_id == journal_format.EXPLICIT_LAC and looks_intact(journal_format.parse_special(records.body(index))))
    ]
    return Batch(0, _gather(records, indexes), [batch.ids[index] for index in indexes], batch.trust)


def _gather(records: Records, indexes: list[int]) -> Records:
    """Return the records with these indexes, in a buffer of their own."""
    if len(indexes) == len(records):
        return records
    data, starts = records.data, records.starts
    parts = [data[starts[index] : starts[index + 1]] for index in indexes]
    offsets = [0]
    for part in parts:
        offsets.append(offsets[-1] + len(part))
    return Records(b"".join(parts), offsets)


class Restorer:
    """Inserts replayed records into index and write cache. On the loop; no other code uses the storage meanwhile.

    `sealer`: the keys of the bookie, if it has any.
    """

    def __init__(
        self,
        cache: WriteCache,
        index: LedgerIndex,
        flusher: Flusher,
        readers: Readers,
        skips: Callable[..., bool],
        sealer: Sealer | None = None,
    ) -> None:
        self.report = ReplayReport()
        self._sealer = sealer
        self._opener: Sealer | None = None  # of the present file, if its entries are sealed
        self._path = ""
        self._named: set[int] = set()  # keys that damaged groups name
        self._skips = skips
        self._cache = cache
        self._index = index
        self._flusher = flusher
        self._readers = readers

    @property
    def lost_version(self) -> int:
        """Return the version of a file whose header is lost. Plain entries do not authenticate as sealed ones, but
        sealed entries look like plain ones."""
        return journal_format.SEALED_VERSION if self.report.is_encryption_noted else journal_format.VERSION

    def begin_file(self, path: str, *, is_sealed: bool) -> None:
        """Note the journal file of the next batches. Raises StorageError if its entries may be sealed, without keys."""
        if is_sealed and self._sealer is None:
            raise StorageError(f"{path} may hold encrypted entries: set encryption_keys_file. Nothing was changed")
        self._opener = self._sealer if is_sealed else None
        self._path = path

    def _is_intact(self, body: bytes) -> bool:
        """Report whether an entry of the present file is proven complete; others may be complete too."""
        return looks_intact(body) if self._opener is None else self._opener.open_body(body) is not None

    def _opened(self, ledger_id: int, entry_ids: Sequence[int], records: Records) -> tuple[Sequence[int], Records]:
        """Return sealed entries as the client sent them. One that does not authenticate is damage: the rest of its
        ledgers' entries stay, and no entry is reported as missing.

        Raises StorageError for a missing key.
        """
        assert self._opener is not None
        opened = self._opener.open_leading(records.data, records.starts)
        if len(opened) == len(records):
            return entry_ids, opened
        good: list[tuple[int, bytes]] = []
        for index, entry_id in enumerate(entry_ids):
            body = records.body(index)
            self._check_key(ledger_id, body)
            if (plain := self._opener.open_body(body)) is None:
                text = f"{self._path}: entry {entry_id} of ledger {ledger_id} does not authenticate"
                self.report.holes.append(text)
            else:
                good.append((entry_id, plain))
        return [entry_id for entry_id, _ in good], Records.of([body for _, body in good])

    def _check_key(self, ledger_id: int, body: bytes) -> bool:
        """Raise StorageError if the present file's entries are sealed, and the key of this one is missing.

        Return whether only its id of a key is damaged. An entry that names no key is plain, in a file whose header is
        lost, or damaged.
        """
        key_id = sealed_format.key_id_of(body)
        if self._opener is None or key_id in sealed_format.NO_KEYS or self._opener.has(key_id):
            return False
        if not self._opener.has_renamed(body):
            label = sealed_format.label_of(key_id)
            raise StorageError(
                f"{self._path}: an entry of ledger {ledger_id} needs the key {label}, which encryption_keys_file "
                "lacks. Add the key, after the first one, and start again. No data was lost",
                ledger_id=ledger_id,
            )
        return True

    def _check_keys(self, batch: Batch) -> None:
        """Raise StorageError if entries of damaged groups need a key that is missing: without it none is proven.

        Two have to name it. What a single one names may be the damage, and no key that could be added.
        """
        for index, (ledger_id, entry_id) in enumerate(batch.ids):
            if entry_id >= 0:
                key_id = sealed_format.key_id_of(body := batch.records.body(index))
                if key_id in self._named:
                    self._check_key(ledger_id, body)
                self._named.add(key_id)

    async def apply(self, batch: Batch, doubtful_from: int | None) -> None:
        """Apply a batch; records from file offset `doubtful_from` on may be torn where they cross a sector boundary."""
        if batch.trust is Trust.DAMAGED:
            if self._opener is not None:
                self._check_keys(batch)
            batch = _proven_records(batch, self._is_intact)
        ids = batch.ids
        if doubtful_from is None and isinstance(ids, RunIds) and len(ids.runs) * RUN_LENGTH_MIN <= len(ids):
            await self._apply_runs(batch)
            return
        records, starts = batch.records, batch.records.starts
        is_own = batch.trust is Trust.VERIFIED
        entries: dict[tuple[int, bool], list[int]] = {}  # ledger, is doubtful -> indexes of its records
        for index, (ledger_id, entry_id) in enumerate(batch.ids):
            start, end = batch.offset + starts[index], batch.offset + starts[index + 1]
            is_doubtful = doubtful_from is not None and start >= doubtful_from
            is_doubtful = is_doubtful and start // SECTOR != (end - 1) // SECTOR
            if self._skips(ledger_id, is_own=is_own):
                self.report.deleted_count += 1
            elif (
                is_doubtful and start // SECTOR != (start + 19) // SECTOR and not await self._is_plausible(batch, index)
            ):
                self.report.skipped_count += 1
            elif entry_id >= 0:
                if is_doubtful and start // SECTOR == (start + KEY_END - 1) // SECTOR:
                    # Not torn: without its key it would seem to be.
                    is_doubtful = not self._check_key(ledger_id, records.body(index))
                entries.setdefault((ledger_id, is_doubtful), []).append(index)
            elif entry_id == journal_format.LEDGER_KEY:
                await self.key(ledger_id, journal_format.parse_special(records.body(index)))
            elif entry_id == journal_format.FENCE:
                await self.fence(ledger_id)
            elif entry_id == journal_format.EXPLICIT_LAC:
                body = journal_format.parse_special(records.body(index))
                await self.explicit_lac(ledger_id, body, is_doubtful=is_doubtful)
            else:
                self.report.skipped_count += 1
        for (ledger_id, is_doubtful), indexes in entries.items():
            entry_ids = [batch.ids[index][1] for index in indexes]
            await self.entries(ledger_id, entry_ids, _gather(records, indexes), is_doubtful=is_doubtful)

    async def _apply_runs(self, batch: Batch) -> None:
        """Apply the most frequent kind of batch: only entries, with long runs of one ledger."""
        for piece in pieces_of(batch):
            if self._skips(piece.ledger_id, is_own=batch.trust is Trust.VERIFIED):
                self.report.deleted_count += len(piece.entry_ids)
            else:
                records = batch.records
                if len(piece.entry_ids) < len(records):  # otherwise the whole batch would stay in memory with them
                    _, records = concat_runs([(piece.entry_ids, records.slice(piece.start, piece.stop))])
                await self.entries(piece.ledger_id, piece.entry_ids, records, is_doubtful=False)

    async def _is_plausible(self, batch: Batch, index: int) -> bool:
        """Report whether a record whose ids may be partly garbage looks like one that a client sent."""
        ledger_id, entry_id = batch.ids[index]
        if entry_id == journal_format.LEDGER_KEY or self._is_intact(batch.records.body(index)):
            return True
        if not self._index.is_known(ledger_id):
            return False
        ledger = await self._index.load(ledger_id)
        return ledger.header.is_rebuilding or entry_id <= ledger.last_entry_id + JUMP_MAX

    async def key(self, ledger_id: int, key: bytes) -> None:
        """Apply a LEDGER_KEY record: the ledger exists."""
        if not self._index.is_known(ledger_id):
            self._index.create(ledger_id, IndexHeader(key))
            return
        ledger = await self._index.load(ledger_id)
        stored = ledger.header.master_key
        self._index.set_header(ledger, replace(ledger.header, master_key=key if is_vacant(stored) else stored))

    async def fence(self, ledger_id: int) -> None:
        ledger = await self._ledger(ledger_id)
        self._index.set_header(ledger, ledger.header.with_state(STATE_FENCED))

    async def explicit_lac(self, ledger_id: int, body: bytes, *, is_doubtful: bool) -> None:
        ledger = await self._ledger(ledger_id)
        if len(body) < EXPLICIT_LAC_SIZE_MIN:
            return
        stored = ledger.header.explicit_lac
        self._index.set_explicit_lac(ledger, stored if is_doubtful and stored and not looks_intact(body) else body)

    async def entries(self, ledger_id: int, entry_ids: Sequence[int], records: Records, *, is_doubtful: bool) -> None:
        """Insert records of one ledger, one id per record."""
        if _highest(entry_ids) > ENTRY_ID_MAX:
            entry_ids, records = self._without_impossible(ledger_id, entry_ids, records, is_doubtful=is_doubtful)
            if not entry_ids:
                return
        ledger = await self._ledger(ledger_id)
        if self._opener is not None and not is_doubtful:
            entry_ids, records = self._opened(ledger_id, entry_ids, records)
        if not entry_ids:
            return
        if not is_doubtful:
            await self._insert(ledger, entry_ids, records)
            return
        for index, entry_id in enumerate(entry_ids):
            record = records.slice(index, index + 1)
            if not self._is_intact(record.body(0)):
                stored = await self._stored(ledger, entry_id)
                if stored is not None:
                    self.report.kept_count += 1
                    record = Records.of([stored])
                elif self._opener is not None or await self._has_checksums(ledger):
                    self.report.skipped_count += 1
                    continue
            elif self._opener is not None:
                record = self._opener.open_leading(record.data, record.starts)
            await self._insert(ledger, [entry_id], record)

    def _without_impossible(
        self, ledger_id: int, entry_ids: Sequence[int], records: Records, *, is_doubtful: bool
    ) -> tuple[Sequence[int], Records]:
        """Return the records with an id that a bookie accepts. The others are damage unless a crash may have torn them.

        The record that was there named another entry, which is lost.
        """
        indexes = [index for index, entry_id in enumerate(entry_ids) if entry_id <= ENTRY_ID_MAX]
        if is_doubtful:
            self.report.skipped_count += len(entry_ids) - len(indexes)
        else:
            text = f"a record of ledger {ledger_id} has entry id {_highest(entry_ids)}, which no bookie accepts"
            self.report.holes.append(text)
        return [entry_ids[index] for index in indexes], _gather(records, indexes)

    async def _has_checksums(self, ledger: Ledger) -> bool:
        """Report whether the ledger's last stored entry has a checksum that proves it complete."""
        if ledger.last_entry_id < 0:
            return False
        stored = await self._stored(ledger, ledger.last_entry_id)
        return stored is not None and looks_intact(stored)

    async def _insert(self, ledger: Ledger, entry_ids: Sequence[int], records: Records) -> None:
        await self._flusher.wait_room()
        if not isinstance(entry_ids, range):
            run = range(entry_ids[0], entry_ids[0] + len(entry_ids))
            entry_ids = run if list(run) == entry_ids else entry_ids
        lac = kernels.greatest_lac(records.data, records.starts)
        if self._sealer is not None and self._sealer.seals:
            records = self._sealer.seal(records)
        self._cache.current.add_run(ledger.ledger_id, entry_ids, records)
        ledger.last_entry_id = max(ledger.last_entry_id, _highest(entry_ids))
        ledger.last_add_confirmed = max(ledger.last_add_confirmed, lac)
        self._flusher.inserted()
        self.report.entry_count += len(entry_ids)
        self.report.size += records.size

    async def _stored(self, ledger: Ledger, entry_id: int) -> bytes | None:
        """Return the body of the stored copy, if there is one and it is readable."""
        body = self._cache.read(ledger.ledger_id, entry_id)
        if body is not None:
            return self._sealer.open_body(body) if self._sealer is not None and self._sealer.seals else body
        slots = await self._index.slots(ledger, entry_id, 1)
        if not slots.strip(b"\0"):
            return None
        try:
            return (await self._readers.read_records(ledger.ledger_id, entry_id, slots, 0))[4:]
        except ReadFailed:
            return None  # Apache's bookie made the slot durable before its entry: the journal has the good copy

    async def _ledger(self, ledger_id: int) -> Ledger:
        """Return the ledger; create an unknown one, fenced (F-13)."""
        if self._index.is_known(ledger_id):
            return await self._index.load(ledger_id)
        self.report.keyless.append(ledger_id)
        return self._index.create(ledger_id, IndexHeader(b"", STATE_FENCED))


def _highest(entry_ids: Sequence[int]) -> int:
    return entry_ids[-1] if isinstance(entry_ids, range) else max(entry_ids)


def looks_intact(body: bytes) -> bool:
    """Report whether a checksum proves an entry or explicit LAC complete; others may be complete too."""
    return any(proven_content(body, header_size) is not None for header_size in (ENTRY_HEADER_SIZE, 16))


def proven_content(body: bytes, header_size: int = ENTRY_HEADER_SIZE) -> bytes | None:
    """Return what follows header and checksum; None if no checksum proves it complete, and so where it begins."""
    for digest_type in (DigestType.CRC32C, DigestType.CRC32):
        end = header_size + digest_type.size
        computed = kernels.digest(digest_type, b"", body[:header_size], body[end:])
        if len(body) >= end and body[header_size:end] == computed:
            return body[end:]
    return None
