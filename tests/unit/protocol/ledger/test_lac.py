"""Coverage of LAC reads, try-reads, long-poll rounds: client-protocol 3.5 and 3.6 as tables."""

from __future__ import annotations

import pytest

from bookies.errors import (
    BookieTimeout,
    BookieUnreachable,
    DigestMismatch,
    EntryNotFound,
    LedgerUnknownToBookie,
    ReadFailed,
    Unauthorized,
)
from bookies.model import BookieId, LedgerMetadata, LedgerState
from bookies.protocol.ledger.lac import LacRead, LongPollRound, TryLacRead, is_growth_trusted

A, B, C = BookieId("b0"), BookieId("b1"), BookieId("b2")
ORDER = (0, 1, 2)


def ledger(ensemble: int = 3, write_quorum: int = 3, ack_quorum: int = 2, **changes: object) -> LedgerMetadata:
    names = tuple(BookieId(f"b{number}") for number in range(ensemble))
    return LedgerMetadata(7, ensemble, write_quorum, ack_quorum, ((0, names),)).replace(**changes)


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


def test_a_refusal_is_reported_whatever_comes_after_it() -> None:
    core = LacRead(ledger(3, 3, 2))
    core.failed(1, Unauthorized())
    core.failed(0, BookieTimeout())
    core.answered(2, 5, 600)
    assert core.is_done
    assert type(core.failure()) is Unauthorized


def test_a_lac_read_without_any_error_says_that_nobody_answered() -> None:
    assert type(LacRead(ledger(3, 3, 2)).failure()) is ReadFailed


def test_a_try_read_ends_with_the_first_news() -> None:
    core = TryLacRead(ledger(3, 3, 2), 4)
    core.answered(1, 4, 500)
    assert not core.is_done
    core.answered(0, 5, 600)
    assert core.is_done
    assert core.is_covered
    assert core.last_add_confirmed == 5


@pytest.mark.parametrize("error", [LedgerUnknownToBookie, EntryNotFound])
def test_a_try_read_is_content_with_one_answer_when_all_have_spoken(error: type[EntryNotFound]) -> None:
    core = TryLacRead(ledger(3, 3, 2), 4)
    core.failed(0, BookieTimeout())
    core.failed(1, error())
    assert not core.is_done
    core.failed(2, BookieUnreachable())
    assert core.is_done
    assert core.is_covered


def test_a_try_read_fails_when_nobody_answered_or_somebody_refused() -> None:
    silent, refused = TryLacRead(ledger(2, 2, 2), 4), TryLacRead(ledger(2, 2, 2), 4)
    for position in range(2):
        silent.failed(position, BookieTimeout())
    assert silent.is_done
    assert not silent.is_covered
    refused.answered(0, 9, 10)
    refused.failed(1, Unauthorized())
    assert refused.is_done
    assert not refused.is_covered


def test_a_long_poll_round_needs_enough_empty_answers() -> None:
    polls = LongPollRound(ledger(3, 3, 2), ORDER)
    assert polls.due() == (0,)
    assert polls.due() == ()
    polls.empty()
    assert not polls.is_over
    assert polls.due() == (1,)
    polls.empty()
    assert polls.is_over
    assert (polls.due(), polls.late()) == ((), ())
    assert polls.failure() is None


def test_a_silent_bookie_gets_company() -> None:
    polls = LongPollRound(ledger(3, 3, 2), ORDER)
    assert (polls.due(), polls.late(), polls.late()) == ((0,), (1,), (2,))
    assert not polls.has_more
    polls.failed(C, BookieTimeout())
    assert not polls.is_over
    polls.empty()
    polls.empty()
    assert polls.is_over


def test_a_long_poll_round_reports_the_error_when_nobody_answered() -> None:
    polls = LongPollRound(ledger(3, 3, 2), ORDER)
    for bookie, error in ((A, BookieUnreachable()), (B, EntryNotFound()), (C, EntryNotFound())):
        assert len(polls.due()) == 1
        polls.failed(bookie, error)
    assert polls.is_over
    assert type(polls.failure()) is EntryNotFound  # More than E - Qa said "missing".


def test_a_long_poll_round_prefers_the_informative_error() -> None:
    polls = LongPollRound(ledger(3, 3, 2), ORDER)
    for bookie, error in ((A, BookieUnreachable()), (B, EntryNotFound()), (C, BookieTimeout())):
        polls.due()
        polls.failed(bookie, error)
    assert type(polls.failure()) is BookieTimeout


def test_one_answer_makes_a_round_a_success() -> None:
    polls = LongPollRound(ledger(3, 3, 2), ORDER)
    polls.due()
    polls.failed(A, BookieTimeout())
    polls.due()
    polls.empty()
    polls.due()
    polls.failed(C, BookieTimeout())
    assert polls.is_over
    assert polls.failure() is None


def test_a_refusal_ends_a_round_at_once() -> None:
    polls = LongPollRound(ledger(3, 3, 2), ORDER)
    polls.due()
    polls.failed(A, BookieTimeout())
    polls.due()
    polls.failed(B, Unauthorized())
    assert polls.is_over
    assert type(polls.failure()) is Unauthorized


def test_parallel_polls_end_when_enough_say_that_there_is_nothing() -> None:
    polls = LongPollRound(ledger(3, 3, 2), ORDER, is_parallel=True)
    assert polls.due() == ORDER
    polls.failed(A, LedgerUnknownToBookie())
    assert not polls.is_over
    polls.failed(C, EntryNotFound())
    assert polls.is_over
    assert isinstance(polls.failure(), LedgerUnknownToBookie | EntryNotFound)


@pytest.mark.parametrize(
    ("state", "expected"), [(LedgerState.OPEN, True), (LedgerState.IN_RECOVERY, False), (LedgerState.CLOSED, False)]
)
def test_growth_is_trusted_only_while_the_writer_decides(state: LedgerState, expected: bool) -> None:
    assert is_growth_trusted(ledger(state=state)) is expected
