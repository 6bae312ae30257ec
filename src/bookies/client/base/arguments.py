"""Checks of the arguments of public calls, and their time limits, with uniform messages."""

from __future__ import annotations

import asyncio
import contextlib
import operator
from collections.abc import Iterable, Iterator
from datetime import datetime
from types import TracebackType
from typing import SupportsIndex

from bookies.errors import CursorMoved, InvalidArgument, LogTruncated
from bookies.model import BookieId
from bookies.protocol.ledger.ledger import check_quorums
from bookies.protocol.log import Position

Moment = datetime | float
NUMBER_MAX = (1 << 63) - 1  # of ids and counts, which are int64 on the wire


def whole_number(name: str, value: object, low: int | None = 0, high: int = NUMBER_MAX) -> int:
    """Return the value as an int, also if its type counts as one, as numpy's do; text, fractions, bool and None do not.

    `name`: the argument's name, for the message. `low` None: the caller checks that bound. Raises `InvalidArgument`.
    """
    number = value if type(value) is int else _as_int(name, value)  # The check of a protocol costs microseconds.
    if number > high:
        raise InvalidArgument(f"{name}={number}: must be at most {high:,}")
    if low is not None and number < low:
        raise InvalidArgument(f"{name}={number}: must be {low:,} or more")
    return number


def _as_int(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise InvalidArgument(f"{name}={value!r}: must be a whole number, not {type(value).__name__}")
    return operator.index(value)


def quorums(ensemble: int, write_quorum: int | None, ack_quorum: int | None) -> tuple[int, int, int]:
    """Return the three sizes of a ledger, with defaults: all of the ensemble, and a majority of the write quorum.

    Raises `InvalidArgument`.
    """
    ensemble = whole_number("ensemble", ensemble, None)
    write_quorum = ensemble if write_quorum is None else whole_number("write_quorum", write_quorum, None)
    ack_quorum = write_quorum // 2 + 1 if ack_quorum is None else whole_number("ack_quorum", ack_quorum, None)
    check_quorums(ensemble, write_quorum, ack_quorum)
    return ensemble, write_quorum, ack_quorum


def any_ledger_id(value: object) -> int:
    """Return the id of a ledger that should exist. A number out of range is accepted: no ledger has that id."""
    return whole_number("ledger_id", value, None)


def position(name: str, value: object) -> Position:
    """Return a position in a log: a `Position`, or a pair of numbers. Raises `InvalidArgument`."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise InvalidArgument(f"{name}={value!r}: must be a Position, the id of a ledger and that of an entry")
    return Position(whole_number(f"{name}.ledger_id", value[0]), whole_number(f"{name}.entry_id", value[1]))


def bookie_id(value: object) -> BookieId:
    """Return the id of a bookie. Raises `InvalidArgument`."""
    if not isinstance(value, str) or not value:
        raise InvalidArgument(f"bookie={value!r}: must be a bookie id, a non-empty string")
    return BookieId(value)


def bookie_ids(name: str, value: object) -> list[BookieId]:
    """Return ids of bookies in their order, without duplicates. Raises `InvalidArgument`, also for a single string."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidArgument(f"{name}={value!r}: must be a list of bookies, as [{value!r}]")
    return list(dict.fromkeys(map(bookie_id, value)))


def percentage_of(value: object) -> float:
    """Return a percentage, 0 to 100. Raises `InvalidArgument`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
        raise InvalidArgument(f"percentage={value!r}: must be a number, 0 to 100")
    return value


def switch(name: str, value: object) -> bool:
    """Return a bool. Raises `InvalidArgument` for any other type: as a truth value, the text "no" would be True."""
    if not isinstance(value, bool):
        raise InvalidArgument(f"{name}={value!r}: must be True or False")
    return value


def rate(name: str, value: float | None) -> float | None:
    """Return a number above 0, or None. Raises `InvalidArgument`."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise InvalidArgument(f"{name}={value!r}: must be a number above 0, or None for no limit")
    return value


def seconds(timeout: float | None, name: str = "timeout") -> float | None:
    """Return a number of seconds, or None. `name`: the argument's name, for the message. Raises `InvalidArgument`."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
        raise InvalidArgument(f"{name}={timeout!r}: must be a number of seconds, 0 or more, or None")
    return timeout


def moment(name: str, value: Moment) -> int:
    """Return a moment in ms since 1970: of a datetime with a time zone, or of seconds. Raises `InvalidArgument`."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidArgument(f"{name}={value}: a time without a time zone is ambiguous: give it tzinfo")
        return _whole_ms(value.timestamp())
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < NUMBER_MAX // 1000:
        raise InvalidArgument(f"{name}={value!r}: must be a datetime with a time zone, or seconds since 1970")
    return _whole_ms(value)


def _whole_ms(seconds: float) -> int:
    """Return the ms that have passed; a whole number of them survives its division by 1,000."""
    return round(seconds * 1_000_000) // 1000


def milliseconds(name: str, value: float | None) -> int | None:
    """Return a duration in seconds as milliseconds, or None. Raises `InvalidArgument`."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < NUMBER_MAX // 1000:
        raise InvalidArgument(f"{name}={value!r}: must be a number of seconds above 0, or None for no limit")
    return max(1, int(value * 1000))


@contextlib.contextmanager
def named(log: str) -> Iterator[None]:
    """Let refusals of positions, cursors and entries name the log, unless they do."""
    try:
        yield
    except (CursorMoved, InvalidArgument, LogTruncated) as error:
        text = f"log {log}"
        if text not in error.message:
            error.args = (f"{text}: {error.message}",)
        raise


class TimeLimit:
    """`asyncio.timeout` with an error that names the operation and the seconds. `timeout` None: no limit.

    Raises `InvalidArgument` on construction.
    """

    __slots__ = ("_limit", "_timeout", "_what")

    def __init__(self, timeout: float | None, operation: str) -> None:
        self._timeout = seconds(timeout)
        self._what = operation
        self._limit: asyncio.Timeout | None = None

    async def __aenter__(self) -> None:
        if self._timeout is not None:
            self._limit = asyncio.timeout(self._timeout)
            await self._limit.__aenter__()

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._limit is None:
            return
        try:
            await self._limit.__aexit__(error_type, error, traceback)
        except TimeoutError as unnamed:  # A timeout of another limit is re-raised as `error`.
            raise TimeoutError(f"{self._what}: not done within {self._timeout:g} s") from unnamed
