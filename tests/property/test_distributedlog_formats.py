"""Formats of DistributedLog: packed and parsed; damage. Source: distributedlog 1.4, 2.5, 3."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.dlog_entries import Row, packed

from bookies.distributedlog.formats.compression import LZ4, NONE
from bookies.distributedlog.formats.dlsn import Dlsn, parse_dlsn, unpack_dlsn
from bookies.distributedlog.formats.entries import SET, pack_set, parse_entry
from bookies.distributedlog.formats.segment import Segment, parse_segment
from bookies.errors import LogRecordCorrupt, MetadataCorrupt, NotSupported

LONGS = st.integers(-(1 << 63), (1 << 63) - 1)
COUNTS = st.integers(0, (1 << 63) - 1)
CODECS = st.sampled_from([NONE, LZ4])
PAYLOADS = st.binary(max_size=40)
RECORDS = st.lists(st.tuples(COUNTS, st.one_of(PAYLOADS, st.lists(PAYLOADS, min_size=1, max_size=5))), max_size=8)


def rows_of(given_records: list[tuple[int, bytes | list[bytes]]], codec: int) -> list[Row]:
    return [
        Row(txid, 0, value) if isinstance(value, bytes) else Row(txid, SET, pack_set(value, codec), len(value))
        for txid, value in given_records
    ]


@given(RECORDS, CODECS, st.integers(0, 1000), st.binary(max_size=5))
def test_an_entry_is_parsed_to_its_records(
    given_records: list[tuple[int, bytes | list[bytes]]], codec: int, written: int, trailing: bytes
) -> None:
    flat = [
        (txid, payload) for txid, value in given_records for payload in ([value] if isinstance(value, bytes) else value)
    ]
    records = parse_entry(packed(rows_of(given_records, codec), written, codec) + trailing)
    assert [(record.txid, record.payload) for record in records] == flat
    assert [record.slot for record in records] == list(range(len(flat)))
    assert [record.position for record in records] == list(range(written + 1, written + 1 + len(flat)))


@given(RECORDS, CODECS, st.data())
def test_one_changed_byte_raises_or_changes_records(
    given_records: list[tuple[int, bytes | list[bytes]]], codec: int, data: st.DataObject
) -> None:
    entry = bytearray(packed(rows_of(given_records, codec), 0, codec))
    entry[data.draw(st.integers(0, len(entry) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        parse_entry(bytes(entry))
    except LogRecordCorrupt:
        pass


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_raise_one_error(data: bytes, is_enveloped: bool) -> None:
    try:
        parse_entry(data, is_enveloped=is_enveloped)
    except LogRecordCorrupt:
        pass


@given(COUNTS, LONGS, LONGS, st.sampled_from([0, 1]))
def test_an_address_keeps_its_numbers(segment: int, entry: int, slot: int, version: int) -> None:
    dlsn = Dlsn(segment, entry, slot)
    assert unpack_dlsn(dlsn.pack(version)) == parse_dlsn(dlsn.base64()) == dlsn


@given(st.integers(1, 5), st.booleans(), st.lists(COUNTS, min_size=9, max_size=9), st.integers(0, (1 << 31) - 1))
def test_a_segment_keeps_its_numbers(version: int, is_completed: bool, numbers: list[int], count: int) -> None:
    ledger, lssn, first, last, time, entry, slot, least, start = numbers
    segment = Segment(
        "logrecs_1" if is_completed else "inprogress_1",
        version,
        ledger,
        lssn if version >= 2 else 0,
        first,
        last if is_completed else None,
        time if is_completed else None,
        count if is_completed else 0,
        *((entry, slot) if is_completed and version >= 2 else (-1, -1)),
        *((least, least) if version >= 3 else (0, 0)),
        start if version >= 5 else -1,
    )
    assert parse_segment(segment.name, segment.pack()) == segment


@given(st.binary(max_size=60))
def test_any_data_of_a_segment_raises_one_of_two_errors(data: bytes) -> None:
    try:
        parse_segment("logrecs_1", data)
    except (MetadataCorrupt, NotSupported):
        pass
