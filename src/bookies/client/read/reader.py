"""A ledger open for reading: range and batch reads, last add confirmed, tailing. Never fences, never writes.

`reader_state.py` holds the reader's state and the bounds that follow from it; `fetch.py` fetches entries. Source:
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
from bookies.client.read.reader_state import CopyUse, ReaderState
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
BATCH_COUNT_MAX = 10_000  # entries of an unconfirmed batch whose caller gives no `count_max`


class LedgerReader:
    """A ledger open for reading, as `Client.open` and `Client.recover` return it."""

    def __init__(self, state: ReaderState) -> None:
        self._state = state

    @classmethod
    async def begin(
        cls,
        pool: BookiePool,
        driver: MetadataDriver,
        config: ClientConfig,
        keys: Keys,
        versioned: Versioned,
        copy: CopyUse | None = None,
    ) -> LedgerReader:
        """Open without recovery: watch the metadata and learn the last add confirmed, unless the ledger is sealed.

        `copy`: the offloaded copy, for entries that the bookies may drop; None: only bookies are asked. Raises
        `BookieTimeout`, `ReadFailed`, `Unauthorized`, `NotSupported` (no copy, or no pyarrow).
        """
        state = await ReaderState.begin(pool, driver, config, keys, versioned)
        if copy is not None:
            state.use_copy(copy)
        return cls(state)

    # -- state, without a request --------------------------------------------------------------------------------
    @property
    def ledger_id(self) -> int:
        """The ledger's id."""
        return self._state.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's record as last read."""
        return self._state.metadata

    @property
    def is_sealed(self) -> bool:
        """True if the ledger is sealed, by the record last read."""
        return self._state.is_sealed

    @property
    def last_add_confirmed(self) -> int:
        """The last entry known to be readable; -1: none.

        Of a sealed ledger its last entry. `read_last_add_confirmed` updates it.
        """
        return self._state.last_add_confirmed

    @property
    def length(self) -> int:
        """Payload bytes of the ledger. Of a ledger that is not sealed, an estimate: up to the newest known entry."""
        return self._state.length

    @property
    def labels(self) -> dict[str, str]:
        """The ledger's labels, as text."""
        return {name: value.decode("utf-8", "replace") for name, value in self.metadata.custom_metadata.items()}

    def learn(self, last_add_confirmed: int) -> None:
        """Note that entries are confirmed, from the ledger's writer in the same client."""
        self._state.learn(last_add_confirmed)

    def __repr__(self) -> str:
        record = self.metadata
        state = "closed" if self._state.is_closed else "sealed" if record.is_closed else _STATE_NAMES[record.state]
        return (
            f"<LedgerReader {record.ledger_id} {state} E{record.ensemble_size}/Qw{record.write_quorum}"
            f"/Qa{record.ack_quorum} last_add_confirmed={self.last_add_confirmed} "
            f"ensemble=[{', '.join(record.last_ensemble)}]>"
        )

    # -- reading -------------------------------------------------------------------------------------------------
    def read(self, first: int = 0, last: int | None = None, *, timeout: float | None = None) -> Entries:
        """Iterate over entries first..last in order; `last` None: up to the last add confirmed at the first step.

        `async for entry in ledger.read()`; `.batches()` returns verified batches instead of entries. `timeout`: seconds
        that a step may take.

        The iteration raises `InvalidArgument`, `NotConfirmed` (after the last add confirmed), `TimeoutError`, and if
        every replica of an entry fails, `EntryNotFound`, `DigestMismatch`, `BookieUnreachable` and similar errors.
        """
        first, last = _range("read", first, last)
        return Entries(RangeSource(self._state, first, last), timeout)

    def read_batches(self, first: int = 0, last: int | None = None, *, timeout: float | None = None) -> Batches:
        """Iterate as `read` does, in verified batches that stay in their receive buffers."""
        return self.read(first, last, timeout=timeout).batches()

    async def read_arrow(
        self, first: int = 0, last: int | None = None, *, timeout: float | None = None
    ) -> pyarrow.Table:
        """Read as `read` does, into a pyarrow.Table: ledger_id and entry_id (int64), value (binary).

        It creates no Python object per entry. `timeout`: seconds for the whole read.
        """
        from bookies.client.read.arrow import table_of

        async with TimeLimit(timeout, self._reading()):
            return table_of([batch async for batch in self.read_batches(first, last)])

    async def read_entry(self, entry_id: int, *, parallel: bool = False, timeout: float | None = None) -> Entry:
        """Read one entry. `parallel`: ask all its replicas at once, which reduces latency. `timeout`: seconds."""
        entry_id = whole_number("entry_id", entry_id)
        if timeout is None:
            return await self._read_entry(entry_id, parallel)
        async with TimeLimit(timeout, f"{self._reading()}, entry {entry_id}"):
            return await self._read_entry(entry_id, parallel)

    async def _read_entry(self, entry_id: int, is_parallel: bool) -> Entry:
        state = self._state
        if entry_id > state.last_add_confirmed or state.is_closed:
            await state.check_confirmed(entry_id)
        batch = await state.read_one(entry_id, is_parallel=is_parallel)
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
        """Read consecutive entries from `first` on: at least one, possibly fewer than are available.

        * `count_max`: entries; 0: as many as fit.
        * `size_max`: bytes of their records, exceeded only by a longer first entry; 0: what fits into a frame.
        * `unconfirmed`: read past the last add confirmed too (see `read_unconfirmed`), but never past the end.
        * `timeout`: seconds.

        Raises what `read` raises. Source: client-protocol 3.8.
        """
        first, count_max = whole_number("first", first), whole_number("count_max", count_max)
        size_max = whole_number("size_max", size_max)
        size_max = min(size_max or self._state.context.pool.batch_size_max, self._state.context.pool.batch_size_max)
        async with TimeLimit(timeout, f"{self._reading()} from entry {first} on"):
            if unconfirmed:
                last = first + (count_max or BATCH_COUNT_MAX) - 1
                await self._state.check_unconfirmed(first)
                if self.is_sealed:
                    last = min(last, self.last_add_confirmed)
            else:
                await self._state.check_confirmed(first)
                last = min(first + count_max - 1, self.last_add_confirmed) if count_max else self.last_add_confirmed
            fetch = self._state.range_fetch(first, last, size_max=size_max)
            try:
                batch = await fetch.next_batch()
            finally:
                fetch.stop()
        assert batch is not None
        if unconfirmed:
            batch = self._state.within_end(batch)
        count = max(1, bisect_right(batch.starts, batch.starts[0] + size_max) - 1)
        return batch.slice(first, min(batch.last_entry_id, first + count - 1))

    def read_unconfirmed(self, first: int, last: int, *, timeout: float | None = None) -> Entries:
        """Iterate over entries first..last that bookies hold, regardless of the last add confirmed.

        An unconfirmed entry may turn out not to be in the ledger; use it for no lasting result. Raises `EntryNotFound`
        at the first entry that no bookie holds, and for entries after the end of a sealed ledger even if bookies hold
        them. `timeout`: seconds that a step may take. Source: client-protocol 3.2.
        """
        last = whole_number("last", last, None)
        first, _ = _range("read_unconfirmed", first, last)
        return Entries(UnconfirmedSource(self._state, first, last), timeout)

    async def read_last(self, *, timeout: float | None = None) -> Entry:
        """Read the entry at the last add confirmed, which is updated first.

        `timeout`: seconds. Raises `EntryNotFound` if there is none.
        """
        async with TimeLimit(timeout, f"read the last entry of ledger {self.ledger_id}"):
            last = await self.read_last_add_confirmed()
            if last < 0:
                raise EntryNotFound("the ledger has no entry to read yet", ledger_id=self.ledger_id)
            return await self.read_entry(last)

    def tail(self, first: int | None = None, *, timeout: float | None = None) -> Entries:
        """Iterate from entry `first` on (None: the first one not readable yet), waiting for new entries until the seal.

        The iteration ends after the last entry of the sealed ledger. It survives failing bookies. It raises if no
        bookie has answered for 30 seconds, and `TimeoutError` if no entry arrived for `timeout` seconds.
        """
        start = self.last_add_confirmed + 1 if first is None else whole_number("first", first)
        return Entries(TailSource(self._state, start), timeout)

    # -- last add confirmed --------------------------------------------------------------------------------------
    async def read_last_add_confirmed(self, *, timeout: float | None = None) -> int:
        """Ask the bookies for the last entry that may be read and return its id, -1: none.

        Of a sealed ledger it is known.

        The result is certain: the answers exclude a later entry that was confirmed and announced to the bookies. It is
        never less than the value known before. `timeout`: seconds. Raises `ReadFailed`, `BookieTimeout` and similar
        errors if too few bookies answer.
        """
        async with TimeLimit(timeout, f"{self._reading()}, its last add confirmed"):
            return await self._state.refresh_last_add_confirmed()

    async def try_read_last_add_confirmed(self, *, timeout: float | None = None) -> int:
        """Ask as `read_last_add_confirmed` does, until one bookie reports more than is known or all have answered.

        `timeout`: seconds. Raises `RecoveryFailed` if no bookie answered.
        """
        async with TimeLimit(timeout, f"{self._reading()}, its last add confirmed"):
            return await self._state.try_last_add_confirmed()

    async def read_last_add_confirmed_and_entry(
        self, entry_id: int, *, wait: float = 2.0, parallel: bool = False, timeout: float | None = None
    ) -> LastConfirmedAndEntry:
        """Wait about `wait` seconds for the entry to be confirmed.

        The result's entry is None if it is not confirmed by then.

        * `wait`: seconds; 0: ask once.
        * `parallel`: ask all bookies at once.
        * `timeout`: seconds for the whole call, then `TimeoutError`.

        Without an entry, the ledger may have ended before it: see `is_sealed`. Raises `LedgerUnknownToBookie` for a
        ledger without entries, which its bookies do not know; `tail` waits instead. Source: client-protocol 3.6.
        """
        entry_id = whole_number("entry_id", entry_id)
        if isinstance(wait, bool) or not isinstance(wait, int | float) or not wait >= 0:
            raise InvalidArgument(f"wait={wait!r}: must be a number of seconds, 0 or more")
        loop = asyncio.get_running_loop()
        end = loop.time() + wait
        async with TimeLimit(timeout, f"{self._reading()}, entry {entry_id} and the last add confirmed"):
            while True:
                self._state.check_open()
                await self._state.follow_metadata()
                if entry_id <= self.last_add_confirmed:
                    return LastConfirmedAndEntry(self.last_add_confirmed, await self.read_entry(entry_id))
                remaining = end - loop.time()
                if self.is_sealed or (remaining <= 0 and wait > 0):
                    return LastConfirmedAndEntry(self.last_add_confirmed, None)
                batch = await self._state.wait_for_news(entry_id, remaining, is_parallel=parallel)
                if batch is not None:
                    return LastConfirmedAndEntry(self.last_add_confirmed, next(batch.entries()))
                wait = wait or 1e-9  # Bookies have been asked once.

    def _reading(self) -> str:
        """Name the operation, for messages."""
        return f"read ledger {self.ledger_id}"

    async def close(self) -> None:
        """Close the handle. The ledger does not change. Idempotent."""
        self._state.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def _range(name: str, first: int, last: int | None) -> tuple[int, int | None]:
    """Return both bounds as whole numbers. Raises `InvalidArgument`."""
    first = whole_number("first", first, None)
    last = None if last is None else whole_number("last", last, None)
    if first < 0 or (last is not None and last < first):
        raise InvalidArgument(f"{name}({first}, {last}): must be 0 <= first <= last")
    return first, last
