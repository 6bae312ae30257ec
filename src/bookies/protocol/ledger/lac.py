"""Learning the last add confirmed without IO: asking an ensemble, how far the answers are certain, waiting for news.

A last add confirmed that is too low only makes a reader late, one that is too high would show entries that the ledger
may not contain; so values are believed when a correct writer sent them, and the greatest counts.
Source: client-protocol 1.7, 3.2, 3.5 and 3.6.
"""

from __future__ import annotations

from collections.abc import Sequence

from bookies.errors import BookKeeperError, EntryNotFound, ReadFailed, Unauthorized
from bookies.model import BookieId, LedgerMetadata, LedgerState
from bookies.protocol.ledger.read import NEGATIVE, ErrorChoice, is_connection_failure
from bookies.protocol.quorums.quorum import covered


class LacRead:
    """Collect the answers of an ensemble to "what is your last add confirmed?".

    Done when no entry can have reached its ack quorum on bookies that are still unknown; the result is the greatest
    value. An answer whose digest is bad is a failure here (D-9). Source: client-protocol 1.7 and 3.5.
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
        """A valid answer: its last add confirmed and the ledger's length there, -1 and 0 when it holds nothing."""
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
        """Whether the answers say enough."""
        return covered(self._known, self._write_quorum, self._ack_quorum)

    @property
    def is_covered(self) -> bool:
        """Whether there is a result. A refusal ends everything."""
        return self.refusal is None and self.has_result

    @property
    def is_done(self) -> bool:
        return self.refusal is not None or self._waiting == 0 or self.has_result

    def failure(self) -> BookKeeperError:
        """What to report when it is done without a result: the refusal, or the last error seen."""
        return self.refusal or self.error or ReadFailed("no bookie answered", ledger_id=self._ledger_id)


class TryLacRead(LacRead):
    """As `LacRead`, but content with the first value above `known`, or else with any answer at all.

    Quick instead of certain: a value that it returns is confirmed, but there may be a greater one.
    Source: client-protocol 3.5, the try-read.
    """

    def __init__(self, metadata: LedgerMetadata, known: int) -> None:
        super().__init__(metadata)
        self._known_before = known

    @property
    def has_result(self) -> bool:
        """Whether there are news, or one valid answer when all have answered."""
        return self.last_add_confirmed > self._known_before or (self._waiting == 0 and any(self._known))


class LongPollRound:
    """Ask the bookies of an ensemble, one after the other or all at once, to answer when the last add confirmed
    exceeds a value.

    Concluding "nothing new" takes `ensemble - ack_quorum + 1` empty answers, because an advance may be visible only
    in some write sets; it is only a matter of freshness. Source: client-protocol 3.6.
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
        """The positions to ask now: all, or the next one when nobody else is being asked; none at the end."""
        if self._waiting or self.is_over:
            return ()
        return self._take(len(self._order) if self._is_parallel else 1)

    def late(self) -> Sequence[int]:
        """The position to ask as well, because those that were asked are silent."""
        return () if self.is_over else self._take(1)

    def empty(self) -> None:
        """An answer without news."""
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
        """Whether there are positions that were not asked."""
        return self._next < len(self._order)

    @property
    def is_over(self) -> bool:
        if self._refusal is not None or self._empties >= self._enough:
            return True
        if self._is_parallel and self._missing >= self._enough:
            return True
        return not self.has_more and not self._waiting

    def failure(self) -> BookKeeperError | None:
        """What to report at the end of a round; None when any bookie answered."""
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
    """Whether a last add confirmed that bookies report may raise the reader's.

    Not of a closed ledger, whose end is decided (D-6), nor of one in recovery, where another implementation's
    recovery may write provisional values. Source: client-protocol 3.2 and 3.6 (strict tailing).
    """
    return metadata.state is LedgerState.OPEN


__all__ = ["LacRead", "LongPollRound", "TryLacRead", "is_growth_trusted"]
