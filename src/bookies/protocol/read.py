"""Reading without IO: which replicas in which order, which error to report, how far a last add confirmed is certain.

A shell asks, reports what came back, and is told what to do next. Source: client-protocol 1.7, 3.2 to 3.6 and 3.8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from bookies.errors import (
    BookieUnreachable,
    BookKeeperError,
    EntryNotFound,
    LedgerUnknownToBookie,
    ReadFailed,
    Unauthorized,
)
from bookies.model import BookieId, Ensemble, LedgerMetadata, fragments_of
from bookies.protocol.quorum import covered

NEGATIVE = (EntryNotFound, LedgerUnknownToBookie)  # definite: this replica never acknowledged the entry

DROPS_OF_A_BATCH_READER = 3  # lost connections in a row that turn even a bookie that did answer batch reads into one
# that does not know them (any more)


class ErrorChoice:
    """The error finally reported when no replica could answer.

    "No such entry" only if every replica said so; otherwise the first informative error, real failures before
    connection failures. Source: client-protocol 3.4 `note`.
    """

    __slots__ = ("causes", "error")

    def __init__(self) -> None:
        self.error: BookKeeperError | None = None
        self.causes: dict[BookieId, BookKeeperError] = {}

    def note(self, bookie: BookieId, error: BookKeeperError) -> None:
        self.causes[bookie] = error
        chosen = self.error
        if (
            chosen is None
            or isinstance(chosen, NEGATIVE)
            or (_is_connection_failure(chosen) and not isinstance(error, NEGATIVE))
        ):
            self.error = error


class ReplicaChoice:
    """Ask the replicas of one entry one after the other. Source: client-protocol 3.4, sequential mode."""

    __slots__ = ("_errors", "_next", "_order")

    def __init__(self, order: Sequence[BookieId]) -> None:
        assert order
        self._order = order
        self._next = 0
        self._errors = ErrorChoice()

    def next(self) -> BookieId | None:
        """The replica to ask now; None when all have failed, then `error` says what to report."""
        if self._next == len(self._order):
            return None
        self._next += 1
        return self._order[self._next - 1]

    def failed(self, bookie: BookieId, error: BookKeeperError) -> None:
        self._errors.note(bookie, error)

    @property
    def error(self) -> BookKeeperError:
        assert self._errors.error is not None
        return self._errors.error

    @property
    def causes(self) -> dict[BookieId, BookKeeperError]:
        """What each replica answered."""
        return self._errors.causes


def replica_order(replicas: Sequence[BookieId], is_suspect: Callable[[BookieId], bool]) -> Sequence[BookieId]:
    """The replicas in the order in which to ask: suspects last; permutes, never drops. Source: client-protocol 3.3."""
    return sorted(replicas, key=is_suspect)


def read_ranges(
    metadata: LedgerMetadata, first: int, last: int, count: Callable[[], int]
) -> Iterator[tuple[int, int, Ensemble]]:
    """Cut first..last into (first, last, ensemble) ranges of at most `count()` entries, none across fragments.

    The caller has bounded `last` by the last add confirmed, so no range reaches beyond it. Source: client-protocol
    3.8 (clipping).
    """
    for start, stop, ensemble in fragments_of(metadata, last):
        at = max(start, first)
        while at <= stop:
            end = min(stop, at + max(1, count()) - 1)
            yield at, end, ensemble
            at = end + 1


class BatchSupport:
    """Which bookies know batch reads. Those before 4.17 close the connection when they meet one.

    A closed connection may have other reasons, so it counts only when the bookie then answers a single read; and a
    bookie that ever answered a batch read has to do so several times in a row. One that is taken for an old one stays
    it for the life of the client: every further try would cost the connection, with all that is under way on it.
    Source: client-protocol 3.8 (D-17, X-63).
    """

    def __init__(self) -> None:
        self._drops: dict[BookieId, int] = {}  # in a row, each followed by the answer to a single read
        self._suspects: dict[BookieId, None] = {}  # dropped the connection, and did not answer anything since
        self._known: dict[BookieId, None] = {}  # answered a batch read at least once

    def knows(self, bookie: BookieId) -> bool:
        """Whether it may be asked."""
        if bookie in self._suspects:
            return False  # A single read will tell.
        return self._drops.get(bookie, 0) < (DROPS_OF_A_BATCH_READER if bookie in self._known else 1)

    def answered_batch(self, bookie: BookieId) -> None:
        """Whatever it said: it understood the question."""
        self._known[bookie] = None
        self._suspects.pop(bookie, None)
        self._drops.pop(bookie, None)

    def dropped(self, bookie: BookieId) -> None:
        """The connection was lost while a batch read was under way."""
        self._suspects[bookie] = None

    def answered_single(self, bookie: BookieId) -> None:
        """It answered a single read, whatever it said."""
        if bookie in self._suspects:
            del self._suspects[bookie]
            self._drops[bookie] = self._drops.get(bookie, 0) + 1


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
            self._waiting = 0
        self.error = error

    @property
    def is_covered(self) -> bool:
        if isinstance(self.error, Unauthorized):
            return False
        return covered(self._known, self._write_quorum, self._ack_quorum)

    @property
    def is_done(self) -> bool:
        return self._waiting == 0 or self.is_covered

    def failure(self) -> BookKeeperError:
        """What to report when it is done without coverage: the last error seen."""
        return self.error or ReadFailed("no bookie answered", ledger_id=self._ledger_id)


class LongPollRound:
    """Ask the bookies of an ensemble, one after the other, to answer when the last add confirmed exceeds a value.

    Concluding "nothing new" takes `ensemble - ack_quorum + 1` empty answers, because an advance may be visible only
    in some write sets; it is only a matter of freshness. Source: client-protocol 3.6.
    """

    def __init__(self, metadata: LedgerMetadata, order: Sequence[BookieId]) -> None:
        self._choice = ReplicaChoice(order)
        self._missing = 0
        self._empties = 0
        self._enough = metadata.ensemble_size - metadata.ack_quorum + 1

    def next(self) -> BookieId | None:
        """The bookie to ask now; None when the round has ended."""
        return None if self._empties >= self._enough else self._choice.next()

    def empty(self) -> None:
        self._empties += 1

    def failed(self, bookie: BookieId, error: BookKeeperError) -> None:
        self._missing += isinstance(error, NEGATIVE)
        self._choice.failed(bookie, error)

    def failure(self) -> BookKeeperError | None:
        """What to report at the end of a round; None when any bookie answered."""
        if self._empties:
            return None
        error = self._choice.error
        if _is_connection_failure(error) and self._missing >= self._enough:
            return EntryNotFound("no bookie holds the entry")
        return error


def is_growth_trusted(metadata: LedgerMetadata) -> bool:
    """Whether a last add confirmed that bookies report may raise the reader's.

    Not of a closed ledger, whose end is decided (D-6), nor of one in recovery, where another implementation's
    recovery may write provisional values. Source: client-protocol 3.2 and 3.6 (strict tailing).
    """
    return metadata.state.name == "OPEN"


def _is_connection_failure(error: BookKeeperError) -> bool:
    return type(error) is BookieUnreachable


__all__ = [
    "DROPS_OF_A_BATCH_READER",
    "NEGATIVE",
    "BatchSupport",
    "ErrorChoice",
    "LacRead",
    "LongPollRound",
    "ReplicaChoice",
    "is_growth_trusted",
    "read_ranges",
    "replica_order",
]
