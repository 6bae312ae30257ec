"""Entries of a closed extent, also of one that was compacted or rolled up.

Another ledger holds its entries then, under other ids: `protocol/log/compaction.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from bookies.client.base import EntryBatch
from bookies.client.base.iteration import Batches, BatchSource
from bookies.client.read.reader import LedgerReader
from bookies.protocol.log.kept import parse_kept, records_of, runs, span
from bookies.protocol.log.log_model import Extent, Manifest


async def extent_batches(ledger: LedgerReader, extent: Extent, first: int, last: int) -> Batches:
    """Return the entries of an extent with ids from `first` to `last`. `ledger`: its storage, sealed or with `last`."""
    shift = extent.shift or 0
    kept = None if extent.kept is None else await read_kept(ledger, extent.kept, shift)
    stored = range(first, last + 1) if kept is None else span(kept, first, last)
    if not stored:
        return Batches(_Nothing())
    batches = ledger.read_batches(shift + stored.start, shift + stored.stop - 1)
    return batches if extent.stored is None else Batches(_Named(batches, extent, kept))


def stored_entries(extent: Extent) -> range:
    """Return the entries that a closed extent has in its storage, truncated ones too, and the ids behind them."""
    assert extent.last is not None
    shift = extent.shift or 0
    count = extent.last + 1 if extent.kept is None else extent.kept + records_of(extent.kept)
    return range(shift, shift + count)


async def read_kept(ledger: LedgerReader, count: int, shift: int = 0) -> Sequence[int]:
    """Return the ids of the entries that a compaction has kept. `shift`: entries before them in the ledger.

    Raises `MetadataCorrupt`.
    """
    records: list[bytes] = []
    async for batch in ledger.read_batches(shift + count, shift + count + records_of(count) - 1):
        records += batch.payloads()
    return parse_kept(ledger.ledger_id, records, count)


def named(batch: EntryBatch, kept: Sequence[int], ledger_id: int) -> Iterator[EntryBatch]:
    """Iterate over the entries of a compacted ledger's batch under the ids that they have in the log."""
    for run in runs(kept, batch.first_entry_id, batch.last_entry_id + 1):
        part = batch.slice(run.start, run.stop - 1)
        yield EntryBatch(ledger_id, kept[run.start], part.data, part.starts, part.header_size)


class ReadAhead:
    """Entries of a ledger that extents share, read on from one extent to the next. `last`: the last one of them."""

    def __init__(self, ledger: LedgerReader, first: int, last: int) -> None:
        self.ledger_id = ledger.ledger_id
        self.next = first
        self._batches = ledger.read_batches(first, last)
        self._rest: EntryBatch | None = None

    def batches(self, extent: Extent, last: int) -> Batches:
        """Return the entries of an extent from the next one on, up to its entry `last`."""
        return Batches(_Named(Batches(_UpTo(self, (extent.shift or 0) + last)), extent, None))

    async def next_batch(self, last: int) -> EntryBatch | None:
        """Return the next entries, up to `last`; None: they were returned."""
        if self.next > last:
            return None
        batch = await anext(self._batches) if self._rest is None else self._rest
        is_whole = batch.last_entry_id <= last
        self._rest = None if is_whole else batch.slice(last + 1, batch.last_entry_id)
        part = batch if is_whole else batch.slice(batch.first_entry_id, last)
        self.next = part.last_entry_id + 1
        return part


def shared_end(manifest: Manifest, extent: Extent) -> int:
    """Return the last entry in the ledger that a rolled-up extent shares with those that follow it in the list."""
    last = extent
    for one in manifest.extents:
        if one.seq > extent.seq:
            if one.storage != extent.storage or one.kept is not None:
                break
            last = one
    return stored_entries(last).stop - 1


class _UpTo(BatchSource):
    def __init__(self, ahead: ReadAhead, last: int) -> None:
        self._ahead = ahead
        self._last = last

    async def next_batch(self) -> EntryBatch | None:
        return await self._ahead.next_batch(self._last)


class _Named(BatchSource):
    """Entries of an extent under the ids that they have in the log. `kept`: these ids; None: it has all entries."""

    def __init__(self, batches: Batches, extent: Extent, kept: Sequence[int] | None) -> None:
        self._batches = batches
        self._kept = kept
        self._ledger_id = extent.ledger_id
        self._shift = extent.shift or 0
        self._ready: deque[EntryBatch] = deque()

    async def next_batch(self) -> EntryBatch | None:
        while not self._ready:
            batch = await anext(self._batches, None)
            if batch is None:
                return None
            first = batch.first_entry_id - self._shift
            batch = EntryBatch(self._ledger_id, first, batch.data, batch.starts, batch.header_size)
            self._ready.extend([batch] if self._kept is None else named(batch, self._kept, self._ledger_id))
        return self._ready.popleft()


class _Nothing(BatchSource):
    async def next_batch(self) -> EntryBatch | None:
        return None
