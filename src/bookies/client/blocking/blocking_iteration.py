"""Iterations without asyncio, over ledgers and logs. A step is a call; after a time-out it may be repeated."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Protocol, TypeVar

from bookies.client.base import Entry, EntryBatch

T = TypeVar("T")


class Caller(Protocol):
    """Runs coroutines for a thread that waits."""

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T: ...


async def run(function: Callable[[], T]) -> T:
    """Call a function on the loop's own thread, although it never waits."""
    return function()


async def next_or_none(items: AsyncIterator[T]) -> T | None:
    """Return the next item, None at the end."""
    return await anext(items, None)


class BlockingBatches(Iterator[T]):
    """An iteration over batches. After a `TimeoutError` it may be repeated."""

    def __init__(self, thread: Caller, batches: AsyncIterator[T]) -> None:
        self._thread = thread
        self._batches = batches

    def __next__(self) -> T:
        batch = self._thread.call(next_or_none(self._batches))
        if batch is None:
            raise StopIteration
        return batch


class BlockingEntries(Iterator[Entry]):
    """An iteration over the entries of batches. After a `TimeoutError` it may be repeated."""

    def __init__(self, batches: Iterator[EntryBatch]) -> None:
        self._batches = batches
        self._entries: Iterator[Entry] = iter(())

    def batches(self) -> Iterator[EntryBatch]:
        """Return the same iteration, batch by batch. Entries delivered singly, and their batches, are not repeated."""
        return self._batches

    def __next__(self) -> Entry:
        return next(iter(self))

    def __iter__(self) -> Iterator[Entry]:
        # A loop runs over this generator instead of `__next__`: three times as fast.
        yield from self._entries
        for batch in self._batches:
            self._entries = batch.entries()
            yield from self._entries
