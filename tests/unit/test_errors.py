"""The one table between statuses and exceptions, complete in both directions. Source: wire-protocol 6.1."""

from __future__ import annotations

import inspect

import pytest

from bookies import errors
from bookies.errors import Status, error_of_status, status_of_error

OF_THE_OPERATION = {Status.IO_ERROR, Status.BAD_REQUEST}
CODES = {
    Status.NO_ENTRY: -13,
    Status.NO_LEDGER: -7,
    Status.BAD_VERSION: -16,
    Status.UNAUTHORIZED: -102,
    Status.FENCED: -101,
    Status.READ_ONLY: -104,
    Status.TOO_MANY_REQUESTS: -105,
    Status.UNKNOWN_LEDGER_STATE: -108,
}


def test_every_status_has_an_exception() -> None:
    assert set(CODES) | OF_THE_OPERATION | {Status.OK} == set(Status)
    for status, code in CODES.items():
        for is_write in (False, True):
            error = error_of_status(status, is_write=is_write, ledger_id=1, entry_id=2, bookie="b:1")
            assert error.code == code
            assert (error.ledger_id, error.entry_id, error.bookie) == (1, 2, "b:1")


@pytest.mark.parametrize("status", sorted(OF_THE_OPERATION, key=lambda status: status.value))
def test_the_others_depend_on_what_was_asked(status: Status) -> None:
    assert type(error_of_status(status, is_write=True)) is errors.WriteFailed
    assert type(error_of_status(status, is_write=False)) is errors.ReadFailed
    assert (errors.WriteFailed.code, errors.ReadFailed.code) == (-12, -1)


def test_every_such_exception_has_its_status() -> None:
    for status, kind in errors.ERROR_OF_STATUS.items():
        assert status_of_error(kind()) is status
    for status in CODES:
        assert status_of_error(error_of_status(status, is_write=True)) is status


def test_what_is_no_definite_statement_is_an_io_error() -> None:
    assert status_of_error(OSError("disk")) is Status.IO_ERROR
    assert status_of_error(errors.CorruptRecord("bad", path="log", offset=3)) is Status.IO_ERROR
    assert status_of_error(errors.ReadFailed()) is Status.IO_ERROR
    assert status_of_error(errors.BookieTimeout()) is Status.IO_ERROR
    assert status_of_error(errors.InvalidArgument()) is Status.BAD_REQUEST
    assert status_of_error(errors.RemoteProtocolError()) is Status.BAD_REQUEST


def test_negative_answers_come_from_nothing_but_their_own_exceptions() -> None:
    negative = {Status.NO_ENTRY: errors.EntryNotFound, Status.NO_LEDGER: errors.LedgerUnknownToBookie}
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, BaseException) and kind is not errors.CorruptRecord:
            status = status_of_error(kind())
            assert status not in negative or negative[status] is kind, name
