"""Partitions of a query: ranges of entries, packed for tasks. Pure functions, no Spark.

A partition is a list of ranges that one task reads one after the other. It has everything the task needs: entry range,
ensemble, digest, bookie addresses, which replica to begin with. Source: spark 3.4.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from bookies.client.read.offloaded import Group
from bookies.distributedlog.formats.segment import Segment
from bookies.errors import InvalidArgument
from bookies.model import BookieId, LedgerMetadata, fragments_of

ENTRY_OVERHEAD = 64  # bytes that an entry costs in addition to its payload
BINS_TRIED = 64  # partitions that are tried for a chunk: keeps planning of 100,000 chunks fast
Address = tuple[str, int, str]  # host, port, and location of a bookie, empty if unknown
Curve = Sequence[tuple[int, int]]  # (entry, payload bytes of the ledger before it), both ascending


class Range(Struct, frozen=True):
    """Entries first..last of one ledger: before they are cut of any fragments, then of one. `size`: estimated bytes.

    `log`, `seq`, `row`: the log, its extent, and the number of the first entry's row; None for a ledger without a log.
    `replica`: the position in the ensemble to read from, -1: any. `is_offloaded`: read from the ledger's offloaded
    copy. `segment`: of a log of DistributedLog. `named`, `kept`, `shift`: of an extent that was compacted or rolled
    up, for which `metadata` is the ledger with its entries, under other ids: the ledger that positions name, how many
    a compaction has left, and how many entries of other extents are before them. `ids`: of those left, in a task.
    """

    metadata: LedgerMetadata
    first: int
    last: int
    size: int = 0
    log: str | None = None
    seq: int | None = None
    row: int | None = None
    is_envelope: bool = False
    is_sets: bool = False
    replica: int = -1
    is_offloaded: bool = False
    segment: Segment | None = None
    named: int | None = None
    kept: int | None = None
    shift: int = 0
    ids: Sequence[int] | None = None

    @property
    def ledger_id(self) -> int:
        """Return the ledger that positions name."""
        return self.metadata.ledger_id if self.named is None else self.named

    @property
    def count(self) -> int:
        return self.last - self.first + 1

    def row_of(self, entry_id: int) -> int | None:
        """Return the number of an entry's row; None for a ledger without a log."""
        return None if self.row is None else self.row + entry_id - self.first

    def part(self, first: int, last: int, size: int | None = None) -> Range:
        """Return entries first..last. `size`: their bytes; None: their share of the range's."""
        size = self.size * (last - first + 1) // self.count if size is None else size
        return replace(self, first=first, last=last, size=max(1, size), row=self.row_of(first))


class Gap(Struct, frozen=True):
    """Rows that no longer exist, reported as one row.

    They are those from (`from_seq`, `from_entry`) up to, not including, (`until_seq`, `until_entry`). The numbers of
    extents are None for a ledger without a log. `rows` and `row` are None where they are unknown.
    """

    log: str | None
    ledger_id: int | None
    from_seq: int | None
    from_entry: int
    until_seq: int | None
    until_entry: int
    rows: int | None
    row: int | None
    reason: str


class Part(Struct, frozen=True):
    """The ranges and gaps that one task reads, with the addresses of their bookies."""

    ranges: Sequence[Range]
    gaps: Sequence[Gap]
    addresses: dict[str, Address]


def ranges_of(whole: Range, curve: Curve, size_max: int) -> list[Range]:
    """Cut the entries at fragment boundaries and at `size_max` bytes. `curve`: see `size_between`."""
    end = whole.metadata.last_entry_id if whole.metadata.is_closed else whole.last
    bounds = [(max(whole.first, start), min(whole.last, stop)) for start, stop, _ in fragments_of(whole.metadata, end)]
    return [
        whole.part(first, last, size_between(curve, first, last))
        for low, high in bounds
        if low <= high
        for first, last in cut(curve, low, high, size_max)
    ]


def offloaded_ranges(whole: Range, groups: Sequence[Group], size_max: int) -> list[Range]:
    """Cut the entries between row groups of the ledger's copy, at `size_max` bytes."""
    ranges: list[Range] = []
    for group in groups:
        low, high = max(whole.first, group.first), min(whole.last, group.last)
        if low > high:
            continue
        share = (group.above - group.below) * (high - low + 1) // (group.last - group.first + 1)
        size = max(1, share + ENTRY_OVERHEAD * (high - low + 1))
        if ranges and ranges[-1].size + size <= size_max:
            ranges[-1] = replace(ranges[-1], last=high, size=ranges[-1].size + size)
        else:
            ranges.append(replace(whole.part(low, high, size), is_offloaded=True))
    return ranges


def bytes_before(curve: Curve, entry_id: int) -> int:
    """Return the payload bytes of the entries before this one. Between points of the curve it interpolates."""
    index = bisect_right(curve, entry_id, key=lambda point: point[0]) - 1
    if index < 0:
        return curve[0][1]
    if index + 1 == len(curve):
        return curve[-1][1]
    (low, below), (high, above) = curve[index], curve[index + 1]
    return below + (above - below) * (entry_id - low) // (high - low)


def size_between(curve: Curve, first: int, last: int) -> int:
    """Return the bytes that entries first..last cost."""
    return bytes_before(curve, last + 1) - bytes_before(curve, first) + ENTRY_OVERHEAD * (last - first + 1)


def cut(curve: Curve, first: int, last: int, size_max: int) -> list[tuple[int, int]]:
    """Cut first..last into consecutive parts of about equal bytes: at most `size_max` by the curve, or one entry."""
    total = size_between(curve, first, last)
    parts = min(-(-total // size_max), last - first + 1)
    if parts <= 1:
        return [(first, last)]
    parts_found = []
    low = first
    for index in range(1, parts + 1):
        high = last if index == parts else _reach(curve, first, low, last, total * index // parts)
        parts_found.append((low, high))
        low = high + 1
        if low > last:
            break
    return [part for part_found in parts_found for part in _halved(curve, *part_found, size_max)]


def _reach(curve: Curve, first: int, low: int, last: int, size: int) -> int:
    """Return the last entry, not before `low`, such that entries first..it cost at most `size` bytes."""
    return max(low, low + bisect_right(range(low, last + 1), size, key=lambda at: size_between(curve, first, at)) - 1)


def _halved(curve: Curve, first: int, last: int, size_max: int) -> list[tuple[int, int]]:
    if first >= last or size_between(curve, first, last) <= size_max:
        return [(first, last)]
    middle = min(last - 1, _reach(curve, first, first, last, size_max))
    return [(first, middle), *_halved(curve, middle + 1, last, size_max)]


def sample_points(curve: Curve, first: int, last: int, size_max: int, count_max: int) -> list[int]:
    """Return up to `count_max` entries whose place on the curve should be known before cutting.

    They are the cuts by what is known of the curve.
    """
    cuts = [low for low, _ in cut(curve, first, last, size_max)][1:]
    known = [entry_id for entry_id, _ in curve]
    unknown = [cut_at for cut_at in cuts if cut_at != known[min(bisect_left(known, cut_at), len(known) - 1)]]
    step = max(1, -(-len(unknown) // count_max))
    return unknown[::step]


def even_parts(first: int, last: int, parts: int) -> list[tuple[int, int]]:
    """Divide first..last into parts of about equal length: the first and the last of each."""
    bounds = [first + (last - first + 1) * part // parts for part in range(parts + 1)]
    return [(low, stop - 1) for low, stop in itertools.pairwise(bounds)]


def split_by_count(entry_range: Range, count_max: int | None) -> list[Range]:
    """Split a range into equal parts of at most `count_max` entries."""
    parts = -(-entry_range.count // count_max) if count_max else 1
    return [entry_range.part(*part) for part in even_parts(entry_range.first, entry_range.last, parts)]


def size_limit(total: int, size_max: int, parts_min: int) -> int:
    """Return the bytes of a partition that give at least `parts_min` partitions."""
    return min(size_max, max(1, total // parts_min)) if parts_min > 1 and total else size_max


def pack(ranges: Iterable[Range], *, size_max: int, count_max: int | None = None) -> list[list[Range]]:
    """Pack ranges into partitions of at most `size_max` bytes and `count_max` entries.

    A single range or entry may be larger. Ranges of one log keep their order, and neighbours share a partition while
    they fit. The remainders of several logs are combined, the largest first.
    """
    if size_max < 1 or (count_max is not None and count_max < 1):
        raise InvalidArgument("maxBytesPerPartition and maxRecordsPerPartition must be 1 or more")
    chunks: list[list[Range]] = []
    for _, of_log in itertools.groupby(ranges, key=lambda entry_range: entry_range.log):
        chunks += _chunks(of_log, size_max, count_max)
    order = sorted(range(len(chunks)), key=lambda index: (-_size(chunks[index]), index))
    bins: list[tuple[int, list[int], int, int]] = []  # (first chunk, chunks, bytes, entries)
    for index in order:
        size, count = _size(chunks[index]), sum(entry_range.count for entry_range in chunks[index])
        for at in range(max(0, len(bins) - BINS_TRIED), len(bins)):
            head, inside, used, rows = bins[at]
            if used + size <= size_max and (count_max is None or rows + count <= count_max):
                bins[at] = min(head, index), [*inside, index], used + size, rows + count
                break
        else:
            bins.append((index, [index], size, count))
    return [
        [entry_range for index in sorted(inside) for entry_range in chunks[index]] for _, inside, _, _ in sorted(bins)
    ]


def _size(ranges: Sequence[Range]) -> int:
    return sum(entry_range.size for entry_range in ranges)


def _chunks(ranges: Iterable[Range], size_max: int, count_max: int | None) -> list[list[Range]]:
    """Join neighbouring ranges while they fit."""
    chunks: list[list[Range]] = []
    size = count = 0
    for whole in ranges:
        for part in split_by_count(whole, count_max):
            is_full = size + part.size > size_max or (count_max is not None and count + part.count > count_max)
            if not chunks or is_full:
                chunks.append([])
                size = count = 0
            chunks[-1].append(part)
            size += part.size
            count += part.count
    return chunks


def with_replicas(partitions: Iterable[Sequence[Range]]) -> list[list[Range]]:
    """Choose a replica for each range, so that every bookie serves about the same bytes.

    A range striped over more bookies than the write quorum is read from all of them anyway.
    """
    load: dict[BookieId, int] = {}
    result = []
    for partition in partitions:
        chosen = []
        for entry_range in partition:
            ensemble = entry_range.metadata.ensemble_at(entry_range.first)
            if len(ensemble) == entry_range.metadata.write_quorum and not entry_range.is_offloaded:
                position = min(range(len(ensemble)), key=lambda index: (load.get(ensemble[index], 0), index))
                load[ensemble[position]] = load.get(ensemble[position], 0) + entry_range.size
                entry_range = replace(entry_range, replica=position)
            chosen.append(entry_range)
        result.append(chosen)
    return result


def bookies_of(partition: Sequence[Range], addresses: Mapping[str, Address]) -> dict[str, Address]:
    """Return the addresses that a partition's task needs. A bookie without an address is down."""
    return {
        bookie: addresses[bookie]
        for entry_range in partition
        if not entry_range.is_offloaded
        # The ids of a rewritten extent do not tell which fragments of its ledger hold the entries.
        for bookie in (
            entry_range.metadata.ensemble_at(entry_range.first)
            if entry_range.named is None
            else entry_range.metadata.bookies
        )
        if bookie in addresses
    }
