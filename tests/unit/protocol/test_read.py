"""Replica choice, ranges, LAC coverage, long-poll rounds: client-protocol 3.4 to 3.8 as tables."""

from __future__ import annotations

import itertools

import pytest

from bookies.errors import (
    BookieTimeout,
    BookieUnreachable,
    BookKeeperError,
    DigestMismatch,
    EntryNotFound,
    LedgerUnknownToBookie,
    ReadFailed,
    Unauthorized,
)
from bookies.model import BookieId, LedgerMetadata, LedgerState
from bookies.protocol.read import (
    ErrorChoice,
    LacRead,
    LongPollRound,
    ReplicaChoice,
    is_growth_trusted,
    read_ranges,
    replica_order,
)

A, B, C = BookieId("a"), BookieId("b"), BookieId("c")


def ledger(ensemble: int = 3, write_quorum: int = 3, ack_quorum: int = 2, **changes: object) -> LedgerMetadata:
    names = tuple(BookieId(f"b{number}") for number in range(ensemble))
    return LedgerMetadata(7, ensemble, write_quorum, ack_quorum, ((0, names),)).replace(**changes)


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([EntryNotFound, EntryNotFound, EntryNotFound], EntryNotFound),
        ([EntryNotFound, LedgerUnknownToBookie, EntryNotFound], EntryNotFound),
        ([EntryNotFound, BookieUnreachable, EntryNotFound], BookieUnreachable),
        ([BookieUnreachable, EntryNotFound, ReadFailed], ReadFailed),
        ([BookieUnreachable, BookieTimeout, ReadFailed], BookieTimeout),
        ([BookieTimeout, ReadFailed, EntryNotFound], BookieTimeout),
        ([DigestMismatch, BookieUnreachable, ReadFailed], DigestMismatch),
        ([LedgerUnknownToBookie, DigestMismatch, BookieUnreachable], DigestMismatch),
    ],
)
def test_the_error_reported_when_all_replicas_fail(errors: list[type[BookKeeperError]], expected: type) -> None:
    choice = ErrorChoice()
    for bookie, kind in zip((A, B, C), errors, strict=True):
        choice.note(bookie, kind())
    assert type(choice.error) is expected
    assert list(choice.causes) == [A, B, C]


def test_not_found_is_reported_only_if_every_replica_said_so() -> None:
    kinds = (EntryNotFound, LedgerUnknownToBookie, BookieUnreachable, BookieTimeout, ReadFailed, DigestMismatch)
    for kinds_of_three in itertools.product(kinds, repeat=3):
        choice = ErrorChoice()
        for bookie, kind in zip((A, B, C), kinds_of_three, strict=True):
            choice.note(bookie, kind())
        all_negative = all(kind in (EntryNotFound, LedgerUnknownToBookie) for kind in kinds_of_three)
        assert isinstance(choice.error, EntryNotFound | LedgerUnknownToBookie) == all_negative


def test_replicas_are_asked_once_each_in_order() -> None:
    choice = ReplicaChoice((B, C, A))
    asked = []
    while (bookie := choice.next()) is not None:
        asked.append(bookie)
        choice.failed(bookie, BookieTimeout())
    assert asked == [B, C, A]
    assert type(choice.error) is BookieTimeout


def test_suspects_are_asked_last_and_never_dropped() -> None:
    assert replica_order((A, B, C), lambda bookie: bookie == A) == [B, C, A]
    assert replica_order((A, B, C), lambda bookie: True) == [A, B, C]


def test_ranges_end_at_fragments_and_at_the_last_entry() -> None:
    metadata = ledger(ensembles=((0, (A, B)), (10, (A, C)), (10, (B, C)), (25, (A, B))))
    cut = list(read_ranges(metadata, 3, 30, lambda: 8))
    assert cut == [
        (3, 9, (A, B)),
        (10, 17, (B, C)),
        (18, 24, (B, C)),
        (25, 30, (A, B)),
    ]
    assert list(read_ranges(metadata, 5, 4, lambda: 8)) == []


def test_lac_read_is_done_when_answers_cover_the_ensemble() -> None:
    core = LacRead(ledger(3, 3, 2))
    core.answered(0, 5, 600)
    assert not core.is_done
    core.failed(1, EntryNotFound())
    assert core.is_done
    assert core.is_covered
    assert (core.last_add_confirmed, core.length) == (5, 600)


def test_lac_read_takes_failures_as_unknown() -> None:
    core = LacRead(ledger(3, 3, 2))
    core.answered(0, 5, 600)
    core.failed(1, DigestMismatch())
    assert not core.is_done
    core.failed(2, BookieTimeout())
    assert core.is_done
    assert not core.is_covered
    assert type(core.failure()) is BookieTimeout


def test_lac_read_ends_at_once_when_unauthorized() -> None:
    core = LacRead(ledger(3, 3, 2))
    core.failed(2, Unauthorized())
    assert core.is_done
    assert not core.is_covered
    assert type(core.failure()) is Unauthorized


def test_a_long_poll_round_needs_enough_empty_answers() -> None:
    polls = LongPollRound(ledger(3, 3, 2), (A, B, C))
    assert polls.next() == A
    polls.empty()
    assert polls.next() == B
    polls.empty()
    assert polls.next() is None
    assert polls.failure() is None


def test_a_long_poll_round_reports_the_error_when_nobody_answered() -> None:
    polls = LongPollRound(ledger(3, 3, 2), (A, B, C))
    for error in (BookieUnreachable(), EntryNotFound(), EntryNotFound()):
        bookie = polls.next()
        assert bookie is not None
        polls.failed(bookie, error)
    assert polls.next() is None
    assert type(polls.failure()) is EntryNotFound  # More than E - Qa said "missing".


def test_one_answer_makes_a_round_a_success() -> None:
    polls = LongPollRound(ledger(3, 3, 2), (A, B, C))
    polls.failed(A, BookieTimeout())
    polls.empty()
    polls.failed(C, BookieTimeout())
    assert polls.failure() is None


@pytest.mark.parametrize(
    ("state", "expected"), [(LedgerState.OPEN, True), (LedgerState.IN_RECOVERY, False), (LedgerState.CLOSED, False)]
)
def test_growth_is_trusted_only_while_the_writer_decides(state: LedgerState, expected: bool) -> None:
    assert is_growth_trusted(ledger(state=state)) is expected
