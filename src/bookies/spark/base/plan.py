"""From ranges of entries to partitions: pure functions, no Spark.

A partition is a list of ranges that one task reads one after the other. Everything a task needs is in it: entry range,
ensemble, digest, bookie addresses, which replica to begin with. Source: spark 3.4.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from bookies.client.read.offloaded import Group
from bookies.errors import InvalidArgument
from bookies.model import BookieId, LedgerMetadata, fragments_of

DEFAULT_PARTITION_SIZE = 256 << 20  # bytes of payload
ENTRY_OVERHEAD = 64  # bytes that an entry costs beside its payload
BINS_TRIED = 64  # partitions that are looked at for a place, so that planning 100,000 chunks stays quick
Curve = Sequence[tuple[int, int]]  # (entry, payload bytes of the ledger before it), both ascending


@dataclass(frozen=True)
class Range:
    """Entries first..last of one ledger, all in one fragment. `size`: estimated bytes.

    `log`, `seq`, `row`: the log, its extent, and the number of the first entry's row; None for a ledger by itself.
    `replica`: the position in the ensemble to read from, -1: any. `is_offloaded`: to be read from the ledger's copy.
    """

    metadata: LedgerMetadata
    first: int
    last: int
    size: int
    log: str | None = None
    seq: int | None = None
    row: int | None = None
    is_envelope: bool = False
    replica: int = -1
    is_offloaded: bool = False

    @property
    def count(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True)
class Gap:
    """Rows that no longer exist, told as one row: from (`from_seq`, `from_entry`) up to, not including, (`until_...`).

    The numbers of extents are None for a ledger by itself, `rows` and `row` where nobody knows them.
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


@dataclass(frozen=True)
class Source:
    """A run of entries of one ledger before it is cut; see `Range` for the rest of the words."""

    metadata: LedgerMetadata
    first: int
    last: int
    log: str | None = None
    seq: int | None = None
    row: int | None = None
    is_envelope: bool = False


def ranges_of(source: Source, curve: Curve, size_max: int) -> list[Range]:
    """The entries cut at fragment boundaries and where `size_max` bytes are full. `curve`: see `size_between`."""
    metadata, end = source.metadata, metadata_end(source.metadata, source.last)
    found = []
    for start, stop, _ in fragments_of(metadata, end):
        low, high = max(source.first, start), min(source.last, stop)
        if low > high:
            continue
        for first, last in cut(curve, low, high, size_max):
            size = max(1, size_between(curve, first, last))
            row = None if source.row is None else source.row + first - source.first
            found.append(Range(metadata, first, last, size, source.log, source.seq, row, source.is_envelope))
    return found


def offloaded_ranges(source: Source, groups: Sequence[Group], size_max: int) -> list[Range]:
    """The entries cut between row groups of the ledger's copy, where `size_max` bytes are full."""
    found: list[Range] = []
    for group in groups:
        low, high = max(source.first, group.first), min(source.last, group.last)
        if low > high:
            continue
        share = (group.above - group.below) * (high - low + 1) // (group.last - group.first + 1)
        size = max(1, share + ENTRY_OVERHEAD * (high - low + 1))
        if found and found[-1].size + size <= size_max:
            found[-1] = replace(found[-1], last=high, size=found[-1].size + size)
            continue
        row = None if source.row is None else source.row + low - source.first
        each = Range(source.metadata, low, high, size, source.log, source.seq, row, source.is_envelope)
        found.append(replace(each, is_offloaded=True))
    return found


def metadata_end(metadata: LedgerMetadata, last: int) -> int:
    return metadata.last_entry_id if metadata.is_closed else last


def bytes_before(curve: Curve, entry_id: int) -> int:
    """Payload bytes of the entries before this one: known where the curve has it, in proportion in between."""
    index = bisect_right(curve, entry_id, key=lambda point: point[0]) - 1
    if index < 0:
        return curve[0][1]
    if index + 1 == len(curve):
        return curve[-1][1]
    (low, below), (high, above) = curve[index], curve[index + 1]
    return below + (above - below) * (entry_id - low) // (high - low)


def size_between(curve: Curve, first: int, last: int) -> int:
    """Bytes that entries first..last cost."""
    return bytes_before(curve, last + 1) - bytes_before(curve, first) + ENTRY_OVERHEAD * (last - first + 1)


def cut(curve: Curve, first: int, last: int, size_max: int) -> list[tuple[int, int]]:
    """Consecutive parts of first..last of about equal bytes, none above `size_max` by the curve, or of one entry."""
    total = size_between(curve, first, last)
    parts = min(-(-total // size_max), last - first + 1)
    if parts <= 1:
        return [(first, last)]
    found = []
    low = first
    for index in range(1, parts + 1):
        high = last if index == parts else _reach(curve, first, low, last, total * index // parts)
        found.append((low, high))
        low = high + 1
        if low > last:
            break
    return [part for each in found for part in _halved(curve, *each, size_max)]


def _reach(curve: Curve, first: int, low: int, last: int, size: int) -> int:
    """The last entry, not before `low`, such that first..it costs at most `size` bytes."""
    return max(low, low + bisect_right(range(low, last + 1), size, key=lambda at: size_between(curve, first, at)) - 1)


def _halved(curve: Curve, first: int, last: int, size_max: int) -> list[tuple[int, int]]:
    if first >= last or size_between(curve, first, last) <= size_max:
        return [(first, last)]
    middle = min(last - 1, _reach(curve, first, first, last, size_max))
    return [(first, middle), *_halved(curve, middle + 1, last, size_max)]


def sample_points(curve: Curve, first: int, last: int, size_max: int, count_max: int) -> list[int]:
    """Entries whose place on the curve should be known before cutting: where it would be cut by what is known."""
    cuts = [low for low, _ in cut(curve, first, last, size_max)][1:]
    known = [entry_id for entry_id, _ in curve]
    unknown = [each for each in cuts if each != known[min(bisect_left(known, each), len(known) - 1)]]
    step = max(1, -(-len(unknown) // count_max))
    return unknown[::step]


def split_by_count(each: Range, count_max: int | None) -> list[Range]:
    """Equal parts of at most `count_max` entries."""
    parts = -(-each.count // count_max) if count_max else 1
    bounds = [each.first + each.count * index // parts for index in range(parts + 1)]
    return [
        replace(
            each,
            first=low,
            last=high - 1,
            size=max(1, each.size * (high - low) // each.count),
            row=None if each.row is None else each.row + low - each.first,
        )
        for low, high in itertools.pairwise(bounds)
    ]


def size_limit(total: int, size_max: int, parts_min: int) -> int:
    """Bytes of a partition so that there are at least `parts_min`."""
    return min(size_max, max(1, total // parts_min)) if parts_min > 1 and total else size_max


def pack(ranges: Iterable[Range], *, size_max: int, count_max: int | None = None) -> list[list[Range]]:
    """Partitions of at most `size_max` bytes and `count_max` entries (a single range or entry may be larger).

    Ranges of one log keep their order, and neighbours share a partition while they fit; what is left over of several
    logs is put together, the largest first.
    """
    if size_max < 1 or (count_max is not None and count_max < 1):
        raise InvalidArgument("maxBytesPerPartition and maxRecordsPerPartition must be 1 or more")
    chunks: list[list[Range]] = []
    for _, of_log in itertools.groupby(ranges, key=lambda each: each.log):
        chunks += _chunks(of_log, size_max, count_max)
    order = sorted(range(len(chunks)), key=lambda index: (-_size(chunks[index]), index))
    bins: list[tuple[int, list[int], int, int]] = []  # (first chunk, chunks, bytes, entries)
    for index in order:
        size, count = _size(chunks[index]), sum(each.count for each in chunks[index])
        for at in range(max(0, len(bins) - BINS_TRIED), len(bins)):
            head, inside, used, rows = bins[at]
            if used + size <= size_max and (count_max is None or rows + count <= count_max):
                bins[at] = min(head, index), [*inside, index], used + size, rows + count
                break
        else:
            bins.append((index, [index], size, count))
    return [[each for index in sorted(inside) for each in chunks[index]] for _, inside, _, _ in sorted(bins)]


def _size(ranges: Sequence[Range]) -> int:
    return sum(each.size for each in ranges)


def _chunks(ranges: Iterable[Range], size_max: int, count_max: int | None) -> list[list[Range]]:
    """Neighbours together while they fit."""
    found: list[list[Range]] = []
    size = count = 0
    for whole in ranges:
        for part in split_by_count(whole, count_max):
            is_full = size + part.size > size_max or (count_max is not None and count + part.count > count_max)
            if not found or is_full:
                found.append([])
                size = count = 0
            found[-1].append(part)
            size += part.size
            count += part.count
    return found


def with_replicas(partitions: Iterable[Sequence[Range]]) -> list[list[Range]]:
    """The same with a replica chosen for each range, so that every bookie has about the same bytes to read.

    Where entries are striped over more bookies than store each of them, a range is read from all of them anyway.
    """
    load: dict[BookieId, int] = {}
    found = []
    for partition in partitions:
        chosen = []
        for each in partition:
            ensemble = each.metadata.ensemble_at(each.first)
            if len(ensemble) == each.metadata.write_quorum and not each.is_offloaded:
                position = min(range(len(ensemble)), key=lambda index: (load.get(ensemble[index], 0), index))
                load[ensemble[position]] = load.get(ensemble[position], 0) + each.size
                each = replace(each, replica=position)
            chosen.append(each)
        found.append(chosen)
    return found


def bookies_of(partition: Sequence[Range], addresses: Mapping[str, tuple[str, int]]) -> dict[str, tuple[str, int]]:
    """The addresses that a partition's task needs; bookies without one are down."""
    return {
        bookie: addresses[bookie]
        for each in partition
        if not each.is_offloaded
        for bookie in each.metadata.ensemble_at(each.first)
        if bookie in addresses
    }
