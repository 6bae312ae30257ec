"""The data source `bookkeeper`: logs and ledgers as tables, in batches and as streams.

`schema()` resolves what there is and where each of it ends, once: later planning uses those positions, so a DataFrame
is a stable snapshot of logs that go on growing. A ledger that is being written is read up to its last add confirmed;
the source never recovers or fences one. Source: spark 3.1 to 3.6.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from bookies.errors import InvalidArgument, LedgerNotFound, LogNotFound
from bookies.spark.base import runtime
from bookies.spark.base.extents import Extents
from bookies.spark.base.offsets import At
from bookies.spark.base.options import flag
from bookies.spark.base.selection import EARLIEST, LATEST
from bookies.spark.base.settings import STREAM_ONLY, Settings, checked, settings
from bookies.spark.read import planning, pushdown, rows
from bookies.spark.read.log_catalog import LogCatalog, resolved
from bookies.spark.read.read import EntriesPartition, RowReader, row_reader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, Filter

    from bookies.spark.read.stream import EntriesStreamReader

ENTRIES = "entries"  # the table that is read when none is named


class BookKeeperDataSource(DataSource):
    """`spark.read.format("bookkeeper")`. Options: docs/reference/spark.md."""

    _planned: list[EntriesPartition] | None = None

    @classmethod
    def name(cls) -> str:
        return "bookkeeper"

    def schema(self) -> Any:
        if (tables := self._tables()) is not None:
            return tables.schema(self.options)
        options = checked(self.options)
        ddl = rows.ddl_of(options)
        # Nothing tells `read` from `readStream` here; what only one of them takes, the other one refuses later.
        if not any(name in options for name in STREAM_ONLY) and options.get("startingOffsets") != LATEST:
            chosen = settings(options, is_stream=False)
            try:
                self._planned = resolve(chosen)
            except (LogNotFound, LedgerNotFound):
                if chosen.fails_on_loss:  # Else a stream that knew it once goes on without it; `reader` refuses it.
                    raise
        return ddl

    def reader(self, schema: Any) -> DataSourceReader:
        if (tables := self._tables()) is not None:
            reader: DataSourceReader = tables.reader(self.options, schema)
            return reader
        options = checked(self.options)
        chosen = settings(options, is_stream=False)
        how = row_reader(options, chosen, schema)
        planned, self._planned = self._planned, None  # The tasks get a copy of this object: without the plan.
        kind = FilteringReader if flag(options, "pushDownFilters", False) else EntriesReader
        return kind(how, resolve(chosen) if planned is None else planned)

    def streamReader(self, schema: Any) -> EntriesStreamReader:
        from bookies.spark.read.stream import EntriesStreamReader

        if self.options.get("table", ENTRIES) != ENTRIES:
            raise InvalidArgument(f"option table={self.options['table']}: only entries can be read as a stream")
        options = checked(self.options)
        chosen = settings(options, is_stream=True)
        self._planned = None
        return EntriesStreamReader(row_reader(options, chosen, schema))

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        from bookies.spark.write import sink

        return sink.BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
        from bookies.spark.write import sink

        return sink.StreamWriter(self.options, schema, overwrite)

    def _tables(self) -> Any:
        """The module that knows the other tables, when one of them is asked for."""
        if self.options.get("table", ENTRIES) == ENTRIES:
            return None
        from bookies.spark.read import tables

        return tables


class EntriesReader(DataSourceReader):
    """Delivers what was planned when the DataFrame was made."""

    def __init__(self, how: RowReader, planned: list[EntriesPartition]) -> None:
        self._how = how
        self._planned = planned

    def __getstate__(self) -> dict[str, Any]:
        """The tasks get their partitions one by one."""
        return {"_how": self._how, "_planned": []}

    def partitions(self) -> list[EntriesPartition]:
        return self._planned

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._how.read(partition)


class FilteringReader(EntriesReader):
    """Takes filters on ledger_id, entry_id and offset, for one scan of a DataFrame: Spark keeps them for the next one.

    Chosen by option `pushDownFilters` only. Source: spark 1.4.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        bounds, rest = pushdown.bounds_of(filters)
        if bounds:
            self._planned = [
                EntriesPartition(pushdown.narrowed(part.ranges, bounds), [], part.addresses)
                for part in self._planned
                if not part.gaps
            ]
        return rest


def resolve(chosen: Settings) -> list[EntriesPartition]:
    """Ask the metadata store, and the bookies of open ledgers, for what the options select."""
    return runtime.worker().run(planning.persistently(chosen, lambda: _resolve(chosen)))


async def _resolve(chosen: Settings) -> list[EntriesPartition]:
    lookup, addresses = await planning.opened(chosen)
    try:
        found = await lookup.extents(await lookup.keys(chosen.selection))
        parts = [(each, *await _bounds(lookup, chosen, each)) for each in found.values()]
        return await planning.partitions(lookup, chosen, parts, addresses)
    finally:
        await lookup.close()


async def _bounds(lookup: LogCatalog, chosen: Settings, extents: Extents) -> tuple[At, At]:
    """From where to where. Raises `InvalidArgument`."""
    if extents.key in chosen.selection.bounds:
        first, last = chosen.selection.bounds[extents.key]
        if last is not None and last >= extents.rows:
            what = "row" if extents.is_log else "entry"
            raise InvalidArgument(f"{extents} ends at {what} {extents.rows - 1}, option assign asks for {last}")
        start = extents.at_row(first) if first <= extents.rows else extents.end
        return start, extents.end if last is None else extents.at_row(last + 1)
    now_ms = int(time.time() * 1000)
    start = await resolved(lookup, extents, chosen.starting, is_end=False, now_ms=now_ms, strategy=chosen.strategy)
    end = await resolved(lookup, extents, chosen.ending, is_end=True, now_ms=now_ms)
    if start > end and chosen.starting != EARLIEST:
        raise InvalidArgument(
            f"option endingOffsets: {extents} would end at {list(end)}, before it begins at {list(start)} by option "
            "startingOffsets: exchange them"
        )
    return start, end


__all__ = ["BookKeeperDataSource", "EntriesReader", "FilteringReader", "resolve"]
