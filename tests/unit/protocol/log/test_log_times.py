"""Points in time of a log: order, search, thinning, the record."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from bookies.errors import MetadataCorrupt, NotSupported
from bookies.model import DigestType
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.log_model import Extent, Segment
from bookies.protocol.log.log_times import (
    COMMIT_MS,
    Point,
    begun_ms,
    bracket,
    ended_ms,
    known_points,
    merged,
    ordered,
    pack_times,
    parse_times,
    placed,
    thinned,
)


def point(ledger_id: int, entry_id: int, ms: int) -> Point:
    return Point(Position(ledger_id, entry_id), ms)


def manifest(*extents: Extent) -> Manifest:
    return Manifest("t", 1, 3, 3, 2, DigestType.CRC32C, extents=extents, next_seq=10)


LIST = manifest(Extent(0, 7, 0, 9), Extent(1, 3, 0, -1), Extent(2, 5, 0, 4), Extent(3, 9))


def test_points_are_in_the_order_of_the_list_with_raw_times() -> None:
    points = [point(9, 0, 40), point(3, 0, 20), point(7, 5, 30), point(7, 0, 10), point(4, 0, 5), point(7, 0, 9)]
    assert ordered(LIST, points) == [point(7, 0, 10), point(7, 5, 30), point(3, 0, 20), point(9, 0, 40)]


def test_a_leader_that_reads_the_head_only_keeps_the_points_of_segments() -> None:
    points = [point(2, 5, 1), point(1, 0, 2), point(9, 0, 40), point(7, 0, 10)]
    assert merged(LIST, points) == [point(7, 0, 10), point(9, 0, 40)]
    head = replace(LIST, segments=(Segment("s", 0, 1, 2, 0, 1, 1),))
    assert merged(head, points) == [point(2, 5, 1), point(1, 0, 2), point(7, 0, 10), point(9, 0, 40)]


def test_a_time_is_between_two_points() -> None:
    points = [point(7, 0, 10), point(7, 5, 10), point(7, 9, 20)]
    assert bracket(points, 10) == (None, points[0], False)
    assert bracket(points, 11) == (points[1], points[2], False)
    assert bracket(points, 21) == (points[2], None, False)
    assert bracket([], 21) == (None, None, False)


def test_a_late_point_of_a_suspended_leader_moves_no_end() -> None:
    before = [point(7, 0, 10), point(7, 8, 20), point(3, 0, 30), point(5, 2, 40), point(5, 4, 50)]
    points = ordered(LIST, [*before, point(7, 9, 60)])
    assert [bracket(before, time_ms)[1] for time_ms in (30, 31, 45, 51)] == [before[2], before[3], before[4], None]
    assert [bracket(points, time_ms)[1] for time_ms in (30, 31, 45, 51)] == [before[2], before[3], before[4], None]
    assert bracket(points, 45) == (point(7, 8, 20), point(5, 4, 50), True)  # Were entries confirmed at 45, or at 60?
    assert bracket(points, 61) == (point(5, 4, 50), None, False)


def test_a_clock_that_was_ahead_moves_no_end() -> None:
    points = [point(7, 0, 10), point(7, 5, 900), point(7, 9, 30), point(3, 0, 40)]  # Entry 5 was confirmed at 20.
    assert bracket(points, 25) == (points[0], points[2], True)
    assert bracket(points, 500) == (points[0], None, True)
    assert bracket(points, 901) == (points[3], None, False)


def test_the_list_knows_the_creation_and_its_commits() -> None:
    assert known_points(manifest()) == []
    log = manifest(Extent(0, 7, 2, 9, txn="a:1", committed_ms=50), Extent(1, 8, 0, 3, txn="a:2", committed_ms=60))
    assert known_points(log) == [point(7, 0, 1), point(7, 2, 50), point(8, 0, 60), point(8, 4, 60 + COMMIT_MS)]
    first = Extent(0, 7, 0, 9, txn="a:1", committed_ms=50)
    assert known_points(manifest(first, Extent(1, 8))) == [point(7, 0, 1), point(7, 0, 50)]
    later = Extent(1, 8, 0, 9, txn="a:2", committed_ms=51 + COMMIT_MS)
    assert point(7, 10, 50 + COMMIT_MS) in known_points(manifest(first, later))


def test_too_many_points_lose_older_ones_but_not_the_first_of_a_ledger() -> None:
    points = [point(1 + number // 10, number % 10, number) for number in range(40)]
    assert thinned(points, 40) == points
    left = thinned(points, 20)
    assert len(left) <= 20
    assert left[-10:] == points[-10:]
    assert {each.position for each in left} >= {Position(ledger_id, 0) for ledger_id in (1, 2, 3, 4)}
    turns = [point(1, 3, 90), point(1, 5, 2)]
    points[3], points[5] = turns
    assert {*thinned(points, 20)} >= {*turns, *(point(ledger_id, 0, 10 * ledger_id - 10) for ledger_id in (1, 2, 3, 4))}
    firsts = [point(number, 0, number) for number in range(64)]
    firsts[3] = point(3, 0, 90)
    assert firsts[3] in thinned(firsts, 32)
    assert len(thinned(firsts, 10)) <= 10
    assert thinned(firsts, 10)[-1] == firsts[-1]
    zigzag = [point(1, number, number % 2) for number in range(64)]
    assert thinned(zigzag, 10)[-5:] == zigzag[-5:]


def test_points_are_farther_apart_the_older_they_are() -> None:
    points: list[Point] = []
    for second in range(0, 20_000, 10):
        points = thinned([*points, *(point(1, entry, 1000 * entry) for entry in range(second, second + 10))], 256)
    for age_s in (10, 100, 500, 2_000, 5_000, 15_000):
        low, high, _ = bracket(points, 1000 * (20_000 - age_s))
        assert low is not None
        assert high is not None
        assert high.ms - low.ms <= max(1000, 100 * age_s)  # a tenth


@pytest.mark.parametrize(
    ("at", "there"),
    [
        ((7, 3), (7, 4)),  # truncated
        ((7, 6), (7, 6)),
        ((7, 10), (5, 0)),  # after the end of a ledger, past one without entries
        ((3, 0), (5, 0)),
        ((9, 100), (9, 100)),
        ((5, 5), (9, 0)),
    ],
)
def test_a_position_is_placed_in_the_log_as_it_is(at: tuple[int, int], there: tuple[int, int]) -> None:
    log = manifest(Extent(0, 7, 4, 9), *LIST.extents[1:])
    assert placed(log, Position(*at)) == Position(*there)


def test_a_position_before_the_beginning_or_after_the_end_is_placed_too() -> None:
    log = manifest(Extent(0, 7, 10, 9), Extent(1, 8, 2, 5))
    assert placed(log, Position(7, 0)) == Position(8, 2)
    assert placed(log, Position(8, 9)) == Position(8, 9)


def test_an_extent_has_ended_by_the_first_point_after_it() -> None:
    points = ordered(LIST, [point(7, 9, 10), point(7, 10, 20), point(5, 2, 30), point(9, 0, 40)])
    assert ended_ms(LIST, points) == {0: 20, 1: 30, 2: 40}
    assert ended_ms(LIST, points[:2]) == {0: 20}
    assert ended_ms(LIST, ordered(LIST, [*points, point(7, 9, 25)])) == {0: 25, 1: 30, 2: 40}
    assert begun_ms(LIST, points) == {3: 40}


def test_the_record_comes_back() -> None:
    points = [point(7, 0, 1_795_284_255_562), point(7, 50, 1_795_284_256_570), point(9, 0, 1_795_284_300_000)]
    data = pack_times("t", points)
    assert data == (b'{"format":1,"token":"t","points":[[7,0,1795284255562,50,1008],[9,0,1795284300000]]}')
    assert parse_times("orders", "t", data) == points
    assert parse_times("orders", "another", data) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"format":1,"token":"t","points":[[7,0]]}',
        b'{"format":1,"token":"t","points":[[]]}',
        b'{"format":1,"token":"t","points":5}',
    ],
)
def test_a_damaged_record_is_refused_by_name(data: bytes) -> None:
    with pytest.raises(MetadataCorrupt, match="times of log orders cannot be read"):
        parse_times("orders", "t", data)


def test_a_later_format_is_refused() -> None:
    with pytest.raises(NotSupported, match="format 2: this version reads 1"):
        parse_times("orders", "t", b'{"format":2}')
