"""Reads without IO: which replicas to ask in which order, which error to report, what one request may cover.

The caller sends the requests, reports their answers here, and gets the next step. Replicas are positions in an
ensemble, not bookies, because metadata may list a bookie twice. Source: client-protocol 3.2 to 3.4, 3.7 and 3.8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from bookies.errors import (
    BookieBusy,
    BookieUnreachable,
    BookKeeperError,
    DataUnknown,
    DigestMismatch,
    EntryNotFound,
    LedgerUnknownToBookie,
    Unauthorized,
)
from bookies.model import BookieId, Ensemble, LedgerMetadata, fragments_of
from bookies.protocol.quorums import write_set

NEGATIVE = (EntryNotFound, LedgerUnknownToBookie)  # definite: this replica never acknowledged the entry
DROPS_OF_A_BATCH_READER = 3  # consecutive lost connections after which a bookie that has answered batch reads counts as
# one without them

WAYS_OUT: Sequence[tuple[type[BookKeeperError], str]] = (
    (BookieUnreachable, "Start these bookies, or read again when they can be reached"),
    (BookieBusy, "Read again later"),
    (DataUnknown, "Read again when these bookies have been repaired"),
    (DigestMismatch, "`bk ledger verify` checks every replica"),
    (Unauthorized, "Open the ledger with its password, as a user who may read it"),
)


class ErrorChoice:
    """Choice of the error to report when no replica could answer.

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
            or (is_connection_failure(chosen) and not isinstance(error, NEGATIVE))
        ):
            self.error = error


class ReplicaReads:
    """Read of one entry from its replicas, one after the other, or all at once with `is_parallel`.

    Ask the positions that `due` returns. A good answer ends the read; report every other answer with `failed`. If a
    replica is slow, `late` returns a further one. Do not report answers that arrive after a good one (X-57).
    Source: client-protocol 3.4.
    """

    __slots__ = ("_choice", "_is_parallel", "_next", "_order", "_waiting")

    def __init__(self, order: Sequence[int], *, is_parallel: bool = False) -> None:
        assert order
        self._order = order
        self._is_parallel = is_parallel
        self._next = 0
        self._waiting = 0
        self._choice: ErrorChoice | None = None

    def due(self) -> Sequence[int]:
        """Return the positions to ask now: the first, the next when all that were asked have failed; none otherwise."""
        if self._waiting or self._next == len(self._order):
            return ()
        return self._take(len(self._order) if self._is_parallel else 1)

    def late(self) -> Sequence[int]:
        """Return a further position to ask, because those already asked are slow; none when all have been asked."""
        return self._take(1) if self.has_more else ()

    def failed(self, bookie: BookieId, error: BookKeeperError) -> None:
        self._waiting -= 1
        if self._choice is None:
            self._choice = ErrorChoice()
        self._choice.note(bookie, error)

    @property
    def has_more(self) -> bool:
        """Report whether there are positions that were not asked."""
        return self._next < len(self._order)

    @property
    def next_position(self) -> int | None:
        """Return the position that `late` would return; None if all have been asked."""
        return self._order[self._next] if self.has_more else None

    @property
    def has_failed(self) -> bool:
        """Report whether every replica was asked and none delivered; then `error` is the one to report."""
        return not self._waiting and not self.has_more

    @property
    def error(self) -> BookKeeperError:
        assert self._choice is not None
        assert self._choice.error is not None
        return self._choice.error

    @property
    def causes(self) -> dict[BookieId, BookKeeperError]:
        """Return the error of each replica."""
        return self._choice.causes if self._choice else {}

    def _take(self, count: int) -> Sequence[int]:
        taken = self._order[self._next : self._next + count]
        self._next += len(taken)
        self._waiting += len(taken)
        return taken


class StickyPosition:
    """Preferred position of a handle for all entries, if every bookie stores every entry.

    One bookie then reads ahead and caches for this reader. An error moves on to the next position.
    Source: client-protocol 3.7.
    """

    __slots__ = ("_size", "position")

    def __init__(self, ensemble_size: int, start: int) -> None:
        self._size = ensemble_size
        self.position = start % ensemble_size

    def failed(self, position: int) -> None:
        self.position = (position + 1) % self._size


class BatchSupport:
    """Support of batch reads by each bookie. Bookies before 4.17 close the connection when they receive one.

    A closed connection may have other reasons. So it counts only when the bookie then answers a single read, and for a
    bookie that ever answered a batch read only several times in a row. A bookie classified as old stays so for the life
    of the client: every further attempt would cost the connection, with all requests in flight on it.
    Source: client-protocol 3.8 (D-17, X-63).
    """

    def __init__(self) -> None:
        self._drops: dict[BookieId, int] = {}  # consecutive, each followed by the answer to a single read
        self._suspects: dict[BookieId, None] = {}  # dropped the connection, and have not answered since
        self._known: dict[BookieId, None] = {}  # answered a batch read at least once

    def knows(self, bookie: BookieId) -> bool:
        """Report whether the bookie may be sent a batch read."""
        drops = self._drops.get(bookie, 0) + (bookie in self._suspects)  # A single read decides about a suspect.
        return drops < (DROPS_OF_A_BATCH_READER if bookie in self._known else 1)

    def answered_batch(self, bookie: BookieId) -> None:
        """Record any answer to a batch read, also an error: the bookie understood the request."""
        self._known[bookie] = None
        self._suspects.pop(bookie, None)
        self._drops.pop(bookie, None)

    def dropped(self, bookie: BookieId) -> None:
        """Record that the connection was lost while a batch read was in flight."""
        self._suspects[bookie] = None

    def answered_single(self, bookie: BookieId) -> None:
        """Record any answer to a single read, also an error."""
        if bookie in self._suspects:
            del self._suspects[bookie]
            self._drops[bookie] = self._drops.get(bookie, 0) + 1


def replica_order(positions: Sequence[int], ensemble: Ensemble, rank: Callable[[BookieId], int]) -> Sequence[int]:
    """Return all positions in the order in which to ask them: the lowest rank first, otherwise as given.

    Source: client-protocol 3.3.
    """
    ranks = [rank(ensemble[position]) for position in positions]
    if ranks.count(ranks[0]) == len(ranks):
        return positions
    return [position for _, position in sorted(zip(ranks, positions, strict=True), key=lambda pair: pair[0])]


def run_size(position: int, entry_id: int, ensemble_size: int, write_quorum: int) -> int:
    """Return how many consecutive entries from `entry_id` on its replica at this position holds; 0: all that follow.

    In a striped ledger a bookie holds `write_quorum` consecutive entries and skips the next ones. The k-th replica of
    an entry (k from 0) holds k more. Source: client-protocol 1.6.
    """
    return 0 if ensemble_size == write_quorum else (position - entry_id) % ensemble_size + 1


def longest_run_first(entry_id: int, ensemble_size: int, write_quorum: int) -> Sequence[int]:
    """Return the write set of an entry of a striped ledger, ordered by how many of the following entries are held."""
    return write_set(entry_id, ensemble_size, write_quorum)[::-1]


def read_ranges(
    metadata: LedgerMetadata, first: int, last: int, count: Callable[[Ensemble], int]
) -> Iterator[tuple[int, int, Ensemble]]:
    """Cut first..last into (first, last, ensemble) ranges of at most `count(ensemble)` entries, none across fragments.

    The caller has bounded `last` by the last add confirmed, so no range exceeds it. Source: client-protocol 3.8
    (clipping, D-8).
    """
    for start, stop, ensemble in fragments_of(metadata, last):
        begin = max(start, first)
        while begin <= stop:
            end = min(stop, begin + max(1, count(ensemble)) - 1)
            yield begin, end, ensemble
            begin = end + 1


def why_unreadable(
    error: BookKeeperError, causes: Mapping[BookieId, BookKeeperError], ledger_id: int, entry_id: int
) -> BookKeeperError:
    """Return the chosen error for an entry that no replica delivered, with the answer of each replica and advice."""
    answers = "; ".join(f"{bookie}: {cause.message}" for bookie, cause in causes.items())
    if isinstance(error, NEGATIVE):
        text = f"no replica holds the entry: {answers}"
    else:
        text = f"no replica could deliver: {answers}"
        advice = next((advice for error_class, advice in WAYS_OUT if isinstance(error, error_class)), None)
        text += f". {advice}" if advice else ""
    described = type(error)(text, ledger_id=ledger_id, entry_id=entry_id, bookie=error.bookie)
    described.__cause__ = error
    return described


def is_connection_failure(error: BookKeeperError) -> bool:
    """Report whether the bookie was unreachable or the connection to it was lost; False for a timeout."""
    return type(error) is BookieUnreachable


__all__ = [
    "DROPS_OF_A_BATCH_READER",
    "NEGATIVE",
    "BatchSupport",
    "ErrorChoice",
    "ReplicaReads",
    "StickyPosition",
    "is_connection_failure",
    "longest_run_first",
    "read_ranges",
    "replica_order",
    "run_size",
    "why_unreadable",
]
