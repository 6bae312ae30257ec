"""Conversion from RocksDB databases to index files, with a catalog. See `conversion`.

Index files are written at their final paths. No process reads them while the databases exist. The catalog gets its name
with the switch: until then the databases have one.

Entry logs of several directories may have the same ids, which index files cannot distinguish. All but one of them get
another id: first as a second name of the same file, after the switch as the only name. If two are the same log, because
an earlier conversion to databases duplicated it, one is kept. The switch deletes the other.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from bookies.config import BookieConfig
from bookies.errors import StorageError
from bookies.runtime.ports import Disk
from bookies.storage.disks.durable_files import replace_bytes, sync_directory, unlink_all
from bookies.storage.entry_log.entry_log_format import LOG_ID_MAX, file_name, parse_last_id
from bookies.storage.entry_log.log_directories import LogDirectories, directory_of
from bookies.storage.entry_log.log_usage import find_logs
from bookies.storage.identity.index_kind import REBUILD
from bookies.storage.index import catalog_format, index_format
from bookies.storage.index.catalog_format import Contents, Known
from bookies.storage.index.index_files import IndexFiles, IndexWrite
from bookies.storage.index.index_format import ENTRY_ID_MAX, SLOT_SIZE, STATE_FENCED, STATE_LIMBO, IndexHeader
from bookies.storage.rocksdb import rocksdb_format
from bookies.storage.rocksdb.conversion import ASIDE, BUILDING, INDEX_FILES, Conversion, Progress, Step
from bookies.storage.rocksdb.conversion_check import (
    Fingerprint,
    RecordCheck,
    Survey,
    by_ledger,
    fingerprint,
    is_same_file,
    runs_of_file,
)
from bookies.storage.rocksdb.rocksdb_format import Databases, Reader, Run

WRITE_FILES_MAX = 64  # index files written by one call
WRITE_SIZE_MAX = 2 << 20  # bytes, likewise
GUARD = b"The index is in index files now: bk bookie convert DIRECTORY --to rocksdb makes databases again.\n"


class ToIndexFiles(Conversion):
    """Conversion to index files. `links` are new ids of logs."""

    target = INDEX_FILES

    def __init__(self, disk: Disk, databases: Databases, config: BookieConfig, on_progress: Progress) -> None:
        super().__init__(disk, databases, config, on_progress)
        self._ids: list[tuple[int, int, int]] | None = None
        self._spares: list[tuple[int, int, int]] = []

    def _check_source(self) -> None:
        expected = [path for directory in self._indexes for path in rocksdb_format.paths_in(directory)]
        missing = [path for path in expected if not self._databases.exists(path)]
        if len(missing) == len(expected):
            raise StorageError(f"{self._indexes[0]} holds no RocksDB databases: there is nothing to convert")
        if missing:
            raise StorageError(f"{missing[0]}: the database is missing. No file was changed. Restore it first")
        if marked := [path for path in expected if self._disk.exists(path + REBUILD)]:
            raise StorageError(
                f"{marked[0]}: the database has lost entries, and they are not rebuilt yet. No file was changed. Start "
                "the bookie once with ledger_index = rocksdb, which rebuilds them from the entry logs"
            )
        self._check_nothing_aside()
        for directory in self._indexes:
            if names := [name for name in self._index_names(directory) if self._counts(directory, name)]:
                raise StorageError(
                    f"{directory} holds RocksDB databases and {len(names):,} index files, so it is unknown which "
                    "count. No file was changed. If the bookie ran with DbLedgerStorage, move the index files away "
                    f"({names[0]} ...)"
                )

    def _counts(self, directory: str, name: str) -> bool:
        """Report whether a file is of an index in files. A bookie on databases has a catalog that names no ledger."""
        if name != catalog_format.FILE_NAME:
            return True
        data = self._disk.read_bytes(posixpath.join(directory, name))
        return bool(catalog_format.parse(data, self._page_size).ledgers)

    def _survey(self) -> Survey:
        self._ids = None
        renamed = _by_directory([*self._new_ids(), *self._spares])
        survey = Survey(logs_spared=len(self._spares))
        for number, directory in enumerate(self._indexes):
            self._read_ledgers(directory, number, survey)
            check = RecordCheck(self._disk, find_logs(self._disk, LogDirectories([self._ledgers[number]])))
            try:
                for ledger_id, runs in by_ledger(self._runs(directory)):
                    if ledger_id not in survey.headers:
                        survey.orphans += sum(len(run.entry_ids) for run in runs)
                        continue
                    taken = fingerprint(self._checked(runs, check, survey, renamed.get(number, {})), self._page_size)
                    if taken.last_entry_id > ENTRY_ID_MAX:
                        raise StorageError(
                            f"entry id {taken.last_entry_id} is too large for an index file", ledger_id=ledger_id
                        )
                    survey.fingerprints[ledger_id] = taken
            finally:
                check.close()
        if survey.problems:
            state = STATE_FENCED | STATE_LIMBO
            survey.headers = {ledger_id: header.with_state(state) for ledger_id, header in survey.headers.items()}
        return survey

    def _read_ledgers(self, directory: str, number: int, survey: Survey) -> None:
        path = rocksdb_format.paths_in(directory)[1]
        reader = self._read(path)
        try:
            headers = rocksdb_format.ledgers_of(reader, path)
            if rocksdb_format.needs_integrity_check(reader):
                survey.problems.append(f"{path}: Apache's integrity check has not finished")
        finally:
            reader.close()
        for ledger_id, header in headers.items():
            if directory_of(ledger_id, len(self._indexes)) != number:
                right = self._indexes[directory_of(ledger_id, len(self._indexes))]
                raise StorageError(
                    f"the ledger is in {directory}, but belongs to {right}: the order or the number of directories "
                    "differs from the one that they were written with. No file was changed",
                    ledger_id=ledger_id,
                )
            _check_header(header, ledger_id)
            survey.headers[ledger_id] = header

    def _runs(self, directory: str) -> Iterator[Run]:
        path = rocksdb_format.paths_in(directory)[0]
        reader = self._read(path)
        try:
            yield from rocksdb_format.runs_of(reader, path)
        finally:
            reader.close()

    def _read(self, path: str) -> Reader:
        """Open a database that is no older than the catalog says. Raises: CorruptRecord, StorageError."""
        reader = self._databases.read(path, is_exact=self._directories.was_clean)
        versions = self._catalog().versions
        paths = [place for directory in self._indexes for place in rocksdb_format.paths_in(directory)]
        number = 2 * paths.index(path)
        if problem := rocksdb_format.version_problem(reader.version(), versions[number : number + 2]):
            reader.close()
            raise StorageError(
                f"{path}: {problem}. No file was changed. Restore the right one, or start the bookie once with "
                "ledger_index = rocksdb, which rebuilds what is lost from the entry logs"
            )
        return reader

    def _checked(
        self, runs: Iterable[Run], check: RecordCheck, survey: Survey, renamed: dict[bytes, bytes]
    ) -> Iterator[Run]:
        """Yield the runs as the new index will have them, after looking up their records."""
        for run in runs:
            if wrong := check.wrong(run):
                survey.add_damaged(run.ledger_id, wrong)
            survey.entries += len(run.entry_ids)
            self._on_progress("looked up", survey.entries)
            yield _renamed_run(run, renamed)

    def _new_ids(self) -> list[tuple[int, int, int]]:
        """Return (directory number, id, new id) of logs whose id another directory has too. Runs once per survey."""
        if self._ids is not None:
            return self._ids
        by_directory: list[dict[int, str]] = []
        greatest = -1
        for directory in self._ledgers:
            by_directory.append(find_logs(self._disk, LogDirectories([directory])))
            greatest = max([greatest, self._last_id(directory), *by_directory[-1]])
        taken: dict[int, list[tuple[str, int]]] = {}  # by old id: (path, new id) of the logs with it
        self._ids, self._spares = [], []
        for number, logs in enumerate(by_directory):
            for log_id, path in logs.items():
                others = taken.setdefault(log_id, [])
                same = next((new for other, new in others if is_same_file(self._disk, other, path)), None)
                if same is not None:
                    self._spares.append((number, log_id, same))
                elif others:
                    greatest += 1
                    if greatest > LOG_ID_MAX:
                        raise StorageError("all ids of entry logs are in use")
                    self._ids.append((number, log_id, greatest))
                    others.append((path, greatest))
                else:
                    others.append((path, log_id))
        return self._ids

    def _last_id(self, directory: str) -> int:
        path = posixpath.join(directory, "lastId")
        last_id = parse_last_id(self._disk.read_bytes(path)) if self._disk.exists(path) else None
        return -1 if last_id is None else last_id

    def _room_needed(self, survey: Survey) -> list[tuple[str, int]]:
        needed = []
        for ledger_id in survey.headers:
            pages = survey.fingerprints.get(ledger_id, Fingerprint()).pages
            size = index_format.HEADER_SIZE + pages * (self._page_size + 32)
            needed.append((self._indexes[directory_of(ledger_id, len(self._indexes))], max(size, 4096)))
        return needed

    def _links(self, survey: Survey) -> list[tuple[int, int, int]]:
        return self._new_ids()

    def _spare(self) -> list[tuple[int, int, int]]:
        return self._spares

    def _link(self, step: Step) -> None:
        for number, old, new in step.links:
            directory = self._ledgers[number]
            self._disk.link(posixpath.join(directory, file_name(old)), posixpath.join(directory, file_name(new)))
        for directory in dict.fromkeys(self._ledgers[number] for number, _, _ in step.links):
            sync_directory(self._disk, directory)

    # -- build ---------------------------------------------------------------------------------------------------
    def _build(self, survey: Survey, step: Step) -> None:
        renamed = _by_directory([*step.links, *step.spare])
        contents = Contents(self._page_size, holes=survey.problems)
        files = IndexFiles(self._disk, self._page_size, self._config.open_files_max, "r+")
        writer = _Writer(files, contents, self._page_size)
        try:
            entries = 0
            for number, directory in enumerate(self._indexes):
                for ledger_id, runs in by_ledger(self._runs(directory)):
                    if ledger_id in survey.headers:
                        writer.begin(directory, ledger_id, survey.headers[ledger_id])
                        for run in runs:
                            writer.add(_renamed_run(run, renamed.get(number, {})))
                            entries += len(run.entry_ids)
                            self._on_progress("written", entries)
                        writer.end()
            for ledger_id, header in survey.headers.items():
                if ledger_id not in survey.fingerprints:
                    writer.begin(self._indexes[directory_of(ledger_id, len(self._indexes))], ledger_id, header)
                    writer.end()
            writer.flush()
        finally:
            files.close()
        data = b"".join(catalog_format.pack(contents))
        replace_bytes(self._disk, self._catalog_path + BUILDING, data)

    def _expected(self, survey: Survey) -> dict[int, tuple[Fingerprint, IndexHeader]]:
        empty = fingerprint([], self._page_size)
        return {
            ledger_id: (survey.fingerprints.get(ledger_id, empty), header)
            for ledger_id, header in survey.headers.items()
        }

    def _built(self) -> Iterator[tuple[int, Fingerprint, IndexHeader]]:
        for directory in self._indexes:
            for name in self._index_names(directory):
                path = posixpath.join(directory, name)
                if (ledger_id := index_format.parse_path(path)) is not None:
                    file = self._disk.open(path, "r")
                    header = index_format.parse_header(file.pread(index_format.HEADER_SIZE, 0), path=path)
                    file.close()
                    runs = runs_of_file(self._disk, ledger_id, path)
                    yield ledger_id, fingerprint(runs, self._page_size), header

    # -- switch --------------------------------------------------------------------------------------------------
    @property
    def _catalog_path(self) -> str:
        return posixpath.join(self._indexes[0], catalog_format.FILE_NAME)

    def _switch(self, step: Step) -> None:
        if self._disk.exists(self._catalog_path + BUILDING):
            self._disk.rename(self._catalog_path + BUILDING, self._catalog_path)
        others = [posixpath.join(directory, catalog_format.FILE_NAME) for directory in self._indexes[1:]]
        unlink_all(self._disk, others)  # where the databases' was, after the first directory had failed
        for directory in self._indexes:
            for name in (*rocksdb_format.NAMES, rocksdb_format.LOG_SUMMARIES):
                path = posixpath.join(directory, name)
                if self._databases.exists(path):
                    self._disk.rename(path, path + ASIDE)
                if name in rocksdb_format.NAMES and not self._disk.exists(path):
                    replace_bytes(self._disk, path, GUARD)
            sync_directory(self._disk, directory)
        replaced = [
            posixpath.join(self._ledgers[number], file_name(old)) for number, old, _ in (*step.links, *step.spare)
        ]
        unlink_all(self._disk, replaced)


class _Writer:
    """Writer of index files, one ledger after the other, and of their catalog records. Writes several files at once."""

    def __init__(self, files: IndexFiles, contents: Contents, page_size: int) -> None:
        self._files = files
        self._contents = contents
        self._page_size = page_size
        self._per_page = index_format.slots_per_page(page_size)
        self._pending: list[IndexWrite] = []
        self._size = 0
        self._path = ""
        self._header: IndexHeader | None = None
        self._known = Known()
        self._page = -1
        self._data = bytearray()
        self._pages: list[tuple[int, bytearray]] = []

    def begin(self, directory: str, ledger_id: int, header: IndexHeader) -> None:
        self._path = posixpath.join(directory, index_format.path_of(ledger_id))
        self._header = header
        self._known = self._contents.ledgers[ledger_id] = Known(catalog_format.trimmed(header))
        self._page = -1

    def add(self, run: Run) -> None:
        """Add entries after those already added."""
        at, first, count = 0, run.entry_ids.start, len(run.entry_ids)
        while at < count:
            page, slot = divmod(first + at, self._per_page)
            if page != self._page:
                self._end_page()
                self._page, self._data = page, bytearray(self._page_size)
            size = min(count - at, self._per_page - slot)
            self._data[slot * SLOT_SIZE : (slot + size) * SLOT_SIZE] = run.slots[
                at * SLOT_SIZE : (at + size) * SLOT_SIZE
            ]
            at += size

    def _end_page(self) -> None:
        if self._page >= 0:
            self._known.pages[self._page] = catalog_format.checksum_of(self._data, self._page_size)
            self._pages.append((self._page, self._data))
            if len(self._pages) * self._page_size >= WRITE_SIZE_MAX:
                self._queue()

    def end(self) -> None:
        self._end_page()
        self._queue()

    def _queue(self) -> None:
        if self._header is not None or self._pages:
            change = IndexWrite(self._path, self._header is not None, self._header, list(self._pages))
            self._pending.append(change)
            self._size += change.size
        self._header, self._pages = None, []
        if len(self._pending) >= WRITE_FILES_MAX or self._size >= WRITE_SIZE_MAX:
            self.flush()

    def flush(self) -> None:
        """Make queued changes durable."""
        self._files.write(self._pending)
        self._pending, self._size = [], 0


def _by_directory(links: list[tuple[int, int, int]]) -> dict[int, dict[bytes, bytes]]:
    """Return, by directory number, the old to the new log ids as the first four bytes of slots."""
    renamed: dict[int, dict[bytes, bytes]] = {}
    for number, old, new in [link for link in links if link[1] != link[2]]:
        renamed.setdefault(number, {})[old.to_bytes(4, "big")] = new.to_bytes(4, "big")
    return renamed


def _renamed_run(run: Run, renamed: dict[bytes, bytes]) -> Run:
    """Return the same entries in logs with other ids."""
    if not renamed:
        return run
    parts = []
    for at in range(0, len(run.slots), SLOT_SIZE):
        log_id = run.slots[at : at + 4]
        parts.append(renamed.get(log_id, log_id))
        parts.append(run.slots[at + 4 : at + SLOT_SIZE])
    return replace(run, slots=b"".join(parts))


def _check_header(header: IndexHeader, ledger_id: int) -> None:
    try:
        index_format.pack_header(header)
    except ValueError as error:
        raise StorageError(f"master key and explicit LAC are too long: {error}", ledger_id=ledger_id) from error
