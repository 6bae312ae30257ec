"""Ids of kept entries: stored, read again, and searched."""

from __future__ import annotations

import zlib

import pytest

from bookies.errors import MetadataCorrupt
from bookies.protocol.log.kept import IDS_MAX, pack_kept, parse_kept, records_of, runs, span


@pytest.mark.parametrize("ids", [[], [0], [7], [0, 1, 2, 9, 10, 4_000_000_000], list(range(0, 3 * IDS_MAX, 2))])
def test_ids_are_stored_and_read_again(ids: list[int]) -> None:
    records = pack_kept(ids)
    assert len(records) == max(1, -(-len(ids) // IDS_MAX))
    assert list(parse_kept(5, records, len(ids))) == ids
    assert len(records) == records_of(len(ids))


def test_the_format_does_not_change() -> None:
    front, steps = "626b7074 01 00000003 0000000000000003", "00000001 00000005"
    record = bytes.fromhex(front) + zlib.compress(bytes.fromhex(steps))
    assert list(parse_kept(1, [record], 3)) == [3, 4, 9]


@pytest.mark.parametrize(
    ("records", "count"),
    [
        ([b""], 0),
        ([b"bkpx" + pack_kept([1])[0][4:]], 1),
        ([b"bkpt\x02" + pack_kept([1])[0][5:]], 1),
        ([pack_kept([1])[0][:-3]], 1),
        (pack_kept([1, 2]), 1),
    ],
)
def test_damaged_ids_are_reported(records: list[bytes], count: int) -> None:
    with pytest.raises(MetadataCorrupt, match="compacted ledger 5"):
        parse_kept(5, records, count)


def test_what_is_between_two_ids() -> None:
    ids = [2, 3, 7]
    assert span(ids, 0, 9) == range(3)
    assert span(ids, 3, 6) == range(1, 2)
    assert not span(ids, 4, 6)


def test_ranges_of_consecutive_ids() -> None:
    ids = [2, 3, 7, 9, 10]
    assert list(runs(ids, 0, 5)) == [range(2), range(2, 3), range(3, 5)]
    assert list(runs(ids, 1, 3)) == [range(1, 2), range(2, 3)]
    assert list(runs(ids, 2, 2)) == []
