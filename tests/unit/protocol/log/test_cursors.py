"""Cursors: what a truncation would pass, and their record."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bookies.errors import CursorMoved, InvalidArgument, LogTruncated, MetadataCorrupt, NotSupported
from bookies.model import DigestType
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.cursors import (
    CURSORS_MAX,
    Cursor,
    carried,
    check_at,
    check_token,
    is_lost,
    moved,
    pack_cursors,
    parse_cursors,
    passed,
)
from bookies.protocol.log.log_model import Extent, LedgerEnd

LOG = replace(
    Manifest("t", 1, 3, 3, 2, DigestType.CRC32C),
    # 5..9 of 10, nothing, 0..9, open
    extents=(Extent(3, 10, 5, 9, 10, 90), Extent(4, 11, 0, -1, 0, 0), Extent(5, 12, 0, 9, 10, 90), Extent(6, 13)),
    next_seq=7,
)


def cursor(ledger_id: int, entry_id: int, name: str = "c") -> Cursor:
    return Cursor(name, Position(ledger_id, entry_id), 7)


@pytest.mark.parametrize(
    ("at", "before", "is_passed"),
    [
        ((10, 5), (10, 5), False),
        ((10, 5), (10, 6), True),
        ((10, 6), (10, 6), False),
        ((10, 10), (11, 0), False),  # read to the end of its ledger
        ((10, 10), (12, 0), False),  # nothing in between
        ((10, 10), (12, 1), True),
        ((10, 9), (12, 0), True),
        ((11, 0), (12, 0), False),
        ((12, 0), (10, 7), False),  # it is further
        ((12, 10), (13, 0), False),
        ((12, 9), (13, 0), True),
        ((13, 2), (13, 2), False),
        ((13, 2), (13, 3), True),
        ((10, 4), (13, 0), False),  # it was passed by force before
        ((9, 4), (13, 0), False),
    ],
)
def test_what_a_truncation_passes(at: tuple[int, int], before: tuple[int, int], is_passed: bool) -> None:
    found = passed({"c": cursor(*at)}, LOG, Position(*before), {})
    assert [each.name for each in found] == (["c"] if is_passed else [])


def test_a_ledger_that_a_compaction_has_emptied_holds_nothing_back() -> None:
    emptied = replace(LOG, extents=(replace(LOG.extents[0], stored=20, kept=0), *LOG.extents[1:]))
    waiting, before = {"c": cursor(10, 5)}, Position(12, 0)
    assert passed(waiting, LOG, before, {})
    assert passed(waiting, emptied, before, {}) == []
    assert carried(waiting, emptied, before) == {"c": cursor(12, 0)}
    assert passed(waiting, emptied, Position(12, 1), {})
    some = replace(LOG, extents=(replace(LOG.extents[0], stored=20, kept=1), *LOG.extents[1:]))
    assert passed(waiting, some, before, {})


def test_a_cursor_before_truncated_entries_is_lost() -> None:
    log = replace(LOG, extents=(*LOG.extents[:2], replace(LOG.extents[2], first=3), LOG.extents[3]))
    for at in ((10, 10), (11, 0)):
        assert is_lost(Position(*at), log)
        assert carried({"c": cursor(*at)}, log, Position(13, 0)) == {"c": cursor(*at)}
        with pytest.raises(LogTruncated):
            moved({}, log, cursor(*at))
    assert not is_lost(Position(12, 10), log)


@pytest.mark.parametrize(
    ("at", "before", "after"),
    [
        ((10, 10), (12, 0), (12, 0)),  # its ledger may be dropped
        ((10, 10), (12, 3), (12, 3)),  # only asked for if the truncation is forced, or after 12:2 was truncated
        ((12, 10), (13, 1), (13, 1)),
        ((12, 4), (12, 7), (12, 4)),
        ((13, 0), (12, 1), (13, 0)),  # further
        ((10, 4), (13, 0), (10, 4)),  # passed by force before
        ((10, 10), (9, 0), (10, 10)),  # no position of this log
    ],
)
def test_a_truncation_carries_cursors_along(
    at: tuple[int, int], before: tuple[int, int], after: tuple[int, int]
) -> None:
    kept = carried({"c": cursor(*at)}, LOG, Position(*before))
    assert kept == {"c": cursor(*after)}


def test_ledgers_whose_end_the_list_does_not_say() -> None:
    log = replace(LOG, extents=(*LOG.extents, Extent(7, 14)), next_seq=8)
    assert passed({"c": cursor(13, 5)}, log, Position(14, 0), {})
    assert passed({"c": cursor(13, 5)}, log, Position(14, 0), {13: LedgerEnd(5, 60)})
    assert not passed({"c": cursor(13, 5)}, log, Position(14, 0), {13: LedgerEnd(4, 50)})


def test_moving() -> None:
    first = moved({}, LOG, cursor(10, 5))
    assert first == {"c": cursor(10, 5)}
    assert moved(first, LOG, replace(cursor(10, 5), moved_ms=9)) is None
    assert moved(first, LOG, cursor(12, 10, "d")) == {"c": cursor(10, 5), "d": cursor(12, 10, "d")}
    assert moved({"c": cursor(12, 3)}, LOG, cursor(10, 7)) == {"c": cursor(10, 7)}
    for gone in ((10, 4), (9, 0)):
        assert is_lost(Position(*gone), LOG)
        with pytest.raises(LogTruncated, match="is not in the log"):
            moved({}, LOG, cursor(*gone))
    with pytest.raises(InvalidArgument, match="no name"):
        moved({}, LOG, cursor(10, 5, "a b"))
    many = {str(number): cursor(12, 0, str(number)) for number in range(CURSORS_MAX)}
    with pytest.raises(InvalidArgument, match="delete some"):
        moved(many, LOG, cursor(12, 1))
    assert moved(many, LOG, cursor(12, 1, "17")) is not None


def test_the_record() -> None:
    cursors = {"b": cursor(10, 5, "b"), "a": cursor(12, 0, "a")}
    data = pack_cursors("t", cursors)
    assert data == (
        b'{"format":1,"token":"t","cursors":{"a":{"ledger":12,"entry":0,"moved_ms":7},'
        b'"b":{"ledger":10,"entry":5,"moved_ms":7}}}'
    )
    assert parse_cursors("orders", "t", data) == cursors
    assert parse_cursors("orders", "another", data) == {}
    with pytest.raises(NotSupported, match="format 2"):
        parse_cursors("orders", "t", data.replace(b":1,", b":2,", 1))
    for damaged in (b"", b"[]", b'{"format":1,"token":"t","cursors":{"a":{}}}', b'{"format":1}'):
        with pytest.raises(MetadataCorrupt, match="cursors of log orders"):
            parse_cursors("orders", "t", damaged)


def test_a_cursor_is_moved_only_from_where_its_consumer_left_it() -> None:
    check_at("a", cursor(10, 5, "a"), Position(10, 5))
    with pytest.raises(CursorMoved, match="cursor a is at 10:5, not at 10:4: another consumer uses it"):
        check_at("a", cursor(10, 5, "a"), Position(10, 4))
    with pytest.raises(CursorMoved, match="cursor a is nowhere: it does not exist, not at 10:4"):
        check_at("a", None, Position(10, 4))


def test_a_later_consumer_excludes_an_earlier_one() -> None:
    present = Cursor("c", Position(12, 3), 7, 5)
    for token in (5, 6):
        check_token("c", present, token, may_create=False)
    with pytest.raises(CursorMoved, match=r"belongs to a later consumer \(token 5; this one has 4\)"):
        check_token("c", present, 4, may_create=True)
    check_token("c", None, 4, may_create=True)
    with pytest.raises(CursorMoved, match="was deleted"):
        check_token("c", None, 4, may_create=False)
    claimed = replace(present, token=6)
    assert moved({"c": present}, LOG, claimed) == {"c": claimed}
    assert moved({"c": claimed}, LOG, claimed) is None


def test_the_record_keeps_tokens_and_reads_rows_without_and_with_unknown_fields() -> None:
    cursors = {"c": Cursor("c", Position(12, 3), 7, 5), "d": Cursor("d", Position(12, 4), 8)}
    data = pack_cursors("t", cursors)
    assert data.count(b"token") == 2  # of the log, and of one consumer
    assert parse_cursors("orders", "t", data) == cursors
    later = data.replace(b'"moved_ms":7', b'"moved_ms":7,"later":{"x":1}')
    assert parse_cursors("orders", "t", later) == cursors
