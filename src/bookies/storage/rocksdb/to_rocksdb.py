"""Conversion from index files to the RocksDB databases of Apache's DbLedgerStorage. See `conversion`.

There a ledger belongs to one directory with all its entries, while our entry logs hold entries of any ledger. So a log
gets a second name in every other directory that has ledgers in it: a hard link, or a copy on another file system.
Apache's bookie treats entries of other directories' ledgers in a log as garbage, and compacts them away.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from bookies.config import BookieConfig
from bookies.errors import StorageError
from bookies.runtime.ports import Disk
from bookies.storage.disks.durable_files import remove, sync_all, sync_directory
from bookies.storage.entry_log.entry_log_format import file_name
from bookies.storage.entry_log.log_directories import LogDirectories, directory_of
from bookies.storage.entry_log.log_usage import find_logs
from bookies.storage.index import catalog_format, index_format
from bookies.storage.index.catalog_format import ANY, Known
from bookies.storage.index.index_files import IndexFiles, find_index_files
from bookies.storage.index.index_format import SLOT_SIZE, IndexHeader
from bookies.storage.rocksdb import rocksdb_format
from bookies.storage.rocksdb.conversion import ASIDE, BUILDING, INDEX_ASIDE, ROCKSDB, Conversion, Progress, Step
from bookies.storage.rocksdb.conversion_check import (
    Fingerprint,
    RecordCheck,
    Survey,
    by_ledger,
    fingerprint,
    runs_of_file,
)
from bookies.storage.rocksdb.rocksdb_format import Databases, Run, Writer

PUT_COUNT = 10_000  # keys put at once
ENTRY_SIZE = 32  # approximate bytes of a location in a database
LEDGER_SIZE = 128
COPY_SIZE = 1 << 20  # bytes


class ToRocks(Conversion):
    """Conversion to RocksDB. `links` are logs, with unchanged ids, that a directory gets in addition."""

    target = ROCKSDB

    def __init__(self, disk: Disk, databases: Databases, config: BookieConfig, on_progress: Progress) -> None:
        super().__init__(disk, databases, config, on_progress)
        self._paths: dict[int, str] = {}  # ledger id to index file
        self._logs: dict[int, str] = {}
        self._needed: list[dict[int, None]] = [{} for _ in self._ledgers]  # by directory: the logs that it needs

    def _check_source(self) -> None:
        for directory in self._indexes:
            for path in rocksdb_format.paths_in(directory):
                if self._databases.exists(path):
                    raise StorageError(f"{path} is a RocksDB database already: there is nothing to convert")
        self._check_nothing_aside()
        if not self._directories.was_clean:
            raise StorageError(
                f"{self._ledgers[0]}: the bookie is running or was not shut down cleanly, so its journal has entries "
                "that the index lacks. No file was changed. Start the bookie and shut it down cleanly, or replay the "
                "journal: bk bookie repair"
            )

    def _survey(self) -> Survey:
        survey = Survey()
        self._logs = find_logs(self._disk, LogDirectories(self._ledgers))
        self._paths = paths = find_index_files(self._disk, self._indexes)
        contents = self._catalog()
        if contents.problem:
            raise StorageError(
                f"{self._indexes[0]}: {catalog_format.FILE_NAME}: {contents.problem}, so the databases could lack "
                "ledgers. No file was changed. Start the bookie with ledger_index = files, which looks for them, and "
                "shut it down cleanly"
            )
        survey.problems = contents.holes
        check = RecordCheck(self._disk, self._logs)
        try:
            for ledger_id in sorted({*paths, *contents.ledgers}):
                known = contents.ledgers.get(ledger_id)
                if ledger_id not in paths and known is not None and known.is_fresh:
                    continue  # A crash left it in the catalog, before its file was written.
                survey.headers[ledger_id] = self._whole(ledger_id, known)
                runs = self._checked(ledger_id, check, survey)
                survey.fingerprints[ledger_id] = fingerprint(runs, self._page_size)
        finally:
            check.close()
        return survey

    def _whole(self, ledger_id: int, known: Known | None) -> IndexHeader:
        """Return the header of an index file. Raises StorageError if it lacks slots, by its header or the catalog."""
        path = self._paths.get(ledger_id)
        if path is None:
            raise _incomplete(ledger_id, "its index file is missing")
        header = self._header_of(path)
        if header.is_rebuilding:
            raise _incomplete(ledger_id, "its index file is being rebuilt")
        if known is None or known.is_stale:
            return header
        files = IndexFiles(self._disk, self._page_size, 1, "r")
        try:
            checksums = files.checksums(path, list(known.pages)) or {}
        finally:
            files.close()
        for page, checksum in checksums.items():
            if not {checksum, ANY}.intersection((known.pages[page], *known.older.get(page, ()))):
                raise _incomplete(ledger_id, f"page {page} of its index file is damaged")
        return header

    def _header_of(self, path: str) -> IndexHeader:
        file = self._disk.open(path, "r")
        try:
            return index_format.parse_header(file.pread(index_format.HEADER_SIZE, 0), path=path)
        finally:
            file.close()

    def _checked(self, ledger_id: int, check: RecordCheck, survey: Survey) -> Iterator[Run]:
        needed = self._needed[directory_of(ledger_id, len(self._needed))]
        for run in runs_of_file(self._disk, ledger_id, self._paths[ledger_id]):
            if wrong := check.wrong(run):
                survey.add_damaged(ledger_id, wrong)
            survey.entries += len(run.entry_ids)
            self._on_progress("looked up", survey.entries)
            prefix = b""
            for at in range(0, len(run.slots), SLOT_SIZE):
                if run.slots[at : at + 4] != prefix:
                    prefix = run.slots[at : at + 4]
                    needed[int.from_bytes(prefix, "big")] = None
            yield run

    def _room_needed(self, survey: Survey) -> list[tuple[str, int]]:
        needed = []
        for ledger_id in survey.headers:
            count = survey.fingerprints[ledger_id].count
            place = self._indexes[directory_of(ledger_id, len(self._indexes))]
            needed.append((place, LEDGER_SIZE + count * ENTRY_SIZE))
        for number, log_id, _ in self._links(survey):
            source, target = self._logs[log_id], self._ledgers[number]
            if self._disk.device(posixpath.dirname(source)) == self._disk.device(target):
                survey.logs_linked += 1
                continue
            file = self._disk.open(source, "r")
            needed.append((target, file.size()))
            survey.logs_copied += 1
            survey.copied_size += file.size()
            file.close()
        return needed

    def _links(self, survey: Survey) -> list[tuple[int, int, int]]:
        """Return the logs that a directory needs and lacks."""
        links = []
        for number, needed in enumerate(self._needed):
            for log_id in sorted(needed):
                path = self._logs.get(log_id)
                if path is not None and posixpath.dirname(path) != self._ledgers[number]:
                    own = posixpath.join(self._ledgers[number], file_name(log_id))
                    if self._disk.exists(own):
                        raise StorageError(
                            f"entry logs {own} and {path} have the same id: cannot determine which one the index means"
                        )
                    links.append((number, log_id, log_id))
        return links

    def _link(self, step: Step) -> None:
        for number, log_id, _ in step.links:
            source, target = self._logs[log_id], posixpath.join(self._ledgers[number], file_name(log_id))
            try:
                self._disk.link(source, target)
            except OSError:  # another file system
                _copy(self._disk, source, target)
        for directory in dict.fromkeys(self._ledgers[number] for number, _, _ in step.links):
            sync_directory(self._disk, directory)

    # -- build ---------------------------------------------------------------------------------------------------
    def _build(self, survey: Survey, step: Step) -> None:
        entries = 0
        for number, directory in enumerate(self._indexes):
            locations, ledgers = (path + BUILDING for path in rocksdb_format.paths_in(directory))
            own = [ledger_id for ledger_id in survey.headers if directory_of(ledger_id, len(self._indexes)) == number]
            writer = self._databases.create(locations, is_large=True)
            try:
                entries = self._write_locations(writer, own, entries)
                writer.finish()
            except BaseException:
                writer.close()
                raise
            writer = self._databases.create(ledgers, is_large=False)
            try:
                keys = [rocksdb_format.pack_key(ledger_id) for ledger_id in own]
                values = [rocksdb_format.pack_ledger_data(survey.headers[ledger_id]) for ledger_id in own]
                if survey.problems and number == 0:
                    keys.append(rocksdb_format.pack_key(rocksdb_format.FLAGS_LEDGER_ID))
                    values.append(rocksdb_format.NEEDS_INTEGRITY_CHECK.to_bytes(8, "big"))
                writer.put(keys, values)
                writer.finish()
            except BaseException:
                writer.close()
                raise

    def _write_locations(self, writer: Writer, ledger_ids: list[int], entries: int) -> int:
        """Write the locations of these ledgers. Return `entries` plus their number."""
        keys: list[bytes] = []
        values: list[bytes] = []
        for ledger_id in ledger_ids:
            for run in runs_of_file(self._disk, ledger_id, self._paths[ledger_id]):
                keys += rocksdb_format.entry_keys(ledger_id, run.entry_ids)
                values += [run.slots[at : at + SLOT_SIZE] for at in range(0, len(run.slots), SLOT_SIZE)]
                if len(keys) >= PUT_COUNT:
                    writer.put(keys, values)
                    entries += len(keys)
                    keys, values = [], []
                    self._on_progress("written", entries)
        writer.put(keys, values)
        return entries + len(keys)

    def _expected(self, survey: Survey) -> dict[int, tuple[Fingerprint, IndexHeader]]:
        # A ledger's data stores all uncertain states of an index file as limbo.
        return {
            ledger_id: (
                survey.fingerprints[ledger_id],
                rocksdb_format.parse_ledger_data(rocksdb_format.pack_ledger_data(header), "", ledger_id),
            )
            for ledger_id, header in survey.headers.items()
        }

    def _built(self) -> Iterator[tuple[int, Fingerprint, IndexHeader]]:
        empty = fingerprint([], self._page_size)
        for directory in self._indexes:
            locations, ledgers = (path + BUILDING for path in rocksdb_format.paths_in(directory))
            reader = self._databases.read(ledgers, is_exact=True)
            try:
                headers = rocksdb_format.ledgers_of(reader, ledgers)
            finally:
                reader.close()
            reader = self._databases.read(locations, is_exact=True)
            try:
                for ledger_id, runs in by_ledger(rocksdb_format.runs_of(reader, locations)):
                    if ledger_id not in headers:
                        raise StorageError("the ledger has locations, but no ledger data", ledger_id=ledger_id)
                    yield ledger_id, fingerprint(runs, self._page_size), headers.pop(ledger_id)
            finally:
                reader.close()
            for ledger_id, header in headers.items():
                yield ledger_id, empty, header

    # -- switch --------------------------------------------------------------------------------------------------
    def _switch(self, step: Step) -> None:
        for directory in self._indexes:
            for path in rocksdb_format.paths_in(directory):
                if self._databases.exists(path + BUILDING):
                    if self._disk.exists(path):
                        self._disk.unlink(path)  # the plain file that blocks Apache's bookie
                    self._disk.rename(path + BUILDING, path)
            sync_directory(self._disk, directory)
        for directory in self._indexes:
            kept = posixpath.join(directory, INDEX_ASIDE)
            moves = [
                (posixpath.join(directory, name), posixpath.join(kept, name)) for name in self._index_names(directory)
            ]
            places = list(dict.fromkeys((posixpath.dirname(old), posixpath.dirname(new)) for old, new in moves))
            for _, place in places:
                self._disk.make_directories(place)
            for old, new in moves:
                self._disk.rename(old, new)
            for old, new in places:
                sync_directory(self._disk, new)
                sync_directory(self._disk, old)
            summaries = posixpath.join(directory, rocksdb_format.LOG_SUMMARIES)
            if self._databases.exists(summaries):
                self._disk.rename(summaries, summaries + ASIDE)
                sync_directory(self._disk, directory)


def _incomplete(ledger_id: int, problem: str) -> StorageError:
    return StorageError(
        f"{problem}, so the databases would lack entries of it. No file was changed. Start the bookie with "
        "ledger_index = files, have its files checked and rebuilt (bk bookie scrub --now --wait), and shut it down",
        ledger_id=ledger_id,
    )


def _copy(disk: Disk, source: str, target: str) -> None:
    """Copy a file. The copy gets its name only when it is complete and durable. Raises: DiskFull, OSError."""
    temporary = target + BUILDING
    try:
        reading, writing = disk.open(source, "r"), disk.open(temporary, "w+")
        try:
            writing.truncate(0)
            offset = 0
            while data := reading.pread(COPY_SIZE, offset):
                writing.pwrite(data, offset)
                offset += len(data)
            sync_all(writing)
        finally:
            reading.close()
            writing.close()
        disk.rename(temporary, target)
    except BaseException:
        remove(disk, temporary)
        raise
