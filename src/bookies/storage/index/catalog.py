"""The catalog in use: what index files must hold. It reveals damaged index files and missing ones.

Invariants
- A record is durable before the index file that it describes is written. So the catalog is never older than the files,
  and `Known.older` covers the difference that a crash leaves.
- The catalog overrides index files, never entries: an index file that disagrees is rebuilt from the logs.
- Without a catalog (a directory of Apache's, or a damaged catalog) index files are trusted as they are.

`Catalog` is owned by the loop's thread. `CatalogFile` blocks and is confined to the checkpoint's worker.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from bookies.errors import DiskFull
from bookies.runtime.ports import Buffer, Disk, File
from bookies.storage.disks.durable_files import replace_bytes, replace_copies, sync_data, unlink_all
from bookies.storage.entry_log.entry_log_format import LOG_ID_MAX
from bookies.storage.index import catalog_format as layout
from bookies.storage.index.catalog_format import Contents, Known, Synced
from bookies.storage.index.index_files import IndexWrite, LoadedIndex
from bookies.storage.index.index_format import STATE_FENCED, STATE_LIMBO, IndexHeader, is_whole, page_offset
from bookies.storage.index.limbo import Limbo
from bookies.storage.journal import LogMark

REWRITE_FACTOR = 4  # growth since the last complete write that makes the next write a complete one
REWRITE_SIZE_MIN = 1 << 20  # bytes


class CatalogFile:
    """The file, in the first index directory, or in another one after that has failed. Blocks. `path`: where it is."""

    def __init__(self, disk: Disk, directories: Sequence[str], page_size: int) -> None:
        self._disk = disk
        self._directories = list(directories)
        self.path = posixpath.join(directories[0], layout.FILE_NAME)
        self._page_size = page_size
        self._file: File | None = None
        self._position = 0
        self._size_whole = 0  # bytes after the last complete write
        self._is_damaged = False
        self._has_noted_holes = False

    def load(self, last: Sequence[str] = ()) -> Contents | None:
        """Return the contents; None without a file, unless there were holes. Raises: OSError.

        `last`: directories to search last, because they had failed.
        """
        paths = [posixpath.join(directory, layout.FILE_NAME) for directory in self._directories]
        hole_paths = [posixpath.join(directory, layout.HOLES_NAME) for directory in self._directories]
        noted = next(filter(self._disk.exists, hole_paths), "")
        self._has_noted_holes = bool(noted)
        contents = Contents(self._page_size, problem="it is missing") if noted else None
        for path in sorted(paths, key=lambda path: posixpath.dirname(path) in last):
            if self._disk.exists(path):
                self.path = path
                data = self._disk.read_bytes(path)
                self._position = self._size_whole = len(data)
                contents = layout.parse(data, self._page_size)
                break
        if contents is not None and noted and not contents.holes:
            contents.holes.append(f"{noted} is there, and the catalog has lost the reason")
        return contents

    def note_holes(self, holes: Sequence[str], directories: Sequence[str]) -> None:
        """Keep a file in these directories while there are holes, because a damaged catalog loses them.

        The catalog has them, or their end, already. A failed directory that returns with the file brings a hole back.
        Raises: DiskFull, OSError, SyncFailed.
        """
        if bool(holes) == self._has_noted_holes:
            return
        paths = [posixpath.join(directory, layout.HOLES_NAME) for directory in directories]
        if holes:
            replace_copies(self._disk, paths, "".join(f"{text}\n" for text in holes).encode())
        else:
            unlink_all(self._disk, paths)
        self._has_noted_holes = bool(holes)

    def replace(self, pieces: Sequence[bytes]) -> None:
        """Write the complete file. Raises: DiskFull, OSError."""
        data = b"".join(pieces)
        self.close()
        replace_bytes(self._disk, self.path, data)
        self._position = self._size_whole = len(data)
        self._is_damaged = False

    def verify(self) -> tuple[int, str]:
        """Return (bytes, the damage or ""). A damaged file is replaced soon. Raises: OSError."""
        try:
            data = self._disk.read_bytes(self.path)[: self._position]
        except FileNotFoundError:
            data = b""
        problem = layout.parse(data, self._page_size).problem
        if not problem and len(data) < self._position:
            problem = f"it ends at byte {len(data):,} of {self._position:,}"
        self._is_damaged = bool(problem)
        return len(data), problem

    def move(self, directory: str, pieces: Sequence[bytes]) -> None:
        """Write the complete file to another directory. Raises: DiskFull, OSError."""
        before, self.path = self.path, posixpath.join(directory, layout.FILE_NAME)
        try:
            self.replace(pieces)
        except (OSError, DiskFull):
            self.path = before
            raise

    @property
    def is_bloated(self) -> bool:
        """Report whether the file should be rewritten rather than appended to."""
        return self._is_damaged or self._position > max(REWRITE_SIZE_MIN, REWRITE_FACTOR * self._size_whole)

    def append(self, data: bytes, *, is_durable: bool) -> None:
        """Append records. Raises: DiskFull, OSError, after which the next append overwrites this one; SyncFailed."""
        if self._file is None:
            self._file = self._disk.open(self.path, "r+")
        self._file.pwrite(data, self._position)
        if is_durable:
            sync_data(self._file)
        self._position += len(data)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class LogsFound(Struct, frozen=True):
    """The entry logs that the start has found. A slot that names another one, up to `greatest_id`, names a lost log."""

    ids: frozenset[int] = frozenset()
    greatest_id: int = -1


class Catalog:
    """The expected content of all index files. `is_trusted`: a catalog was found, and all of it could be read.

    `limbo`: ledgers whose header, as it is in memory, says so. `has_ledgers`: the catalog describes the index files; it
    does not if the index has checksums of its own.
    """

    def __init__(self, page_size: int, *, has_ledgers: bool = True) -> None:
        self.has_ledgers = has_ledgers
        self.is_trusted = False
        self.marks: tuple[LogMark, ...] = ()
        self.uncounted_from = 0  # see `Contents`
        self.run_id = bytes(16)  # see `Directories`
        self.synced: Synced | None = None  # see `Contents`
        self.torn: dict[int, int] = {}
        self.holes: list[str] = []
        self.versions: tuple[int, ...] = ()
        self.ledgers: dict[int, Known] = {}
        self.limbo = Limbo()
        self.logs = LogsFound()
        self._page_size = page_size
        self._pending: list[bytes] = []

    def adopt(self, contents: Contents | None) -> None:
        """Take over the contents of the file at the start.

        Any crash can tear the last append, which no index file has followed yet, so the records before a torn end still
        count. If damage has removed more, index files are younger than the catalog, look damaged, and are rebuilt.
        """
        if contents is None:
            return
        self.is_trusted = not contents.problem
        self.holes = contents.holes
        self.ledgers = contents.ledgers if self.has_ledgers else {}
        self.marks = contents.marks
        self.uncounted_from = contents.uncounted_from
        self.synced = contents.synced if self.is_trusted else None  # A lost record may have been newer.
        self.torn = contents.torn
        self.versions = contents.versions
        if not self.is_trusted:
            for known in self.ledgers.values():
                known.is_stale = True
                if contents.has_other_pages:
                    known.pages, known.older = {}, {}
                    known.is_partial = True

    def contents(self) -> Contents:
        return Contents(
            self._page_size,
            self.ledgers,
            self.marks,
            self.holes,
            self.uncounted_from,
            synced=self.synced,
            torn=self.torn,
            versions=self.versions,
        )

    # -- comparing -----------------------------------------------------------------------------------------------
    def is_right(self, ledger_id: int, page: int, data: Buffer) -> bool:
        """Report whether a page read from the file may have been written there. True for unknown ledgers."""
        known = self.ledgers.get(ledger_id)
        return known is None or known.is_right(page, data, self._page_size)

    def agreed_header(self, ledger_id: int, in_file: IndexHeader | None) -> IndexHeader:
        """Return the header that combines catalog and file: a promise in either one counts.

        Without both the master key is vacant and the ledger is fenced, because refusing writes is safe. While there are
        holes it may have lost entries, too.
        """
        known = self.ledgers.get(ledger_id)
        kept = known.index_header() if known is not None else None
        if kept is None or in_file is None:
            return kept or in_file or IndexHeader(b"", STATE_FENCED | (STATE_LIMBO if self.holes else 0))
        if layout.trimmed(in_file) == layout.trimmed(kept):
            return in_file
        return IndexHeader(
            kept.master_key if kept.master_key.strip(b"\0") else in_file.master_key,
            kept.state | in_file.state,
            (in_file.explicit_lac if known is not None and known.is_stale else b"")
            or kept.explicit_lac
            or in_file.explicit_lac,
            max(kept.version, in_file.version),
        )

    def is_vouched(self, ledger_id: int) -> bool:
        """Report whether the catalog knows every page of the ledger's file."""
        known = self.ledgers.get(ledger_id)
        return not self.has_ledgers or (known is not None and not known.is_partial)

    def damage_of(self, ledger_id: int, loaded: LoadedIndex) -> str:
        """Return the damage of a file that its size and its last page reveal; empty if there is none."""
        known = self.ledgers.get(ledger_id)
        if not self.is_vouched(ledger_id) and not is_whole(loaded.size, self._page_size):
            return f"it ends at byte {loaded.size:,}, within its header or a page"
        if known is None:
            return str(loaded.problem or "")
        absent = layout.absent_checksum(self._page_size)
        needed = [page for page, checksum in known.pages.items() if checksum != absent and page not in known.older]
        last = max(needed, default=-1)
        if last >= 0 and loaded.size < page_offset(last + 1, self._page_size):
            return f"it ends at byte {loaded.size:,}, before page {last}"
        if loaded.problem is not None and known.is_partial:
            return str(loaded.problem)
        if loaded.last_page > last and not known.is_right(loaded.last_page, loaded.last_data, self._page_size):
            return f"the checksum of page {loaded.last_page} is wrong"
        if loaded.last_page < last or not known.is_right(loaded.last_page, loaded.last_data, self._page_size):
            return f"the checksum of page {last} is wrong"
        return ""

    # -- writing -------------------------------------------------------------------------------------------------
    def stage(self, ledger_id: int, change: IndexWrite, header: IndexHeader) -> None:
        """Record that an index file is about to be written. `take` returns what must be durable before."""
        if not self.has_ledgers:
            return
        known = self.ledgers.get(ledger_id)
        if known is None:
            known = self.ledgers[ledger_id] = Known(is_partial=not change.is_new)
        if change.is_new:
            known.reset()
        checksums = [(page, layout.checksum_of(data, self._page_size)) for page, data in change.pages]
        for page, checksum in checksums:
            known.expect(page, checksum, layout.absent_checksum(self._page_size))
        known.header = layout.trimmed(header)
        flags = (layout.PARTIAL if known.is_partial else 0) | (layout.RESET if change.is_new else 0)
        self._pending.append(layout.pack_ledger(ledger_id, header, checksums, flags))

    def written(self, ledger_id: int, pages: Iterable[int]) -> None:
        """Note that the staged pages are in the file."""
        if (known := self.ledgers.get(ledger_id)) is not None:
            for page in pages:
                known.older.pop(page, None)
            known.is_fresh = known.is_stale = False

    def unsettled(self) -> dict[int, list[int]]:
        """Return the pages that a crash may have left in one of several states. Call `resolve` with their checksums."""
        return {ledger_id: list(known.older) for ledger_id, known in self.ledgers.items() if known.older}

    def resolve(self, in_files: dict[int, dict[int, int]]) -> None:
        """Accept the checksums that the files have for the unsettled pages. Any other checksum remains damage."""
        for ledger_id, checksums in in_files.items():
            known = self.ledgers[ledger_id]
            changed = []
            for page, checksum in checksums.items():
                older = known.older.pop(page)
                if checksum != known.pages.get(page) and (checksum in older or layout.ANY in older):
                    known.pages[page] = checksum
                    changed.append((page, checksum))
            if changed:
                flags = layout.PARTIAL if known.is_partial else 0
                self._pending.append(layout.pack_known(ledger_id, known.header, changed, flags))

    def delete(self, ledger_id: int) -> None:
        """Note that the ledger was deleted, so that its missing file is no damage."""
        if self.ledgers.pop(ledger_id, None) is not None:
            self._pending.append(layout.pack_deleted(ledger_id))

    def add_hole(self, text: str) -> None:
        self.holes.append(text)
        self._pending.append(layout.pack_hole(text))

    def settle_holes(self) -> None:
        self.holes = []
        self._pending.append(layout.pack_holes_settled())

    def settle(self, marks: Sequence[LogMark], uncounted_from: int) -> None:
        """Note that all staged changes are in the files, and that these marks are about to be persisted."""
        self.marks, self.uncounted_from = tuple(marks), uncounted_from
        self._pending.append(layout.pack_settled(marks, uncounted_from))

    def note_synced(self, ends: Mapping[int, int], greatest_id: int, marks: Sequence[LogMark] | None) -> None:
        """Note how far the entry logs are durable, before slots that name them are written; see `Synced`.

        `ends`: of the active logs. `marks`: about to be persisted; None: those from before stay.
        """
        before = self.synced.marks if self.synced is not None else ()
        synced = Synced.of(ends, greatest_id, tuple(marks) if marks is not None else before, self.run_id)
        if synced != self.synced:
            self.synced = synced
            self._pending.append(layout.pack_synced(synced))

    def note_incomplete(self) -> None:
        """Note that ledgers may exist that the catalog does not name.

        Unless a checkpoint comes first, the next start searches the logs for them: without announced marks, the marks
        on disk look like those of another program.
        """
        self.synced = Synced(-1, 0, LOG_ID_MAX, (), self.run_id)
        self._pending.append(layout.pack_synced(self.synced))

    def note_torn(self, torn: Mapping[int, int]) -> None:
        """Set the entry logs that count only up to these bytes."""
        if torn != self.torn:
            self.torn = dict(torn)
            self._pending.append(layout.pack_torn(torn))

    def note_versions(self, versions: tuple[int, ...]) -> None:
        """Note how many writes of each database are durable."""
        if versions != self.versions:
            self.versions = versions
            self._pending.append(layout.pack_versions(versions))

    def take(self) -> bytes:
        """Return the records to append. Call `give_back` with them when the append fails."""
        data, self._pending = b"".join(self._pending), []
        return data

    def give_back(self, data: bytes) -> None:
        if data:
            self._pending.insert(0, data)

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)
