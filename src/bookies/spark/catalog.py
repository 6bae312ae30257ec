"""Tables in a database of Spark for the logs of a cluster. `SHOW TABLES` lists them; SQL reads and appends to them.

Spark has no catalogs in Python, stores the options of a table, and does not pass them to a source in Python. So each
table has a format of its own: a subclass of the source that has the options. A session knows the formats that it
registered. `docs/reference/spark-tables.md` states where Spark's interface ends.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct

from bookies.errors import BookKeeperError, InvalidArgument, LogNotFound
from bookies.protocol.log.log_model import RAW
from bookies.spark.base import runtime
from bookies.spark.base.arrow import COLUMNS as SOURCE_COLUMNS
from bookies.spark.base.options import URI, names_of, proper_names
from bookies.spark.base.settings import ColumnOptions, ReadOptions, SelectionOptions
from bookies.spark.source import BookKeeperDataSource
from bookies.spark.write.sink import BatchWriter, StreamWriter
from bookies.spark.write.write_settings import COLUMNS as SINK_COLUMNS
from bookies.spark.write.write_settings import TARGETS, WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from bookies.spark.write.sink import TaskMessage

PREFIX = "bookkeeper-"
PROVIDER = re.compile(r"^Provider: (.*)$", re.MULTILINE)  # in Spark's description of a table
CREATED, REPLACED, UNCHANGED, DROPPED, SKIPPED = "created", "replaced", "unchanged", "dropped", "skipped"
READ_FORMATS_ONLY = ("utf8",)  # values of `valueFormat` that the sink does not have


class TableChange(Struct, frozen=True):
    """One table of a registration, and what was or would be done. `log`: empty if the table was dropped.

    `reason`: why a log was skipped; empty otherwise.
    """

    table: str
    log: str
    action: str
    reason: str = ""


class LogTable(BookKeeperDataSource):
    """The source and the sink of one log. Subclasses have its options; those of a query take precedence."""

    provider: ClassVar[str]
    reads: ClassVar[Mapping[str, str]]
    writes: ClassVar[Mapping[str, str]]

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__({**self.reads, **options})
        self._own = dict(options)

    @classmethod
    def name(cls) -> str:
        return cls.provider

    def writer(self, schema: Any, overwrite: bool) -> BatchWriter:
        names = self._written(schema)
        return InsertWriter({**self.writes, **self._own}, _selected(schema, names), overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:
        names = self._written(schema)
        return InsertStreamWriter({**self.writes, **self._own}, _selected(schema, names), overwrite)

    def _written(self, schema: Any) -> list[str]:
        """Return the columns that an insertion writes. The others are computed by the source."""
        computed = {name for name in SOURCE_COLUMNS if name not in SINK_COLUMNS or name == "log"}
        if self.writes.get("valueFormat") == "arrow":
            computed |= set(SINK_COLUMNS) - {"value"}
        return [name for name in schema.names if name not in computed]


class InsertWriter(BatchWriter):
    """Writer of `INSERT INTO`: a row has all columns of the table, and those that the source computes are null."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        return super().write(_written(iterator, self._settings.log, names_written(self._settings)))


class InsertStreamWriter(StreamWriter):
    """Writer of `writeStream.toTable`."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        return super().write(_written(iterator, self._settings.log, names_written(self._settings)))


def names_written(settings: Any) -> list[str]:
    """Return the columns that the sink accepts, those of the payload included."""
    if settings.payload is None:
        return list(settings.columns)
    return [*(name for name in settings.columns if name != "value"), *settings.payload.names]


def _written(batches: Iterator[pa.RecordBatch], log: str | None, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the written columns. Raises `InvalidArgument` if a row has a value in another column."""
    for batch in batches:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if name not in names and column.null_count < len(column):
                raise InvalidArgument(
                    f"column {name!r}: log {log} computes it, so no row can set it; name the columns that have "
                    f"values: INSERT INTO table ({', '.join(names)})"
                )
        yield batch.select([name for name in batch.schema.names if name in names])


def _selected(schema: Any, names: Sequence[str]) -> Any:
    return type(schema)([field for field in schema.fields if field.name in names])


# -- registration ------------------------------------------------------------------------------------------------------


def keep_tables(
    spark: SparkSession,
    database: str,
    uri: str,
    *,
    tables: Mapping[str, str],
    options: Mapping[str, str],
    dry_run: bool,
) -> list[TableChange]:
    """Create, replace and drop tables: see `bookies.spark.register_logs`."""
    if re.fullmatch(r"\w+", database) is None:
        raise InvalidArgument(f"database {database!r}: a name of Spark consists of letters, digits and _")
    pattern, reads, writes = divided(options)
    formats = runtime.worker().run(_formats(uri, pattern))
    named = table_names(sorted(formats), tables)
    cluster = PREFIX + _digest(uri)[:8]
    if not dry_run:
        spark.sql(f"CREATE DATABASE IF NOT EXISTS `{database}`")
    existing = _existing(spark, database)
    for table, log in named.items():
        if table in existing and not existing[table].startswith(f"{cluster}-"):
            raise InvalidArgument(
                f"log {log}: {database}.{table} is another table: drop it, or choose another name with "
                f"tables={{{log!r}: ...}}"
            )
    changes = []
    for table, log in named.items():
        source = _source_of(cluster, uri, log, formats[log], (reads, writes))
        changes.append(_registered(spark, f"`{database}`.`{table}`", source, (log, existing.get(table), dry_run)))
    for table, provider in existing.items():
        if provider.startswith(f"{cluster}-") and table not in named:
            changes.append(TableChange(table, "", DROPPED))
            if not dry_run:
                spark.sql(f"DROP TABLE IF EXISTS `{database}`.`{table}`")
    return sorted(changes, key=lambda change: change.table)


def table_names(logs: Sequence[str], chosen: Mapping[str, str]) -> dict[str, str]:
    """Return the logs, by name of the table. Raises `InvalidArgument` if two logs have the same one."""
    named: dict[str, str] = {}
    for log in logs:
        table = chosen.get(log, re.sub(r"\W", "_", log, flags=re.ASCII)).lower()
        if re.fullmatch(r"\w+", table) is None:
            raise InvalidArgument(f"log {log}: {table!r} is no name of a table: use letters, digits and _")
        if table in named:
            raise InvalidArgument(
                f"logs {named[table]} and {log} would both be table {table}: choose a name with tables={{{log!r}: ...}}"
            )
        named[table] = log
    return named


def divided(options: Mapping[str, str]) -> tuple[re.Pattern[str], dict[str, str], dict[str, str]]:
    """Return the pattern of the logs' names, the options of the source, and those of the sink.

    Raises `InvalidArgument`.
    """
    known = (*names_of(ReadOptions), *names_of(WriteOptions))
    proper = proper_names(options, known)
    try:
        pattern = re.compile(proper.pop("subscribePattern", ".*"))
    except re.error as error:
        raise InvalidArgument(f"option subscribePattern: {error}") from error
    for name in (*names_of(SelectionOptions), *TARGETS, URI, "table"):
        if name in proper:
            raise InvalidArgument(f"option {name}: register_logs sets it for each table; leave it out")
    sides = names_of(ReadOptions), names_of(WriteOptions)
    # The client's options are for both.
    reads, writes = ({k: text for k, text in proper.items() if k in side or k not in known} for side in sides)
    if writes.get("valueFormat", "").lower() in READ_FORMATS_ONLY:
        del writes["valueFormat"]
    if writes.get("recordFormat", "").lower() == "auto":
        del writes["recordFormat"]
    return pattern, reads, writes


async def _formats(uri: str, pattern: re.Pattern[str]) -> dict[str, str]:
    """Return the record format of each log whose name matches."""
    async with runtime.worker().new_client(uri) as client:
        formats = {}
        for log in await client.logs():
            if pattern.fullmatch(log):
                try:
                    formats[log] = (await client.log(log).manifest()).record_format
                except LogNotFound:  # It was deleted a moment ago.
                    continue
        return formats


def _source_of(
    cluster: str, uri: str, log: str, record_format: str, options: tuple[Mapping[str, str], Mapping[str, str]]
) -> type[LogTable]:
    reads, writes = options
    fixed = {}
    if record_format == RAW and not any(name in reads for name in names_of(ColumnOptions)):
        fixed["columns"] = "log,ledger_id,entry_id,offset,value"  # Its entries have no other columns.
    digest = _digest(log)[:16]
    attributes = {
        "provider": f"{cluster}-{digest}",
        "reads": {URI: uri, "subscribe": log, **fixed, **reads},
        "writes": {URI: uri, "log": log, **writes},
    }
    return type(f"Table_{digest}", (LogTable,), attributes)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _existing(spark: SparkSession, database: str) -> dict[str, str]:
    """Return the format of each table of a database; empty for views. None are there if the database is not."""
    if not spark.catalog.databaseExists(database):
        return {}
    providers = {}
    for row in spark.sql(f"SHOW TABLE EXTENDED IN `{database}` LIKE '*'").collect():
        if not row.isTemporary:
            match = PROVIDER.search(row.information)
            providers[row.tableName] = "" if match is None else match[1].strip()
    return providers


def _registered(
    spark: SparkSession, name: str, source: type[LogTable], situation: tuple[str, str | None, bool]
) -> TableChange:
    """Register the format of a table, and create or replace the table.

    `situation`: the log; the format of the existing table, None: there is none; dry run.
    """
    from pyspark.sql.types import StructType

    log, provider, dry_run = situation
    table = name.split("`")[3]
    # A table of an earlier session has no columns without its format. In a dry run a format of this session stays.
    if not (dry_run and provider is not None and _is_known(spark, name)):
        spark.dataSource.register(source)
    try:
        ddl = source({}).schema()
    except BookKeeperError as error:
        return TableChange(table, log, SKIPPED, str(error))
    columns = StructType.fromDDL(ddl).simpleString()
    if provider == source.provider and spark.table(name).schema.simpleString() == columns:
        return TableChange(table, log, UNCHANGED)
    if not dry_run:
        if provider is not None:
            spark.sql(f"DROP TABLE {name}")
        spark.sql(f"CREATE TABLE {name} ({ddl}) USING `{source.provider}` COMMENT 'log {log}'")
    return TableChange(table, log, CREATED if provider is None else REPLACED)


def _is_known(spark: SparkSession, name: str) -> bool:
    """Return whether the session has the format of an existing table."""
    from pyspark.errors import AnalysisException

    try:
        spark.table(name).schema  # noqa: B018
    except AnalysisException:
        return False
    return True


__all__ = ["LogTable", "TableChange", "divided", "keep_tables", "table_names"]
