"""What a reader knows of its ledger and how it keeps that true: metadata, end, last add confirmed, bounds of reads.

What may be read ends at the last add confirmed. Of a sealed ledger that is its last entry, fixed by the metadata and
never raised by what bookies say; of an open one it is the greatest value learnt so far, and it only grows. The
metadata is watched while the ledger is open, so a reader follows ensemble changes and notices the seal. Source:
client-protocol 3.1, 3.2, 3.5 and 3.6.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bookies.client.base import EntryBatch
from bookies.client.base.keys import Keys
from bookies.client.read.fetch import RangeFetch
from bookies.client.read.lac import read_last_add_confirmed, try_last_add_confirmed
from bookies.client.read.longpoll import wait_for_entry
from bookies.client.read.offloaded import OffloadedFetch, OffloadedFiles
from bookies.client.read.read_one import Asked, look_up
from bookies.client.transport import BookiePool
from bookies.config import ClientConfig
from bookies.errors import (
    BookieTimeout,
    BookKeeperError,
    ClientClosed,
    EntryNotFound,
    LedgerClosed,
    LedgerNotFound,
    NotConfirmed,
    ReadFailed,
    Unauthorized,
)
from bookies.metadata.interface import MetadataDriver, Watch
from bookies.metadata.interface.driver import LedgerEvent, Versioned
from bookies.model import LedgerMetadata
from bookies.protocol.ledger.lac import LacRead, is_growth_trusted
from bookies.protocol.ledger.read import StickyPosition
from bookies.runtime.ports import Worker

OpenFiles = Callable[[LedgerMetadata], tuple[Worker, OffloadedFiles]]
"""The copy that a record names, and the worker that waits for its files. Raises `NotSupported` (no copy or pyarrow)."""

ENTRY_SIZE_GUESS = 1024.0  # payload bytes, until the ledger tells


class ReaderState:
    """One ledger as a reader sees it."""

    def __init__(
        self, pool: BookiePool, driver: MetadataDriver, config: ClientConfig, keys: Keys, found: Versioned
    ) -> None:
        self.pool = pool
        self._driver = driver
        self.config = config
        self.keys = keys
        self.metadata = found.metadata
        self._version = found.version
        self.last_add_confirmed = -1
        self._entry_size = ENTRY_SIZE_GUESS
        self._watches: list[Watch] = []
        self._length = 0
        self._sticky: StickyPosition | None = None
        if config.sticky_reads:
            size = found.metadata.ensemble_size
            self._sticky = StickyPosition(size, pool.any_below(size))
        self._is_stale = False  # The store has, or may have, a newer record.
        self._changed = asyncio.Event()  # set whenever `_is_stale` becomes true, and by `close`
        self.is_closed = False
        self._files: tuple[Worker, OffloadedFiles] | None = None
        self._open_files: OpenFiles | None = None
        self._adopt(found)

    def may_read_from(self, open_files: OpenFiles, *, at_once: bool) -> None:
        """Read the ledger from its copy: `at_once`, or when bookies do not have an entry and need not have it.

        Raises as `open_files`, at once.
        """
        self._open_files = open_files
        if at_once:
            self._files = open_files(self.metadata)

    def _rest_from_files(self, record: LedgerMetadata, first: int, last: int) -> OffloadedFetch:
        assert self._open_files is not None
        if self._files is None:
            self._files = self._open_files(record)
        return OffloadedFetch(*self._files, first, last)

    @classmethod
    async def begin(
        cls, pool: BookiePool, driver: MetadataDriver, config: ClientConfig, keys: Keys, found: Versioned
    ) -> ReaderState:
        """Open without recovery: watch the metadata and learn the last add confirmed, unless the ledger is sealed.

        Raises `BookieTimeout`, `ReadFailed`, `Unauthorized`.
        """
        view = cls(pool, driver, config, keys, found)
        if not view.is_sealed:
            view._watches.append(driver.watch_ledger(view.ledger_id, view._ledger_changed))
            view._watches.append(driver.on_session_expired(view._watch_lost))
            view.mark_stale()  # It may have changed between reading and watching.
            try:
                await view._learn_first()
            except BaseException as error:
                view.close()
                if isinstance(error, BookKeeperError) and not isinstance(
                    error, BookieTimeout | Unauthorized | ReadFailed | ClientClosed
                ):
                    raise ReadFailed(
                        f"cannot learn the last add confirmed: {error.message}", ledger_id=view.ledger_id
                    ) from error
                raise
        return view

    @property
    def ledger_id(self) -> int:
        return self.metadata.ledger_id

    @property
    def is_sealed(self) -> bool:
        """Whether the ledger has ended, as far as known."""
        return self.metadata.is_closed

    @property
    def length(self) -> int:
        """Payload bytes: of all of a sealed ledger, else up to the newest entry heard of."""
        return self.metadata.length if self.is_sealed else self._length

    # -- bounds --------------------------------------------------------------------------------------------------
    async def check_confirmed(self, last: int) -> None:
        """Raises `NotConfirmed` when the entry is beyond the last add confirmed, which is asked for if need be."""
        self.check_open()
        if last > self.last_add_confirmed:
            await self.refresh_last_add_confirmed()
        if last > self.last_add_confirmed:
            raise NotConfirmed(
                f"cannot read up to entry {last}: the last {'entry' if self.is_sealed else 'add confirmed'} is "
                f"{self.last_add_confirmed}" + ("" if self.is_sealed else "; tail() waits for entries to come"),
                last_add_confirmed=self.last_add_confirmed,
                ledger_id=self.ledger_id,
                entry_id=last,
            )

    async def check_unconfirmed(self, entry_id: int) -> None:
        """Raises `EntryNotFound` when the ledger is known to end before it: no bookie is asked then (I-12)."""
        self.check_open()
        await self.follow_metadata()
        if self.is_sealed and entry_id > self.last_add_confirmed:
            raise EntryNotFound(
                f"no such entry: the ledger is sealed and its last entry is {self.last_add_confirmed}",
                ledger_id=self.ledger_id,
                entry_id=entry_id,
            )

    def within_end(self, batch: EntryBatch) -> EntryBatch:
        """What of an unconfirmed batch is in the ledger, should it have turned out to be sealed meanwhile."""
        end = self.last_add_confirmed
        if not self.is_sealed or batch.last_entry_id <= end:
            return batch
        if batch.first_entry_id > end:
            raise EntryNotFound(
                f"no such entry: the ledger was sealed and its last entry is {end}",
                ledger_id=self.ledger_id,
                entry_id=batch.first_entry_id,
            )
        return batch.slice(batch.first_entry_id, end)

    def range_fetch(
        self, first: int, last: int, *, size_max: int | None = None, is_parallel: bool = False
    ) -> RangeFetch | OffloadedFetch:
        """The reads of entries first..last. `size_max`: of only one batch, as large as possible, bytes."""
        if self._files is not None:
            return OffloadedFetch(*self._files, first, last)
        return RangeFetch(
            self.pool,
            self.config,
            self.keys,
            self.metadata,
            first,
            last,
            refresh=self._refresh,
            entry_size=self._entry_size,
            learn=self.learn,
            sticky=self._sticky,
            size_max=size_max,
            is_parallel=is_parallel,
            files=None if self._open_files is None else self._rest_from_files,
        )

    async def read_one(self, entry_id: int, *, is_parallel: bool = False) -> EntryBatch:
        """The entry, which may be read. `is_parallel`: ask all replicas at once. Raises what `RangeFetch` does."""
        found: EntryBatch | Asked | None = None
        record = self.metadata
        if self._files is None and not is_parallel:
            found = await look_up(
                self.pool,
                self.keys,
                record,
                entry_id,
                sticky=self._sticky,
                is_hedging=self.config.hedged_reads,
                learn=self.learn,
            )
        if isinstance(found, EntryBatch):
            return found
        fetch = self.range_fetch(entry_id, entry_id, is_parallel=is_parallel)
        is_where_it_was = self.metadata.ensemble_at(entry_id) == record.ensemble_at(entry_id)
        if found is not None and is_where_it_was and isinstance(fetch, RangeFetch):
            fetch.begin_with(found)
        batch = await fetch.next_batch()
        assert batch is not None
        return batch

    def check_open(self) -> None:
        """Raises `LedgerClosed`."""
        if self.is_closed:
            raise LedgerClosed("the handle is closed: open the ledger again", ledger_id=self.ledger_id)

    # -- metadata ------------------------------------------------------------------------------------------------
    def mark_stale(self) -> None:
        """Read the metadata again before the next use."""
        self._is_stale = True

    async def wait_for_change(self, patience_s: float | None) -> None:
        """Until the metadata changes, the handle is closed, or for so long."""
        try:
            async with asyncio.timeout(patience_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _ledger_changed(self, event: LedgerEvent) -> None:
        self._is_stale = True
        self._changed.set()

    def _watch_lost(self) -> None:
        """The session ended, and changes may have gone unnoticed. Source: client-protocol 3.6 (X-59)."""
        self._is_stale = True
        self._changed.set()

    async def follow_metadata(self) -> None:
        """Install the newer record if there may be one. Raises `LedgerNotFound`, `MetadataError`."""
        if self._is_stale:
            self._is_stale = False
            self._changed.clear()
            try:
                self._adopt(await self._driver.read_ledger(self.ledger_id))
            except LedgerNotFound:
                raise
            except BaseException:
                self._is_stale = True
                raise

    async def _refresh(self) -> LedgerMetadata:
        self._adopt(await self._driver.read_ledger(self.ledger_id))
        return self.metadata

    def _adopt(self, found: Versioned) -> None:
        if found.version < self._version:
            return
        self.metadata, self._version = found.metadata, found.version
        record = found.metadata
        if record.is_closed:
            self.last_add_confirmed = record.last_entry_id
            if record.last_entry_id >= 0 and record.length > 0:
                self._entry_size = record.length / (record.last_entry_id + 1)
            self._stop_watching()

    def close(self) -> None:
        """Let go of everything. Idempotent."""
        self.is_closed = True
        self._changed.set()
        self._stop_watching()
        if self._files is not None:
            worker, files = self._files
            self._files = None
            worker.run(files.close)

    def _stop_watching(self) -> None:
        for watch in self._watches:
            watch.cancel()
        self._watches.clear()

    # -- last add confirmed --------------------------------------------------------------------------------------
    async def refresh_last_add_confirmed(self) -> int:
        """Ask the bookies; a sealed ledger answers by itself."""
        await self.follow_metadata()
        if not self.is_sealed:
            self._take_in(await read_last_add_confirmed(self.pool, self.keys, self.metadata))
        return self.last_add_confirmed

    async def try_last_add_confirmed(self) -> int:
        """Ask the bookies, content with the first news."""
        await self.follow_metadata()
        if not self.is_sealed:
            self._take_in(await try_last_add_confirmed(self.pool, self.keys, self.metadata, self.last_add_confirmed))
        return self.last_add_confirmed

    async def wait_for_news(self, entry_id: int, wait_s: float, *, is_parallel: bool = False) -> EntryBatch | None:
        """One round of waiting for the entry, ended by news of any kind; the entry if it came along."""
        if not is_growth_trusted(self.metadata):
            await self.wait_for_change(wait_s)
            self.mark_stale()
            return None
        change = asyncio.ensure_future(self.wait_for_change(None))
        try:
            return await wait_for_entry(
                self.pool,
                self.keys,
                self.metadata,
                entry_id,
                wait_s,
                learn=self.learn,
                change=change,
                is_parallel=is_parallel,
            )
        finally:
            change.cancel()

    async def _learn_first(self) -> None:
        """What is confirmed when the handle is opened is believed of a ledger in recovery too: it has no other."""
        found = await read_last_add_confirmed(self.pool, self.keys, self.metadata)
        self._take_in(found)
        if not self.is_sealed:
            self.last_add_confirmed = found.last_add_confirmed

    def _take_in(self, found: LacRead) -> None:
        if found.length > 0 and found.last_add_confirmed >= 0:
            self._entry_size = found.length / (found.last_add_confirmed + 2)
        self._length = max(self._length, found.length)
        self.learn(found.last_add_confirmed)

    def learn(self, last_add_confirmed: int) -> int:
        """Take in what a bookie says is confirmed; what the reader believes then."""
        if is_growth_trusted(self.metadata):
            self.last_add_confirmed = max(self.last_add_confirmed, last_add_confirmed)
        return self.last_add_confirmed
