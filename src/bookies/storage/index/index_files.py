"""Index files on disk: find, load, read and write them. Blocks; each instance is confined to one worker.

Invariants
- A new file appears under its name only when it is complete and durable: header and pages go to another name first. So
  a crash never leaves a file whose header is cut off.
- Pages are written whole (Q-20); a header is rewritten as a whole; both are synced before `write` returns (F-19).
- A name is durable before `write` returns, also one that an earlier life of the process left: it may have died between
  the rename and the sync of the directory, and then this life sees a file that a power failure takes away.
- A header that cannot be read is never taken for an empty one: the ledger begins afresh as uncertain (F-43).
- What is replaced because it was damaged stays beside the new file, under another name.
- A file that a failure leaves under the name of one that is not complete, or that moves, is known from then on, and
  removed once its ledger's file is where it should be (`tidy`). Until then it may be the only one.

Source: storage 4.
"""

from __future__ import annotations

import posixpath
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from bookies.errors import CorruptRecord, DiskFull
from bookies.runtime.ports import Buffer, Disk, File
from bookies.storage.disks.durable_files import remove, sync_directory, sync_many, unlink_all
from bookies.storage.disks.file_cache import FileCache
from bookies.storage.index import index_format as layout
from bookies.storage.index.catalog_format import checksum_of

T = TypeVar("T")

NEW_SUFFIX = ".new"  # of a file that is not complete; no reader of the format looks at it
MOVING_SUFFIX = ".rloc"  # of one that is complete, while the file that it takes the place of is removed
DAMAGED_SUFFIX = ".damaged"  # of a file that was built again


@dataclass(frozen=True, slots=True)
class LoadedIndex:
    """`header` None: see `problem`. `last_entry_id`: the highest with a slot, -1 without any. `size`: of the file.

    `last_page`, `last_data`: the page with that slot, and all the file has of it; -1 without any.
    """

    header: layout.IndexHeader | None
    size: int
    last_entry_id: int = -1
    last_page: int = -1
    last_data: bytes = b""
    problem: CorruptRecord | None = None


class WrongPage(CorruptRecord):
    """A page of an index file is not what was written there. `page`: its number."""

    def __init__(self, page: int, path: str) -> None:
        super().__init__(f"page {page} is not what was written", path=path, offset=0)
        self.page = page


@dataclass(frozen=True, slots=True)
class IndexWrite:
    """Changes of one ledger's file. `header` None: unchanged. `pages`: (number, whole page), ascending.

    `path` is where the file is or, if `is_new`, will be. `left`: where the one is that the new one takes the place of.
    """

    path: str
    is_new: bool
    header: bytes | None
    pages: list[tuple[int, Buffer]]
    left: str | None = None

    @property
    def size(self) -> int:
        return sum(len(data) for _, data in self.pages) + layout.HEADER_SIZE


def find_index_files(disk: Disk, directories: Sequence[str]) -> dict[int, str]:
    """Ledger id to path of every index file. Ends moves that a crash interrupted. Source: storage 4.1, 4.7."""
    found: dict[int, str] = {}
    moving: dict[int, str] = {}
    for directory in directories:
        for group in _subdirectories(disk, directory):
            for part in _subdirectories(disk, posixpath.join(directory, group)):
                for name in disk.list(posixpath.join(directory, group, part)):
                    path = posixpath.join(directory, group, part, name)
                    if (ledger_id := layout.parse_path(path)) is not None:
                        found.setdefault(ledger_id, path)
                    elif (ledger_id := layout.parse_relocating_path(path)) is not None:
                        moving[ledger_id] = path
                    elif name.endswith(".idx" + NEW_SUFFIX):
                        disk.unlink(path)
    for ledger_id, path in moving.items():
        if ledger_id in found:
            disk.unlink(path)
        else:
            found[ledger_id] = path.removesuffix(MOVING_SUFFIX)
            disk.rename(path, found[ledger_id])
        sync_directory(disk, posixpath.dirname(path))
    return found


def _subdirectories(disk: Disk, path: str) -> list[str]:
    """Names that can be a level of an index path; everything else in `current` is a file."""
    return [name for name in disk.list(path) if len(name) <= 2 and disk.is_directory(posixpath.join(path, name))]


class IndexFiles:
    """Reads index files, and writes them if `mode` is "r+" rather than "r". `page_size` in bytes."""

    def __init__(self, disk: Disk, page_size: int, open_files_max: int, mode: str) -> None:
        self._disk = disk
        self._mode = mode
        self._page_size = page_size
        self._synced: dict[str, None] = {}  # directories whose names from before our start are durable
        self._left: dict[str, None] = {}  # by a failure, of ledgers whose file has still to be written
        self._strays: dict[str, None] = {}  # that nobody needs
        self._files = FileCache(disk, open_files_max)

    def load(self, path: str) -> LoadedIndex:
        """Header and extent. Raises: OSError."""
        file = self._files.get(path, self._mode)
        header, problem = None, None
        try:
            header = layout.parse_header(file.pread(layout.HEADER_SIZE, 0), path=path)
        except CorruptRecord as error:
            problem = error
        size = file.size()
        page = (max(0, size - layout.HEADER_SIZE) - 1) // self._page_size
        while page >= 0:
            data = self.read_page(path, page)
            used = len(data.rstrip(b"\0"))
            if used:
                last = page * layout.slots_per_page(self._page_size) + (used - 1) // layout.SLOT_SIZE
                return LoadedIndex(header, size, last, page, data, problem)
            page -= 1
        return LoadedIndex(header, size, problem=problem)

    def read_page(self, path: str, page: int) -> bytes:
        """A page, or what the file has of it. Raises: OSError."""
        file = self._files.get(path, self._mode)
        data = file.pread(self._page_size, layout.page_offset(page, self._page_size))
        return data[: len(data) - len(data) % layout.SLOT_SIZE]

    def checksums(self, path: str, pages: Sequence[int]) -> dict[int, int] | None:
        """What the file has of these pages: number to crc32, as in the catalog; None: no file. Raises: OSError."""
        try:
            return {page: checksum_of(self.read_page(path, page), self._page_size) for page in pages}
        except FileNotFoundError:
            return None

    def scan_slots(
        self,
        path: str | None,
        newer: dict[int, bytes],
        pages: Sequence[int],
        is_right: Callable[[int, bytes], bool],
        look: Callable[..., T],
        *arguments: object,
    ) -> T:
        """Have `look` (see `index_looks`) go through the pages of a ledger.

        `newer`: pages that replace those of the file. `pages`: that are known to be in the file, ascending; it may have
        others. Raises: OSError; `WrongPage`.
        """
        per_page = layout.slots_per_page(self._page_size)
        found = self._pages(path, newer, pages, is_right)
        return look(((page * per_page, data) for page, data in found), *arguments)

    def _pages(
        self, path: str | None, newer: dict[int, bytes], pages: Sequence[int], is_right: Callable[[int, bytes], bool]
    ) -> Iterator[tuple[int, bytes]]:
        """(number, data) of the pages that may have slots, ascending. Raises `WrongPage`."""
        remaining = iter([*sorted({*newer, *pages}), sys.maxsize])
        following = next(remaining)  # of those that have to be looked at
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
        """(page, its data, whether it is right) of what a damaged file, and one put aside, still have."""
        for each in (path + DAMAGED_SUFFIX, path):
            if not self._disk.exists(each):
                continue
            self._files.forget(each)
            page = self._next_page(each, 0)
            while page != sys.maxsize:
                data = self.read_page(each, page)
                if data.strip(b"\0"):
                    yield page, data, is_right(page, data)
                page = self._next_page(each, page + 1)

    def _next_page(self, path: str | None, page: int) -> int:
        """The first page from `page` on that may have slots in the file; `sys.maxsize` when there is none.

        A client may give an entry any id, so a file may consist of a hole of terabytes and one page.
        """
        if path is None:
            return sys.maxsize
        file = self._files.get(path, self._mode)
        offset = layout.page_offset(page, self._page_size)
        found = file.next_data(offset)
        if found >= file.size():
            return sys.maxsize
        return page + (found - offset) // self._page_size

    def write(self, writes: Sequence[IndexWrite]) -> list[int]:
        """Make all of it durable; the new sizes of the files. At most as many files as may be open.

        Raises: DiskFull, OSError, after which any part may have been written; SyncFailed, which is final.
        """
        new = [each for each in writes if each.is_new]
        if new:
            self._disk.make_directories(*dict.fromkeys(posixpath.dirname(each.path) for each in new))
        files: list[File] = []
        try:
            for each in writes:
                files.append(self._opened(each))
                _write(files[-1], each)
            sizes = [file.size() for file in files]
            sync_many(self._disk, files)
        except (OSError, DiskFull):
            self._leave([path for each in new if not self._is_removed(path := each.path + NEW_SUFFIX)])
            raise
        finally:
            for file, each in zip(files, writes, strict=False):
                if each.is_new:
                    file.close()
        self._name(new)
        places = [(posixpath.dirname(each.path), each.is_new) for each in writes]
        directories = dict.fromkeys(place for place, is_new in places if is_new or place not in self._synced)
        sync_many(self._disk, (), list(directories))
        self._synced |= directories
        return sizes

    def _name(self, new: Sequence[IndexWrite]) -> None:
        """Give new files their names; what a failure leaves is noted. Raises: DiskFull, OSError, SyncFailed."""
        for index, each in enumerate(new):
            try:
                if each.left is None:
                    self._put_in_place(each.path)
                else:
                    self._put_in_place_of(each.path, each.left)
            except (OSError, DiskFull):
                self._leave([each.path + MOVING_SUFFIX, *(other.path + NEW_SUFFIX for other in new[index:])])
                raise
            self._may_go(each.path)

    def _leave(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._strays.pop(path, None)
            self._left[path] = None

    def _may_go(self, path: str) -> None:
        """What was left of earlier tries to write this ledger's file, wherever that was, is of no use any more."""
        name = posixpath.basename(path) + "."
        for each in [each for each in self._left if posixpath.basename(each).startswith(name)]:
            del self._left[each]
            self._strays[each] = None

    @property
    def stray_count(self) -> int:
        """Files that failures have left, and that are not removed yet; from any thread."""
        return len(self._left) + len(self._strays)

    def tidy(self, is_failed: Callable[[str], bool]) -> None:
        """Remove what is of no use; what cannot be removed is tried again the next time.

        `is_failed`: whether a path is in a directory that was given up; a start that finds that again tidies there.
        """
        for path in [each for each in (*self._left, *self._strays) if is_failed(each)]:
            self._left.pop(path, None)
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
        """The new file is complete and durable: give it its name."""
        if self._disk.exists(path):
            self._files.forget(path)
            self._disk.rename(path, path + DAMAGED_SUFFIX)
        self._disk.rename(path + NEW_SUFFIX, path)

    def _put_in_place_of(self, path: str, left: str) -> None:
        """As before, and remove the file in another directory; at no moment are there two. Source: storage 4.7."""
        self._files.forget(left)
        self._files.forget(path)
        if path != left and self._disk.exists(left):
            self._disk.rename(path + NEW_SUFFIX, path + MOVING_SUFFIX)
            sync_directory(self._disk, posixpath.dirname(path))
            unlink_all(self._disk, [left])
            self._disk.rename(path + MOVING_SUFFIX, path)
        else:
            self._disk.rename(path + NEW_SUFFIX, path)
            remove(self._disk, path + MOVING_SUFFIX)  # of a try that failed

    def forget(self, path: str) -> None:
        """Close a file whose path will name another one, or none."""
        self._files.forget(path)
        self._may_go(path)

    def close(self) -> None:
        self._files.close()


def _write(file: File, change: IndexWrite) -> None:
    """Header and pages to where they belong."""
    if change.is_new:
        file.truncate(0)
    if change.header is not None:
        file.pwrite(change.header, 0)
    for first, buffers in _consecutive(change.pages):
        file.pwritev(buffers, layout.page_offset(first, len(buffers[0])))


def _consecutive(pages: Sequence[tuple[int, Buffer]]) -> list[tuple[int, list[Buffer]]]:
    """Pages that follow each other, together: (number of the first, their data)."""
    groups: list[tuple[int, list[Buffer]]] = []
    for number, data in pages:
        if groups and groups[-1][0] + len(groups[-1][1]) == number:
            groups[-1][1].append(data)
        else:
            groups.append((number, [data]))
    return groups
