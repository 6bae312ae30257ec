"""Payloads as columns, and what becomes of those that do not decode."""

from __future__ import annotations

import datetime
import io
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from bookies.client.base import EntryBatch
from bookies.model import BookieId, LedgerMetadata
from bookies.spark.base import envelope
from bookies.spark.base.arrow import Stretch
from bookies.spark.base.plan import Range
from bookies.spark.read.decode import CORRUPT, Decoder, Malformed, opened

ORIGIN = Range(LedgerMetadata(7, 1, 1, 1, ((0, (BookieId("b"),)),)), 40, 49)
BATCH = Stretch(ORIGIN, [EntryBatch(7, 40, b"", [0], 36)])
FIELDS = (pa.field("id", pa.int64()), pa.field(CORRUPT, pa.string()))


def decode(kind: str, payloads: list[bytes], fields: tuple[Any, ...] = FIELDS, mode: str = "PERMISSIVE") -> Any:
    decoded = Decoder(kind, fields, mode).decode(BATCH, pa.array(payloads, pa.binary()))
    taken = None if decoded.taken is None else decoded.taken.to_pylist()
    for name, column in decoded.columns.items():
        assert column.type == next(field.type for field in fields if field.name == name)
    return {name: column.to_pylist() for name, column in decoded.columns.items()}, taken


def test_text() -> None:
    fields = (pa.field("value", pa.string()), pa.field(CORRUPT, pa.binary()))
    assert decode("utf8", ["é".encode(), b""], fields) == ({"value": ["é", ""], CORRUPT: [None, None]}, None)
    bad = [b"a", b"\xff", b"c"]
    assert decode("utf8", bad, fields) == ({"value": ["a", None, "c"], CORRUPT: [None, b"\xff", None]}, None)
    assert decode("utf8", bad, fields[:1], "DROPMALFORMED") == ({"value": ["a", "c"]}, [0, 2])
    with pytest.raises(Malformed, match=r"valueFormat=utf8 .* \(ledger 7, entry 41\)"):
        decode("utf8", bad, fields, "FAILFAST")


@pytest.mark.parametrize(
    "bad", [b"nonsense", b"[1]", b'{"id": "x"}', b"", b'{"id": 1}{"id": 2}', b'{"id": 1', b"{}{}", b"null"]
)
def test_json_that_is_none(bad: bytes) -> None:
    payloads = [b'{"id": 1}', bad, b'{"id": 3}']
    text = bad.decode()
    assert decode("json", payloads) == ({"id": [1, None, 3], CORRUPT: [None, text, None]}, None)
    assert decode("json", payloads, mode="DROPMALFORMED") == ({"id": [1, 3], CORRUPT: [None, None]}, [0, 2])
    with pytest.raises(Malformed, match=r"\(ledger 7, entry 41\)"):
        decode("json", payloads, mode="FAILFAST")


def test_what_does_not_begin_like_an_object_is_never_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of it, such as text read as JSON by mistake, costs one look at all of it."""
    parsed = []
    read = Decoder._read

    def counted(self: Decoder, texts: pa.Array) -> pa.Table:
        parsed.append(len(texts))
        return read(self, texts)

    monkeypatch.setattr(Decoder, "_read", counted)
    payloads = [b"%d: no object" % each for each in range(5000)]
    found, _ = decode("json", payloads)
    assert found == {"id": [None] * 5000, CORRUPT: [each.decode() for each in payloads]}
    assert len(parsed) == 1
    payloads[::10] = [b'\n {"id": 7}'] * 500
    assert decode("json", payloads)[0]["id"] == [7, *[None] * 9] * 500
    assert parsed[1:] == [5000, 500]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_an_object_in_another_encoding(encoding: str) -> None:
    payloads = [b'{"id": 1}', '{"id": 2}'.encode(encoding), b"oops"]
    assert decode("json", payloads)[0]["id"] == [1, 2, None]


def test_json_types() -> None:
    fields = (
        pa.field("t", pa.timestamp("us", tz="UTC")),
        pa.field("d", pa.date32()),
        pa.field("b", pa.binary()),
        pa.field("x", pa.struct([pa.field("y", pa.list_(pa.field("element", pa.float64())))])),
    )
    payload = b'{"t": "2026-01-02T03:04:05Z", "d": "2026-01-02", "b": "aGk=", "x": {"y": [1, 2.5]}, "unknown": 1}'
    row = {
        "t": [datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)],
        "d": [datetime.date(2026, 1, 2)],
        "b": [b"hi"],
        "x": [{"y": [1.0, 2.5]}],
    }
    assert decode("json", [payload], fields) == (row, None)
    assert decode("json", [payload.replace(b"{", b"{\n", 1)], fields) == (row, None)  # entry by entry
    assert decode("json", [b"{}"], fields)[0] == {name: [None] for name in row}
    assert decode("json", [payload.replace(b"03:04:05Z", b"04:04:05+01:00")], fields) == (row, None)


UTC = pa.timestamp("us", tz="UTC")
NEW_YEAR = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
SAME_IN_COMPANY: list[tuple[pa.DataType, bytes, Any]] = [
    (pa.struct([("t", UTC)]), b'{"t": "2026-01-01T01:00:00+01:00"}', {"t": NEW_YEAR}),
    (pa.list_(pa.field("element", UTC)), b'["2026-01-01"]', [NEW_YEAR]),
    (pa.timestamp("us"), b'"2026-01-01T03:04:05"', datetime.datetime(2026, 1, 1, 3, 4, 5)),
    (pa.struct([("d", pa.decimal128(10, 2))]), b'{"d": 1.10}', {"d": Decimal("1.10")}),
    (pa.decimal128(10, 2), b'"1.10"', Decimal("1.10")),
    (pa.struct([("d", pa.date32())]), b'{"d": "2026-01-01"}', {"d": datetime.date(2026, 1, 1)}),
    (pa.list_(pa.field("element", pa.binary())), b'["aGk=", null]', [b"hi", None]),
    (pa.map_(pa.string(), pa.date32()), b'{"x": "2026-01-01"}', [("x", datetime.date(2026, 1, 1))]),
    (pa.float64(), b"100000000000000000000", 1e20),
    (pa.float64(), b"Infinity", float("inf")),
    (pa.int64(), b"1.0", 1),
    (pa.int64(), b'0, "v": 7', 7),
    (pa.int64(), b'7, "deep": ' + b"[" * 100_000 + b"]" * 100_000, 7),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "text", "value"), SAME_IN_COMPANY, ids=lambda each: str(each)[:40])
def test_what_decodes_does_so_in_any_company(kind: pa.DataType, text: bytes, value: Any) -> None:
    """One record, alone, beside good ones, beside bad ones, and among more bad ones than are looked at one by one."""
    fields = (pa.field("v", kind), FIELDS[1])
    good = b'{"v": ' + text + b"}"
    for payloads in ([good], [good, good], [b"oops", good, b'{"v": true}', good], [b"oops", good, good] * 300):
        found, taken = decode("json", payloads, fields)
        assert taken is None
        assert found["v"] == [value if each == good else None for each in payloads]
        assert found[CORRUPT] == [None if each == good else each.decode() for each in payloads]
        dropped, taken = decode("json", payloads, fields, "DROPMALFORMED")
        assert taken in (None, [row for row, each in enumerate(payloads) if each == good])
        assert len(dropped["v"]) == payloads.count(good)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.int64(), b"99999999999999999999"),
        (pa.int64(), b"1e999999999"),
        (pa.int64(), b"1.5"),
        (pa.int64(), b"[" * 100_000 + b"]" * 100_000),
        (pa.binary(), b'"a"'),
        (pa.struct([("b", pa.binary())]), b'{"b": "a"}'),
        (pa.date32(), b'"yesterday"'),
        (UTC, b'"2026-13-01"'),
        (pa.decimal128(5, 2), b"123456"),
        (pa.string(), b'"\xff"'),
        (pa.string(), b'"\\ud800"'),
        (pa.map_(pa.string(), pa.int64()), b"5"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_json_that_is_not_what_the_schema_says(kind: pa.DataType, text: bytes) -> None:
    bad = b'{"v": ' + text + b"}"
    fields = (pa.field("v", kind), pa.field(CORRUPT, pa.binary()))
    assert decode("json", [b"{}", bad, b"{}"], fields)[0] == {"v": [None] * 3, CORRUPT: [None, bad, None]}
    assert decode("json", [bad, b"{}"], fields, "DROPMALFORMED") == ({"v": [None], CORRUPT: [None]}, [1])
    with pytest.raises(Malformed, match=r"valueFormat=json .* \(ledger 7, entry 41\)"):
        decode("json", [b"{}", bad, b"{}"], fields, "FAILFAST")


def stream(ids: list[int], name: str = "id") -> bytes:
    table = pa.table({name: pa.array(ids, pa.int32())})
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def test_arrow_streams() -> None:
    payloads = [stream([1, 2]), b"junk", stream([]), stream([3], "other"), stream([4])]
    columns, taken = decode("arrow", payloads)
    assert taken == [0, 0, 1, 3, 4]
    assert columns == {"id": [1, 2, None, None, 4], CORRUPT: [None, None, "junk", None, None]}
    assert decode("arrow", payloads, mode="DROPMALFORMED") == (
        {"id": [1, 2, None, 4], CORRUPT: [None] * 4},
        [0, 0, 3, 4],
    )
    assert decode("arrow", [b"junk"], mode="DROPMALFORMED") == ({"id": [], CORRUPT: []}, [])
    with pytest.raises(Malformed, match="entry 41"):
        decode("arrow", payloads, mode="FAILFAST")


def test_arrow_streams_that_are_not_what_the_schema_says() -> None:
    sink = io.BytesIO()
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["id", "id"])
    offsets = pa.py_buffer(struct.pack("3i", 0, 1 << 20, 2))
    wild = pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"ab")])
    for table in (twice, pa.table({"id": wild})):
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        fields = (pa.field("id", table.column(0).type), pa.field(CORRUPT, pa.binary()))
        found, _ = decode("arrow", [sink.getvalue()], fields)
        assert found == {"id": [None], CORRUPT: [sink.getvalue()]}


def test_records_with_damaged_headers() -> None:
    headers = pa.array([[{"key": "h", "value": b"v"}], None], envelope.HEADERS_TYPE)
    good = envelope.encode(pa.array([b"one", b"two"], pa.binary()), headers=headers).to_pylist()
    bad = good[0].replace(b"\x00\x00\x00\x01h", b"\x00\x00\x00\x09h")
    assert bad != good[0]
    entries = pa.array([good[0], bad, good[1]], pa.binary())
    names = ["value", "headers"]
    assert opened(BATCH, entries, names, "PERMISSIVE").columns["value"].to_pylist() == [b"one", None, b"two"]
    assert opened(BATCH, entries, ["value"], "PERMISSIVE").columns["value"].to_pylist() == [b"one", b"one", b"two"]
    assert opened(BATCH, entries, names, "DROPMALFORMED").taken.to_pylist() == [0, 2]
    with pytest.raises(Malformed, match=r"\(ledger 7, entry 41\)"):
        opened(BATCH, entries, names, "FAILFAST")


def test_records_with_key_and_headers() -> None:
    at = pa.array([5, None], pa.timestamp("us", tz="UTC"))
    headers = pa.array([[{"key": "h", "value": b"v"}], None], envelope.HEADERS_TYPE)
    good = envelope.encode(pa.array([b"one", None], pa.binary()), pa.array([b"k", None], pa.binary()), headers, at)
    entries = pa.array([*good.to_pylist(), b"junk"], pa.binary())
    names = ["timestamp", "key", "value", "headers"]
    permissive = opened(BATCH, entries, names, "PERMISSIVE")
    assert permissive.taken is None
    assert permissive.columns["value"].to_pylist() == [b"one", None, None]
    assert permissive.columns["key"].to_pylist() == [b"k", None, None]
    assert permissive.columns["headers"].to_pylist() == [[{"key": "h", "value": b"v"}], None, None]
    dropped = opened(BATCH, entries, names, "DROPMALFORMED")
    assert dropped.taken.to_pylist() == [0, 1]
    assert opened(BATCH, entries.slice(0, 2), names, "FAILFAST").columns["timestamp"].to_pylist()[1] is None
    with pytest.raises(Malformed, match=r"no record with key and headers.*\(ledger 7, entry 42\)"):
        opened(BATCH, entries, names, "FAILFAST")
    assert decode("json", [b'{"id": 1}'])[0]["id"] == [1]
    nulls = Decoder("json", FIELDS, "FAILFAST").decode(BATCH, pa.array([None, b'{"id": 2}'], pa.binary()))
    assert nulls.columns["id"].to_pylist() == [None, 2]
