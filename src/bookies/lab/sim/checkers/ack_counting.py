"""What a writer makes of the answers to its adds: for which position an answer counts, and that none is forgotten.

    I-9    an answer counts for the position that its entry was sent to, not for another at which that bookie stands now
    late   a bookie that failed an entry which had its quorum already is replaced when the writer goes on
    twice  nothing is sent again to a bookie that has not answered it: what its predecessor failed is not its failure

The first is seen from the positions at which committed records had listed a bookie when an entry was sent to it. The
second is reported only when it cannot be otherwise: the writer has read the answer, something that was appended after
that has been acknowledged, something appended after that again, and the ledger's record is what it was. The third
concerns one connection and one record of the ledger, and a moment in which no client gives up a request.

Source: client-protocol 2.6, 2.10; schedules X-32, X-43.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from bookies.model import LedgerMetadata
from bookies.protocol.quorums import write_set

Key = tuple[str, int, int]  # bookie, ledger, entry
GIVEN_UP_S = 0.05  # no client gives up a request before; v2 takes the answer to one given up for that to its successor


class Failure:
    """A failed add that the writer knows of. `passed`: when an entry begun after it was acknowledged; 0: not yet."""

    def __init__(self, bookie: str, when: int) -> None:
        self.bookie, self.when, self.passed = bookie, when, 0


class AckChecker:
    """`report(invariant, text)` is told of broken promises; `instant()` is the order of events."""

    def __init__(
        self, report: Callable[[str, str], None], instant: Callable[[], int], now_s: Callable[[], float]
    ) -> None:
        self._report = report
        self._instant = instant
        self._now_s = now_s
        # Not answered yet, of one connection: when, for which positions it may count, and after how many commits.
        self._sent: dict[tuple[int, Key], list[tuple[float, frozenset[int], int]]] = {}
        self._commits: dict[int, int] = {}
        self._given: dict[
            tuple[int, Key], float
        ] = {}  # a success, which may still be on its way: when it was asked for
        self._answered: dict[Key, set[int]] = {}  # positions that such an answer may count for
        self._failures: dict[int, list[Failure]] = {}
        self.excused: dict[int, None] = {}  # ledgers whose writers need not replace what fails late
        self._is_delivering: dict[int, bool] = {}  # ledger -> something was acknowledged since its last commit

    def sent(
        self, line: int, bookie: str, ledger_id: int, entry_id: int, positions: frozenset[int], *, is_prompt: bool
    ) -> None:
        """`line`: the connection, where answers come in order. `positions`: where committed records list the bookie.

        `is_prompt`: the connection was there when the client asked, so it has not waited before it was sent.
        """
        key, now_s = (bookie, ledger_id, entry_id), self._now_s()
        waiting = self._sent.setdefault((line, key), [])
        commits = self._commits.get(ledger_id, 0) if is_prompt else -1
        if waiting and waiting[-1][2] == commits >= 0 and now_s - waiting[-1][0] < GIVEN_UP_S:
            self._report(
                "twice", f"entry {entry_id} of ledger {ledger_id} is sent to {bookie} again, before it answers"
            )
        # One that waits for its connection may be given up any moment.
        waiting.append((now_s if is_prompt else -math.inf, positions, commits))
        if now_s - self._given.get((line, key), now_s) > GIVEN_UP_S:
            self._answered.setdefault(key, set()).update(positions)

    def answered(self, line: int, bookie: str, ledger_id: int, entry_ids: Sequence[int], *, is_ok: bool) -> None:
        """The bookie answers. Positions only grow: an answer that overtakes another counts for too many at worst."""
        for entry_id in entry_ids:
            key = (bookie, ledger_id, entry_id)
            if waiting := self._sent.get((line, key)):
                since_s, positions, _ = waiting.pop(0)
                if waiting and self._now_s() - since_s > GIVEN_UP_S:
                    positions = positions.union(*[each for _, each, _ in waiting])
                if is_ok:
                    self._given.setdefault((line, key), since_s)
                    self._answered.setdefault(key, set()).update(positions)

    def learned(self, bookie: str, ledger_id: int) -> None:
        """The writer has read that the bookie failed an entry."""
        if (
            self._is_delivering.get(ledger_id) and ledger_id not in self.excused
        ):  # Otherwise a change is under way, of which this may be part.
            self._failures.setdefault(ledger_id, []).append(Failure(bookie, self._instant()))

    def committed(self, ledger_id: int) -> None:
        self._commits[ledger_id] = self._commits.get(ledger_id, 0) + 1
        self._failures.pop(ledger_id, None)
        self._is_delivering.pop(ledger_id, None)

    def acknowledged(
        self, records: Sequence[LedgerMetadata], ledger_id: int, first: int, last: int, begun: Callable[[int], int]
    ) -> None:
        """Entries first..last are acknowledged to the application. `records`: the writer's, the newest first."""
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
        counted = [each for each in positions if each in self._answered.get((ensemble[each], ledger_id, entry_id), ())]
        if len(counted) < record.ack_quorum:
            self._report(
                "I-9",
                f"entry {entry_id} of ledger {ledger_id} is acknowledged, but of {', '.join(ensemble)} only the "
                f"positions {counted} have answered; the ack quorum is {record.ack_quorum}",
            )


def _is_always_there(records: Sequence[LedgerMetadata], bookie: str) -> bool:
    """Whether a bookie has stood at one and the same position from the beginning."""
    ensembles = [ensemble for record in records for _, ensemble in record.ensembles]
    return any(all(each[position] == bookie for each in ensembles) for position in range(records[0].ensemble_size))
