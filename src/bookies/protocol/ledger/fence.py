"""Fencing the last fragment, and where a recovery starts.

Every bookie of the last fragment is asked for its last entry with the fence flag. Each that answers, be it "no such
entry", has durably promised to refuse the writer. The round is complete when the answers *cover* the ensemble: no
write set keeps `ack_quorum` bookies that might still accept, so the writer can confirm nothing new on this fragment
(I-5). One dead bookie does not block it; counting answers instead of write sets would stop too early (X-21).

An answer whose digest fails is not known (D-9), and limbo is not: that bookie may have lost what it acknowledged.
The last add confirmed found in the entries' headers is only a lower bound of what is confirmed. Too low a value means
that more entries are read again; it is never below the fragment's own start, because earlier fragments are finished
and must not be written into the last ensemble (issue 2615 of the reference; X-7).

Source: client-protocol 4.3 and 4.4.
"""

from __future__ import annotations

from typing import NamedTuple

from bookies.errors import BookKeeperError, ReadFailed, Unauthorized
from bookies.model import LedgerMetadata
from bookies.protocol.ledger.read import NEGATIVE
from bookies.protocol.quorums.quorum import covered


class Fenced(NamedTuple):
    """The fragment is fenced. `last_add_confirmed`, `length`: of the answer with the greatest LAC; -1 and 0 if none."""

    last_add_confirmed: int
    length: int


class NotFenced(NamedTuple):
    """The round has failed; nothing was decided, a later recovery starts over."""

    error: BookKeeperError


FenceVerdict = Fenced | NotFenced | None  # None: wait for more answers


class FenceRound:
    """Collect the answers of one fencing round. Answers after the verdict change nothing (the bookies are fenced)."""

    def __init__(self, metadata: LedgerMetadata) -> None:
        self._metadata = metadata
        self._known = [False] * metadata.ensemble_size
        self._heard = [False] * metadata.ensemble_size
        self._best = Fenced(-1, 0)
        self._error: BookKeeperError | None = None
        self._verdict: FenceVerdict = None

    def found(self, position: int, last_add_confirmed: int, length: int) -> FenceVerdict:
        """The bookie's last entry verified; `last_add_confirmed` and `length` are from its header."""
        if self._verdict is None and last_add_confirmed > self._best.last_add_confirmed:
            self._best = Fenced(last_add_confirmed, length)
        return self._answered(position)

    def failed(self, position: int, error: BookKeeperError) -> FenceVerdict:
        """Anything else. "No such entry" and "no such ledger" are knowledge; a bad digest and limbo are not."""
        if isinstance(error, NEGATIVE):
            return self._answered(position)
        self._heard[position] = True
        if self._verdict is None:
            self._error = error
            if isinstance(error, Unauthorized) or all(self._heard):
                self._verdict = NotFenced(self._failure())
        return self._verdict

    def _answered(self, position: int) -> FenceVerdict:
        self._heard[position] = self._known[position] = True
        if self._verdict is None:
            if covered(self._known, self._metadata.write_quorum, self._metadata.ack_quorum):
                self._verdict = self._best
            elif all(self._heard):
                self._verdict = NotFenced(self._failure())
        return self._verdict

    def _failure(self) -> BookKeeperError:
        return self._error or ReadFailed("no bookie answered", ledger_id=self._metadata.ledger_id)


def recovery_start(metadata: LedgerMetadata, last_add_confirmed: int) -> int:
    """The id before the first one to read back: what is known confirmed, at least all earlier fragments."""
    return max(last_add_confirmed, metadata.last_fragment_first_entry - 1)
