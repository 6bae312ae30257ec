"""Relief plan: which replicas leave bookies that are read much more than others. Without IO.

A bookie is *hot* when clients read more than `HOT` times the mean from it, and at least `rate_min` bytes per second. It
gives replicas of the ledgers that are read most there, until it is not hot, to the bookies that are read least. A move
must not make the taker hot, and neither of the two may leave the tolerance of its share of data, so that the balance of
bytes takes nothing back. What a replica's readers read from it is expected to follow it.

Adds are not relieved here: writers choose the bookies for new ledgers, and replace those that are too slow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from bookies.model import BookieId, Ensemble
from bookies.protocol.pacing.read_rates import ReadLoad
from bookies.protocol.repair.balance import BalanceMove, BalancePlan, Movable, MovedEnsembles, slack_of
from bookies.protocol.repair.fragments import Fragment

HOT = 1.5  # multiple of the mean


class Relief:
    """Plan of a relief. `loads`: of the bookies that take part and report theirs; `plan`: of bytes, without moves."""

    def __init__(
        self,
        loads: Mapping[BookieId, ReadLoad],
        plan: BalancePlan,
        rate_min: float,
        worsens: Callable[[Fragment, Ensemble], bool],
    ) -> None:
        self.after = dict(plan.before)
        self._loads = loads
        self._plan = plan
        self._worsens = worsens
        self._rates = {bookie: float(load.rate) for bookie, load in loads.items()}
        self._limit = max(rate_min, HOT * sum(self._rates.values()) / max(1, len(loads)))
        self._moved = MovedEnsembles()
        self._offers: dict[tuple[BookieId, int], list[Movable]] = {
            (bookie, ledger_id): []
            for bookie in sorted(loads, key=lambda bookie: (-loads[bookie].rate, bookie))
            if self._rates[bookie] > self._limit
            for ledger_id in loads[bookie].ledgers
        }

    @property
    def is_needed(self) -> bool:
        """Report whether a bookie is hot, and it is known what is read there."""
        return bool(self._offers)

    def offer(self, replica: Movable, bookie: BookieId) -> None:
        """Add a replica that may move; those that are not read much are ignored.

        So are those of open ledgers: their readers mostly read the part that grows.
        """
        offers = self._offers.get((bookie, replica.fragment.ledger_id))
        if offers is not None and replica.size and replica.is_closed:
            offers.append(replica)

    def moves(self) -> list[BalanceMove]:
        """Return the moves, after all offers."""
        moves = []
        for (source, ledger_id), replicas in self._offers.items():
            whole = sum(replica.size for replica in replicas)
            for replica in replicas:
                rate = self._loads[source].ledgers[ledger_id] * replica.size / whole
                target = self._target(source, replica, rate)
                if target is None:
                    continue
                moves.append(self._moved.move(replica, source, target))
                for bookie, sign in ((source, -1), (target, 1)):
                    self._rates[bookie] += sign * rate
                    self.after[bookie] += sign * replica.size
        return moves

    def _target(self, source: BookieId, replica: Movable, rate: float) -> BookieId | None:
        """Return the bookie that a replica of a hot bookie goes to; None: it stays."""
        if self._rates[source] <= self._limit or not self._may_change(source, -replica.size):
            return None
        return next((target for target in self._least_read() if self._may_take(target, replica, rate)), None)

    def _least_read(self) -> list[BookieId]:
        return sorted(self._rates, key=lambda bookie: (self._rates[bookie], bookie))

    def _may_take(self, target: BookieId, replica: Movable, rate: float) -> bool:
        changed = self._moved.with_target(replica, target)
        return (
            self._rates[target] + rate <= self._limit
            and changed.count(target) == 1
            and self._may_change(target, replica.size)
            and not self._worsens(replica.fragment, changed)
        )

    def _may_change(self, bookie: BookieId, size: int) -> bool:
        """Report whether the bookie still holds its share, within the tolerance, with this many bytes more."""
        share = self._plan.shares[bookie]
        slack = slack_of(share, self._plan.tolerance, self._plan.size_min)
        return abs(self.after[bookie] + size - share) <= slack
