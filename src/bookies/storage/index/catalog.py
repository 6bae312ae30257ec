"""The catalog in use: what index files must hold, so that damage is noticed and a lost file is not taken for no ledger.

Invariants
- A record is durable before the index file it speaks of is written. So the catalog is never behind the files, and a
  difference that a crash left is covered by `Known.older`.
- It is believed only against index files, never instead of entries: whatever disagrees is built again from the logs.
- Without it (a directory of Apache's, or its own damage) index files are believed as they are.

`Catalog` is owned by the loop's thread, `CatalogFile` blocks and is confined to the checkpoint's worker.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping, Sequence

from bookies.errors import DiskFull
from bookies.runtime.ports import Buffer, Disk, File
from bookies.storage.disks.durable_files import replace_bytes, sync_data
from bookies.storage.entry_log.entry_log_format import LOG_ID_MAX
from bookies.storage.index import catalog_format as layout
from bookies.storage.index.catalog_format import Contents, Known, Synced
from bookies.storage.index.index_files import IndexWrite, LoadedIndex
from bookies.storage.index.index_format import STATE_FENCED, IndexHeader, page_offset
from bookies.storage.journal import LogMark

REWRITE_FACTOR = 4  # a file so many times as large as when it was last written as a whole is written again
REWRITE_SIZE_MIN = 1 << 20  # bytes


class CatalogFile:
    """The file, in the first index directory, or in another if that has failed once. Blocks. `path`: where it is."""

    def __init__(self, disk: Disk, directories: Sequence[str], page_size: int) -> None:
        self._disk = disk
        self._directories = list(directories)
        self.path = posixpath.join(directories[0], layout.FILE_NAME)
        self._page_size = page_size
        self._file: File | None = None
        self._position = 0
        self._size_whole = 0  # when it was last written as a whole
        self._is_damaged = False

    def load(self, last: Sequence[str] = ()) -> Contents | None:
        """What it says; None if there is none. `last`: where to look last, as those directories had failed.

        Raises: OSError.
        """
        paths = [posixpath.join(directory, layout.FILE_NAME) for directory in self._directories]
        for path in sorted(paths, key=lambda each: posixpath.dirname(each) in last):
            if self._disk.exists(path):
                self.path = path
                break
        else:
            return None
        data = self._disk.read_bytes(self.path)
        self._position = self._size_whole = len(data)
        return layout.parse(data, self._page_size)

    def replace(self, pieces: Sequence[bytes]) -> None:
        """Write it as a whole. Raises: DiskFull, OSError."""
        data = b"".join(pieces)
        self.close()
        replace_bytes(self._disk, self.path, data)
        self._position = self._size_whole = len(data)
        self._is_damaged = False

    def verify(self) -> tuple[int, str]:
        """(bytes, what is wrong with the file). One that is damaged is replaced soon. Raises: OSError."""
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
        """Write it as a whole in another directory. Raises: DiskFull, OSError."""
        before, self.path = self.path, posixpath.join(directory, layout.FILE_NAME)
        try:
            self.replace(pieces)
        except (OSError, DiskFull):
            self.path = before
            raise

    @property
    def is_bloated(self) -> bool:
        """Whether it is better written as a whole than appended to."""
        return self._is_damaged or self._position > max(REWRITE_SIZE_MIN, REWRITE_FACTOR * self._size_whole)

    def append(self, data: bytes, *, is_durable: bool) -> None:
        """Raises: DiskFull, OSError, then the next one takes its place; SyncFailed."""
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


class Catalog:
    """What is known of every ledger. `is_trusted`: there was a catalog, and all of it could be read."""

    def __init__(self, page_size: int) -> None:
        self.is_trusted = False
        self.marks: tuple[LogMark, ...] = ()
        self.doubtful_from = 0  # see `Contents`
        self.run_id = bytes(16)  # see `Directories`
        self.synced: Synced | None = None  # see `Contents`
        self.torn: dict[int, int] = {}
        self.holes: list[str] = []
        self.ledgers: dict[int, Known] = {}
        self._page_size = page_size
        self._absent = layout.checksum_of(b"", page_size)
        self._pending: list[bytes] = []

    def found(self, contents: Contents | None) -> None:
        """What the file said at the start.

        Its end may be lost: any crash can tear the last thing that was appended, which no index file has followed yet.
        So what was said before goes on to count. If damage has taken more, index files are younger, look damaged, and
        are built again.
        """
        if contents is None:
            return
        self.is_trusted = not contents.problem
        self.holes = contents.holes
        self.ledgers = contents.ledgers
        self.marks = contents.marks
        self.doubtful_from = contents.doubtful_from
        self.synced = contents.synced if self.is_trusted else None  # What is lost may have said more.
        self.torn = contents.torn
        if not self.is_trusted:
            for known in self.ledgers.values():
                known.is_doubted = True
                if contents.has_other_pages:
                    known.pages, known.older = {}, {}
                    known.is_partial = True

    def contents(self) -> Contents:
        return Contents(
            self._page_size,
            self.ledgers,
            self.marks,
            self.holes,
            self.doubtful_from,
            synced=self.synced,
            torn=self.torn,
        )

    # -- comparing -----------------------------------------------------------------------------------------------
    def is_right(self, ledger_id: int, page: int, data: Buffer) -> bool:
        """Whether a page read from the file is what was written there, as far as anybody knows."""
        known = self.ledgers.get(ledger_id)
        return known is None or known.is_right(page, data, self._page_size)

    def agreed_header(self, ledger_id: int, found: IndexHeader | None) -> IndexHeader:
        """What catalog and file together say: a promise that either knows of counts.

        Without both the ledger's key is vacant, and it is fenced: refusing writes is safe.
        """
        known = self.ledgers.get(ledger_id)
        kept = known.index_header() if known is not None else None
        if kept is None or found is None:
            return kept or found or IndexHeader(b"", STATE_FENCED)
        if layout.trimmed(found) == layout.trimmed(kept):
            return found
        return IndexHeader(
            kept.master_key if kept.master_key.strip(b"\0") else found.master_key,
            kept.state | found.state,
            (found.explicit_lac if known is not None and known.is_doubted else b"")
            or kept.explicit_lac
            or found.explicit_lac,
            max(kept.version, found.version),
        )

    def damage_of(self, ledger_id: int, loaded: LoadedIndex) -> str:
        """What is wrong with the slots of a file, as far as its size and its last page tell; empty if nothing is."""
        known = self.ledgers.get(ledger_id)
        if known is None:
            return str(loaded.problem or "")
        needed = [
            page for page, checksum in known.pages.items() if checksum != self._absent and page not in known.older
        ]
        last = max(needed, default=-1)
        if last >= 0 and loaded.size < page_offset(last + 1, self._page_size):
            return f"it ends at byte {loaded.size:,}, before page {last}"
        if loaded.problem is not None and known.is_partial:
            return str(loaded.problem)
        if loaded.last_page > last and not known.is_right(loaded.last_page, loaded.last_data, self._page_size):
            return f"page {loaded.last_page} is not what was written"
        if loaded.last_page < last or not known.is_right(loaded.last_page, loaded.last_data, self._page_size):
            return f"page {last} is not what was written"
        return ""

    # -- writing -------------------------------------------------------------------------------------------------
    def stage(self, ledger_id: int, change: IndexWrite, header: IndexHeader) -> None:
        """An index file is about to be written; `take` has what must be durable before."""
        known = self.ledgers.get(ledger_id)
        if known is None:
            known = self.ledgers[ledger_id] = Known(is_partial=not change.is_new)
        if change.is_new:
            known.reset()
        checksums = [(page, layout.checksum_of(data, self._page_size)) for page, data in change.pages]
        for page, checksum in checksums:
            known.expect(page, checksum, self._absent)
        known.header = layout.trimmed(header)
        flags = (layout.PARTIAL if known.is_partial else 0) | (layout.RESET if change.is_new else 0)
        self._pending.append(layout.pack_ledger(ledger_id, header, checksums, flags))

    def written(self, ledger_id: int, pages: Iterable[int]) -> None:
        """What was staged for it is in the file."""
        if (known := self.ledgers.get(ledger_id)) is not None:
            for page in pages:
                known.older.pop(page, None)
            known.is_fresh = known.is_doubted = False

    def unsettled(self) -> dict[int, list[int]]:
        """Pages of which a crash has left one state or another: to be looked at before anything else is settled."""
        return {ledger_id: list(known.older) for ledger_id, known in self.ledgers.items() if known.older}

    def resolve(self, found: dict[int, dict[int, int]]) -> None:
        """Of those pages, the checksums of what the files have. What may not be there stays damage."""
        for ledger_id, checksums in found.items():
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
        """The ledger was deleted: that its file is gone is no damage."""
        if self.ledgers.pop(ledger_id, None) is not None:
            self._pending.append(layout.pack_deleted(ledger_id))

    def add_hole(self, text: str) -> None:
        self.holes.append(text)
        self._pending.append(layout.pack_hole(text))

    def settle_holes(self) -> None:
        self.holes = []
        self._pending.append(layout.pack_holes_settled())

    def settle(self, marks: Sequence[LogMark], doubtful_from: int) -> None:
        """All that was staged is in the files, and these marks are about to be persisted."""
        self.marks, self.doubtful_from = tuple(marks), doubtful_from
        self._pending.append(layout.pack_settled(marks, doubtful_from))

    def note_synced(self, log_id: int, end: int, greatest_id: int, marks: Sequence[LogMark] | None) -> None:
        """Entry logs are durable so far, and slots that name them are about to be; see `Synced`.

        `marks`: are about to be persisted; None: those from before stay.
        """
        before = self.synced.marks if self.synced is not None else ()
        synced = Synced(log_id, end, greatest_id, tuple(marks) if marks is not None else before, self.run_id)
        if synced != self.synced:
            self.synced = synced
            self._pending.append(layout.pack_synced(synced))

    def note_lacking(self) -> None:
        """There may have been ledgers that it does not name: the next start looks too, unless a checkpoint comes first.

        As no marks are announced, whatever there are look like those of another program.
        """
        self.synced = Synced(-1, 0, LOG_ID_MAX, (), self.run_id)
        self._pending.append(layout.pack_synced(self.synced))

    def note_torn(self, torn: Mapping[int, int]) -> None:
        """These logs, and no others, count only up to these bytes."""
        if torn != self.torn:
            self.torn = dict(torn)
            self._pending.append(layout.pack_torn(torn))

    def take(self) -> bytes:
        """What is to be appended. `give_back` it when that fails."""
        data, self._pending = b"".join(self._pending), []
        return data

    def give_back(self, data: bytes) -> None:
        if data:
            self._pending.insert(0, data)

    @property
    def has_pending(self) -> bool:
        return bool(self._pending)
