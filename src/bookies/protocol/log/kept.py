"""Ids of the entries that a compaction has kept: how its ledger stores them after the entries, and how they are found.

A compacted ledger holds N entries, and then records of the ids that these had before. So entry K of the ledger is the
entry of the log with the K-th id, and its position in the log does not change. A record is a magic word, a version, the
number of ids, the first id, and the differences between the others, compressed.

Source: docs/explanation/logs.md, "Compaction".
"""

from __future__ import annotations

import struct
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise

from bookies.errors import MetadataCorrupt

MAGIC, VERSION = b"bkpt", 1
IDS_MAX = 65_536  # in a record: 256 KiB before compression
_front = struct.Struct(">4sBIQ")  # magic, version, number of ids, first id; the differences are u32, big-endian


def pack_kept(ids: Sequence[int]) -> list[bytes]:
    """Return the records of ascending ids, at least one."""
    return [_pack(ids[start : start + IDS_MAX]) for start in range(0, max(1, len(ids)), IDS_MAX)]


def _pack(ids: Sequence[int]) -> bytes:
    steps = struct.pack(f">{max(0, len(ids) - 1)}I", *(following - before for before, following in pairwise(ids)))
    return _front.pack(MAGIC, VERSION, len(ids), ids[0] if ids else 0) + zlib.compress(steps)


def parse_kept(ledger_id: int, records: Iterable[bytes], count: int) -> Sequence[int]:
    """Return the ids of `count` entries, ascending. Raises `MetadataCorrupt`."""
    ids = array("q")
    try:
        for record in records:
            magic, version, number, first = _front.unpack_from(record)
            if magic != MAGIC or version != VERSION:
                raise ValueError(f"record of version {version}")
            steps = struct.unpack(f">{max(0, number - 1)}I", zlib.decompress(record[_front.size :]))
            ids.extend(accumulate(steps, initial=first) if number else ())
    except (struct.error, zlib.error, ValueError) as error:
        raise MetadataCorrupt(f"the ids of compacted ledger {ledger_id} cannot be read: {error}") from error
    if len(ids) != count:
        raise MetadataCorrupt(f"compacted ledger {ledger_id} has ids of {len(ids)} entries, and the log's list {count}")
    return ids


def records_of(count: int) -> int:
    """Return the number of records with the ids of `count` entries."""
    return max(1, -(-count // IDS_MAX))


def span(ids: Sequence[int], first: int, last: int) -> range:
    """Return which entries of the compacted ledger have ids from `first` to `last`."""
    return range(bisect_left(ids, first), bisect_right(ids, last))


def runs(ids: Sequence[int], first: int, stop: int) -> Iterator[range]:
    """Divide the entries `first` up to `stop` of the compacted ledger into ranges with consecutive ids."""
    start = first
    for index in range(first + 1, stop):
        if ids[index] != ids[index - 1] + 1:
            yield range(start, index)
            start = index
    if start < stop:
        yield range(start, stop)
