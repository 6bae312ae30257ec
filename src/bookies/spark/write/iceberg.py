"""A table of Iceberg, through the package `pyiceberg`. Properties of the table note the last batch of each query.

A snapshot and the properties are one commit. Unlike the summaries of snapshots, properties do not expire.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from bookies.errors import ConfigError
from bookies.spark.write.lake import Changes, Conflict

if TYPE_CHECKING:
    import pyarrow as pa

NOTE = "bookies.batch."  # and the id of the query


def _package() -> Any:
    try:
        import pyiceberg.catalog
        import pyiceberg.exceptions
        import pyiceberg.expressions
        import pyiceberg.table.update
    except ImportError as error:
        raise ConfigError("the package pyiceberg is missing: pip install 'bookies[iceberg]'") from error
    return pyiceberg


class IcebergStore:
    """A table of a catalog. `catalog`: its name in the configuration of `pyiceberg`, or its properties there."""

    def __init__(self, table: str, catalog: str | dict[str, str]) -> None:
        self.name = f"Iceberg table {table}"
        self._table = table
        name, properties = (catalog, {}) if isinstance(catalog, str) else (catalog.get("name", "default"), catalog)
        self._catalog = _package().catalog.load_catalog(name, **properties)

    def opened(self) -> IcebergTable | None:
        try:
            return IcebergTable(self.name, self._catalog.load_table(self._table))
        except _package().exceptions.NoSuchTableError:
            return None

    def create(self, columns: pa.Schema) -> None:
        """Create an empty table, and its namespace. Another process may create them first."""
        self._catalog.create_namespace_if_not_exists(self._table.rpartition(".")[0])
        self._catalog.create_table_if_not_exists(self._table, schema=columns)


class IcebergTable:
    """The table at one snapshot. A commit fails if there is a newer one."""

    def __init__(self, name: str, table: Any) -> None:
        self.name = name
        self._table = table
        snapshot = table.current_snapshot()
        table.catalog = _Unchanged(table.catalog, None if snapshot is None else snapshot.snapshot_id)

    def columns(self) -> pa.Schema:
        return self._table.schema().as_arrow()

    def batch_of(self, query: str) -> int | None:
        noted = self._table.properties.get(NOTE + query)
        return None if noted is None else int(noted)

    def commit(self, rows: pa.Table, query: str, batch: int) -> None:
        self._transact(query, batch, lambda transaction: transaction.append(rows))

    def merge(self, changes: Changes, query: str, batch: int) -> None:
        def change(transaction: Any) -> None:
            if len(changes.rows):
                filter = filter_of(changes.rows.select(list(changes.key)))
                with warnings.catch_warnings():  # New keys have no rows to delete.
                    warnings.filterwarnings("ignore", "Delete operation did not match")
                    transaction.delete(filter)
                transaction.append(changes.kept)

        self._transact(query, batch, change)

    def _transact(self, query: str, batch: int, change: Any) -> None:
        try:
            with self._table.transaction() as transaction:
                transaction.set_properties({NOTE + query: str(batch)})
                change(transaction)
        except (_package().exceptions.CommitFailedException, _package().exceptions.ValidationException) as error:
            raise Conflict from error  # The second one: another commit has rows with keys of this batch.


def filter_of(keys: pa.Table) -> Any:
    """Return the condition that a row has one of the keys.

    The column with the most values becomes a list, once for each combination of the others. With a comparison for each
    key, a merge of 5,000 keys of two columns takes ten seconds.
    """
    package = _package().expressions
    *others, most = sorted(keys.column_names, key=lambda name: len(keys[name].unique()))
    if not others:
        return package.In(most, keys[most].to_pylist())
    conditions = []
    for row in keys.group_by(others).aggregate([(most, "list")]).to_pylist():
        condition = package.In(most, row[f"{most}_list"])
        for name in others:
            condition = package.And(condition, package.EqualTo(name, row[name]))
        conditions.append(condition)
    return conditions[0] if len(conditions) == 1 else package.Or(*conditions)


class _Unchanged:
    """Catalog whose commits require the snapshot that was read.

    The package itself repeats a failed commit on the newer snapshot, which may have the batch already. The requirement
    fails the repetitions too, which take two seconds. They stay: the package finds by them that a commit whose reply
    was lost has succeeded, before it would delete the files of the commit.
    """

    def __init__(self, catalog: Any, snapshot_id: int | None) -> None:
        self._catalog = catalog
        self._snapshot_id = snapshot_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._catalog, name)

    def commit_table(self, table: Any, requirements: tuple[Any, ...], updates: tuple[Any, ...]) -> Any:
        same = _package().table.update.AssertRefSnapshotId(ref="main", snapshot_id=self._snapshot_id)
        return self._catalog.commit_table(table, (*requirements, same), updates)
