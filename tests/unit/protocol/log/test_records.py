"""Records as entries: what is packed, what is refused, and what an entry that is no record raises."""

from __future__ import annotations

from typing import Any

import pytest

from bookies.encoding.compression import NONE
from bookies.encoding.envelope import Record, pack_record, parse_record
from bookies.encoding.record_sets import pack_sets
from bookies.errors import InvalidArgument, LogRecordCorrupt, NotSupported
from bookies.protocol.log import Position
from bookies.protocol.log.log_model import ENVELOPE, RAW, SETS, Address, parse_address
from bookies.protocol.log.records import TIME_MAX, Decoder, LogRecord, entry_of, value_of

NOW = 1_700_000_000_123_000


@pytest.mark.parametrize(
    ("payload", "keywords", "record"),
    [
        (b"v", {}, Record(b"v", None, None, NOW)),
        (bytearray(b"v"), {"key": memoryview(b"k")}, Record(b"v", b"k", None, NOW)),
        (b"", {"key": b"", "headers": {}}, Record(b"", b"", [], NOW)),
        (b"v", {"headers": {"a": b"1", "b": None}}, Record(b"v", None, [("a", b"1"), ("b", None)], NOW)),
        (b"v", {"headers": [("a", bytearray(b"1")), ["a", b"2"]]}, Record(b"v", None, [("a", b"1"), ("a", b"2")], NOW)),
        (b"v", {"timestamp": 1.000_001}, Record(b"v", None, None, 1_000_001)),
        (b"v", {"timestamp": -0.25}, Record(b"v", None, None, -250_000)),
        (Record(None, b"k"), {}, Record(None, b"k", None, NOW)),
        (Record(bytearray(b"v"), None, {"h": b"x"}, 7), {}, Record(b"v", None, [("h", b"x")], 7)),  # type: ignore[arg-type]
    ],
)
def test_what_an_envelope_log_stores(payload: Any, keywords: dict[str, Any], record: Record) -> None:
    assert parse_record(entry_of(payload, NOW, **keywords)) == record


@pytest.mark.parametrize(
    ("payload", "keywords", "text"),
    [
        ("text", {}, "payload: must be bytes, bytearray, memoryview or a Record, not str"),
        (None, {}, "payload: must be bytes, .*, not NoneType"),
        (b"v", {"key": "k"}, "key: must be bytes, bytearray, memoryview, not str"),
        (b"v", {"headers": {"h": 1}}, "header h: must be bytes"),
        (b"v", {"headers": {1: b"x"}}, "headers: .*expected a mapping or pairs"),
        (b"v", {"headers": "h=1"}, "headers: .*expected a mapping or pairs"),
        (b"v", {"headers": 1}, "headers: .*expected a mapping or pairs"),
        (b"v", {"headers": {"\ud800": b""}}, "headers: .*expected a mapping or pairs"),
        (b"v", {"headers": {"bk-sequence": b"w:1"}}, "names that begin with bk- are reserved"),
        (b"v", {"timestamp": "now"}, "timestamp='now': must be a number of seconds since 1970"),
        (b"v", {"timestamp": float("nan")}, "must be a number of seconds"),
        (b"v", {"timestamp": 1e300}, "must be a number of seconds"),
        (Record(b"v", timestamp_us=1.5), {}, "timestamp_us=1.5: must be a whole number"),  # type: ignore[arg-type]
        (Record(b"v", timestamp_us=TIME_MAX + 1), {}, "must be below"),
        (Record("v"), {}, "value: must be bytes"),  # type: ignore[arg-type]
        (Record(b"v"), {"key": b"k"}, "a Record has its own key"),
        (Record(b"v"), {"headers": {}}, "a Record has its own key"),
        (Record(b"v"), {"timestamp": 0}, "a Record has its own key"),
    ],
)
def test_what_an_envelope_log_refuses(payload: Any, keywords: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        entry_of(payload, NOW, **keywords)


def test_a_raw_log_stores_values_only() -> None:
    assert value_of("orders", b"v") == b"v"
    assert value_of("orders", Record(b"v")) == b"v"
    for payload, keywords, names in (
        (b"v", {"key": b""}, "key"),
        (b"v", {"headers": {}, "timestamp": 0.0}, "headers, timestamp"),
        (Record(b"v", b"k", (), 0), {}, "key, headers, timestamp"),
        (Record(None), {}, "null as the value"),
    ):
        with pytest.raises(InvalidArgument) as caught:
            value_of("orders", payload, **keywords)  # type: ignore[arg-type]
        assert str(caught.value) == (
            f"log orders keeps raw values, without {names}: append the value alone, or create a log with "
            'record_format="envelope"'
        )


def test_entries_become_records() -> None:
    record = Record(b"v", b"k", [("h", None)], NOW)
    assert list(Decoder("orders", RAW).records(7, [3], [pack_record(record)])) == [
        LogRecord(Position(7, 3), pack_record(record))
    ]
    [found] = Decoder("orders", ENVELOPE).records(7, [3], [pack_record(record)])
    assert found == LogRecord(Position(7, 3), *record)
    assert (found.timestamp, LogRecord(Position(7, 3), b"").timestamp) == (NOW / 1_000_000, None)
    again = entry_of(found.value or b"", 0, found.key, found.headers, found.timestamp)
    assert parse_record(again) == record


def test_an_entry_that_is_no_record_is_named_with_the_way_on() -> None:
    with pytest.raises(LogRecordCorrupt) as caught:
        next(Decoder("orders", ENVELOPE).records(7, [3], [b"bare"]))
    assert str(caught.value) == (
        "log orders has no record at ledger 7, entry 3: the entry (4 bytes) is not an envelope record; read on from 7:4"
    )
    assert (caught.value.ledger_id, caught.value.entry_id) == (7, 3)


RECORDS = [
    Record(b"a", b"k", [("h", b"1")], 5),
    Record(None, b"gone", None, 6),
    Record(b"", None, [], None),
    Record(b"b", None, None, 5),
]


def test_a_set_has_many_records_which_may_be_read_from_any_on() -> None:
    decode = Decoder("orders", SETS)
    [(count, entry)] = pack_sets(RECORDS, NONE, 5)
    assert (count, decode.count(entry), Decoder("orders", ENVELOPE).count(entry), decode.is_sets) == (4, 4, 1, True)
    [(_, other)] = pack_sets([Record(b"x", None, None, 7)], NONE, 7)
    found = list(decode.records(7, [3, 4], [entry, other]))
    assert found == [LogRecord(Position(7, 3), *record, slot) for slot, record in enumerate(RECORDS)] + [
        LogRecord(Position(7, 4), b"x", None, None, 7)
    ]
    assert list(decode.records(7, [3, 4], [entry, other], 2)) == found[2:]
    assert list(decode.records(7, [3, 4], [entry, other], 9)) == found[4:]
    assert [str(record.address) for record in found] == ["7:3", "7:3:1", "7:3:2", "7:3:3", "7:4"]
    position, records = decode.record_set(7, 4, other)
    assert (position, list(records.values())) == (Position(7, 4), [b"x"])


def test_damage_in_a_set_is_named_and_harms_nothing_else() -> None:
    decode = Decoder("orders", SETS)
    [(_, entry)] = pack_sets(RECORDS, NONE, 5)
    at = entry.index(b"\0\0\0\1h")
    hurt = entry[:at] + b"\xff" + entry[at + 1 :]
    records = decode.records(7, [3, 4, 5], [hurt, entry[:-1], entry])
    with pytest.raises(LogRecordCorrupt, match=r"has no record at 7:3: headers .* read on from 7:3:1") as caught:
        next(records)
    assert caught.value.slot == 0
    assert [next(records).slot for _ in range(3)] == [1, 2, 3]
    with pytest.raises(LogRecordCorrupt, match=r"no records at ledger 7, entry 4: .* read on from 7:5") as caught:
        next(records)
    assert (caught.value.slot, caught.value.entry_id) == (None, 4)
    assert len(list(records)) == 4
    assert len(list(decode.intact(7, [3, 4, 5], [hurt, entry[:-1], entry]))) == 7
    with pytest.raises(LogRecordCorrupt, match=r"entry 9: .* is not a record set"):
        decode.record_set(7, 9, b"no set")


def test_addresses() -> None:
    assert parse_address("7:3:2") == Address(7, 3, 2)
    assert (parse_address("7:3"), str(Address(7, 3, 2).next), Address(7, 3).position) == ((7, 3, 0), "7:3:3", (7, 3))
    for text in ("7", "7:3:2:1", "7:x", "7::1"):
        with pytest.raises(InvalidArgument, match="is no position in a log"):
            parse_address(text)


def test_only_record_sets_are_read_by_sets() -> None:
    decode = Decoder("orders", SETS)
    assert decode.of_sets() is decode
    with pytest.raises(NotSupported, match=r"log orders has record format raw: read it with records\(\)"):
        Decoder("orders", RAW).of_sets()
