"""Entries: the specification's bytes, record sets, compression, and damage. Source: distributedlog 3."""

from __future__ import annotations

import struct

import pytest
from tests.fakes.dlog_entries import Row, control, end_of_stream, packed

from bookies.distributedlog.formats.compression import LZ4, codec_of
from bookies.distributedlog.formats.entries import (
    CONTROL,
    END_OF_STREAM,
    SET,
    TXID_MAX,
    SlotRecord,
    check_record_size,
    pack_set,
    pack_values,
    parse_entry,
    parse_set,
)
from bookies.errors import InvalidArgument, LogRecordCorrupt

HELLO = bytes.fromhex("0000000000010000 0000000000000064 00000005 68656c6c6f")
TWO = bytes.fromhex("01 00000000 0000002f 0000002f") + HELLO
TWO += bytes.fromhex("0000000000020000 0000000000000065 00000002 6869")
CONTROL_ENTRY = bytes.fromhex("01 00000000 0000001b 0000001b 0000000000020001 0000000000000065 00000007 636f6e74726f6c")
END_ENTRY = bytes.fromhex(
    "01 00000000 0000001f 0000001f 0000000000020002 7fffffffffffffff 0000000b 656e644f6653747265616d"
)
SET_PAYLOAD = bytes.fromhex("00001000 00000003 00000012 00000012 0000000161 000000026262 00000003636363")
USERS = [Row(100, 0, b"hello"), Row(101, 0, b"hi")]


def test_two_records_have_the_bytes_of_the_specification() -> None:
    assert packed(USERS, 0) == TWO
    assert parse_entry(TWO) == [SlotRecord(0, 100, 1, 0, b"hello"), SlotRecord(1, 101, 2, 0, b"hi")]
    assert parse_entry(TWO[13:], is_enveloped=False) == parse_entry(TWO) == parse_entry(TWO + b"ignored")


def test_control_and_end_repeat_the_count() -> None:
    assert packed([control(101)], 2) == CONTROL_ENTRY
    assert parse_entry(CONTROL_ENTRY) == [SlotRecord(0, 101, 2, CONTROL, b"control")]
    assert packed([end_of_stream()], 2) == END_ENTRY
    assert parse_entry(END_ENTRY) == [SlotRecord(0, TXID_MAX, 2, END_OF_STREAM, b"endOfStream")]


@pytest.mark.parametrize(
    "entry",
    [
        bytes.fromhex("01 00000001 00000019 0000001b f00a") + HELLO,
        bytes.fromhex("01 00000001 00000019 0000001b f00a") + HELLO + b"ignored",
    ],
)
def test_a_literal_run_of_lz4_is_read(entry: bytes) -> None:
    assert parse_entry(entry) == [SlotRecord(0, 100, 1, 0, b"hello")]


def test_a_compressed_entry_of_the_specification_is_read_and_ours_is_no_longer() -> None:
    entry = bytes.fromhex("01 00000001 00000054 0000001b 1000010011010600000b006f07000000404101002750 4141414141")
    assert parse_entry(entry) == [SlotRecord(0, 7, 1, 0, b"A" * 64)]
    ours = packed([Row(7, 0, b"A" * 64)], 0, LZ4)
    assert parse_entry(ours) == parse_entry(entry)
    assert len(ours) <= len(entry) + 1


def test_a_record_set_takes_slots_and_positions_of_its_records() -> None:
    assert pack_set([b"a", b"bb", b"ccc"]) == SET_PAYLOAD
    entry = packed([Row(200, SET, SET_PAYLOAD, 3), Row(201, 0, b"d")], 2)
    assert entry[13:33] == bytes.fromhex("0000000000030004 00000000000000c8 00000022")
    assert parse_entry(entry) == [
        SlotRecord(0, 200, 3, 0, b"a"),
        SlotRecord(1, 200, 4, 0, b"bb"),
        SlotRecord(2, 200, 5, 0, b"ccc"),
        SlotRecord(3, 201, 6, 0, b"d"),
    ]
    assert parse_set(pack_set([b"x" * 1000] * 50, LZ4)) == [b"x" * 1000] * 50


def test_values_of_one_transaction_id_share_entries_up_to_their_size() -> None:
    values = [b"a" * 30, b"b" * 30, b"", b"c" * 200, b"d"]
    rows = [Row(7, 0, value) for value in values]
    assert pack_values(values, 7, 5, 100) == [
        packed(rows[:2], 5),
        packed(rows[2:3], 7),
        packed(rows[3:4], 8),
        packed(rows[4:], 9),
    ]
    assert pack_values(values, 7, 0, 1000) == [packed(rows)]
    assert pack_values([], 7, 0, 100) == []


@pytest.mark.parametrize("offset", range(13))
def test_a_damaged_envelope_is_refused(offset: int) -> None:
    damaged = bytearray(TWO)
    damaged[offset] ^= 0x02
    if 1 <= offset <= 3:  # Flags above the codec have no meaning.
        assert parse_entry(bytes(damaged)) == parse_entry(TWO)
        return
    with pytest.raises(LogRecordCorrupt):
        parse_entry(bytes(damaged))


@pytest.mark.parametrize("size", range(len(TWO)))
def test_a_cut_entry_is_refused(size: int) -> None:
    with pytest.raises(LogRecordCorrupt):
        parse_entry(TWO[:size])


@pytest.mark.parametrize("size", range(len(SET_PAYLOAD)))
def test_a_cut_record_set_is_refused(size: int) -> None:
    with pytest.raises(LogRecordCorrupt):
        parse_set(SET_PAYLOAD[:size])


def test_a_negative_length_and_an_impossible_size_are_refused() -> None:
    with pytest.raises(LogRecordCorrupt, match="claims -1 bytes"):
        parse_entry(struct.pack(">Qqi", 1 << 16, 1, -1), is_enveloped=False)
    with pytest.raises(LogRecordCorrupt, match="cannot hold"):
        parse_entry(struct.pack(">BIII", 1, LZ4, 1 << 31, 10) + bytes(10))
    with pytest.raises(LogRecordCorrupt, match="not a block"):
        parse_entry(struct.pack(">BIII", 1, LZ4, 100, 10) + b"\xff" * 10)
    with pytest.raises(LogRecordCorrupt, match="version"):
        parse_set(b"\0\0\x20\0" + SET_PAYLOAD[4:])


def test_what_is_too_large_is_refused() -> None:
    check_record_size(1040384 - 20)
    with pytest.raises(InvalidArgument, match="limit of 1,040,364; split it"):
        check_record_size(1040384 - 19)
    with pytest.raises(InvalidArgument, match="record set"):
        pack_set([bytes(600_000)] * 2)
    with pytest.raises(InvalidArgument, match="at least one"):
        pack_set([])
    with pytest.raises(InvalidArgument, match="compression='zip'"):
        codec_of("zip")
