"""Checker of how a writer counts the answers to its adds.

    I-9    an answer counts for the position that its entry was sent to, not for the bookie's later positions
    late   a bookie that failed an entry which had its quorum already is replaced when the writer continues
    twice  an entry is not sent again to a bookie that has not answered it: the failure of the bookie's predecessor is
           not the bookie's failure

I-9 is checked with the positions at which committed records listed a bookie when an entry was sent to it. A violation
of "late" is reported only when it is certain: the writer has read the failure, an entry begun after that and another
one begun after the first one's acknowledgement have been acknowledged, and the ledger's record has not changed. "twice"
is checked within one connection and one record of the ledger, and only before a client may give up the request.

Source: client-protocol 2.6, 2.10; schedules X-32, X-43.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from bookies.model import LedgerMetadata
from bookies.protocol.quorums import write_set

Key = tuple[str, int, int]  # bookie, ledger, entry
# No client gives up a request before. A v2 client takes the answer to a given-up request as that to its successor.
GIVEN_UP_S = 0.05


class Failure:
    """A failed add that the writer knows of.

    `passed`: the instant at which an entry begun after the failure was acknowledged; 0: not yet.
    """

    def __init__(self, bookie: str, when: int) -> None:
        self.bookie, self.when, self.passed = bookie, when, 0


class AckChecker:
    """Checker of the answers to a run's adds.

    `report(invariant, text)` receives broken promises. `instant()` numbers the events of the run.
    """

    def __init__(
        self, report: Callable[[str, str], None], instant: Callable[[], int], now_s: Callable[[], float]
    ) -> None:
        self._report = report
        self._instant = instant
        self._now_s = now_s
        # Unanswered adds of one connection: when sent, the positions it may count for, and commits before it was sent.
        self._sent: dict[tuple[int, Key], list[tuple[float, frozenset[int], int]]] = {}
        self._commits: dict[int, int] = {}
        self._given: dict[tuple[int, Key], float] = {}  # successes, which may be in flight: when the add was sent
        self._answered: dict[Key, set[int]] = {}  # positions that a success may count for
        self._failures: dict[int, list[Failure]] = {}
        self.excused: dict[int, None] = {}  # ledgers whose writers need not replace bookies that fail late
        self._is_delivering: dict[int, bool] = {}  # ledger -> an entry was acknowledged since its last commit

    def sent(
        self, line: int, bookie: str, ledger_id: int, entry_id: int, positions: frozenset[int], *, is_prompt: bool
    ) -> None:
        """Record and check an add that is sent to a bookie.

        `line`: number of the connection, on which answers arrive in order. `positions`: those at which committed
        records list the bookie. `is_prompt`: the connection was open when the client sent the request, so the request
        has not waited for it.
        """
        key, now_s = (bookie, ledger_id, entry_id), self._now_s()
        waiting = self._sent.setdefault((line, key), [])
        commits = self._commits.get(ledger_id, 0) if is_prompt else -1
        if waiting and waiting[-1][2] == commits >= 0 and now_s - waiting[-1][0] < GIVEN_UP_S:
            self._report(
                "twice", f"entry {entry_id} of ledger {ledger_id} is sent to {bookie} again, before it answers"
            )
        # The client may give up a request that has waited for its connection at any moment.
        waiting.append((now_s if is_prompt else -math.inf, positions, commits))
        if now_s - self._given.get((line, key), now_s) > GIVEN_UP_S:
            self._answered.setdefault(key, set()).update(positions)

    def answered(self, line: int, bookie: str, ledger_id: int, entry_ids: Sequence[int], *, is_ok: bool) -> None:
        """Record a bookie's answer. Positions only grow: an answer that overtakes another may count for too many."""
        for entry_id in entry_ids:
            key = (bookie, ledger_id, entry_id)
            if waiting := self._sent.get((line, key)):
                since_s, positions, _ = waiting.pop(0)
                if waiting and self._now_s() - since_s > GIVEN_UP_S:
                    positions = positions.union(*[later for _, later, _ in waiting])
                if is_ok:
                    self._given.setdefault((line, key), since_s)
                    self._answered.setdefault(key, set()).update(positions)

    def learned(self, bookie: str, ledger_id: int) -> None:
        """Record that the writer has read a bookie's failure of an entry."""
        # Until the first acknowledgement after a commit, a change that replaces the bookie may be in progress.
        if self._is_delivering.get(ledger_id) and ledger_id not in self.excused:
            self._failures.setdefault(ledger_id, []).append(Failure(bookie, self._instant()))

    def committed(self, ledger_id: int) -> None:
        self._commits[ledger_id] = self._commits.get(ledger_id, 0) + 1
        self._failures.pop(ledger_id, None)
        self._is_delivering.pop(ledger_id, None)

    def acknowledged(
        self, records: Sequence[LedgerMetadata], ledger_id: int, first: int, last: int, begun: Callable[[int], int]
    ) -> None:
        """Check entries first..last when they are acknowledged to the application.

        `records`: the writer's, newest first. `begun`: entry -> instant at which its append began.
        """
        if not records:
            return
        for entry_id in range(first, last + 1):
            self._check_positions(records[0], ledger_id, entry_id)
        self._is_delivering[ledger_id] = True
        for failure in self._failures.get(ledger_id, ()):
            if not failure.passed:
                failure.passed = self._instant() if begun(last) > failure.when else 0
            elif begun(last) > failure.passed and _is_always_there(records, failure.bookie):
                self._report(
                    "late",
                    f"entry {last} of ledger {ledger_id} is acknowledged while {failure.bookie}, which failed an "
                    f"entry before, is still in {records[0]!r}",
                )

    def _check_positions(self, record: LedgerMetadata, ledger_id: int, entry_id: int) -> None:
        ensemble = record.ensemble_at(entry_id)
        positions = write_set(entry_id, record.ensemble_size, record.write_quorum)
        counted = [
            position
            for position in positions
            if position in self._answered.get((ensemble[position], ledger_id, entry_id), ())
        ]
        if len(counted) < record.ack_quorum:
            self._report(
                "I-9",
                f"entry {entry_id} of ledger {ledger_id} is acknowledged, but of {', '.join(ensemble)} only the "
                f"positions {counted} have answered; the ack quorum is {record.ack_quorum}",
            )


def _is_always_there(records: Sequence[LedgerMetadata], bookie: str) -> bool:
    """Report whether a bookie has had one and the same position since the ledger's creation."""
    ensembles = [ensemble for record in records for _, ensemble in record.ensembles]
    return any(
        all(ensemble[position] == bookie for ensemble in ensembles) for position in range(records[0].ensemble_size)
    )
