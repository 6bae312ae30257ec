"""Reads of the last add confirmed (LAC) without IO: query of an ensemble, certainty of the result, long poll.

A LAC that is too low only delays a reader; one that is too high would show entries that the ledger may not contain. So
only values that a correct writer sent count, and the greatest of them is the result.
Source: client-protocol 1.7, 3.2, 3.5 and 3.6.
"""

from __future__ import annotations

from collections.abc import Sequence

from bookies.errors import BookKeeperError, EntryNotFound, ReadFailed, Unauthorized
from bookies.model import BookieId, LedgerMetadata, LedgerState
from bookies.protocol.ledger.read import NEGATIVE, ErrorChoice, is_connection_failure
from bookies.protocol.quorums.quorum import covered


class LacRead:
    """Answers of an ensemble to "what is your last add confirmed?".

    Done when no entry can have reached its ack quorum on the bookies that are still unknown. The result is the greatest
    value. An answer with a bad digest counts as a failure (D-9). Source: client-protocol 1.7 and 3.5.
    """

    def __init__(self, metadata: LedgerMetadata) -> None:
        self._ensemble = metadata.last_ensemble
        self._write_quorum = metadata.write_quorum
        self._ack_quorum = metadata.ack_quorum
        self._known = [False] * len(self._ensemble)
        self._waiting = len(self._ensemble)
        self._ledger_id = metadata.ledger_id
        self.last_add_confirmed = -1
        self.length = 0
        self.causes: dict[BookieId, BookKeeperError] = {}
        self.error: BookKeeperError | None = None
        self.refusal: Unauthorized | None = None

    def answered(self, position: int, last_add_confirmed: int, length: int) -> None:
        """Record a valid answer: its LAC and the ledger's length there; -1 and 0 when the bookie holds no entry."""
        self._waiting -= 1
        self._known[position] = True
        self.length = max(self.length, length)
        self.last_add_confirmed = max(self.last_add_confirmed, last_add_confirmed)

    def failed(self, position: int, error: BookKeeperError) -> None:
        if isinstance(error, NEGATIVE):
            self.answered(position, -1, 0)
            return
        self._waiting -= 1
        self.causes[self._ensemble[position]] = error
        if isinstance(error, Unauthorized):
            self.refusal = error
        self.error = error

    @property
    def has_result(self) -> bool:
        """Report whether the answers suffice."""
        return covered(self._known, self._write_quorum, self._ack_quorum)

    @property
    def is_covered(self) -> bool:
        """Report whether there is a result; never after a refusal, which ends the query."""
        return self.refusal is None and self.has_result

    @property
    def is_done(self) -> bool:
        return self.refusal is not None or self._waiting == 0 or self.has_result

    def failure(self) -> BookKeeperError:
        """Return the error of a query that ended without a result: the refusal, or the last error."""
        return self.refusal or self.error or ReadFailed("no bookie answered", ledger_id=self._ledger_id)


class TryLacRead(LacRead):
    """Quick LAC query: ends with the first value above `known`, or else with any answer.

    The returned value is confirmed, but there may be a greater one. Source: client-protocol 3.5, the try-read.
    """

    def __init__(self, metadata: LedgerMetadata, known: int) -> None:
        super().__init__(metadata)
        self._known_before = known

    @property
    def has_result(self) -> bool:
        """Report whether an answer is above the known value, or all have answered and one of them validly."""
        return self.last_add_confirmed > self._known_before or (self._waiting == 0 and any(self._known))


class LongPollRound:
    """One round of long polls: bookies answer when the LAC exceeds a value.

    Asks the bookies of an ensemble one after the other, or all at once with `is_parallel`. Concluding that the LAC has
    not advanced takes `ensemble - ack_quorum + 1` empty answers, because an advance may be visible only in some write
    sets. An early conclusion costs only freshness. Source: client-protocol 3.6.
    """

    def __init__(self, metadata: LedgerMetadata, order: Sequence[int], *, is_parallel: bool = False) -> None:
        self._ledger_id = metadata.ledger_id
        self._order = order
        self._is_parallel = is_parallel
        self._next = 0
        self._waiting = 0
        self._missing = 0
        self._empties = 0
        self._enough = metadata.ensemble_size - metadata.ack_quorum + 1
        self._refusal: Unauthorized | None = None
        self._errors = ErrorChoice()

    def due(self) -> Sequence[int]:
        """Return the positions to ask now: all, or the next one when no request is in flight; none at the end."""
        if self._waiting or self.is_over:
            return ()
        return self._take(len(self._order) if self._is_parallel else 1)

    def late(self) -> Sequence[int]:
        """Return a further position to ask, because those already asked have not answered in time."""
        return () if self.is_over else self._take(1)

    def empty(self) -> None:
        """Record an answer whose LAC has not advanced."""
        self._waiting -= 1
        self._empties += 1

    def failed(self, bookie: BookieId, error: BookKeeperError) -> None:
        self._waiting -= 1
        self._missing += isinstance(error, NEGATIVE)
        if isinstance(error, Unauthorized):
            self._refusal = error
        self._errors.note(bookie, error)

    @property
    def has_more(self) -> bool:
        """Report whether there are positions that were not asked."""
        return self._next < len(self._order)

    @property
    def is_over(self) -> bool:
        if self._refusal is not None or self._empties >= self._enough:
            return True
        if self._is_parallel and self._missing >= self._enough:
            return True
        return not self.has_more and not self._waiting

    def failure(self) -> BookKeeperError | None:
        """Return the error of a finished round; None when any bookie answered."""
        error = self._refusal or self._errors.error
        if error is self._refusal or self._empties:
            return self._refusal
        assert error is not None
        if is_connection_failure(error) and self._missing >= self._enough:
            return EntryNotFound("no bookie holds the entry", ledger_id=self._ledger_id)
        return error

    def _take(self, count: int) -> Sequence[int]:
        taken = self._order[self._next : self._next + count]
        self._next += len(taken)
        self._waiting += len(taken)
        return taken


def is_growth_trusted(metadata: LedgerMetadata) -> bool:
    """Report whether a LAC from bookies may raise the reader's: only of an OPEN ledger.

    The end of a closed ledger is decided (D-6). In a ledger in recovery, another implementation's recovery may write
    provisional values. Source: client-protocol 3.2 and 3.6 (strict tailing).
    """
    return metadata.state is LedgerState.OPEN


__all__ = ["LacRead", "LongPollRound", "TryLacRead", "is_growth_trusted"]
