"""A ledger open for reading: bounds, last add confirmed, sequential reads, tailing. Never fences, writes nothing.

What may be read ends at the last add confirmed. Of a sealed ledger that is its last entry, fixed by the metadata and
never raised by what bookies say; of an open one it is the greatest value learnt so far, and it only grows. The
metadata is watched while the ledger is open, so a reader follows ensemble changes and notices the seal. Source:
client-protocol 3.1, 3.2, 3.5 and 3.6.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from types import TracebackType
from typing import TYPE_CHECKING, Self

from bookies.client.entries import Entry, EntryBatch, LastConfirmedAndEntry
from bookies.client.fetch import RangeFetch
from bookies.client.iteration import Batches as Batches
from bookies.client.iteration import Entries as Entries
from bookies.client.keys import Keys
from bookies.client.lac import read_last_add_confirmed, try_last_add_confirmed
from bookies.client.longpoll import wait_for_entry
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
    ReadFailed,
    Unauthorized,
)
from bookies.metadata.driver import LedgerEvent, MetadataDriver, Versioned, Watch
from bookies.model import LedgerMetadata, LedgerState
from bookies.protocol.lac import LacRead, is_growth_trusted
from bookies.protocol.read import StickyPosition

if TYPE_CHECKING:
    import pyarrow

_STATE_NAMES = {LedgerState.OPEN: "open", LedgerState.IN_RECOVERY: "in recovery", LedgerState.CLOSED: "sealed"}
ENTRY_SIZE_GUESS = 1024.0  # payload bytes, until the ledger tells
BATCH_COUNT_MAX = 10_000  # entries of an unconfirmed batch whose caller names no number


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
        self._watches: list[Watch] = []
        self._length = 0
        self._sticky: StickyPosition | None = None
        if config.sticky_reads:
            size = found.metadata.ensemble_size
            self._sticky = StickyPosition(size, pool.any_below(size))
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
            reader._watches.append(driver.watch_ledger(reader.ledger_id, reader._ledger_changed))
            reader._watches.append(driver.on_session_expired(reader._watch_lost))
            reader.mark_stale()  # It may have changed between reading and watching.
            try:
                await reader._learn_last_add_confirmed()
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
    def length(self) -> int:
        """Payload bytes of the ledger; of one that is not sealed those up to the newest entry heard of, a hint."""
        return self._metadata.length if self.is_sealed else self._length

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
    def read(self, first: int = 0, last: int | None = None, *, timeout: float | None = None) -> Entries:
        """The entries first..last in order; `last` None: up to the last add confirmed when the iteration begins.

        `async for entry in ledger.read()`; `.batches()` gives verified batches instead of entries. `timeout`: seconds
        that a step may take. The iteration raises `InvalidArgument`, `ReadFailed` (beyond the last add confirmed),
        `TimeoutError`, and what every replica of an entry failing leads to: `EntryNotFound`, `DigestMismatch`,
        `BookieUnreachable` and so on.
        """
        _check_range("read", first, last)
        return Entries(_RangeSource(self, first, last), timeout)

    def read_batches(self, first: int = 0, last: int | None = None, *, timeout: float | None = None) -> Batches:
        """As `read`, in verified batches that stay in the buffers they arrived in."""
        return self.read(first, last, timeout=timeout).batches()

    async def read_arrow(
        self, first: int = 0, last: int | None = None, *, timeout: float | None = None
    ) -> pyarrow.Table:
        """As `read`, as a pyarrow.Table: ledger_id and entry_id (int64), value (binary); no object per entry.

        `timeout`: seconds for all of it.
        """
        from bookies.client.arrow import table_of

        async with asyncio.timeout(timeout):
            return table_of([batch async for batch in self.read_batches(first, last)])

    async def read_entry(self, entry_id: int, *, timeout: float | None = None) -> Entry:
        """One entry. `timeout`: seconds."""
        async with asyncio.timeout(timeout):
            async for entry in self.read(entry_id, entry_id):
                return entry
        raise EntryNotFound("no such entry", ledger_id=self.ledger_id, entry_id=entry_id)

    async def read_batch(
        self,
        first: int,
        *,
        count_max: int = 0,
        size_max: int = 0,
        unconfirmed: bool = False,
        timeout: float | None = None,
    ) -> EntryBatch:
        """Consecutive entries from `first` on: at least one, perhaps fewer than there are; read on behind them.

        `count_max`: entries, 0: as many as come; `size_max`: bytes of their records, exceeded only by a first entry
        that is longer, 0: what fits into a frame. Never beyond the last add confirmed, unless `unconfirmed` (see
        `read_unconfirmed`), nor beyond the end. Raises what `read` does. Source: client-protocol 3.8.
        """
        if first < 0 or count_max < 0 or size_max < 0:
            raise InvalidArgument(f"read_batch({first}, count_max={count_max}, size_max={size_max}): must be 0 or more")
        size_max = min(size_max or self._pool.batch_size_max, self._pool.batch_size_max)
        async with asyncio.timeout(timeout):
            if unconfirmed:
                last = first + (count_max or BATCH_COUNT_MAX) - 1
                await self._check_unconfirmed(first)
                if self.is_sealed:
                    last = min(last, self._last_add_confirmed)
            else:
                await self._check_confirmed(first)
                last = min(first + count_max - 1, self._last_add_confirmed) if count_max else self._last_add_confirmed
            fetch = self.range_fetch(first, last, size_max)
            try:
                batch = await fetch.next_batch()
            finally:
                fetch.stop()
        assert batch is not None
        if unconfirmed:
            batch = self._within_end(batch)
        count = max(1, bisect_right(batch.starts, batch.starts[0] + size_max) - 1)
        return batch.slice(first, min(batch.last_entry_id, first + count - 1))

    def read_unconfirmed(self, first: int, last: int, *, timeout: float | None = None) -> Entries:
        """The entries first..last without regard to the last add confirmed: what the bookies hold of an open ledger.

        An entry that is not confirmed may turn out not to be in the ledger; nothing that outlives the read should
        depend on it. Raises `EntryNotFound` at the first entry that no bookie holds, and for those beyond the end of a
        ledger that is known to be sealed, whatever bookies hold there. `timeout`: seconds that a step may take.
        Source: client-protocol 3.2.
        """
        _check_range("read_unconfirmed", first, last)
        return Entries(_UnconfirmedSource(self, first, last), timeout)

    async def read_last(self, *, timeout: float | None = None) -> Entry:
        """The entry at the last add confirmed, which is refreshed first. Raises `EntryNotFound` when there is none."""
        async with asyncio.timeout(timeout):
            last = await self.read_last_add_confirmed()
            if last < 0:
                raise EntryNotFound("the ledger has no entry to read yet", ledger_id=self.ledger_id)
            return await self.read_entry(last)

    def tail(self, first: int | None = None, *, timeout: float | None = None) -> Entries:
        """Entries from `first` on (None: the next one that is not readable yet), waiting for new ones until the seal.

        The iteration ends when the ledger is sealed and its last entry was delivered. It survives bookies that fail;
        it raises when none has answered for 30 seconds, and `TimeoutError` when no entry came for `timeout` seconds.
        """
        if first is not None and first < 0:
            raise InvalidArgument(f"tail({first}): must be 0 or more")
        start = self._last_add_confirmed + 1 if first is None else first
        return Entries(TailSource(self, self._pool, self._keys, start), timeout)

    # -- last add confirmed --------------------------------------------------------------------------------------
    async def read_last_add_confirmed(self, *, timeout: float | None = None) -> int:
        """Ask the bookies for the last entry that may be read, -1: none; a sealed ledger answers by itself.

        Certain: the answers leave no room for a later entry that was confirmed and told to them. Never less than
        what was known before. Raises `ReadFailed`, `BookieTimeout` and so on when too few bookies answer.
        """
        async with asyncio.timeout(timeout):
            await self.follow_metadata()
            if not self.is_sealed:
                await self._learn_last_add_confirmed()
            return self._last_add_confirmed

    async def try_read_last_add_confirmed(self, *, timeout: float | None = None) -> int:
        """As `read_last_add_confirmed`, content with the first bookie that knows more, or with any answer at all.

        Raises `RecoveryFailed` when no bookie answered.
        """
        async with asyncio.timeout(timeout):
            await self.follow_metadata()
            if not self.is_sealed:
                known = self._last_add_confirmed
                self._take_in(await try_last_add_confirmed(self._pool, self._keys, self._metadata, known))
            return self._last_add_confirmed

    async def read_last_add_confirmed_and_entry(
        self, entry_id: int, *, wait: float = 2.0, parallel: bool = False, timeout: float | None = None
    ) -> LastConfirmedAndEntry:
        """Wait until the entry is confirmed, at most about `wait` seconds; the entry is None when it is not by then.

        `parallel`: ask all bookies at once. Without an entry the ledger may have ended before it: see `is_sealed`.
        `timeout`: seconds for everything, then `TimeoutError`. Source: client-protocol 3.6.
        """
        if entry_id < 0 or wait < 0:
            raise InvalidArgument(f"read_last_add_confirmed_and_entry({entry_id}, wait={wait}): must be 0 or more")
        loop = asyncio.get_running_loop()
        end = loop.time() + wait
        async with asyncio.timeout(timeout):
            while True:
                self.check_open()
                await self.follow_metadata()
                if entry_id <= self._last_add_confirmed:
                    return LastConfirmedAndEntry(self._last_add_confirmed, await self.read_entry(entry_id))
                remaining = end - loop.time()
                if self.is_sealed or (remaining <= 0 and wait > 0):
                    return LastConfirmedAndEntry(self._last_add_confirmed, None)
                batch = await self._await_entry(entry_id, remaining, parallel)
                if batch is not None:
                    return LastConfirmedAndEntry(self._last_add_confirmed, next(batch.entries()))
                wait = wait or 1e-9  # Bookies have been asked once.

    async def _await_entry(self, entry_id: int, wait_s: float, is_parallel: bool) -> EntryBatch | None:
        """One round of waiting, ended by news of any kind."""
        if not is_growth_trusted(self._metadata):
            await self.wait_for_change(wait_s)
            self.mark_stale()
            return None
        change = asyncio.ensure_future(self.wait_for_change(None))
        try:
            return await wait_for_entry(
                self._pool,
                self._keys,
                self._metadata,
                entry_id,
                wait_s,
                learn=self.learn,
                change=change,
                is_parallel=is_parallel,
            )
        finally:
            change.cancel()

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
    async def _check_confirmed(self, last: int) -> None:
        """Raises `ReadFailed` when the entry is beyond the last add confirmed, which is asked for if need be."""
        self.check_open()
        if last > self._last_add_confirmed:
            await self.read_last_add_confirmed()
        if last > self._last_add_confirmed:
            raise ReadFailed(
                f"cannot read up to entry {last}: the last {'entry' if self.is_sealed else 'add confirmed'} is "
                f"{self._last_add_confirmed}" + ("" if self.is_sealed else "; tail() waits for entries to come"),
                ledger_id=self.ledger_id,
                entry_id=last,
            )

    async def _check_unconfirmed(self, entry_id: int) -> None:
        """Raises `EntryNotFound` when the ledger is known to end before it: no bookie is asked then (I-12)."""
        self.check_open()
        await self.follow_metadata()
        if self.is_sealed and entry_id > self._last_add_confirmed:
            raise EntryNotFound(
                f"no such entry: the ledger is sealed and its last entry is {self._last_add_confirmed}",
                ledger_id=self.ledger_id,
                entry_id=entry_id,
            )

    def _within_end(self, batch: EntryBatch) -> EntryBatch:
        """What of an unconfirmed batch is in the ledger, should it have turned out to be sealed meanwhile."""
        end = self._last_add_confirmed
        if not self.is_sealed or batch.last_entry_id <= end:
            return batch
        if batch.first_entry_id > end:
            raise EntryNotFound(
                f"no such entry: the ledger was sealed and its last entry is {end}",
                ledger_id=self.ledger_id,
                entry_id=batch.first_entry_id,
            )
        return batch.slice(batch.first_entry_id, end)

    def range_fetch(self, first: int, last: int, size_max: int | None = None) -> RangeFetch:
        """The reads of entries first..last. `size_max`: of only one batch, as large as possible, bytes."""
        return RangeFetch(
            self._pool,
            self._config,
            self._keys,
            self._metadata,
            first,
            last,
            refresh=self._refresh,
            entry_size=self._entry_size,
            learn=self.learn,
            sticky=self._sticky,
            size_max=size_max,
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
            self._stop_watching()

    def _release(self) -> None:
        self._is_closed = True
        self._changed.set()
        self._stop_watching()

    def _stop_watching(self) -> None:
        for watch in self._watches:
            watch.cancel()
        self._watches.clear()

    async def _learn_last_add_confirmed(self) -> None:
        self._take_in(await read_last_add_confirmed(self._pool, self._keys, self._metadata))

    def _take_in(self, found: LacRead) -> None:
        if found.length > 0 and found.last_add_confirmed >= 0:
            self._entry_size = found.length / (found.last_add_confirmed + 2)
        self._length = max(self._length, found.length)
        self.learn(found.last_add_confirmed)

    def learn(self, last_add_confirmed: int) -> int:
        """Take in what a bookie says is confirmed; what the reader believes then."""
        if is_growth_trusted(self._metadata):
            self._last_add_confirmed = max(self._last_add_confirmed, last_add_confirmed)
        return self._last_add_confirmed


def _check_range(name: str, first: int, last: int | None) -> None:
    if first < 0 or (last is not None and last < first):
        raise InvalidArgument(f"{name}({first}, {last}): must be 0 <= first <= last")


class _RangeSource:
    """The batches of one `read`; bounds are decided when the first is asked for."""

    def __init__(self, reader: LedgerReader, first: int, last: int | None) -> None:
        self._reader = reader
        self._first, self._last = first, last
        self._fetch: RangeFetch | None = None

    async def next_batch(self) -> EntryBatch | None:
        reader = self._reader
        if self._fetch is None:
            if self._last is None:
                reader.check_open()
                await reader.read_last_add_confirmed()
            else:
                await reader._check_confirmed(self._last)
            last = reader.last_add_confirmed if self._last is None else self._last
            self._fetch = reader.range_fetch(self._first, last)
        return await self._fetch.next_batch()


class _UnconfirmedSource:
    """The batches of one `read_unconfirmed`, none of them beyond an end that has become known."""

    def __init__(self, reader: LedgerReader, first: int, last: int) -> None:
        self._reader = reader
        self._next, self._last = first, last
        self._fetch: RangeFetch | None = None

    async def next_batch(self) -> EntryBatch | None:
        reader = self._reader
        await reader._check_unconfirmed(self._last if self._fetch is None else min(self._next, self._last))
        if self._fetch is None:
            self._fetch = reader.range_fetch(self._next, self._last)
        batch = await self._fetch.next_batch()
        if batch is None:
            return None
        batch = reader._within_end(batch)
        self._next = batch.last_entry_id + 1
        return batch
