"""What a log's list becomes in another cluster."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bookies.errors import LogExists, LogFenced, TransactionRefused
from bookies.model import BookieId, DigestType, LedgerMetadata, LedgerState
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.cursors import Cursor
from bookies.protocol.log.log_model import (
    LEFT_OUT,
    Extent,
    LedgerEnd,
    Segment,
    Written,
    check_held,
    emptied,
    pack_manifest,
    parse_manifest,
    truncated,
)
from bookies.protocol.log.log_times import Point
from bookies.protocol.log.migration import (
    SWAP_MAX,
    as_planned,
    at_once,
    brought_back,
    check_may_follow,
    check_moved,
    copied,
    cursors_brought_back,
    end_of,
    held,
    is_mirror,
    log_origin,
    mirrored,
    missing_in,
    origin_of,
    switched_over,
    times_brought_back,
    unnamed,
    unread,
)
from bookies.protocol.log.transaction import Committed, Fate, Origin, Swap, Transaction, decide, fate, labels_of

SOURCE = Manifest(
    "tok",
    1,
    3,
    2,
    2,
    DigestType.CRC32C,
    epoch=4,
    next_seq=9,
    rows_truncated=70,
    extents=(Extent(6, 60, 5, 9, 5, 100), Extent(7, 61, 0, 3, 4, 40), Extent(8, 62)),
)
ORIGIN = log_origin("old", "orders", SOURCE)


def follow(source: Manifest, found: Manifest | None, ids: dict[int, int], *, is_cut_over: bool = False) -> Manifest:
    made = copied(source, found, ids, ORIGIN, "new", "file:/new" if is_cut_over else None)
    assert made is not None
    return made


def test_a_copy_follows_and_is_held() -> None:
    first = follow(SOURCE, None, {61: 161})
    assert first.extents == ()  # 60 has not been copied, so nothing behind it can be read
    second = follow(SOURCE, first, {60: 160, 61: 161, 62: 162})
    assert second.ledger_ids == [160, 161]  # 62 is open
    assert (second.token, second.rows_truncated, second.next_seq) == ("new", 70, 8)
    with pytest.raises(LogFenced, match="being migrated"):
        check_held(second)
    assert copied(SOURCE, second, {60: 160, 61: 161}, ORIGIN, "x", None) is None
    shorter = replace(SOURCE, extents=SOURCE.extents[1:], rows_truncated=75)
    third = follow(shorter, second, {61: 161})
    assert (third.ledger_ids, third.deleting, third.rows_truncated) == ([161], (160,), 75)
    assert parse_manifest("orders", pack_manifest(third)) == third


CLOSED = replace(SOURCE, extents=(*SOURCE.extents[:2], Extent(8, 62, 0, 1, 2, 7)))
ALL = {60: 160, 61: 161, 62: 162}


def test_what_is_listed_stays_until_the_source_truncates_it() -> None:
    """Whatever a later run could not read: its copy there may be the only good one."""
    whole = follow(CLOSED, None, ALL)
    for ids in ({}, {61: 161, 62: 162}, {60: 160, 62: 162}, {60: 160, 61: 161}):
        assert copied(CLOSED, whole, at_once(CLOSED, whole, ids), ORIGIN, "x", None) is None
    opened = replace(CLOSED, extents=(*CLOSED.extents[:2], Extent(8, 62)))
    assert copied(opened, whole, {}, ORIGIN, "x", None) is None
    cut = replace(CLOSED, extents=(replace(CLOSED.extents[1], first=2), CLOSED.extents[2]), rows_truncated=77)
    shorter = follow(cut, whole, {})
    assert (shorter.ledger_ids, shorter.extents[0].first, shorter.deleting) == ([161, 162], 2, (160,))
    compacted = replace(CLOSED, extents=(replace(CLOSED.extents[0], stored=80, kept=2), *CLOSED.extents[1:]))
    assert copied(compacted, whole, {}, ORIGIN, "x", None) is None
    emptied_there = follow(replace(CLOSED, extents=(), rows_truncated=81), whole, {})
    assert (emptied_there.extents, emptied_there.deleting, emptied_there.next_seq) == ((), (160, 161, 162), 9)


def test_a_run_with_an_earlier_list_takes_nothing_back() -> None:
    later = follow(replace(CLOSED, extents=CLOSED.extents[1:], rows_truncated=75), None, ALL)
    for older in (
        CLOSED,  # before the truncation
        replace(CLOSED, extents=CLOSED.extents[1:2], rows_truncated=75, next_seq=8),  # before the last ledger
        replace(CLOSED, extents=CLOSED.extents[1:], rows_truncated=75, epoch=3),
    ):
        assert copied(older, later, ALL, ORIGIN, "x", "file:/new") is None
    empty = Extent(5, 59, 1, 0, 0, 0)
    unlisted = replace(CLOSED, extents=(empty, *CLOSED.extents[1:]), rows_truncated=75)
    assert at_once(unlisted, later, {61: 161}) == {61: 161}
    assert copied(unlisted, later, {59: 159, 61: 161}, ORIGIN, "x", None) is None


def test_what_was_rewritten_during_the_first_run_is_listed_as_it_was_copied() -> None:
    none = follow(CLOSED, None, {})
    rewritten = replace(CLOSED.extents[0], first=7, stored=80, kept=2)
    now = replace(CLOSED, extents=(rewritten, *CLOSED.extents[1:]), rows_truncated=72)
    basis = as_planned(now, CLOSED, none, ALL)
    assert basis == replace(now, extents=(replace(CLOSED.extents[0], first=7), *CLOSED.extents[1:]))
    whole = follow(basis, none, ALL)
    assert as_planned(now, CLOSED, whole, ALL) == now
    assert as_planned(now, CLOSED, none, ALL | {80: 180}) == now
    opened = replace(now, extents=(Extent(6, 60, 7),))
    assert as_planned(opened, CLOSED, none, {}) == opened
    assert (unread(now, ALL), unread(SOURCE, {60: 160})) == ([80], [61])


def test_a_cut_over_waits_for_a_run_that_has_read_everything() -> None:
    over = held(CLOSED, "file:/new")
    assert over is not None
    whole = follow(CLOSED, None, ALL)
    assert follow(over, whole, {60: 160, 61: 161}, is_cut_over=True).held
    assert not follow(over, whole, ALL, is_cut_over=True).held


def test_the_target_is_free_only_when_the_source_is_held_and_all_is_there() -> None:
    ids = {60: 60, 61: 61, 62: 62}
    whole = replace(SOURCE, extents=(*SOURCE.extents[:2], Extent(8, 62, 0, 1, 2, 7)))
    assert follow(whole, None, ids, is_cut_over=True).held  # somebody can still append to the source
    over = held(whole, "file:/new")
    assert over is not None
    assert held(over, "file:/new") is None
    with pytest.raises(LogFenced, match="was moved to file:/new"):
        check_held(over)
    assert follow(over, None, {60: 60, 61: 61}, is_cut_over=True).held
    free = follow(over, None, ids, is_cut_over=True)
    assert not free.held
    assert free.next_seq == 9
    later = replace(free, extents=(*free.extents, Extent(9, 99)), next_seq=10)
    assert copied(over, later, ids, ORIGIN, "x", "file:/new") is None  # it goes its own way


def test_a_log_moves_to_one_cluster() -> None:
    over = held(CLOSED, "file:/old")
    assert over is not None
    check_moved(over, "orders", "file:/old")
    with pytest.raises(LogFenced, match=r"it was moved to file:/old\. Only that one may continue it"):
        check_moved(over, "orders", "file:/new")
    assert follow(over, None, ALL, is_cut_over=True).held
    followed = mirrored(CLOSED, None, {60, 61, 62}, None, "older/orders")
    assert followed is not None
    with pytest.raises(LogFenced, match=r"it is a mirror of older/orders\. Only that one"):
        check_moved(followed, "orders", "file:/new")
    copy = follow(followed, None, ALL, is_cut_over=True)
    assert (bool(copy.held), is_mirror(copy)) == (True, False)


def test_a_copy_is_truncated_at_its_source_only() -> None:
    copy = follow(SOURCE, None, {60: 160, 61: 161})
    with pytest.raises(LogFenced, match="truncate it there"):
        truncated(copy, Position(161, 0), {}, 3)
    over = held(SOURCE, "file:/new")
    assert over is not None
    assert truncated(over, Position(61, 1), {}, 3) is not None


def test_a_log_that_is_no_copy_is_left_alone() -> None:
    with pytest.raises(LogExists, match="no copy of it"):
        copied(SOURCE, replace(SOURCE, token="other"), {}, ORIGIN, "x", None)
    deleting = emptied(follow(SOURCE, None, {60: 160}))
    with pytest.raises(LogExists):
        copied(SOURCE, deleting, {}, ORIGIN, "x", None)


def test_a_ledger_is_known_by_its_cluster_and_its_id() -> None:
    assert origin_of("one", 7) == "one/7"
    assert origin_of("two", 7) != origin_of("one", 7)


def test_segments_are_kept_while_what_they_hold_is_the_same() -> None:
    """The target's own: those of the source are records of another store."""
    theirs, ours = Segment("theirs", 6, 6, 1, 5, 5, 100), Segment("ours", 6, 6, 1, 5, 5, 100)
    source = replace(SOURCE, segments=(theirs,))
    first = follow(source, None, {60: 160})
    assert first.segments == ()
    stored = replace(first, segments=(ours,))
    assert follow(source, stored, {60: 160, 61: 161}).segments == (ours,)
    shorter = replace(source, extents=source.extents[1:], rows_truncated=75)
    assert follow(shorter, stored, {61: 161}).segments == (ours,), (
        "what is truncated at the front is left out by a read"
    )
    assert follow(source, stored, {60: 170}).segments == (), "the ledger was copied again"


def test_one_swap_adds_a_limited_number_of_ledgers_and_leaves_no_gap() -> None:
    count = SWAP_MAX + 10
    source = replace(SOURCE, extents=tuple(Extent(number, number, 0, 0, 1, 1) for number in range(count)))
    ids = {number: 10_000 + number for number in range(count)}
    empty = follow(source, None, {})
    part = at_once(source, empty, ids)
    assert part == {number: ids[number] for number in range(SWAP_MAX)}
    listed = follow(source, empty, part)
    assert at_once(source, listed, ids) == ids, "those that are listed need no condition any more"
    del ids[3]
    assert list(at_once(source, empty, ids)) == [0, 1, 2]
    assert at_once(source, listed, ids) == ids, "a listed one stays without a copy, and what follows it is added"


def test_a_compacted_extent_keeps_its_positions_in_the_target() -> None:
    first = follow(SOURCE, None, {60: 160, 61: 161})
    source = replace(SOURCE, extents=(replace(SOURCE.extents[0], stored=80, kept=2), *SOURCE.extents[1:]))
    second = follow(source, first, {80: 180, 61: 161})
    assert (second.ledger_ids, second.storages, second.deleting) == ([160, 161], [180, 161], (160,))
    whole = follow(source, None, {80: 180, 61: 161})
    assert (whole.ledger_ids, whole.storages) == ([180, 161], [180, 161])
    assert at_once(source, first, {80: 180, 61: 161}) == {80: 180, 61: 161}


def test_extents_that_share_a_ledger_keep_their_positions_in_the_target_or_get_some() -> None:
    first = follow(SOURCE, None, {60: 160, 61: 161})
    rolled = tuple(replace(one, stored=80, shift=shift) for one, shift in zip(SOURCE.extents, (0, 10), strict=False))
    source = replace(SOURCE, extents=(*rolled, *SOURCE.extents[2:]), is_rolled_up=True)
    assert unnamed(source, first, {80: 180}) == []
    second = follow(source, first, {80: 180})
    assert (second.ledger_ids, second.storages, second.deleting) == ([160, 161], [180, 180], (160, 161))
    empty = replace(first, extents=())
    assert unnamed(source, empty, {80: 180, 61: 161}) == [60]
    whole = follow(source, None, at_once(source, empty, {80: 180, 60: 190, 61: 161}))
    assert (whole.ledger_ids, whole.storages) == ([190, 161], [180, 180])
    assert [extent.shift for extent in whole.extents] == [0, 10]


# -- mirrors ---------------------------------------------------------------------------------------------------------


def mirror(source: Manifest, target: Manifest | None, *complete: int, growing: int | None = None) -> Manifest:
    list_there = mirrored(source, target, complete, growing, "old/orders")
    assert list_there is not None
    assert mirrored(source, list_there, complete, growing, "old/orders") is None
    return list_there


def test_a_mirror_lists_what_it_has_under_the_same_ids() -> None:
    none = mirror(SOURCE, None)
    assert (none.extents, none.token, none.next_seq) == ((), "tok", 9)
    growing = mirror(SOURCE, none, growing=60)
    assert growing.extents == (Extent(6, 60, 5),)  # closed in the source, and not yet here
    assert mirrored(SOURCE, growing, [], None, "old/orders") is None  # it stays while others are copied
    whole = mirror(SOURCE, growing, 60, 61, growing=62)
    assert whole.extents == SOURCE.extents
    ended = replace(SOURCE, extents=SOURCE.extents[:2])
    assert mirror(ended, growing, 60, 61).extents == ended.extents
    assert is_mirror(whole)
    assert not is_mirror(SOURCE)
    with pytest.raises(LogFenced, match="it is a mirror of old/orders"):
        check_held(whole)
    with pytest.raises(LogFenced, match="truncate it there"):
        truncated(whole, Position(61, 0), {}, 3)
    assert parse_manifest("orders", pack_manifest(whole)) == whole


def test_ledgers_that_left_the_source_are_deleted_in_the_mirror() -> None:
    whole = mirror(SOURCE, None, 60, 61)
    shorter = mirror(replace(SOURCE, extents=SOURCE.extents[1:], rows_truncated=75), whole, 61)
    assert (shorter.ledger_ids, shorter.deleting, shorter.rows_truncated) == ([61], (60,), 75)
    compacted = replace(SOURCE, extents=(replace(SOURCE.extents[0], stored=80, kept=2), *SOURCE.extents[1:]))
    waiting = replace(whole, epoch=5)
    assert mirrored(compacted, waiting, [61], None, "old/orders") is None  # until the result is copied
    after = mirror(compacted, waiting, 80, 61)
    assert (after.ledger_ids, after.storages, after.deleting, after.epoch) == ([60, 61], [80, 61], (60,), 5)


def test_a_ledger_of_which_a_part_is_copied_stays_until_the_one_that_replaces_it_is() -> None:
    """A mirror that begins again does not have the new ledger yet."""
    growing = mirror(SOURCE, None, growing=60)
    shared = [replace(extent, stored=80, shift=place, created_ms=9) for place, extent in enumerate(SOURCE.extents[:2])]
    rolled_up = replace(SOURCE, extents=(*shared, SOURCE.extents[2]), is_rolled_up=True)
    for begun in (None, 80):
        kept = mirrored(rolled_up, growing, [], begun, "old/orders")
        assert kept is not None
        assert (kept.extents, kept.deleting) == (growing.extents, ())
    after = mirror(rolled_up, kept, 80)
    assert (after.extents, after.deleting) == (tuple(shared), (60,))


def test_a_former_source_loses_what_the_log_does_not_have() -> None:
    former = replace(SOURCE, extents=(*SOURCE.extents[:2], Extent(8, 62, 0, 9, 10, 50), Extent(9, 63, 0, 0, 1, 1)))
    log = replace(SOURCE, extents=(*SOURCE.extents[:2], Extent(8, 62, 0, 3, 4, 20), Extent(9, 1_000_063)), epoch=6)
    assert missing_in(former, log) == [(62, 4, 9), (63, 0, 0)]
    assert str(missing_in(former, log)[0]) == "62:4 to 62:9"
    copy = mirror(log, former, 60, 61, 62)
    assert (copy.extents, copy.deleting) == (log.extents[:3], ())  # 63 stays readable
    assert missing_in(log, former) == []  # its last ledger has no end
    truncated_there = replace(log, extents=log.extents[1:])
    assert missing_in(former, truncated_there) == [(62, 4, 9), (63, 0, 0)]
    assert missing_in(former, replace(log, extents=())) == [(60, 5, 9), (61, 0, 3), (62, 0, 9), (63, 0, 0)]
    opened = replace(log, extents=(*log.extents[:2], Extent(8, 62)))
    assert missing_in(former, opened) == [(62, 0, 9), (63, 0, 0)]


def test_entries_that_a_released_mirror_never_had_are_not_taken_for_truncated() -> None:
    free = switched_over(mirror(SOURCE, None, 60, 61, growing=62), {62: LedgerEnd(3, 9)})
    assert free is not None
    former = replace(SOURCE, extents=(*SOURCE.extents[:2], Extent(8, 62, 0, 9, 10, 50), Extent(9, 63, 0, 0, 1, 1)))
    log = replace(free, extents=(Extent(10, 1_000_064),), next_seq=11)  # truncated since
    assert missing_in(former, log) == [(62, 4, 9), (63, 0, 0)]
    copy = mirror(log, former)
    assert copy.deleting == (60, 61)  # The others are the only copy.
    later = replace(log, extents=(Extent(11, 1_000_065),))
    assert mirror(later, replace(copy, extents=former.extents)).deleting == (60, 61)
    other = replace(copy, extents=former.extents, extra=mirror(later, None).extra)
    assert mirror(later, other).deleting == (60, 61, 62, 63), "a mirror that was no source has only copies"
    nothing = switched_over(mirror(SOURCE, None), {})
    assert nothing is not None
    assert missing_in(former, replace(log, extra=nothing.extra))[0] == (60, 5, 9)


def test_a_mirror_is_released_once_and_with_all_ends() -> None:
    whole = mirror(SOURCE, None, 60, 61, growing=62)
    free = switched_over(whole, {62: LedgerEnd(4, 9)})
    assert free is not None
    assert (free.held, is_mirror(free), free.epoch) == ("", False, 5)
    assert free.extents[-1] == Extent(8, 62, 0, 4, 5, 9)
    assert switched_over(free, {}) is None


def test_a_log_follows_only_its_own_source() -> None:
    whole = mirror(SOURCE, None)
    check_may_follow(SOURCE, None, "old/orders")
    check_may_follow(SOURCE, whole, "old/orders")
    check_may_follow(SOURCE, replace(SOURCE, epoch=7), "old/orders")  # a former source
    with pytest.raises(LogExists, match="it is a mirror of old/orders: mirror that one"):
        check_may_follow(whole, None, "new/orders")
    for target in (replace(SOURCE, token="other"), replace(whole, is_deleting=True)):
        with pytest.raises(LogExists, match="another log of this name"):
            check_may_follow(SOURCE, target, "old/orders")
    with pytest.raises(LogExists, match="a mirror of old/orders, which is another cluster"):
        check_may_follow(SOURCE, whole, "older/orders")


def test_ledgers_that_a_former_source_has_left_out_are_never_garbage() -> None:
    """Not even after it has become the source again. Its mirror has none of them."""
    former = committed(NIGHTLY, written("nightly", 8, 13), written("nightly", 9, 14))
    log = committed(released(mirror(NIGHTLY, None, 9, 8, 10, 11, 12)), written("nightly", 9, 1_000_014))
    copy = mirror(log, former, 9, 8, 10, 11, 12, 1_000_014)
    assert copy.ledger_ids == [9, 8, 10, 11, 12, 1_000_014]
    again = released(mirror(replace(log, epoch=9), copy, 9, 8, 10, 11, 12, 1_000_014))
    for one in (parse_manifest("orders", pack_manifest(copy)), again):
        for ledger_id in (13, 14):
            assert fate(one, transactional(ledger_id, 8), 10**15) is Fate.LEFT_OUT
        assert fate(one, transactional(15, 9), 10**15) is Fate.GARBAGE
    assert LEFT_OUT not in mirror(again, None).extra
    assert LEFT_OUT not in follow(again, None, {}).extra


def test_a_ledger_of_which_the_log_has_a_part_stays_when_it_leaves_the_log() -> None:
    former = replace(SOURCE, extents=(*SOURCE.extents[:2], Extent(8, 62, 0, 9, 10, 50)))
    log = replace(SOURCE, extents=(*SOURCE.extents[:2], Extent(8, 62, 0, 3, 4, 20)), epoch=6)
    copy = mirror(log, former, 60, 61, 62)
    assert copy.storages == [60, 61, 62]
    assert mirror(replace(log, extents=(), rows_truncated=83), copy).deleting == (60, 61)


# -- transactions ----------------------------------------------------------------------------------------------------


def written(app: str, version: int, *ledger_ids: int) -> Transaction:
    ends = tuple(Written(ledger_id, 9, 90) for ledger_id in ledger_ids)
    return Transaction(app, version, "", {"orders": ends}, {"orders": "tok"})


def committed(log: Manifest, *transactions: Transaction) -> Manifest:
    for transaction in transactions:
        step = decide({"orders": log}, transaction, {}, 1_800_000_000_000)
        assert isinstance(step, Swap)
        log = step.manifests["orders"]
    return log


EMPTY = replace(SOURCE, extents=(), next_seq=0)
NIGHTLY = committed(EMPTY, written("nightly", 6, 9), written("hourly", 1, 8), written("nightly", 7, 10, 11, 12))


def transactional(ledger_id: int, version: int) -> LedgerMetadata:
    labels = labels_of(Origin("nightly", version, "", 0, "a"), "orders", "tok", 1)
    return LedgerMetadata(
        *(ledger_id, 1, 1, 1, ((0, (BookieId("b"),)),), LedgerState.CLOSED, 9, 90),
        custom_metadata={name: value.encode() for name, value in labels.items()},
    )


def is_known(log: Manifest, *transactions: Transaction) -> list[bool]:
    return [isinstance(decide({"orders": log}, one, {}, 1_800_000_000_001), Committed) for one in transactions]


def released(log: Manifest) -> Manifest:
    free = switched_over(log, {})
    assert free is not None
    return free


@pytest.mark.parametrize("complete", [(9, 8), (9, 8, 10), (9, 8, 10, 11), (9, 8, 10, 12)])
def test_a_released_mirror_takes_the_repetition_of_a_transaction_whose_rows_it_lacks(complete: tuple[int, ...]) -> None:
    """And it has none of them, because a part of a transaction was never committed."""
    repeated = [written("nightly", 7, 900, 901), written("nightly", 6, 902), written("hourly", 1, 903)]
    for growing in (None, 10, 11, 12):
        list_there = mirror(NIGHTLY, None, *complete, growing=growing)
        assert list_there.ledger_ids == [9, 8]
        assert is_known(released(list_there), *repeated) == [False, True, True]
    copy = follow(NIGHTLY, None, {one: one for one in complete})
    assert copy.txns["nightly"]["version"] == 6
    restored = brought_back(NIGHTLY, {one: LedgerEnd(9, 90) for one in complete}, ORIGIN)
    assert restored.ledger_ids == [9, 8]
    assert is_known(restored, *repeated) == [False, True, True]


def test_a_transaction_is_remembered_once_all_of_it_is_there_and_while_it_is_truncated() -> None:
    again = written("nightly", 7, 900)
    whole = mirror(NIGHTLY, mirror(NIGHTLY, None, 9, 8), 9, 8, 10, 11, 12)
    assert (whole.extents, whole.txns) == (NIGHTLY.extents, NIGHTLY.txns)
    assert is_known(released(whole), again) == [True]
    cut = truncated(NIGHTLY, Position(12, 5), {}, 9)
    assert cut is not None
    assert is_known(released(mirror(cut, whole, 12)), again) == [True]
    assert is_known(brought_back(NIGHTLY, {12: LedgerEnd(9, 90)}, ORIGIN), again) == [True]
    assert is_known(brought_back(NIGHTLY, {}, ORIGIN), again, written("hourly", 1, 901)) == [False, False]


def test_an_application_is_set_back_to_what_the_list_remembered_also_if_those_rows_are_truncated() -> None:
    before = replace(mirror(NIGHTLY, None, 9, 8, 10, 11, 12), extents=())
    truncated_since = replace(
        committed(NIGHTLY, written("nightly", 9, 13)), extents=(Extent(5, 13, 0, 9, 10, 90, "nightly:9"),)
    )
    assert mirror(truncated_since, before).txns["nightly"]["version"] == 7
    other = replace(truncated_since, txns={"nightly": {"query": "q", "version": 9, "at": 1}, "hourly": "?"})
    assert mirror(other, before).txns == {"hourly": "?"}
    unreadable = replace(other, txns={"nightly": "?"})
    assert mirror(unreadable, before).txns == {}
    ahead = replace(before, txns={"nightly": {"query": "", "version": 9, "at": 1}})
    assert [*mirror(truncated_since, ahead).txns] == ["hourly"]


def test_a_batch_that_only_some_of_its_logs_have_is_not_taken_for_committed() -> None:
    part = released(mirror(NIGHTLY, None, 9, 8))
    both = replace(
        written("nightly", 7, 900),
        ledgers={"orders": (Written(900, 9, 90),), "returns": (Written(901, 9, 90),)},
        tokens={"orders": "tok", "returns": "tok"},
    )
    for log in (part, brought_back(NIGHTLY, {9: LedgerEnd(9, 90)}, ORIGIN)):
        with pytest.raises(TransactionRefused, match=r"log orders has version 7 .* and log returns lost it"):
            decide({"orders": NIGHTLY, "returns": log}, both, {}, 1_800_000_000_001)
    only = replace(both, ledgers={"orders": (Written(900, 9, 90),), "returns": ()})
    assert decide({"orders": NIGHTLY, "returns": part}, only, {}, 1) == Committed({"orders": [900], "returns": []})
    forgotten = replace(NIGHTLY, txns={})
    assert isinstance(decide({"orders": NIGHTLY, "returns": forgotten}, both, {}, 1), Committed)


def test_what_a_batch_replaces_stays_until_the_batch_is_there() -> None:
    new = committed(NIGHTLY, replace(written("nightly", 8, 13, 14), is_replacing=True))
    before = mirror(NIGHTLY, None, 9, 8, 10, 11, 12)
    for complete, growing in (((), None), ((13,), 14), ((13,), 13)):
        assert mirrored(new, before, complete, growing, "old/orders") is None
    after = mirror(new, before, 13, 14)
    assert (after.ledger_ids, after.deleting) == ([13, 14], (9, 8, 10, 11, 12))
    copy = follow(NIGHTLY, None, {one: one for one in (9, 8, 10, 11, 12)})
    assert copied(new, copy, {}, ORIGIN, "x", None) is None
    assert follow(new, copy, {13: 13, 14: 14}).deleting == (9, 8, 10, 11, 12)


def test_a_part_of_a_transaction_that_is_listed_stays() -> None:
    """An earlier version listed a transaction's ledgers one by one."""
    former = replace(mirror(NIGHTLY, None, 9, 8), extents=NIGHTLY.extents[:3])
    assert mirrored(NIGHTLY, former, (9, 8, 10, 11), None, "old/orders") is None
    assert mirror(NIGHTLY, former, 9, 8, 10, 11, 12).extents == NIGHTLY.extents


# -- from a backup ---------------------------------------------------------------------------------------------------


WHOLE = replace(
    SOURCE,
    segments=(Segment("theirs", 6, 6, 1, 5, 5, 100),),
    deleting=(50, 51),
    extents=(*SOURCE.extents[:2], Extent(8, 62), Extent(9, 63)),
    next_seq=10,
)
ENDS = {60: LedgerEnd(9, 100), 61: LedgerEnd(3, 40), 51: LedgerEnd(0, 1)}


def back(*ledger_ids: int) -> Manifest:
    return brought_back(WHOLE, {ledger_id: ENDS[ledger_id] for ledger_id in ledger_ids}, ORIGIN)


def test_a_log_of_a_backup_ends_before_the_first_missing_ledger() -> None:
    log = back(60, 61, 51)
    assert (log.ledger_ids, log.next_seq, log.epoch, log.token) == ([60, 61], 10, 5, "tok")
    assert (log.rows_truncated, log.deleting, log.segments) == (70, (51,), ())
    assert end_of(log) == Position(61, 4)
    assert not log.held
    assert copied(WHOLE, log, {}, ORIGIN, "x", None) is None  # no migration changes it
    assert parse_manifest("orders", pack_manifest(log)) == log
    with_open = brought_back(WHOLE, ENDS | {62: LedgerEnd(1, 7)}, ORIGIN)
    assert with_open.extents[-1] == Extent(8, 62, 0, 1, 2, 7)


def test_missing_ledgers_at_the_beginning_count_as_truncated() -> None:
    log = back(61)
    assert (log.ledger_ids, log.rows_truncated) == ([61], 75)
    assert log.row_of(7) == WHOLE.row_of(7)
    none = back()
    assert (none.extents, none.rows_truncated, end_of(none)) == ((), 79, None)


def test_what_follows_a_log_moves_to_its_end() -> None:
    log = back(60, 61)
    places = {
        "old": Position(50, 3),
        "inside": Position(60, 7),
        "end": Position(61, 4),
        "late": Position(61, 5),
        "lost": Position(62, 7),
    }
    cursors = {name: Cursor(name, at, 100, 3, 2) for name, at in places.items()} | {
        "not": Cursor("not", Position(60, 5), 1)
    }
    kept = cursors_brought_back(cursors, WHOLE, log, without="not")
    at = {name: cursor.position for name, cursor in kept.items()}
    assert at == places | {"late": Position(61, 4), "lost": Position(61, 4)}
    assert (kept["inside"], kept["lost"].slot, kept["lost"].token) == (cursors["inside"], 0, 3)
    assert set(cursors_brought_back(cursors, WHOLE, back(), without="not")) == {"old"}
    points = [Point(position, 5) for position in places.values()]
    assert times_brought_back(points, WHOLE, log) == points[:3]
