"""Sources of a reader's iterations. Their bounds are determined when the first batch is requested."""

from __future__ import annotations

from bookies.client.base import EntryBatch
from bookies.client.read.fetch import RangeFetch
from bookies.client.read.offloaded import OffloadedFetch
from bookies.client.read.reader_state import ReaderState


class RangeSource:
    """Confirmed entries first..last; `last` None: up to the last add confirmed, for which the bookies are asked."""

    def __init__(self, state: ReaderState, first: int, last: int | None) -> None:
        self._state = state
        self._first, self._last = first, last
        self._fetch: RangeFetch | OffloadedFetch | None = None

    async def next_batch(self) -> EntryBatch | None:
        state = self._state
        if self._fetch is None:
            if self._last is None:
                state.check_open()
                await state.refresh_last_add_confirmed()
            else:
                await state.check_confirmed(self._last)
            last = state.last_add_confirmed if self._last is None else self._last
            self._fetch = state.range_fetch(self._first, last)
        return await self._fetch.next_batch()


class UnconfirmedSource:
    """Entries first..last that bookies hold, none of them after a known end of the ledger."""

    def __init__(self, state: ReaderState, first: int, last: int) -> None:
        self._state = state
        self._next, self._last = first, last
        self._fetch: RangeFetch | OffloadedFetch | None = None

    async def next_batch(self) -> EntryBatch | None:
        state = self._state
        await state.check_unconfirmed(self._last if self._fetch is None else min(self._next, self._last))
        if self._fetch is None:
            self._fetch = state.range_fetch(self._next, self._last)
        batch = await self._fetch.next_batch()
        if batch is None:
            return None
        batch = state.within_end(batch)
        self._next = batch.last_entry_id + 1
        return batch
