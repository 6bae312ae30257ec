"""The data source `bookkeeper`: logs and ledgers as tables, in batches and as streams.

`schema()` resolves the selected logs and ledgers and their ends once. Later planning uses those positions, so a
DataFrame is a stable snapshot of logs that keep growing. An open ledger is read up to its last add confirmed; the
source never recovers or fences a ledger. Source: spark 3.1 to 3.6.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyspark
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from bookies.errors import InvalidArgument, LedgerNotFound, LogNotFound, NotSupported
from bookies.protocol.payloads.schemas import AVRO, PROTOBUF
from bookies.spark.base import runtime
from bookies.spark.base.plan import Part
from bookies.spark.base.selection import LATEST
from bookies.spark.base.settings import STREAM_ONLY, Settings, checked, read_options, settings
from bookies.spark.read import planning, pushdown, rows, schema_source
from bookies.spark.read.partition import EntriesPartition, rows_of, wrapped
from bookies.spark.read.read import RowReader, row_reader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, Filter

    from bookies.spark.read.payload_schema import PayloadSchema
    from bookies.spark.read.stream import EntriesStreamReader

ENTRIES = "entries"  # the default of option `table`


class BookKeeperDataSource(DataSource):
    """`spark.read.format("bookkeeper")`. Options: docs/reference/spark.md."""

    _planned: list[EntriesPartition] | None = None
    _payload: PayloadSchema | None = None

    @classmethod
    def name(cls) -> str:
        return "bookkeeper"

    def schema(self) -> Any:
        if (tables := self._tables()) is not None:
            return tables.schema(self.options)
        options = checked(self.options)
        self._payload = schema_source.opened(options, read_options(options))
        ddl = rows.ddl_of(read_options(options), self._payload)
        # `read` and `readStream` look alike here. `settings` refuses later what only the other one accepts.
        if not any(name in options for name in STREAM_ONLY) and options.get("startingOffsets") != LATEST:
            chosen = settings(options, is_stream=False)
            try:
                self._planned = resolve(chosen)
            except (LogNotFound, LedgerNotFound):
                if chosen.fails_on_loss:  # Otherwise a stream that once read it continues without it; `reader` refuses.
                    raise
        return ddl

    def reader(self, schema: Any) -> DataSourceReader:
        if (tables := self._tables()) is not None:
            reader: DataSourceReader = tables.reader(self.options, schema)
            return reader
        chosen = settings(checked(self.options), is_stream=False)
        rows_reader = row_reader(chosen, schema, self._payload_of(chosen))
        planned, self._planned = self._planned, None  # Tasks get a copy of this object, without the plan.
        reader_class = FilteringReader if chosen.pushes_filters else EntriesReader
        return reader_class(rows_reader, resolve(chosen) if planned is None else planned)

    def streamReader(self, schema: Any) -> EntriesStreamReader:
        _require((4, 2), "to read a log as a stream", "read it in batches, from `startingOffsets`")
        from bookies.spark.read.stream import EntriesStreamReader

        if self.options.get("table", ENTRIES) != ENTRIES:
            raise InvalidArgument(f"option table={self.options['table']}: only entries can be read as a stream")
        chosen = settings(checked(self.options), is_stream=True)
        self._planned = None
        return EntriesStreamReader(row_reader(chosen, schema, self._payload_of(chosen)))

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        from bookies.spark.write import sink

        return sink.BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
        way_out = "use foreachBatch, and `write_log` with txnAppId and txnVersion: each batch is written once"
        _require((4, 1), "to write a stream", way_out)
        from bookies.spark.write import sink

        return sink.StreamWriter(self.options, schema, overwrite)

    def _payload_of(self, chosen: Settings) -> PayloadSchema | None:
        """Return the schema of the payloads as `schema` found it. It was not called if the user gave the columns."""
        payload, self._payload = self._payload, None  # Tasks get a copy of this object.
        if payload is None and chosen.value_format in (AVRO, PROTOBUF):
            return schema_source.opened(checked(self.options), chosen)
        return payload

    def _tables(self) -> Any:
        """Return the module of the metadata tables if option `table` names one of them, else None."""
        if self.options.get("table", ENTRIES) == ENTRIES:
            return None
        from bookies.spark.read import tables

        return tables


class EntriesReader(DataSourceReader):
    """Batch reader of entries. Its partitions were planned when the DataFrame was created."""

    def __init__(self, row_reader: RowReader, planned: list[EntriesPartition]) -> None:
        self._row_reader = row_reader
        self._planned = planned

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the plan: Spark sends each task its own partition."""
        return {"_row_reader": self._row_reader, "_planned": []}

    def partitions(self) -> list[EntriesPartition]:
        return self._planned

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return rows_of(self._row_reader, partition)


class FilteringReader(EntriesReader):
    """Reader that accepts filters on ledger_id, entry_id and offset, for one scan of a DataFrame.

    Spark reuses the filtered plan for later scans, so only option `pushDownFilters` chooses it. Source: spark 1.4.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        bounds, rest = pushdown.bounds_of(filters)
        if bounds:
            self._planned = [
                EntriesPartition(Part(pushdown.narrowed(part.ranges, bounds), (), part.addresses))
                for part in (partition.part for partition in self._planned)
                if not part.gaps
            ]
        return rest


def _require(version: tuple[int, int], purpose: str, way_out: str) -> None:
    """Raise `NotSupported` if PySpark is older than `version`."""
    if tuple(map(int, pyspark.__version__.split(".")[:2])) < version:
        wanted = ".".join(map(str, version))
        raise NotSupported(f"PySpark {wanted} is needed {purpose}; this is {pyspark.__version__}. Or {way_out}")


def resolve(chosen: Settings) -> list[EntriesPartition]:
    """Ask the metadata store, and the bookies of open ledgers, for the partitions that the options select."""
    return wrapped(runtime.worker().run(planning.persistently(chosen, lambda: planning.resolved_parts(chosen))))


__all__ = ["BookKeeperDataSource", "EntriesReader", "FilteringReader", "resolve"]
