"""Where the batches of a reader's iterations come from: bounds are decided when the first batch is asked for."""

from __future__ import annotations

from bookies.client.base import EntryBatch
from bookies.client.read.fetch import RangeFetch
from bookies.client.read.offloaded import OffloadedFetch
from bookies.client.read.reader_state import ReaderState


class RangeSource:
    """Confirmed entries first..last; `last` None: up to the last add confirmed, which is asked for."""

    def __init__(self, view: ReaderState, first: int, last: int | None) -> None:
        self._view = view
        self._first, self._last = first, last
        self._fetch: RangeFetch | OffloadedFetch | None = None

    async def next_batch(self) -> EntryBatch | None:
        view = self._view
        if self._fetch is None:
            if self._last is None:
                view.check_open()
                await view.refresh_last_add_confirmed()
            else:
                await view.check_confirmed(self._last)
            last = view.last_add_confirmed if self._last is None else self._last
            self._fetch = view.range_fetch(self._first, last)
        return await self._fetch.next_batch()


class UnconfirmedSource:
    """Entries first..last that bookies hold, none of them beyond an end that has become known."""

    def __init__(self, view: ReaderState, first: int, last: int) -> None:
        self._view = view
        self._next, self._last = first, last
        self._fetch: RangeFetch | OffloadedFetch | None = None

    async def next_batch(self) -> EntryBatch | None:
        view = self._view
        await view.check_unconfirmed(self._last if self._fetch is None else min(self._next, self._last))
        if self._fetch is None:
            self._fetch = view.range_fetch(self._next, self._last)
        batch = await self._fetch.next_batch()
        if batch is None:
            return None
        batch = view.within_end(batch)
        self._next = batch.last_entry_id + 1
        return batch
