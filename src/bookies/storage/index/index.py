"""The index: (ledger, entry) to location, and each ledger's header (master key, fenced flag, explicit LAC).

Memory holds every ledger that was touched and pages of its slots. A page holds all slots of its range. Clean pages may
be dropped, dirty ones stay until they are durable. The index belongs to the loop's thread; workers receive frozen bytes
and paths, and return bytes.

Invariants
- F-22: load the header before a header field is changed or answered.
- F-43: an index file that is missing, or differs from the catalog, is remembered. A new file is started from what is in
  memory, and its header says STATE_REBUILDING until the entry logs have been read (`rebuild`). Until then the ledger
  serves what it has in memory, in the journal and from new adds, and reports no entry as missing.
- F-19, F-20, F-21: `_dirty` is the explicit set of ledgers with a dirty header or page. Each checkpoint writes and
  syncs all of them, with or without entries. A ledger leaves it only after that succeeded for what is in memory.
- R-2: the entry log is durable before the index that names it. `freeze` fixes the pages to be written before the entry
  logs are synced. A page that changes later is copied first, and stays dirty.
- A page is loaded at most once at a time, and a loaded page never replaces one that is in memory.
- A database accepts single slots, so setting one never reads. A page that is not in memory becomes partial then. All
  but its write treat a partial page as one that is not in memory: they load it, and what memory has is newer. Dropping
  a partial page discards a load in progress, which may have read the database before the write.

Source: storage 4.4 to 4.6, 5.2, 5.5.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

from msgspec.structs import replace

from bookies.config import BookieConfig
from bookies.errors import BookKeeperError, DataUnknown, LedgerUnknownToBookie, ReadFailed
from bookies.runtime.events import Events
from bookies.runtime.ports import Buffer, Runtime, Worker
from bookies.storage.disks import DirectoryHealth
from bookies.storage.index import catalog_format, slot_scans
from bookies.storage.index import index_format as layout
from bookies.storage.index.catalog import Catalog, CatalogFile
from bookies.storage.index.catalog_format import Contents
from bookies.storage.index.catalog_writer import CatalogWriter
from bookies.storage.index.index_files import IndexDamaged, IndexFiles, IndexWrite, LoadedIndex, NewFiles, WrongPage
from bookies.storage.index.index_ledger import Ledger, lac_of
from bookies.storage.index.index_pages import PageCache
from bookies.storage.index.index_places import IndexPlaces
from bookies.storage.index.index_readers import Readers
from bookies.storage.index.rebuild_states import RebuildEvent, RebuildQueue, RebuildState
from bookies.storage.index.slots import by_page, pieces, replaced

T = TypeVar("T")

LEDGERS_MAX = 50_000  # ledgers kept in memory; above it, unused ones are dropped
WRITE_SIZE_MAX = 8 << 20  # bytes written to index files by one call of the worker
PREPARED_AT_ONCE = 32  # files prepared in one iteration of the event loop
SCAN_TRIES = 5  # a page that is written while it is read looks damaged


class LedgerIndex:
    """All ledgers of a bookie. Owned by the loop's thread.

    `writer` runs on the checkpoint's worker. `cache`: pages in memory.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: BookieConfig,
        directories: Sequence[str],
        readers: Readers,
        health: DirectoryHealth | None = None,
        new_files: NewFiles | None = None,
    ) -> None:
        self.cache = PageCache(config.index_cache_size)
        self.damaged_count = 0  # files and pages that turned out to be damaged
        self.slots_per_page = layout.slots_per_page(config.index_page_size)
        self._readers = readers
        new_files = new_files or partial(IndexFiles, runtime.disk, config.index_page_size)
        self._files = new_files(config.open_files_max, "r+")
        self.places = places = IndexPlaces(directories, health, runtime.random, new_files)
        self.catalog = Catalog(config.index_page_size, has_ledgers=not self._files.checks_itself)
        catalog_file = CatalogFile(runtime.disk, places.directories, config.index_page_size)
        self.catalog_writer = CatalogWriter(self.catalog, catalog_file, places.directories, places.health)
        self.rebuilds = RebuildQueue()
        self._events = Events("storage.index", runtime.clock)
        self._ledgers: dict[int, Ledger] = {}
        self._loading: dict[int, asyncio.Future[LoadedIndex]] = {}
        self._loading_pages: dict[tuple[int, int], asyncio.Future[bytes]] = {}
        self._dirty: dict[int, Ledger] = {}

    # -- ledgers -------------------------------------------------------------------------------------------------
    def adopt_files(
        self, paths: dict[int, str], contents: Contents | None, is_deleted: Callable[[int], bool] = lambda _: False
    ) -> None:
        """Take over the files and the catalog found at the start. `is_deleted`: the ledger was removed on purpose."""
        self.places.paths = paths
        self.catalog.adopt(contents)
        if contents is not None and not self.catalog.is_trusted:
            self._events.error("storage.catalog_damaged", problem=contents.problem)
        for ledger_id, known in list(self.catalog.ledgers.items()):
            if ledger_id not in paths and (known.is_fresh or is_deleted(ledger_id)):
                del self.catalog.ledgers[ledger_id]  # The journal covers files not created yet.
                continue
            self.catalog.limbo.follow(ledger_id, header := known.index_header())
            if ledger_id not in paths:
                self.file_missing(ledger_id)
            elif header is not None and header.is_rebuilding:
                self.rebuilds.want(ledger_id)
        for ledger_id in self.places.rivals:
            self.rebuilds.want(ledger_id)

    def read_checksums(self, pages: dict[int, list[int]]) -> dict[int, dict[int, int]]:
        """Return the checksums of these pages in the files. On the checkpoint's worker. Raises: OSError."""
        by_ledger = {
            ledger_id: self._files.checksums(self.places.paths[ledger_id], numbers)
            for ledger_id, numbers in pages.items()
        }
        return {ledger_id: checksums for ledger_id, checksums in by_ledger.items() if checksums is not None}

    def file_missing(self, ledger_id: int) -> None:
        """Schedule the rebuild of a ledger that exists and whose index file is missing."""
        self.places.expect(ledger_id)
        self.rebuilds.want(ledger_id)

    async def distrust(self, ledger_id: int) -> None:
        """Fence a ledger and put it in limbo. Raises: ReadFailed."""
        ledger = await self.load(ledger_id)
        self.catalog.limbo.doubt(ledger_id)
        self.set_header(ledger, ledger.header.with_state(layout.STATE_FENCED | layout.STATE_LIMBO))

    async def mark_uncertain(self, ledger_id: int) -> None:
        """Rebuild a ledger whose file may lack slots without showing it. Existing slots are served meanwhile."""
        with contextlib.suppress(ReadFailed):  # An unreadable ledger reports no entry as missing.
            ledger = await self.load(ledger_id)
            self._doubt(ledger)

    def directory_failed(self, directory: str) -> int:
        """Schedule the rebuild, elsewhere, of the index files of a failed directory. Return their number."""
        self.catalog_writer.directory_failed(directory)
        ledger_ids = self.places.abandon(directory)
        for ledger_id in ledger_ids:
            ledger = self._ledgers.get(ledger_id)
            if ledger is not None and ledger.path is not None:
                self._distrust_file(ledger, "its directory has failed")
            elif ledger is None or ledger.header.is_rebuilding:
                self.rebuilds.want(ledger_id)
        return len(ledger_ids)

    async def rebuild_if_missing(self, ledger_id: int) -> None:
        """Schedule the rebuild of a ledger that has entries in the logs, unless it has an index file.

        Deleted ledgers come back this way until the next collection. The result is durable with the next checkpoint.
        """
        ledger = self._ledgers.get(ledger_id)
        if not self.is_known(ledger_id):
            self.file_missing(ledger_id)
            with contextlib.suppress(ReadFailed):  # The rebuild tries again.
                await self.load(ledger_id)
        elif ledger is not None and ledger_id not in self.places.paths:
            # The ledger is known from the journal alone, which may not have all of it.
            self.places.expect(ledger_id)
            self._doubt(ledger)

    def _doubt(self, ledger: Ledger) -> None:
        """Have the ledger rebuilt, and report none of its entries as missing until then."""
        ledger.take(RebuildEvent.DOUBT)
        self.set_header(ledger, ledger.header.with_state(layout.STATE_REBUILDING))
        self.rebuilds.want(ledger.ledger_id)

    def ledger_ids(self) -> Iterator[int]:
        """Yield every ledger, in no particular order."""
        yield from self.places.paths
        yield from (ledger_id for ledger_id in self._ledgers if ledger_id not in self.places.paths)

    def is_known(self, ledger_id: int) -> bool:
        return ledger_id in self._ledgers or ledger_id in self.places.paths

    @property
    def ledgers(self) -> Mapping[int, Ledger]:
        """Return the ledgers in memory, by id."""
        return self._ledgers

    def get(self, ledger_id: int) -> Ledger | None:
        """Return the ledger if it is in memory."""
        return self._ledgers.get(ledger_id)

    def create(self, ledger_id: int, header: layout.IndexHeader) -> Ledger:
        """Add a ledger that is not known yet."""
        assert not self.is_known(ledger_id)
        if self.catalog.holes:
            header = header.with_state(layout.STATE_FENCED | layout.STATE_LIMBO)
        ledger = self._ledgers[ledger_id] = Ledger(ledger_id, header)
        self.set_header(ledger, header)
        return ledger

    def set_header(self, ledger: Ledger, header: layout.IndexHeader) -> None:
        """Change the header; durable with the next checkpoint. The caller journals the change."""
        ledger.header = header
        ledger.is_header_dirty = True
        self._dirty[ledger.ledger_id] = ledger
        self.catalog.limbo.follow(ledger.ledger_id, header)

    def set_explicit_lac(self, ledger: Ledger, body: bytes) -> None:
        """Set the explicit LAC. The latest one counts, even if it is smaller. A version-0 header becomes version 1."""
        header = replace(ledger.header, explicit_lac=body, version=layout.VERSION)
        self.set_header(ledger, header)
        ledger.last_add_confirmed = max(ledger.last_add_confirmed, lac_of(body))

    async def load(self, ledger_id: int) -> Ledger:
        """Return the ledger, read from its index file if necessary.

        Raises: LedgerUnknownToBookie; DataUnknown while a part of the journal is lost, which may have named the ledger;
        ReadFailed when the file cannot be read.
        """
        ledger = self._ledgers.get(ledger_id)
        while ledger is None:
            path = self.places.paths.get(ledger_id)
            if path is None:
                if self.catalog.holes:
                    raise DataUnknown("a lost part of the journal may have named the ledger", ledger_id=ledger_id)
                raise LedgerUnknownToBookie("this bookie has no such ledger", ledger_id=ledger_id)
            self._start_loads((ledger_id,))
            future = self._loading[ledger_id]
            try:
                await asyncio.shield(future)
            except FileNotFoundError:
                pass  # `_loaded` handles it
            except (OSError, IndexDamaged) as error:
                self.rebuilds.note_damage(error)
                if ledger_id not in self.places.abandoned:
                    raise ReadFailed(f"index file: {error}", ledger_id=ledger_id) from error
            # Awaiting a future that is done does not yield, so its callback may not have run.
            self._loaded(ledger_id, path, future)
            ledger = self._ledgers.get(ledger_id)
        return ledger

    async def load_all(self, ledger_ids: Collection[int]) -> dict[int, BookKeeperError]:
        """Have all these ledgers in memory, read by one call of each worker. Return the errors of `load`, by ledger."""
        failures: dict[int, BookKeeperError] = {}
        # A ledger may leave memory again while others are awaited. The last round waits for none.
        while left := [number for number in ledger_ids if number not in self._ledgers and number not in failures]:
            self._start_loads(left)
            for ledger_id in left:
                try:
                    await self.load(ledger_id)
                except BookKeeperError as error:
                    failures[ledger_id] = error
        return failures

    def _start_loads(self, ledger_ids: Iterable[int]) -> None:
        """Begin to read the index files of ledgers that are not in memory, unless that has begun."""
        paths = self.places.paths
        due = [number for number in ledger_ids if number in paths and number not in self._loading]
        wanted = [(ledger_id, paths[ledger_id], self.catalog.is_vouched(ledger_id)) for ledger_id in due]
        for (ledger_id, path, _), future in zip(wanted, self._readers.load_indexes(wanted), strict=True):
            self._loading[ledger_id] = future
            future.add_done_callback(partial(self._loaded, ledger_id, path))

    def _loaded(self, ledger_id: int, path: str, future: asyncio.Future[LoadedIndex]) -> None:
        """Add the ledger that was read from the file. Runs for the callback and each waiter; the first one does it."""
        if self._loading.get(ledger_id) is not future:
            return
        del self._loading[ledger_id]
        if future.cancelled() or ledger_id in self._ledgers:
            return
        error = future.exception()
        if isinstance(error, FileNotFoundError):
            self._adopt(ledger_id, path, LoadedIndex(None, 0), "the file is missing")
        elif error is None:
            loaded, damage = future.result(), self.catalog.damage_of(ledger_id, future.result())
            if ledger_id in self.places.abandoned:
                damage = damage or "its directory has failed"
            self._adopt(ledger_id, path, loaded, damage)
        elif ledger_id in self.places.abandoned:
            self._adopt(ledger_id, path, LoadedIndex(None, 0), "its directory has failed")

    def _adopt(self, ledger_id: int, path: str, loaded: LoadedIndex, damage: str) -> None:
        header = self.catalog.agreed_header(ledger_id, loaded.header)
        if rivals := self.places.rivals.pop(ledger_id, ()):
            damage = f"{', '.join(rivals)}: as well; which is newer is not known"
            known = self.catalog.ledgers.get(ledger_id)
            if known is None or not (known.header and self.catalog.is_trusted):  # A fence may be in the other file.
                header = header.with_state(layout.STATE_FENCED | layout.STATE_LIMBO)
            if known is not None:
                known.is_stale = True  # A file that agrees with it may be the older one: the logs have to be read.
        ledger = self._ledgers[ledger_id] = Ledger(
            ledger_id,
            header,
            path,
            loaded.size,
            loaded.last_entry_id,
            lac_of(header.explicit_lac) if header.explicit_lac else -1,
            is_lac_known=loaded.last_entry_id < 0,
            is_fence_durable=loaded.problem is None and loaded.header is not None and loaded.header.is_fenced,
        )
        self.catalog.limbo.follow(ledger_id, header)
        if damage:
            ledger.last_entry_id = -1
            self._distrust_file(ledger, damage)
            if rivals:
                self.places.moving[ledger_id] = (path, *rivals)
        elif loaded.header is None or header != loaded.header:
            self._events.warning(
                "storage.index_header_restored", path=path, ledger=ledger_id, problem=str(loaded.problem or "")
            )
            self.set_header(ledger, header)
        if header.is_rebuilding and ledger.rebuild is not RebuildState.DOUBTED:
            ledger.take(RebuildEvent.DOUBT)
            self.rebuilds.want(ledger_id)

    def _distrust_file(self, ledger: Ledger, damage: str) -> None:
        """Stop using the ledger's file. A new one is built from memory and the entry logs."""
        ledger_id = ledger.ledger_id
        self.damaged_count += 1
        path = self.places.paths.get(ledger_id, "")
        self._events.error("storage.index_damaged", path=path, ledger=ledger_id, problem=damage)
        self._detach_file(ledger)
        self.places.moving.pop(ledger_id, None)
        ledger.is_lac_known = False
        self._readers.forget_indexes([(ledger_id, self.places.paths[ledger_id])])
        self._doubt(ledger)

    def _detach_file(self, ledger: Ledger) -> None:
        """Mark all pages in memory dirty, so that the next write creates a new file from them."""
        for number, page in ledger.pages.items():
            self.change(ledger, number)
            if page.is_partial:
                self.cache.complete(page, b"")
            page.low, page.high = 0, len(page.data) // layout.SLOT_SIZE
        for key in [key for key in self._loading_pages if key[0] == ledger.ledger_id]:
            del self._loading_pages[key]  # Pages of the old file are discarded when they arrive.
        ledger.path, ledger.size = None, 0

    def start_move(self, ledger: Ledger, pages: Sequence[tuple[int, bytes]]) -> None:
        """Have the next write create the ledger's file in another directory.

        `pages`: (entry id of the first slot, data) of all slots. No write is in progress.
        """
        assert ledger.path is not None
        for first_entry_id, data in pages:
            if (number := first_entry_id // self.slots_per_page) not in ledger.pages:
                self.cache.add(ledger, number, data)
            self.change(ledger, number)
        self.places.moving[ledger.ledger_id] = (ledger.path,)
        self._detach_file(ledger)
        self.set_header(ledger, ledger.header)

    async def mark_all_uncertain(self, text: str, is_meant: Callable[[int], bool] = lambda _: True) -> None:
        """Fence every ledger and put it in limbo: a lost part of a journal may have named any. `text`: the reason.

        `is_meant`: whether what is lost may have named a ledger.
        """
        self.catalog.add_hole(text)
        for ledger_id in [ledger_id for ledger_id in self.ledger_ids() if is_meant(ledger_id)]:
            await self.distrust(ledger_id)

    def path_of(self, ledger_id: int) -> str | None:
        """Return the path of the ledger's file, if it has one."""
        return self.places.paths.get(ledger_id)

    def remove(self, ledger_id: int) -> None:
        """Drop a ledger whose file was removed. No write is in progress."""
        self.places.forget(ledger_id)
        self.rebuilds.forget(ledger_id)
        self.catalog.delete(ledger_id)
        self.catalog.limbo.follow(ledger_id, None)
        self._loading.pop(ledger_id, None)
        self._dirty.pop(ledger_id, None)
        ledger = self._ledgers.pop(ledger_id, None)
        if ledger is not None:
            assert ledger.frozen is None
            ledger.is_deleted = True
            self.cache.forget(ledger)
            for key in [key for key in self._loading_pages if key[0] == ledger_id]:
                del self._loading_pages[key]

    def remove_files(self, paths: Sequence[str]) -> None:
        """Remove the files at these paths durably. On the checkpoint's worker. Raises: OSError, SyncFailed."""
        self._files.remove(paths)

    def forget_idle(self, is_idle: Callable[[int], bool]) -> None:
        """Drop idle ledgers from memory, the oldest first, while there are more than `LEDGERS_MAX`."""
        excess = len(self._ledgers) - LEDGERS_MAX
        if excess <= 0:
            return
        idle = (
            ledger_id
            for ledger_id, ledger in self._ledgers.items()
            if ledger_id in self.places.paths and ledger_id not in self._dirty
            if not (ledger.pages or ledger.users or ledger.is_fence_pending or ledger.header.is_rebuilding)
            if is_idle(ledger_id)
        )
        for ledger_id in [ledger_id for ledger_id, _ in zip(idle, range(excess), strict=False)]:
            del self._ledgers[ledger_id]

    # -- slots ---------------------------------------------------------------------------------------------------
    def cached_slots(self, ledger: Ledger, first: int, count: int) -> bytes | None:
        """Return the slots of up to `count` entries from `first` on, within one page; None if it has to be read."""
        number, index = divmod(first, self.slots_per_page)
        page = ledger.pages.get(number)
        if page is None or page.is_partial:
            return None if self._is_in_file(ledger, number) else b""
        if not page.is_dirty:
            self.cache.touch(ledger, number)
        count = min(count, self.slots_per_page - index)
        return bytes(page.data[index * layout.SLOT_SIZE : (index + count) * layout.SLOT_SIZE])

    async def slots(self, ledger: Ledger, first: int, count: int) -> bytes:
        """Do as `cached_slots`, reading the page if necessary. Raises: ReadFailed; LedgerUnknownToBookie."""
        while (slots := self.cached_slots(ledger, first, count)) is None:
            if ledger.is_deleted:
                break
            try:
                await self._load_page(ledger, first // self.slots_per_page)
            except FileNotFoundError:
                pass  # `_page_loaded` handles it
            except (OSError, IndexDamaged) as error:
                self.rebuilds.note_damage(error)
                if not ledger.is_deleted:
                    raise ReadFailed(f"index page: {error}", ledger_id=ledger.ledger_id, entry_id=first) from error
        if slots is None or ledger.is_deleted:
            raise LedgerUnknownToBookie("the ledger was deleted during the read", ledger_id=ledger.ledger_id)
        return slots

    async def install(self, ledger_id: int, entry_ids: Sequence[int], slots: bytes) -> None:
        """Set the slots of entries (ascending ids), also those set before. Raises: OSError; LedgerUnknownToBookie."""
        ledger = self._ledgers.get(ledger_id)
        for number, start, stop in by_page(entry_ids, self.slots_per_page):
            part = slots[start * layout.SLOT_SIZE : stop * layout.SLOT_SIZE]
            while ledger is None or ledger.is_deleted or not self._set(ledger, number, entry_ids[start:stop], part):
                if ledger is None or ledger.is_deleted:
                    raise LedgerUnknownToBookie("the ledger was deleted during the write", ledger_id=ledger_id)
                await self._load_page(ledger, number)

    def try_install(self, ledger_id: int, entry_ids: Sequence[int], slots: bytes) -> bool:
        """Do as `install` if all slots are on one page that need not be read; otherwise return False."""
        ledger, number = self._ledgers.get(ledger_id), entry_ids[0] // self.slots_per_page
        is_one_page = ledger is not None and entry_ids[-1] // self.slots_per_page == number
        return is_one_page and self._set(ledger, number, entry_ids, slots)  # type: ignore[arg-type]

    def _set(self, ledger: Ledger, number: int, entry_ids: Sequence[int], slots: bytes) -> bool:
        """Set slots of one page. Return False if the page has to be read first."""
        page, first, last = ledger.pages.get(number), entry_ids[0], entry_ids[-1]
        if page is None:
            is_stored = self._is_in_file(ledger, number)
            if is_stored and not self._files.checks_itself:
                return False
            page = self.cache.add(ledger, number, b"")
            if is_stored:
                page.is_partial, page.first = True, first - number * self.slots_per_page
        self.change(ledger, number)
        if last - first == len(entry_ids) - 1:
            self.cache.set_slots(page, first - number * self.slots_per_page, slots)
        else:
            self.cache.scatter_slots(page, entry_ids, number * self.slots_per_page, slots)
        ledger.last_entry_id = max(ledger.last_entry_id, last)
        return True

    async def entry_runs(self, ledger: Ledger) -> list[range]:
        """Return the maximal runs of entries with a slot. Raises: ReadFailed; DataUnknown when slots may be missing."""
        if ledger.header.is_uncertain:
            raise DataUnknown("the bookie cannot determine which entries it has", ledger_id=ledger.ledger_id)
        return await self.scan_slots(ledger, slot_scans.entry_runs)

    async def scan_slots(self, ledger: Ledger, visit: Callable[..., T], *arguments: object) -> T:
        """Return `visit`'s result on a ledger's pages (`slot_scans`). Raises: ReadFailed, also for lost slots."""
        for attempt in range(SCAN_TRIES):
            if ledger.lacks_entries:
                break
            while (partial := next((number for number, page in ledger.pages.items() if page.is_partial), -1)) >= 0:
                await self.slots(ledger, partial * self.slots_per_page, 1)
            newer = {number: bytes(page.data) for number, page in ledger.pages.items() if page.is_dirty}
            known = self.catalog.ledgers.get(ledger.ledger_id)
            pages = sorted(known.pages) if known is not None and ledger.path is not None else []
            is_right, path = catalog_format.checker(known, self._files.page_size), ledger.path
            try:
                return await self._readers.scan_slots(ledger.ledger_id, path, newer, pages, is_right, visit, *arguments)
            except WrongPage as error:
                page = ledger.pages.get(error.page)
                if attempt and page is not None and not page.is_dirty:
                    self.damaged_count += 1
                    self._events.error("storage.index_page_restored", path=ledger.path, page=error.page)
                    self.change(ledger, error.page)  # The page in memory is intact: write it again.
                await self.slots(ledger, error.page * self.slots_per_page, 1)  # loads and checks the page
            except (OSError, IndexDamaged) as error:
                self.rebuilds.note_damage(error)
                if ledger.path != path or ledger.is_deleted:
                    continue  # The file has moved, or was removed with the ledger.
                raise ReadFailed(f"index file: {error}", ledger_id=ledger.ledger_id) from error
        raise ReadFailed("index file: it is damaged and not rebuilt yet", ledger_id=ledger.ledger_id)

    async def move(self, ledger_id: int, first: int, log_id: int, slots: bytes) -> None:
        """Set the slots of consecutive entries from `first` on, but only those that name entry log `log_id` now.

        R-19: location updates of compaction are compare-and-set. A deleted ledger has no slots. Raises: ReadFailed.
        """
        try:
            ledger = await self.load(ledger_id)
        except (LedgerUnknownToBookie, DataUnknown):  # The latter while a part of the journal is lost.
            return
        prefix = log_id.to_bytes(4, "big")
        with ledger, contextlib.suppress(LedgerUnknownToBookie):
            for entry_id, start, count in pieces(
                range(first, first + len(slots) // layout.SLOT_SIZE), self.slots_per_page
            ):
                if not await self.slots(ledger, entry_id, 1):
                    continue  # There is no such page, or its rest is missing.
                number, index = divmod(entry_id, self.slots_per_page)
                page, at, size = ledger.pages[number], index * layout.SLOT_SIZE, count * layout.SLOT_SIZE
                new = slots[start * layout.SLOT_SIZE : start * layout.SLOT_SIZE + size]
                old = bytes(page.data[at : at + size])
                merged = replaced(old, new[: len(old)], prefix)
                if merged != old:
                    self.change(ledger, number)
                    self.cache.set_slots(page, index, merged)

    def _is_in_file(self, ledger: Ledger, number: int) -> bool:
        return layout.page_offset(number, self._files.page_size) < ledger.size

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
        if future.cancelled() or ledger.path is None:
            return
        if isinstance(error := future.exception(), FileNotFoundError):
            self._distrust_file(ledger, "the file is missing")
        elif isinstance(error, OSError) and error.errno == errno.EIO:
            self._distrust_file(ledger, f"page {number} cannot be read")  # A retry would block every flush.
        elif error is None:
            if self.catalog.is_right(ledger.ledger_id, number, future.result()):
                self.cache.loaded(ledger, number, future.result())
            else:
                self._distrust_file(ledger, f"the checksum of page {number} is wrong")

    def change(self, ledger: Ledger, number: int) -> None:
        """Prepare a page in memory for a change; the next write writes it."""
        if self.cache.change(ledger, number):
            self._dirty[ledger.ledger_id] = ledger

    # -- writing -------------------------------------------------------------------------------------------------
    @property
    def is_dirty(self) -> bool:
        return bool(self._dirty)

    def dirty(self) -> list[Ledger]:
        """Return the ledgers that the next write writes."""
        return list(self._dirty.values())

    def freeze(self) -> list[Ledger]:
        """Fix the dirty pages as they are now, for `write`. Only one freeze at a time."""
        dirty, is_sliced = self.dirty(), self._files.checks_itself
        for ledger in dirty:
            assert ledger.frozen is None
            ledger.frozen = {}
            ledger.take(RebuildEvent.FREEZE)
            for number, page in sorted(ledger.pages.items()):
                if page.is_dirty:
                    page.is_frozen = True
                    ledger.frozen[number] = (page.low, page.changed_slots()) if is_sliced else (0, page.data)
        return dirty

    async def write(self, frozen: list[Ledger], worker: Worker) -> bool:
        """Make frozen pages and dirty headers durable, in slices. Remove from `frozen` what is done.

        Return whether rebuilt slots are among them; then the headers of their ledgers have to be written once more.
        R-2: the entry logs that the slots name must be synced. Raises: DiskFull, OSError; SyncFailed, which is final.
        """
        has_saved_rebuilt = False
        await self.catalog_writer.move(worker)
        while frozen or self.catalog.has_pending:
            ledgers: list[Ledger] = []
            writes: list[IndexWrite] = []
            notes = b""
            size = 0
            try:
                while frozen and len(writes) < self._files.written_max and size < WRITE_SIZE_MAX:
                    writes.append(self._write_of(frozen[-1]))
                    ledgers.append(frozen.pop())
                    size += writes[-1].size
                    if not len(writes) % PREPARED_AT_ONCE:
                        await asyncio.sleep(0)
                notes = self.catalog.take()
                sizes = await worker.run(self._write, notes, writes)
            except BaseException:
                self.catalog.give_back(notes)
                for ledger, change in zip(ledgers, writes, strict=True):
                    ledger.is_header_dirty = ledger.is_header_dirty or change.header is not None
                    if change.is_new:
                        self.places.note_attempt(ledger.ledger_id, change.path)
                frozen.extend(ledgers)
                raise
            self._forget_replaced(ledgers, writes)
            for ledger, change, file_size in zip(ledgers, writes, sizes, strict=True):
                has_saved_rebuilt |= self._written(ledger, change, file_size)
            self.cache.evict()
        self.catalog.note_versions(self._files.versions())
        if self._files.stray_count:
            await worker.run(self._files.tidy, self.places.health.is_failed)
        return has_saved_rebuilt

    @property
    def stray_count(self) -> int:
        """Files that failed attempts to create or move index files have left. Each write tries again to remove them."""
        return self._files.stray_count

    def _write(self, notes: bytes, writes: list[IndexWrite]) -> list[int]:
        """Make the catalog's records durable, then write the files. On the checkpoint's worker."""
        if notes:
            self.catalog_writer.file.append(notes, is_durable=True)
        self._files.note_holes(has_holes=bool(self.catalog.holes))
        if self.catalog.has_ledgers:
            healthy = self.places.health.healthy(self.places.directories)
            self.catalog_writer.file.note_holes(self.catalog.holes, healthy)
        return self._files.write(writes)

    def _write_of(self, ledger: Ledger) -> IndexWrite:
        assert ledger.frozen is not None
        path, replaces = self.places.for_write(ledger.ledger_id, ledger.path)
        header = ledger.header.with_state(layout.STATE_REBUILDING) if ledger.has_unsaved_slots else ledger.header
        is_header_due = ledger.is_header_dirty or ledger.path is None
        ledger.is_header_dirty = False
        size, frozen = self._files.padded_size, ledger.frozen.items()
        pages: list[tuple[int, Buffer]] = [
            (number, data.ljust(size, b"\0") if size else data) for number, (_, data) in frozen
        ]
        firsts = {number: first for number, (first, _) in frozen}
        change = IndexWrite(path, ledger.path is None, header if is_header_due else None, pages, replaces, firsts)
        self.catalog.stage(ledger.ledger_id, change, header)
        return change

    def _forget_replaced(self, ledgers: Sequence[Ledger], writes: Sequence[IndexWrite]) -> None:
        """Have the workers close the files that new ones have replaced."""
        new = [change for change in zip(ledgers, writes, strict=True) if change[1].is_new]
        paths = [(ledger.ledger_id, path) for ledger, change in new for path in (change.path, *change.replaces)]
        for ledger, _ in new:
            self.places.moving.pop(ledger.ledger_id, None)
        self._readers.forget_indexes(paths)

    def _written(self, ledger: Ledger, change: IndexWrite, file_size: int) -> bool:
        """Mark pages clean that were written and have not changed since. Return whether rebuilt slots were saved."""
        assert ledger.frozen is not None
        if ledger.path is None and not change.is_new:
            # The file became distrusted during the write, so its pages stay dirty.
            for number in ledger.frozen:
                ledger.pages[number].is_frozen = False
            ledger.frozen = None
            return False
        self.catalog.written(ledger.ledger_id, [number for number, _ in change.pages])
        ledger.path = self.places.paths[ledger.ledger_id] = change.path
        ledger.size = max(ledger.size, file_size)
        for number in ledger.frozen:
            self.cache.written(ledger, number)
            if number not in ledger.pages:
                self._loading_pages.pop((ledger.ledger_id, number), None)
        ledger.frozen = None
        was_saving = ledger.rebuild is RebuildState.SAVING
        ledger.take(RebuildEvent.WRITTEN)
        if was_saving:
            self.set_header(ledger, ledger.header)  # Drops STATE_REBUILDING from the file.
        if not ledger.is_header_dirty and not any(page.is_dirty for page in ledger.pages.values()):
            self._dirty.pop(ledger.ledger_id, None)
        return was_saving

    def unfreeze(self, frozen: list[Ledger]) -> None:
        """Give up the write of these ledgers. Their pages stay dirty."""
        for ledger in frozen:
            ledger.take(RebuildEvent.GIVE_UP)
            for number in ledger.frozen or ():
                ledger.pages[number].is_frozen = False
            ledger.frozen = None

    def close_files(self) -> None:
        """Close index files and catalog. On the checkpoint's worker."""
        self._files.close()
        self.catalog_writer.file.close()
