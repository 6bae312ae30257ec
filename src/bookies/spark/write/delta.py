"""A table of Delta Lake, through the package `deltalake`. Its transactions note the last batch of each query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from bookies.errors import ConfigError
from bookies.spark.write.lake import Changes, Conflict

if TYPE_CHECKING:
    import pyarrow as pa

DELETED = "__bookies_deleted"


def _package() -> Any:
    try:
        import deltalake
    except ImportError as error:
        raise ConfigError("the package deltalake is missing: pip install 'bookies[delta]'") from error
    return deltalake


class DeltaStore:
    """A table at a path or URL. `storage_options`: of the package, such as keys of an object store."""

    def __init__(self, path: str, storage_options: dict[str, str] | None = None) -> None:
        self.name = f"Delta table {path}"
        self._path = path
        self._storage_options = storage_options
        _package()

    def opened(self) -> DeltaTable | None:
        package = _package()
        if not package.DeltaTable.is_deltatable(self._path, self._storage_options):
            return None
        return DeltaTable(self.name, package.DeltaTable(self._path, storage_options=self._storage_options))

    def create(self, columns: pa.Schema) -> None:
        """Create an empty table. Another process may create it first."""
        _package().DeltaTable.create(self._path, schema=columns, mode="ignore", storage_options=self._storage_options)


class DeltaTable:
    """The table at one version. A commit fails if there is a newer version."""

    def __init__(self, name: str, table: Any) -> None:
        self.name = name
        self._table = table

    def columns(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema(self._table.schema().to_arrow())

    def batch_of(self, query: str) -> int | None:
        return cast("int | None", self._table.transaction_version(query))

    def commit(self, rows: pa.Table, query: str, batch: int) -> None:
        package = _package()
        try:
            package.write_deltalake(self._table, rows, mode="append", commit_properties=self._noted(query, batch))
        except package.exceptions.CommitFailedError as error:
            raise Conflict from error

    def merge(self, changes: Changes, query: str, batch: int) -> None:
        package = _package()
        same = " AND ".join(f"kept.`{name}` = new.`{name}`" for name in changes.key)
        merger = self._table.merge(
            changes.rows.append_column(DELETED, changes.deleted),
            same,
            source_alias="new",
            target_alias="kept",
            commit_properties=self._noted(query, batch),
        )
        merger = merger.when_matched_delete(f"new.{DELETED}").when_matched_update_all(except_cols=[DELETED])
        try:
            merger.when_not_matched_insert_all(f"NOT new.{DELETED}", except_cols=[DELETED]).execute()
        except package.exceptions.CommitFailedError as error:
            raise Conflict from error
        self._table.update_incremental()
        noted = self.batch_of(query)
        if noted is None or noted < batch:  # A merge that changes nothing makes no version, and so no note.
            self.commit(changes.rows.slice(0, 0), query, batch)

    @staticmethod
    def _noted(query: str, batch: int) -> Any:
        """Return the note of a batch. Without retries a commit to another version than the one read fails."""
        package = _package()
        return package.CommitProperties(max_commit_retries=0, app_transactions=[package.Transaction(query, batch)])
