"""Records one at a time: the layout, and entries that are none."""

from __future__ import annotations

import pytest

from bookies.encoding.envelope import Record, pack_record, parse_headers, parse_record
from bookies.errors import MetadataCorrupt

EXAMPLE = bytes.fromhex(
    "010f0006475ef64cf3460000000100000013" + "6b" + "00000001610000000131" + "0000000162ffffffff" + "68656c6c6f"
)  # of docs/reference/formats/envelope.md
HELLO = Record(b"hello", b"k", [("a", b"1"), ("b", None)], 1767323045000006)


def test_the_example_of_the_page() -> None:
    assert pack_record(HELLO) == EXAMPLE
    assert parse_record(EXAMPLE) == HELLO


@pytest.mark.parametrize(
    "record",
    [Record(None), Record(b""), Record(b"v", key=b""), Record(b"v", headers=[]), Record(b"v", timestamp_us=-1)],
)
def test_null_and_empty_are_different(record: Record) -> None:
    assert parse_record(pack_record(record)) == record


def test_entries_that_are_no_records() -> None:
    for entry in (b"", EXAMPLE[:17], b"\2" + EXAMPLE[1:], b"\1\xff" + EXAMPLE[2:], EXAMPLE[:37]):
        with pytest.raises(MetadataCorrupt):
            parse_record(entry)
    for blob in (b"\0\0\0\1a\0\0\0\2x", b"\0\0\0\1a", b"\0\0\0\1\xff\0\0\0\0"):
        with pytest.raises(MetadataCorrupt, match="headers of a record"):
            parse_headers(blob)
