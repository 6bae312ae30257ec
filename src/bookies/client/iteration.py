"""Asynchronous iterators over what a reader finds: entry by entry, or in verified batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Protocol

from bookies.client.entries import Entry, EntryBatch


class BatchSource(Protocol):
    async def next_batch(self) -> EntryBatch | None:
        """The next entries, None at the end. May be called again after it was cancelled."""


class Entries:
    """Asynchronous iterator over single entries; `batches()` gives the same entries as `EntryBatch`es.

    `timeout`: seconds that a step may wait; then it raises `TimeoutError`, and the iteration may be continued.
    """

    def __init__(self, source: BatchSource, timeout: float | None = None) -> None:
        self._batches = Batches(source, timeout)
        self._entries: Iterator[Entry] = iter(())

    def __aiter__(self) -> AsyncIterator[Entry]:
        return self

    async def __anext__(self) -> Entry:
        for entry in self._entries:
            return entry
        self._entries = (await anext(self._batches)).entries()
        return next(self._entries)

    def batches(self) -> Batches:
        return self._batches


class Batches:
    """Asynchronous iterator over verified batches. `timeout`: as of `Entries`."""

    def __init__(self, source: BatchSource, timeout: float | None = None) -> None:
        self._source = source
        self._timeout = timeout

    def __aiter__(self) -> AsyncIterator[EntryBatch]:
        return self

    async def __anext__(self) -> EntryBatch:
        async with asyncio.timeout(self._timeout):
            batch = await self._source.next_batch()
        if batch is None:
            raise StopAsyncIteration
        return batch
