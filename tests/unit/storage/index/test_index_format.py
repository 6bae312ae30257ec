"""The index file's bytes: the worked example, both versions, short and foreign files."""

from __future__ import annotations

import pytest

from bookies.errors import CorruptRecord
from bookies.storage.index import index_format as layout

KEY = bytes.fromhex("850bf1071c5e3d8c24235676f8816ae0cbe2f14f")
LAC = bytes.fromhex("00000000000000070000000000000000851054f0")
EXAMPLE = bytes.fromhex(
    "424b4c45 00000001 00000014 850bf1071c5e3d8c24235676f8816ae0cbe2f14f 00000001 00000014"
    "00000000000000070000000000000000851054f0"
)
SLOTS = bytes.fromhex("0000001f00000404 0000001f00000431")


def test_the_worked_example() -> None:
    header = layout.IndexHeader(KEY, layout.STATE_FENCED, LAC)
    data = layout.pack_header(header) + SLOTS.ljust(8192, b"\0")
    assert len(data) == 0x2400
    assert data[: len(EXAMPLE)] == EXAMPLE
    assert not data[len(EXAMPLE) : 0x400].strip(b"\0")
    parsed = layout.parse_header(data)
    assert parsed == header
    assert parsed.is_fenced
    assert not parsed.is_in_limbo
    assert list(layout.iterate_slots(data[1024:], 0)) == [(0, 0x1F00000404), (1, 0x1F00000431)]
    assert layout.slot_count(len(data)) == layout.slots_per_page(8192) == 1024
    assert layout.page_offset(1, 8192) == len(data)


@pytest.mark.parametrize(
    ("ledger_id", "path"),
    [
        (0, "0/0/0.idx"),
        (7, "0/7/7.idx"),
        (0x100, "1/0/100.idx"),
        (0x1234, "12/34/1234.idx"),
        (0xABCDEF01, "ef/1/abcdef01.idx"),
        ((1 << 32) + 5, "0/5/100000005.idx"),
        ((1 << 63) - 1, "ff/ff/7fffffffffffffff.idx"),
    ],
)
def test_paths(ledger_id: int, path: str) -> None:
    assert layout.path_of(ledger_id) == path
    assert layout.parse_path(path) == ledger_id
    assert layout.parse_path(f"/d1/ledgers/current/{path}") == ledger_id
    assert layout.parse_path(path.upper().replace("IDX", "idx")) == ledger_id
    assert layout.parse_relocating_path(path + ".rloc") == ledger_id
    assert layout.parse_path(path + ".rloc") is None
    assert layout.parse_relocating_path(path) is None


@pytest.mark.parametrize(
    "path", ["7.idx", "7/7.idx", "0/8/7.idx", "1/7/7.idx", "0/7/zz.idx", "0/7/7.idx.tmp", "000/7/7.idx", "x0/7/7.idx"]
)
def test_files_elsewhere_are_not_index_files(path: str) -> None:
    assert layout.parse_path(path) is None


@pytest.mark.parametrize("key", [b"", KEY, b"k" * 1008])
@pytest.mark.parametrize("state", [0, 1, 2, 0x80000004])
def test_version_0(key: bytes, state: int) -> None:
    header = layout.IndexHeader(key, state, version=0)
    data = layout.pack_header(header)
    assert len(data) == 1024
    assert layout.parse_header(data) == header


@pytest.mark.parametrize("key", [b"", KEY, b"k" * 900])
@pytest.mark.parametrize("lac", [b"", LAC[:16], LAC, LAC + bytes(16)])
def test_version_1(key: bytes, lac: bytes) -> None:
    header = layout.IndexHeader(key, 0, lac)
    assert layout.parse_header(layout.pack_header(header)) == header


def test_version_0_has_no_room_for_an_explicit_lac() -> None:
    header = layout.IndexHeader(KEY, 0, LAC, version=0)
    assert layout.parse_header(layout.pack_header(header)).explicit_lac == b""


def test_unknown_state_bits_are_kept() -> None:
    header = layout.parse_header(layout.pack_header(layout.IndexHeader(KEY, 0x70)))
    fenced = header.with_state(layout.STATE_FENCED)
    assert fenced.state == 0x71
    assert fenced.is_fenced
    assert fenced.with_state(layout.STATE_LIMBO).is_in_limbo


def test_what_does_not_fit() -> None:
    for header in (layout.IndexHeader(b"k" * 1005), layout.IndexHeader(b"k" * 990, 0, LAC)):
        with pytest.raises(ValueError, match="does not fit"):
            layout.pack_header(header)


def test_truncated_headers() -> None:
    data = layout.pack_header(layout.IndexHeader(KEY, 1, LAC))
    for size in range(len(EXAMPLE)):
        with pytest.raises(layout.TruncatedHeader):
            layout.parse_header(data[:size], path="7.idx")
    assert layout.parse_header(data[: len(EXAMPLE)]).explicit_lac == LAC


@pytest.mark.parametrize(
    ("offset", "content"),
    [
        (0, b"X"),
        (0, bytes(1024)),
        (4, b"\0\0\0\2"),
        (4, b"\xff\xff\xff\xff"),
        (8, b"\xff\xff\xff\xff"),
        (8, b"\x7f\xff\xff\xff"),
        (8, b"\0\0\4\0"),
        (36, b"\0\0\0\1"),
        (36, b"\0\0\0\x0f"),
        (36, b"\xff\xff\xff\xff"),
        (36, b"\0\0\4\0"),
    ],
)
def test_corrupt_headers(offset: int, content: bytes) -> None:
    data = layout.pack_header(layout.IndexHeader(KEY, 1, LAC)) + bytes(8192)
    data = data[:offset] + content + data[offset + len(content) :]
    with pytest.raises(CorruptRecord, match=r"7\.idx at byte") as caught:
        layout.parse_header(data, path="7.idx")
    assert not isinstance(caught.value, layout.TruncatedHeader)


def test_foreign_short_files_are_not_truncated_ones() -> None:
    with pytest.raises(CorruptRecord, match="not an index file") as caught:
        layout.parse_header(b"hello")
    assert not isinstance(caught.value, layout.TruncatedHeader)


def test_partial_slots_are_missing() -> None:
    assert list(layout.iterate_slots(SLOTS + b"\1\2\3", 5)) == [(5, 0x1F00000404), (6, 0x1F00000431)]
    assert list(layout.iterate_slots(b"", 0)) == []
    assert layout.slot_count(1024 + 23) == 2
    assert layout.slot_count(1000) == 0
