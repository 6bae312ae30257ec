"""Entry logs, the permanent storage of entries. One writer appends runs; readers fetch entries by location.

Invariants
- R-2: the entry log is durable before the index that names it. Locations are returned only for written bytes, which are
  durable after `sync`.
- F-16: write at the accounted offset; after an error seal the log at its last good offset and open another. A log
  without an entry is removed instead.
- R-16: sync the active log first, then the rotated logs. R-17: a log leaves the "to be synced" set only after its sync
  succeeded.
- Unsynced entries are kept in memory as well. When a log's directory has failed, `sync` does not return before `rescue`
  has written them again elsewhere, so no checkpoint skips them.
- F-15, R-27: the id of a new log is above every id in file names and in `lastId`, and `lastId` is durable in every
  ledger directory before the log exists, so no stale index slot can name it.
- F-17: fsync the directory before a checkpoint depends on the log. It is synced before the first entry is written.
- R-3: an entry that cannot be read, or is another entry, is `ReadFailed`; damage is never reported as "no such entry".

Both classes block, and each instance is confined to one worker.

Source: storage 3.
"""

from __future__ import annotations

import contextlib
import posixpath
import sys
from array import array
from bisect import bisect_right
from collections.abc import Sequence

from msgspec import Struct, field

from bookies import kernels
from bookies.config import BookieConfig
from bookies.errors import CorruptRecord, DiskFull, ReadFailed, StorageError
from bookies.runtime.ports import Buffer, Disk, File
from bookies.storage.cache.write_cache import AddRun, Run
from bookies.storage.disks import DirectoryHealth
from bookies.storage.disks.durable_files import (
    SyncFailed,
    remove,
    replace_copies,
    sync_all,
    sync_data,
    sync_directory,
)
from bookies.storage.disks.file_cache import FileCache
from bookies.storage.entry_log import entry_log_format as layout
from bookies.storage.entry_log.log_directories import LogDirectories, directory_of
from bookies.storage.entry_log.log_opener import LogOpener, log_of
from bookies.storage.journal.page_cache import DroppedPrefix
from bookies.storage.records.record_scan import IDS, RECORD_SIZE_MAX, RECORD_SIZE_MIN, WORD, Pread
from bookies.storage.sealing.sealer import Sealer

SYNC_STEP = 8 << 20  # bytes after which the log is synced without a checkpoint, which then has little left to sync
READ_SIZE = 4096  # bytes of a first read when the size of an entry is not known
LOG_FILES_MAX = 64  # open logs of one reader
MIXED_SIZE = 1 << 20  # bytes of mixed entries written at once
DROP_STEP = 8 << 20  # bytes dropped from the page cache by one call


class LogLost(StorageError):
    """The sync of a log has failed in a failed directory. Call `rescue` to write its unsynced runs again."""


class _Log(Struct):
    """A log that is written or to be synced. `runs`: the unsynced runs, with their ledger ids; they begin at `synced`.

    `space`: its space of ids. `keys`: as in its header. `position`: its end. `sizes`: bytes by ledger. `dropped`: what
    has left the page cache.
    """

    file: File
    log_id: int
    space: int
    keys: tuple[int, ...] = ()
    position: int = layout.HEADER_SIZE
    synced: int = layout.HEADER_SIZE
    sizes: dict[int, int] = field(default_factory=dict)
    runs: list[tuple[int, Run] | AddRun] = field(default_factory=list)
    dropped: DroppedPrefix = field(default_factory=lambda: DroppedPrefix(DROP_STEP))


class NoWritableDirectory(DiskFull):
    """No ledger directory accepts a new entry log."""


def greatest_log_id(disk: Disk, logs: LogDirectories, among: Sequence[str] | None = None) -> int:
    """Return the highest id ever allocated, from file names and `lastId`; -1 if there is none.

    `among`: search only these directories.
    """
    greatest = -1
    for directory in logs.paths if among is None else among:
        for name in disk.list(directory):
            compacted = layout.parse_compacted_name(name)
            number = compacted[0] if compacted else layout.parse_file_name(name)
            if name == "lastId":
                number = layout.parse_last_id(disk.read_bytes(posixpath.join(directory, name)))
            greatest = max(greatest, -1 if number is None else logs.id_in(directory, number))
    return greatest


class EntryLogWriter:
    """The writer of entry logs. Blocks. One log is active in each space of ids.

    `logs`: the ledger directories; those of one space are used in turn for new logs.

    A failed sync is final: the kernel drops the pages that it could not write, and reports the next sync as done. Who
    called may not learn of the failure, because it was cancelled, or may try again. So every later call that writes or
    syncs raises it too, and no mark passes the lost entries. Only a directory that has failed is given up instead.
    """

    def __init__(
        self,
        disk: Disk,
        logs: LogDirectories,
        config: BookieConfig,
        health: DirectoryHealth | None = None,
        sealer: Sealer | None = None,
    ) -> None:
        self._disk = disk
        self._logs = logs
        self._sealer = sealer
        self._health = health or DirectoryHealth(logs.paths, logs.paths, keeps_going=False)
        self._config = config
        self._last_id: int | None = None
        self._is_last_id_certain = False  # all directories were listed
        self._active: dict[int, _Log] = {}  # by space
        self._unsynced: list[_Log] = []  # sealed logs
        self.lost_ends: dict[int, int] = {}  # lost log -> offset of the end of its synced part
        self._lost: list[tuple[int, int, Run]] = []  # (lost log, ledger id, run) to be written again
        self._unnamed: list[str] = []  # paths of logs that no durable index slot can name yet
        self._is_discarded = False
        self._failure: SyncFailed | None = None  # the first one

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _fail_unless_given_up(self, path: str, error: SyncFailed) -> None:
        """Raise the error, now and in every later call, unless the directory of this path has failed."""
        if not self._health.is_failed(path):
            self._failure = self._failure or error
            raise error

    def write(self, runs: Sequence[tuple[int, Run]]) -> list[bytes]:
        """Append the records of (ledger id, run)s in this order and return the index slots of each run.

        Raises: DiskFull, OSError if writes to the active log and to a new one fail; then no record was added.
        SyncFailed: final.
        """
        self._check()
        buffers: dict[int, list[Buffer]] = {}
        for ledger_id, run in runs:
            _check_run(ledger_id, run)
            buffers.setdefault(directory_of(ledger_id, self._logs.count), []).append(_buffer_of(run))
        places = self._append_all(buffers)
        slots = []
        for ledger_id, run in runs:
            space, size = directory_of(ledger_id, self._logs.count), run.records.size
            log, position = places[space]
            slots.append(kernels.pack_locations(log.log_id, position, run.records.starts))
            places[space] = log, position + size
            log.sizes[ledger_id] = log.sizes.get(ledger_id, 0) + size
            log.runs.append((ledger_id, run))
        self._sync_when_due([log for log, _ in places.values()])
        return slots

    def write_mixed(self, entries: kernels.SortedEntries, first: int) -> tuple[AddRun, bytes, list[int]]:
        """Append about `MIXED_SIZE` bytes of entries from number `first` on.

        Return (the entries, their index slots, the logs that they are in). Raises as `write` does.
        """
        self._check()
        try:
            records, ledger_ids, entry_ids = entries.take(first, MIXED_SIZE)
        except ValueError:
            # verify ledger and entry id of each entry when it is moved from the cache to the log.
            raise StorageError("the write cache holds another entry in its place") from None
        mixed = AddRun(ledger_ids, entry_ids, records)
        starts, view = records.starts, memoryview(records.data)
        spans = self._spans_of(mixed)
        buffers: dict[int, list[Buffer]] = {}
        for space, start, stop in spans:
            buffers.setdefault(space, []).append(view[starts[start] : starts[stop]])
        places = self._append_all(buffers)
        logs = {space: log for space, (log, _) in places.items()}
        slots = []
        for space, start, stop in spans:
            log, position = places[space]
            slots.append(kernels.pack_locations(log.log_id, position, starts[start : stop + 1]))
            places[space] = log, position + starts[stop] - starts[start]
        for ledger_id, start, stop in mixed.stretches():
            sizes = logs[directory_of(ledger_id, self._logs.count)].sizes
            sizes[ledger_id] = sizes.get(ledger_id, 0) + starts[stop] - starts[start]
        for log in logs.values():
            log.runs.append(mixed)
        self._sync_when_due(list(logs.values()))
        return mixed, b"".join(slots), [log.log_id for log in logs.values()]

    def _spans_of(self, mixed: AddRun) -> list[tuple[int, int, int]]:
        """Return (space, index of the first record, index after the last) of neighbours in one space."""
        if self._logs.count == 1:
            return [(0, 0, len(mixed))]
        spans: list[tuple[int, int, int]] = []
        for ledger_id, start, stop in mixed.stretches():
            space = directory_of(ledger_id, self._logs.count)
            if spans and spans[-1][0] == space:
                start = spans.pop()[1]
            spans.append((space, start, stop))
        return spans

    def _append_all(self, buffers: dict[int, list[Buffer]]) -> dict[int, tuple[_Log, int]]:
        """Append to a log of each space, or to none; return (the log, the offset) by space."""
        places: dict[int, tuple[_Log, int]] = {}
        try:
            for space, parts in buffers.items():
                places[space] = self._append_somewhere(space, parts, sum(map(len, parts)))
        except (OSError, StorageError):
            for log, position in places.values():
                self._take_back(log, position)
            raise
        return places

    def _take_back(self, log: _Log, position: int) -> None:
        """Remove what was appended to an active log from an offset on: the write to another space has failed."""
        log.position = position
        try:
            if position > layout.HEADER_SIZE:
                log.file.truncate(position)
                return
        except (OSError, DiskFull):
            pass
        self._abandon(log)

    def _append_somewhere(self, space: int, buffers: list[Buffer], size: int) -> tuple[_Log, int]:
        """Write to the active log or, if that is full or fails, to the next one; return it and the offset."""
        active = self._active.get(space)
        if active is not None and active.sizes and self._should_roll(active, size):
            self._seal(active)
        try:
            return self._append(space, buffers, size)
        except (OSError, DiskFull):
            return self._append(space, buffers, size)  # into another log, perhaps on another disk

    def _sync_when_due(self, logs: Sequence[_Log]) -> None:
        for log in logs:
            if log.position - log.synced >= SYNC_STEP:
                self._sync_active(log)

    def _should_roll(self, active: _Log, size: int) -> bool:
        """Report whether another `size` bytes exceed the log's maximum, the entries may have a key that its header does
        not name, or another directory has more free space.
        """
        if self._sealer is not None and not set(self._sealer.in_play) <= set(active.keys):
            return True
        directory, others = posixpath.dirname(active.file.path), self._logs.of_space(active.space)
        return active.position + size > self._config.entry_log_size_max or self._health.should_leave(directory, others)

    def _append(self, space: int, buffers: list[Buffer], size: int) -> tuple[_Log, int]:
        """Write at the end of the active log; return it and the offset. After a failure the log is sealed."""
        active = self._active.get(space) or self._open_next(space)
        self._active[space] = active
        position = active.position
        try:
            active.file.pwritev(buffers, position)
        except (OSError, DiskFull):
            self._abandon(active)
            raise
        active.position += size
        return active, position

    def _open_next(self, space: int) -> _Log:
        """Create the next log in the first directory, in turn, that accepts it."""
        if self._is_discarded:
            raise NoWritableDirectory("the entry logs of the failed start were discarded")
        failure: Exception | None = None
        untried = self._health.healthy(self._logs.of_space(space))
        while untried:
            try:
                log_id = self._allocate_id(space)
            except (OSError, DiskFull) as error:
                failure = error
                break
            directory = self._health.pick(untried, log_id)
            untried.remove(directory)
            try:
                file = self._disk.open(posixpath.join(directory, self._logs.file_name(log_id)), "x+")
            except (OSError, DiskFull) as error:
                failure = error
                continue
            keys = () if self._sealer is None else self._sealer.in_play
            try:
                file.pwrite(layout.pack_header(keys=keys), 0)
                sync_directory(self._disk, directory)
            except (OSError, DiskFull, SyncFailed) as error:
                failure = error
                file.close()
                self._remove_empty(file.path, log_id)
                if isinstance(error, SyncFailed):
                    self._fail_unless_given_up(directory, error)
                continue
            self._unnamed.append(file.path)
            return _Log(file, log_id, space, keys)
        raise NoWritableDirectory("no ledger directory accepts a new entry log") from failure

    def first_unfinished_ids(self) -> list[int]:
        """Return for each space the id of the active log or a bound of the next: logs with smaller ids are sealed."""
        next_id = self._find_last_id() + 1
        return [self._active[space].log_id if space in self._active else next_id for space in range(self._logs.count)]

    def _find_last_id(self) -> int:
        """Return the greatest id ever allocated. Raises: OSError."""
        if self._last_id is None:
            healthy = self._health.healthy(self._logs.paths)
            self._is_last_id_certain = len(healthy) == len(self._logs.paths)
            self._last_id = greatest_log_id(self._disk, self._logs, healthy)
        return self._last_id

    def extents(self) -> dict[int, int]:
        """Return the active logs and their synced bytes."""
        return {log.log_id: log.synced for log in self._active.values()}

    def active_sizes(self) -> dict[int, dict[int, int]]:
        """Return the bytes of each ledger in the active logs, by log."""
        return {log.log_id: dict(log.sizes) for log in self._active.values()}

    def roll(self, log_ids: Sequence[int]) -> list[int]:
        """Seal those of these logs that are active; return them. Raises: SyncFailed."""
        self._check()
        chosen = [log for log in self._active.values() if log.log_id in log_ids]
        for log in chosen:
            self._seal(log)
        return [log.log_id for log in chosen]

    def allocate(self, source_id: int) -> tuple[int, str]:
        """Return an id and a directory for a log that another component writes. Raises: OSError, DiskFull.

        `source_id`: the log whose entries it will have.
        """
        space = source_id % self._logs.count
        log_id = self._allocate_id(space)
        return log_id, self._health.pick(self._logs.of_space(space), log_id)

    def _allocate_id(self, space: int) -> int:
        """Allocate the next id, durable in every writable directory and in at least one of its space."""
        log_id = self._logs.next_id(self._find_last_id(), space)
        data, own = layout.pack_last_id(self._logs.file_id(log_id)), self._logs.of_space(space)
        self._last_id = log_id
        replace_copies(self._disk, [posixpath.join(directory, "lastId") for directory in own], data)
        if others := [posixpath.join(path, "lastId") for path in self._logs.paths if path not in own]:
            with contextlib.suppress(OSError, DiskFull):
                replace_copies(self._disk, others, data)
        return log_id

    def _seal(self, active: _Log) -> None:
        """Write the ledgers map and add the log to the list of logs to be synced."""
        self._active.pop(active.space, None)
        self._unsynced.append(active)
        try:
            if ledgers_map := layout.pack_ledgers_map(active.sizes.items()):
                active.file.pwrite(ledgers_map, active.position)
                sync_data(active.file)
            active.file.pwrite(layout.pack_map_fields(active.position, len(active.sizes)), layout.MAP_FIELDS_OFFSET)
        except (OSError, DiskFull):
            pass  # Its entries are intact: a log without a map is scanned.
        except SyncFailed as error:
            self._fail_unless_given_up(active.file.path, error)

    def _abandon(self, active: _Log) -> None:
        """Seal the log after a failed write, and truncate it at the last good offset if that is possible.

        A log without an entry is deleted; otherwise every attempt on a full disk would leave one.
        """
        file = active.file
        del self._active[active.space]
        if active.position == layout.HEADER_SIZE:
            file.close()
            self._remove_empty(file.path, active.log_id)
            self._unnamed = [path for path in self._unnamed if path != file.path]
            return
        try:
            file.truncate(active.position)
        except (OSError, DiskFull):
            self._unsynced.append(active)
        else:
            self._seal(active)

    def _remove_empty(self, path: str, log_id: int) -> None:
        """Remove a log without an entry. One that stays in a failed directory is lost: later logs will be synced."""
        remove(self._disk, path)
        if self._health.is_failed(path):
            self.lost_ends = {**self.lost_ends, log_id: 0}

    def sync(self) -> tuple[dict[int, int], int]:
        """Make every byte written so far durable; return (the active logs and their ends, the greatest id allocated).

        The latter is `LOG_ID_MAX` if it is unknown. Raises LogLost until `rescue` has written everything again;
        SyncFailed, which is final, because the page cache cannot be trusted any more.
        """
        self._check()
        self._unnamed.clear()
        for active in list(self._active.values()):
            self._sync_active(active)
        while self._unsynced:
            sealed = self._unsynced[0]
            try:
                sync_all(sealed.file)
            except SyncFailed as error:
                self._lose(sealed, error)
            else:
                if sealed.position > self._config.entry_log_cached_size:
                    sealed.file.drop_cache(sealed.dropped.size, sealed.position - sealed.dropped.size)
            self._unsynced.pop(0)
            sealed.file.close()
        if self._lost:
            label = self._logs.label(self._lost[0][0])
            raise LogLost(f"entry log {label} is lost: its unsynced entries are written again elsewhere")
        return self.extents(), self._greatest_id()

    def _greatest_id(self) -> int:
        try:
            last_id = self._find_last_id()
        except OSError:
            return layout.LOG_ID_MAX
        return last_id if self._is_last_id_certain else layout.LOG_ID_MAX

    def _sync_active(self, active: _Log) -> None:
        if active.position == active.synced:
            return
        try:
            sync_data(active.file)
        except SyncFailed as error:
            self._lose(active, error)
            active.file.close()
            del self._active[active.space]
            return
        active.runs = []
        active.synced = active.position
        active.dropped.grow(active.file, active.synced - self._config.entry_log_cached_size)

    def _lose(self, log: _Log, error: SyncFailed) -> None:
        """Give up a log whose sync has failed. Raises the error unless its directory has failed."""
        self._fail_unless_given_up(log.file.path, error)
        self.lost_ends = {**self.lost_ends, log.log_id: log.synced}  # replaced, as another thread reads it
        for lost_run in log.runs:
            runs = lost_run.runs() if isinstance(lost_run, AddRun) else (lost_run,)
            self._lost += [(log.log_id, ledger_id, run) for ledger_id, run in runs]

    def rescue(self) -> list[tuple[int, int, Run, bytes]]:
        """Write some of the lost runs again; return (lost log, ledger id, run, new slots) of each; empty when done.

        Raises as `write` does; then the call may be repeated.
        """
        size = count = 0
        while count < len(self._lost) and size < SYNC_STEP // 8:
            size += self._lost[count][2].records.size
            count += 1
        if not count:
            return []
        slots = self.write([(ledger_id, run) for _, ledger_id, run in self._lost[:count]])
        rescued, self._lost = self._lost[:count], self._lost[count:]
        return [(*lost_run, data) for lost_run, data in zip(rescued, slots, strict=True)]

    def close(self) -> None:
        """Seal the active log durably, so that no scan of it is needed. Raises: SyncFailed."""
        self._check()
        for active in list(self._active.values()):
            self._seal(active)
        self.sync()

    def discard(self) -> None:
        """Remove every log that no durable index slot can name, and stop writing: the journal has all entries."""
        self._is_discarded = True
        self.abort()
        for path in self._unnamed:
            remove(self._disk, path)
        self._unnamed.clear()

    def abort(self) -> None:
        """Close the files without sealing or syncing them."""
        for log in (*self._unsynced, *self._active.values()):
            log.file.close()
        self._unsynced.clear()
        self._active.clear()


def _check_run(ledger_id: int, run: Run) -> None:
    """Raise StorageError if the first or last record is not the expected entry.

    R-24: verify ledger and entry id of each entry when it is moved from the cache to the log.
    """
    records = run.records
    assert len(records) == len(run.entry_ids)
    for index, entry_id in ((0, run.first), (len(records) - 1, run.last)):
        if IDS.unpack_from(records.data, records.starts[index] + 4) != (ledger_id, entry_id):
            raise StorageError(f"the write cache holds another entry in place of entry {entry_id}", ledger_id=ledger_id)


def _buffer_of(run: Run) -> Buffer:
    records = run.records
    if records.size == len(records.data):
        return records.data
    return memoryview(records.data)[records.starts[0] : records.starts[-1]]


class EntryLogReader:
    """The reader of entries by location. Blocks. `opener`: of sealed entries, with the bookie's keys."""

    def __init__(self, disk: Disk, logs: LogDirectories, opener: LogOpener | None = None) -> None:
        self._opener = opener
        self._disk = disk
        self._logs = logs
        self._files = FileCache(disk, LOG_FILES_MAX)
        self._paths: dict[int, str] = {}

    def read_records(self, ledger_id: int, first_entry_id: int, slots: bytes, size_max: int) -> bytes:
        """Return records of consecutive entries: as many as lie back to back and fit, at least the first.

        `slots`: index slots of the entries from `first_entry_id` on, none of them missing. `size_max`: bytes; 0: only
        the first record. Usually one read of the log. Raises ReadFailed if the first entry is not at its location.
        """
        log_id = log_of(slots)
        try:
            file = self._files.get(self._path(log_id), "r")
            data = records_at(file.pread, file.path, ledger_id, first_entry_id, slots, size_max)
            return data if self._opener is None else self._opener.opened(data, slots, file.pread, file.path)
        except (OSError, StorageError) as error:
            label = self._logs.label(log_id)
            raise ReadFailed(f"entry log {label}: {error}", ledger_id=ledger_id, entry_id=first_entry_id) from error

    def ids_at(self, slot: bytes) -> tuple[int, int] | None:
        """Return (ledger id, entry id) of the record that a slot names; None if there is none, or it is unreadable."""
        log_id, body_offset = layout.split_location(int.from_bytes(slot, "big", signed=True))
        try:
            head = self._files.get(self._path(log_id), "r").pread(4 + RECORD_SIZE_MIN, body_offset - 4)
        except (OSError, StorageError, ValueError):
            return None
        if len(head) < 4 + RECORD_SIZE_MIN or not RECORD_SIZE_MIN <= WORD.unpack_from(head)[0] <= RECORD_SIZE_MAX:
            return None
        ids: tuple[int, int] = IDS.unpack_from(head, 4)
        return ids if min(ids) >= 0 else None

    def open_another(self, log_id: int) -> File:
        """Open a log for another thread, which closes it. Raises: OSError."""
        return self._disk.open(self._path(log_id), "r")

    def _path(self, log_id: int) -> str:
        path = self._paths.get(log_id)
        if path is None:
            name = self._logs.file_name(log_id)
            failure: OSError | None = None
            for directory in self._logs.of_log(log_id):
                path = posixpath.join(directory, name)
                try:
                    if self._disk.exists(path):
                        self._paths[log_id] = path
                        return path
                except OSError as error:
                    failure = error  # one directory failed; the log may be in another
            if failure is not None:
                raise failure
            raise FileNotFoundError(2, "no such entry log", name)
        return path

    def forget(self, log_id: int) -> None:
        """Close a log that was removed."""
        if (path := self._paths.pop(log_id, None)) is not None:
            self._files.forget(path)

    def close(self) -> None:
        self._files.close()


def records_at(pread: Pread, path: str, ledger_id: int, first_entry_id: int, slots: bytes, size_max: int) -> bytes:
    """Read records as `EntryLogReader.read_records` does. `pread`: of the log. Raises its errors and CorruptRecord."""
    log_id, body_offset = layout.split_location(int.from_bytes(slots[:8], "big"))
    start = body_offset - 4
    if start < layout.HEADER_SIZE:
        raise CorruptRecord("an index slot names an offset within the header", path=path, offset=start)
    if size_max <= 0:
        data = _read_record(pread, start, slots)
        if not _is_entry(data, 0, ledger_id, first_entry_id):
            raise CorruptRecord("not the record that the index names", path=path, offset=start)
        return data
    data, starts = _read_span(pread, start, slots, size_max)
    count = _count_matching(log_id, start, slots, data, starts, size_max)
    while count and not _is_entry(data, starts[count - 1], ledger_id, first_entry_id + count - 1):
        count -= 1
    if count == 0 or not _is_entry(data, 0, ledger_id, first_entry_id):
        raise CorruptRecord("not the record that the index names", path=path, offset=start)
    return data[: starts[count]]


def _read_record(pread: Pread, start: int, slots: bytes) -> bytes:
    """Return the record at `start`, empty if there is none. `slots`: its slot, perhaps with the next as a size hint."""
    size = READ_SIZE
    if len(slots) > 8:
        gap = int.from_bytes(slots[8:16], "big") - int.from_bytes(slots[:8], "big")
        if 4 < gap < READ_SIZE:
            size = gap
    data = pread(size, start)
    end = 4 + WORD.unpack_from(data)[0] if len(data) >= 4 else 0
    if end <= len(data):
        return data[:end]
    if end - 4 > RECORD_SIZE_MAX:
        return b""
    data = pread(end, start)
    return data if len(data) == end else b""


def _read_span(pread: Pread, start: int, slots: bytes, size_max: int) -> tuple[bytes, Sequence[int]]:
    """Read from `start` to the last slot that can fit, plus the guessed size of its record; return (bytes, starts)."""
    locations = array("q")
    locations.frombytes(slots)
    if sys.byteorder == "little":
        locations.byteswap()
    last = bisect_right(locations, locations[0] + max(0, size_max)) - 1
    span = max(0, locations[last] - locations[0]) if last > 0 else 0
    if span > size_max:  # the locations do not ascend: only one record is certain
        span = 0
    if last > 0 and span == last * (locations[1] - locations[0]):
        guess = locations[1] - locations[0]  # entries of one size: the read is exact, and no copy is needed
    else:
        guess = max(READ_SIZE, 2 * span // max(1, last))
    data = pread(span + guess, start)
    starts, reason = kernels.scan_records(data, 0, len(data), RECORD_SIZE_MAX)
    if len(starts) == 1 and reason == "short" and len(data) >= 4:
        data = pread(4 + WORD.unpack_from(data)[0], start)
        starts, _ = kernels.scan_records(data, 0, len(data), RECORD_SIZE_MAX)
    return data, starts


def _count_matching(log_id: int, start: int, slots: bytes, data: bytes, starts: Sequence[int], size_max: int) -> int:
    """Return the number of leading records that the slots name, back to back, and that fit into `size_max`."""
    count = min(len(starts) - 1, len(slots) // 8)
    count = min(count, max(1, bisect_right(starts, max(0, size_max)) - 1))
    actual = kernels.pack_locations(log_id, start, starts[: count + 1])
    if actual == slots[: 8 * count]:
        return count
    low = 0  # the first `low` slots agree, the first `count` do not
    while low < count - 1:
        middle = (low + count) // 2
        if actual[: 8 * middle] == slots[: 8 * middle]:
            low = middle
        else:
            count = middle
    return low


def _is_entry(data: bytes, at: int, ledger_id: int, entry_id: int) -> bool:
    """Report whether the record at `data[at]` is that entry, judged by its ids and size."""
    if len(data) < at + 4 + RECORD_SIZE_MIN:
        return False
    size = WORD.unpack_from(data, at)[0]
    return size >= RECORD_SIZE_MIN and IDS.unpack_from(data, at + 4) == (ledger_id, entry_id)
