"""Recovery's decisions: is this entry there, which entries to read, when is the tail complete.

Theory of operation
-------------------
    S1  announce: swap OPEN for IN_RECOVERY      before anything else: the writer can then move nowhere (I-5, X-13)
    S2  fence the last fragment                  of the record that announced (X-14); see `fence.py`
    S3  start behind what is known confirmed
    S4  read entry after entry, fencing again    until one is absent; undecided: give up, change nothing
    S5  write each found entry back              through `AddPipeline`, concurrently with S4
    S6  close: swap IN_RECOVERY for CLOSED       with the fragments that S5 made in memory; CLOSED met: adopt it

Each entry gets one of three verdicts, and there is no fourth:

* *found*: one verified copy. It may have been confirmed; keeping an unconfirmed entry is always allowed.
* *absent*: `Qw - Qa + 1` definite negatives. Fewer than `Qa` bookies can hold it, so it was not confirmed; and since
  the read fenced each bookie before it answered, it never will be (I-6, X-11).
* *undecided*: everybody has answered and it is neither. The recovery aborts. An error is not a negative: the bookie
  that cannot be reached, has a bad disk or is in limbo may be the one that holds the entry (I-1, X-3, X-45).

Entries are asked for only at the bookies of the announced record. A replacement that write-back chose truthfully
answers "no such entry", and counting that would cut the ledger (I-10). The first absent entry ends the ledger; later
ones are dropped even if they are found, for confirmation is in order (X-10).

Source: client-protocol 4.1, 4.5 to 4.9.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from bookies.errors import (
    BookieTimeout,
    BookKeeperError,
    ClientClosed,
    RecoveryFailed,
    Unauthorized,
)
from bookies.model import BookieId, LedgerMetadata
from bookies.protocol.ledger.read import NEGATIVE, ErrorChoice
from bookies.protocol.quorums import write_set
from bookies.protocol.quorums.quorum import negatives_needed


class Verdict(enum.Enum):
    FOUND = "found"
    ABSENT = "absent"
    UNDECIDED = "undecided"


class EntryRead:
    """One recovery read. Ask replicas one after the other, or several at once; report every answer.

    `metadata` is the announced record. `suspects`: bookies to ask last, because they failed before; they are never
    left out.
    """

    def __init__(self, metadata: LedgerMetadata, entry_id: int, suspects: frozenset[BookieId] = frozenset()) -> None:
        ensemble = metadata.ensemble_at(entry_id)
        positions = write_set(entry_id, metadata.ensemble_size, metadata.write_quorum)
        self.entry_id = entry_id
        self._order = sorted((ensemble[position] for position in positions), key=lambda bookie: bookie in suspects)
        self._next = 0
        self._answers = 0
        self._negatives = 0
        self._negatives_needed = negatives_needed(metadata.write_quorum, metadata.ack_quorum)
        self._errors = ErrorChoice()
        self.verdict: Verdict | None = None  # the first one is final

    def next(self) -> BookieId | None:
        """Another replica to ask; None when all have been asked or the verdict is known."""
        if self.verdict is not None or self._next == len(self._order):
            return None
        self._next += 1
        return self._order[self._next - 1]

    @property
    def has_more(self) -> bool:
        """Whether there are replicas that have not been asked."""
        return self._next < len(self._order)

    @property
    def negatives_missing(self) -> int:
        """How many more definite negatives would make it absent."""
        return max(0, self._negatives_needed - self._negatives)

    @property
    def error(self) -> BookKeeperError:
        """Why it is undecided, or what the negatives said."""
        assert self._errors.error is not None
        return self._errors.error

    def found(self) -> Verdict:
        """A copy whose digest, ledger id and entry id verify."""
        self._answers += 1
        self.verdict = self.verdict or Verdict.FOUND
        return self.verdict

    def failed(self, bookie: BookieId, error: BookKeeperError) -> Verdict | None:
        """Any other answer, a bad digest included. None: ask, or wait for, another replica."""
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
    """Add the entries first..last, in order, each in its own words: payload and length unchanged."""

    first: int
    last: int


class EndOfLedger(NamedTuple):
    """The last entry to keep. Close when every `WriteBack` is confirmed."""

    last_entry_id: int


class Undecided(NamedTuple):
    """Give up; the ledger stays in recovery."""

    entry_id: int


TailEffect = WriteBack | EndOfLedger | Undecided


class TailScan:
    """Which ids to read, and what their verdicts, in whatever order they come, mean in id order.

    `width`: how many ids may be under way at once. A read that brought a run of entries reports it as one.
    """

    def __init__(self, start: int, width: int) -> None:
        self._next_read = start + 1
        self._next_kept = start + 1
        self._width = width
        self._verdicts: dict[int, tuple[int, Verdict]] = {}  # first id -> last id and verdict, not yet consumed
        self.is_ended = False

    def reads(self) -> range:
        """Ids to start reading now, each handed out once."""
        ids = range(self._next_read, self._next_read if self.is_ended else self._next_kept + self._width)
        self._next_read = max(self._next_read, ids.stop)
        return ids

    def decided(self, first: int, last: int, verdict: Verdict) -> list[TailEffect]:
        """The verdict on ids first..last. Found ids are handed over in order; the first absent one ends the ledger.

        Runs longer than one id need `width` 1, so that nobody else reads inside them.
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
    """What the caller of a recovery sees. Raise it `from cause`. Source: client-protocol 4.10."""
    if isinstance(cause, BookieTimeout | Unauthorized | ClientClosed):
        return cause
    return RecoveryFailed(
        f"the end of the ledger could not be decided; nothing was lost, recover it again later. Cause: {cause}",
        ledger_id=ledger_id,
    )
