"""Tables about the cluster: option `table` = ledgers, fragments, replicas, bookies, manifests, summary, lag.

They are read from the metadata store, ranges of ledger ids in parallel; most fleet jobs begin with them. The list of
ledgers is made when a query is planned. A row has the state of the store when its task reads it, and ledgers deleted
meanwhile are left out. Bookies are only asked for their free space (`bookies`).

There is no table of entry logs: the protocol has no request for a bookie's files.
Source: spark 3.1.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from bookies.client.transport.watcher import DOWN
from bookies.errors import BookKeeperError, InvalidArgument, LogNotFound
from bookies.model import BookieId, LedgerMetadata
from bookies.protocol.repair import Fragment
from bookies.protocol.repair.fragments import fragments_to_check
from bookies.spark.base import arrow, runtime
from bookies.spark.base.offsets import Offset
from bookies.spark.base.options import (
    URI,
    metadata_uri,
    names_of,
    option,
    proper_names,
    read_password,
    size,
    values_of,
)
from bookies.spark.base.selection import SELECTIONS, Selection, selection
from bookies.spark.base.settings import ReadOptions, settings
from bookies.spark.read import lag_table, planning
from bookies.spark.read.counts import summaries
from bookies.spark.read.log_catalog import LogCatalog

if TYPE_CHECKING:
    from bookies.client.client import Client
    from bookies.metadata.interface.driver import Versioned

LOGS_PER_PARTITION = 200
ROWS_PER_BATCH = 4096
AHEAD = 8 << 20  # bytes of rows

Row = dict[str, Any]

# table -> column -> Spark's type
TABLES: Mapping[str, Mapping[str, str]] = {
    "ledgers": {
        "ledger_id": "BIGINT",
        "state": "STRING",  # open, in_recovery, closed
        "last_entry": "BIGINT",  # null until it is closed
        "length": "BIGINT",  # payload bytes; null until it is closed
        "fragments": "INT",
        "ensemble_size": "INT",
        "write_quorum": "INT",
        "ack_quorum": "INT",
        "digest": "STRING",  # null in records of format 1
        "created": "TIMESTAMP",
        "labels": "MAP<STRING, STRING>",
        "version": "BIGINT",  # of the record in the store
    },
    "fragments": {
        "ledger_id": "BIGINT",
        "fragment": "INT",  # index
        "state": "STRING",
        "first_entry": "BIGINT",
        "last_entry": "BIGINT",  # null where entries may still come
        "bytes": "BIGINT",  # payload, by its share of the entries; null until the ledger is closed
        "write_quorum": "INT",
        "ack_quorum": "INT",
        "ensemble": "ARRAY<STRING>",
    },
    "replicas": {
        "ledger_id": "BIGINT",
        "fragment": "INT",
        "first_entry": "BIGINT",
        "last_entry": "BIGINT",
        "position": "INT",
        "bookie": "STRING",
        "entries": "BIGINT",  # that the bookie must hold; null where entries may still come
        "bytes": "BIGINT",
    },
    "bookies": {
        "bookie": "STRING",
        "mode": "STRING",  # writable, read-only, down
        "address": "STRING",  # null while it is down
        "total_bytes": "BIGINT",  # of its disks; null when it does not say
        "free_bytes": "BIGINT",
        "properties": "MAP<STRING, STRING>",
    },
    "manifests": {
        "log": "STRING",
        "seq": "BIGINT",
        "ledger_id": "BIGINT",
        "first_entry": "BIGINT",
        "last_entry": "BIGINT",  # null while the ledger may be open
        "rows": "BIGINT",
        "bytes": "BIGINT",
        "txn": "STRING",
        "log_created": "TIMESTAMP",
        "epoch": "BIGINT",
    },
    "lag": {
        "log": "STRING",  # null for ledgers
        "ledger_id": "BIGINT",  # null for logs
        "cursor": "STRING",  # null for a checkpoint
        "position": "STRING",  # of the next entry to handle; null: after the last extent, or of another log
        "rows": "BIGINT",  # null where unknown
        "bytes": "BIGINT",
        "seconds": "DOUBLE",  # age of the next entry, by its timestamp
        "processes": "ARRAY<STRING>",
    },
    "summary": {
        "log": "STRING",  # null for ledgers
        "ledger_id": "BIGINT",  # null for logs
        "rows": "BIGINT",  # that a query with these options has, without gap rows
        "gaps": "BIGINT",
        "min_offset": "BIGINT",
        "max_offset": "BIGINT",
        "min_ledger_id": "BIGINT",
        "max_ledger_id": "BIGINT",
        "first_entry_id": "BIGINT",  # of the first row
        "last_entry_id": "BIGINT",
        "first_timestamp": "TIMESTAMP",
        "last_timestamp": "TIMESTAMP",
    },
}
SUMMARY, LAG = "summary", "lag"


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Options of the tables."""

    table: str = option("table", "name of the table", default="")
    ledgers_per_partition: int = option("ledgersPerPartition", "ledgers that a task reads", size, "5000")


@dataclass(frozen=True, kw_only=True)
class LagOptions(TableOptions):
    """Options of the table `lag`."""

    subscribe: str | None = option("subscribe", "logs: `orders,returns`")
    pattern: str | None = option("subscribePattern", "logs whose whole name matches this regular expression")
    checkpoint: str | None = option("checkpoint", "directory of a streaming query's checkpoint")


_OPTIONS: Mapping[str, type] = {SUMMARY: ReadOptions, LAG: LagOptions}


def schema(options: Mapping[str, str]) -> str:
    """Return the table's columns as Spark's DDL. Raises `InvalidArgument`."""
    return ", ".join(f"{name} {spark_type}" for name, spark_type in TABLES[_checked(options)["table"]].items())


def reader(options: Mapping[str, str], schema: Any) -> TableReader:
    """Return the table's reader. `schema`: from `schema(options)`, or the columns that the user chose."""
    proper = _checked(options)
    return _READERS.get(proper["table"], TableReader)(proper, list(schema.names))


def arrow_schema(table: str, columns: Sequence[str]) -> pa.Schema:
    return pa.schema([pa.field(name, arrow.TYPES[TABLES[table][name]], nullable=True) for name in columns])


def _checked(options: Mapping[str, str]) -> dict[str, str]:
    table = options["table"].strip().lower()
    proper = proper_names(options, names_of(_OPTIONS.get(table, TableOptions))) | {"table": table}
    if table == "entrylogs":
        raise InvalidArgument("option table='entrylogs': bookies do not report their entry logs; use `bk inspect`")
    if table not in TABLES:
        raise InvalidArgument(f"option table={table!r}: there are entries, {', '.join(TABLES)}")
    if table != SUMMARY:  # Otherwise `settings` checks it: it may be that of a namespace.
        metadata_uri(proper)
    return proper


class TablePartition(InputPartition):
    """Part of a table. `ids`: ranges of ledger ids; `names`: names of logs; `query`: what a streaming query has read.

    `password`: of the ledgers, if the table needs it.
    """

    def __init__(
        self, ids: Sequence[range] = (), names: Sequence[str] = (), query: Offset | None = None, password: bytes = b""
    ) -> None:
        super().__init__(None)
        self.ids = tuple(ids)
        self.names = tuple(names)
        self.query = query
        self.password = password


class TableReader(DataSourceReader):
    """Reader of one table. Lists names on the driver, reads records in the tasks."""

    def __init__(self, options: dict[str, str], columns: list[str]) -> None:
        self._table, self._columns = options["table"], columns
        for name in columns:
            if name not in TABLES[self._table]:
                raise InvalidArgument(
                    f"table {self._table} has no column {name!r}; there are {', '.join(TABLES[self._table])}"
                )
        self._uri = options.get(URI, "")
        self._count = TableOptions(**values_of(TableOptions, options)).ledgers_per_partition

    def partitions(self) -> list[TablePartition]:
        if self._table == "bookies":
            return [TablePartition()]
        return runtime.worker().run(self._listed())

    async def _listed(self) -> list[TablePartition]:
        async with runtime.worker().new_client(self._uri) as client:
            if self._table == "manifests":
                names = await client.logs()
                parts = [names[at : at + LOGS_PER_PARTITION] for at in range(0, len(names), LOGS_PER_PARTITION)]
                return [TablePartition(names=part) for part in parts]
            pages = [page async for page in client.administration().ledger_ids()]
        return [TablePartition(part) for part in split_ids(pages, self._count)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, TablePartition):
            return  # Spark passes its own object for an empty list of partitions.
        columns = arrow_schema(self._table, self._columns)

        async def batches() -> AsyncGenerator[pa.RecordBatch, None]:
            waiting: list[Row] = []
            async with runtime.worker().new_client(self._uri) as client:
                async for rows in _ROWS[self._table](client, partition):
                    waiting += rows
                    while len(waiting) >= ROWS_PER_BATCH:
                        yield _packed(waiting[:ROWS_PER_BATCH], columns)
                        del waiting[:ROWS_PER_BATCH]
            if waiting:
                yield _packed(waiting, columns)

        yield from runtime.worker().iterate(batches, lambda batch: int(batch.nbytes), AHEAD)


class LagReader(TableReader):
    """Reader of the table `lag`."""

    def __init__(self, options: dict[str, str], columns: list[str]) -> None:
        super().__init__(options, columns)
        chosen = LagOptions(**values_of(LagOptions, options))
        self._password, self._checkpoint = read_password(options), chosen.checkpoint
        named = [name for name in SELECTIONS if name in options]
        if chosen.checkpoint is not None and named:
            raise InvalidArgument(f"option {named[0]}: the checkpoint tells what its query reads; leave it out")
        self._selection = selection(options) if named else Selection(pattern=".*")

    async def _listed(self) -> list[TablePartition]:
        if self._checkpoint is not None:
            query = await runtime.worker().files().run(lag_table.reached, self._checkpoint)
            return [TablePartition(query=query, password=self._password)]
        async with runtime.worker().new_client(self._uri) as client:
            names = [str(key) for key in await LogCatalog(client, self._password).keys(self._selection)]
            if self._selection.pattern is None:
                for name in names:
                    await client.log(name).manifest()  # Raises `LogNotFound`.
        parts = [names[at : at + LOGS_PER_PARTITION] for at in range(0, len(names), LOGS_PER_PARTITION)]
        return [TablePartition(names=part, password=self._password) for part in parts]


class SummaryReader(TableReader):
    """Reader of the table `summary`."""

    def __init__(self, options: dict[str, str], columns: list[str]) -> None:
        super().__init__(options, columns)
        self._settings = settings(options, is_stream=False)

    def partitions(self) -> list[TablePartition]:
        return [TablePartition()]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        rows = runtime.worker().run(planning.persistently(self._settings, lambda: summaries(self._settings)))
        yield _packed(rows, arrow_schema(self._table, self._columns))


_READERS: Mapping[str, type[TableReader]] = {SUMMARY: SummaryReader, LAG: LagReader}


def _packed(rows: Sequence[Row], columns: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({name: [row[name] for row in rows] for name in columns.names}, schema=columns)


def split_ids(pages: Sequence[Sequence[int]], count: int) -> list[list[range]]:
    """Split ascending pages of ids into partitions of at most `count` ids, each a list of ranges without gaps."""
    parts: list[list[range]] = []
    size = count
    for page in pages:
        for ledger_id in page:
            if size == count:
                parts.append([])
                size = 0
            runs = parts[-1]
            if runs and runs[-1].stop == ledger_id:
                runs[-1] = range(runs[-1].start, ledger_id + 1)
            else:
                runs.append(range(ledger_id, ledger_id + 1))
            size += 1
    return parts


# -- rows ------------------------------------------------------------------------------------------------------------


def _records(client: Client, ids: Sequence[range]) -> AsyncIterator[list[Versioned]]:
    """Iterate over the records of the ledgers, in groups, without those deleted since they were listed."""
    return client.administration().records([ledger_id for run in ids for ledger_id in run])


async def _ledgers(client: Client, partition: TablePartition) -> AsyncGenerator[list[Row], None]:
    async for records in _records(client, partition.ids):
        yield [ledger_row(stored.metadata, stored.version) for stored in records]


async def _fragments(client: Client, partition: TablePartition) -> AsyncGenerator[list[Row], None]:
    async for records in _records(client, partition.ids):
        yield [row for stored in records for row in fragment_rows(stored.metadata)]


async def _replicas(client: Client, partition: TablePartition) -> AsyncGenerator[list[Row], None]:
    async for records in _records(client, partition.ids):
        yield [row for stored in records for row in replica_rows(stored.metadata)]


async def _bookies(client: Client, partition: TablePartition) -> AsyncGenerator[list[Row], None]:
    async def space(bookie: BookieId, mode: str) -> tuple[int | None, int | None]:
        try:
            return (None, None) if mode == DOWN else await client.bookie_space(bookie)
        except BookKeeperError:
            return None, None  # Null in the row: the bookie does not answer.

    known = await client.bookies()
    spaces = await asyncio.gather(*(space(bookie_info.id, bookie_info.mode) for bookie_info in known))
    yield [
        {
            "bookie": bookie_info.id,
            "mode": bookie_info.mode,
            "address": bookie_info.address,
            "total_bytes": total,
            "free_bytes": free,
            "properties": list(bookie_info.properties.items()),
        }
        for bookie_info, (total, free) in zip(known, spaces, strict=True)
    ]


async def _manifests(client: Client, partition: TablePartition) -> AsyncGenerator[list[Row], None]:
    for name in partition.names:
        try:
            manifest = await client.log(name).manifest()
        except LogNotFound:
            continue  # Deleted since it was listed.
        yield [
            {
                "log": name,
                "seq": extent.seq,
                "ledger_id": extent.storage,
                "first_entry": extent.first,
                "last_entry": extent.last,
                "rows": extent.rows,
                "bytes": extent.bytes,
                "txn": extent.txn,
                "log_created": manifest.created_ms * 1000,
                "epoch": manifest.epoch,
            }
            for extent in manifest.extents
        ]


async def _lag(client: Client, partition: TablePartition) -> AsyncGenerator[list[Row], None]:
    if partition.query is not None:
        async for rows in lag_table.query_rows(client, partition.query, partition.password):
            yield rows
    for name in partition.names:
        yield await lag_table.consumer_rows(client, name, partition.password)


_ROWS = {
    "lag": _lag,
    "ledgers": _ledgers,
    "fragments": _fragments,
    "replicas": _replicas,
    "bookies": _bookies,
    "manifests": _manifests,
}


def ledger_row(record: LedgerMetadata, version: int) -> Row:
    return {
        "ledger_id": record.ledger_id,
        "state": record.state.name.lower(),
        "last_entry": record.last_entry_id if record.is_closed else None,
        "length": record.length if record.is_closed else None,
        "fragments": len(record.ensembles),
        "ensemble_size": record.ensemble_size,
        "write_quorum": record.write_quorum,
        "ack_quorum": record.ack_quorum,
        "digest": record.digest_type.name.lower() if record.digest_type else None,
        "created": None if record.ctime_ms is None else record.ctime_ms * 1000,
        "labels": [(name, value.decode("utf-8", "backslashreplace")) for name, value in record.custom_metadata.items()],
        "version": version,
    }


def fragment_rows(record: LedgerMetadata) -> list[Row]:
    """Return a row for each fragment of the record. Empty fragments are left out unless entries may still follow."""
    return [
        {
            "ledger_id": record.ledger_id,
            "fragment": index,
            "state": record.state.name.lower(),
            "first_entry": first,
            "last_entry": None if fragment is None else fragment.last,
            "bytes": _bytes_of(record, fragment),
            "write_quorum": record.write_quorum,
            "ack_quorum": record.ack_quorum,
            "ensemble": list(ensemble),
        }
        for index, first, ensemble, fragment in _split(record)
    ]


def replica_rows(record: LedgerMetadata) -> list[Row]:
    """Return a row for each position of each fragment."""
    rows = []
    for index, first, ensemble, fragment in _split(record):
        for position, bookie in enumerate(ensemble):
            entries = None if fragment is None else len(fragment.stored(position))
            size = _bytes_of(record, fragment)
            rows.append(
                {
                    "ledger_id": record.ledger_id,
                    "fragment": index,
                    "first_entry": first,
                    "last_entry": None if fragment is None else fragment.last,
                    "position": position,
                    "bookie": bookie,
                    "entries": entries,
                    "bytes": None
                    if fragment is None or entries is None or size is None
                    else size * entries // (fragment.last - fragment.first + 1),
                }
            )
    return rows


def _split(record: LedgerMetadata) -> Iterator[tuple[int, int, Sequence[BookieId], Fragment | None]]:
    """Yield index, first entry, ensemble and fragment. The last fragment of a ledger that is not closed is None."""
    ends = {fragment.first: fragment for fragment in fragments_to_check(record, record.ensembles[-1][0] - 1)}
    for index, (first, ensemble) in enumerate(record.ensembles):
        if not record.is_closed and index == len(record.ensembles) - 1:
            yield index, first, ensemble, None
        elif first in ends:
            yield index, first, ensemble, ends[first]


def _bytes_of(record: LedgerMetadata, fragment: Fragment | None) -> int | None:
    if fragment is None or not record.is_closed:
        return None
    return record.length * (fragment.last - fragment.first + 1) // (record.last_entry_id + 1)
