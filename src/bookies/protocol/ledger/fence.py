"""Fencing round of the last fragment, and the starting point of a recovery.

The recovery asks every bookie of the last fragment for its last entry, with the fence flag. A bookie that answers, even
with "no such entry", has durably promised to refuse the writer. The round is complete when the answers *cover* the
ensemble: no write set keeps `ack_quorum` bookies that might still accept an add. Then the writer cannot confirm another
entry on this fragment (I-5). One dead bookie does not block the round; counting answers instead of write sets would end
it too early (X-21).

An answer whose digest fails counts as unknown (D-9), and so does limbo: that bookie may have lost entries that it
acknowledged. The last add confirmed in the entries' headers is only a lower bound of the confirmed prefix. Too low a
value makes the recovery read more entries. The start is never below the fragment's own start, because earlier fragments
are finished and must not be written into the last ensemble (issue 2615 of the reference; X-7).

Source: client-protocol 4.3 and 4.4.
"""

from __future__ import annotations

from typing import NamedTuple

from bookies.errors import BookKeeperError, ReadFailed, Unauthorized
from bookies.model import LedgerMetadata
from bookies.protocol.ledger.read import NEGATIVE
from bookies.protocol.quorums.quorum import covered


class Fenced(NamedTuple):
    """Verdict: the fragment is fenced. The fields are those of the answer with the greatest LAC; -1 and 0 if none."""

    last_add_confirmed: int
    length: int


class NotFenced(NamedTuple):
    """Verdict: the round has failed and decided nothing; a later recovery starts over."""

    error: BookKeeperError


FenceVerdict = Fenced | NotFenced | None  # None: wait for more answers


class FenceRound:
    """Answers of one fencing round. Answers after the verdict do not change it (their bookies are fenced)."""

    def __init__(self, metadata: LedgerMetadata) -> None:
        self._metadata = metadata
        self._known = [False] * metadata.ensemble_size
        self._heard = [False] * metadata.ensemble_size
        self._best = Fenced(-1, 0)
        self._error: BookKeeperError | None = None
        self._verdict: FenceVerdict = None

    def found(self, position: int, last_add_confirmed: int, length: int) -> FenceVerdict:
        """Record a bookie's last entry, which verified; `last_add_confirmed` and `length` are from its header."""
        if self._verdict is None and last_add_confirmed > self._best.last_add_confirmed:
            self._best = Fenced(last_add_confirmed, length)
        return self._answered(position)

    def failed(self, position: int, error: BookKeeperError) -> FenceVerdict:
        """Record any other answer. "No such entry" and "no such ledger" are known; a bad digest and limbo are not."""
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
    """Return the id before the first one to read back: the known confirmed prefix, at least all earlier fragments."""
    return max(last_add_confirmed, metadata.last_fragment_first_entry - 1)
