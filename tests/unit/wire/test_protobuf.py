"""The proto2 rules one by one."""

from __future__ import annotations

import pytest

from bookies.errors import RemoteProtocolError
from bookies.wire.protobuf import Field, Kind, Message, frame, pack_varint, parse_varint

PAIR = Message(Field(1, "key", Kind.STRING, required=True), Field(2, "value", Kind.STRING, required=True))
INNER = Message(Field(1, "id", Kind.INT64, required=True), Field(2, "color", Kind.ENUM, frozenset({1, 2})))
OUTER = Message(
    Field(1, "inner", Kind.MESSAGE, INNER, required=True),
    Field(2, "unsigned", Kind.UINT64),
    Field(3, "small", Kind.INT32),
    Field(4, "small_unsigned", Kind.UINT32),
    Field(5, "data", Kind.BYTES),
    Field(100, "pairs", Kind.REPEATED_MESSAGE, PAIR),
)
MINIMAL = b"\x0a\x02\x08\x07"


def parse(data: bytes) -> dict[str, object]:
    # With bytes on both sides, which are not the message's.
    return OUTER.parse(b"\x08\x08" + data + b"\x08\x08", 2, 2 + len(data))


@pytest.mark.parametrize(
    ("value", "packed"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (16383, "ff7f"),
        (16384, "808001"),
        ((1 << 21) - 1, "ffff7f"),
        (1 << 21, "80808001"),
        ((1 << 63) - 1, "ffffffffffffffff7f"),
        ((1 << 64) - 1, "ffffffffffffffffff01"),
    ],
)
def test_varints(value: int, packed: str) -> None:
    assert pack_varint(value) == bytes.fromhex(packed)
    assert parse_varint(bytes.fromhex(packed), 0) == (value, len(packed) // 2)


def test_negative_numbers_take_ten_bytes() -> None:
    assert pack_varint(-1).hex() == "ffffffffffffffffff01"
    assert parse(b"\x0a\x0b\x08" + pack_varint(-1))["inner"] == {"id": -1}
    assert parse(MINIMAL + b"\x18" + pack_varint(-5))["small"] == -5
    assert parse(MINIMAL + b"\x10" + pack_varint(-1))["unsigned"] == (1 << 64) - 1


def test_a_varint_of_eleven_bytes_is_malformed() -> None:
    with pytest.raises(RemoteProtocolError):
        parse(MINIMAL + b"\x10" + b"\x80" * 10 + b"\x00")


def test_32_bit_kinds_drop_the_upper_half() -> None:
    assert parse(MINIMAL + b"\x18" + pack_varint(1 << 32 | 3) + b"\x20" + pack_varint(-1)) == {
        "inner": {"id": 7},
        "small": 3,
        "small_unsigned": 0xFFFF_FFFF,
    }


def test_required_fields() -> None:
    assert parse(MINIMAL) == {"inner": {"id": 7}}
    for data in (b"", b"\x10\x01", b"\x0a\x00", b"\x0a\x02\x10\x01", MINIMAL + b"\xa2\x06\x03\x0a\x01k"):
        with pytest.raises(RemoteProtocolError, match="required"):
            parse(data)


def test_enums_are_closed() -> None:
    assert parse(b"\x0a\x04\x08\x07\x10\x02")["inner"] == {"id": 7, "color": 2}
    assert parse(b"\x0a\x04\x08\x07\x10\x03")["inner"] == {"id": 7}
    assert parse(b"\x0a\x06\x08\x07\x10\x01\x10\x03")["inner"] == {"id": 7, "color": 1}


def test_any_order_the_last_scalar_wins_messages_merge() -> None:
    assert parse(b"\x10\x01\x0a\x02\x08\x07\x10\x02") == {"inner": {"id": 7}, "unsigned": 2}
    assert parse(b"\x0a\x02\x10\x01\x0a\x02\x08\x07") == {"inner": {"id": 7, "color": 1}}


def test_repeated_messages() -> None:
    pair = b"\xa2\x06\x06\x0a\x01k\x12\x01v"
    pairs = [{"key": "k", "value": "v"}] * 2
    values = parse(pair + MINIMAL + pair)
    assert values["pairs"] == pairs
    assert b"".join(OUTER.pack(values)) == MINIMAL + pair + pair


def test_strings_of_any_bytes_survive() -> None:
    data = MINIMAL + b"\xa2\x06\x07\x0a\x02\xff\xc3\x12\x01v"
    assert b"".join(OUTER.pack(parse(data))) == data


@pytest.mark.parametrize(
    "unknown",
    [
        "5805",  # field 11, varint
        "58ffffffffffffffffff01",
        "590102030405060708",  # eight bytes
        "5d01020304",  # four bytes
        "5a03616263",  # bytes
        "5b08015c",  # group with a varint
        "5b6308056408015c",  # a group in a group
        "f8ffffff0f01",  # the greatest field number
        "0801",  # a known number with another wire type
        "2801",
    ],
)
def test_unknown_fields_are_skipped(unknown: str) -> None:
    data = bytes.fromhex(unknown)
    assert parse(data + MINIMAL) == parse(MINIMAL + data) == {"inner": {"id": 7}}


@pytest.mark.parametrize(
    "bad",
    [
        "00",  # field number 0
        "0001",
        "0201",
        "0501020304",
        "0e",  # wire type 6
        "0f",  # wire type 7
        "5c",  # the end of a group that did not start
        "5b",  # a group that does not end
        "5b64",  # ... or ends as another
        "10",  # no value
        "1080",
        "2a05616263",  # bytes cut off
        "2aff",
        "5d0102",
        "59",
        "5a",
        "0a0308",  # a message cut off
        "0a010810",  # the inner number is in the outer message
        "808080808080808080808001",
    ],
)
def test_malformed(bad: str) -> None:
    with pytest.raises(RemoteProtocolError):
        parse(MINIMAL + bytes.fromhex(bad))
    with pytest.raises(RemoteProtocolError):
        OUTER.parse(MINIMAL + bytes.fromhex(bad), 0, 4 + len(bad) // 2)


def test_groups_nest_without_recursion() -> None:
    depth = 10_000
    assert parse(b"\x5b" * depth + b"\x5c" * depth + MINIMAL) == {"inner": {"id": 7}}


def test_packing_skips_none_keeps_empty_messages_and_long_buffers() -> None:
    body = bytes(5000)
    empty = Message(Field(106, "nothing", Kind.MESSAGE, Message()))
    assert empty.pack({"nothing": {}}) == [b"\xd2\x06\x00"]
    assert empty.pack({"nothing": None}) == []
    pieces = OUTER.pack({"inner": {"id": 7}, "data": body})
    assert pieces[-1] is body
    head, last = frame(pieces)
    assert last is body
    assert head == (len(MINIMAL) + 3 + 5000).to_bytes(4, "big") + MINIMAL + b"\x2a\x88\x27"
    assert frame([b"a", b"b"]) == [b"\x00\x00\x00\x02ab"]
    assert [len(piece) for piece in frame([body, b"tail"])] == [4, 5000, 4]
