"""(ledger, entry) -> location, and what is known of each ledger: key, fenced flag, explicit LAC.

In memory: every ledger that was touched, and pages of its slots. A page is the whole truth about its slots; clean pages
may be dropped, dirty ones stay until they are durable. Everything lives on the loop's thread; workers only get frozen
bytes and paths, and bring bytes back.

Invariants
- A ledger's header is read before anything in it is answered or changed (F-22); what could not be read stays an error
  for every access (F-43).
- `_dirty` names every ledger with a dirty header or page; all of them are written and synced by each checkpoint, with
  or without entries (F-19, F-20, F-21). A ledger leaves it only after that succeeded for exactly what is in memory.
- `freeze` fixes the pages to be written before the entry logs are synced, so that no slot becomes durable before the
  bytes it names (R-2): a page changed later is copied first, and stays dirty.
- Only one load of a page is under way at a time, and a loaded page is never put over one that is in memory.

Source: storage 4.4 to 4.6, 5.2, 5.5.
"""

from __future__ import annotations

import asyncio
import dataclasses
import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from bookies.config import BookieConfig
from bookies.errors import BookKeeperError, LedgerUnknownToBookie, ReadFailed
from bookies.runtime.ports import Buffer, Runtime, Worker
from bookies.storage import index_format as layout
from bookies.storage.index_files import IndexFiles, IndexWrite, LoadedIndex
from bookies.storage.readers import Readers

PAGE_OVERHEAD = 300  # bytes of Python objects for each page
LEDGERS_MAX = 50_000  # ledgers kept in memory although nobody uses them
WRITE_FILES_MAX = 64  # index files written by one call of the worker
WRITE_SIZE_MAX = 2 << 20  # bytes, likewise


class Page:
    """Slots of consecutive entries. `data` may be shorter than a page: the rest is missing entries."""

    __slots__ = ("data", "is_dirty", "is_frozen")

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.is_dirty = False
        self.is_frozen = False  # `data` is being written: copy it before changing it


@dataclass(slots=True)
class Ledger:
    """What this bookie knows of one ledger.

    `path`: of the index file, None until there is one; `size`: its bytes. `last_add_confirmed`: the greatest LAC seen
    in this process; what the last entry in the index says counts too while `is_lac_known` is False.
    """

    ledger_id: int
    header: layout.IndexHeader
    path: str | None = None
    size: int = 0
    last_entry_id: int = -1
    last_add_confirmed: int = -1
    is_lac_known: bool = True
    is_header_dirty: bool = False
    is_key_logged: bool = False  # a LEDGER_KEY record of this process precedes whatever is queued from now on
    is_fence_pending: bool = False  # its FENCE record may not be durable yet
    is_deleted: bool = False  # the index does not know it any more; whoever still holds this object has to let go
    users: int = 0  # coroutines that keep hold of this object while they wait
    pages: dict[int, Page] = field(default_factory=dict)
    frozen: dict[int, bytearray] | None = None


class LedgerIndex:
    """All ledgers of a bookie. Owned by the loop's thread.

    `writer` runs on the checkpoint's worker. `clean_size`, `dirty_size`: bytes of pages in memory.
    """

    def __init__(self, runtime: Runtime, config: BookieConfig, directories: Sequence[str], readers: Readers) -> None:
        self.clean_size = 0
        self.dirty_size = 0
        self._random = runtime.random
        self._page_size = config.index_page_size
        self.slots_per_page = self._per_page = layout.slots_per_page(config.index_page_size)
        self._cache_size = config.index_cache_size
        self._directories = list(directories)
        self._readers = readers
        self._files = IndexFiles(runtime.disk, config.index_page_size, config.open_files_max, "r+")
        self._paths: dict[int, str] = {}
        self._ledgers: dict[int, Ledger] = {}
        self._damaged: dict[int, BookKeeperError] = {}
        self._loading: dict[int, asyncio.Future[LoadedIndex]] = {}
        self._loading_pages: dict[tuple[int, int], asyncio.Future[bytes]] = {}
        self._clean: dict[tuple[int, int], Page] = {}  # the least recently used first
        self._dirty: dict[int, Ledger] = {}

    # -- ledgers -------------------------------------------------------------------------------------------------
    def found(self, paths: dict[int, str]) -> None:
        """What `find_index_files` found at the start."""
        self._paths = paths

    def ledger_ids(self) -> Iterator[int]:
        """Every ledger, in no particular order."""
        yield from self._paths
        yield from (ledger_id for ledger_id in self._ledgers if ledger_id not in self._paths)

    def is_known(self, ledger_id: int) -> bool:
        return ledger_id in self._ledgers or ledger_id in self._paths

    def get(self, ledger_id: int) -> Ledger | None:
        """The ledger if it is in memory."""
        return self._ledgers.get(ledger_id)

    def create(self, ledger_id: int, header: layout.IndexHeader) -> Ledger:
        """A ledger nobody knew."""
        assert not self.is_known(ledger_id)
        ledger = self._ledgers[ledger_id] = Ledger(ledger_id, header)
        self.set_header(ledger, header)
        return ledger

    def set_header(self, ledger: Ledger, header: layout.IndexHeader) -> None:
        """Change what the header says; durable with the next checkpoint. The caller journals the change."""
        ledger.header = header
        ledger.is_header_dirty = True
        self._dirty[ledger.ledger_id] = ledger

    def set_explicit_lac(self, ledger: Ledger, body: bytes) -> None:
        """The latest one counts, even if it is smaller; a header without room for it becomes one with."""
        header = dataclasses.replace(ledger.header, explicit_lac=body, version=layout.VERSION)
        self.set_header(ledger, header)
        ledger.last_add_confirmed = max(ledger.last_add_confirmed, _lac_of(body))

    async def load(self, ledger_id: int) -> Ledger:
        """The ledger, read from its index file if need be.

        Raises: LedgerUnknownToBookie; ReadFailed when the file cannot be read, now and ever after.
        """
        ledger = self._ledgers.get(ledger_id)
        while ledger is None:
            if (damage := self._damaged.get(ledger_id)) is not None:
                raise ReadFailed(f"index file: {damage}", ledger_id=ledger_id) from damage
            path = self._paths.get(ledger_id)
            if path is None:
                raise LedgerUnknownToBookie("no such ledger here", ledger_id=ledger_id)
            future = self._loading.get(ledger_id)
            if future is None:
                future = self._loading[ledger_id] = self._readers.load_index(ledger_id, path)
                future.add_done_callback(partial(self._loaded, ledger_id, path))
            try:
                await asyncio.shield(future)
            except OSError as error:
                raise ReadFailed(f"index file: {error}", ledger_id=ledger_id) from error
            except BookKeeperError:
                pass  # `_loaded` remembers it
            # Awaiting a future that is done yields to nobody, not even to its own callback.
            self._loaded(ledger_id, path, future)
            ledger = self._ledgers.get(ledger_id)
        return ledger

    def _loaded(self, ledger_id: int, path: str, future: asyncio.Future[LoadedIndex]) -> None:
        """What the file says becomes what is known, once; whoever comes first does it."""
        if self._loading.get(ledger_id) is not future:
            return
        del self._loading[ledger_id]
        if future.cancelled():
            return
        error = future.exception()
        if isinstance(error, BookKeeperError):
            self._damaged[ledger_id] = error
        if error is None and ledger_id not in self._ledgers:
            self._adopt(ledger_id, path, future.result())

    def _adopt(self, ledger_id: int, path: str, loaded: LoadedIndex) -> Ledger:
        explicit_lac = loaded.header.explicit_lac
        ledger = Ledger(
            ledger_id,
            loaded.header,
            path,
            loaded.size,
            loaded.last_entry_id,
            _lac_of(explicit_lac) if explicit_lac else -1,
            is_lac_known=loaded.last_entry_id < 0,
        )
        self._ledgers[ledger_id] = ledger
        return ledger

    async def repair(self, ledger_id: int, header: layout.IndexHeader, worker: Worker) -> Ledger | None:
        """Give a ledger whose header is cut off this one; None if that is not what is wrong with it (F-18)."""
        if not isinstance(self._damaged.get(ledger_id), layout.TruncatedHeader):
            return None
        path = self._paths[ledger_id]
        loaded = await worker.run(self._files.repair_header, path, header)
        del self._damaged[ledger_id]
        return self._adopt(ledger_id, path, loaded)

    def path_of(self, ledger_id: int) -> str | None:
        """Where the ledger's file is, if it has one."""
        return self._paths.get(ledger_id)

    def remove(self, ledger_id: int) -> None:
        """Drop all that is known of a ledger whose file is gone. No write is under way."""
        self._paths.pop(ledger_id, None)
        self._damaged.pop(ledger_id, None)
        self._loading.pop(ledger_id, None)
        self._dirty.pop(ledger_id, None)
        ledger = self._ledgers.pop(ledger_id, None)
        if ledger is not None:
            assert ledger.frozen is None
            ledger.is_deleted = True
            for number, page in ledger.pages.items():
                size = len(page.data) + PAGE_OVERHEAD
                if page.is_dirty:
                    self.dirty_size -= size
                else:
                    del self._clean[ledger_id, number]
                    self.clean_size -= size
            ledger.pages.clear()
            for key in [key for key in self._loading_pages if key[0] == ledger_id]:
                del self._loading_pages[key]

    def forget_files(self, paths: Sequence[str]) -> None:
        """Close the files of these paths. On the checkpoint's worker."""
        for path in paths:
            self._files.forget(path)

    def forget_idle(self, is_idle: Callable[[int], bool]) -> None:
        """Drop ledgers of which nothing but their file is needed, the oldest first, when there are many."""
        excess = len(self._ledgers) - LEDGERS_MAX
        if excess <= 0:
            return
        idle = (
            ledger_id
            for ledger_id, ledger in self._ledgers.items()
            if ledger_id in self._paths and ledger_id not in self._dirty
            if not (ledger.pages or ledger.users or ledger.is_fence_pending) and is_idle(ledger_id)
        )
        for ledger_id in [ledger_id for ledger_id, _ in zip(idle, range(excess), strict=False)]:
            del self._ledgers[ledger_id]

    # -- slots ---------------------------------------------------------------------------------------------------
    def cached_slots(self, ledger: Ledger, first: int, count: int) -> bytes | None:
        """The slots of up to `count` entries from `first` on, within one page; None if it has to be read."""
        number, index = divmod(first, self._per_page)
        page = ledger.pages.get(number)
        if page is None:
            return None if self._is_in_file(ledger, number) else b""
        if not page.is_dirty:
            key = (ledger.ledger_id, number)
            if (clean := self._clean.pop(key, None)) is not None:
                self._clean[key] = clean
        count = min(count, self._per_page - index)
        return bytes(page.data[index * layout.SLOT_SIZE : (index + count) * layout.SLOT_SIZE])

    async def slots(self, ledger: Ledger, first: int, count: int) -> bytes:
        """As `cached_slots`, but reads the page. Raises: ReadFailed; LedgerUnknownToBookie."""
        while (found := self.cached_slots(ledger, first, count)) is None:
            if ledger.is_deleted:
                break
            try:
                await self._load_page(ledger, first // self._per_page)
            except OSError as error:
                if not ledger.is_deleted:
                    raise ReadFailed(f"index page: {error}", ledger_id=ledger.ledger_id, entry_id=first) from error
        if found is None or ledger.is_deleted:
            raise LedgerUnknownToBookie("the ledger was deleted meanwhile", ledger_id=ledger.ledger_id)
        return found

    async def install(self, ledger_id: int, entry_ids: Sequence[int], slots: bytes) -> None:
        """Set the slots of entries (ascending ids); those that were set before now name the new place.

        Raises: OSError when a page cannot be read.
        """
        ledger = self._ledgers[ledger_id]
        for first, start, count in _pieces(entry_ids, self._per_page):
            number, index = divmod(first, self._per_page)
            while (page := ledger.pages.get(number)) is None:
                if self._is_in_file(ledger, number):
                    await self._load_page(ledger, number)
                else:
                    self._add_page(ledger, number, b"")
            self._change(ledger, number, page)
            data = page.data
            end = (index + count) * layout.SLOT_SIZE
            if len(data) < end:
                self.dirty_size += end - len(data)
                data.extend(bytes(end - len(data)))
            data[index * layout.SLOT_SIZE : end] = slots[start * layout.SLOT_SIZE : (start + count) * layout.SLOT_SIZE]
        ledger.last_entry_id = max(ledger.last_entry_id, entry_ids[-1])

    async def entry_runs(self, ledger: Ledger) -> list[range]:
        """Maximal runs of entries with a slot. Raises: ReadFailed."""
        newer = {number: bytes(page.data) for number, page in ledger.pages.items() if page.is_dirty}
        try:
            return await self._readers.entry_runs(ledger.ledger_id, ledger.path, newer)
        except OSError as error:
            raise ReadFailed(f"index file: {error}", ledger_id=ledger.ledger_id) from error

    async def move(self, ledger_id: int, first: int, log_id: int, slots: bytes) -> None:
        """Set the slots of consecutive entries from `first` on, but only those that name entry log `log_id` now.

        A deleted ledger has none. Raises: ReadFailed.
        """
        try:
            ledger = await self.load(ledger_id)
        except LedgerUnknownToBookie:
            return
        prefix = log_id.to_bytes(4, "big")
        ledger.users += 1
        try:
            for entry_id, start, count in _pieces(range(first, first + len(slots) // layout.SLOT_SIZE), self._per_page):
                if not await self.slots(ledger, entry_id, 1):
                    continue  # There is no such page, or its rest is missing.
                number, index = divmod(entry_id, self._per_page)
                page, at, size = ledger.pages[number], index * layout.SLOT_SIZE, count * layout.SLOT_SIZE
                new = slots[start * layout.SLOT_SIZE : start * layout.SLOT_SIZE + size]
                old = bytes(page.data[at : at + size])
                merged = _replaced(old, new[: len(old)], prefix)
                if merged != old:
                    self._change(ledger, number, page)
                    page.data[at : at + len(old)] = merged
        except LedgerUnknownToBookie:
            return
        finally:
            ledger.users -= 1

    async def greatest_offsets(self, log_ids: Sequence[int], ledger_ids: Iterable[int] | None = None) -> dict[int, int]:
        """The greatest offset in each of these entry logs that a slot of these ledgers names; None: of all there are.

        Raises: ReadFailed when a part of the index cannot be read, for then nobody knows.
        """
        found: dict[int, int] = {}
        for ledger_id in sorted(self.ledger_ids()) if ledger_ids is None else ledger_ids:
            try:
                ledger = await self.load(ledger_id)
                newer = {number: bytes(page.data) for number, page in ledger.pages.items() if page.is_dirty}
                offsets = await self._readers.greatest_offsets(ledger_id, ledger.path, newer, log_ids)
            except LedgerUnknownToBookie:
                continue  # It was deleted meanwhile.
            except OSError as error:
                raise ReadFailed(f"index file: {error}", ledger_id=ledger_id) from error
            for log_id, offset in offsets.items():
                found[log_id] = max(found.get(log_id, 0), offset)
        return found

    def _is_in_file(self, ledger: Ledger, number: int) -> bool:
        return layout.page_offset(number, self._page_size) < ledger.size

    async def _load_page(self, ledger: Ledger, number: int) -> None:
        key = (ledger.ledger_id, number)
        future = self._loading_pages.get(key)
        if future is None:
            assert ledger.path is not None
            future = self._loading_pages[key] = self._readers.read_page(ledger.ledger_id, ledger.path, number)
            future.add_done_callback(partial(self._page_loaded, ledger, number))
        await asyncio.shield(future)
        self._page_loaded(ledger, number, future)  # As in `load`.

    def _page_loaded(self, ledger: Ledger, number: int, future: asyncio.Future[bytes]) -> None:
        key = (ledger.ledger_id, number)
        if self._loading_pages.get(key) is not future:
            return
        del self._loading_pages[key]
        if not future.cancelled() and future.exception() is None:
            assert number not in ledger.pages
            self._add_page(ledger, number, future.result())

    def _add_page(self, ledger: Ledger, number: int, data: bytes) -> None:
        """Add a clean page, at the expense of older ones."""
        page = ledger.pages[number] = Page(data)
        self._add_clean(ledger, number, page)
        self._evict()

    def _evict(self) -> None:
        """Drop the least recently used clean pages above the budget, but never the youngest."""
        while self.clean_size > max(0, self._cache_size - self.dirty_size) and len(self._clean) > 1:
            (ledger_id, oldest), dropped = next(iter(self._clean.items()))
            del self._clean[ledger_id, oldest]
            del self._ledgers[ledger_id].pages[oldest]
            self.clean_size -= len(dropped.data) + PAGE_OVERHEAD

    def _add_clean(self, ledger: Ledger, number: int, page: Page) -> None:
        page.is_dirty = page.is_frozen = False
        self._clean[ledger.ledger_id, number] = page
        self.clean_size += len(page.data) + PAGE_OVERHEAD

    def _change(self, ledger: Ledger, number: int, page: Page) -> None:
        """The page is about to change."""
        if page.is_frozen:
            page.data = bytearray(page.data)
            page.is_frozen = False
        if not page.is_dirty:
            page.is_dirty = True
            del self._clean[ledger.ledger_id, number]
            size = len(page.data) + PAGE_OVERHEAD
            self.clean_size -= size
            self.dirty_size += size
            self._dirty[ledger.ledger_id] = ledger

    # -- writing -------------------------------------------------------------------------------------------------
    @property
    def is_pressed(self) -> bool:
        """Dirty pages take more than half of the budget."""
        return self.dirty_size > self._cache_size // 2

    @property
    def is_dirty(self) -> bool:
        return bool(self._dirty)

    def freeze(self) -> list[Ledger]:
        """Fix the dirty pages as they are now, for `write`; only one freeze at a time."""
        dirty = list(self._dirty.values())
        for ledger in dirty:
            assert ledger.frozen is None
            ledger.frozen = {}
            for number in sorted(number for number, page in ledger.pages.items() if page.is_dirty):
                page = ledger.pages[number]
                page.is_frozen = True
                ledger.frozen[number] = page.data
        return dirty

    async def write(self, frozen: list[Ledger], worker: Worker) -> None:
        """Make frozen pages and dirty headers durable, in slices. Removes from `frozen` what is done.

        The entry logs that the slots name must be synced. Raises: DiskFull, OSError; SyncFailed, which is final.
        """
        while frozen:
            ledgers: list[Ledger] = []
            writes: list[IndexWrite] = []
            size = 0
            while frozen and len(writes) < WRITE_FILES_MAX and size < WRITE_SIZE_MAX:
                ledgers.append(frozen.pop())
                writes.append(self._write_of(ledgers[-1]))
                size += writes[-1].size
            try:
                sizes = await worker.run(self._files.write, writes)
            except BaseException:
                for ledger, change in zip(ledgers, writes, strict=True):
                    ledger.is_header_dirty = ledger.is_header_dirty or change.header is not None
                frozen.extend(ledgers)
                raise
            for ledger, change, file_size in zip(ledgers, writes, sizes, strict=True):
                self._written(ledger, change, file_size)
            self._evict()

    def _write_of(self, ledger: Ledger) -> IndexWrite:
        assert ledger.frozen is not None
        path = ledger.path or posixpath.join(self._random.choice(self._directories), layout.path_of(ledger.ledger_id))
        header = layout.pack_header(ledger.header) if ledger.is_header_dirty or ledger.path is None else None
        ledger.is_header_dirty = False
        pages: list[tuple[int, Buffer]] = [
            (number, data if len(data) == self._page_size else bytes(data).ljust(self._page_size, b"\0"))
            for number, data in ledger.frozen.items()
        ]
        return IndexWrite(path, ledger.path is None, header, pages)

    def _written(self, ledger: Ledger, change: IndexWrite, file_size: int) -> None:
        """Unless it was changed meanwhile, what was written is clean now."""
        assert ledger.frozen is not None
        ledger.path = self._paths[ledger.ledger_id] = change.path
        ledger.size = max(ledger.size, file_size)
        for number in ledger.frozen:
            page = ledger.pages[number]
            if page.is_frozen:
                self.dirty_size -= len(page.data) + PAGE_OVERHEAD
                self._add_clean(ledger, number, page)
        ledger.frozen = None
        if not ledger.is_header_dirty and not any(page.is_dirty for page in ledger.pages.values()):
            self._dirty.pop(ledger.ledger_id, None)

    def unfreeze(self, frozen: list[Ledger]) -> None:
        """Give up what could not be written; it stays dirty."""
        for ledger in frozen:
            for number in ledger.frozen or ():
                ledger.pages[number].is_frozen = False
            ledger.frozen = None

    def close_files(self) -> None:
        """On the checkpoint's worker."""
        self._files.close()


def _replaced(old: bytes, new: bytes, prefix: bytes) -> bytes:
    """`new` where a slot of `old` is set and begins with these four bytes, otherwise `old`."""
    count = len(old) // layout.SLOT_SIZE
    # Log 0 begins as a missing slot does, so it has to be looked at more closely.
    if any(prefix) and all(old[at :: layout.SLOT_SIZE] == prefix[at : at + 1] * count for at in range(4)):
        return new
    merged = bytearray(old)
    for at in range(0, len(old), layout.SLOT_SIZE):
        if old[at : at + 4] == prefix and any(old[at + 4 : at + 8]):
            merged[at : at + layout.SLOT_SIZE] = new[at : at + layout.SLOT_SIZE]
    return bytes(merged)


def is_vacant(key: bytes) -> bool:
    """Whether a stored master key stands for "not known": it is empty or all zeros. Source: storage F-23."""
    return not key.strip(b"\0")


def _lac_of(explicit_lac: bytes) -> int:
    return int.from_bytes(explicit_lac[8:16], "big", signed=True)


def _pieces(entry_ids: Sequence[int], per_page: int) -> Iterator[tuple[int, int, int]]:
    """Consecutive entries within one page: (first id, its index in `entry_ids`, count)."""
    start, end = 0, len(entry_ids)
    is_range = isinstance(entry_ids, range) and entry_ids.step == 1
    while start < end:
        first = entry_ids[start]
        limit = min(end - start, per_page - first % per_page)
        count = limit if is_range else 1
        while count < limit and entry_ids[start + count] == first + count:
            count += 1
        yield first, start, count
        start += count
