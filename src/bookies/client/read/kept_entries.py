"""Entries of a closed extent, also of one that was compacted: its ledger holds the kept entries, under other ids."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence

from bookies.client.base import EntryBatch
from bookies.client.base.iteration import Batches, BatchSource
from bookies.client.read.reader import LedgerReader
from bookies.protocol.log.kept import parse_kept, runs, span
from bookies.protocol.log.log_model import Extent


async def extent_batches(ledger: LedgerReader, extent: Extent, first: int, last: int) -> Batches:
    """Return the entries of an extent with ids from `first` to `last`. `ledger`: its storage, sealed or with `last`."""
    if extent.kept is None:
        return ledger.read_batches(first, last) if first <= last else Batches(_Nothing())
    kept = await read_kept(ledger, extent.kept)
    stored = span(kept, first, last)
    if not stored:
        return Batches(_Nothing())
    return Batches(_Named(ledger.read_batches(stored.start, stored.stop - 1), kept, extent.ledger_id))


async def read_kept(ledger: LedgerReader, count: int) -> Sequence[int]:
    """Return the ids of the entries that a compacted ledger holds. Raises `MetadataCorrupt`."""
    records: list[bytes] = []
    async for batch in ledger.read_batches(count):
        records += batch.payloads()
    return parse_kept(ledger.ledger_id, records, count)


def named(batch: EntryBatch, kept: Sequence[int], ledger_id: int) -> Iterator[EntryBatch]:
    """Iterate over the entries of a compacted ledger's batch under the ids that they have in the log."""
    for run in runs(kept, batch.first_entry_id, batch.last_entry_id + 1):
        part = batch.slice(run.start, run.stop - 1)
        yield EntryBatch(ledger_id, kept[run.start], part.data, part.starts, part.header_size)


class _Named(BatchSource):
    def __init__(self, batches: AsyncIterator[EntryBatch], kept: Sequence[int], ledger_id: int) -> None:
        self._batches = batches
        self._kept = kept
        self._ledger_id = ledger_id
        self._ready: deque[EntryBatch] = deque()

    async def next_batch(self) -> EntryBatch | None:
        while not self._ready:
            batch = await anext(self._batches, None)
            if batch is None:
                return None
            self._ready.extend(named(batch, self._kept, self._ledger_id))
        return self._ready.popleft()


class _Nothing(BatchSource):
    async def next_batch(self) -> EntryBatch | None:
        return None
