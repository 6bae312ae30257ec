"""Which ledgers of a log may go, and why; what is refused; the records of the policy and of the history."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bookies.errors import InvalidArgument, MetadataCorrupt, NotSupported
from bookies.model import DigestType
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.cursors import Cursor
from bookies.protocol.log.log_model import HELD, Extent, truncated
from bookies.protocol.log.retention import (
    LEDGERS_MAX,
    REMOVALS_MAX,
    LogRemoval,
    Retention,
    RetentionDecision,
    decide,
    pack_history,
    parse_history,
    retention_fields,
    retention_of,
)
from bookies.protocol.log.sequences import CURSOR

EXTENTS = (*(Extent(seq, 10 + seq, 0, 9, 10, 100) for seq in range(5)), Extent(5, 15, 0, 9, 10, 100), Extent(6, 16))
LIST = Manifest("t", 1, 3, 3, 2, DigestType.CRC32C, extents=EXTENTS, next_seq=7)
ENDS = {seq: 1000 * (seq + 1) for seq in range(6)}  # the third extent, number 2, ended at 3,000
NOW = 10_000


def decision(policy: Retention, *cursors: Cursor, manifest: Manifest = LIST, now_ms: int = NOW) -> RetentionDecision:
    return decide(manifest, policy, ENDS, {cursor.name: cursor for cursor in cursors}, now_ms)


def gone(policy: Retention, *cursors: Cursor) -> list[int]:
    removal = decision(policy, *cursors).removal
    return [] if removal is None else list(removal.ledgers)


def cursor(ledger_id: int, entry_id: int, moved_ms: int = 0) -> Cursor:
    return Cursor("billing", Position(ledger_id, entry_id), moved_ms)


@pytest.mark.parametrize(
    ("policy", "ledgers"),
    [
        (Retention(), []),
        (Retention(age_ms=6_999), [10, 11, 12]),
        (Retention(age_ms=7_000), [10, 11]),  # exactly as old as the limit: it stays
        (Retention(age_ms=1), [10, 11, 12, 13, 14]),  # never the last two
        (Retention(size=600), []),
        (Retention(size=599), []),
        (Retention(size=500), [10]),
        (Retention(size=301), [10, 11]),
        (Retention(rows=1), [10, 11, 12, 13, 14]),
        (Retention(rows=40), [10, 11]),
        (Retention(age_ms=6_999, rows=40), [10, 11, 12]),
    ],
)
def test_limits(policy: Retention, ledgers: list[int]) -> None:
    assert gone(policy) == ledgers


def test_a_removal_says_what_and_why() -> None:
    policy = Retention(age_ms=6_999, size=500)
    assert decision(policy).removal == LogRemoval(NOW, Position(13, 0), ("age", "size"), (10, 11, 12), 30, 300)


def test_a_ledger_that_entries_behind_share_is_not_named() -> None:
    shared = [replace(extent, stored=80 + index // 4, shift=0) for index, extent in enumerate(LIST.extents[:5])]
    rolled_up = replace(LIST, extents=(*shared, *LIST.extents[5:]), is_rolled_up=True)
    for rows, ledgers in ((40, ()), (1, (80, 81))):
        removal = decision(Retention(rows=rows), manifest=rolled_up).removal
        assert removal is not None
        assert removal.ledgers == ledgers
        after = truncated(rolled_up, removal.before, {}, removal.before.entry_id - 1)
        assert after is not None
        assert after.deleting == ledgers


def test_extents_of_an_unknown_age_stay() -> None:
    assert decide(LIST, Retention(age_ms=1), {1: 5}, {}, NOW) == RetentionDecision(None)
    assert decision(Retention(age_ms=1), now_ms=500).removal is None  # the clock stepped back


@pytest.mark.parametrize(
    ("at", "ledgers"),
    [
        (cursor(10, 0), []),
        (cursor(12, 3), [10, 11]),
        (cursor(12, 10), [10, 11, 12]),  # it has read all of the ledger
        (cursor(16, 4), [10, 11, 12, 13, 14]),
        (cursor(99, 0), [10, 11, 12, 13, 14]),  # lost: it holds nothing
    ],
)
def test_no_ledger_goes_that_a_cursor_needs(at: Cursor, ledgers: list[int]) -> None:
    assert gone(Retention(rows=1), at) == ledgers
    assert decision(Retention(rows=1), at).held_by == (("billing",) if len(ledgers) < 5 else ())


def test_a_cursor_is_passed_when_neither_it_nor_its_entries_are_young() -> None:
    policy = Retention(rows=1, cursor_age_ms=5_000)
    stale = cursor(11, 3, moved_ms=2_500)
    assert decision(policy, stale) == RetentionDecision(
        LogRemoval(NOW, Position(15, 0), ("rows",), (10, 11, 12, 13, 14), 50, 500, ("billing",)), (stale,)
    )
    assert gone(policy, cursor(11, 3, moved_ms=6_000)) == [10]
    assert gone(policy, cursor(14, 3, moved_ms=0)) == [
        10,
        11,
        12,
        13,
    ]  # its entries came at 5,000: it may wait for them
    assert gone(policy, cursor(16, 3, moved_ms=0)) == [10, 11, 12, 13, 14]
    closed = replace(LIST, extents=EXTENTS[:6])
    assert decision(policy, cursor(15, 10), manifest=closed).stale == ()


def test_a_cursor_before_an_empty_ledger_waits_for_the_entries_after_it() -> None:
    """A leader that wrote nothing leaves a ledger whose end tells nothing about entries."""
    policy = Retention(rows=1, cursor_age_ms=5_000)
    at_end = cursor(12, 10)  # it has read all of the ledger
    empty = replace(LIST, extents=(*EXTENTS[:3], Extent(3, 13, 0, -1, 0, 0), *EXTENTS[4:]))
    assert decide(empty, policy, ENDS | {3: 4_000, 4: 9_000}, {"billing": at_end}, NOW).stale == ()
    decided = decide(empty, policy, ENDS | {3: 9_000, 4: 4_500}, {"billing": at_end}, NOW)
    assert decided.stale == (at_end,)
    # A ledger that was truncated to its end is as empty.
    shortened = replace(LIST, extents=(*EXTENTS[:3], replace(EXTENTS[3], first=10), *EXTENTS[4:]))
    assert decide(shortened, policy, ENDS | {4: 9_000}, {"billing": at_end}, NOW).stale == ()
    # So is one whose entries a compaction has removed.
    compacted = replace(LIST, extents=(*EXTENTS[:3], replace(EXTENTS[3], stored=90, kept=0), *EXTENTS[4:]))
    assert decide(compacted, policy, ENDS | {4: 9_000}, {"billing": at_end}, NOW).stale == ()
    assert gone(Retention(rows=1), at_end) == [10, 11, 12]
    removal = decide(empty, Retention(rows=1), ENDS, {"billing": at_end}, NOW).removal
    assert removal is not None
    assert removal.before == Position(14, 0)


def test_the_cursor_of_numbered_entries_is_never_passed() -> None:
    policy = Retention(rows=1, cursor_age_ms=5_000)
    own = replace(cursor(11, 3), name=CURSOR)
    decided = decision(policy, own, cursor(11, 3))
    assert [each.name for each in decided.stale] == ["billing"]
    assert decided.held_by == (CURSOR,)
    assert gone(policy, own) == [10]


def test_a_log_that_is_held_or_deleted_keeps_all() -> None:
    for manifest in (replace(LIST, extra={HELD: "it moved"}), replace(LIST, is_deleting=True)):
        assert decision(Retention(rows=1), manifest=manifest) == RetentionDecision(None)


def test_of_a_compacted_extent_the_kept_entries_and_their_ledger_count() -> None:
    extents = (replace(EXTENTS[0], stored=90, kept=1), *EXTENTS[1:])
    removal = decision(Retention(rows=50), manifest=replace(LIST, extents=extents)).removal
    assert removal is not None
    assert (removal.ledgers, removal.rows) == ((90,), 1)


def test_a_removal_has_a_bounded_number_of_ledgers() -> None:
    many = replace(LIST, extents=tuple(Extent(seq, seq, 0, 0, 1, 1) for seq in range(LEDGERS_MAX + 10)))
    removal = decision(Retention(rows=1), manifest=many).removal
    assert removal is not None
    assert removal.before == Position(LEDGERS_MAX, 0)


def test_the_policy_is_a_field_of_the_record() -> None:
    policy = Retention(age_ms=7, rows=3, cursor_age_ms=9)
    assert retention_fields(policy) == {"age_ms": 7, "rows": 3, "cursor_age_ms": 9}
    assert retention_of(replace(LIST, retention={**retention_fields(policy), "later": 1})) == policy
    assert retention_of(LIST) == Retention()
    with pytest.raises(MetadataCorrupt, match="retention of a log cannot be read"):
        retention_of(replace(LIST, retention={"age_ms": "7d"}))


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (Retention(age_ms=0), "age: a retention of 0 keeps nothing"),
        (Retention(size=-5), "size: a retention of -5 keeps nothing"),
        (Retention(cursor_age_ms=5), "cursor_age alone removes nothing"),
    ],
)
def test_wrong_policies(policy: Retention, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        retention_fields(policy)


def test_the_history_comes_back_and_is_bounded() -> None:
    removals = [
        LogRemoval(ms, Position(13, 0), ("age",), (10, 11), 20, 200, ("billing",)) for ms in range(REMOVALS_MAX + 5)
    ]
    data = pack_history("t", removals)
    assert parse_history("orders", "t", data) == removals[5:]
    assert parse_history("orders", "another", data) == []
    for damaged in (b"{", b'{"format":1,"token":"t","removals":[{"at_ms":1}]}', b"[]"):
        with pytest.raises(MetadataCorrupt, match="history of log orders cannot be read"):
            parse_history("orders", "t", damaged)
    with pytest.raises(NotSupported, match="format 2"):
        parse_history("orders", "t", b'{"format":2}')
