"""State of a ledger's reader: metadata, end, last add confirmed, and the bounds of reads that follow from them.

Reads end at the last add confirmed. For a sealed ledger that is its last entry, fixed by the metadata and never raised
by what bookies report. For an open ledger it is the greatest value learnt so far, and it only grows. The metadata is
watched while the ledger is open, so a reader follows ensemble changes and notices the seal. Source: client-protocol
3.1, 3.2, 3.5 and 3.6.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from bookies.client.base import EntryBatch
from bookies.client.base.keys import Keys
from bookies.client.read.context import ReadContext
from bookies.client.read.fetch import FetchWindow, RangeFetch
from bookies.client.read.lac import read_last_add_confirmed, try_last_add_confirmed
from bookies.client.read.longpoll import wait_for_entry
from bookies.client.read.offloaded import OffloadedFetch, OffloadedFiles
from bookies.client.read.read_one import PendingRead, look_up
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
"""The copy that a record names, and the worker that reads its files. Raises `NotSupported` (no copy or pyarrow)."""


class CopyUse(NamedTuple):
    """The offloaded copy of a ledger. `at_once`: every read uses it, not only reads that the bookies cannot serve."""

    open_files: OpenFiles
    at_once: bool


ENTRY_SIZE_GUESS = 1024.0  # payload bytes, until the ledger's metadata or an answer gives the average


class ReaderState:
    """Metadata, last add confirmed and read settings of one ledger, shared by the iterations of its reader."""

    def __init__(
        self, pool: BookiePool, driver: MetadataDriver, config: ClientConfig, keys: Keys, versioned: Versioned
    ) -> None:
        self._driver = driver
        self.metadata = versioned.metadata
        self._version = versioned.version
        self.last_add_confirmed = -1
        self._entry_size = ENTRY_SIZE_GUESS
        self._watches: list[Watch] = []
        self._length = 0
        sticky = None
        if config.sticky_reads:
            size = versioned.metadata.ensemble_size
            sticky = StickyPosition(size, pool.any_below(size))
        self.context = ReadContext(pool, config, keys, self._refresh, self.learn, sticky, counts=pool.counts.fetches)
        self._is_stale = False  # The store has, or may have, a newer record.
        self._changed = asyncio.get_running_loop().create_future()  # done when the record may have changed; by `close`
        self.is_closed = False
        self._files: tuple[Worker, OffloadedFiles] | None = None
        self._open_files: OpenFiles | None = None
        self._adopt(versioned)

    def use_copy(self, copy: CopyUse) -> None:
        """Let reads use the offloaded copy. Raises as `CopyUse.open_files` does, if they use it at once."""
        self._open_files = copy.open_files
        self.context = replace(self.context, files=self._fetch_from_copy)
        if copy.at_once:
            self._files = copy.open_files(self.metadata)

    def _fetch_from_copy(self, record: LedgerMetadata, first: int, last: int) -> OffloadedFetch:
        """Return the reads of entries first..last from the offloaded copy."""
        assert self._open_files is not None
        if self._files is None:
            self._files = self._open_files(record)
        return OffloadedFetch(*self._files, first, last)

    @classmethod
    async def begin(
        cls, pool: BookiePool, driver: MetadataDriver, config: ClientConfig, keys: Keys, versioned: Versioned
    ) -> ReaderState:
        """Open without recovery: watch the metadata and learn the last add confirmed, unless the ledger is sealed.

        Raises `BookieTimeout`, `ReadFailed`, `Unauthorized`.
        """
        state = cls(pool, driver, config, keys, versioned)
        if not state.is_sealed:
            state._watches.append(driver.watch_ledger(state.ledger_id, state._ledger_changed))
            state._watches.append(driver.on_session_expired(state._watch_lost))
            state.mark_stale()  # It may have changed between reading and watching.
            try:
                await state._learn_first()
            except BaseException as error:
                state.close()
                if isinstance(error, BookKeeperError) and not isinstance(
                    error, BookieTimeout | Unauthorized | ReadFailed | ClientClosed
                ):
                    raise ReadFailed(
                        f"cannot learn the last add confirmed: {error.message}", ledger_id=state.ledger_id
                    ) from error
                raise
        return state

    @property
    def ledger_id(self) -> int:
        return self.metadata.ledger_id

    @property
    def is_sealed(self) -> bool:
        """Report whether the ledger is sealed, by the newest record read."""
        return self.metadata.is_closed

    @property
    def length(self) -> int:
        """Payload bytes of the whole ledger if it is sealed, else up to the newest known entry."""
        return self.metadata.length if self.is_sealed else self._length

    # -- bounds --------------------------------------------------------------------------------------------------
    async def check_confirmed(self, last: int) -> None:
        """Raise `NotConfirmed` if the entry is after the last add confirmed; asks the bookies for that if necessary."""
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
        """Raise `EntryNotFound` if the ledger is known to end before the entry: then no bookie is asked (I-12)."""
        self.check_open()
        await self.follow_metadata()
        if self.is_sealed and entry_id > self.last_add_confirmed:
            raise EntryNotFound(
                f"no such entry: the ledger is sealed and its last entry is {self.last_add_confirmed}",
                ledger_id=self.ledger_id,
                entry_id=entry_id,
            )

    def within_end(self, batch: EntryBatch) -> EntryBatch:
        """Return the part of an unconfirmed batch that is in the ledger, in case the ledger was sealed meanwhile."""
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
        """Return the reads of entries first..last. `size_max`: bytes; read only one batch, as large as possible."""
        if self._files is not None:
            return OffloadedFetch(*self._files, first, last)
        window = FetchWindow(self.context, self._entry_size, size_max)
        return RangeFetch(self.context, self.metadata, first, last, window, is_parallel=is_parallel)

    async def read_one(self, entry_id: int, *, is_parallel: bool = False) -> EntryBatch:
        """Read an entry within the bounds. `is_parallel`: ask all replicas at once. Raises what `RangeFetch` raises."""
        first_answer: EntryBatch | PendingRead | None = None
        record = self.metadata
        if self._files is None and not is_parallel:
            first_answer = await look_up(self.context, record, entry_id)
        if isinstance(first_answer, EntryBatch):
            return first_answer
        fetch = self.range_fetch(entry_id, entry_id, is_parallel=is_parallel)
        is_where_it_was = self.metadata.ensemble_at(entry_id) == record.ensemble_at(entry_id)
        if first_answer is not None and is_where_it_was and isinstance(fetch, RangeFetch):
            fetch.begin_with(first_answer)
        batch = await fetch.next_batch()
        assert batch is not None
        return batch

    def check_open(self) -> None:
        """Raise `LedgerClosed` if the handle is closed."""
        if self.is_closed:
            raise LedgerClosed("the handle is closed: open the ledger again", ledger_id=self.ledger_id)

    # -- metadata ------------------------------------------------------------------------------------------------
    def mark_stale(self) -> None:
        """Have the metadata read again before its next use."""
        self._is_stale = True

    async def wait_for_change(self, patience_s: float | None) -> None:
        """Wait until the metadata changes, the handle is closed, or `patience_s` seconds have passed."""
        await asyncio.wait([self._changed], timeout=patience_s)

    def _ledger_changed(self, event: LedgerEvent) -> None:
        self._is_stale = True
        self._note_change()

    def _note_change(self) -> None:
        if not self._changed.done():
            self._changed.set_result(None)

    def _watch_lost(self) -> None:
        """Mark the metadata as stale: the session ended, so changes may have been missed.

        Source: client-protocol 3.6 (X-59).
        """
        self._is_stale = True
        self._note_change()

    async def follow_metadata(self) -> None:
        """Install a newer record if there may be one. Raises `LedgerNotFound`, `MetadataError`."""
        if self._is_stale:
            self._is_stale = False
            if self._changed.done():
                self._changed = asyncio.get_running_loop().create_future()
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

    def _adopt(self, versioned: Versioned) -> None:
        if versioned.version < self._version:
            return
        self.metadata, self._version = versioned.metadata, versioned.version
        record = versioned.metadata
        if record.is_closed:
            self.last_add_confirmed = record.last_entry_id
            if record.last_entry_id >= 0 and record.length > 0:
                self._entry_size = record.length / (record.last_entry_id + 1)
            self._stop_watching()

    def close(self) -> None:
        """Stop watching and close files. Idempotent."""
        self.is_closed = True
        self._note_change()
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
        """Ask the bookies for the last add confirmed and return it; of a sealed ledger it is known."""
        await self.follow_metadata()
        if not self.is_sealed:
            self._adopt_lac(await read_last_add_confirmed(self.context.pool, self.context.keys, self.metadata))
        return self.last_add_confirmed

    async def try_last_add_confirmed(self) -> int:
        """Ask the bookies, and return after the first answer with a greater value."""
        await self.follow_metadata()
        if not self.is_sealed:
            self._adopt_lac(
                await try_last_add_confirmed(
                    self.context.pool, self.context.keys, self.metadata, self.last_add_confirmed
                )
            )
        return self.last_add_confirmed

    async def wait_for_news(self, entry_id: int, wait_s: float, *, is_parallel: bool = False) -> EntryBatch | None:
        """Wait one round for the entry; any news ends it. Return the entry if it came with the answer."""
        if not is_growth_trusted(self.metadata):
            await self.wait_for_change(wait_s)
            self.mark_stale()
            return None
        change = self._changed
        return await wait_for_entry(self.context, self.metadata, entry_id, wait_s, change, is_parallel=is_parallel)

    async def _learn_first(self) -> None:
        """Learn the last add confirmed at opening.

        It is trusted for a ledger in recovery too, which offers no other value.
        """
        answers = await read_last_add_confirmed(self.context.pool, self.context.keys, self.metadata)
        self._adopt_lac(answers)
        if not self.is_sealed:
            self.last_add_confirmed = answers.last_add_confirmed

    def _adopt_lac(self, answers: LacRead) -> None:
        if answers.length > 0 and answers.last_add_confirmed >= 0:
            self._entry_size = answers.length / (answers.last_add_confirmed + 2)
        self._length = max(self._length, answers.length)
        self.learn(answers.last_add_confirmed)

    def learn(self, last_add_confirmed: int) -> int:
        """Take in a last add confirmed that a bookie reported; return the value that the reader trusts now."""
        if is_growth_trusted(self.metadata):
            self.last_add_confirmed = max(self.last_add_confirmed, last_add_confirmed)
        return self.last_add_confirmed
