"""Health of bookies as one client observes it: the shell of `protocol/ledger/bookie_health.py` and `slow_replicas.py`.

Asking for an order or a rank also starts due probes: a bookie whose pause is over is probed in the background. So
clients never probe bookies that they do not need. Reads prefer healthy bookies, among these quick ones, and among these
near ones.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable

from bookies.config import ClientConfig
from bookies.model import BookieId
from bookies.protocol.ledger.bookie_health import CircuitBreakers, Rank, ResponseTimes
from bookies.protocol.ledger.slow_replicas import SlowReplicas

READ = "read"  # requests of one entry, or of many
READ_BATCH = "read batch"
FAR_PATIENCE = 2  # multiple of the delay before a read is sent to a bookie that is farther away too
WELL_MULTIPLE = 2  # of the time of another bookie's answer: a trial that took longer is not in time
_SLOW = 1 << 20  # above the ranks of nearness


class BookieHealth:
    """Circuit breakers and response times of bookies, shared by everything that chooses among them.

    `probe`: starts a probe, which reports to `succeeded` or `failed` as every request does. `distance`: rank of a
    bookie by nearness. Methods take the core's arguments, without the time.
    """

    def __init__(
        self, config: ClientConfig, probe: Callable[[BookieId], None], distance: Callable[[BookieId], int]
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._breakers = CircuitBreakers()
        self._times = ResponseTimes(distance)
        self._replicas = SlowReplicas()
        self._distance = distance
        self._probe = probe
        self._delay_min_s = config.hedge_delay_min_ms / 1000
        self._delay_max_s = max(config.hedge_delay_max_ms, config.hedge_delay_min_ms) / 1000

    def failed(self, bookie: BookieId) -> None:
        """Record that the bookie could not be reached, or did not answer in time."""
        self._breakers.failed(bookie, self._loop.time())

    def succeeded(self, bookie: BookieId) -> None:
        """Record that the bookie answered, with any status."""
        self._breakers.succeeded(bookie, self._loop.time())

    def observe(self, bookie: BookieId, request_type: str, seconds: float) -> None:
        """Record that the bookie answered a request of this kind after `seconds`."""
        self._times.observe(bookie, request_type, seconds)
        self.succeeded(bookie)

    def rank(self, bookie: BookieId) -> Rank:
        """Return 0: healthy; 1: failed a while ago, being probed; 2: failed within the last seconds."""
        if not self._breakers.knows(bookie):
            return Rank.HEALTHY
        now = self._loop.time()
        if self._breakers.take_probe(bookie, now):
            self._probe(bookie)
        return self._breakers.rank(bookie, now)

    def read_rank(self, bookie: BookieId) -> int:
        """Return the rank of a bookie for reads, the best first: by health, then by slowness, then by nearness."""
        rank = self._distance(bookie)
        if self._replicas.slow and bookie in self._replicas.slow:
            rank += _SLOW
        if self._breakers:
            rank += 2 * _SLOW * self.rank(bookie)
        return rank

    def read_ranking(self) -> Callable[[BookieId], int]:
        """Return `read_rank`, or what gives the same ranks at a lower cost as long as no bookie has failed."""
        return self.read_rank if self._replicas.slow or self._breakers else self._distance

    def order(self, bookies: Iterable[BookieId]) -> list[BookieId]:
        """Return all of the bookies in the order in which to read from them, otherwise in the given order."""
        return sorted(bookies, key=self.read_rank)

    def lost_race(self, bookie: BookieId, waited_s: float) -> None:
        """Record that another replica answered first, although it was asked later. See `SlowReplicas.lost`."""
        self._replicas.lost(bookie, waited_s, self._loop.time())

    def won_race(self, bookie: BookieId) -> None:
        """Record that a bookie answered a read before any replica that was asked after it."""
        if self._replicas.losses:
            self._replicas.won(bookie)

    @property
    def slow(self) -> Collection[BookieId]:
        """Return the bookies that reads avoid because others are quicker."""
        return self._replicas.slow

    def take_trial(self, bookie: BookieId) -> bool:
        """Report whether the caller has to send a trial read to this bookie, and report its time to `tried`."""
        return self._replicas.take_trial(bookie, self._loop.time())

    def tried(self, bookie: BookieId, seconds: float, rival_s: float) -> None:
        """Record a trial's time, infinite if it failed, and that of the read that the caller waited for."""
        is_well = seconds <= max(self._delay_min_s, WELL_MULTIPLE * rival_s) and seconds < math.inf
        self._replicas.tried(bookie, is_well, self._loop.time())

    def ailing(self) -> dict[BookieId, Rank]:
        """Return the bookies that are not healthy, with their ranks, best rank first. Probes those that are due."""
        now = self._loop.time()
        ranks = self._breakers.ailing(now)
        for bookie in ranks:
            if self._breakers.take_probe(bookie, now):
                self._probe(bookie)
        return ranks

    def hedge_delay_s(self, bookie: BookieId, request_type: str = READ, other: BookieId | None = None) -> float:
        """Return the seconds without an answer after which another replica should be asked too.

        The value lies between `hedge_delay_min_ms` and `hedge_delay_max_ms`; it is the maximum until enough answers
        were timed. `other`: the replica to ask then. If it is farther away, its traffic is worth twice the patience.
        """
        late = self._times.late_after_s(bookie, request_type)
        if late is None:
            return self._delay_max_s
        delay_s = max(late, self._delay_min_s)
        if other is not None and self._distance(other) > self._distance(bookie):
            delay_s *= FAR_PATIENCE
        return min(delay_s, self._delay_max_s)
