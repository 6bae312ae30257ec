"""Compaction by key and roll-up: which entries go, which ledgers are merged, and the change of the list."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from bookies.encoding.envelope import Record, pack_record
from bookies.errors import InvalidArgument, LogFenced
from bookies.model import DigestType
from bookies.protocol.log import Manifest
from bookies.protocol.log.compaction import (
    MERGE_MAX,
    KeyScan,
    Rewritten,
    check_compaction,
    compactable,
    compacted,
    expired_ordinal,
    merged_runs,
    ordinals,
    small_ledgers,
)
from bookies.protocol.log.log_model import (
    HELD,
    Extent,
    Position,
    Segment,
    emptied,
    illegality,
    pack_manifest,
    parse_manifest,
    truncated,
)
from bookies.protocol.log.log_segments import joined, parse_segment, stored
from bookies.protocol.log.sequences import HEADER


def record(key: str | None, value: str | None, number: str = "") -> bytes:
    headers = [(HEADER, number.encode())] if number else None
    return pack_record(Record(value and value.encode(), key and key.encode(), headers))


def kept(entries: list[bytes], expired: int = 0, keys_max: int = 100) -> tuple[list[int], KeyScan]:
    scan = KeyScan(len(entries), expired, keys_max)
    while scan.begin():
        for ordinal, entry in enumerate(entries):
            scan.add(ordinal, entry)
        scan.end()
    scan.finish()
    return [ordinal for ordinal, goes in enumerate(scan.goes(0, len(entries))) if not goes], scan


def test_the_last_record_of_each_key_stays() -> None:
    entries = [record("a", "1"), record("b", "1"), record(None, "x"), b"?", record("a", "2"), record(None, "x")]
    left, scan = kept(entries)
    assert left == [1, 2, 3, 4, 5]
    assert (scan.passes, scan.entries_removed, scan.bytes_removed) == (1, 1, len(entries[0]))


def test_a_tombstone_goes_once_it_is_old_and_in_a_later_compaction_than_what_it_deletes() -> None:
    entries = [record("a", "1"), record("a", None), record("b", None), record("c", "1"), record("c", None)]
    assert kept(entries)[0] == [1, 2, 4]
    assert kept(entries, expired=2)[0] == [1, 2, 4]
    assert kept(entries, expired=5)[0] == [1, 4]
    again = [entries[1], entries[4]]
    assert kept(again, expired=1)[0] == [1]
    assert kept(again, expired=2)[0] == []
    assert kept(again, expired=2, keys_max=1)[0] == []
    assert kept([record("a", None), record("a", "1")], expired=2)[0] == [1]


def test_the_last_number_of_each_producer_stays_and_the_tombstone_of_its_key_with_it() -> None:
    entries = [
        record("a", "1", "p:1"),
        record("a", "2", "p:2"),
        record("a", "3", "q:1"),
        record("a", None),
        record("b", None, "r:9"),
        record("d", None),
    ]
    left, scan = kept(entries, expired=6)
    assert left == [1, 2, 3, 4]
    assert scan.entries_removed == 2
    assert scan.bytes_removed == len(entries[0]) + len(entries[5])


@pytest.mark.parametrize("seed", range(20))
def test_many_passes_with_a_small_table_decide_the_same(seed: int) -> None:
    chance = random.Random(seed)
    entries = [
        record(
            chance.choice([None, *map(str, range(20))]),
            chance.choice([None, "v"]),
            chance.choice(["", f"p{ordinal % 3}:{ordinal}"]),
        )
        for ordinal in range(200)
    ]
    expired = chance.randrange(200)
    whole, _ = kept(entries, expired)
    parts, scan = kept(entries, expired, keys_max=3)
    assert parts == whole
    assert scan.passes > 4


# -- the list --------------------------------------------------------------------------------------------------------

LOG = Manifest(
    "t",
    1,
    3,
    3,
    2,
    DigestType.CRC32C,
    "envelope",
    epoch=1,
    next_seq=4,
    extents=(Extent(0, 10, 0, 9, 10, 90), Extent(1, 11, 0, 4, 5, 50), Extent(2, 12, 0, -1, 0, 0), Extent(3, 13)),
    compaction="key",
)


def rewritten(seq: int, ledger_id: int) -> Rewritten:
    return Rewritten(LOG.extents[seq], ledger_id, 2, 20)


def test_what_may_be_compacted() -> None:
    check_compaction("orders", LOG)
    with pytest.raises(InvalidArgument, match='created with compaction="key"'):
        check_compaction("orders", replace(LOG, compaction=""))
    with pytest.raises(LogFenced, match="it moves"):
        check_compaction("orders", replace(LOG, extra={HELD: "it moves"}))
    with pytest.raises(LogFenced, match="being deleted"):
        check_compaction("orders", replace(LOG, is_deleting=True))
    assert [extent.seq for extent in compactable(LOG)] == [0, 1, 2]
    assert ordinals(compactable(LOG)) == {0: 0, 1: 10, 2: 15, -1: 15}


def test_tombstones_expire_with_the_end_of_their_extent() -> None:
    extents = compactable(LOG)
    starts = ordinals(extents)
    assert expired_ordinal(extents, starts, {}, 100) == 0
    assert expired_ordinal(extents, starts, {0: 99, 1: 100}, 100) == 10
    assert expired_ordinal(extents, starts, {0: 97, 1: 98, 2: 99}, 100) == 15


def test_a_swap_keeps_positions_and_names_what_has_to_be_deleted() -> None:
    after = compacted(LOG, [rewritten(0, 20), rewritten(1, 21)])
    assert after is not None
    assert illegality(LOG, after) == ""
    assert (after.ledger_ids, after.storages, after.deleting) == ([10, 11, 12, 13], [20, 21, 12, 13], (10, 11))
    assert after.extents[0] == replace(LOG.extents[0], stored=20, kept=2, bytes=20)
    assert parse_manifest("orders", pack_manifest(after)) == after
    assert b'"format":3' in pack_manifest(after)
    assert compacted(after, [rewritten(0, 20), rewritten(1, 21)]) is None  # The reply was lost.
    cut = truncated(after, Position(11, 1), {}, 4)
    assert cut is not None
    assert cut.deleting == (10, 11, 20)
    assert illegality(after, cut) == ""
    last = emptied(after)
    assert last is not None
    assert {20, 21, 12, 13} <= {*last.deleting}


def test_a_swap_stops_at_what_another_compaction_has_changed() -> None:
    other = compacted(LOG, [rewritten(0, 30)])
    assert other is not None
    assert compacted(other, [rewritten(0, 20), rewritten(1, 21)]) is None
    other = compacted(LOG, [rewritten(1, 31)])
    assert other is not None
    after = compacted(other, [rewritten(0, 20), rewritten(1, 21)])
    assert after is not None
    assert after.storages == [20, 31, 12, 13]
    assert compacted(replace(LOG, is_deleting=True), [rewritten(0, 20)]) is None
    front = truncated(LOG, Position(11, 0), {}, 4)
    assert front is not None
    after = compacted(front, [rewritten(0, 20), rewritten(1, 21)])
    assert after is not None
    assert after.storages == [21, 12, 13]


def test_an_illegal_compaction_is_reported() -> None:
    after = compacted(LOG, [rewritten(0, 20)])
    assert after is not None
    assert "has to be deleted" in illegality(LOG, replace(after, deleting=()))
    raw = replace(LOG, compaction="")
    assert "not allowed" in illegality(raw, replace(after, compaction=""))


def test_a_segment_with_a_compacted_extent_is_written_again() -> None:
    extents = tuple(Extent(seq, 100 + seq, 0, 9, 10, 90) for seq in range(600))
    long = replace(LOG, extents=extents, next_seq=600)
    before = stored("orders", long)
    assert len(before.manifest.segments) == 1
    change = Rewritten(extents[3], 900, 1, 9)
    after = compacted(before.manifest, [change])
    assert after is not None
    layout = stored("orders", after)
    assert layout.dropped == [before.manifest.segments[0].name]
    [(name, (content, _))] = layout.new.items()
    head = parse_manifest("orders", layout.head)
    assert joined(head, {name: parse_segment(name, content)}).extents[3].stored == 900
    head_only = compacted(before.manifest, [Rewritten(extents[599], 901, 1, 9)])
    assert head_only is not None
    assert stored("orders", head_only).dropped == []
    assert isinstance(layout.manifest.segments[0], Segment)


# -- roll-up ---------------------------------------------------------------------------------------------------------


def sized(*sizes: int) -> list[Extent]:
    return [Extent(seq, 100 + seq, 0, 9, 10, size) for seq, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "left_out", "expected"),
    [
        ((), (), []),
        ((5,), (), []),
        ((5, 5), (), [[0, 1]]),
        ((50, 50), (), [[0, 1]]),  # exactly the size
        ((100, 5, 100, 5, 100), (), []),  # none has a small neighbour
        ((5, 5, 100, 5, 5), (), [[0, 1], [3, 4]]),
        ((40, 40, 40, 40, 40, 40, 30), (), [[0, 1, 2], [3, 4, 5]]),  # the last one has no neighbour left
        ((90, 5, 5, 3, 2), (), [[0, 1, 2]]),  # 3 is more than what follows it
        ((60, 5, 5, 5), (), [[1, 2, 3]]),  # it would be copied to save little
        ((5, 5, 5), (101,), []),
        ((5, 5, 5, 5), (101,), [[2, 3]]),
        ((0, 0, 0), (), [[0, 1, 2]]),  # leaders that wrote nothing
        ((70, 0, 0), (), [[1, 2]]),
    ],
)
def test_which_ledgers_are_merged(sizes: tuple[int, ...], left_out: tuple[int, ...], expected: list[list[int]]) -> None:
    runs = merged_runs(sized(*sizes), 100, left_out)
    assert [[extent.seq for extent in run] for run in runs] == expected


def test_a_roll_up_repeated_after_each_ledger_copies_each_byte_few_times() -> None:
    rng = random.Random(1)
    extents: list[Extent] = []
    copied = total = 0
    for seq in range(700):
        size = rng.randrange(20)
        total += size
        extents.append(Extent(seq, seq, 0, 9, 10, size))
        for run in merged_runs(extents, 1000, ()):
            copied += sum(extent.bytes or 0 for extent in run)
            seqs = {extent.seq for extent in run}
            extents = [replace(one, stored=10_000 + seq) if one.seq in seqs else one for one in extents]
    assert copied < 8 * total  # 2 ** 7 mean ledgers are one large one
    assert len({extent.storage for extent in extents}) < 2 * total / 1000 + 10


def test_a_new_ledger_replaces_no_more_ledgers_than_the_record_can_note() -> None:
    runs = merged_runs(sized(*[0] * (MERGE_MAX + 3)), 100, ())
    assert [len(run) for run in runs] == [MERGE_MAX, 3]


def test_the_live_part_of_a_shared_ledger_counts() -> None:
    extents = [replace(extent, stored=900) for extent in sized(60, 60)] + sized(*[0] * 2, 60, 5)[2:]
    assert small_ledgers(extents, 100) == [[extents[2]], [extents[3]]]
    assert small_ledgers(extents[1:], 100) == [[extents[1]], [extents[2]], [extents[3]]]
    assert [len(run) for run in merged_runs(extents[1:], 100, ())] == [2]


def shared(*seqs: int, ledger_id: int = 40) -> list[Rewritten]:
    """Extents one after the other in a ledger, of which the swap is to tell when the first ones were created."""
    rows = [LOG.extents[seq] for seq in seqs]
    shifts = [sum(one.rows or 0 for one in rows[:index]) for index in range(len(rows))]
    return [
        Rewritten(one, ledger_id, one.kept, one.bytes, shift, 700 + one.seq)
        for one, shift in zip(rows, shifts, strict=True)
    ]


def test_a_swap_lists_a_ledger_that_extents_share() -> None:
    for log in (LOG, replace(LOG, compaction="", record_format="raw")):
        after = compacted(log, shared(0, 1, 2))
        assert after is not None
        assert illegality(log, after) == ""
        assert (after.ledger_ids, after.storages) == ([10, 11, 12, 13], [40, 40, 40, 13])
        assert (after.deleting, after.is_rolled_up) == ((10, 11, 12), True)
        assert after.extents[1] == replace(log.extents[1], stored=40, shift=10, created_ms=701)
        assert parse_manifest("orders", pack_manifest(after)) == after
        assert b'"format":4' in pack_manifest(after)
        assert compacted(after, shared(0, 1, 2)) is None
        # The ledger is deleted with the last extent that is in it.
        cut = truncated(after, Position(11, 1), {}, 4)
        assert cut is not None
        assert cut.deleting == (10, 11, 12)
        assert illegality(after, cut) == ""
        whole = emptied(after)
        assert whole is not None
        assert whole.deleting.count(40) == 1


def test_a_compaction_and_a_roll_up_of_extents_that_share_a_ledger() -> None:
    after = compacted(LOG, shared(0, 1, 2))
    assert after is not None
    change = Rewritten(after.extents[1], 50, 2, 20, None, 999)
    parted = compacted(after, [change])
    assert parted is not None
    assert illegality(after, parted) == ""
    assert (parted.storages, parted.deleting) == ([40, 50, 40, 13], (10, 11, 12))
    assert parted.extents[1] == replace(LOG.extents[1], stored=50, kept=2, bytes=20, created_ms=701)
    again = compacted(parted, [Rewritten(one, 60, one.kept, one.bytes, 0, 999) for one in parted.extents[:3]])
    assert again is not None
    assert illegality(parted, again) == ""
    assert (again.storages, again.deleting) == ([60, 60, 60, 13], (10, 11, 12, 40, 50))
    assert [extent.created_ms for extent in again.extents] == [700, 701, 702, None]


def test_an_illegal_roll_up_is_reported() -> None:
    after = compacted(LOG, shared(0, 1))
    assert after is not None
    assert "not allowed" in illegality(LOG, replace(after, is_rolled_up=False))
    fewer = replace(after, extents=(replace(after.extents[0], kept=3), *after.extents[1:]))
    assert "not allowed" in illegality(LOG, fewer)
    assert "has to be deleted" in illegality(LOG, replace(after, deleting=(10,)))


def test_a_commit_has_its_own_time() -> None:
    log = replace(LOG, extents=(replace(LOG.extents[0], committed_ms=5), *LOG.extents[1:]))
    changes = [Rewritten(log.extents[0], 40, None, 90, 0, 700), Rewritten(log.extents[1], 40, None, 50, 10, 701)]
    after = compacted(log, changes)
    assert after is not None
    assert [extent.created_ms for extent in after.extents] == [None, 701, None, None]
