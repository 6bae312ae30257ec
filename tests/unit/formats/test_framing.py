"""Headers with schema ids, on whole columns."""

from __future__ import annotations

import pyarrow as pa
import pytest

from bookies.formats.framing import body_of, framed, header_of, ids_of, only_id, pack_place, without_place


def test_ids_and_bodies() -> None:
    bodies = pa.array([b"", b"abc", b"x" * 300], pa.binary())
    values = framed(1 << 31, bodies)
    assert values[1].as_py() == b"\0\x80\0\0\0abc"
    assert ids_of(values) == [1 << 31] * 3
    assert only_id(values) == 1 << 31
    assert body_of(values) == bodies
    assert body_of(values.slice(1, 1)) == bodies.slice(1, 1)
    assert body_of(values.slice(3)) == bodies.slice(3)


def test_payloads_without_an_id() -> None:
    values = pa.array([None, b"", b"\0\0\0\0", b"\1\0\0\0\1", header_of(7), header_of(8) + b"x"], pa.binary())
    assert ids_of(values) == [None, None, None, None, 7, 8]
    assert only_id(values) is None
    assert [only_id(values.slice(row, 1)) for row in range(6)] == [None, None, None, None, 7, 8]
    assert only_id(values.slice(6)) is None


@pytest.mark.parametrize("indexes", [[0], [1], [0, 3], [2, 0, 300]])
def test_the_place_of_a_message(indexes: list[int]) -> None:
    bodies = pa.array([b"abc", b""], pa.binary())
    values = framed(5, bodies, pack_place(indexes))
    assert without_place(body_of(values)) == bodies


def test_places_that_are_none() -> None:
    bodies = pa.array([b"", b"\x80", b"\x04\x02", b"\0x"], pa.binary())
    assert without_place(bodies).to_pylist() == [None, None, None, b"x"]
