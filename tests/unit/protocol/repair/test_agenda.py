"""Which marked ledger comes next, and when one that failed is tried again."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from random import Random

import pytest

from bookies.model import BookieId
from bookies.protocol.repair import agenda as module
from bookies.protocol.repair.agenda import Agenda, Share

B1, B2 = BookieId("b1"), BookieId("b2")


def agenda(seed: int = 1) -> Agenda:
    return Agenda(5.0, 300.0, Random(seed).randrange)


def offer(found: Agenda, *ledgers: tuple[int, int, int]) -> None:
    """(id, bookies named, time of the mark)"""
    found.begin_listing()
    for ledger_id, named, ctime_ms in ledgers:
        found.offer(ledger_id, named, ctime_ms, 1)
    found.end_listing()


def rank(found: Agenda, left: dict[int, int], now: float = 0.0) -> None:
    for ledger_id in found.to_rank(now):
        found.rank(ledger_id, left[ledger_id])


def taken(found: Agenda, now: float = 0.0) -> int | None:
    item = found.take(now)
    return None if item is None else item.ledger_id


def test_fewest_replicas_first_then_the_oldest_mark_and_what_has_none_last() -> None:
    found = agenda()
    offer(found, (1, 1, 50), (2, 1, 40), (3, 1, 30), (4, 1, 20), (5, 1, 10))
    rank(found, {1: 2, 2: 1, 3: 0, 4: 2, 5: 1})
    assert [taken(found) for _ in range(6)] == [5, 2, 4, 1, 3, None]


def test_records_are_asked_for_of_those_that_name_the_most_bookies() -> None:
    found = agenda()
    offer(found, *((number, 1, number) for number in range(1, 200)), (500, 3, 999), (501, 2, 5))
    asked = found.to_rank(0.0)
    assert len(asked) == module.RANKED_MAX
    assert list(asked[:4]) == [500, 501, 1, 2]
    for ledger_id in asked:
        found.rank(ledger_id, 2)
    assert found.to_rank(0.0) == ()
    for _ in range(module.RANKED_MAX // 2):
        assert taken(found) is not None
    assert found.to_rank(0.0) == ()
    assert taken(found) is not None
    assert len(found.to_rank(0.0)) > 0


def test_what_nobody_has_ranked_is_taken_all_the_same() -> None:
    found = agenda()
    offer(found, (1, 1, 1))
    assert found.to_rank(0.0) == [1]
    assert taken(found) == 1
    found.release(1)
    assert taken(found) == 1


def test_a_ledger_is_taken_once() -> None:
    found = agenda()
    offer(found, (1, 1, 1))
    assert taken(found) == 1
    offer(found, (1, 1, 1))
    assert taken(found) is None
    found.done(1)
    assert len(found) == 0


def test_failures_wait_longer_each_time_up_to_a_limit() -> None:
    found = agenda()
    offer(found, (1, 1, 1))
    now, pauses = 0.0, []
    for _ in range(12):
        assert taken(found, now) == 1
        due_at = found.postpone(1, now)
        assert taken(found, due_at - 0.01) is None
        assert found.next_due() == due_at
        pauses.append(due_at - now)
        now = due_at
    assert all(0.75 * 5 * 2**number <= pause <= 5 * 2**number for number, pause in enumerate(pauses[:6]))
    assert all(225 <= pause <= 300 for pause in pauses[6:])


def test_workers_do_not_come_back_at_the_same_moment() -> None:
    times = set()
    for seed in range(10):
        found = agenda(seed)
        offer(found, (1, 1, 1))
        taken(found)
        times.add(found.postpone(1, 0.0))
    assert len(times) > 5


def test_what_is_lost_waits_for_a_bookie_and_for_no_time() -> None:
    found = agenda()
    offer(found, (1, 1, 1))
    taken(found)
    found.postpone(1, 0.0, bookies=[B1], is_lost=True)
    assert found.next_due() is None
    assert taken(found, 1e9) is None
    found.targets_came()
    found.returned([B2])
    assert taken(found, 1e9) is None
    found.returned([B1])
    assert taken(found, 1e9) == 1


def test_what_wants_a_target_is_due_when_one_comes() -> None:
    found = agenda()
    offer(found, (1, 1, 1), (2, 1, 2))
    for _ in range(2):
        taken(found)
    found.postpone(1, 0.0, wants_target=True)
    found.postpone(2, 0.0)
    found.targets_came()
    assert (taken(found), taken(found)) == (1, None)


def test_a_grace_period_is_no_failure() -> None:
    found = agenda()
    offer(found, (1, 1, 1))
    taken(found)
    assert found.postpone(1, 10.0, for_s=30.0) == 40.0
    assert taken(found, 40.0) == 1
    assert 40 + 0.75 * 5 <= found.postpone(1, 40.0) <= 45.0  # the first


def test_a_mark_that_is_renewed_is_looked_at_at_once() -> None:
    found = agenda()
    offer(found, (1, 1, 1))
    taken(found)
    found.postpone(1, 0.0, is_lost=True)
    found.begin_listing()
    found.offer(1, 2, 9, 2)
    found.end_listing()
    item = found.take(0.0)
    assert item is not None
    assert (item.ledger_id, item.named, item.version) == (1, 2, 2)


def test_a_mark_that_is_renewed_during_an_attempt_that_finds_a_loss_is_looked_at_again() -> None:
    found = agenda()
    offer(found, (1, 1, 1))
    assert taken(found) == 1
    found.begin_listing()
    found.offer(1, 1, 9, 2)
    found.end_listing()
    assert found.postpone(1, 3.0, is_lost=True) == 3.0
    assert taken(found, 3.0) == 1
    assert found.postpone(1, 4.0, is_lost=True) == module.NEVER


def test_shares_are_disjoint_complete_and_about_equal() -> None:
    for step in (1, 4, 1 << 20):
        counts = [sum(Share(position, 4).has(number * step) for number in range(4000)) for position in range(4)]
        assert sum(counts) == 4000
        assert all(900 < count < 1100 for count in counts), step


def listing(found: Agenda, share: Share, ledgers: Sequence[int], now: float, locked: Collection[int] = ()) -> None:
    found.begin_listing(share)
    for ledger_id in ledgers:
        found.offer(ledger_id, 1, ledger_id, 1, now)
    found.end_listing(locked, now)


def test_others_ledgers_are_taken_up_when_nothing_else_is_to_be_done() -> None:
    found, share = agenda(), Share(1, 3)
    ledgers = range(1, 200)
    own = [each for each in ledgers if share.has(each)]
    listing(found, share, ledgers, 0.0)
    assert len(found) == len(ledgers)
    done = []
    while (ledger_id := taken(found)) is not None:
        done.append(ledger_id)
        found.done(ledger_id)
    assert done == own
    assert found.is_idle
    assert found.has_others
    rest = [each for each in ledgers if each not in own]
    listing(found, share, rest, module.LEFT_ALONE_S - 1)
    assert found.is_idle  # They are new: whom they belong to may be about to do them.
    locked = rest[:60]
    listing(found, share, rest, module.LEFT_ALONE_S, locked)
    more = [taken(found) for _ in range(module.TAKEN_UP_MAX)]
    assert taken(found) is None
    assert all(each in rest and each not in locked for each in more)
    assert len(set(more)) == module.TAKEN_UP_MAX


def test_when_workers_come_and_go_shares_change() -> None:
    found = agenda()
    listing(found, Share(0, 1), range(1, 101), 0.0)
    first = taken(found)
    listing(found, Share(1, 2), range(1, 101), 1.0)
    left = []
    while (ledger_id := taken(found)) is not None:
        left.append(ledger_id)
    assert left == [each for each in range(1, 101) if Share(1, 2).has(each) and each != first]
    listing(found, Share(0, 1), range(1, 101), 2.0)
    assert not found.has_others
    assert taken(found) is not None


def test_marks_are_read_only_where_it_makes_a_difference() -> None:
    found, share = agenda(), Share(0, 2)
    own = [each for each in range(1, 20) if share.has(each)]
    listing(found, share, own[:1], 0.0)
    assert not found.needs(own[0])  # known
    assert found.needs(own[1])
    assert not any(found.needs(each) for each in range(1, 20) if each not in own)
    assert taken(found) == own[0]
    found.postpone(own[0], 0.0)
    assert found.needs(own[0])  # Somebody may have renewed it.
    found.begin_listing(share)
    found.offer(own[0], 0, None, module.UNREAD, 1.0)
    found.end_listing((), 1.0)
    item = found.get(own[0])
    assert item is not None
    assert (item.version, item.due_at > 0) == (1, True)  # as it was
    found.stale(own[0])
    found.begin_listing(share)
    found.offer(own[0], 1, 9, 5, 2.0)
    found.end_listing((), 2.0)
    assert (item.version, item.due_at > 0) == (5, True)  # It was not known, so nothing is new.


def test_what_is_not_marked_any_more_is_forgotten_unless_it_is_worked_on() -> None:
    found = agenda()
    offer(found, (1, 1, 1), (2, 1, 2))
    assert taken(found) == 1
    offer(found)
    assert (1 in found, 2 in found) == (True, False)
    assert taken(found) is None


def test_memory_is_bounded() -> None:
    found = agenda()
    found.begin_listing()
    for ledger_id in range(module.ITEMS_MAX + 10):
        found.offer(ledger_id, 1, 0, 1)
    assert len(found) == module.ITEMS_MAX
    assert found.is_cut


def test_outcomes_of_a_ledger_that_a_listing_has_removed_change_nothing() -> None:
    """Its mark was deleted while somebody read its record or worked on it."""
    found = agenda()
    offer(found, (1, 1, 1), (2, 1, 2))
    found.done(1)
    found.done(1)
    found.rank(1, 0)
    found.stale(1)
    found.release(1)
    assert found.postpone(1, 10.0, for_s=30.0) == 10.0
    assert (len(found), 1 in found, found.next_due()) == (1, False, None)
    assert (taken(found), taken(found)) == (2, None)


def test_news_of_bookies_are_for_those_that_wait() -> None:
    """A ledger that is being worked on is not due a second time, and its pause goes on growing."""
    found = agenda()
    offer(found, (1, 1, 1))
    taken(found)
    due_at = found.postpone(1, 0.0, bookies=[B1], wants_target=True)
    assert taken(found, due_at) == 1
    found.returned([B1])
    found.targets_came()
    assert taken(found, due_at) is None
    assert found.postpone(1, due_at) - due_at >= 0.75 * 2 * 5


@pytest.mark.parametrize("is_first", [True, False])
def test_what_returns_during_an_attempt_that_finds_a_loss_is_not_missed(is_first: bool) -> None:
    """The attempt began before: another one is due at once, and after that only the next return counts."""
    found = agenda()
    offer(found, (1, 1, 1))
    if not is_first:
        taken(found)
        assert found.postpone(1, 1.0, bookies=[B1], is_lost=True) == module.NEVER
        found.returned([B1])
    assert taken(found, 2.0) == 1
    found.returned([B1])
    assert found.postpone(1, 3.0, bookies=[B1], is_lost=True) == 3.0
    assert taken(found, 3.0) == 1
    assert found.postpone(1, 4.0, bookies=[B1], is_lost=True) == module.NEVER
    assert taken(found, 1e9) is None
