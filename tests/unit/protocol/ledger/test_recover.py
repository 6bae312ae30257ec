"""What a recovery reports; its decisions are in the scenarios `recover/` and `fence/`."""

from __future__ import annotations

import pytest

from bookies import errors
from bookies.protocol.ledger.recover import TailScan, Verdict, recovery_error


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
