"""Which bookies count as lost, and when: delays, maintenance, several at once; and which checks are due."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bookies.model import BookieId, LedgerMetadata, LedgerState
from bookies.protocol.repair.absence import HURRY_S, MASS_DELAY_S, Absence, due_in_s, is_endangered

ALL = [BookieId(f"b{number}") for number in range(1, 7)]
B1, B2, B3, B4, B5, B6 = ALL


def absence(delay_s: float = 60.0, settle_s: float = 0.0) -> Absence:
    found = Absence(delay_s, settle_s)
    found.expect(ALL)
    found.observe(ALL, 0.0)
    return found


def without(*gone: BookieId) -> list[BookieId]:
    return [bookie for bookie in ALL if bookie not in gone]


def test_a_bookie_is_lost_after_the_delay_and_not_before() -> None:
    found = absence()
    found.observe(without(B1), 10.0)
    assert (found.away, found.lost(69.9), found.next_loss(10.0)) == ([B1], [], 70.0)
    assert found.lost(70.0) == [B1]
    assert found.next_loss(70.0) is None


def test_whoever_comes_back_begins_anew() -> None:
    found = absence()
    for turn in range(100):
        found.observe(without(B1), turn * 60.0)
        assert found.lost(turn * 60.0 + 59.0) == []
        found.observe(ALL, turn * 60.0 + 59.0)
        assert found.away == []
    assert found.next_loss(6_000.0) is None


def test_with_a_delay_of_nothing_a_bookie_is_lost_at_once_unless_most_are() -> None:
    found = absence(0.0)
    found.observe(without(B1), 10.0)
    assert found.lost(10.0) == [B1]
    found.observe([B5, B6], 11.0)
    assert found.lost(10.0 + MASS_DELAY_S - 0.1) == []
    assert found.lost(11.0 + MASS_DELAY_S) == [B1, B2, B3, B4]


def test_a_minimum_leaves_time_for_a_change_of_mode() -> None:
    found = absence(0.0, 1.0)
    found.observe(without(B1), 10.0)
    assert found.lost(10.9) == []
    assert found.lost(11.0) == [B1]


def test_maintenance_excuses_until_it_ends() -> None:
    found = absence(60.0)
    found.observe(without(B1), 10.0, {B1: 1_000.0})
    assert found.is_excused(B1, 999.0)
    assert found.lost(999.0) == []
    assert found.lost(1_000.0) == [B1]
    short = absence(60.0)
    short.observe(without(B1), 10.0, {B1: 20.0})
    assert short.lost(69.0) == []  # The delay is not over.
    assert short.lost(70.0) == [B1]


def test_several_away_do_not_make_the_delay_shorter() -> None:
    found = absence(60.0)
    found.observe(without(B1, B2), 10.0)
    assert found.lost(69.0) == []
    assert found.endangering(10.0 + HURRY_S - 0.1) == []
    assert found.endangering(10.0 + HURRY_S) == [B1, B2]


def test_one_away_endangers_nothing_before_the_delay() -> None:
    found = absence(60.0)
    found.observe(without(B1), 10.0)
    assert found.endangering(69.0) == []


def test_those_in_maintenance_make_no_hurry() -> None:
    found = absence(60.0)
    found.observe(without(B1, B2), 10.0, {B1: 500.0})
    assert found.endangering(50.0) == []


def test_when_most_are_away_nobody_hurries_and_there_is_some_delay_always() -> None:
    found = absence(0.0)
    found.observe(without(B1, B2, B3, B4), 10.0)
    assert found.is_mass
    assert found.endangering(100.0) == []
    assert found.lost(10.0 + MASS_DELAY_S - 0.1) == []
    assert found.lost(10.0 + MASS_DELAY_S) == [B1, B2, B3, B4]


def test_after_most_were_away_those_that_come_back_last_have_time() -> None:
    found = absence(0.0)
    found.observe(without(B1, B2, B3, B4), 10.0)
    found.observe(without(B1, B2, B3, B4), 25.0)
    found.observe(without(B3, B4), 26.0)
    assert not found.is_mass
    assert found.lost(54.0) == []
    assert found.lost(55.0) == [B3, B4]
    found.observe(without(B1, B3, B4), 40.0)  # half, and not more; B1 on its own account
    assert found.lost(41.0) == [B1]


def test_an_audit_that_was_asked_for_does_not_wait() -> None:
    found = absence(3_600.0)
    found.observe(without(B1, B2), 10.0, {B2: 99.0})
    found.declare(11.0)
    assert found.lost(11.0) == [B1]
    found.observe(without(B2), 12.0)
    found.observe(without(B1, B2), 13.0)  # B1 was back in between: a new absence
    assert found.lost(14.0) == []


def test_who_is_not_expected_is_not_missed() -> None:
    found = absence()
    found.expect(without(B1))
    found.observe(without(B1), 10.0)
    assert found.away == []


def test_an_absence_has_a_beginning_and_an_end() -> None:
    found = absence(60.0)
    found.observe(without(B1), 10.0)
    assert (found.away_since(B1), found.lost_at(B1)) == (10.0, 70.0)
    assert (found.away_since(B2), found.lost_at(B2)) == (None, None)
    assert not found.is_away_for(B1, HURRY_S, 10.0 + HURRY_S - 0.1)
    assert found.is_away_for(B1, HURRY_S, 10.0 + HURRY_S)
    assert found.is_away_for(BookieId("stranger"), HURRY_S, 10.0), "it was never seen"
    assert not found.was_away_at(B1, 15.0), "it has not returned"
    found.observe(ALL, 20.0)
    assert found.away_since(B1) is None
    assert [found.was_away_at(B1, when) for when in (9.9, 10.0, 20.0, 20.1)] == [False, True, True, False]
    found.observe(without(B1), 30.0)
    found.observe(ALL, 40.0)
    assert [found.was_away_at(B1, when) for when in (15.0, 35.0)] == [False, True], "the last one counts"


# -- ledgers in danger ---------------------------------------------------------------------------------------------


def ledger(
    ensemble: Sequence[BookieId], write_quorum: int, ack_quorum: int = 1, last: int | None = 9
) -> LedgerMetadata:
    return LedgerMetadata(
        7,
        len(ensemble),
        write_quorum,
        ack_quorum,
        ((0, tuple(ensemble)),),
        state=LedgerState.OPEN if last is None else LedgerState.CLOSED,
        last_entry_id=-1 if last is None else last,
    )


@pytest.mark.parametrize(
    ("record", "away", "expected"),
    [
        (ledger([B1, B2, B3], 3), [B1, B2], True),  # one replica left
        (ledger([B1, B2, B3], 3), [B1], False),
        (ledger([B1, B2, B3], 3), [B1, B2, B3], False),  # nothing left to copy
        (ledger([B1, B2], 2), [B1, B2], False),
        (ledger([B1, B2], 2), [B1, B5], False),  # one of its bookies: what the delay is about
        (ledger([B1, B2, B3, B4, B5], 5), [B1, B2], False),  # three left
        (ledger([B1, B2, B3, B4, B5], 5), [B1, B2, B3, B4], True),
        (ledger([B1, B2, B3, B4], 3), [B1, B2], True),  # entries 0 and 3 are on both
        (ledger([B1, B2, B3, B4], 2), [B1, B3], False),  # no entry is on both
        (ledger([B1, B2, B3, B4, B5], 3), [B1, B3], True),
        (ledger([B1, B2, B3, B4, B5], 3, last=0), [B4, B5], False),  # entry 0 is on neither
        (ledger([B1, B2, B3, B4, B5], 3, last=None), [B4, B5], True),  # entries to come are on both
        (ledger([B1, B2, B3], 3, last=-1), [B1, B2], False),  # an empty ledger
    ],
)
def test_a_ledger_is_in_danger_with_one_replica_left_and_several_away(
    record: LedgerMetadata, away: Sequence[BookieId], expected: bool
) -> None:
    assert is_endangered(record, away) is expected


# -- checks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("interval_s", "last_ms", "now_ms", "expected"),
    [
        (0, None, 1_000, None),
        (60, None, 1_000, 0.0),
        (60, 1_000, 11_000, 50.0),
        (60, 1_000, 61_000, 0.0),
        (60, 1_000, 10_000_000, 0.0),
        (60, 50_000, 1_000, 60.0),  # the clock was turned back
        (60, 500_000, 1_000, 0.0),  # or was far ahead when the check was noted
    ],
)
def test_a_check_is_due_an_interval_after_the_last(
    interval_s: float, last_ms: int | None, now_ms: int, expected: float | None
) -> None:
    assert due_in_s(interval_s, last_ms, now_ms) == expected
