"""Reading of parts in tasks, and without Spark: from entry ranges to record batches.

The generator runs on the task's thread and receives verified batches from the loop's thread, which fetches ahead. The
partition has everything the task needs. The task asks the metadata store only if no replica delivers what the plan
named: the replicas may have moved, or the ledger may be deleted. Source: spark 3.5.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from bookies.errors import BookieTimeout, BookKeeperError, LedgerNotFound, LogNotFound, LogTruncated
from bookies.protocol.log.kept import parse_kept, records_of, span
from bookies.spark.base import arrow, plan, runtime
from bookies.spark.base.counters import TaskCounts
from bookies.spark.base.plan import Gap, Part, Range
from bookies.spark.base.settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa

    from bookies.client.base import EntryBatch
    from bookies.model import LedgerMetadata
    from bookies.spark.read.decode import Decoded, Decoder
    from bookies.spark.read.payload_schema import PayloadSchema

Item = tuple[Range, "EntryBatch"] | Gap
REMEDY = (
    "option failOnDataLoss=false continues and reports the gap as a row; option cursor makes truncation wait for a "
    "stream"
)


class RowReader(Struct, frozen=True):
    """Conversion of partitions to rows. `schema`: of the rows; `decoder`: for the columns inside the payload."""

    settings: Settings
    schema: pa.Schema
    decoder: Decoder | None

    def read(self, part: Part) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part.

        Raises the error that client-protocol 3.4 chooses if every replica of an entry failed, and the error of a gap.
        """
        counts = TaskCounts(len(part.ranges), len(part.gaps))
        try:
            yield from self._batches(part, counts)
        finally:
            counts.log()

    def _batches(self, part: Part, counts: TaskCounts) -> Iterator[pa.RecordBatch]:
        worker = runtime.worker()
        items = worker.iterate(lambda: self._fetch(worker, part, counts), _size, self.settings.read_ahead)
        waiting: list[pa.RecordBatch] = []
        size = 0
        for rows in arrow.stretches(items, self.settings.batch_size):
            batch = self._batch(rows, counts)
            # Spark has a cost per batch, so the rows of small ranges are joined.
            if waiting and size + batch.nbytes > self.settings.batch_size:
                yield _joined(waiting)
                waiting, size = [], 0
            waiting.append(batch)
            size += batch.nbytes
        if waiting:
            yield _joined(waiting)

    def _batch(self, rows: arrow.Stretch | Gap, counts: TaskCounts) -> pa.RecordBatch:
        if isinstance(rows, Gap):
            return arrow.gap_batch(rows, self.schema)
        open_records = self._records_of(rows.origin)
        if open_records is not None or self.decoder is not None:
            return self._decoded(rows, open_records, counts)
        return arrow.record_batch(rows, self.schema)

    def _records_of(self, origin: Range) -> Callable[[arrow.Stretch, pa.Array], Decoded] | None:
        """Return the function that opens the records in entries; None: an entry is the value."""
        from bookies.spark.read import decode, dlog_records, set_records

        settings = self.settings
        names = [name for name in arrow.ENVELOPE_COLUMNS if name in self.schema.names or name == "value"]
        if settings.record_format == "sets" or (settings.record_format == "auto" and origin.is_sets):
            return lambda rows, entries: set_records.opened(rows, entries, names, settings.mode)
        if settings.record_format == "envelope" or (settings.record_format == "auto" and origin.is_envelope):
            return lambda rows, entries: decode.opened(rows, entries, names, settings.mode)
        if settings.record_format == "auto" and origin.segment is not None:
            return lambda rows, entries: dlog_records.opened(rows, entries, settings.mode)
        return None

    def _decoded(
        self,
        rows: arrow.Stretch,
        open_records: Callable[[arrow.Stretch, pa.Array], Decoded] | None,
        counts: TaskCounts,
    ) -> pa.RecordBatch:
        import pyarrow as pa

        known = arrow.known_columns(self.settings)
        values = arrow.values(rows.batches)
        inside = None if open_records is None else open_records(rows, values)
        inner = {} if inside is None else inside.columns
        columns = {name: arrow.column(rows, name) for name in self.schema.names if name in known and name not in inner}
        if inside is not None:
            counts.malformed += inside.malformed
            if inside.taken is not None:
                columns = {name: column.take(inside.taken) for name, column in columns.items()}
                rows = replace(rows, taken=inside.taken)
            values = inner["value"]
            columns |= {name: column.cast(known[name][1]) for name, column in inner.items()}
        if self.decoder is not None:
            decoded = self.decoder.decode(rows, values)
            counts.malformed += decoded.malformed
            if decoded.taken is not None:
                columns = {name: column.take(decoded.taken) for name, column in columns.items()}
            columns |= decoded.columns
        return pa.RecordBatch.from_arrays([columns[name] for name in self.schema.names], schema=self.schema)

    # -- on the loop ---------------------------------------------------------------------------------------------
    async def _fetch(self, worker: runtime.Worker, part: Part, counts: TaskCounts) -> AsyncGenerator[Item, None]:
        for gap in part.gaps:
            yield gap
        pool = worker.pool(self.settings.uri, self.settings.config, part.addresses)
        for entry_range in part.ranges:
            async for item in self._range(worker, pool, entry_range, counts):
                yield item

    async def _range(
        self, worker: runtime.Worker, pool: Any, entry_range: Range, counts: TaskCounts
    ) -> AsyncGenerator[Item, None]:
        """Yield the entries of a range. They go on in another ledger if a compaction replaces theirs meanwhile."""
        rest: Range | None = entry_range
        while rest is not None:
            at = rest.first
            try:
                opened, stored = await self._opened(worker, pool, rest, counts)
                async for batch in self._entries(worker, pool, opened, stored, counts):
                    at = 1 + (batch.last_entry_id if opened.ids is None else opened.ids[batch.last_entry_id])
                    counts.batches += 1
                    counts.entries += len(batch)
                    counts.size += batch.size
                    yield opened, batch
                return
            except LedgerNotFound:
                following = await self._replaced(worker, rest, at)
                until = rest.last + 1 if following is None else following.first
                if at < until:
                    gap = _lost(rest, at, until)
                    if self.settings.fails_on_loss:
                        raise _loss_error(gap, rest) from None
                    counts.gaps += 1
                    yield gap
                rest = following

    async def _opened(
        self, worker: runtime.Worker, pool: Any, entry_range: Range, counts: TaskCounts
    ) -> tuple[Range, range]:
        """Return the range, of a compacted extent with its ids, and its entries in the ledger that holds them.

        They count from the first one that the extent has there.
        """
        if entry_range.kept is None:
            return entry_range, range(entry_range.first, entry_range.last + 1)
        ledger, records = entry_range.metadata, []
        behind = range(entry_range.kept, entry_range.kept + records_of(entry_range.kept))
        async for batch in self._entries(worker, pool, entry_range, behind, counts):
            records += batch.payloads()
        ids = parse_kept(ledger.ledger_id, records, entry_range.kept)
        return replace(entry_range, ids=ids), span(ids, entry_range.first, entry_range.last)

    async def _replaced(self, worker: runtime.Worker, entry_range: Range, at: int) -> Range | None:
        """Return the rest of a range, from entry `at` on, in the ledger that a compaction has put in place of its own.

        None: there is none, so the rest is lost.
        """
        if entry_range.row is None:
            return None  # It is of no log, or of one that is never compacted.
        client = await worker.client(self.settings.uri, self.settings.config)
        try:
            manifest = await client.log(str(entry_range.log), password=self.settings.password).manifest()
        except LogNotFound:
            return None
        for extent in manifest.extents:
            if (extent.seq, extent.ledger_id) == (entry_range.seq, entry_range.ledger_id):
                first, is_lost = max(at, extent.first), extent.storage == entry_range.metadata.ledger_id
                if is_lost or first > entry_range.last:
                    return None
                return replace(
                    entry_range.part(first, entry_range.last),
                    metadata=await client.metadata(extent.storage),
                    named=extent.ledger_id,
                    kept=extent.kept,
                    shift=extent.shift or 0,
                    replica=-1,
                    is_offloaded=False,
                )
        return None

    async def _entries(
        self, worker: runtime.Worker, pool: Any, entry_range: Range, stored: range, counts: TaskCounts
    ) -> AsyncGenerator[EntryBatch, None]:
        """Yield entries of the ledger that holds a range. `stored`: see `_opened`."""
        if not stored:
            return
        shift = entry_range.shift
        held = range(stored.start + shift, stored.stop + shift)
        if entry_range.is_offloaded:
            batches = _offloaded(worker, entry_range.metadata, held)
        else:
            batches = self._of_bookies(worker, pool, entry_range, held, counts)
        async for batch in batches:
            yield replace(batch, first_entry_id=batch.first_entry_id - shift) if shift else batch

    async def _of_bookies(
        self, worker: runtime.Worker, pool: Any, entry_range: Range, stored: range, counts: TaskCounts
    ) -> AsyncGenerator[EntryBatch, None]:
        """Yield entries of the ledger that holds a range. `stored`: their ids there."""
        from bookies.client.base.keys import keys_of
        from bookies.client.read.context import ReadContext
        from bookies.client.read.fetch import FetchWindow, RangeFetch
        from bookies.client.read.offloaded import OffloadedFetch, OffloadedFiles
        from bookies.protocol.ledger.read import StickyPosition

        ledger_id = entry_range.metadata.ledger_id

        async def refresh() -> LedgerMetadata:
            client = await worker.client(self.settings.uri, self.settings.config)
            return await client.metadata(ledger_id)

        opened: list[OffloadedFiles] = []

        def files(record: LedgerMetadata, first: int, last: int) -> OffloadedFetch:
            opened.append(OffloadedFiles(record))
            return OffloadedFetch(worker.files(), opened[-1], first, last)

        record, is_sticky = entry_range.metadata, entry_range.replica >= 0
        context = ReadContext(
            pool,
            self.settings.config,
            keys_of(record, self.settings.password),
            refresh,
            sticky=StickyPosition(record.ensemble_size, entry_range.replica) if is_sticky else None,
            files=None if self.settings.tier == "bookies" else files,
            counts=counts.fetch,
        )
        entry_size = max(0.0, entry_range.size / len(stored) - plan.ENTRY_OVERHEAD)
        fetch = RangeFetch(context, record, stored.start, stored.stop - 1, FetchWindow(context, entry_size))
        try:
            while True:
                began = worker.loop.time()
                try:
                    async with asyncio.timeout(self.settings.poll_timeout):
                        batch = await fetch.next_batch()
                except TimeoutError:
                    raise BookieTimeout(
                        f"no replica delivered an entry for {self.settings.poll_timeout:g} s (option pollTimeoutMs)",
                        ledger_id=ledger_id,
                    ) from None
                counts.wait_s += worker.loop.time() - began
                if batch is None:
                    return
                yield batch
        finally:
            fetch.stop()
            for file_set in opened:
                worker.files().run(file_set.close)


async def _offloaded(
    worker: runtime.Worker, metadata: LedgerMetadata, stored: range
) -> AsyncGenerator[EntryBatch, None]:
    """Yield entries from a ledger's offloaded copy."""
    from bookies.client.read.offloaded import OffloadedFetch, OffloadedFiles

    files = OffloadedFiles(metadata)
    fetch = OffloadedFetch(worker.files(), files, stored.start, stored.stop - 1)
    try:
        while (batch := await fetch.next_batch()) is not None:
            yield batch
    finally:
        worker.files().run(files.close)


def _size(item: Item) -> int:
    return 1 if isinstance(item, Gap) else item[1].size


def _joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    import pyarrow as pa

    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def _lost(entry_range: Range, at: int, until: int) -> Gap:
    log, seq = entry_range.log, entry_range.seq
    reason = "the ledger was deleted while it was read"
    return Gap(log, entry_range.ledger_id, seq, at, seq, until, until - at, entry_range.row_of(at), reason)


def _loss_error(gap: Gap, entry_range: Range) -> BookKeeperError:
    ledger = f"entries {gap.from_entry} to {gap.until_entry - 1} of ledger {gap.ledger_id}"
    if entry_range.log is None:
        return LedgerNotFound(f"{ledger} no longer exist: the ledger was deleted while it was read. {REMEDY}")
    return LogTruncated(f"{ledger} no longer exist: log {entry_range.log} was truncated while it was read. {REMEDY}")


def row_reader(settings: Settings, schema: Any, payload: PayloadSchema | None = None) -> RowReader:
    """Return the reader of a query. Raises `InvalidArgument`.

    schema: of the rows, as Spark's StructType. payload: of the payloads, if it is more than that.
    """
    from bookies.spark.read.rows import arrow_schema_of, check_names, decoder_of

    arrow_schema = arrow_schema_of(settings, schema)
    check_names(arrow_schema.names)
    return RowReader(settings, arrow_schema, decoder_of(settings, arrow_schema, payload))
