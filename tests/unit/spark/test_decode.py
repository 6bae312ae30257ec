"""Payloads as columns, and what becomes of those that do not decode."""

from __future__ import annotations

import datetime
import io
from typing import Any

import pyarrow as pa
import pytest

from bookies.client.entries import EntryBatch
from bookies.spark import envelope
from bookies.spark.decode import CORRUPT, Decoder, Malformed, opened

BATCH = EntryBatch(7, 40, b"", [0], 36)
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
