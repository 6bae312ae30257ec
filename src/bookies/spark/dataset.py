"""`bookies.dataset`: logs and ledgers as Arrow record batches, for PyArrow, pandas, Polars and DuckDB. Without Spark.

The rows, the columns and the options are those of Spark's source, and so is the code that plans and reads them.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from bookies.client.base.arguments import moment
from bookies.errors import InvalidArgument, NotSupported
from bookies.protocol.payloads.schemas import AVRO, PROTOBUF
from bookies.spark.base import runtime
from bookies.spark.base.options import URI
from bookies.spark.base.settings import Settings, checked, settings

if TYPE_CHECKING:
    import pyarrow

    from bookies.spark.base.plan import Part
    from bookies.spark.read.payload_schema import PayloadSchema

ONE_PART = 1 << 62  # bytes; one reader delivers all rows in order


def dataset(
    uri: str,
    log: str | None = None,
    *,
    start: int | str | datetime.datetime | None = None,
    end: int | str | datetime.datetime | None = None,
    columns: Sequence[str] | None = None,
    schema: pyarrow.Schema | None = None,
    **options: object,
) -> Dataset:
    """Return the rows that a log has now, as a dataset that reads them when it is asked to. Blocks.

    * `uri`: of the metadata store.
    * `log`: its name. None: `options` select, for example `ledger=17` or `subscribePattern="orders.*"`.
    * `start`, `end`: the number of a row, a position such as "17:1041", or a datetime with a time zone; `end` is
      exclusive. Rows between two times are those appended then, and some before and after: see `Log.at`.
    * `columns`: only these of the source. Those of the payload stay; `to_table(columns=...)` leaves some of them out.
    * `schema`: columns of the payload, for `valueFormat="json"` or "arrow". None: those that the log or a sample of
      its rows shows. Avro and Protobuf have a schema of their own.
    * `options`: those of batch queries in docs/reference/spark.md.

    Needs pyarrow (extra `arrow`). Raises `InvalidArgument`, `NotSupported`, `LogNotFound`, `LedgerNotFound`,
    `LogTruncated`, and what connecting raises.
    """
    try:
        from bookies.formats.columns import parse_ddl
        from bookies.spark.read import planning, schema_source
        from bookies.spark.read.rows import batch_schema_of
    except ImportError as error:
        raise NotSupported("a dataset needs pyarrow: pip install 'bookies[arrow]'") from error
    given = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    given[URI] = uri
    if log is not None:
        given["subscribe"] = log
    if columns is not None:
        given["columns"] = ",".join(columns)
    for side, bound in (("starting", start), ("ending", end)):
        if bound is not None:
            given |= _bound(side, bound, log)
    proper = checked(given)
    for name in ("table", "pushDownFilters"):
        if name in proper:
            raise InvalidArgument(f"option {name} is for Spark: leave it out")
    chosen = settings(proper, is_stream=False)
    # Without limits all rows are one part, in order.
    chosen = dataclasses.replace(chosen, size_max=ONE_PART, count_max=None, parts_min=1)
    if schema is not None and chosen.value_format in (AVRO, PROTOBUF):
        raise InvalidArgument(f"schema: valueFormat={chosen.value_format} has columns of its own; leave it out")
    payload = schema_source.opened(proper, chosen) if schema is None else None
    if payload is not None:
        schema = payload.arrow
    elif schema is None and chosen.value_schema is not None:
        schema = parse_ddl(chosen.value_schema)
    parts = runtime.worker().run(planning.persistently(chosen, lambda: planning.resolved_parts(chosen)))
    return Dataset(chosen, batch_schema_of(chosen, schema), parts, payload)


def _bound(side: str, bound: int | str | datetime.datetime, log: str | None) -> dict[str, str]:
    if isinstance(bound, datetime.datetime):
        return {f"{side}Timestamp": str(moment(f"{side} time", bound))}
    if log is None:
        raise InvalidArgument(f"{side}: a row or position is of one log: name it, or give option {side}Offsets")
    return {f"{side}Offsets": json.dumps({log: bound})}


class Dataset:
    """Rows of logs or ledgers as they were when it was made. Each use reads them from the bookies again.

    PyArrow, Polars (`polars.DataFrame(rows)`) and DuckDB (`duckdb.sql("SELECT count(*) FROM rows")`) accept it as it
    is, because it is an Arrow stream. It holds a few batches at a time.
    """

    def __init__(
        self, chosen: Settings, schema: pyarrow.Schema, parts: Sequence[Part], payload: PayloadSchema | None
    ) -> None:
        self._settings = chosen
        self._payload = payload
        self._parts = parts
        self.schema = schema

    def __repr__(self) -> str:
        chosen = self._settings.selection
        names = [*map(str, chosen.keys)] or [chosen.pattern or "=".join(chosen.label or ())]
        return f"<Dataset of {', '.join(names)}: {', '.join(self.schema.names)}>"

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        """Return the rows as an Arrow stream, for other libraries."""
        return self.reader().__arrow_c_stream__(requested_schema)

    def reader(self, columns: Sequence[str] | None = None) -> pyarrow.RecordBatchReader:
        """Return a reader of the rows in order. `columns`: only these. Raises `InvalidArgument`.

        Its steps raise the errors of reading.
        """
        import pyarrow

        schema = self.schema if columns is None else pyarrow.schema([self._field(name) for name in columns])
        return pyarrow.RecordBatchReader.from_batches(schema, self._batches(schema))

    def _field(self, name: str) -> pyarrow.Field:
        if name not in self.schema.names:
            raise InvalidArgument(f"no column {name!r}; there are {', '.join(self.schema.names)}")
        return self.schema.field(name)

    def _batches(self, schema: pyarrow.Schema) -> Iterator[pyarrow.RecordBatch]:
        from bookies.spark.read.read import RowReader
        from bookies.spark.read.rows import decoder_of

        # What is in an entry decides how many rows it is, or whether it is one.
        read = schema if self._is_one_each() else self.schema
        rows = RowReader(self._settings, read, decoder_of(self._settings, read, self._payload))
        for part in self._parts:
            for batch in rows.read(part):
                yield batch if read is schema else batch.select(schema.names)

    def to_table(self, columns: Sequence[str] | None = None) -> pyarrow.Table:
        """Return all rows in memory. `columns`: only these."""
        return self.reader(columns).read_all()

    def to_pandas(self, columns: Sequence[str] | None = None) -> Any:
        """Return all rows in memory, as pandas has them. `columns`: only these."""
        return self.to_table(columns).to_pandas()

    def count_rows(self) -> int:
        """Return the number of rows. They are read only if the metadata does not tell it."""
        is_one_each = self._is_one_each()
        if is_one_each and all(one.kept is None for part in self._parts for one in part.ranges):
            return sum(len(part.gaps) + sum(one.count for one in part.ranges) for part in self._parts)
        from bookies.spark.base.arrow import arrow_schema

        smallest = arrow_schema(["ledger_id"]) if is_one_each else self.schema
        return sum(batch.num_rows for batch in self._batches(smallest))

    def _is_one_each(self) -> bool:
        """Report whether each entry of the plan is a row."""
        chosen, ranges = self._settings, [one for part in self._parts for one in part.ranges]
        has_sets = chosen.record_format == "sets" or any(one.is_sets or one.segment is not None for one in ranges)
        is_whole = chosen.value_format != "arrow" and chosen.mode != "DROPMALFORMED"
        return is_whole and not has_sets
