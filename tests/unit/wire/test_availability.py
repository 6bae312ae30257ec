"""Lists of entries: runs out and in, periods in, nothing out of proportion. Source: wire-protocol 5.10."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookies.errors import RemoteProtocolError
from bookies.wire.availability import pack_availability, parse_availability


def encoded(*groups: tuple[int, int, int, int], version: int = 0, count: int | None = None) -> bytes:
    head = struct.pack(">ii56x", version, len(groups) if count is None else count)
    return head + b"".join([struct.pack(">qqii", *group) for group in groups])


@given(st.sets(st.integers(0, 200)))
def test_any_set_survives(ids: set[int]) -> None:
    runs: list[range] = []
    for entry_id in sorted(ids):
        if runs and runs[-1].stop == entry_id:
            runs[-1] = range(runs[-1].start, entry_id + 1)
        else:
            runs.append(range(entry_id, entry_id + 1))
    data = pack_availability(runs)
    assert len(data) == 64 + 24 * len(runs)
    assert parse_availability(data) == runs


def test_nothing() -> None:
    assert pack_availability([]) == bytes(64)
    assert parse_availability(bytes(64)) == []


def test_periods() -> None:
    """Checklist row 30: nobody writes them, and every reader has to know them."""

    assert parse_availability(encoded((0, 20, 3, 10))) == [range(3), range(10, 13), range(20, 23)]
    assert parse_availability(encoded((0, 25, 3, 10))) == [range(3), range(10, 13), range(20, 23)]
    assert parse_availability(encoded((0, 4, 2, 2))) == [range(6)]
    interleaved = encoded((0, 20, 1, 10), (5, 25, 1, 10))
    assert [run.start for run in parse_availability(interleaved)] == [0, 5, 10, 15, 20, 25]


def test_runs_longer_than_an_int32_are_split_and_joined() -> None:
    long = range(5, 5 + (1 << 32))
    data = pack_availability([long])
    assert len(data) == 64 + 3 * 24
    assert parse_availability(data) == [long]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(63),
        encoded(version=1),
        encoded(version=-1),
        encoded(count=-1),
        encoded(count=1),
        encoded((0, 0, 1, 0), count=1 << 30),
        encoded((0, 0, 1, 0))[:-1],
        encoded((-1, -1, 1, 0)),
        encoded((5, 4, 1, 1)),
        encoded((0, 0, 0, 0)),
        encoded((0, 0, -1, 0)),
        encoded((0, 10, 1, 0)),
        encoded((0, 10, 1, -1)),
        encoded((0, (1 << 63) - 1, 1, 2)),  # 2^62 runs in 24 bytes
    ],
)
def test_malformed(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        parse_availability(data)
