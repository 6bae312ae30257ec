"""Records as JSON: what lines may hold, and what readers print."""

from __future__ import annotations

import json

import pytest

from bookies.encoding.envelope import Record
from bookies.protocol.log import Position
from bookies.protocol.log.record_json import parse_object, row_of
from bookies.protocol.log.records import LogRecord
from bookies.protocol.log.sequences import HEADER, pack_number


@pytest.mark.parametrize(
    ("content", "record"),
    [
        (
            {"text": "ä", "key": "k", "headers": {"h": "1", "n": None}},
            Record("ä".encode(), b"k", [("h", b"1"), ("n", None)]),
        ),
        ({"json": {"a": [1, "ä"]}}, Record('{"a":[1,"ä"]}'.encode())),
        ({"base64": "AP8=", "key": None}, Record(b"\0\xff")),
        ({"text": None, "key": {"base64": "/w=="}, "time_ms": -1}, Record(None, b"\xff", None, -1_000)),
        (
            {"position": "7:0", "text": "a", "writer": "w", "sequence": 3, "time_ms": 1_700_000_000_123},
            Record(b"a", None, None, 1_700_000_000_123_000),
        ),
    ],
)  # fmt: skip
def test_an_object_is_a_record(content: object, record: Record) -> None:
    assert parse_object(json.dumps(content).encode()) == record


@pytest.mark.parametrize(
    "line",
    [
        b"x", b"[]", b"{}", b'{"text":1}', b'{"text":"a","json":1}', b'{"text":"a","time":1}', b'{"base64":"?"}',
        b'{"text":"a","key":1}', b'{"text":"a","headers":[]}', b'{"text":"a","headers":{"h":1}}',
        b'{"text":"a","headers":{"bk-sequence":"w:1"}}', b"\xff", b"[" * 100_000,
        b'{"text":"a","time_ms":-9223372036854776}', b'{"text":"a","key":{"base64":"?"}}', b'{"base64":null}',
        b'{"text":"a","key":{"base64":null}}', b'{"text":"a","key":{"text":"a"}}', b'{"text":"a","headers":{"h":[[]]}}',
        b'{"text":"a","time_ms":true}', b'{"text":"a","time_ms":1e400}',
        b'{"text":"a","time_ms":9223372036854776}',
    ],
)  # fmt: skip
def test_what_is_no_record(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_object(line)


def test_unknown_fields_are_named() -> None:
    with pytest.raises(ValueError, match=r"unknown: keys, time; it may have key, headers and time_ms"):
        parse_object(b'{"text":"a","time":1,"keys":[]}')


def test_what_is_printed_can_be_appended() -> None:
    headers = [("h", b"1"), ("h", b"\xff"), ("h", None), ("n", None)]
    for record in (
        Record(b"\xff", b"k", headers[:1], 1_700_000_000_123_000),
        Record(None, b"\xfe", headers, -1_000),
        Record(b"", b"", headers[3:], 0),
    ):
        assert parse_object(json.dumps(row_of("7:0", record)).encode()) == record


def test_a_record_as_json() -> None:
    headers = [("h", b"\xff"), (HEADER, pack_number("w", 3)), ("n", None)]
    assert row_of("7:0", LogRecord(Position(7, 0), None, b"k", headers, 1_700_000_000_123_456)) == {
        "position": "7:0", "text": None, "key": "k", "writer": "w", "sequence": 3,
        "headers": {"h": {"base64": "/w=="}, "n": None}, "time_ms": 1_700_000_000_123,
    }  # fmt: skip
    assert row_of("7:1", Record(b"\xff")) == {"position": "7:1", "base64": "/w=="}
