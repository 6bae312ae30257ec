"""Addresses: the specification's examples, both versions, and what is refused. Source: distributedlog 1.4."""

from __future__ import annotations

import itertools

import pytest

from bookies.distributedlog.formats.dlsn import BEFORE_FIRST, FIRST, INVALID, Dlsn, parse_dlsn, unpack_dlsn
from bookies.errors import InvalidArgument

EXAMPLES = {
    FIRST: "AQAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAA==",
    BEFORE_FIRST: "AQAAAAAAAAABAAAAAAAAAAD//////////w==",
    INVALID: "AQAAAAAAAAAA/////////////////////w==",
    Dlsn(3, 17, 2): "AQAAAAAAAAADAAAAAAAAABEAAAAAAAAAAg==",
}


@pytest.mark.parametrize("dlsn", EXAMPLES, ids=str)
def test_an_example_has_the_text_of_the_specification(dlsn: Dlsn) -> None:
    assert dlsn.base64() == EXAMPLES[dlsn]
    assert parse_dlsn(EXAMPLES[dlsn]) == parse_dlsn(str(dlsn)) == dlsn
    assert len(dlsn.pack()) == 25


def test_the_first_version_has_two_hundred_bytes() -> None:
    data = Dlsn(3, 17, 2).pack(version=0)
    assert (len(data), data[0], data[25:]) == (200, 0, bytes(175))
    assert unpack_dlsn(data) == Dlsn(3, 17, 2)


@pytest.mark.parametrize("data", [b"", b"\x02" + bytes(24), bytes(25), b"\x01" + bytes(25), b"\x01" + bytes(199)])
def test_another_version_or_length_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidArgument, match="not a DLSN"):
        unpack_dlsn(data)


@pytest.mark.parametrize(
    "text", ["", "1:2", "1:2:3:4", "-1:0:0", "AQAA", "!!!!", f"{1 << 63}:0:0", "9" * 5000 + ":0:0"]
)
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is not a position"):
        parse_dlsn(text)


def test_addresses_are_ordered_by_segment_entry_slot() -> None:
    ordered = [INVALID, BEFORE_FIRST, FIRST, FIRST.next, Dlsn(1, 1, 0), Dlsn(2, 0, 0)]
    assert all(lower < higher for lower, higher in itertools.pairwise(ordered))
