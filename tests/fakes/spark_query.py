"""Queries as Spark runs them, without Spark: the same calls in the same order, everything pickled and spelled as JSON.

Batch: `schema`, `reader`, `partitions`, then `read` for each task. Stream: a process that asks for offsets and
partitions, and tasks; `checkpoint` is what a restart begins from. Source: spark 1.3. Writing: `save`.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable

from bookies.errors import BookKeeperError
from bookies.spark.base import arrow
from bookies.spark.base.settings import checked, read_options
from bookies.spark.source import BookKeeperDataSource

Row = dict[str, Any]


def make(store: Any, name: str, *sizes: int) -> Any:
    """A log with a ledger of so many entries for each size; entries are numbered through."""
    log = store.log(name)
    log.create(ensemble=1)
    append(log, 0, *sizes)
    return log


def append(log: Any, start: int, *sizes: int) -> int:
    with log.lead() as writer:
        for index, size in enumerate(sizes):
            if index:
                writer.roll()
            if size:
                writer.append_many([b"%d" % number for number in range(start, start + size)])
            start += size
    return start


def numbers(rows: list[Row] | None) -> list[int]:
    assert rows is not None
    return [int(row["value"]) for row in rows]


def refusal(options: dict[str, Any]) -> str:
    """Of a batch query: the sentence."""
    with pytest.raises(BookKeeperError) as caught:
        batch(options)
    return str(caught.value)


def source(options: dict[str, Any]) -> BookKeeperDataSource:
    return BookKeeperDataSource(CaseInsensitiveDict({name: str(value) for name, value in options.items()}))


def schema_of(options: dict[str, Any], value_fields: Any = None) -> Any:
    """What Spark makes of the DDL that the source says; `value_fields`: Arrow fields of what is in `valueSchema`."""
    columns = arrow.columns_of(read_options(checked(source(options).options)))
    fields = list(arrow.arrow_schema([name for name in columns if name != "value" or value_fields is None]))
    return from_arrow_schema(pa.schema([*fields, *(value_fields or [])]))


def rows_of(reader: Any, partitions: Iterable[Any]) -> list[Row]:
    """What the tasks deliver, each of which gets copies of its own."""
    found: list[Row] = []
    for partition in list(partitions) or [InputPartition(None)]:
        task = pickle.loads(cloudpickle.dumps(reader))
        for batch in task.read(pickle.loads(cloudpickle.dumps(partition))):
            found += batch.to_pylist()
    return found


def batch(options: dict[str, Any], value_fields: Any = None) -> list[Row]:
    """The rows of a batch query."""
    made = source(options)
    made.schema()
    reader = pickle.loads(cloudpickle.dumps(made)).reader(schema=schema_of(options, value_fields))
    return rows_of(reader, reader.partitions())


def save(options: dict[str, Any], table: pa.Table) -> None:
    """Write a batch of one task, or abort it."""
    writer = source(options).writer(from_arrow_schema(table.schema), overwrite=False)
    task, driver = (pickle.loads(cloudpickle.dumps(writer)) for _ in range(2))
    try:
        driver.commit([pickle.loads(cloudpickle.dumps(task.write(iter(table.to_batches()))))])
    except BookKeeperError:
        driver.abort([None])
        raise


class Stream:
    """A streaming query; another one with the same `checkpoint` is its restart."""

    def __init__(
        self,
        options: dict[str, Any],
        checkpoint: list[str] | None = None,
        *,
        committed: int = 0,
        fields: Any = None,
    ) -> None:
        made = source(options)
        made.schema()
        self.reader = pickle.loads(cloudpickle.dumps(made)).streamReader(schema=schema_of(options, fields))
        self.checkpoint = [] if checkpoint is None else checkpoint
        self.committed = committed  # batches

    def prepare(self) -> None:
        self.reader.prepareForTriggerAvailableNow()

    def trigger(self, limit: Any = None) -> list[Row] | None:
        """Run one batch; None: there was none to run."""
        if len(self.checkpoint) > self.committed:  # planned before a restart
            return self._run()
        start = json.loads(self.checkpoint[-1]) if self.checkpoint else self.reader.initialOffset()
        if not self.checkpoint:
            assert self.reader.initialOffset() == start
        chosen = self.reader.getDefaultReadLimit() if limit is None else limit
        end = json.dumps(self.reader.latestOffset(start, chosen))
        self.reader.reportLatestOffset()
        if end == json.dumps(start):
            return None
        if self.checkpoint:
            self.reader.commit(json.loads(self.checkpoint[-1]))
        self.checkpoint.append(end)
        return self._run()

    def _run(self) -> list[Row]:
        end = json.loads(self.checkpoint[self.committed])
        start = json.loads(self.checkpoint[self.committed - 1]) if self.committed else self.reader.initialOffset()
        found = rows_of(self.reader, self.reader.partitions(start, end))
        self.committed += 1
        return found

    def drain(self, limit: Any = None) -> list[list[Row]]:
        """Batches until there are none."""
        found = []
        while (rows := self.trigger(limit)) is not None:
            found.append(rows)
        return found

    @property
    def position(self) -> dict[str, Any]:
        return dict(json.loads(self.checkpoint[-1]))


ALL = ReadAllAvailable()
