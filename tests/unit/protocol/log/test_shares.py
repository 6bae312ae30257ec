"""Shares of a log: what is claimed, handled, free; where the processes begin; and the part of the record."""

from __future__ import annotations

from msgspec.structs import replace

from bookies.protocol.log import Position
from bookies.protocol.log.lease import LeaseQueue, Participant, pack_queue, parse_queue
from bookies.protocol.log.shares import RANGES_MAX, Offer, Range, Shares, begun

START = Position(7, 0)


def claimed(shares: Shares, token: int, first: int, last: int, size: int = 100, ledger_id: int = 7) -> Shares:
    start = shares.next
    return shares.claimed(token, {1, 2, 3}, Offer(start, ledger_id, first, last), size)


def test_ranges_are_claimed_in_order_and_handled_in_any() -> None:
    shares = claimed(claimed(claimed(Shares(START, START), 1, 0, 9), 2, 10, 99, size=5), 3, 15, 20)
    assert shares.ranges == (Range(7, 0, 9, 1), Range(7, 10, 14, 2), Range(7, 15, 20, 3))
    assert (shares.position, shares.next) == (START, Position(7, 21))
    shares = shares.committed(3, Position(7, 21)).committed(2, Position(7, 12))
    assert shares.ranges[0].positions == (START, Position(7, 9))
    assert shares.ranges[1:] == (Range(7, 10, 11, 0), Range(7, 12, 14, 2), Range(7, 15, 20, 0))
    assert (shares.position, shares.handled_count, shares.claim_of(2)) == (START, 8, Range(7, 12, 14, 2))
    shares = shares.committed(2, Position(7, 15))
    assert shares.ranges == (Range(7, 0, 9, 1), Range(7, 10, 20, 0))  # adjacent ones are one
    shares = claimed(shares.committed(1, Position(7, 10)), 1, 0, 3, ledger_id=8)
    assert (shares.ranges, shares.position) == ((Range(8, 0, 3, 1),), Position(8, 0))
    shares = shares.committed(1, Position(8, 4))
    assert (shares.position, shares.claim_of(1)) == (Position(8, 4), None)


def test_a_commit_of_another_process_or_range_changes_nothing() -> None:
    shares = claimed(Shares(START, START), 1, 0, 9)
    for token, at in ((2, Position(7, 5)), (1, Position(8, 5)), (1, Position(7, 11)), (1, START)):
        assert shares.committed(token, at) == shares


def test_what_a_dead_process_had_is_claimed_first() -> None:
    shares = claimed(claimed(Shares(START, START), 1, 0, 9), 4, 10, 19)
    assert (shares.has_free({1, 4}), shares.has_free({1, 2})) == (False, True)
    shares = claimed(shares, 2, 20, 29, size=4)
    assert shares.ranges == (Range(7, 0, 9, 1), Range(7, 10, 13, 2), Range(7, 14, 19, 4))
    assert shares.next == Position(7, 20)
    assert shares.claimed(3, {1, 2, 3}, None, 100).claim_of(3) == Range(7, 14, 19, 3)


def test_an_offer_that_others_have_overtaken() -> None:
    shares = Shares(START, Position(7, 5))
    assert shares.claimed(1, {1}, Offer(START, 7, 0, 9), 2).claim_of(1) == Range(7, 5, 6, 1)
    assert shares.claimed(1, {1}, Offer(START, 7, 0, 4), 2) == shares
    assert shares.claimed(1, {1}, Offer(START, 8, 0, 9), 2) == shares
    assert shares.claimed(1, {1}, None, 2) == shares
    empty = Shares()
    assert empty.claimed(1, {1}, Offer(None, 7, 0, 4), 2).next == Position(7, 2)
    assert empty.claimed(1, {1}, Offer(START, 7, 0, 4), 2) == empty


def test_the_number_of_ranges_is_bounded() -> None:
    shares = Shares(START, START)
    for number in range(RANGES_MAX + 5):
        shares = claimed(shares, 1, number, number)
    assert len(shares.ranges) == RANGES_MAX
    freed = shares.claimed(3, {3}, None, 1)
    assert freed.claim_of(3) == Range(7, 0, 0, 3)


def test_where_processes_begin() -> None:
    divided = Shares(START, Position(7, 10), (Range(7, 0, 9, 1),))
    moved = Position(7, 4)
    assert begun(None, None, START, is_alone=True) == Shares(START, START)
    assert begun(None, moved, START, is_alone=True) == Shares(moved, moved)
    assert begun(divided, START, START, is_alone=True) == divided
    assert begun(divided, moved, START, is_alone=True) == Shares(moved, moved)  # it was moved by hand
    carried = Position(8, 0)
    assert begun(divided, carried, START, is_alone=False) == replace(divided, cursor=carried)
    handled = Shares(START, Position(8, 3))
    assert begun(handled, carried, START, is_alone=False) == replace(handled, cursor=carried)
    assert begun(handled, carried, START, is_alone=False, is_truncated=True) == Shares(carried, carried)
    assert begun(divided, None, START, is_alone=False) == Shares(START, START)  # it was deleted
    unsaved = replace(divided, cursor=None)
    assert begun(unsaved, None, START, is_alone=True) == Shares(START, START)
    assert begun(unsaved, None, moved, is_alone=False) == divided
    assert begun(Shares(), None, None, is_alone=False) == Shares()


def test_the_record() -> None:
    shares = Shares(None, Position(7, 10), (Range(7, 0, 9, 3),))
    queue = LeaseQueue(4, (Participant("a", 3, 1, 1_000, "host:1", True), Participant("b", 4, 1, 1_000, "c")), shares)
    assert parse_queue("consumers/x/y", pack_queue(queue)) == queue
    assert b'"format":2' in pack_queue(queue)
    left = queue.without("a")  # a version that does not know shares may rewrite it then
    assert b'"format":1' in pack_queue(left)
    assert parse_queue("consumers/x/y", pack_queue(left)).shares == shares
