"""The data source `bookkeeper`: ledgers as a table, in batches.

`schema()` resolves which ledgers there are and where each ends, once: later planning uses those positions, so a
DataFrame is a stable snapshot of ledgers that go on growing. A ledger that is being written is read up to its last
add confirmed; the source never recovers or fences one. Source: spark 3.1 to 3.5.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from bookies.errors import BookKeeperError, InvalidArgument
from bookies.spark import arrow, plan, runtime
from bookies.spark.options import metadata_uri, number, proper_names, read_password

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

    from bookies.client.client import Client
    from bookies.client.entries import EntryBatch
    from bookies.model import LedgerMetadata

ENTRIES = "entries"  # the table that is read when none is named
SELECTIONS = ("ledger", "ledgers", "label", "assign", "path", "paths")
OPTIONS = (
    *SELECTIONS, "table", "columns", "includeValue", "includeMetadata", "maxBytesPerPartition",
    "maxRecordsPerPartition", "minPartitions", "readAheadBytes",
)  # fmt: skip
READ_AHEAD = 16 << 20


@dataclass(frozen=True)
class Position:
    """A ledger and the entries of it that this DataFrame shows. `size`: payload bytes of entries 0..last."""

    metadata: LedgerMetadata
    first: int
    last: int
    size: int


@dataclass(frozen=True)
class Snapshot:
    positions: tuple[Position, ...]
    addresses: Mapping[str, tuple[str, int]]


class EntriesPartition(InputPartition):
    """The ranges of one task, with everything needed to read them."""

    def __init__(self, ranges: list[plan.Range], addresses: dict[str, tuple[str, int]]) -> None:
        super().__init__(None)
        self.ranges = ranges
        self.addresses = addresses


class BookKeeperDataSource(DataSource):
    """`spark.read.format("bookkeeper")`. Options: docs/spark.md."""

    _snapshot: Snapshot | None = None

    @classmethod
    def name(cls) -> str:
        return "bookkeeper"

    def schema(self) -> Any:
        if (tables := self._tables()) is not None:
            return tables.schema(self.options)
        columns = arrow.columns_of(_checked(self.options))
        self._snapshot = resolve(self.options)
        return arrow.spark_schema(columns)

    def reader(self, schema: Any) -> DataSourceReader:
        if (tables := self._tables()) is not None:
            reader: DataSourceReader = tables.reader(self.options, schema)
            return reader
        options = _checked(self.options)
        return EntriesReader(options, schema.names, self._snapshot or resolve(options))

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        from bookies.spark import sink

        return sink.BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
        from bookies.spark import sink

        return sink.StreamWriter(self.options, schema, overwrite)

    def _tables(self) -> Any:
        """The module that knows the other tables, when one of them is asked for."""
        if self.options.get("table", ENTRIES) == ENTRIES:
            return None
        return importlib.import_module("bookies.spark.tables")


class EntriesReader(DataSourceReader):
    """Plans on the driver, reads in the tasks."""

    def __init__(self, options: dict[str, str], columns: list[str], snapshot: Snapshot) -> None:
        unknown = [name for name in columns if name not in arrow.COLUMNS]
        if unknown:
            raise InvalidArgument(f"no column {unknown[0]!r}; there are {', '.join(arrow.COLUMNS)}")
        self._columns = columns
        self._snapshot = snapshot
        self._read_ahead = number(options, "readAheadBytes", READ_AHEAD)
        self._size_max = number(options, "maxBytesPerPartition", plan.DEFAULT_PARTITION_SIZE)
        self._count_max = number(options, "maxRecordsPerPartition", 0) or None
        self._parts_min = number(options, "minPartitions", 1)
        self._password = read_password(options)

    def partitions(self) -> list[EntriesPartition]:
        ranges = [
            each
            for position in self._snapshot.positions
            for each in plan.ranges_of(position.metadata, position.first, position.last, position.size)
        ]
        parts = plan.pack(ranges, size_max=self._size_max, count_max=self._count_max, parts_min=self._parts_min)
        return [EntriesPartition(part, plan.bookies_of(part, self._snapshot.addresses)) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, EntriesPartition):
            return  # Spark's stand-in for an empty list of partitions.
        schema = arrow.arrow_schema(self._columns)
        worker = runtime.worker()
        batches = worker.iterate(lambda: self._fetch(worker, partition), lambda batch: batch.size, self._read_ahead)
        for batch in batches:
            yield from arrow.record_batches(batch, schema)

    async def _fetch(self, worker: runtime.Worker, partition: EntriesPartition) -> AsyncGenerator[EntryBatch, None]:
        from bookies.client.fetch import RangeFetch
        from bookies.client.keys import keys_of
        from bookies.client.pool import BookiePool
        from bookies.config import ClientConfig

        config = ClientConfig(read_ahead_size=max(64 << 10, self._read_ahead // 4))
        pool = BookiePool(worker.runtime, config, runtime.resolver(partition.addresses))
        try:
            for each in partition.ranges:
                fetch = RangeFetch(
                    pool,
                    config,
                    keys_of(each.metadata, self._password),
                    each.metadata,
                    each.first,
                    each.last,
                    refresh=partial(_unchanged, each.metadata),
                    entry_size=each.size / each.count,
                )
                while (batch := await fetch.next_batch()) is not None:
                    yield batch
        finally:
            await pool.close()


async def _unchanged(metadata: LedgerMetadata) -> LedgerMetadata:
    """Tasks do not ask the metadata store whether replicas have moved; a new `load()` does."""
    return metadata


def resolve(options: Mapping[str, str]) -> Snapshot:
    """Ask the metadata store, and the bookies of open ledgers, for what the options select."""
    options = _checked(options)
    uri = metadata_uri(options)

    async def main() -> Snapshot:
        from bookies.client.client import Client
        from bookies.config import ClientConfig
        from bookies.metadata.uri import connect as connect_metadata

        worker = runtime.worker()
        driver = connect_metadata(uri, worker.runtime)
        async with Client(worker.runtime, driver, ClientConfig()) as client:
            return await _snapshot(client, options)

    return runtime.worker().run(main())


async def _snapshot(client: Client, options: Mapping[str, str]) -> Snapshot:
    from bookies.client.keys import keys_of

    password = read_password(options)
    positions = []
    for ledger_id, first, last in await _selected(client, options):
        metadata = await client.metadata(ledger_id)
        keys_of(metadata, password)  # A wrong password is better found here than in every task.
        if metadata.is_closed:
            end, size = metadata.last_entry_id, metadata.length
        else:
            async with client.open(ledger_id, password=password) as ledger:
                end = ledger.last_add_confirmed
                size = (await ledger.read_entry(end)).length if end >= 0 else 0
            # Read after the end was learned, the record names the bookies of every entry up to there.
            metadata = await client.metadata(ledger_id)
        if first < 0 or (last is not None and last < first):
            raise InvalidArgument(f"option assign: entries {first} to {last} of ledger {ledger_id} are no range")
        if last is not None and last > end:
            raise InvalidArgument(f"ledger {ledger_id} ends at entry {end}, option assign asks for {last}")
        last = end if last is None else last
        positions.append(Position(metadata, first, last, size * max(0, last - first + 1) // max(1, end + 1)))
    addresses = {}
    for each in await client.bookies():
        if each.address:
            host, _, port = each.address.rpartition(":")
            addresses[str(each.id)] = (host, int(port))
    return Snapshot(tuple(positions), addresses)


async def _selected(client: Client, options: Mapping[str, str]) -> list[tuple[int, int, int | None]]:
    """(ledger id, first entry, last entry or None for its end), in the order in which they were named."""
    if "label" in options:
        name, equals, value = options["label"].partition("=")
        if not equals:
            raise InvalidArgument(f"option label={options['label']!r}: expected NAME=VALUE")
        return [(each.ledger_id, 0, None) async for each in client.ledgers(label=(name, value))]
    try:
        if "assign" in options:
            ranges = json.loads(options["assign"])["ledgers"]
            return [
                (int(ledger), int(first), None if last is None else int(last))
                for ledger, (first, last) in ranges.items()
            ]
        if "paths" in options:
            return [(int(each), 0, None) for each in json.loads(options["paths"])]
        text = options.get("ledgers") or options.get("ledger") or options["path"]
        return [(int(each), 0, None) for each in text.split(",")]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgument(
            'ledgers are named by number: ledgers="17,18", load("17"), or assign=\'{"ledgers": {"17": [0, 99]}}\' '
            f"(null for the end); got { ({name: options[name] for name in SELECTIONS if name in options}) }"
        ) from error


def _checked(options: Mapping[str, str]) -> dict[str, str]:
    """The options under their proper names. Raises `InvalidArgument` for unknown or contradicting ones."""
    found = proper_names(options, OPTIONS)
    named = [name for name in SELECTIONS if name in found]
    if len(named) != 1:
        said = f"got {' and '.join(named)}" if named else "got none"
        raise InvalidArgument(
            f"say which ledgers with exactly one of ledger, ledgers, label, assign, load(...): {said}"
        )
    return found


__all__ = ["BookKeeperDataSource", "BookKeeperError", "EntriesReader", "resolve"]
