"""Partitions as Spark passes them from the planner to the tasks. All else about them is free of Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import InputPartition

from bookies.spark.base.plan import Part
from bookies.spark.read.read import RowReader

if TYPE_CHECKING:
    import pyarrow as pa


class EntriesPartition(InputPartition):
    """Partition that one task reads."""

    def __init__(self, part: Part) -> None:
        super().__init__(None)
        self.part = part


def wrapped(parts: Iterable[Part]) -> list[EntriesPartition]:
    return [EntriesPartition(part) for part in parts]


def rows_of(reader: RowReader, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition: see `RowReader.read`."""
    if isinstance(partition, EntriesPartition):  # Spark passes its own object for an empty list of partitions.
        yield from reader.read(partition.part)
