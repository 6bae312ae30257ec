"""The index in the databases of Apache's DbLedgerStorage, behind the interface of index files.

A ledger's "file" is its value in `ledgers` and its keys in `locations`; a page is a range of these keys. RocksDB checks
what it reads, and a batch is durable as a whole, so the catalog describes no ledger here.

Invariants
- A write is one synced batch of locations, then one of ledger data (storage 6.5). The caller has synced the entry logs
  (R-2), and persists no mark before `write` has returned.
- A database that is damaged, missing, or older than the catalog says is replaced by an empty one, and what it had is
  rebuilt. A marker (`REBUILD`) stands beside it until the start's checkpoint has made the ledgers' states durable.
- After damage while the bookie serves, the marker is written and `IndexDamaged` ends the process.
- The locations of a removed ledger go before its data, so that an id that comes back finds no old locations.

Blocks. Source: storage 6.3 to 6.6, 10.2.
"""

from __future__ import annotations

import errno
import posixpath
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from msgspec import Struct, field

from bookies.errors import CorruptRecord, DirectoryInUse, DiskFull, StorageError
from bookies.runtime.ports import Buffer, Disk
from bookies.storage.disks.durable_files import SyncFailed, replace_bytes, unlink_all
from bookies.storage.entry_log.log_directories import LogDirectories, directory_of
from bookies.storage.identity.index_kind import LOCATIONS, REBUILD
from bookies.storage.index import index_format as layout
from bookies.storage.index.index_files import IndexDamaged, IndexFiles, IndexWrite, LoadedIndex
from bookies.storage.index.index_format import HEADER_SIZE, SLOT_SIZE, IndexHeader
from bookies.storage.index.slot_scans import extend_runs
from bookies.storage.rocksdb import rocksdb_format
from bookies.storage.rocksdb.rocksdb_format import LEDGERS, Database, Databases

T = TypeVar("T")

DAMAGED = ".damaged"  # of a database that was replaced
WRITE_LEDGERS_MAX = 4096  # ledgers of one batch
REOPEN_ROOM = 64 << 20  # free bytes: RocksDB may write as much before it serves, and without them reads would fail
WIDE = bytes(8)  # the end of keys of 16 bytes in `ledgers`
LIMBO_TAG = b"\x28"  # of the field `limbo` in a ledger's data


class OpenedDatabases(Struct):
    """The content of the databases at the start.

    `paths`: of all ledgers, by id; see `path_of`. `uncertain`: headers of ledgers in limbo or rebuilding. `lost`: by
    the path of a database, why it is empty now. `needs_check`: Apache's integrity check has not finished, or a hole was
    noted.
    """

    paths: dict[int, str] = field(default_factory=dict)
    uncertain: dict[int, IndexHeader] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    needs_check: bool = False

    def add(self, other: OpenedDatabases) -> None:
        """Add the content of another directory."""
        self.paths |= other.paths
        self.uncertain |= other.uncertain
        self.lost |= other.lost
        self.needs_check = self.needs_check or other.needs_check

    def holes(self, known: Sequence[str]) -> list[tuple[str, str]]:
        """Return (why ledgers may exist that the index does not name, the directory that they are in; empty: any).

        `known`: the holes in the catalog.
        """
        paths = [path for path in self.lost if posixpath.basename(path) == LEDGERS]
        holes = [(f"the database {path} was lost: {self.lost[path]}", posixpath.dirname(path)) for path in paths]
        if self.needs_check and not known:
            holes.append(("an integrity check of Apache's bookie has not finished", ""))
        return holes


class OpenDatabases:
    """The databases of one index directory while the bookie runs. `directory`: its `current`.

    `number`: of the directory, and of the space of ids of its entry logs in `logs`. Locations have files' ids.
    """

    locations: Database
    ledgers: Database

    def __init__(self, disk: Disk, databases: Databases, directory: str, logs: LogDirectories, number: int) -> None:
        self.directory = directory
        self._logs = logs
        self._number = number
        self.has_flag = False
        self._failure: SyncFailed | None = None  # of a write; no other follows
        self._refused: set[int] = set()  # numbers of databases that a full disk has stopped
        self._written: list[tuple[int, int]] = []  # their versions after the last write
        self._disk = disk
        self._databases = databases
        self._paths = rocksdb_format.paths_in(directory)
        self._open: list[Database] = []

    def open(self, versions: Sequence[int], *, is_new: bool, may_be_cut: bool) -> OpenedDatabases:
        """Open the databases, replacing those that are damaged.

        `versions`: of `locations` and `ledgers` as `versions` returned them, empty without a note. `is_new`: missing
        databases are no damage. `may_be_cut`: this bookie has written last, so what a power failure has torn was
        written after `versions`, and the journal has it. Raises: DirectoryInUse, StorageError, OSError.
        """
        opened = OpenedDatabases()
        for number, path in enumerate(self._paths):
            noted = tuple(versions[2 * number : 2 * number + 2])
            database, problem = self._opened(path, noted, is_new=is_new, may_be_cut=may_be_cut)
            if problem:
                opened.lost[path] = problem
            self._open.append(database)
        self.locations, self.ledgers = self._open
        self._written = [database.version() for database in self._open]
        try:
            self._read_ledgers(opened)
        except CorruptRecord as error:
            opened.lost[self._paths[1]] = str(error)
            self._open[1] = self.ledgers = self._replaced(self._paths[1], str(error))
            self._written[1] = self.ledgers.version()
            opened.paths, opened.uncertain = {}, {}
        return opened

    def check_order(self) -> None:
        """Raise StorageError if ledgers are here that belong to another directory. Changes no file.

        A start in another order of the directories would take their databases for damaged ones.
        """
        path = self._paths[1]
        if self._logs.count == 1 or not self._databases.exists(path):
            return
        try:
            reader = self._databases.read(path)
            try:
                keys, _ = next(reader.pieces(), ([], []))
            finally:
                reader.close()
        except CorruptRecord:
            return  # It is replaced when it is opened.
        for key in keys:
            self._check_place(int.from_bytes(key[:8], "big", signed=True))

    def _check_place(self, ledger_id: int) -> None:
        if ledger_id >= 0 and self._logs.space_of(ledger_id) != self._number:
            raise StorageError(
                f"the ledger is in {self.directory}, number {self._number} of {self._logs.count} directories, and "
                "does not belong there: the order or the number of directories differs from the one that they were "
                "written with. Nothing was changed. Name the same directories in the same order",
                ledger_id=ledger_id,
            )

    def _opened(self, path: str, noted: Sequence[int], *, is_new: bool, may_be_cut: bool) -> tuple[Database, str]:
        """Return (the database, why it is an empty one)."""
        problem = ""
        if self._disk.exists(path + REBUILD):
            reason = self._disk.read_bytes(path + REBUILD).decode("utf-8", "replace").strip()
            problem = reason or "it was marked as damaged"
        elif not self._databases.exists(path):
            if is_new:
                return self._database(path), ""
            problem = "it is missing"
        else:
            try:
                database = self._existing(path, may_be_cut=may_be_cut)
                problem = rocksdb_format.version_problem(database.version(), noted)
                if not problem:
                    return database, ""
                database.close()
            except CorruptRecord as error:
                problem = str(error)
        return self._replaced(path, problem), problem

    def _database(self, path: str, *, may_be_cut: bool = False) -> Database:
        return self._databases.open(path, is_large=path == self._paths[0], may_be_cut=may_be_cut)

    def _existing(self, path: str, *, may_be_cut: bool) -> Database:
        """Open a database, on a full disk for reads only: the first write after that opens it again."""
        try:
            return self._database(path, may_be_cut=may_be_cut)
        except DiskFull:
            database = self._databases.open_full(path, may_be_cut=may_be_cut)
            self._refused.add(self._paths.index(path))
            return database

    def _replaced(self, path: str, problem: str) -> Database:
        for database, other in zip(self._open, self._paths, strict=False):
            if other == path:
                database.close()
        self._mark(path, problem)
        self._refused.discard(self._paths.index(path))
        if self._disk.exists(path):
            self._databases.remove(path + DAMAGED)
            self._databases.rename(path, path + DAMAGED)
        return self._database(path)

    def _mark(self, path: str, problem: str) -> None:
        replace_bytes(self._disk, path + REBUILD, problem.encode() + b"\n")

    def _read_ledgers(self, opened: OpenedDatabases) -> None:
        """Read ids and uncertain headers. Give keys of 16 bytes their usual form. Raises CorruptRecord."""
        path = self._paths[1]
        wide: dict[bytes, bytes] = {}
        for keys, values in self.ledgers.pieces():
            for key, value in zip(keys, values, strict=True):
                if len(key) not in (8, 16):
                    raise CorruptRecord(f"a key has {len(key)} bytes, not 8 or 16", path=path, offset=0)
                ledger_id = int.from_bytes(key[:8], "big", signed=True)
                self._check_place(ledger_id)
                if len(key) == 16 and ledger_id >= 0:
                    wide[key[:8]] = value
                elif ledger_id >= 0:
                    opened.paths[ledger_id] = posixpath.join(self.directory, path_of(ledger_id))
                    if LIMBO_TAG in value:
                        header = rocksdb_format.parse_ledger_data(value, path, ledger_id)
                        if header.is_uncertain:
                            opened.uncertain[ledger_id] = header
        if wide:
            opened.paths |= {
                ledger_id: posixpath.join(self.directory, path_of(ledger_id)) for ledger_id in self._narrow(wide)
            }
        if self._number == 0:
            opened.needs_check = self.has_flag = rocksdb_format.needs_integrity_check(self.ledgers)

    def _narrow(self, wide: Mapping[bytes, bytes]) -> list[int]:
        """Replace keys of 16 bytes; return the ledgers that had no other. A promise in either form counts."""
        values, new = [], []
        for key, value in wide.items():
            ledger_id = int.from_bytes(key, "big")
            other = self.ledgers.get(key)
            if other is None:
                new.append(ledger_id)
                values.append(value)
            else:
                state = rocksdb_format.parse_ledger_data(value, self._paths[1], ledger_id).state
                header = rocksdb_format.parse_ledger_data(other, self._paths[1], ledger_id)
                values.append(rocksdb_format.pack_ledger_data(header.with_state(state)))
        self.ledgers.write(list(wide), values, [(key + WIDE, key + WIDE + b"\0") for key in wide])
        return new

    def values_of(self, slots: Buffer) -> bytes:
        """Return the values of locations from slots, side by side; zeros for missing ones."""
        return self._logs.slots_outward(bytes(slots))

    def slots_of(self, values: Sequence[bytes]) -> bytes:
        """Return slots from the values of locations. Raises StorageError for an id that no log can have."""
        return self._logs.slots_inward(self._number, b"".join(values))

    def settled(self) -> None:
        """Forget that databases were replaced: the states of all ledgers are durable. Raises: OSError, SyncFailed."""
        unlink_all(self._disk, [path + REBUILD for path in self._paths if self._disk.exists(path + REBUILD)])

    def versions(self) -> tuple[int, ...]:
        """Return the versions of both databases after their last durable writes."""
        return tuple(number for version in self._written for number in version)

    def checked(self, call: Callable[..., T], *arguments: object) -> T:
        """Return the call's result. Raises IndexDamaged in place of CorruptRecord; then the next start rebuilds."""
        try:
            return call(*arguments)
        except CorruptRecord as error:
            raise self.damaged(error) from error

    def read(self, call: Callable[..., T], *arguments: object) -> T:
        """Return the call's result. Raises: IndexDamaged; OSError for a failure that another try may not have."""
        try:
            return self.checked(call, *arguments)
        except IndexDamaged:
            raise
        except StorageError as error:
            raise OSError(errno.EAGAIN, str(error)) from error

    def damaged(self, error: CorruptRecord) -> IndexDamaged:
        """Have the next start rebuild the database. Return the error to raise."""
        path = self._paths[error.path.startswith(self._paths[1])]
        try:
            self._mark(path, str(error))
        except (OSError, StorageError) as problem:
            return IndexDamaged(path, f"{error}; and the next start will not know: {problem}")
        return IndexDamaged(path, f"{error}. The next start rebuilds the index from the entry logs")

    def write(
        self,
        name: str,
        keys: Sequence[bytes] = (),
        values: Sequence[bytes] = (),
        deleted: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        """Write to the database of this name; see `Database.write`.

        Raises: DiskFull, after which it may be tried again; SyncFailed: the process must end.
        """
        number = rocksdb_format.NAMES.index(name)
        if self._failure is not None:
            raise self._failure
        try:
            if number in self._refused:
                self._reopen(number)
            self.checked(self._open[number].write, keys, values, deleted)
            self._written[number] = self._open[number].version()
        except DiskFull:
            self._refused.add(number)
            raise
        except IndexDamaged as error:
            self._failure = error
            raise
        except StorageError as error:
            problem = f"{error}; the journal has what was not written"
            self._failure = SyncFailed(self._paths[number], problem)
            raise self._failure from error

    def _reopen(self, number: int) -> None:
        """Open a database again that a full disk has stopped. A read meanwhile fails. Raises StorageError."""
        path = self._paths[number]
        if (free := self._disk.usage(self.directory)[1]) < REOPEN_ROOM:
            raise DiskFull(f"{path}: {free:,} bytes are free, and {REOPEN_ROOM:,} are needed to continue its writes")
        self._open[number].close()
        try:
            self._open[number] = self.checked(partial(self._database, path, may_be_cut=True))
        except DirectoryInUse as error:
            raise DiskFull(f"{path}: a read that has not ended keeps it open; it is tried again") from error
        self.locations, self.ledgers = self._open
        if self._open[number].version() < self._written[number]:
            raise self.damaged(CorruptRecord("the last writes are missing", path=path, offset=0))
        self._refused.remove(number)

    def close(self) -> None:
        """Close the databases. Idempotent."""
        for database in self._open:
            database.close()
        self._open.clear()


def path_of(ledger_id: int) -> str:
    """Return the name of a ledger in place of the path of an index file."""
    return f"{LOCATIONS}/{ledger_id}"


def _ledger_of(path: str) -> int:
    return int(posixpath.basename(path))


class DatabaseFiles(IndexFiles):
    """The ledgers of open databases, as files. All instances share the databases; the writer closes them.

    `shared`: by number of the directory. A ledger is in directory number `ledger mod directories`.
    """

    checks_itself = True
    path_of = staticmethod(path_of)

    def __init__(
        self, disk: Disk, page_size: int, shared: Sequence[OpenDatabases], open_files_max: int, mode: str
    ) -> None:
        super().__init__(disk, page_size, open_files_max, mode)
        self.written_max = WRITE_LEDGERS_MAX
        self.padded_size = 0
        self._shared = shared
        self._per_page = layout.slots_per_page(page_size)

    def home_of(self, ledger_id: int) -> str:
        """Return the directory of a ledger."""
        return self._of(ledger_id).directory

    def _of(self, ledger_id: int) -> OpenDatabases:
        return self._shared[directory_of(ledger_id, len(self._shared))]

    # -- reading -------------------------------------------------------------------------------------------------
    def load_all(self, paths: Sequence[str]) -> list[LoadedIndex | Exception]:
        """Return header and extent of each ledger, but no last page, which only a catalog needs.

        In place of that, FileNotFoundError, another OSError, or IndexDamaged.
        """
        outcomes: dict[str, LoadedIndex | Exception] = {}
        for number, shared in enumerate(self._shared):
            chosen = sorted(
                (ledger_id, path)
                for path in paths
                if directory_of(ledger_id := _ledger_of(path), len(self._shared)) == number
            )
            try:
                outcomes |= self._loaded(shared, chosen)
            except (OSError, IndexDamaged) as error:
                outcomes |= {path: error for _, path in chosen}
        return [outcomes[path] for path in paths]

    def _loaded(self, shared: OpenDatabases, chosen: list[tuple[int, str]]) -> dict[str, LoadedIndex | Exception]:
        """Read ledgers of one directory, ascending. Raises: OSError; IndexDamaged."""
        values = shared.read(shared.ledgers.get_all, [rocksdb_format.pack_key(ledger_id) for ledger_id, _ in chosen])
        ends = [_key(ledger_id, rocksdb_format.ID_MAX) for ledger_id, _ in chosen]
        outcomes: dict[str, LoadedIndex | Exception] = {}
        for (ledger_id, path), value, last in zip(
            chosen, values, shared.read(shared.locations.last_before, ends), strict=True
        ):
            if value is None:
                outcomes[path] = FileNotFoundError(path)
                continue
            header, problem = None, None
            try:
                header = rocksdb_format.parse_ledger_data(value, path, ledger_id)
            except CorruptRecord as error:
                problem = error
            last_id = -1 if last is None else _entry_id(last, ledger_id)
            size = layout.page_offset(last_id // self._per_page + 1, self.page_size) if last_id >= 0 else HEADER_SIZE
            outcomes[path] = LoadedIndex(header, size, last_id, problem=problem)
        return outcomes

    def read_page(self, path: str, page: int) -> bytes:
        """Return a page up to its last slot that is set. Raises: OSError; IndexDamaged."""
        ledger_id, first = _ledger_of(path), page * self._per_page
        start, stop = _key(ledger_id, first), _key(ledger_id, first + self._per_page)
        shared = self._of(ledger_id)
        keys, values = shared.read(shared.locations.between, start, stop, self._per_page)
        if not keys:
            return b""
        wrong = next((value for value in values if len(value) != SLOT_SIZE), None)
        if wrong is not None:
            problem = f"a location has {len(wrong)} bytes, not {SLOT_SIZE}"
            raise shared.damaged(CorruptRecord(problem, path=path, offset=0, ledger_id=ledger_id))
        try:
            slots = shared.slots_of(values)
        except StorageError as error:
            problem = f"a location names {error}"
            raise shared.damaged(CorruptRecord(problem, path=path, offset=0, ledger_id=ledger_id)) from error
        last_id = _entry_id(keys[-1], ledger_id)
        if last_id - first == len(keys) - 1:
            return slots
        data = bytearray((last_id - first + 1) * SLOT_SIZE)
        for number, key in enumerate(keys):
            at, source = (_entry_id(key, ledger_id) - first) * SLOT_SIZE, number * SLOT_SIZE
            data[at : at + SLOT_SIZE] = slots[source : source + SLOT_SIZE]
        return bytes(data)

    def slots(self, path: str, is_right: Callable[[int, bytes], bool]) -> Iterator[tuple[int, bytes, bool]]:
        """Yield (page, its data, True) of all pages. Raises: OSError; IndexDamaged."""
        page = -1
        while (page := self._next_page(path, page + 1)) != sys.maxsize:
            yield page, self.read_page(path, page), True

    def _next_page(self, path: str | None, page: int) -> int:
        if path is None:
            return sys.maxsize
        ledger_id = _ledger_of(path)
        start, stop = _key(ledger_id, page * self._per_page), _key(ledger_id, rocksdb_format.ID_MAX)
        shared = self._of(ledger_id)
        keys, _ = shared.read(shared.locations.between, start, stop, 1)
        return _entry_id(keys[0], ledger_id) // self._per_page if keys else sys.maxsize

    # -- writing -------------------------------------------------------------------------------------------------
    def write(self, writes: Sequence[IndexWrite]) -> list[int]:
        """Make all changes durable: in each directory locations, then ledger data. Return the sizes of such files.

        Raises: DiskFull, after which it may be tried again; SyncFailed: the process must end.
        """
        batches = [_Batch() for _ in self._shared]
        sizes: list[int] = []
        for change in writes:
            ledger_id = _ledger_of(change.path)
            number = directory_of(ledger_id, len(self._shared))
            batch = batches[number]
            for page, slots in change.pages:
                part = self._shared[number].values_of(slots)
                _add(ledger_id, page * self._per_page + change.firsts[page], part, batch.keys, batch.values)
            if change.header is not None:
                batch.data_keys.append(rocksdb_format.pack_key(ledger_id))
                batch.data.append(rocksdb_format.pack_ledger_data(change.header))
            sizes.append(layout.page_offset(change.pages[-1][0] + 1, self.page_size) if change.pages else 0)
        for shared, batch in zip(self._shared, batches, strict=True):
            if batch.keys:
                shared.write(LOCATIONS, batch.keys, batch.values)
            if batch.data:
                shared.write(LEDGERS, batch.data_keys, batch.data)
        return sizes

    def versions(self) -> tuple[int, ...]:
        """Return how many changes of each database are durable."""
        return tuple(number for shared in self._shared for number in shared.versions())

    def note_holes(self, *, has_holes: bool) -> None:
        """Keep Apache's flag for an unfinished integrity check, in the first directory, while there are holes.

        Raises as `write`.
        """
        shared = self._shared[0]
        if has_holes != shared.has_flag:
            key, flags = rocksdb_format.pack_key(rocksdb_format.FLAGS_LEDGER_ID), int(has_holes)
            shared.write(LEDGERS, [key], [flags.to_bytes(8, "big")])
            shared.has_flag = has_holes

    def remove(self, paths: Sequence[str]) -> None:
        """Remove ledgers durably, first their locations. Raises SyncFailed."""
        by_directory: dict[int, list[int]] = {}
        for ledger_id in map(_ledger_of, paths):
            by_directory.setdefault(directory_of(ledger_id, len(self._shared)), []).append(ledger_id)
        for number, ledger_ids in by_directory.items():
            ranges = [(_key(ledger_id, 0), _key(ledger_id, rocksdb_format.ID_MAX)) for ledger_id in ledger_ids]
            self._shared[number].write(LOCATIONS, deleted=ranges)
            keys = [rocksdb_format.pack_key(ledger_id) for ledger_id in ledger_ids]
            self._shared[number].write(LEDGERS, deleted=[(key, key + b"\0") for key in keys])

    def forget(self, path: str) -> None:
        """Do nothing: no file is open."""

    def close(self) -> None:
        """Close the databases if this is the writer."""
        for shared in self._shared if self._mode != "r" else ():
            shared.close()


class _Batch(Struct):
    """Changes of one directory. `keys`, `values`: locations. `data_keys`, `data`: of ledgers."""

    keys: list[bytes] = field(default_factory=list)
    values: list[bytes] = field(default_factory=list)
    data_keys: list[bytes] = field(default_factory=list)
    data: list[bytes] = field(default_factory=list)


def _key(ledger_id: int, entry_id: int) -> bytes:
    return rocksdb_format.entry_keys(ledger_id, [min(entry_id, rocksdb_format.ID_MAX)])[0]


def _entry_id(key: bytes, ledger_id: int) -> int:
    """Return the entry of a key; -1 for a key of another ledger."""
    return int.from_bytes(key[8:], "big") if key[:8] == rocksdb_format.pack_key(ledger_id) else -1


def _add(ledger_id: int, first: int, data: bytes, keys: list[bytes], values: list[bytes]) -> None:
    """Append the keys and values of the locations that are set. `first`: the entry of the first one."""
    runs: list[range] = []
    extend_runs(runs, data, first)
    for run in runs:
        keys += rocksdb_format.entry_keys(ledger_id, run)
        start = (run.start - first) * SLOT_SIZE
        values += [data[at : at + SLOT_SIZE] for at in range(start, start + len(run) * SLOT_SIZE, SLOT_SIZE)]
