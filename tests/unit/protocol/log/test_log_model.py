"""The list of a log's ledgers: what may become of it, and its record."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from bookies.errors import InvalidArgument, LogFenced, LogTruncated, MetadataCorrupt, NotSupported
from bookies.model import DigestType
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.log_model import (
    SETS,
    Extent,
    LedgerEnd,
    check_leader,
    check_log_name,
    emptied,
    ended,
    illegality,
    last_position,
    pack_manifest,
    parse_manifest,
    parse_position,
    rolled,
    swept,
    taken_over,
    truncated,
)

NEW = Manifest("t", 1, 3, 3, 2, DigestType.CRC32C)
END = LedgerEnd(9, 90)


def closed(seq: int, ledger_id: int, last: int = 9, first: int = 0) -> Extent:
    return Extent(seq, ledger_id, first, last, last + 1, 90)


def manifest(*extents: Extent, epoch: int = 1, **changes: object) -> Manifest:
    next_seq = extents[-1].seq + 1 if extents else 0
    return replace(NEW, extents=extents, epoch=epoch, next_seq=next_seq, **changes)  # type: ignore[arg-type]


ROLLING = manifest(closed(0, 10), Extent(1, 11), Extent(2, 12))  # 11 is being drained


def legal(before: Manifest, after: Manifest | None) -> Manifest:
    assert after is not None
    assert illegality(before, after) == ""
    return after


def test_the_last_entry() -> None:
    assert last_position(ROLLING, {}) == Position(10, 9)
    assert last_position(ROLLING, {11: LedgerEnd(3, 40)}) == Position(11, 3)
    assert last_position(manifest(closed(0, 10, last=-1), Extent(1, 11)), {}) is None
    assert last_position(NEW, {}) is None


def test_the_rows_of_extents() -> None:
    assert [ROLLING.row_of(seq) for seq in range(4)] == [0, 10, None, None]  # 11 has no end, and there is no 3
    emptied_first = manifest(closed(4, 10, first=10), closed(5, 11, first=3), Extent(6, 12), rows_truncated=113)
    assert [emptied_first.row_of(seq) for seq in (4, 5, 6)] == [100, 110, 120]
    assert manifest(closed(4, 10)).row_of(7) is None


# -- positions and names ---------------------------------------------------------------------------------------------


def test_positions() -> None:
    assert str(Position(17, 1041)) == "17:1041"
    assert parse_position("17:1041") == Position(17, 1041)
    assert Position(17, 1041).next == Position(17, 1042)


@pytest.mark.parametrize("text", ["", "17", "17:", ":1", "a:1", "1:-1", "1:2:3", "\u0661:1"])
def test_what_is_no_position(text: str) -> None:
    with pytest.raises(InvalidArgument, match="LEDGER:ENTRY"):
        parse_position(text)


@pytest.mark.parametrize("name", ["orders", "a", "0", "a.b-c_D", "x" * 200])
def test_names(name: str) -> None:
    assert check_log_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "-a", "_a", "a/b", "a b", "ä", "x" * 201, "a\n"])
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(InvalidArgument, match="no name of a log"):
        check_log_name(name)


def test_where_a_position_is() -> None:
    shared = manifest(closed(0, 10, last=4), closed(1, 11), closed(2, 10, first=5, last=7), Extent(3, 12))
    assert shared.find(Position(10, 4)) == shared.extents[0]
    assert shared.find(Position(10, 5)) == shared.extents[2]
    assert shared.find(Position(10, 99)) == shared.extents[2]  # behind the end of its ledger
    assert shared.find(Position(12, 99)) == shared.extents[3]
    assert shared.find(Position(13, 0)) is None
    assert shared.after(1) == shared.extents[2]
    assert shared.after(3) is None
    assert manifest(closed(4, 10)).after(1) == closed(4, 10)  # what came behind 1 is gone
    assert (NEW.beginning, ROLLING.beginning) == (None, ROLLING.extents[0])
    assert manifest(Extent(0, 10, 5, 4), Extent(1, 11, 3, 2)).beginning == Extent(1, 11, 3, 2)
    assert manifest(Extent(0, 10, 5, 4), Extent(1, 11, 3)).beginning == Extent(1, 11, 3)
    assert ROLLING.open_ledgers == [11, 12]
    assert ROLLING.ledger_ids == [10, 11, 12]


# -- taking over -----------------------------------------------------------------------------------------------------


def test_the_first_leader() -> None:
    after = legal(NEW, taken_over(NEW, NEW, 10, {}))
    assert (after.epoch, after.next_seq, after.extents) == (1, 1, (Extent(0, 10),))


def test_taking_over_notes_the_ends_of_what_was_recovered() -> None:
    after = legal(ROLLING, taken_over(ROLLING, ROLLING, 13, {11: END, 12: LedgerEnd(-1, 0)}))
    assert after.extents == (closed(0, 10), closed(1, 11), Extent(2, 12, 0, -1, 0, 0), Extent(3, 13))
    assert after.epoch == 2


def test_a_swap_whose_reply_was_lost_is_found_in_the_list() -> None:
    after = taken_over(ROLLING, ROLLING, 13, {11: END, 12: END})
    assert after is not None
    assert taken_over(after, ROLLING, 13, {11: END, 12: END}) is None


@pytest.mark.parametrize(
    "found",
    [
        replace(ROLLING, epoch=2),
        manifest(*ROLLING.extents[:1], closed(1, 11), Extent(2, 12), Extent(3, 13)),
        emptied(ROLLING),
    ],
    ids=["taken over", "rolled", "deleted"],
)
def test_a_list_that_goes_on_is_not_built_on(found: Manifest) -> None:
    with pytest.raises(LogFenced, match="changed the end"):
        taken_over(found, ROLLING, 14, {11: END, 12: END})


def test_a_truncation_in_between_does_no_harm() -> None:
    found = truncated(ROLLING, Position(10, 5), {}, 9)
    assert found is not None
    after = legal(found, taken_over(found, ROLLING, 14, {11: END, 12: END}))
    assert after.extents[0].first == 5


def test_a_leader_takes_over_from_itself_only() -> None:
    assert taken_over(ROLLING, ROLLING, 14, {11: END, 12: END}, leader=1) is not None
    with pytest.raises(LogFenced, match="its epoch is 1, this leader's was 0"):
        taken_over(ROLLING, ROLLING, 14, {11: END, 12: END}, leader=0)
    check_leader(ROLLING, 1)
    with pytest.raises(LogFenced, match="being deleted"):
        check_leader(replace(ROLLING, is_deleting=True), 1)


def test_nobody_takes_over_before_every_end_is_decided() -> None:
    with pytest.raises(AssertionError):
        taken_over(ROLLING, ROLLING, 13, {12: END})


# -- rolling ---------------------------------------------------------------------------------------------------------


def test_rolling() -> None:
    one = manifest(Extent(0, 10))
    two = legal(one, rolled(one, 1, 10, 11, {}))
    assert two.extents == (Extent(0, 10), Extent(1, 11))
    three = legal(two, rolled(two, 1, 11, 12, {10: END}))
    assert three.extents == (closed(0, 10), Extent(1, 11), Extent(2, 12))
    assert three.epoch == 1
    assert rolled(three, 1, 11, 12, {10: END}) is None


def test_never_more_than_one_unclosed_predecessor() -> None:
    with pytest.raises(AssertionError):
        rolled(ROLLING, 1, 12, 13, {})


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (replace(manifest(Extent(0, 10)), epoch=2), "took the log over"),
        (manifest(Extent(0, 10), Extent(1, 99)), "ended ledger 10, or appended a ledger after it"),
        (manifest(closed(0, 10)), "ended ledger 10"),
        (manifest(), "ended ledger 10"),
        (replace(manifest(), is_deleting=True), "being deleted"),
    ],
)
def test_who_does_not_lead_does_not_roll(found: Manifest, text: str) -> None:
    with pytest.raises(LogFenced, match=text):
        rolled(found, 1, 10, 11, {})


# -- truncating ------------------------------------------------------------------------------------------------------

LONG = manifest(closed(0, 10), closed(1, 11), closed(2, 12), Extent(3, 13), Extent(4, 14))


def test_ledgers_before_a_position_are_to_be_deleted() -> None:
    after = legal(LONG, truncated(LONG, Position(12, 3), {}, 9))
    assert after.extents == (closed(2, 12, first=3).__class__(2, 12, 3, 9, 10, 90), *LONG.extents[3:])
    assert after.deleting == (10, 11)
    assert truncated(after, Position(12, 3), {}, 9) is None
    assert truncated(after, Position(12, 2), {}, 9) is None
    swept_up = legal(after, swept(after, [10, 11]))
    assert swept_up.deleting == ()
    assert swept(swept_up, [10]) is None


def test_the_last_two_ledgers_stay() -> None:
    after = legal(LONG, truncated(LONG, Position(14, 2), {13: END}, 5))
    assert after.extents == (Extent(3, 13, 10, 9, 10, 90), Extent(4, 14, 2))
    assert after.deleting == (10, 11, 12)
    assert truncated(after, Position(14, 2), {13: END}, 5) is None


def test_a_log_may_become_empty_and_goes_on() -> None:
    after = legal(LONG, truncated(LONG, Position(14, 6), {13: END}, 5))
    assert after.extents[-1].first == 6


def test_nothing_is_truncated_that_is_not_written() -> None:
    with pytest.raises(InvalidArgument, match="14:7 is after 14:5, the last entry known"):
        truncated(LONG, Position(14, 7), {13: END}, 5)
    with pytest.raises(InvalidArgument, match="ledger 13, which is before 14:0, is still being written"):
        truncated(LONG, Position(14, 0), {}, 5)
    with pytest.raises(LogTruncated, match="not in the log"):
        truncated(LONG, Position(9, 0), {}, -1)


def test_a_ledger_is_deleted_when_its_last_range_goes() -> None:
    shared = manifest(closed(0, 10, last=4), closed(1, 11), closed(2, 10, first=5), closed(3, 12), closed(4, 13))
    after = legal(shared, truncated(shared, Position(11, 0), {}, 9))
    assert after.deleting == ()
    after = legal(after, truncated(after, Position(12, 0), {}, 9))
    assert after.deleting == (11, 10)


def test_an_extent_that_is_empty_already_stays_so() -> None:
    short = manifest(Extent(0, 10, 12, 9, 0, 0), Extent(1, 11))
    assert truncated(short, Position(11, 0), {}, -1) is None


# -- the end ---------------------------------------------------------------------------------------------------------


def test_noting_ends() -> None:
    after = legal(ROLLING, ended(ROLLING, {11: END}))
    assert after.open_ledgers == [12]
    assert after.extents[1].end == END
    assert ROLLING.extents[1].end is None
    assert ended(after, {11: END, 99: END}) is None


def test_deleting_a_log() -> None:
    found = replace(ROLLING, deleting=(7, 10))
    after = legal(found, emptied(found))
    assert (after.extents, after.deleting, after.is_deleting) == ((), (7, 10, 11, 12), True)
    assert emptied(after) is None
    assert illegality(after, None) == "deleted before its end"
    assert illegality(replace(after, deleting=()), None) == ""


# -- what nobody may commit ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (None, None, "deleted before"),
        (None, ROLLING, "created with"),
        (ROLLING, None, "deleted before"),
        (ROLLING, replace(ROLLING, token="other"), "another log"),
        (ROLLING, replace(ROLLING, epoch=0), "earlier one"),
        (ROLLING, replace(ROLLING, next_seq=2), "earlier one"),
        (ROLLING, manifest(*ROLLING.extents, Extent(3, 13)), "more than the last two"),
        (ROLLING, manifest(*ROLLING.extents[:1], ROLLING.extents[2], ROLLING.extents[1], epoch=1), "earlier one"),
        (LONG, replace(LONG, extents=(LONG.extents[1], LONG.extents[0], *LONG.extents[2:])), "out of order"),
        (LONG, replace(LONG, extents=(LONG.extents[0], *LONG.extents[2:])), "the middle"),
        (LONG, replace(LONG, extents=LONG.extents[4:], deleting=(10, 11, 12, 13)), "may be open"),
        (manifest(closed(0, 10), closed(1, 11)), manifest(closed(1, 11), deleting=(10,)), "may be open"),
        (LONG, replace(LONG, extents=LONG.extents[1:]), "nothing says"),
        (LONG, replace(LONG, extents=(closed(0, 99), *LONG.extents[1:])), "extent 0 was changed"),
        (LONG, replace(LONG, extents=(closed(0, 10, last=8), *LONG.extents[1:])), "extent 0 was changed"),
        (manifest(closed(3, 10, first=4)), manifest(closed(3, 10, first=3)), "extent 3 was changed"),
        (manifest(closed(3, 10)), manifest(closed(2, 9), closed(3, 10)), "came back"),
        (NEW, manifest(Extent(0, 10), Extent(1, 11)), "opened at once"),
        (manifest(Extent(0, 10)), manifest(Extent(0, 10), Extent(1, 11), epoch=2), "before every end"),
        (manifest(Extent(0, 10)), manifest(Extent(0, 10), closed(1, 20)), "behind a ledger that may be open"),
        (replace(NEW, is_deleting=True), NEW, "came back"),
        (LONG, replace(LONG, extents=(), deleting=(10, 11), is_deleting=True), r"forgot to delete \[12, 13, 14\]"),
    ],
)
def test_illegal_changes(before: Manifest | None, after: Manifest | None, text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        assert not illegality(before, after), illegality(before, after)


def test_creating_a_log_and_committing_for_others() -> None:
    assert illegality(None, NEW) == ""
    # What a transactional writer brings: closed ranges, several at once.
    before = manifest(closed(0, 10))
    after = replace(before, extents=(closed(0, 10), closed(1, 20), closed(2, 21)), next_seq=3, txns={"app": {"v": 1}})
    assert illegality(before, after) == ""


# -- the record ------------------------------------------------------------------------------------------------------


def test_a_record_survives() -> None:
    found = replace(
        LONG,
        extents=(Extent(0, 10, 1, 9, 9, 90, "t-1"), *LONG.extents[1:]),
        deleting=(3, 4),
        txns={"app": {"query": "q", "version": 7}},
    )
    for each in (NEW, found, replace(found, is_deleting=True), replace(found, record_format="envelope")):
        assert parse_manifest("orders", pack_manifest(each)) == each


def test_a_record_is_one_line_of_json() -> None:
    assert pack_manifest(manifest(closed(0, 10), Extent(1, 11))).decode() == (
        '{"format":1,"token":"t","created_ms":1,"ensemble":3,"write_quorum":3,"ack_quorum":2,"digest":"crc32c",'
        '"epoch":1,"next_seq":2,"extents":[{"seq":0,"ledger":10,"first":0,"last":9,"rows":10,"bytes":90},'
        '{"seq":1,"ledger":11,"first":0}],"deleting":[],"txns":{},"state":"live"}'
    )


def test_rows_that_were_truncated_are_in_the_record() -> None:
    after = truncated(LONG, Position(12, 3), {}, 9)
    assert after is not None
    assert b'"rows_truncated":23' in pack_manifest(after)
    assert parse_manifest("x", pack_manifest(after)) == after
    assert illegality(LONG, replace(after, rows_truncated=22)) == "rows of the log got other numbers"


def test_fields_of_a_later_version_are_kept() -> None:
    content = json.loads(pack_manifest(manifest(closed(0, 10))))
    content["retention"] = {"days": 3}
    content["extents"][0]["offloaded"] = "s3://x"
    found = parse_manifest("orders", json.dumps(content).encode())
    after = truncated(found, Position(10, 5), {}, 9)
    assert after is not None
    written = json.loads(pack_manifest(after))
    assert written["retention"] == {"days": 3}
    assert written["extents"][0]["offloaded"] == "s3://x"
    assert written["extents"][0]["first"] == 5


def test_a_record_of_a_format_to_come_is_refused() -> None:
    content = json.loads(pack_manifest(NEW)) | {"format": 5}
    with pytest.raises(NotSupported, match="log orders has format 5; this version of bookies reads up to 4"):
        parse_manifest("orders", json.dumps(content).encode())


def test_a_log_of_record_sets_is_refused_by_versions_that_do_not_know_them() -> None:
    sets = replace(NEW, record_format=SETS, compression="zstd")
    content = json.loads(pack_manifest(sets))
    assert (content["format"], content["record_format"], content["compression"]) == (3, "sets", "zstd")
    assert parse_manifest("orders", pack_manifest(sets)) == sets


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"format":1}',
        pack_manifest(NEW).replace(b'"crc32c"', b'"md5"'),
        pack_manifest(NEW).replace(b'"extents":[]', b'"extents":[{"seq":"a","ledger":1,"first":0}]'),
        pack_manifest(NEW).replace(b'"extents":[]', b'"extents":[{"seq":1}]'),
        pack_manifest(NEW).replace(b'"extents":[]', b'"extents":[7]'),
        pack_manifest(NEW).replace(b'"extents":[]', b'"extents":7'),
        pack_manifest(NEW).replace(b'"epoch":0', b'"epoch":null'),
    ],
)
def test_damaged_records(data: bytes) -> None:
    with pytest.raises(MetadataCorrupt, match="the record of log orders cannot be read"):
        parse_manifest("orders", data)
