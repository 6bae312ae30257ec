"""The journal's bytes: the worked example, every padding, every way to end."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from bookies.errors import CorruptRecord
from bookies.kernels import Records
from bookies.storage.journal import journal_format as layout
from bookies.storage.records import Batch, EndKind
from bookies.storage.records.record_scan import ScanEnd, run_ids

LEDGER = 7
KEY = bytes.fromhex("850bf1071c5e3d8c24235676f8816ae0cbe2f14f")
ENTRY_0 = bytes.fromhex("00000000000000070000000000000000ffffffffffffffff00000000000000059e3e717b68656c6c6f")
LAC_BODY = bytes.fromhex("00000000000000070000000000000000851054f0")

EXAMPLE = bytes.fromhex(
    "00000028 0000000000000007 fffffffffffff000 00000014 850bf1071c5e3d8c24235676f8816ae0cbe2f14f"
    "00000029 0000000000000007 0000000000000000 ffffffffffffffff 0000000000000005 9e3e717b 68656c6c6f"
    "ffffff00 0000019f"
)


def entry(entry_id: int, size: int = 100, ledger_id: int = LEDGER) -> bytes:
    """An entry's record."""
    return Records.of([struct.pack(">qqqq", ledger_id, entry_id, -1, 0).ljust(size, b"\xab")]).data


def journal(*groups: bytes, version: int = 6, size: int = 1 << 16) -> bytes:
    """A preallocated file of padded groups."""
    out = layout.pack_header(version)
    for group in groups:
        out += group
        if version >= layout.PADDING_VERSION:
            out += layout.pack_padding(len(out))
    return out.ljust(size, b"\0")


def pread(data: bytes) -> Callable[[int, int], bytes]:
    return lambda size, offset: data[offset : offset + size]


def scan(data: bytes, **options: object) -> tuple[list[tuple[int, int]], ScanEnd]:
    version, start = layout.parse_header(data[:512], len(data))
    arguments = {"start": start, "version": version, "is_newest": True} | options
    *batches, end = layout.scan(pread(data), len(data), **arguments)  # type: ignore[arg-type]
    assert isinstance(end, ScanEnd)
    return [ids for batch in batches if isinstance(batch, Batch) for ids in batch.ids], end


def test_the_worked_example() -> None:
    data = layout.pack_header()
    data += layout.pack_ledger_key(LEDGER, KEY) + Records.of([ENTRY_0]).data
    data += layout.pack_padding(len(data))
    assert data[:8] == bytes.fromhex("424b4c4700000006")
    assert data[512 : 512 + len(EXAMPLE)] == EXAMPLE
    assert len(data) == 0x400
    assert not data[8:512].strip(b"\0")
    assert not data[512 + len(EXAMPLE) :].strip(b"\0")
    assert layout.file_name(1_714_049_054_465) == "18f1548f701.txn"

    data = data.ljust(16_777_216, b"\0")
    assert layout.parse_header(data[:512], len(data)) == (6, 512)
    *batches, end = layout.scan(pread(data), len(data), 512, 6, is_newest=True)
    (batch,) = batches
    assert isinstance(batch, Batch)
    assert batch.ids == [(7, layout.LEDGER_KEY), (7, 0)]
    assert [batch.offset + start for start in batch.records.starts] == [0x200, 0x22C, 0x259]
    assert layout.parse_special(batch.records.body(0)) == KEY
    assert batch.records.body(1) == ENTRY_0
    assert batch.end == 0x259
    assert end == ScanEnd(EndKind.CLEAN, 0x400, "zeros follow")


def test_the_worked_special_records() -> None:
    assert layout.pack_fence(LEDGER).hex() == "000000100000000000000007ffffffffffffe000"
    assert layout.pack_explicit_lac(LEDGER, LAC_BODY).hex() == (
        "000000280000000000000007ffffffffffff80000000001400000000000000070000000000000000851054f0"
    )


def test_names() -> None:
    assert layout.parse_file_name("18f1548f701.txn") == 1_714_049_054_465
    assert layout.parse_file_name("1F.txn") == 31
    for name in ("zz.txn", ".txn", "1f.txn.tmp", "1f.log", "0x1f.txn", "-1.txn", "1_0.txn", "1f"):
        assert layout.parse_file_name(name) is None


@pytest.mark.parametrize("version", [4, 5, 6])
def test_headers(version: int) -> None:
    header = layout.pack_header(version)
    assert len(header) == layout.HEADER_SIZES[version]
    assert layout.parse_header(header.ljust(600, b"\0"), 4096) == (version, len(header))


def test_older_headers_are_read() -> None:
    for version in (1, 2, 3):
        assert layout.parse_header(b"BKLG" + version.to_bytes(4, "big") + bytes(16), 99) == (
            version,
            layout.HEADER_SIZES[version],
        )
    assert layout.parse_header(entry(0)[:512], 4096) == (1, 0)


@pytest.mark.parametrize("size", [*range(8), 8, 9, 100, 511, 512])
def test_an_unfinished_header_is_an_empty_journal(size: int) -> None:
    data = layout.pack_header()[:size]
    ids, end = scan(data)
    assert ids == []
    assert (end.kind, end.offset) == (EndKind.CLEAN, size)
    assert scan(data, is_newest=False)[1].kind is EndKind.CLEAN


@pytest.mark.parametrize("first", [b"BKLG\0\0\0\x07", b"BKLG\0\0\0\0", b"BKLG\xff\xff\xff\xff", b"XKLG\0\0\0\x06"])
def test_unknown_headers_are_errors(first: bytes) -> None:
    with pytest.raises(CorruptRecord):
        layout.parse_header(first.ljust(512, b"\0"), 4096, path="x.txn")


@pytest.mark.parametrize("alignment", [512, 1024, 4096])
def test_padding_of_every_residue(alignment: int) -> None:
    for residue in range(alignment):
        position = 5 * alignment + residue
        padding = layout.pack_padding(position, alignment)
        assert (position + len(padding)) % alignment == 0
        assert len(padding) == layout.padding_size(position, alignment)
        if residue == 0:
            assert padding == b""
        else:
            mask, count = struct.unpack_from(">II", padding)
            assert (mask, count) == (layout.PADDING_MASK, len(padding) - 8)
            assert 8 <= len(padding) < alignment + 8
            assert not padding[8:].strip(b"\0")


@pytest.mark.parametrize(("residue", "count"), [(1, 503), (504, 0), (505, 511), (509, 507), (511, 505)])
def test_the_worked_paddings(residue: int, count: int) -> None:
    assert layout.pack_padding(512 + residue)[4:8] == count.to_bytes(4, "big")


@pytest.mark.parametrize("chunk_size", [16, 100, 1000, 1 << 20])
def test_padding_of_every_residue_is_skipped(chunk_size: int) -> None:
    sizes = [*range(32, 160), *range(480, 530)]
    data = journal(*(entry(index, size) for index, size in enumerate(sizes)), size=1 << 18)
    ids, end = scan(data, chunk_size=chunk_size, is_newest=False)
    assert ids == [(LEDGER, index) for index in range(len(sizes))]
    assert end.kind is EndKind.CLEAN


def test_older_versions_have_no_padding() -> None:
    data = journal(entry(0) + entry(1), version=4)
    ids, end = scan(data)
    assert len(ids) == 2
    assert (end.kind, end.offset) == (EndKind.CLEAN, 8 + 208)
    padding = journal(entry(0) + layout.pack_padding(100), version=4)
    ids, end = scan(padding, is_newest=False)
    assert (len(ids), end.kind) == (1, EndKind.CORRUPT)


def test_a_scan_may_start_at_a_mark() -> None:
    data = journal(entry(0), entry(1), entry(2))
    assert scan(data, start=1024)[0] == [(LEDGER, 1), (LEDGER, 2)]
    # Apache's marks after replay point behind the zero word that ended the scan.
    assert scan(data, start=2048 + 4)[1].kind is EndKind.CLEAN
    assert scan(data, start=len(data) + 99)[1] == ScanEnd(EndKind.CLEAN, len(data), "end of file")


def test_unknown_negative_entry_ids_are_delivered() -> None:
    data = journal(entry(0), entry(-0x10000), entry(1))
    assert scan(data)[0] == [(LEDGER, 0), (LEDGER, -0x10000), (LEDGER, 1)]


@pytest.mark.parametrize(
    ("record", "version"),
    [
        (layout.pack_explicit_lac(LEDGER, LAC_BODY), 5),
        (layout.pack_fence(LEDGER), 3),
        (layout.pack_ledger_key(LEDGER, KEY), 2),
    ],
)
def test_records_that_the_version_cannot_hold(record: bytes, version: int) -> None:
    header = (b"BKLG" + version.to_bytes(4, "big")).ljust(layout.HEADER_SIZES[version], b"\0")
    data = (header + record).ljust(2048, b"\0")
    ids, end = scan(data)
    assert (ids, end.kind) == ([], EndKind.CORRUPT)
    newer = (b"BKLG" + (version + 1).to_bytes(4, "big")).ljust(layout.HEADER_SIZES[version + 1], b"\0")
    assert len(scan((newer + record).ljust(2048, b"\0"))[0]) == 1


def _special(entry_id: int, outside: int, inside: int) -> bytes:
    return struct.pack(">IqqI", outside, LEDGER, entry_id, inside).ljust(4 + outside, b"k")


GARBAGE = {
    "negative length": b"\xff\xff\xff\xfb" + bytes(100),
    "length above the limit": b"\x7f\xff\xff\xff" + b"x" * 100,
    "length behind the end of the file": b"\x00\x0f\x00\x00" + b"x" * 100,
    "too short for ids": b"\x00\x00\x00\x0f" + bytes(8) + b"x" * 7,
    "negative ledger": entry(0, ledger_id=-1),
    "most negative ledger": entry(0, ledger_id=-(1 << 63)),
    "fence with a body": _special(layout.FENCE, 20, 0),
    "key longer than its record": _special(layout.LEDGER_KEY, 40, 21),
    "key shorter than its record": _special(layout.LEDGER_KEY, 40, 19),
    "key without a size": struct.pack(">Iqq", 16, LEDGER, layout.LEDGER_KEY),
    "explicit LAC of another size": _special(layout.EXPLICIT_LAC, 40, 1 << 31),
    "endless padding": b"\xff\xff\xff\x00\x7f\xff\xff\xff",
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_ends_the_newest_journal_and_fails_older_ones(name: str) -> None:
    good = journal(entry(0), entry(1), size=0)
    data = (good + GARBAGE[name]).ljust(1 << 16, b"\0")
    ids, end = scan(data)
    assert ids == [(LEDGER, 0), (LEDGER, 1)]
    assert (end.kind, end.offset, end.next_record) == (EndKind.TORN, len(good), None)
    ids, end = scan(data, is_newest=False)
    assert ids == [(LEDGER, 0), (LEDGER, 1)]
    assert (end.kind, end.offset) == (EndKind.CORRUPT, len(good))
    with pytest.raises(CorruptRecord, match=r"x\.txn at byte 1,536"):
        end.raise_if_corrupt("x.txn")


@pytest.mark.parametrize("damage", [bytes(512), *(text.ljust(512, b"\0")[:512] for text in GARBAGE.values())])
@pytest.mark.parametrize("gap", [0, 3, 200])
def test_a_group_behind_the_end_is_noticed(damage: bytes, gap: int) -> None:
    """A lost sector in the middle of the file. If it held the padding too, only the group after the next is certain."""
    lost = entry(1, 400 + 512 * gap)
    good = journal(entry(0), lost, entry(2), entry(3), size=1 << 18)
    at = 1024
    data = good[:at] + damage + good[at + 512 :]
    next_group = good.index(entry(2 if gap else 3))
    ids, end = scan(data)
    assert ids == [(LEDGER, 0)]
    assert end.next_record == next_group
    assert end.kind is not EndKind.CORRUPT
    ids, end = scan(data, is_newest=False)
    assert (ids, end.kind) == ([(LEDGER, 0)], EndKind.CORRUPT)
    assert end.next_record == good.index(entry(2))


def test_an_aligned_record_of_a_torn_group_is_no_group() -> None:
    """Of a group whose first sector was lost, a record may begin exactly on a sector: that is a torn tail too."""
    records = b"".join(entry(index, 508) for index in range(1, 9))
    data = journal(entry(0), records)
    torn = data[:1024] + bytes(512) + data[1536:]
    _, end = scan(torn)
    assert (end.kind, end.offset, end.next_record) == (EndKind.CLEAN, 1024, None)
    assert scan(torn, is_newest=False)[1].kind is EndKind.CORRUPT


def test_a_record_cut_off_by_the_end_of_the_file() -> None:
    data = journal(entry(0), entry(1, 1000), size=0)[:1500]
    assert scan(data)[1].kind is EndKind.TORN
    for size in range(1025, 1028):
        ids, end = scan(data[:size])
        assert (len(ids), end.kind, end.offset) == (1, EndKind.TORN, 1024)
    ids, end = scan(data[:1024])
    assert (len(ids), end.kind, end.offset) == (1, EndKind.CLEAN, 1024)


def test_padding_cut_off_by_the_end_of_the_file() -> None:
    data = journal(entry(0), size=0)
    for size in (618, 620, 624, 1023):
        ids, end = scan(data[:size])
        assert (len(ids), end.kind) == (1, EndKind.TORN)
    assert scan(data)[1] == ScanEnd(EndKind.CLEAN, 1024, "end of file")


def test_a_record_larger_than_a_chunk() -> None:
    data = journal(entry(0, 70_000), entry(1), size=1 << 18)
    assert scan(data, chunk_size=64)[0] == [(LEDGER, 0), (LEDGER, 1)]
    assert scan(data, record_size_max=69_999)[1].kind is EndKind.TORN


def test_a_file_that_shrinks_while_it_is_read() -> None:
    data = journal(entry(0, 600), entry(1, 600), size=4096)
    shorter = data[:1000]
    *_, end = layout.scan(pread(shorter), len(data), 512, 6, is_newest=True)
    assert isinstance(end, ScanEnd)
    assert end.kind is EndKind.TORN


def test_ids_that_are_kept_as_runs() -> None:
    ids = [(7, 3), (7, 4), (8, 0), (7, 5)]
    records = Records.of([struct.pack(">qq", *pair) for pair in ids])
    found = run_ids(records.data, records.starts)
    assert found is not None
    assert found.runs == [(7, 3, 2), (8, 0, 1), (7, 5, 1)]
    assert list(found) == ids
    assert (len(found), found[0], found[-1], found[1:3]) == (4, ids[0], ids[-1], ids[1:3])
    note = Records.of([struct.pack(">qq", 7, layout.FENCE)])
    assert run_ids(note.data, note.starts) is None


@pytest.mark.parametrize("is_newest", [True, False])
def test_damage_that_turns_the_header_into_a_record(is_newest: bool) -> None:
    """The first bytes as the length of a version 1 record: it would cover all groups, which then were missing."""
    data = layout.pack_header()
    for entry_id in range(4):
        record = entry(entry_id)
        data += record + layout.pack_group_end(1, len(data), [record], len(record), 512)
    for first in (len(data) - 4, len(data) - 160):
        damaged = struct.pack(">I", first)[:3] + data[3:4] + data[4:]
        assert layout.parse_header(damaged[:512], len(damaged)) == (1, 0)
        ids, end = scan(damaged, is_newest=is_newest, journal_id=1)
        assert (ids, end.kind, end.offset, end.next_record) == ([], EndKind.CORRUPT, 0, 512)
