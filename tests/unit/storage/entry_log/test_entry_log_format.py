"""The entry log's bytes: the worked example, the ledgers map and its refusals, every way a scan ends."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from bookies.errors import CorruptRecord
from bookies.kernels import Records
from bookies.storage.entry_log import entry_log_format as layout
from bookies.storage.records import Batch, EndKind
from bookies.storage.records.record_scan import ScanEnd

LEDGER = 7
ENTRIES = [
    bytes.fromhex("00000000000000070000000000000000ffffffffffffffff00000000000000059e3e717b68656c6c6f"),
    bytes.fromhex("000000000000000700000000000000010000000000000000000000000000000a9b088207776f726c64"),
]
MAP = "00000024 ffffffffffffffff fffffffffffffffe 00000001 0000000000000007 000000000000005a"


def pread(data: bytes) -> Callable[[int, int], bytes]:
    return lambda size, offset: data[offset : offset + size]


def body(entry_id: int, size: int = 100, ledger_id: int = LEDGER) -> bytes:
    return struct.pack(">qqqq", ledger_id, entry_id, -1, 0).ljust(size, b"\xab")


def records(*bodies: bytes) -> bytes:
    return Records.of(bodies).data


def closed(*bodies: bytes) -> bytes:
    """A log with its map."""
    sizes: dict[int, int] = {}
    for each in bodies:
        ledger_id = int.from_bytes(each[:8], "big", signed=True)
        sizes[ledger_id] = sizes.get(ledger_id, 0) + 4 + len(each)
    data = records(*bodies)
    header = layout.pack_header(layout.HEADER_SIZE + len(data), len(sizes))
    return header + data + layout.pack_ledgers_map(sizes.items())


def scan(data: bytes, **options: int) -> tuple[list[tuple[int, int]], ScanEnd]:
    *batches, end = layout.scan(pread(data), len(data), **options)
    assert isinstance(end, ScanEnd)
    return [ids for batch in batches if isinstance(batch, Batch) for ids in batch.ids], end


def test_the_worked_example() -> None:
    data = closed(*ENTRIES)
    assert len(data) == 0x482
    assert data[:24] == bytes.fromhex("424b4c4f 00000001 000000000000045a 00000001 00000000")
    assert not data[20:1024].strip(b"\0")
    assert data[0x400:0x45A] == b"".join(b"\0\0\0\x29" + each for each in ENTRIES)
    assert data[0x45A:] == bytes.fromhex(MAP)
    open_header = layout.pack_header()
    patched = open_header[:8] + layout.pack_map_fields(0x45A, 1) + open_header[20:]
    assert patched == data[:1024]

    assert layout.parse_header(data[:1024]) == layout.LogHeader(1, 0x45A, 1)
    assert layout.read_ledgers_map(pread(data), len(data)) == {7: 90}
    *batches, end = layout.scan(pread(data), len(data))
    (batch,) = batches
    assert isinstance(batch, Batch)
    assert [batch.records.body(index) for index in (0, 1)] == ENTRIES
    found = [layout.location(31, batch.offset + start + 4) for start in batch.records.starts[:-1]]
    assert found == [0x0000001F00000404, 0x0000001F00000431]
    assert end == ScanEnd(EndKind.CLEAN, 0x482, "end of file")


def test_names_and_ids() -> None:
    assert layout.file_name(31) == "1f.log"
    assert layout.parse_file_name("1f.log") == 31
    assert layout.parse_file_name("1F.log") == 31
    for name in ("zz.log", "1f.log.compacting", "1f.log.1e.compacted", "1f.txn", ".log", "123456789.log"):
        assert layout.parse_file_name(name) is None
    assert layout.parse_compacted_name("1f.log.compacting") == (31, None)
    assert layout.parse_compacted_name("20.log.1f.compacted") == (32, 31)
    for name in ("1f.log", "zz.log.compacting", "zz.log.compacted", "1f.log.zz.compacted"):
        assert layout.parse_compacted_name(name) is None
    assert layout.pack_last_id(31) == b"1f\n"
    assert layout.parse_last_id(b"1f\n") == 31
    assert layout.parse_last_id(b"1F") == 31
    for data in (b"", b"\n", b"-1\n", b"zz\n", b"0x1f\n", b"\0\0\0", b"123456789\n"):
        assert layout.parse_last_id(data) is None


def test_locations() -> None:
    assert layout.split_location(0x0000001F00000404) == (31, 1028)
    number = layout.location(layout.LOG_ID_MAX, (1 << 31) - 1)
    assert 0 < number < 1 << 63
    assert layout.split_location(number) == (layout.LOG_ID_MAX, (1 << 31) - 1)


@pytest.mark.parametrize("size", [0, 1, 512, 1023])
def test_a_log_shorter_than_its_header_is_empty(size: int) -> None:
    data = layout.pack_header()[:size]
    assert layout.parse_header(data) is None
    assert layout.read_ledgers_map(pread(data), size) is None
    assert scan(data) == ([], ScanEnd(EndKind.CLEAN, size, "end of file"))


def test_headers() -> None:
    assert layout.parse_header(layout.pack_header()) == layout.LogHeader()
    assert scan(layout.pack_header())[1].kind is EndKind.CLEAN
    version_0 = b"BKLO" + bytes(1020)
    assert layout.parse_header(version_0) == layout.LogHeader(0)
    for first in (b"XKLO\0\0\0\1", b"BKLO\0\0\0\2", b"BKLO\xff\xff\xff\xff", bytes(8)):
        with pytest.raises(CorruptRecord, match=r"x\.log at byte"):
            layout.parse_header(first.ljust(1024, b"\0"), path="x.log")


@pytest.mark.parametrize("count", [1, 9_999, 10_000, 10_001, 25_000])
def test_large_maps_are_split(count: int) -> None:
    pairs = dict.fromkeys(range(count), 20)
    packed = layout.pack_ledgers_map(pairs.items())
    sizes = []
    at = 0
    while at < len(packed):
        length, ledger_id, entry_id, pair_count = struct.unpack_from(">IqqI", packed, at)
        assert (ledger_id, entry_id, length) == (-1, -2, 20 + 16 * pair_count)
        sizes.append(pair_count)
        at += 4 + length
    assert sizes == [10_000] * (count // 10_000) + ([count % 10_000] if count % 10_000 else [])
    data = layout.pack_header(1024 + 20 * count, count) + bytes(20 * count) + packed
    assert layout.read_ledgers_map(pread(data), len(data)) == pairs


def _patched(data: bytes, offset: int, content: bytes) -> bytes:
    return data[:offset] + content + data[offset + len(content) :]


LOG = closed(body(0), body(1), body(0, ledger_id=8))
AT = 1024 + 3 * 104
BAD_MAPS = {
    "no map": _patched(LOG, 8, bytes(12)),
    "count 0": _patched(LOG, 16, bytes(4)),
    "count too small": _patched(LOG, 16, b"\0\0\0\1"),
    "count too large": _patched(LOG, 16, b"\0\0\0\3"),
    "garbage count": _patched(LOG, 16, b"\xff\xff\xff\xff"),
    "offset behind the end": _patched(LOG, 8, len(LOG).to_bytes(8, "big")),
    "offset far behind the end": _patched(LOG, 8, b"\x7f" + bytes(7)),
    "negative offset": _patched(LOG, 8, b"\xff" * 8),
    "offset into the header": _patched(LOG, 8, (20).to_bytes(8, "big")),
    "offset into the entries": _patched(LOG, 8, (1024).to_bytes(8, "big")),
    "version 0": _patched(LOG, 4, bytes(4)),
    "wrong magic": _patched(LOG, 0, b"X"),
    "wrong ledger id": _patched(LOG, AT + 4, bytes(8)),
    "wrong entry id": _patched(LOG, AT + 12, bytes(8)),
    "pairs do not fill the record": _patched(LOG, AT + 20, b"\0\0\0\1"),
    "garbage pair count": _patched(LOG, AT + 20, b"\xff\xff\xff\xff"),
    "negative ledger": _patched(LOG, AT + 24, b"\xff" * 8),
    "negative bytes": _patched(LOG, AT + 32, b"\xff" * 8),
    "more bytes than there are": _patched(LOG, AT + 32, (1 << 40).to_bytes(8, "big")),
    "the same ledger twice": _patched(LOG, AT + 40, (7).to_bytes(8, "big")),
    "cut off": LOG[:-1],
    "cut off in the head": LOG[: AT + 10],
    "zeros": LOG[:AT].ljust(len(LOG), b"\0"),
}


@pytest.mark.parametrize("name", BAD_MAPS)
def test_an_invalid_map_means_scanning(name: str) -> None:
    data = BAD_MAPS[name]
    assert layout.read_ledgers_map(pread(LOG), len(LOG)) == {7: 208, 8: 104}
    assert layout.read_ledgers_map(pread(data), len(data)) is None


def test_garbage_in_a_new_header_does_not_hide_its_entries() -> None:
    """Some releases left garbage in the map fields of new logs."""
    data = layout.pack_header(0x1234, 17) + records(body(0), body(1))
    assert layout.read_ledgers_map(pread(data), len(data)) is None
    assert scan(data)[0] == [(7, 0), (7, 1)]


@pytest.mark.parametrize("chunk_size", [16, 200, 1 << 20])
def test_scanning(chunk_size: int) -> None:
    data = closed(*(body(index, 32 + 13 * index, index % 3) for index in range(50)))
    ids, end = scan(data, chunk_size=chunk_size)
    assert ids == [(index % 3, index) for index in range(50)]
    assert (end.kind, end.offset) == (EndKind.CLEAN, len(data))
    third = 1024 + sum(4 + 32 + 13 * index for index in range(3))
    assert scan(data, start=third, chunk_size=chunk_size)[0] == ids[3:]


@pytest.mark.parametrize("cut", [1, 3, 4, 20, 103])
def test_a_torn_tail(cut: int) -> None:
    data = layout.pack_header() + records(body(0), body(1))
    ids, end = scan(data[:-cut])
    assert (ids, end.kind, end.offset) == ([(7, 0)], EndKind.TORN, 1128)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x00\x00\x00\x0f" + bytes(15),
        b"\x7f\xff\xff\xff" + bytes(64),
        b"\xff\xff\xff\xfb" + bytes(64),
        b"\x00" * 64 + b"\x01",
        b"\x00" * 5000 + records(body(2)),
        b"\xf0" * 100 + b"\x00" + b"\xf0" * 9000,
        records(body(2, ledger_id=-2)),
        records(body(-1)),
        records(body(-3, ledger_id=-1)),
    ],
)
@pytest.mark.parametrize("chunk_size", [64, 1 << 20])
def test_corruption(garbage: bytes, chunk_size: int) -> None:
    data = layout.pack_header() + records(body(0), body(1)) + garbage + records(body(3))
    ids, end = scan(data, chunk_size=chunk_size)
    assert (ids, end.kind, end.offset) == ([(7, 0), (7, 1)], EndKind.CORRUPT, 1232)


def test_zeros_to_the_end_are_clean() -> None:
    data = layout.pack_header() + records(body(0))
    for count in (4, 5, 5000, 3 << 20):
        ids, end = scan(data + bytes(count))
        assert (ids, end.kind, end.offset) == ([(7, 0)], EndKind.CLEAN, 1128)


def direct(*groups: bytes, size: int = 1 << 16) -> bytes:
    """A log of Apache's direct-I/O writer: every group padded to the next block, preallocated."""
    out = layout.pack_header() + struct.pack(">Iq", 3068, -1)
    out = out.ljust(4096, b"\0")
    for group in groups:
        out += group
        out += b"\xf0" * (-len(out) % 4096)
    return out.ljust(size, b"\0")


@pytest.mark.parametrize("chunk_size", [64, 5000, 1 << 20])
def test_the_direct_layout(chunk_size: int) -> None:
    sizes = [*range(4080, 4097), 100, 9000]
    data = direct(*(records(body(index, size - 4)) for index, size in enumerate(sizes)), size=1 << 18)
    assert data[1024:1036] == bytes.fromhex("00000bfc ffffffffffffffff")
    ids, end = scan(data, chunk_size=chunk_size)
    assert ids == [(7, index) for index in range(len(sizes))]
    assert end.kind is EndKind.CLEAN
    full = data.rstrip(b"\0")
    assert scan(full, chunk_size=chunk_size)[1] == ScanEnd(EndKind.CLEAN, len(full), "end of file")


def test_the_map_of_a_direct_log() -> None:
    pairs = dict.fromkeys(range(10_001), 1)
    packed = layout.pack_ledgers_map(pairs.items())
    first = 4 + 20 + 160_000
    data = direct(bytes(20_000), packed[:first], packed[first:], size=1 << 18)
    offset = 4096 + 20_480
    data = _patched(data, 8, layout.pack_map_fields(offset, 10_001))
    assert layout.read_ledgers_map(pread(data), len(data)) == pairs


def test_direct_padding_of_a_flipped_length_is_corruption() -> None:
    """A flipped sign bit of the last length must not make its record vanish as if it were padding."""
    data = direct(records(body(0), body(1)), size=8192)
    second = 4096 + 104
    flipped = _patched(data, second, b"\x80")
    ids, end = scan(flipped)
    assert (ids, end.kind, end.offset) == ([(7, 0)], EndKind.CORRUPT, second)
