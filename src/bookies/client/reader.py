"""A ledger open for reading: bounds, last add confirmed, sequential reads, tailing. Never fences, writes nothing.

What may be read ends at the last add confirmed. Of a sealed ledger that is its last entry, fixed by the metadata and
never raised by what bookies say; of an open one it is the greatest value learnt so far, and it only grows. The
metadata is watched while the ledger is open, so a reader follows ensemble changes and notices the seal. Source:
client-protocol 3.1, 3.2, 3.5 and 3.6.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from bookies.client.entries import Entry, EntryBatch
from bookies.client.fetch import RangeFetch
from bookies.client.keys import Keys
from bookies.client.lac import read_last_add_confirmed
from bookies.client.pool import BookiePool
from bookies.client.tail import TailSource
from bookies.config import ClientConfig
from bookies.errors import (
    BookieTimeout,
    BookKeeperError,
    ClientClosed,
    EntryNotFound,
    InvalidArgument,
    LedgerClosed,
    LedgerNotFound,
    NotSupported,
    ReadFailed,
    Unauthorized,
)
from bookies.metadata.driver import LedgerEvent, MetadataDriver, Versioned, Watch
from bookies.model import LedgerMetadata, LedgerState
from bookies.protocol.read import is_growth_trusted

if TYPE_CHECKING:
    import pyarrow

_STATE_NAMES = {LedgerState.OPEN: "open", LedgerState.IN_RECOVERY: "in recovery", LedgerState.CLOSED: "sealed"}
ENTRY_SIZE_GUESS = 1024.0  # payload bytes, until the ledger tells


class BatchSource(Protocol):
    async def next_batch(self) -> EntryBatch | None:
        """The next entries, None at the end."""


class Entries:
    """Asynchronous iterator over single entries; `batches()` gives the same entries as `EntryBatch`es."""

    def __init__(self, source: BatchSource) -> None:
        self._source = source
        self._entries: Iterator[Entry] = iter(())

    def __aiter__(self) -> AsyncIterator[Entry]:
        return self

    async def __anext__(self) -> Entry:
        for entry in self._entries:
            return entry
        batch = await self._source.next_batch()
        if batch is None:
            raise StopAsyncIteration
        self._entries = batch.entries()
        return next(self._entries)

    def batches(self) -> Batches:
        return Batches(self._source)


class Batches:
    """Asynchronous iterator over verified batches."""

    def __init__(self, source: BatchSource) -> None:
        self._source = source

    def __aiter__(self) -> AsyncIterator[EntryBatch]:
        return self

    async def __anext__(self) -> EntryBatch:
        batch = await self._source.next_batch()
        if batch is None:
            raise StopAsyncIteration
        return batch


class LedgerReader:
    """Made by `Client.open` and `Client.recover`."""

    def __init__(
        self, pool: BookiePool, driver: MetadataDriver, config: ClientConfig, keys: Keys, found: Versioned
    ) -> None:
        self._pool = pool
        self._driver = driver
        self._config = config
        self._keys = keys
        self._metadata = found.metadata
        self._version = found.version
        self._last_add_confirmed = -1
        self._entry_size = ENTRY_SIZE_GUESS
        self._watch: Watch | None = None
        self._is_stale = False  # The store has, or may have, a newer record.
        self._changed = asyncio.Event()  # set whenever `_is_stale` becomes true, and by `close`
        self._is_closed = False
        self._adopt(found)

    @classmethod
    async def begin(
        cls, pool: BookiePool, driver: MetadataDriver, config: ClientConfig, keys: Keys, found: Versioned
    ) -> LedgerReader:
        """Open without recovery: watch the metadata and learn the last add confirmed, unless the ledger is sealed.

        Raises `BookieTimeout`, `ReadFailed`, `Unauthorized`.
        """
        reader = cls(pool, driver, config, keys, found)
        if not reader.is_sealed:
            reader._watch = driver.watch_ledger(reader.ledger_id, reader._ledger_changed)
            reader.mark_stale()  # It may have changed between reading and watching.
            try:
                await reader._learn_last_add_confirmed(is_first=True)
            except BaseException as error:
                reader._release()
                if isinstance(error, BookKeeperError) and not isinstance(
                    error, BookieTimeout | Unauthorized | ReadFailed | ClientClosed
                ):
                    raise ReadFailed(
                        f"cannot learn the last add confirmed: {error.message}", ledger_id=reader.ledger_id
                    ) from error
                raise
        return reader

    # -- state, without asking anybody ---------------------------------------------------------------------------
    @property
    def ledger_id(self) -> int:
        return self._metadata.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The record as last seen."""
        return self._metadata

    @property
    def is_sealed(self) -> bool:
        """Whether the ledger has ended, as far as known."""
        return self._metadata.is_closed

    @property
    def last_add_confirmed(self) -> int:
        """The last entry known to be readable; of a sealed ledger its end. -1: none. `read_last_add_confirmed` asks."""
        return self._last_add_confirmed

    @property
    def labels(self) -> dict[str, str]:
        return {name: value.decode("utf-8", "replace") for name, value in self._metadata.custom_metadata.items()}

    def __repr__(self) -> str:
        record = self._metadata
        state = "let go" if self._is_closed else "sealed" if record.is_closed else _STATE_NAMES[record.state]
        return (
            f"<LedgerReader {record.ledger_id} {state} E{record.ensemble_size}/Qw{record.write_quorum}"
            f"/Qa{record.ack_quorum} last_add_confirmed={self._last_add_confirmed} "
            f"ensemble=[{', '.join(record.last_ensemble)}]>"
        )

    # -- reading -------------------------------------------------------------------------------------------------
    def read(self, first: int = 0, last: int | None = None) -> Entries:
        """The entries first..last in order; `last` None: up to the last add confirmed when the iteration begins.

        `async for entry in ledger.read()`; `.batches()` gives verified batches instead of entries. The iteration
        raises `InvalidArgument`, `ReadFailed` (beyond the last add confirmed) and what every replica of an entry
        failing leads to: `EntryNotFound`, `DigestMismatch`, `BookieUnreachable` and so on.
        """
        if first < 0 or (last is not None and last < first):
            raise InvalidArgument(f"read({first}, {last}): must be 0 <= first <= last")
        return Entries(_RangeSource(self, first, last))

    def read_batches(self, first: int = 0, last: int | None = None) -> Batches:
        """As `read`, in verified batches that stay in the buffers they arrived in."""
        return self.read(first, last).batches()

    async def read_arrow(
        self, first: int = 0, last: int | None = None, *, timeout: float | None = None
    ) -> pyarrow.Table:
        """As `read`, as a pyarrow.Table: ledger_id and entry_id (int64), value (binary); no object per entry."""
        from bookies.client.arrow import table_of

        async with asyncio.timeout(timeout):
            return table_of([batch async for batch in self.read_batches(first, last)])

    async def read_entry(self, entry_id: int, *, timeout: float | None = None) -> Entry:
        """One entry. `timeout`: seconds."""
        async with asyncio.timeout(timeout):
            async for entry in self.read(entry_id, entry_id):
                return entry
        raise EntryNotFound("no such entry", ledger_id=self.ledger_id, entry_id=entry_id)

    def read_unconfirmed(self, first: int, last: int) -> Entries:
        """Not offered: entries that may turn out not to be in the ledger. Raises `NotSupported`."""
        raise NotSupported("unconfirmed reads are not offered; tail() delivers entries as soon as they are confirmed")

    async def read_last(self, *, timeout: float | None = None) -> Entry:
        """The entry at the last add confirmed, which is refreshed first. Raises `EntryNotFound` when there is none."""
        async with asyncio.timeout(timeout):
            last = await self.read_last_add_confirmed()
            if last < 0:
                raise EntryNotFound("the ledger has no entry to read yet", ledger_id=self.ledger_id)
            return await self.read_entry(last)

    async def read_last_add_confirmed(self, *, timeout: float | None = None) -> int:
        """Ask the bookies for the last entry that may be read, -1: none; a sealed ledger answers by itself."""
        async with asyncio.timeout(timeout):
            await self.follow_metadata()
            if not self.is_sealed:
                await self._learn_last_add_confirmed()
            return self._last_add_confirmed

    def tail(self, first: int | None = None) -> Entries:
        """Entries from `first` on (None: the next one that is not readable yet), waiting for new ones until the seal.

        The iteration ends when the ledger is sealed and its last entry was delivered. It survives bookies that fail;
        it raises when none has answered for 30 seconds.
        """
        if first is not None and first < 0:
            raise InvalidArgument(f"tail({first}): must be 0 or more")
        start = self._last_add_confirmed + 1 if first is None else first
        return Entries(TailSource(self, self._pool, self._keys, start))

    async def close(self) -> None:
        """Let go of the handle; nothing happens to the ledger. Idempotent."""
        self._release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # -- bounds --------------------------------------------------------------------------------------------------
    async def _fetch(self, first: int, last: int | None) -> RangeFetch:
        """Check and complete the bounds, then prepare the reads."""
        self.check_open()
        if last is None or last > self._last_add_confirmed:
            await self.read_last_add_confirmed()
        if last is None:
            last = self._last_add_confirmed
        elif last > self._last_add_confirmed:
            raise ReadFailed(
                f"cannot read up to entry {last}: the last {'entry' if self.is_sealed else 'add confirmed'} is "
                f"{self._last_add_confirmed}" + ("" if self.is_sealed else "; tail() waits for entries to come"),
                ledger_id=self.ledger_id,
            )
        return self.range_fetch(first, last)

    def range_fetch(self, first: int, last: int) -> RangeFetch:
        """The reads of confirmed entries first..last."""
        return RangeFetch(
            self._pool,
            self._config,
            self._keys,
            self._metadata,
            first,
            last,
            refresh=self._refresh,
            entry_size=self._entry_size,
        )

    def check_open(self) -> None:
        """Raises `LedgerClosed`."""
        if self._is_closed:
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
        return self._metadata

    def _adopt(self, found: Versioned) -> None:
        if found.version < self._version:
            return
        self._metadata, self._version = found.metadata, found.version
        record = found.metadata
        if record.is_closed:
            self._last_add_confirmed = record.last_entry_id
            if record.last_entry_id >= 0 and record.length > 0:
                self._entry_size = record.length / (record.last_entry_id + 1)
            if self._watch is not None:
                self._watch.cancel()
                self._watch = None

    def _release(self) -> None:
        self._is_closed = True
        self._changed.set()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    # -- last add confirmed --------------------------------------------------------------------------------------
    async def _learn_last_add_confirmed(self, *, is_first: bool = False) -> None:
        found = await read_last_add_confirmed(self._pool, self._keys, self._metadata)
        if found.length > 0 and found.last_add_confirmed >= 0:
            self._entry_size = found.length / (found.last_add_confirmed + 2)
        if is_first and not self.is_sealed:
            self._last_add_confirmed = found.last_add_confirmed
        else:
            self.learn(found.last_add_confirmed)

    def learn(self, last_add_confirmed: int) -> None:
        """Take in what a bookie says is confirmed."""
        if is_growth_trusted(self._metadata):
            self._last_add_confirmed = max(self._last_add_confirmed, last_add_confirmed)


class _RangeSource:
    """The batches of one `read`; bounds are decided when the first is asked for."""

    def __init__(self, reader: LedgerReader, first: int, last: int | None) -> None:
        self._reader = reader
        self._first, self._last = first, last
        self._fetch: RangeFetch | None = None

    async def next_batch(self) -> EntryBatch | None:
        if self._fetch is None:
            self._fetch = await self._reader._fetch(self._first, self._last)
        return await self._fetch.next_batch()
