"""Batches of a streaming query in a table of Delta Lake or Iceberg, each exactly once.

Spark repeats a batch if the driver died before it noted the batch in the checkpoint. So the table itself notes the last
batch of each query, in the same commit as its rows, and a noted batch changes nothing. A commit succeeds only on the
version of the table in which the note was read. So of two drivers of one query, one commits and the other finds the
note. Spark begins a batch after it has noted the one before, so a later note than the batch's is of another course of
the query: its checkpoint was put back. Its batches may have other rows, and are refused.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from bookies.errors import InvalidArgument, NotSupported, TransactionRefused

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

logger = logging.getLogger("bookies.spark.write.lake")
COMMITS_MAX = 20  # attempts to commit a batch while other writers change the table
NARROW: Mapping[str, str] = {"large_binary": "binary", "large_string": "string"}


class Conflict(Exception):
    """Another commit changed the table after it was read."""


class LakeTable(Protocol):
    """A table as the last commit left it."""

    name: str

    def columns(self) -> pa.Schema:
        """Return the columns."""

    def batch_of(self, query: str) -> int | None:
        """Return the number of the last batch of a query; None: the table notes none."""

    def commit(self, rows: pa.Table, query: str, batch: int) -> None:
        """Append rows and note the batch. Raises `Conflict`."""

    def merge(self, changes: Changes, query: str, batch: int) -> None:
        """Replace and delete rows by their key, and note the batch. Raises `Conflict`."""


class LakeStore(Protocol):
    """Where a table is kept."""

    name: str

    def opened(self) -> LakeTable | None:
        """Return the table as it is now; None: it does not exist."""

    def create(self, columns: pa.Schema) -> None:
        """Create an empty table."""


@dataclass(frozen=True)
class Changes:
    """The last row of each key. `deleted`: whether it deletes its key."""

    key: tuple[str, ...]
    rows: pa.Table
    deleted: pa.ChunkedArray

    @property
    def kept(self) -> pa.Table:
        import pyarrow.compute as pc

        return self.rows.filter(pc.invert(self.deleted))


class TableSink:
    """Function for `writeStream.foreachBatch`.

    * `key`: columns that identify a row of the table. None: every row is appended.
    * `order`: column by which the last change of a key is found.
    * `tombstone`: column that is null in a row that deletes its key. None: no row deletes.
    """

    def __init__(self, store: LakeStore, key: Sequence[str], order: str, tombstone: str | None) -> None:
        if tombstone is not None and not key:
            raise InvalidArgument("tombstone is for a table with a key: set key, or leave tombstone out")
        self._store = store
        self._key = tuple(key)
        self._order = order
        self._tombstone = tombstone

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write a batch, unless the table notes it.

        Raises `InvalidArgument` for columns that do not fit, `TransactionRefused` if the table lacks earlier batches or
        other writers change it all the time.
        """
        self.write(lambda: batch.toArrow(), _query_of(batch), batch_id)

    def write(self, rows_of: Any, query: str, batch: int) -> None:
        """Write a batch. `rows_of`: returns its rows; called if they are needed."""
        rows: pa.Table | None = None
        for _ in range(COMMITS_MAX):
            table = self._store.opened()
            if table is not None and is_noted(table.name, table.batch_of(query), query, batch):
                logger.info("batch %d of query %s was committed before", batch, query)
                return
            if table is None and batch > 0:
                raise TransactionRefused(
                    f"{self._store.name} does not exist, but query {query} has written {batch} batches to it: restore "
                    "the table, or start the query with a new checkpoint, from the beginning of the log"
                )
            rows = rows_of() if rows is None else rows
            if table is None:
                self._store.create(rows.schema)
                continue
            check_columns(table.name, table.columns(), rows.schema)
            try:
                if self._key:
                    table.merge(changes_of(rows, self._key, self._order, self._tombstone), query, batch)
                else:
                    table.commit(rows, query, batch)
            except Conflict:
                continue
            return
        raise TransactionRefused(
            f"{self._store.name}: batch {batch} of query {query} is not committed, because other writers have changed "
            f"the table {COMMITS_MAX} times meanwhile: pause them, and start the query again"
        )


def _query_of(batch: DataFrame) -> str:
    context = getattr(batch.sparkSession, "sparkContext", None) if hasattr(batch.sparkSession, "_jsc") else None
    query = None if context is None else context.getLocalProperty("sql.streaming.queryId")
    if not query:
        raise NotSupported(
            "a batch does not tell its query: use the function in foreachBatch of a stream, in a session without Spark "
            "Connect"
        )
    return str(query)


def is_noted(table: str, noted: int | None, query: str, batch: int) -> bool:
    """Return whether the table has the batch. Raises `TransactionRefused` if it lacks earlier ones or has later."""
    if noted == batch:
        return True
    if noted is not None and noted > batch:
        raise TransactionRefused(
            f"{table} has batches of query {query} up to {noted}, and batch {batch} may have other rows than before: "
            "the checkpoint is an earlier copy, or another driver runs the query. Stop the other driver, or start the "
            "query with a new checkpoint, with startingOffsets of the first row that the table lacks"
        )
    if batch > 0 and noted != batch - 1:
        has = "none" if noted is None else f"those up to {noted}"
        raise TransactionRefused(
            f"{table} lacks batches of query {query}: the next one is {batch}, and the table has {has}. It was "
            "recreated or restored: start the query with a new checkpoint, with startingOffsets of the first row that "
            "the table lacks"
        )
    return False


def check_columns(table: str, has: pa.Schema, given: pa.Schema) -> None:
    """Raise `InvalidArgument` if the columns of a query are not those of the table."""
    types, new = ({field.name: _plain(field.type) for field in schema} for schema in (has, given))
    for name in new:
        if name not in types:
            raise InvalidArgument(f"{table} has no column {name!r}: add it to the table, or drop it from the query")
        if types[name] != new[name]:
            raise InvalidArgument(
                f"{table} has column {name!r} as {types[name]}, and the query as {new[name]}: cast it in the query"
            )
    for name in types:
        if name not in new:
            raise InvalidArgument(f"the query has no column {name!r} of {table}: add it, for example NULL AS {name}")


def _plain(data_type: pa.DataType) -> str:
    """Return the name of a type. The size of its offsets and names of fields in lists do not count."""
    import pyarrow as pa

    if pa.types.is_struct(data_type):
        return f"struct<{', '.join(f'{field.name}: {_plain(field.type)}' for field in data_type)}>"
    if pa.types.is_map(data_type):
        return f"map<{_plain(data_type.key_type)}, {_plain(data_type.item_type)}>"
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        return f"list<{_plain(data_type.value_type)}>"
    return NARROW.get(str(data_type), str(data_type))


def changes_of(rows: pa.Table, key: Sequence[str], order: str, tombstone: str | None) -> Changes:
    """Return the last change of each key. Rows with the same `order`, such as those of a record set, keep their order.

    Raises `InvalidArgument` for a missing column and for a row without a key.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    for name in (*key, order, *([tombstone] if tombstone is not None else [])):
        if name not in rows.column_names:
            raise InvalidArgument(f"the query has no column {name!r}, which the sink needs: select it")
    for name in key:
        if rows[name].null_count:
            first = rows.filter(pc.is_null(rows[name])).slice(0, 1).to_pylist()[0]
            log = first.get("log", "the query")
            raise InvalidArgument(
                f"log {log}: the row at {order} {first[order]} has no {name}: filter rows without a key, or choose "
                "another key"
            )
    rows = rows.take(pc.sort_indices(rows, sort_keys=[(order, "ascending")]))
    numbered = rows.select(list(key)).append_column("__row", pa.array(range(len(rows)), pa.int64()))
    picked = numbered.group_by(list(key)).aggregate([("__row", "max")])["__row_max"]
    rows = rows.take(picked.sort())
    deleted = pa.chunked_array([pa.repeat(False, len(rows))]) if tombstone is None else pc.is_null(rows[tombstone])
    return Changes(tuple(key), rows, deleted)


__all__ = ["Changes", "Conflict", "LakeStore", "LakeTable", "TableSink", "changes_of", "is_noted"]
