"""Asynchronous iterators over entries: one by one, or in verified batches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from bookies.client.base.arguments import TimeLimit, seconds
from bookies.client.base.entries import Entry, EntryBatch
from bookies.errors import InvalidArgument
from bookies.kernels import Steps


class BatchSource(Protocol):
    async def next_batch(self) -> EntryBatch | None:
        """Return the next entries, None at the end. May be called again after a cancellation."""


class Entries(Steps[Entry]):
    """Asynchronous iterator over single entries, for one task; `batches()` returns them as `EntryBatch`es instead.

    `timeout`: seconds that a step may wait. After the `TimeoutError` the iteration may be continued.
    """

    def __init__(self, source: BatchSource, timeout: float | None = None) -> None:
        super().__init__()
        self._batches = Batches(source, timeout)

    async def _more(self) -> Entry:
        self._items = (await anext(self._batches)).entries()
        return next(self._items)

    def batches(self) -> Batches:
        """Return the same iteration by batches. Entries of batches that were already delivered are not repeated."""
        return self._batches


class Batches:
    """Asynchronous iterator over verified batches, for one task. `timeout`: as in `Entries`."""

    def __init__(self, source: BatchSource, timeout: float | None = None) -> None:
        self._source = source
        self._timeout = seconds(timeout)
        self._is_waited_for = False

    def __aiter__(self) -> AsyncIterator[EntryBatch]:
        return self

    async def __anext__(self) -> EntryBatch:
        if self._is_waited_for:
            raise InvalidArgument("another task waits for this iteration's next step: begin an iteration for each task")
        self._is_waited_for = True
        try:
            async with TimeLimit(self._timeout, "the next step of an iteration"):
                batch = await self._source.next_batch()
        finally:
            self._is_waited_for = False
        if batch is None:
            raise StopAsyncIteration
        return batch
