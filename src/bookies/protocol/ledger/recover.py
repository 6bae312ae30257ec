"""Decisions of a recovery: whether an entry exists, which entries to read, when the tail is complete.

Theory of operation
-------------------
    S1  announce: swap OPEN for IN_RECOVERY      first of all: then the writer can change no ensemble (I-5, X-13)
    S2  fence the last fragment                  of the record that announced (X-14); see `fence.py`
    S3  start after the known confirmed prefix
    S4  read entry after entry, fencing again    until one is absent; undecided: abort, change nothing
    S5  write each found entry back              through `AddPipeline`, concurrently with S4
    S6  close: swap IN_RECOVERY for CLOSED       with the fragments that S5 made in memory; if CLOSED already: adopt it

Each entry gets exactly one of three verdicts:

* *found*: one verified copy. It may have been confirmed; keeping an unconfirmed entry is always allowed.
* *absent*: `Qw - Qa + 1` definite negatives. Fewer than `Qa` bookies can hold it, so it was not confirmed; and since
  the read fenced each bookie before it answered, it never will be (I-6, X-11).
* *undecided*: every replica has answered, and neither of the above holds. The recovery aborts. An error is not a
  negative: a bookie that is unreachable, has a bad disk or is in limbo may be the one that holds the entry (I-1, X-3,
  X-45).

The recovery reads only from the bookies of the announced record. A replacement that write-back chose truthfully
answers "no such entry", and counting that would cut the ledger (I-10). The first absent entry ends the ledger; later
ones are dropped even if they are found, because confirmation is in order (X-10).

Source: client-protocol 4.1, 4.5 to 4.9.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NamedTuple

from bookies.errors import (
    BookieTimeout,
    BookKeeperError,
    ClientClosed,
    RecoveryFailed,
    Unauthorized,
)
from bookies.model import BookieId, LedgerMetadata
from bookies.protocol.ledger.bookie_health import no_rank
from bookies.protocol.ledger.read import NEGATIVE, ErrorChoice
from bookies.protocol.quorums import write_set
from bookies.protocol.quorums.quorum import negatives_needed


class Verdict(enum.Enum):
    FOUND = "found"
    ABSENT = "absent"
    UNDECIDED = "undecided"


class EntryRead:
    """Recovery read of one entry. Ask replicas one after the other, or several at once; report every answer.

    metadata: the announced record.
    suspects: bookies to ask last, because they failed before. They are never left out.
    rank: of each bookie, the lowest is asked first. It orders the requests and has no part in the verdict.
    """

    def __init__(
        self,
        metadata: LedgerMetadata,
        entry_id: int,
        suspects: frozenset[BookieId] = frozenset(),
        rank: Callable[[BookieId], int] = no_rank,
    ) -> None:
        ensemble = metadata.ensemble_at(entry_id)
        positions = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
        self.entry_id = entry_id
        self._order = sorted(
            (ensemble[position] for position in positions), key=lambda bookie: (bookie in suspects, rank(bookie))
        )
        self._next = 0
        self._answers = 0
        self._negatives = 0
        self._negatives_needed = negatives_needed(metadata.write_quorum, metadata.ack_quorum)
        self._errors = ErrorChoice()
        self.verdict: Verdict | None = None  # the first one is final

    def next(self) -> BookieId | None:
        """Return another replica to ask; None when all have been asked or the verdict is known."""
        if self.verdict is not None or self._next == len(self._order):
            return None
        self._next += 1
        return self._order[self._next - 1]

    @property
    def has_more(self) -> bool:
        """Report whether there are replicas that have not been asked."""
        return self._next < len(self._order)

    @property
    def negatives_missing(self) -> int:
        """Return how many more definite negatives would make the entry absent."""
        return max(0, self._negatives_needed - self._negatives)

    @property
    def error(self) -> BookKeeperError:
        """Return the error to report for an undecided entry, or one of the negatives."""
        assert self._errors.error is not None
        return self._errors.error

    def found(self) -> Verdict:
        """Record a copy whose digest, ledger id and entry id verify."""
        self._answers += 1
        self.verdict = self.verdict or Verdict.FOUND
        return self.verdict

    def failed(self, bookie: BookieId, error: BookKeeperError) -> Verdict | None:
        """Record any other answer, including a bad digest. None: ask, or wait for, another replica."""
        self._answers += 1
        if self.verdict is None:
            self._errors.note(bookie, error)
            self._negatives += isinstance(error, NEGATIVE)
            if self._negatives >= self._negatives_needed:
                self.verdict = Verdict.ABSENT
            elif self._answers == len(self._order):
                self.verdict = Verdict.UNDECIDED
        return self.verdict


class WriteBack(NamedTuple):
    """Effect: add the entries first..last, in order, with payload and length unchanged."""

    first: int
    last: int


class EndOfLedger(NamedTuple):
    """Effect: close at the last entry to keep, when every `WriteBack` is confirmed."""

    last_entry_id: int


class Undecided(NamedTuple):
    """Effect: abort the recovery; the ledger stays in recovery."""

    entry_id: int


TailEffect = WriteBack | EndOfLedger | Undecided


class TailScan:
    """Scan of the tail: hands out ids to read, and puts their verdicts, which arrive in any order, in id order.

    `width`: number of ids that may be in flight at once. Report a read that returned a run of entries as one.
    """

    def __init__(self, start: int, width: int) -> None:
        self._next_read = start + 1
        self._next_kept = start + 1
        self._width = width
        self._verdicts: dict[int, tuple[int, Verdict]] = {}  # first id -> last id and verdict, not yet consumed
        self.is_ended = False

    def reads(self) -> range:
        """Return the ids to start reading now, each handed out once."""
        ids = range(self._next_read, self._next_read if self.is_ended else self._next_kept + self._width)
        self._next_read = max(self._next_read, ids.stop)
        return ids

    def decided(self, first: int, last: int, verdict: Verdict) -> list[TailEffect]:
        """Record the verdict on ids first..last. Write found ids back in order; the first absent one ends the ledger.

        Runs longer than one id need `width` 1, so that no other read is in flight inside them.
        """
        assert first == last or self._width == 1
        if self.is_ended:
            return []
        self._verdicts[first] = last, verdict
        effects: list[TailEffect] = []
        kept_from = self._next_kept
        while self._next_kept in self._verdicts and not self.is_ended:
            last, verdict = self._verdicts.pop(self._next_kept)
            if verdict is Verdict.FOUND:
                self._next_kept = last + 1
            else:
                self.is_ended = True
        if kept_from < self._next_kept:
            effects.append(WriteBack(kept_from, self._next_kept - 1))
        if self.is_ended and verdict is Verdict.ABSENT:
            effects.append(EndOfLedger(self._next_kept - 1))
        elif self.is_ended:
            effects.append(Undecided(self._next_kept))
        self._next_read = max(self._next_read, self._next_kept)
        return effects


def recovery_error(cause: BookKeeperError, ledger_id: int) -> BookKeeperError:
    """Return the error for the caller of a recovery. Raise it `from cause`. Source: client-protocol 4.10."""
    if isinstance(cause, BookieTimeout | Unauthorized | ClientClosed):
        return cause
    return RecoveryFailed(
        f"the end of the ledger could not be decided; nothing was lost, recover it again later. Cause: {cause}",
        ledger_id=ledger_id,
    )
