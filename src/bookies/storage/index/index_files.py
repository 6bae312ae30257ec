"""Index files on disk: find, load, read and write them. Blocks; each instance is confined to one worker.

Invariants
- A new file gets its name only when it is complete and durable. It is written under another name first, so a crash
  never leaves a file whose header is cut off.
- Q-20: pages are written whole. A header is rewritten as a whole.
- F-19: header writes are fsynced with or without a page write. Both are synced before `write` returns.
- A name is durable before `write` returns, also the name of a file from an earlier process. That process may have died
  between the rename and the sync of the directory; then a power failure can still remove the name.
- F-43: the failure to read a header is remembered. The ledger restarts as uncertain, never with an empty header.
- A replaced damaged file stays beside the new one, under another name.
- Empty folders are removed with their last file. One worker removes and writes, so no write loses its folder.
- A failed write or move may leave an incomplete or moving file. `IndexFiles` remembers its path and removes it when the
  ledger's file is at its final place (`tidy`). Until then it may be the only one.

Source: storage 4.
"""

from __future__ import annotations

import contextlib
import posixpath
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from msgspec import Struct, field

from bookies.errors import CorruptRecord, DiskFull, StorageError
from bookies.runtime.ports import Buffer, Disk, File
from bookies.storage.disks.durable_files import SyncFailed, remove, sync_directory, sync_many, unlink_all
from bookies.storage.disks.file_cache import FileCache
from bookies.storage.index import index_format as layout
from bookies.storage.index.catalog_format import checksum_of

T = TypeVar("T")
NewFiles = Callable[[int, str], "IndexFiles"]  # (open files, mode as in `Disk.open`)

WRITE_FILES_MAX = 256  # index files written by one call of the worker, and synced together
LEVELS = 2  # folders between a directory and an index file
NEW_SUFFIX = ".new"  # of an incomplete file; readers of the format ignore it
MOVING_SUFFIX = ".rloc"  # of a complete file, while the file that it replaces is removed
DAMAGED_SUFFIX = ".damaged"  # of a damaged file that was replaced by a rebuilt one


class LoadedIndex(Struct, frozen=True):
    """Header and extent of a file. `header` None: see `problem`. `last_entry_id`: the highest with a slot, or -1.

    `size`: of the file. `last_page`, `last_data`: the page with that slot, and its bytes in the file; -1 without any.
    """

    header: layout.IndexHeader | None
    size: int
    last_entry_id: int = -1
    last_page: int = -1
    last_data: bytes = b""
    problem: CorruptRecord | None = None

    @property
    def last_slot(self) -> bytes:
        """Return the highest slot; empty without any."""
        used = len(self.last_data.rstrip(b"\0"))
        start = max(0, used - 1) // layout.SLOT_SIZE * layout.SLOT_SIZE
        return self.last_data[start : start + layout.SLOT_SIZE]


class WrongPage(CorruptRecord):
    """A page of an index file has a wrong checksum. `page`: its number."""

    def __init__(self, page: int, path: str) -> None:
        super().__init__(f"the checksum of page {page} is wrong", path=path, offset=0)
        self.page = page


class IndexDamaged(SyncFailed):
    """The index as a whole is damaged. Final, as a failed sync is: the next start rebuilds it from the entry logs."""


class IndexWrite(Struct, frozen=True, gc=False):
    """Changes of one ledger's file. `header` None: unchanged. `pages`: (number, slots), ascending; files: whole pages.

    `path`: where the file is or, if `is_new`, will be. `replaces`: where there may be files that the new one replaces.
    `firsts`: for databases by page, the number of the first slot; others than these stay as they are stored.
    """

    path: str
    is_new: bool
    header: layout.IndexHeader | None
    pages: list[tuple[int, Buffer]]
    replaces: tuple[str, ...] = ()
    firsts: dict[int, int] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return sum(len(data) for _, data in self.pages) + layout.HEADER_SIZE


def find_index_files(
    disk: Disk, directories: Sequence[str], rivals: dict[int, list[str]] | None = None
) -> dict[int, str]:
    """Return ledger id to path of every index file. Complete or undo moves that a crash interrupted.

    `rivals`: gets the further files of ledgers that have several, of which none can be trusted. Raises: OSError;
    StorageError without `rivals` if a ledger has several. Source: storage 4.1, 4.7.
    """
    paths: dict[int, str] = {}
    moving: dict[int, str] = {}
    for directory in directories:
        for group in _subdirectories(disk, directory):
            for part in _subdirectories(disk, posixpath.join(directory, group)):
                for name in disk.list(posixpath.join(directory, group, part)):
                    path = posixpath.join(directory, group, part, name)
                    if (ledger_id := layout.parse_path(path)) is not None:
                        if paths.setdefault(ledger_id, path) == path:
                            continue
                        if rivals is None:
                            raise StorageError(
                                f"{path} and {paths[ledger_id]} are of one ledger; start the bookie once: it "
                                "builds a new one from the entry logs",
                                ledger_id=ledger_id,
                            )
                        rivals.setdefault(ledger_id, []).append(path)
                    elif (ledger_id := layout.parse_relocating_path(path)) is not None:
                        moving[ledger_id] = path
                    elif name.endswith(".idx" + NEW_SUFFIX):
                        disk.unlink(path)
    for ledger_id, path in moving.items():
        if ledger_id in paths:
            disk.unlink(path)
        else:
            paths[ledger_id] = path.removesuffix(MOVING_SUFFIX)
            disk.rename(path, paths[ledger_id])
        sync_directory(disk, posixpath.dirname(path))
    return paths


def remove_index_files(disk: Disk, paths: Sequence[str]) -> None:
    """Remove index files durably, and their folders (`g/p`) where these are empty then. Missing files are skipped.

    No index file may be written meanwhile: a write expects the folders that it has made. Raises: OSError, SyncFailed.
    """
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            disk.unlink(path)
    folders = dict.fromkeys(map(posixpath.dirname, paths))
    changed: list[str] = []
    for _ in range(LEVELS):
        removed = {folder: _is_folder_removed(disk, folder) for folder in folders}
        changed += [folder for folder, is_removed in removed.items() if not is_removed]
        folders = dict.fromkeys(posixpath.dirname(folder) for folder, is_removed in removed.items() if is_removed)
    sync_many(disk, (), list(dict.fromkeys([*changed, *folders])))


def _is_folder_removed(disk: Disk, path: str) -> bool:
    try:
        disk.remove_directory(path)
    except FileNotFoundError:
        return True  # by an attempt that ended before its sync
    except (OSError, DiskFull):
        return False  # It is not empty. If it is broken, its sync reports that.
    return True


def _subdirectories(disk: Disk, path: str) -> list[str]:
    """Return the names that can be a level of an index path. Everything else in `current` is a file."""
    return [name for name in disk.list(path) if len(name) <= 2 and disk.is_directory(posixpath.join(path, name))]


class IndexFiles:
    """Reader of index files, and writer if `mode` is "r+" rather than "r". `page_size` in bytes.

    `written_max`: files for one call of `write`, which syncs them together. `checks_itself`: what is stored has
    checksums of its own, so the catalog needs none. `path_of`: of a ledger, below the index directory.
    """

    checks_itself = False
    padded_size: int  # bytes that a page to be written has at least
    path_of = staticmethod(layout.path_of)

    def __init__(self, disk: Disk, page_size: int, open_files_max: int, mode: str) -> None:
        self._disk = disk
        self._mode = mode
        self.page_size = self.padded_size = page_size
        self.written_max = min(WRITE_FILES_MAX, open_files_max)
        self._absent: set[str] = set()  # where failed writes have left no file: none need be read to replace it
        self._synced: dict[str, None] = {}  # directories whose older names are durable
        self._leftovers: dict[str, None] = {}  # of failed writes whose ledger's file is not in place yet
        self._strays: dict[str, None] = {}  # leftovers to remove
        self._files = FileCache(disk, open_files_max)

    def home_of(self, ledger_id: int) -> str:
        """Return the only index directory that a ledger may be in; empty: any."""
        return ""

    def load_all(self, paths: Sequence[str]) -> list[LoadedIndex | Exception]:
        """Return header and extent of each file, or the OSError or IndexDamaged that has prevented it."""
        outcomes: list[LoadedIndex | Exception] = []
        for path in paths:
            try:
                outcomes.append(self._load(path))
            except OSError as error:
                outcomes.append(error)
        return outcomes

    def _load(self, path: str) -> LoadedIndex:
        file = self._files.get(path, self._mode)
        header, problem = None, None
        try:
            header = layout.parse_header(file.pread(layout.HEADER_SIZE, 0), path=path)
        except CorruptRecord as error:
            problem = error
        size = file.size()
        page = (max(0, size - layout.HEADER_SIZE) - 1) // self.page_size
        while page >= 0:
            data = self.read_page(path, page)
            used = len(data.rstrip(b"\0"))
            if used:
                last = page * layout.slots_per_page(self.page_size) + (used - 1) // layout.SLOT_SIZE
                return LoadedIndex(header, size, last, page, data, problem)
            page -= 1
        return LoadedIndex(header, size, problem=problem)

    def read_page(self, path: str, page: int) -> bytes:
        """Return a page, shorter if the file ends within it. Raises: OSError."""
        file = self._files.get(path, self._mode)
        data = file.pread(self.page_size, layout.page_offset(page, self.page_size))
        return data[: len(data) - len(data) % layout.SLOT_SIZE]

    def checksums(self, path: str, pages: Sequence[int]) -> dict[int, int] | None:
        """Return the crc32 of these pages as in the catalog, by page number; None without a file. Raises: OSError."""
        try:
            return {page: checksum_of(self.read_page(path, page), self.page_size) for page in pages}
        except FileNotFoundError:
            return None

    def scan_slots(
        self,
        path: str | None,
        newer: dict[int, bytes],
        pages: Sequence[int],
        is_right: Callable[[int, bytes], bool],
        visit: Callable[..., T],
        *arguments: object,
    ) -> T:
        """Call `visit` (see `slot_scans`) with the pages of a ledger, and return its result.

        `newer`: pages that replace those of the file. `pages`: known to be in the file, ascending; it may have others.
        Raises: OSError; `WrongPage`.
        """
        per_page = layout.slots_per_page(self.page_size)
        checked = self._pages(path, newer, pages, is_right)
        return visit(((page * per_page, data) for page, data in checked), *arguments)

    def _pages(
        self, path: str | None, newer: dict[int, bytes], pages: Sequence[int], is_right: Callable[[int, bytes], bool]
    ) -> Iterator[tuple[int, bytes]]:
        """Yield (number, data) of the pages that may have slots, ascending. Raises `WrongPage`."""
        remaining = iter([*sorted({*newer, *pages}), sys.maxsize])
        following = next(remaining)  # the next page that must be visited
        page = 0
        while (page := min(following, self._next_page(path, page))) != sys.maxsize:
            if page == following:
                following = next(remaining)
            if page in newer:
                yield page, newer[page]
            else:
                assert path is not None
                data = self.read_page(path, page)
                if not is_right(page, data):
                    raise WrongPage(page, path)
                yield page, data
            page += 1

    def slots(self, path: str, is_right: Callable[[int, bytes], bool]) -> Iterator[tuple[int, bytes, bool]]:
        """Yield (page, its data, whether it is right) of the pages that a damaged and a replaced file still have."""
        for source in (path + DAMAGED_SUFFIX, path):
            if not self._disk.exists(source):
                continue
            self._files.forget(source)
            page = self._next_page(source, 0)
            while page != sys.maxsize:
                data = self.read_page(source, page)
                if data.strip(b"\0"):
                    yield page, data, is_right(page, data)
                page = self._next_page(source, page + 1)

    def _next_page(self, path: str | None, page: int) -> int:
        """Return the first page from `page` on that may have slots in the file; `sys.maxsize` if there is none.

        Skips holes: clients choose entry ids, so a file may consist of a hole of terabytes and one page.
        """
        if path is None:
            return sys.maxsize
        file = self._files.get(path, self._mode)
        offset = layout.page_offset(page, self.page_size)
        data_offset = file.next_data(offset)
        if data_offset >= file.size():
            return sys.maxsize
        return page + (data_offset - offset) // self.page_size

    def write(self, writes: Sequence[IndexWrite]) -> list[int]:
        """Make all changes durable and return the new sizes of the files. At most as many files as may be open.

        Raises: DiskFull, OSError, after which any part may have been written; SyncFailed, which is final.
        """
        new = [change for change in writes if change.is_new]
        self._absent.update(change.path for change in new if change.path not in change.replaces)
        if new:
            self._disk.make_directories(*dict.fromkeys(posixpath.dirname(change.path) for change in new))
        files: list[File] = []
        try:
            for change in writes:
                files.append(self._opened(change))
                _write(files[-1], change)
            sizes = [file.size() for file in files]
            sync_many(self._disk, files)
        except (OSError, DiskFull):
            self._remember([path for change in new if not self._is_removed(path := change.path + NEW_SUFFIX)])
            raise
        finally:
            for file, change in zip(files, writes, strict=False):
                if change.is_new:
                    file.close()
        self._rename(new)
        places = [(posixpath.dirname(change.path), change.is_new) for change in writes]
        directories = dict.fromkeys(place for place, is_new in places if is_new or place not in self._synced)
        sync_many(self._disk, (), list(directories))
        self._synced |= directories
        return sizes

    def _rename(self, new: Sequence[IndexWrite]) -> None:
        """Give new files their names. Remember what a failure leaves. Raises: DiskFull, OSError, SyncFailed."""
        for index, change in enumerate(new):
            try:
                self._absent.discard(change.path)
                if change.replaces:
                    self._replace(change.path, change.replaces)
                else:
                    self._put_in_place(change.path)
            except (OSError, DiskFull):
                self._remember([change.path + MOVING_SUFFIX, *(other.path + NEW_SUFFIX for other in new[index:])])
                raise
            self._absent.difference_update(change.replaces)
            self._release_leftovers(change.path)

    def _remember(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._strays.pop(path, None)
            self._leftovers[path] = None

    def _release_leftovers(self, path: str) -> None:
        """Schedule the removal of what failed attempts to write this ledger's file have left, in any directory."""
        name = posixpath.basename(path) + "."
        for leftover in [path for path in self._leftovers if posixpath.basename(path).startswith(name)]:
            del self._leftovers[leftover]
            self._strays[leftover] = None

    @property
    def stray_count(self) -> int:
        """Files that failures have left and that are not removed yet. May be read from any thread."""
        return len(self._leftovers) + len(self._strays)

    def tidy(self, is_failed: Callable[[str], bool]) -> None:
        """Remove leftovers that are no longer needed. The next call tries again what could not be removed.

        `is_failed`: whether a path is in a failed directory. A start that finds that directory again tidies there.
        """
        for path in [path for path in (*self._leftovers, *self._strays) if is_failed(path)]:
            self._leftovers.pop(path, None)
            self._strays.pop(path, None)
        for path in list(self._strays):
            if self._is_removed(path):
                del self._strays[path]

    def _is_removed(self, path: str) -> bool:
        try:
            self._disk.unlink(path)
        except FileNotFoundError:
            return True
        except (OSError, DiskFull):
            return False
        return True

    def _opened(self, change: IndexWrite) -> File:
        if change.is_new:
            return self._disk.open(change.path + NEW_SUFFIX, "w+")
        return self._files.get(change.path, self._mode)

    def _put_in_place(self, path: str) -> None:
        """Give a new file, which is complete and durable, its name."""
        if self._disk.exists(path):
            self._files.forget(path)
            self._disk.rename(path, path + DAMAGED_SUFFIX)
        self._disk.rename(path + NEW_SUFFIX, path)

    def _replace(self, path: str, replaces: Sequence[str]) -> None:
        """Give a new file its name and remove those that it replaces: never are there two. Source: storage 4.7.

        If there are two already, a start trusts none of them. Then the new one may join them until they are removed.
        """
        for place in (path, *replaces):
            self._files.forget(place)
        others = [place for place in replaces if place != path and place not in self._absent]
        old = [place for place in others if self._disk.exists(place)]
        if len(old) == 1 and not self._disk.exists(path):
            self._disk.rename(path + NEW_SUFFIX, path + MOVING_SUFFIX)
            sync_directory(self._disk, posixpath.dirname(path))
            unlink_all(self._disk, old)
            self._disk.rename(path + MOVING_SUFFIX, path)
            return
        self._disk.rename(path + NEW_SUFFIX, path)
        remove(self._disk, path + MOVING_SUFFIX)  # left by a failed attempt
        if old:
            sync_directory(self._disk, posixpath.dirname(path))
            unlink_all(self._disk, old)

    def note_holes(self, *, has_holes: bool) -> None:
        """Learn whether ledgers may exist that the index does not name. The catalog has that beside index files."""

    def versions(self) -> tuple[int, ...]:
        """Return how many changes of each database are durable; empty for files."""
        return ()

    def remove(self, paths: Sequence[str]) -> None:
        """Remove the files of ledgers durably; no write is in progress. Raises: OSError, SyncFailed."""
        for path in paths:
            self.forget(path)
        remove_index_files(self._disk, paths)

    def forget(self, path: str) -> None:
        """Close a file whose path will name another file or none."""
        self._files.forget(path)
        self._absent.discard(path)
        self._release_leftovers(path)

    def close(self) -> None:
        self._files.close()


def _write(file: File, change: IndexWrite) -> None:
    """Write header and pages at their offsets."""
    if change.is_new:
        file.truncate(0)
    if change.header is not None:
        file.pwrite(layout.pack_header(change.header), 0)
    for first, buffers in _consecutive(change.pages):
        file.pwritev(buffers, layout.page_offset(first, len(buffers[0])))


def _consecutive(pages: Sequence[tuple[int, Buffer]]) -> list[tuple[int, list[Buffer]]]:
    """Group consecutive pages: (number of the first, their data)."""
    groups: list[tuple[int, list[Buffer]]] = []
    for number, data in pages:
        if groups and groups[-1][0] + len(groups[-1][1]) == number:
            groups[-1][1].append(data)
        else:
            groups.append((number, [data]))
    return groups
