"""Trailers of journal groups: every change to a group that was acknowledged is found, and none is made up."""

from __future__ import annotations

import struct
from random import Random

import pytest

from bookies.kernels import Records
from bookies.storage.journal import journal_format as layout
from bookies.storage.journal.journal_trailer import SECTOR, TRAILER_SIZE, find_group, parse_trailer
from bookies.storage.records import Batch, EndKind
from bookies.storage.records.record_scan import ScanEnd, Trust

JOURNAL = 0x18F1548F701


def record(entry_id: int, size: int = 100) -> bytes:
    return Records.of([struct.pack(">qqqq", 7, entry_id, -1, 0).ljust(size, b"\xab")]).data


def journal(*groups: bytes, journal_id: int = JOURNAL, alignment: int = 512) -> bytes:
    """A preallocated file of groups with trailers."""
    out = layout.pack_header()
    for group in groups:
        # In two buffers, as a writer has many.
        out += group + layout.pack_group_end(journal_id, len(out), [group[:30], group[30:]], len(group), alignment)
    return out.ljust(1 << 14, b"\0")


def scan(data: bytes, *, is_newest: bool = True, chunk_size: int = 1 << 20) -> tuple[list[Batch], ScanEnd]:
    *batches, end = layout.scan(
        lambda size, offset: data[offset : offset + size],
        len(data),
        layout.HEADER_SIZE,
        layout.VERSION,
        is_newest=is_newest,
        journal_id=JOURNAL,
        chunk_size=chunk_size,
    )
    assert isinstance(end, ScanEnd)
    return [each for each in batches if isinstance(each, Batch)], end


def ids(batches: list[Batch], trust: Trust) -> list[int]:
    return [entry_id for batch in batches if batch.trust is trust for _, entry_id in batch.ids]


FILE = journal(record(0), record(1, 440) + record(2, 440), record(3), record(4))
STARTS = [512, 1024, 2048, 2560]


@pytest.mark.parametrize("alignment", [512, 4096])
def test_every_residue_has_a_trailer_and_is_padding_to_other_readers(alignment: int) -> None:
    for size in range(20, 20 + alignment):
        group = record(0, size)
        end = layout.pack_group_end(JOURNAL, 512, [group], len(group), alignment)
        mask, count = struct.unpack_from(">II", end)
        assert (mask, count) == (layout.PADDING_MASK, len(end) - 8)
        stop = 512 + len(group) + len(end)
        assert stop % alignment == 0
        assert TRAILER_SIZE + 8 <= len(end) < alignment + TRAILER_SIZE + 8
        assert not end[8:-TRAILER_SIZE].strip(b"\0")
        trailer = parse_trailer(end, len(end) - TRAILER_SIZE, stop - TRAILER_SIZE, JOURNAL)
        assert trailer is not None
        assert trailer.matches([group[:100], group[100:], end[:-TRAILER_SIZE]])


@pytest.mark.parametrize("chunk_size", [600, 1 << 20])
@pytest.mark.parametrize("is_newest", [True, False])
def test_whole_groups_are_verified(chunk_size: int, is_newest: bool) -> None:
    batches, end = scan(FILE, is_newest=is_newest, chunk_size=chunk_size)
    assert ids(batches, Trust.VERIFIED) == [0, 1, 2, 3, 4]
    assert (end.kind, end.next_record) == (EndKind.CLEAN, None)


@pytest.mark.parametrize("is_newest", [True, False])
def test_no_flipped_bit_before_another_group_passes(is_newest: bool) -> None:
    random = Random(1)
    for at in random.sample(range(1024, 2560), 400):
        data = bytearray(FILE)
        data[at] ^= 1 << random.randrange(8)
        batches, end = scan(bytes(data), is_newest=is_newest)
        first = 1 if at < 2048 else 2
        assert ids(batches, Trust.VERIFIED) == ([0] if first == 1 else [0, 1, 2]), at
        assert ids(batches, Trust.UNPROVEN) == [], at
        assert (end.kind, end.next_record) == (EndKind.CORRUPT, STARTS[first + 1]), (at, end)


@pytest.mark.parametrize("sector", range(1024, 2560, SECTOR))
@pytest.mark.parametrize("is_newest", [True, False])
def test_a_lost_sector_before_the_last_group_is_noticed(sector: int, is_newest: bool) -> None:
    """Also if it held the end of its group, so that only the last group's trailer tells that there was more."""
    data = FILE[:sector] + bytes(SECTOR) + FILE[sector + SECTOR :]
    batches, end = scan(data, is_newest=is_newest)
    group = 1 if sector < 2048 else 2
    assert ids(batches, Trust.VERIFIED) == ([0] if group == 1 else [0, 1, 2])
    assert (end.kind, end.offset, end.next_record) == (EndKind.CORRUPT, STARTS[group], STARTS[group + 1])


def test_a_longer_record_does_not_swallow_the_next_group() -> None:
    """Groups of equal records: a length that grew by 512 leads to the next group's padding."""
    data = bytearray(journal(*(record(entry_id) for entry_id in range(4))))
    data[1024 + 2] ^= 2
    batches, end = scan(bytes(data))
    assert ids(batches, Trust.VERIFIED) == [0]
    assert ids(batches, Trust.DAMAGED) == [1]
    assert (end.kind, end.offset, end.next_record) == (EndKind.CORRUPT, 1024, 1536)


def test_the_last_group_of_the_newest_file_may_be_torn() -> None:
    data = bytearray(FILE)
    data[2560 + 50] ^= 1
    batches, end = scan(bytes(data))
    assert (ids(batches, Trust.VERIFIED), ids(batches, Trust.UNPROVEN)) == ([0, 1, 2, 3], [4])
    assert (end.kind, end.next_record) == (EndKind.CLEAN, None)
    batches, end = scan(bytes(data), is_newest=False)
    assert (ids(batches, Trust.VERIFIED), ids(batches, Trust.DAMAGED)) == ([0, 1, 2, 3], [4])
    assert (end.kind, end.offset, end.next_record) == (EndKind.CORRUPT, 2560, len(data))


def test_groups_of_another_journal_are_not_ours() -> None:
    batches, end = scan(journal(record(0), record(1), journal_id=JOURNAL + 1))
    assert (batches, end.kind) == ([], EndKind.CORRUPT)
    assert f"journal {JOURNAL + 1:x}" in end.problem


def test_a_file_without_trailers_is_believed_as_far_as_it_is_credible() -> None:
    data = layout.pack_header() + record(0) + layout.pack_padding(512 + 104) + record(1)
    batches, end = scan(data.ljust(4096, b"\0"))
    assert (ids(batches, Trust.UNPROVEN), end.kind) == ([0, 1], EndKind.CLEAN)


def test_a_trailer_counts_only_at_its_own_place() -> None:
    """A copy of a journal inside an entry is no journal."""
    copied = bytes(512) + FILE[2048:2560]
    assert find_group(lambda size, offset: copied[offset : offset + size], len(copied), 0, JOURNAL) is None
    assert find_group(lambda size, offset: FILE[offset : offset + size], len(FILE), 1024, JOURNAL) is not None
