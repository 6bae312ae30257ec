"""Records of DistributedLog: both kernels collect, place and cut them as the specification reads."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.dlog_entries import Row, body_of_rows

from bookies.kernels import NATIVE, dlog_entries
from bookies.kernels.dlog_entries import PAYLOAD_MAX, SET, TXID_MAX

KERNELS: list[Any] = [dlog_entries]
if NATIVE:
    KERNELS.append(importlib.import_module("bookies.kernels._native"))
each_kernel = pytest.mark.parametrize("kernel", KERNELS)
ROWS = st.lists(
    st.builds(Row, st.integers(0, TXID_MAX), st.sampled_from([0, 0, 0, 1, 2, 8]), st.binary(max_size=9), st.just(1))
)


class Place(NamedTuple):
    segment: int
    entry: int
    slot: int


class Found(NamedTuple):
    payload: bytes
    txid: int
    place: Place
    sequence: int


def builder_of(kernel: Any, size_max: int = 100, last_txid: int = -1) -> Any:
    class Append(kernel.SlotAppend):  # type: ignore[misc]
        __slots__ = ()

    return kernel.EntryBuilder(Append, size_max, last_txid)


def cut(kernel: Any, data: bytes, start: int = 0, end: int | None = None, sequence: int = -1, least: int = 0) -> Any:
    end = len(data) if end is None else end
    return kernel.cut_records((Found, Place), (data, start, end), (7, 1 << 40), sequence, least)


@each_kernel
def test_collecting(kernel: Any) -> None:
    builder = builder_of(kernel)
    assert (builder.add_next(b"a", None), builder.add(b"a", 1, 0, 1), len(builder), builder.size) == (None, None, 0, 0)
    builder.begin("token")
    appends = [builder.add_next(b"a", None), builder.add_next(b"bc", 5), builder.add(b"set", 6, SET, 3)]
    appends.append(builder.add_next(b"", 5))
    assert [(append.entry, append.slot) for append in appends] == [("token", slot) for slot in (0, 1, 4, 5)]
    assert (len(builder), builder.size, builder.first_txid, builder.last_txid) == (6, 86, 1, 5)
    assert builder.add_next(bytes(15), 5) is None  # The body would be too large.
    assert builder.add(bytes(15), 5, 0, 1) is None
    rows = [Row(1, 0, b"a"), Row(5, 0, b"bc"), Row(6, SET, b"set", 3), Row(5, 0, b"")]
    assert builder.take() == ("token", body_of_rows(rows), 6, 1, 5)
    assert (builder.add_next(b"a", None), builder.size) == (None, 0)
    builder.begin("other")
    assert builder.add_next(bytes(1000), None).entry == "other"  # A single record may be larger.
    assert builder.add_next(b"", None) is None
    assert builder.take() == ("other", body_of_rows([Row(6, 0, bytes(1000))]), 1, 6, 6)


@pytest.mark.skipif(not NATIVE, reason="a Python object without attributes raises AttributeError")
def test_a_builder_that_was_not_initialized_ends_no_process() -> None:
    kernel = KERNELS[-1]
    builder = kernel.EntryBuilder.__new__(kernel.EntryBuilder)
    assert (len(builder), builder.size, builder.take()) == (0, 0, (None, b"", 0, 0, 0))


@each_kernel
def test_what_is_not_plain(kernel: Any) -> None:
    builder = builder_of(kernel, 1 << 22, 10)
    builder.begin("token")
    for payload in (bytearray(b"a"), memoryview(b"a"), "a", None, bytes(PAYLOAD_MAX + 1)):
        assert builder.add_next(payload, None) is None
    for txid in (9, -1, TXID_MAX, 1 << 63, -(1 << 70), True, 1.0, "11"):
        assert builder.add_next(b"a", txid) is None
    builder.is_shut = True
    assert builder.add_next(b"a", None) is None
    builder.is_shut = False
    assert (len(builder), builder.last_txid) == (0, 10)
    assert builder.add_next(bytes(PAYLOAD_MAX), 10).slot == 0
    assert builder.add_next(b"a", TXID_MAX - 1).slot == 1
    assert builder.add_next(b"a", None) is None
    assert (len(builder), builder.last_txid) == (2, TXID_MAX - 1)
    builder = builder_of(kernel, 100, -5)
    builder.begin("token")
    assert builder.add_next(b"a", -1) is None
    assert (builder.add_next(b"a", 0).slot, builder.last_txid) == (0, 0)


@each_kernel
@given(rows=ROWS, written=st.integers(0, 1 << 31), least=st.integers(0, 3))
def test_records_are_placed_and_cut(kernel: Any, rows: list[Row], written: int, least: int) -> None:
    body = body_of_rows(rows)
    data = kernel.placed(b"head", body, written)
    wanted, position, flags = list[Found](), -1, 0
    for slot, row in enumerate(rows):
        flags = row.flags
        position = written + sum(not earlier.flags & 3 for earlier in rows[: slot + 1])
        if slot >= least and not flags & 3:
            wanted.append(Found(row.payload, row.txid, Place(7, 1 << 40, slot), 100 + position))
    found = cut(kernel, data, 4, sequence=100, least=least)
    assert found == (wanted, position, flags)
    assert all(type(record) is Found and type(record.place) is Place for record in found[0])
    assert cut(kernel, data + b"x", 4, len(data), 100, least) == found


@each_kernel
def test_what_is_not_cut(kernel: Any) -> None:
    rows = [Row(1, 0, b"abc"), Row(2, 0, b"")]
    body = body_of_rows(rows)
    assert len(cut(kernel, body)[0]) == 2
    assert cut(kernel, b"") == ([], -1, 0)
    for end in range(len(body)):
        assert cut(kernel, body, 0, end) == (([], -1, 0) if end == 0 else cut(dlog_entries, body, 0, end))
        assert (cut(kernel, body, 0, end) is None) == (end not in (0, 23))
    assert cut(kernel, body_of_rows([*rows, Row(3, SET, b"")])) is None
    assert cut(kernel, body[:16] + b"\xff" * 4 + body[20:]) is None  # a negative size
    for sequence in (1 << 62, -(1 << 63) - 1, 1 << 70):
        assert cut(kernel, body, sequence=sequence) is None
    assert cut(kernel, body, sequence=-(1 << 63))[0][0].sequence == 1 - (1 << 63)
    for start, end in ((-1, 0), (0, len(body) + 1)):
        with pytest.raises(IndexError):
            cut(kernel, body, start, end)
