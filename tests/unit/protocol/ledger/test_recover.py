"""What a recovery reports; its decisions are in the scenarios `recover/` and `fence/`."""

from __future__ import annotations

import pytest

from bookies import errors
from bookies.model import BookieId, LedgerMetadata
from bookies.protocol.ledger.recover import EntryRead, TailScan, Verdict, recovery_error

A, B, C = (BookieId(name) for name in "abc")


@pytest.mark.parametrize("kind", [errors.BookieTimeout, errors.Unauthorized, errors.ClientClosed])
def test_errors_that_pass_through(kind: type[errors.BookKeeperError]) -> None:
    cause = kind()
    assert recovery_error(cause, 7) is cause


@pytest.mark.parametrize(
    "kind",
    [
        errors.BookieUnreachable,
        errors.NotEnoughBookies,
        errors.DataUnknown,
        errors.LedgerNotFound,
        errors.MetadataError,
        errors.ReadFailed,
        errors.LocalProtocolError,
    ],
)
def test_everything_else_is_a_failed_recovery(kind: type[errors.BookKeeperError]) -> None:
    error = recovery_error(kind("the reason"), 7)
    assert type(error) is errors.RecoveryFailed
    assert error.retriable
    assert "nothing was lost" in str(error)
    assert "the reason" in str(error)
    assert error.ledger_id == 7


def test_runs_need_a_scan_of_width_one() -> None:
    with pytest.raises(AssertionError):
        TailScan(9, 4).decided(10, 12, Verdict.FOUND)


def test_only_definite_negatives_bring_an_absence_nearer() -> None:
    """X-11 and X-45: with 3/3/2 two bookies have to say that they lack the entry; a timeout says nothing of it."""
    read = EntryRead(LedgerMetadata(7, 3, 3, 2, ((0, (A, B, C)),)), 0)
    assert (read.negatives_missing, read.has_more) == (2, True)
    assert [read.next(), read.next()] == [A, B]
    assert read.failed(A, errors.BookieTimeout()) is None
    assert read.negatives_missing == 2
    assert read.failed(B, errors.EntryNotFound()) is None
    assert (read.negatives_missing, read.has_more) == (1, True), "c has not been asked"
    assert read.next() == C
    assert not read.has_more
    assert read.failed(C, errors.LedgerUnknownToBookie()) is Verdict.ABSENT
    assert read.negatives_missing == 0


def test_near_replicas_are_asked_first_and_suspects_last() -> None:
    record = LedgerMetadata(7, 3, 3, 2, ((0, (A, B, C)),))
    read = EntryRead(record, 0, frozenset([C]), {A: 2, B: 1, C: 0}.__getitem__)
    assert [read.next(), read.next(), read.next()] == [B, A, C]
