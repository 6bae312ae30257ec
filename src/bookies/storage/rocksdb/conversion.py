"""A bookie's index turned from RocksDB databases into index files, or back, offline; entry logs stay where they are.

    survey   read the whole old index; look up every location in the logs; is there room
    build    the new index beside the old one, which still counts; read it again and compare
    switch   the old index aside, the new one in its place

`CONVERSION`, a file in the first index directory's `current`, says what is under way. Without it nothing is.

Invariants
- Until the step is "switch" the old index is complete and in its place, and `restart` removes what was built.
  From then on the new index is complete and durable, and a conversion only goes on to the end.
- While there is such a file no bookie of ours starts. Where databases were, a plain file of the same name is put, so
  that no bookie of Apache's makes empty ones and denies what is here.
- Nothing of the old index is removed before it is asked for (`discard_old`).
- A slot whose entry cannot be read is kept as it is: the entry is answered with an error, as before, and never denied.

Blocks. Source: storage 6; 1.3 for which ledger belongs where.
"""

from __future__ import annotations

import json
import posixpath
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from bookies.config import BookieConfig
from bookies.errors import DiskFull, StorageError
from bookies.runtime.ports import Disk
from bookies.storage.disks.directories import Directories
from bookies.storage.disks.durable_files import replace_bytes, unlink_all
from bookies.storage.entry_log.entry_log_format import file_name, parse_compacted_name
from bookies.storage.identity.index_kind import RECORD
from bookies.storage.index import catalog_format, index_format
from bookies.storage.index.index_files import DAMAGED_SUFFIX, NEW_SUFFIX
from bookies.storage.rocksdb import rocksdb_format
from bookies.storage.rocksdb.conversion_check import Fingerprint, Survey
from bookies.storage.rocksdb.rocksdb_format import Databases, Lock

INDEX_FILES, ROCKSDB = "index-files", "rocksdb"  # what an index can be converted to
BUILD, SWITCH = "build", "switch"
ASIDE = ".before-conversion"
BUILDING = ".converting"
INDEX_ASIDE = "index-files" + ASIDE
ROOM = 16 << 20  # bytes left free beyond what is needed

Progress = Callable[[str, int], None]  # (what is being done, entries so far)


@dataclass
class Step:
    """What the file `CONVERSION` says. `links`: (directory number, log id, id it gets there) of extra names of logs.

    `spare`: (directory number, log id, its id elsewhere) of second names, or copies, of logs in other directories.
    """

    target: str
    step: str
    links: list[tuple[int, int, int]] = field(default_factory=list)
    spare: list[tuple[int, int, int]] = field(default_factory=list)

    def pack(self) -> bytes:
        facts = {"version": 1, "to": self.target, "step": self.step, "links": self.links, "spare": self.spare}
        return json.dumps(facts).encode() + b"\n"


def read_step(disk: Disk, directory: str) -> Step | None:
    """What is under way in a bookie whose first index directory's `current` this is. Raises StorageError."""
    path = posixpath.join(directory, RECORD)
    if not disk.exists(path):
        return None
    try:
        found = json.loads(disk.read_bytes(path))
        links, spare = (
            [(int(number), int(old), int(new)) for number, old, new in some]
            for some in (found["links"], found.get("spare", ()))
        )
        return Step(found["to"], found["step"], links, spare)
    except (ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path} is not what bk bookie convert writes: {error}") from error


class Conversion(ABC):
    """One bookie's. `config` names its directories; index and ledger directories are pairs."""

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

    # -- what is done --------------------------------------------------------------------------------------------
    def open(self) -> None:
        """Lock everything. Raises DirectoryInUse; StorageError for directories that cannot be converted."""
        if len(self._ledgers) != len(self._indexes):
            raise StorageError(
                f"{len(self._indexes)} index directories and {len(self._ledgers)} ledger directories: with RocksDB "
                "they are pairs, so there have to be as many of the one as of the other"
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
        """Let go of the locks. Idempotent."""
        for lock in self._locks:
            lock.release()
        self._locks.clear()
        self._directories.release()

    def restart(self) -> bool:
        """Remove what an earlier try has built, unless it has switched: then only `finish` is left, and this is False.

        Raises StorageError if the conversion under way is another one.
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
        """Whether the index is in RocksDB now."""
        return any(self._databases.exists(path) for each in self._indexes for path in rocksdb_format.paths_in(each))

    def survey(self) -> Survey:
        """Read and look up everything, if nothing is under way. Changes nothing.

        Raises: StorageError, CorruptRecord, DiskFull, OSError.
        """
        if self._step() is not None:
            raise StorageError(f"a conversion is under way here; go on with it: bk bookie convert --to {self.target}")
        self._check_source()
        survey = self._survey()
        survey.is_dirty = not self._directories.was_clean
        self._check_room(self._room_needed(survey))
        return survey

    def convert(self, survey: Survey) -> None:
        """All of it. Raises: StorageError, DiskFull, OSError; then `restart` and `survey` again."""
        step = Step(self.target, BUILD, self._links(survey), self._spare())
        self._write_step(step)
        self._link(step)
        self._build(survey, step)
        self._compare(survey)
        step.step = SWITCH
        self._write_step(step)
        self.finish()

    def finish(self) -> None:
        """From the switch on. Raises: StorageError, DiskFull, OSError; then do it again."""
        step = self._step()
        assert step is not None
        assert step.step == SWITCH
        self._drop_compactions()
        self._switch(step)
        unlink_all(self._disk, [self._record_path])

    def cancel(self) -> None:
        """Give up what has not been switched. Raises StorageError."""
        step = read_step(self._disk, self._indexes[0])
        if step is None:
            raise StorageError("no conversion is under way here")
        if step.step == SWITCH:
            raise StorageError(f"the conversion has switched already; finish it: bk bookie convert --to {step.target}")
        self._undo(step)
        unlink_all(self._disk, [self._record_path])

    def discard_old(self) -> int:
        """Remove what was put aside; how many pieces. Raises StorageError while a conversion is under way."""
        if read_step(self._disk, self._indexes[0]) is not None:
            raise StorageError("a conversion is under way here: finish it first")
        found = self._aside()
        for path in found:
            self._databases.remove(path)
        return len(found)

    # -- what directions differ in -------------------------------------------------------------------------------
    @abstractmethod
    def _check_source(self) -> None:
        """Raises StorageError if this is not what is converted here."""

    @abstractmethod
    def _survey(self) -> Survey: ...

    @abstractmethod
    def _room_needed(self, survey: Survey) -> list[tuple[str, int]]:
        """(directory, bytes), any number for each."""

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
        """What the new index says, read from the disk, of every ledger."""

    @abstractmethod
    def _expected(self, survey: Survey) -> dict[int, tuple[Fingerprint, index_format.IndexHeader]]:
        """What it should say."""

    @abstractmethod
    def _switch(self, step: Step) -> None:
        """Put the new index in the place of the old one. May be done again from any point."""

    # -- what they share -----------------------------------------------------------------------------------------
    @property
    def _record_path(self) -> str:
        return posixpath.join(self._indexes[0], RECORD)

    def _step(self) -> Step | None:
        """Raises StorageError if the conversion under way is another one."""
        step = read_step(self._disk, self._indexes[0])
        if step is not None and step.target != self.target:
            raise StorageError(
                f"a conversion to {step.target} is under way here: finish it (bk bookie convert --to {step.target}), "
                "or, if it has not yet switched, --cancel it"
            )
        return step

    def _write_step(self, step: Step) -> None:
        replace_bytes(self._disk, self._record_path, step.pack())

    def _compare(self, survey: Survey) -> None:
        expected = self._expected(survey)
        entries = 0
        for ledger_id, found, header in self._built():
            if expected.pop(ledger_id, None) != (found, header):
                raise StorageError("what was written is not what was read", ledger_id=ledger_id)
            entries += found.count
            self._on_progress("compared", entries)
        if expected:
            raise StorageError("it is missing in what was written", ledger_id=min(expected))

    def _check_room(self, needed: list[tuple[str, int]]) -> None:
        """Directories of one file system report the same numbers, and share them."""
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
                    f"{place}: the new index takes about {size:,} bytes beside the old one, {free:,} are usable; free "
                    f"{size + ROOM - free:,} bytes or add space, then try again. Nothing was changed"
                )

    def _undo(self, step: Step) -> None:
        """Remove what was built: none of it counts yet."""
        if step.target == INDEX_FILES:
            for directory in self._indexes:
                names = [name for name in self._index_names(directory) if not name.endswith(DAMAGED_SUFFIX)]
                unlink_all(self._disk, [posixpath.join(directory, name) for name in names])
        else:
            for directory in self._indexes:
                for path in rocksdb_format.paths_in(directory):
                    self._databases.remove(path + BUILDING)
        unlink_all(self._disk, [posixpath.join(self._ledgers[number], file_name(new)) for number, _, new in step.links])

    def _index_names(self, directory: str) -> list[str]:
        """Catalog and index files, whole or not, below a `current` directory."""
        disk = self._disk
        found = [catalog_format.FILE_NAME] if disk.exists(posixpath.join(directory, catalog_format.FILE_NAME)) else []
        for group in disk.list(directory):
            if len(group) > 2 or not disk.is_directory(posixpath.join(directory, group)):
                continue
            for part in disk.list(posixpath.join(directory, group)):
                place = posixpath.join(directory, group, part)
                if disk.is_directory(place):
                    suffixes = (".idx", ".idx" + NEW_SUFFIX, ".idx" + DAMAGED_SUFFIX)
                    found += [posixpath.join(group, part, name) for name in disk.list(place) if name.endswith(suffixes)]
        return found

    def _drop_compactions(self) -> None:
        """Remove the output of compactions that a crash interrupted.

        What they copied is still where the index says, which was looked up; and what their names say is to be removed
        then would be another log where logs have got other ids, or where several directories share one.
        """
        for directory in dict.fromkeys(self._ledgers):
            names = [name for name in self._disk.list(directory) if parse_compacted_name(name) is not None]
            unlink_all(self._disk, [posixpath.join(directory, name) for name in names])

    def _aside(self) -> list[str]:
        """What an earlier conversion put aside."""
        names = [*(name + ASIDE for name in (*rocksdb_format.NAMES, rocksdb_format.LOG_SUMMARIES)), INDEX_ASIDE]
        paths = [posixpath.join(directory, name) for directory in self._indexes for name in names]
        return [path for path in paths if self._disk.exists(path)]

    def _check_nothing_aside(self) -> None:
        if aside := self._aside():
            raise StorageError(
                f"{aside[0]} is what an earlier conversion put aside. Nothing was changed. If this bookie has run well "
                f"since, remove it: bk bookie convert {posixpath.dirname(aside[0].rpartition('/')[0])} --discard-old"
            )
