"""A ledger open for reading: sequential and batch reads, last add confirmed, tailing. Never fences, writes nothing.

What it knows, and the bounds that follow, are in `view.py`; how entries are fetched in `fetch.py`. Source:
client-protocol 3 and 6.1.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from types import TracebackType
from typing import TYPE_CHECKING, Self

from bookies.client.base import Entry, EntryBatch
from bookies.client.base.arguments import TimeLimit, whole_number
from bookies.client.base.entries import LastConfirmedAndEntry
from bookies.client.base.iteration import Batches as Batches
from bookies.client.base.iteration import Entries as Entries
from bookies.client.base.keys import Keys
from bookies.client.read.reader_state import OpenFiles, ReaderState
from bookies.client.read.sources import RangeSource, UnconfirmedSource
from bookies.client.read.tail import TailSource
from bookies.client.transport import BookiePool
from bookies.config import ClientConfig
from bookies.errors import EntryNotFound, InvalidArgument
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.driver import Versioned
from bookies.model import LedgerMetadata, LedgerState

if TYPE_CHECKING:
    import pyarrow

_STATE_NAMES = {LedgerState.OPEN: "open", LedgerState.IN_RECOVERY: "in recovery", LedgerState.CLOSED: "sealed"}
BATCH_COUNT_MAX = 10_000  # entries of an unconfirmed batch whose caller names no number


class LedgerReader:
    """Made by `Client.open` and `Client.recover`."""

    def __init__(self, view: ReaderState) -> None:
        self._view = view

    @classmethod
    async def begin(
        cls,
        pool: BookiePool,
        driver: MetadataDriver,
        config: ClientConfig,
        keys: Keys,
        found: Versioned,
        *,
        files: OpenFiles | None = None,
        is_offloaded: bool = False,
    ) -> LedgerReader:
        """Open without recovery: watch the metadata and learn the last add confirmed, unless the ledger is sealed.

        `files`: where to read what bookies need not have any more; `is_offloaded`: from there at once. Raises
        `BookieTimeout`, `ReadFailed`, `Unauthorized`, `NotSupported` (no copy, or no pyarrow).
        """
        view = await ReaderState.begin(pool, driver, config, keys, found)
        if files is not None:
            view.may_read_from(files, at_once=is_offloaded)
        return cls(view)

    # -- state, without asking anybody ---------------------------------------------------------------------------
    @property
    def ledger_id(self) -> int:
        return self._view.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The record as last seen."""
        return self._view.metadata

    @property
    def is_sealed(self) -> bool:
        """Whether the ledger has ended, as far as known."""
        return self._view.is_sealed

    @property
    def last_add_confirmed(self) -> int:
        """The last entry known to be readable; of a sealed ledger its end. -1: none. `read_last_add_confirmed` asks."""
        return self._view.last_add_confirmed

    @property
    def length(self) -> int:
        """Payload bytes of the ledger; of one that is not sealed those up to the newest entry heard of, a hint."""
        return self._view.length

    @property
    def labels(self) -> dict[str, str]:
        return {name: value.decode("utf-8", "replace") for name, value in self.metadata.custom_metadata.items()}

    def __repr__(self) -> str:
        record = self.metadata
        state = "let go" if self._view.is_closed else "sealed" if record.is_closed else _STATE_NAMES[record.state]
        return (
            f"<LedgerReader {record.ledger_id} {state} E{record.ensemble_size}/Qw{record.write_quorum}"
            f"/Qa{record.ack_quorum} last_add_confirmed={self.last_add_confirmed} "
            f"ensemble=[{', '.join(record.last_ensemble)}]>"
        )

    # -- reading -------------------------------------------------------------------------------------------------
    def read(self, first: int = 0, last: int | None = None, *, timeout: float | None = None) -> Entries:
        """The entries first..last in order; `last` None: up to the last add confirmed when the iteration begins.

        `async for entry in ledger.read()`; `.batches()` gives verified batches instead of entries. `timeout`: seconds
        that a step may take. The iteration raises `InvalidArgument`, `NotConfirmed` (beyond the last add confirmed),
        `TimeoutError`, and what every replica of an entry failing leads to: `EntryNotFound`, `DigestMismatch`,
        `BookieUnreachable` and so on.
        """
        first, last = _range("read", first, last)
        return Entries(RangeSource(self._view, first, last), timeout)

    def read_batches(self, first: int = 0, last: int | None = None, *, timeout: float | None = None) -> Batches:
        """As `read`, in verified batches that stay in the buffers they arrived in."""
        return self.read(first, last, timeout=timeout).batches()

    async def read_arrow(
        self, first: int = 0, last: int | None = None, *, timeout: float | None = None
    ) -> pyarrow.Table:
        """As `read`, as a pyarrow.Table: ledger_id and entry_id (int64), value (binary); no object per entry.

        `timeout`: seconds for all of it.
        """
        from bookies.client.read.arrow import table_of

        async with TimeLimit(timeout, self._reading()):
            return table_of([batch async for batch in self.read_batches(first, last)])

    async def read_entry(self, entry_id: int, *, parallel: bool = False, timeout: float | None = None) -> Entry:
        """One entry. `parallel`: ask all its replicas at once, for the sake of time. `timeout`: seconds."""
        entry_id = whole_number("entry_id", entry_id)
        if timeout is None:
            return await self._read_entry(entry_id, parallel)
        async with TimeLimit(timeout, f"{self._reading()}, entry {entry_id}"):
            return await self._read_entry(entry_id, parallel)

    async def _read_entry(self, entry_id: int, is_parallel: bool) -> Entry:
        view = self._view
        if entry_id > view.last_add_confirmed or view.is_closed:
            await view.check_confirmed(entry_id)
        batch = await view.read_one(entry_id, is_parallel=is_parallel)
        return next(batch.entries())

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
        first, count_max = whole_number("first", first), whole_number("count_max", count_max)
        size_max = whole_number("size_max", size_max)
        size_max = min(size_max or self._view.pool.batch_size_max, self._view.pool.batch_size_max)
        async with TimeLimit(timeout, f"{self._reading()} from entry {first} on"):
            if unconfirmed:
                last = first + (count_max or BATCH_COUNT_MAX) - 1
                await self._view.check_unconfirmed(first)
                if self.is_sealed:
                    last = min(last, self.last_add_confirmed)
            else:
                await self._view.check_confirmed(first)
                last = min(first + count_max - 1, self.last_add_confirmed) if count_max else self.last_add_confirmed
            fetch = self._view.range_fetch(first, last, size_max=size_max)
            try:
                batch = await fetch.next_batch()
            finally:
                fetch.stop()
        assert batch is not None
        if unconfirmed:
            batch = self._view.within_end(batch)
        count = max(1, bisect_right(batch.starts, batch.starts[0] + size_max) - 1)
        return batch.slice(first, min(batch.last_entry_id, first + count - 1))

    def read_unconfirmed(self, first: int, last: int, *, timeout: float | None = None) -> Entries:
        """The entries first..last without regard to the last add confirmed: what the bookies hold of an open ledger.

        An entry that is not confirmed may turn out not to be in the ledger; nothing that outlives the read should
        depend on it. Raises `EntryNotFound` at the first entry that no bookie holds, and for those beyond the end of a
        ledger that is known to be sealed, whatever bookies hold there. `timeout`: seconds that a step may take.
        Source: client-protocol 3.2.
        """
        last = whole_number("last", last, None)
        first, _ = _range("read_unconfirmed", first, last)
        return Entries(UnconfirmedSource(self._view, first, last), timeout)

    async def read_last(self, *, timeout: float | None = None) -> Entry:
        """The entry at the last add confirmed, which is refreshed first. Raises `EntryNotFound` when there is none."""
        async with TimeLimit(timeout, f"read the last entry of ledger {self.ledger_id}"):
            last = await self.read_last_add_confirmed()
            if last < 0:
                raise EntryNotFound("the ledger has no entry to read yet", ledger_id=self.ledger_id)
            return await self.read_entry(last)

    def tail(self, first: int | None = None, *, timeout: float | None = None) -> Entries:
        """Entries from `first` on (None: the next one that is not readable yet), waiting for new ones until the seal.

        The iteration ends when the ledger is sealed and its last entry was delivered. It survives bookies that fail;
        it raises when none has answered for 30 seconds, and `TimeoutError` when no entry came for `timeout` seconds.
        """
        start = self.last_add_confirmed + 1 if first is None else whole_number("first", first)
        return Entries(TailSource(self._view, start), timeout)

    # -- last add confirmed --------------------------------------------------------------------------------------
    async def read_last_add_confirmed(self, *, timeout: float | None = None) -> int:
        """Ask the bookies for the last entry that may be read, -1: none; a sealed ledger answers by itself.

        Certain: the answers leave no room for a later entry that was confirmed and told to them. Never less than
        what was known before. Raises `ReadFailed`, `BookieTimeout` and so on when too few bookies answer.
        """
        async with TimeLimit(timeout, f"{self._reading()}, its last add confirmed"):
            return await self._view.refresh_last_add_confirmed()

    async def try_read_last_add_confirmed(self, *, timeout: float | None = None) -> int:
        """As `read_last_add_confirmed`, content with the first bookie that knows more, or with any answer at all.

        Raises `RecoveryFailed` when no bookie answered.
        """
        async with TimeLimit(timeout, f"{self._reading()}, its last add confirmed"):
            return await self._view.try_last_add_confirmed()

    async def read_last_add_confirmed_and_entry(
        self, entry_id: int, *, wait: float = 2.0, parallel: bool = False, timeout: float | None = None
    ) -> LastConfirmedAndEntry:
        """Wait until the entry is confirmed, at most about `wait` seconds; the entry is None when it is not by then.

        `parallel`: ask all bookies at once. Without an entry the ledger may have ended before it: see `is_sealed`.
        `timeout`: seconds for everything, then `TimeoutError`. Raises `LedgerUnknownToBookie` of a ledger that nobody
        has written to, of which bookies cannot give news, for they do not know it; `tail` waits. Source:
        client-protocol 3.6.
        """
        entry_id = whole_number("entry_id", entry_id)
        if isinstance(wait, bool) or not isinstance(wait, int | float) or not wait >= 0:
            raise InvalidArgument(f"wait={wait!r}: must be a number of seconds, 0 or more")
        loop = asyncio.get_running_loop()
        end = loop.time() + wait
        async with TimeLimit(timeout, f"{self._reading()}, entry {entry_id} and the last add confirmed"):
            while True:
                self._view.check_open()
                await self._view.follow_metadata()
                if entry_id <= self.last_add_confirmed:
                    return LastConfirmedAndEntry(self.last_add_confirmed, await self.read_entry(entry_id))
                remaining = end - loop.time()
                if self.is_sealed or (remaining <= 0 and wait > 0):
                    return LastConfirmedAndEntry(self.last_add_confirmed, None)
                batch = await self._view.wait_for_news(entry_id, remaining, is_parallel=parallel)
                if batch is not None:
                    return LastConfirmedAndEntry(self.last_add_confirmed, next(batch.entries()))
                wait = wait or 1e-9  # Bookies have been asked once.

    def _reading(self) -> str:
        """What takes too long, for messages."""
        return f"read ledger {self.ledger_id}"

    async def close(self) -> None:
        """Let go of the handle; nothing happens to the ledger. Idempotent."""
        self._view.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def _range(name: str, first: int, last: int | None) -> tuple[int, int | None]:
    """Both as whole numbers. Raises `InvalidArgument`."""
    first = whole_number("first", first, None)
    last = None if last is None else whole_number("last", last, None)
    if first < 0 or (last is not None and last < first):
        raise InvalidArgument(f"{name}({first}, {last}): must be 0 <= first <= last")
    return first, last
