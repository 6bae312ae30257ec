"""Offline conversion of a bookie's index between RocksDB databases and index files. Entry logs stay in place.

    survey   read the whole old index; look up every location in the logs; check the free space
    build    write the new index beside the old one, which still counts; read it again and compare
    switch   set the old index aside and put the new one in its place

`CONVERSION`, a file in the first index directory's `current`, records the conversion in progress.

Invariants
- Until the step is "switch", the old index is complete and in its place, and `restart` removes what was built. From
  then on the new index is complete and durable, and the conversion can only be finished.
- While `CONVERSION` exists, no bookie of ours starts. A plain file takes the name of each database set aside, so that
  Apache's bookie does not create an empty one and report entries as missing.
- The old index is deleted only on request (`discard_old`).
- A slot whose entry cannot be read is kept: reads of the entry still return an error, never "no such entry".

Blocks. Source: storage 6; 1.3 for which ledger belongs where.
"""

from __future__ import annotations

import json
import posixpath
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

from msgspec import Struct, field

from bookies.config import BookieConfig
from bookies.encoding.documents import parse_json
from bookies.errors import DiskFull, StorageError
from bookies.runtime.ports import Disk
from bookies.storage.disks.directories import Directories
from bookies.storage.disks.durable_files import replace_bytes, unlink_all
from bookies.storage.entry_log.entry_log_format import file_name, parse_compacted_name
from bookies.storage.identity.index_kind import RECORD
from bookies.storage.index import catalog_format, index_format
from bookies.storage.index.catalog import CatalogFile
from bookies.storage.index.catalog_format import Contents
from bookies.storage.index.index_files import DAMAGED_SUFFIX, NEW_SUFFIX
from bookies.storage.rocksdb import rocksdb_format
from bookies.storage.rocksdb.conversion_check import Fingerprint, Survey
from bookies.storage.rocksdb.rocksdb_format import Databases, Lock

INDEX_FILES, ROCKSDB = "index-files", "rocksdb"  # targets of a conversion
BUILD, SWITCH = "build", "switch"
ASIDE = ".before-conversion"
BUILDING = ".converting"
INDEX_ASIDE = "index-files" + ASIDE
ROOM = 16 << 20  # bytes that must stay free
SCRUB_PROGRESS = "scrub.progress"  # a file of the scrub; ids of logs in it may mean other logs after a conversion

Progress = Callable[[str, int], None]  # (activity, entries so far)


class Step(Struct):
    """The contents of the file `CONVERSION`. `links`: (directory number, log id, new id there) of added names of logs.

    `spare`: (directory number, log id, its id elsewhere) of second names or copies of logs in other directories.
    """

    target: str
    step: str
    links: list[tuple[int, int, int]] = field(default_factory=list)
    spare: list[tuple[int, int, int]] = field(default_factory=list)

    def pack(self) -> bytes:
        facts = {"version": 1, "to": self.target, "step": self.step, "links": self.links, "spare": self.spare}
        return json.dumps(facts).encode() + b"\n"


def read_step(disk: Disk, directory: str) -> Step | None:
    """Return the conversion in progress; None without one. `directory`: the first index directory's `current`.

    Raises StorageError.
    """
    path = posixpath.join(directory, RECORD)
    if not disk.exists(path):
        return None
    try:
        facts = parse_json(disk.read_bytes(path))
        links, spare = (
            [(int(number), int(old), int(new)) for number, old, new in names]
            for names in (facts["links"], facts.get("spare", ()))
        )
        return Step(facts["to"], facts["step"], links, spare)
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path} is not what bk bookie convert writes: {error}") from error


class Conversion(ABC):
    """The conversion of one bookie. `config` names its directories; index and ledger directories are pairs."""

    target: str

    def __init__(self, disk: Disk, databases: Databases, config: BookieConfig, on_progress: Progress) -> None:
        self._disk = disk
        self._databases = databases
        self._config = config
        self._page_size = config.index_page_size
        self._on_progress = on_progress
        self._directories = Directories(disk, config)
        self._ledgers = self._directories.ledgers
        self._indexes = self._directories.indexes
        self._locks: list[Lock] = []

    # -- steps ---------------------------------------------------------------------------------------------------
    def open(self) -> None:
        """Lock directories and databases. Raises DirectoryInUse; StorageError if they cannot be converted."""
        if len(self._ledgers) != len(self._indexes):
            raise StorageError(
                f"{len(self._indexes)} index directories and {len(self._ledgers)} ledger directories: with RocksDB "
                "they are pairs, so their numbers must be equal"
            )
        self._directories.acquire()
        try:
            for directory in self._indexes:
                for path in rocksdb_format.paths_in(directory):
                    if self._databases.exists(path):
                        self._locks.append(self._databases.lock(path))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the locks. Idempotent."""
        for lock in self._locks:
            lock.release()
        self._locks.clear()
        self._directories.release()

    def restart(self) -> bool:
        """Remove what an earlier attempt has built. Return False if it has switched; then only `finish` is possible.

        Raises StorageError if a conversion to another target is in progress.
        """
        step = self._step()
        if step is not None and step.step == SWITCH:
            return False
        if step is not None:
            self._undo(step)
            unlink_all(self._disk, [self._record_path])
        return True

    @property
    def is_in_databases(self) -> bool:
        """Report whether the index is in RocksDB now."""
        return any(
            self._databases.exists(path) for directory in self._indexes for path in rocksdb_format.paths_in(directory)
        )

    def survey(self) -> Survey:
        """Read the old index and look up every entry. Changes no file. Call it only without a conversion in progress.

        Raises: StorageError, CorruptRecord, DiskFull, OSError.
        """
        if self._step() is not None:
            raise StorageError(f"a conversion is in progress: continue it with `bk bookie convert --to {self.target}`")
        self._check_source()
        survey = self._survey()
        survey.is_dirty = not self._directories.was_clean
        self._check_room(self._room_needed(survey))
        return survey

    def convert(self, survey: Survey) -> None:
        """Run all steps after `survey`. Raises: StorageError, DiskFull, OSError; then repeat `restart` and `survey`."""
        step = Step(self.target, BUILD, self._links(survey), self._spare())
        self._write_step(step)
        self._link(step)
        self._build(survey, step)
        self._compare(survey)
        step.step = SWITCH
        self._write_step(step)
        self.finish()

    def finish(self) -> None:
        """Run the steps from the switch on. Raises: StorageError, DiskFull, OSError; then repeat it."""
        step = self._step()
        assert step is not None
        assert step.step == SWITCH
        self._drop_compactions()
        self._switch(step)
        unlink_all(self._disk, [posixpath.join(directory, SCRUB_PROGRESS) for directory in self._ledgers])
        unlink_all(self._disk, [self._record_path])

    def cancel(self) -> None:
        """Undo a conversion that has not switched. Raises StorageError."""
        step = read_step(self._disk, self._indexes[0])
        if step is None:
            raise StorageError("no conversion is in progress")
        if step.step == SWITCH:
            raise StorageError(
                "the conversion can no longer be cancelled, because the switch to the new index has begun: finish it "
                f"with `bk bookie convert --to {step.target}`"
            )
        self._undo(step)
        unlink_all(self._disk, [self._record_path])

    def discard_old(self) -> int:
        """Delete the index that was set aside, and return the number of its parts.

        Raises StorageError while a conversion is in progress.
        """
        if read_step(self._disk, self._indexes[0]) is not None:
            raise StorageError("a conversion is in progress: finish it first")
        aside = self._aside()
        for path in aside:
            self._databases.remove(path)
        return len(aside)

    # -- steps of each direction ---------------------------------------------------------------------------------
    @abstractmethod
    def _check_source(self) -> None:
        """Raise StorageError if the directories do not hold the index to convert."""

    @abstractmethod
    def _survey(self) -> Survey: ...

    @abstractmethod
    def _room_needed(self, survey: Survey) -> list[tuple[str, int]]:
        """Return (directory, bytes) pairs; a directory may occur several times."""

    @abstractmethod
    def _links(self, survey: Survey) -> list[tuple[int, int, int]]: ...

    def _spare(self) -> list[tuple[int, int, int]]:
        return []

    @abstractmethod
    def _link(self, step: Step) -> None: ...

    @abstractmethod
    def _build(self, survey: Survey, step: Step) -> None:
        """Write the new index, durably."""

    @abstractmethod
    def _built(self) -> Iterator[tuple[int, Fingerprint, index_format.IndexHeader]]:
        """Read the new index from the disk, and yield every ledger."""

    @abstractmethod
    def _expected(self, survey: Survey) -> dict[int, tuple[Fingerprint, index_format.IndexHeader]]:
        """Return every ledger as the new index should have it."""

    @abstractmethod
    def _switch(self, step: Step) -> None:
        """Put the new index in the place of the old one. May be repeated from any point."""

    # -- shared by both directions -------------------------------------------------------------------------------
    @property
    def _record_path(self) -> str:
        return posixpath.join(self._indexes[0], RECORD)

    def _step(self) -> Step | None:
        """Return the conversion in progress. Raises StorageError if it has another target."""
        step = read_step(self._disk, self._indexes[0])
        if step is not None and step.target != self.target:
            raise StorageError(
                f"a conversion to {step.target} is in progress: finish it with `bk bookie convert --to {step.target}`, "
                "or cancel it with --cancel if it has not switched yet"
            )
        return step

    def _catalog(self) -> Contents:
        """Return the contents of the old index's catalog, empty ones without a catalog. Raises: OSError."""
        return CatalogFile(self._disk, self._indexes, self._page_size).load() or Contents(self._page_size)

    def _write_step(self, step: Step) -> None:
        replace_bytes(self._disk, self._record_path, step.pack())

    def _compare(self, survey: Survey) -> None:
        expected = self._expected(survey)
        entries = 0
        for ledger_id, built, header in self._built():
            if expected.pop(ledger_id, None) != (built, header):
                raise StorageError("the new index differs from the old one", ledger_id=ledger_id)
            entries += built.count
            self._on_progress("compared", entries)
        if expected:
            raise StorageError("the new index lacks the ledger", ledger_id=min(expected))

    def _check_room(self, needed: list[tuple[str, int]]) -> None:
        """Raise DiskFull if the new index does not fit. Directories that report equal numbers share a file system."""
        sizes: dict[str, int] = {}
        for directory, size in needed:
            sizes[directory] = sizes.get(directory, 0) + size
        of_system: dict[tuple[int, int], tuple[str, int]] = {}
        for directory, size in sizes.items():
            usage = self._disk.usage(directory)
            place, before = of_system.get(usage, (directory, 0))
            of_system[usage] = place, before + size
        for (_, free), (place, size) in of_system.items():
            if free < size + ROOM:
                raise DiskFull(
                    f"{place}: the new index needs about {size:,} bytes beside the old one, {free:,} are usable. Free "
                    f"{size + ROOM - free:,} bytes or add space, then try again. No file was changed"
                )

    def _undo(self, step: Step) -> None:
        """Remove what was built. None of it counts before the switch."""
        if step.target == INDEX_FILES:
            for directory in self._indexes:
                kept = (catalog_format.FILE_NAME, DAMAGED_SUFFIX)  # the catalog is that of the databases
                names = [name for name in self._index_names(directory) if not name.endswith(kept)]
                unlink_all(self._disk, [posixpath.join(directory, name) for name in names])
            unlink_all(self._disk, [posixpath.join(self._indexes[0], catalog_format.FILE_NAME + BUILDING)])
        else:
            for directory in self._indexes:
                for path in rocksdb_format.paths_in(directory):
                    self._databases.remove(path + BUILDING)
        unlink_all(self._disk, [posixpath.join(self._ledgers[number], file_name(new)) for number, _, new in step.links])

    def _index_names(self, directory: str) -> list[str]:
        """Return the names of catalog and index files, complete or not, below a `current` directory."""
        disk, both = self._disk, (catalog_format.FILE_NAME, catalog_format.HOLES_NAME)
        names = [name for name in both if disk.exists(posixpath.join(directory, name))]
        for group in disk.list(directory):
            if len(group) > 2 or not disk.is_directory(posixpath.join(directory, group)):
                continue
            for part in disk.list(posixpath.join(directory, group)):
                place = posixpath.join(directory, group, part)
                if disk.is_directory(place):
                    suffixes = (".idx", ".idx" + NEW_SUFFIX, ".idx" + DAMAGED_SUFFIX)
                    names += [posixpath.join(group, part, name) for name in disk.list(place) if name.endswith(suffixes)]
        return names

    def _drop_compactions(self) -> None:
        """Remove the output of interrupted compactions.

        The entries that they copied are still in the source, as the survey has checked. Completing them would be wrong:
        the id of the source in their names may now belong to another log, because logs were renumbered or directories
        share one.
        """
        for directory in dict.fromkeys(self._ledgers):
            names = [name for name in self._disk.list(directory) if parse_compacted_name(name) is not None]
            unlink_all(self._disk, [posixpath.join(directory, name) for name in names])

    def _aside(self) -> list[str]:
        """Return the paths that an earlier conversion set aside."""
        names = [*(name + ASIDE for name in (*rocksdb_format.NAMES, rocksdb_format.LOG_SUMMARIES)), INDEX_ASIDE]
        paths = [posixpath.join(directory, name) for directory in self._indexes for name in names]
        return [path for path in paths if self._disk.exists(path)]

    def _check_nothing_aside(self) -> None:
        if aside := self._aside():
            raise StorageError(
                f"{aside[0]} was set aside by an earlier conversion. No file was changed. If this bookie has run well "
                f"since, delete it: bk bookie convert {posixpath.dirname(aside[0].rpartition('/')[0])} --discard-old"
            )
