"""Replicas that are slow to answer reads: when to prefer others, and when to return. Pure: time is an argument.

A read whose answer is late is sent to another replica too. If the later request is answered first, the earlier one has
*lost a race*. A bookie that loses several races in a row, or few after long waits, is slow: reads ask it after others
that are as healthy, even if these are farther away. The criterion needs no limit of its own: a near bookie with a full
disk queue stays the first choice while it is still quicker than a bookie in another region.

While a bookie is slow, one read in each interval is also sent to it, as a trial. No caller waits for a trial. Trials in
time end the slowness. Being slow only orders bookies and excludes none. Source: client-protocol 3.3.
"""

from __future__ import annotations

from bookies.model import BookieId

LOSSES_MAX = 3  # lost races in a row
LOSSES_MAX_S = 0.2  # waits of lost races in a row
TRIAL_INTERVAL_S = 0.4
TRIALS_WELL = 2  # trials in time, in a row
TRIAL_S = 15.0  # a trial without a reported outcome counts as lost after this time


class _Slow:
    """Trials of a slow bookie. `next_at`: when the next one is due."""

    __slots__ = ("next_at", "wins")

    def __init__(self, now: float) -> None:
        self.next_at = now + TRIAL_INTERVAL_S
        self.wins = 0


class SlowReplicas:
    """Bookies that are slow, or have just lost a race. `now`: seconds of a monotonic clock.

    `slow`: slow bookies, empty most of the time.
    """

    def __init__(self) -> None:
        self.slow: dict[BookieId, _Slow] = {}
        self.losses: dict[BookieId, tuple[int, float]] = {}  # in a row: their number and the sum of their waits

    def lost(self, bookie: BookieId, waited_s: float, now: float) -> None:
        """Record that a replica asked after this one, `waited_s` seconds or less ago, answered first."""
        if bookie in self.slow:
            return
        count, sum_s = self.losses.get(bookie, (0, 0.0))
        count, sum_s = count + 1, sum_s + waited_s
        if count < LOSSES_MAX and sum_s < LOSSES_MAX_S:
            self.losses[bookie] = count, sum_s
        else:
            self.losses.pop(bookie, None)
            self.slow[bookie] = _Slow(now)

    def won(self, bookie: BookieId) -> None:
        """Record that no replica asked after this one answered first."""
        self.losses.pop(bookie, None)

    def take_trial(self, bookie: BookieId, now: float) -> bool:
        """Report whether the caller has to send a trial to this bookie now."""
        slow = self.slow.get(bookie)
        if slow is None or now < slow.next_at:
            return False
        slow.next_at = now + TRIAL_S
        return True

    def tried(self, bookie: BookieId, is_well: bool, now: float) -> None:
        """Record the outcome of a trial."""
        slow = self.slow.get(bookie)
        if slow is None:
            return
        slow.next_at = now + TRIAL_INTERVAL_S
        slow.wins = slow.wins + 1 if is_well else 0
        if slow.wins >= TRIALS_WELL:
            del self.slow[bookie]
