"""Which bookies are told a last add confirmed, and when readers are taken to wait."""

from __future__ import annotations

from bookies.protocol.ledger.announcement import MISSES_MAX, UNANSWERED_MAX, Announcements


def told(rule: Announcements, *, is_first: bool = True, has_readers: bool) -> None:
    rule.sent()
    rule.answered(is_first=is_first, has_readers=has_readers)


def test_a_reader_is_told_where_it_waits_for_the_first_entry_that_it_lacks() -> None:
    rule = Announcements()
    assert rule.at_once(0, -1, 3, 3) == (0,)
    assert rule.at_once(1, 0, 3, 3) == (1,)
    assert rule.at_once(5, 1, 3, 3) == (2,), "it waits for entry 2"
    assert rule.at_once(9, 7, 3, 3) == (2,), "an entry has told it 7, so it waits for entry 8"
    assert rule.first == 2


def test_what_an_entry_carries_or_was_announced_is_not_announced() -> None:
    rule = Announcements()
    assert not rule.is_news(-1, -1)
    assert rule.at_once(-1, -1, 3, 3) == ()
    assert rule.at_once(4, 4, 3, 3) == ()
    assert rule.at_once(4, 3, 3, 3) == (1,)
    assert rule.at_once(4, 3, 3, 3) == ()
    assert rule.is_news(5, 4)
    assert not rule.is_news(5, 5)


def test_an_idle_writer_tells_the_rest_of_the_write_set_once() -> None:
    rule = Announcements()
    assert rule.at_once(3, 2, 3, 3) == (0,)
    assert rule.when_idle(3, 2, 3, 3) == (1, 2)
    assert rule.when_idle(3, 2, 3, 3) == ()
    assert rule.when_idle(5, 3, 3, 3) == (1, 2, 0), "nobody was told: first where a reader waits for entry 4"
    assert rule.at_once(5, 3, 3, 3) == ()
    assert rule.when_idle(6, 6, 3, 3) == ()


def test_what_failed_is_repeated_unless_it_is_superseded() -> None:
    rule = Announcements()
    assert rule.when_idle(3, 2, 3, 3) == (0, 1, 2)
    assert [rule.failed(position, 3) for position in (1, 0, 1)] == [True, True, True]
    assert (rule.repeat(3, 2), rule.repeats) == ((1, 0), 1)
    assert (rule.repeat(3, 2), rule.repeats) == ((), 2), "it has succeeded"
    assert rule.failed(1, 3)
    assert rule.repeat(3, 3) == (), "an entry has carried it"
    assert rule.failed(1, 3)
    assert rule.at_once(4, 3, 3, 3) == (1,)
    assert rule.repeats == 0
    assert not rule.failed(0, 3), "a later one is announced"
    assert rule.repeat(4, 3) == ()


def test_in_a_striped_ledger_the_write_set_of_the_last_entry_is_told() -> None:
    rule = Announcements()
    assert rule.when_idle(7, 5, 5, 2) == (1, 2, 3)
    assert rule.at_once(8, 7, 5, 2) == (3,)
    assert rule.when_idle(8, 7, 5, 2) == (4,)


def test_readers_are_known_by_answers_until_many_in_a_row_found_nobody() -> None:
    rule = Announcements()
    assert not rule.has_readers
    told(rule, has_readers=False)
    assert not rule.has_readers
    told(rule, has_readers=True)
    for _ in range(MISSES_MAX - 1):
        told(rule, has_readers=False)
    assert rule.has_readers
    told(rule, has_readers=False)
    assert not rule.has_readers


def test_readers_that_wait_elsewhere_have_everybody_told_at_once() -> None:
    rule = Announcements()
    told(rule, is_first=False, has_readers=True)
    assert rule.has_readers
    assert rule.at_once(4, 3, 3, 3) == (1, 2, 0)
    assert rule.when_idle(4, 3, 3, 3) == ()
    for _ in range(MISSES_MAX):
        assert rule.has_readers
        told(rule, is_first=False, has_readers=False)
    assert not rule.has_readers
    assert rule.at_once(5, 4, 3, 3) == (2,)


def test_a_bookie_that_does_not_answer_ends_it() -> None:
    rule = Announcements()
    told(rule, has_readers=True)
    for _ in range(UNANSWERED_MAX):
        assert rule.has_readers
        rule.sent()
    assert not rule.has_readers
    rule.answered(is_first=True, has_readers=False)
    assert rule.has_readers
