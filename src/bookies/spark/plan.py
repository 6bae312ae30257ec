"""From ledgers to partitions: pure functions, no Spark.

A partition is a list of ranges that one task reads one after the other. Everything a task needs is in it: entry
range, ensemble, digest, bookie addresses; tasks do not touch the metadata store. Source: spark 3.4.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bookies.errors import InvalidArgument
from bookies.model import LedgerMetadata, fragments_of

DEFAULT_PARTITION_SIZE = 256 << 20  # bytes of payload
ENTRY_OVERHEAD = 64  # bytes that an entry costs beside its payload


@dataclass(frozen=True)
class Range:
    """Entries first..last of one ledger, all in one fragment. `size`: estimated bytes."""

    metadata: LedgerMetadata
    first: int
    last: int
    size: int

    @property
    def count(self) -> int:
        return self.last - self.first + 1


def ranges_of(metadata: LedgerMetadata, first: int, last: int, size: int) -> list[Range]:
    """Entries first..last cut at fragment boundaries. `size`: payload bytes of all of them."""
    count = last - first + 1
    if count <= 0:
        return []
    total = size + ENTRY_OVERHEAD * count
    return [
        Range(metadata, low, high, max(1, total * (high - low + 1) // count))
        for low, high in (
            (max(first, start), min(last, stop))
            for start, stop, _ in fragments_of(metadata, metadata_end(metadata, last))
        )
        if low <= high
    ]


def metadata_end(metadata: LedgerMetadata, last: int) -> int:
    return metadata.last_entry_id if metadata.is_closed else last


def split(each: Range, size_max: int, count_max: int | None) -> list[Range]:
    """Cut a range into equal parts, none above the limits (a single entry may be larger than `size_max`)."""
    parts = -(-each.size // size_max)
    if count_max:
        parts = max(parts, -(-each.count // count_max))
    parts = min(parts, each.count)
    bounds = [each.first + each.count * index // parts for index in range(parts + 1)]
    return [
        replace(each, first=low, last=high - 1, size=max(1, each.size * (high - low) // each.count))
        for low, high in itertools.pairwise(bounds)
    ]


def pack(
    ranges: Iterable[Range], *, size_max: int = DEFAULT_PARTITION_SIZE, count_max: int | None = None, parts_min: int = 1
) -> list[list[Range]]:
    """Partitions of at most `size_max` bytes and `count_max` entries, at least `parts_min` of them if entries allow.

    Ranges keep their order, and neighbours share a partition while they fit.
    """
    if size_max < 1 or (count_max is not None and count_max < 1) or parts_min < 1:
        raise InvalidArgument("maxBytesPerPartition, maxRecordsPerPartition and minPartitions must be 1 or more")
    ranges = list(ranges)
    total = sum(each.size for each in ranges)
    if parts_min > 1 and total:
        size_max = min(size_max, max(1, -(-total // parts_min)))
    partitions: list[list[Range]] = []
    size = count = 0
    for whole in ranges:
        for part in split(whole, size_max, count_max):
            is_full = size + part.size > size_max or (count_max is not None and count + part.count > count_max)
            if not partitions or is_full:
                partitions.append([])
                size = count = 0
            partitions[-1].append(part)
            size += part.size
            count += part.count
    return partitions


def bookies_of(partition: Sequence[Range], addresses: Mapping[str, tuple[str, int]]) -> dict[str, tuple[str, int]]:
    """The addresses that a partition's task needs; bookies without one are down."""
    return {
        bookie: addresses[bookie]
        for each in partition
        for bookie in each.metadata.ensemble_at(each.first)
        if bookie in addresses
    }
