"""Health of bookies as one client observes it: the shell of `protocol/ledger/bookie_health.py`, with clock and probes.

Asking for an order or a rank also starts due probes: a bookie whose pause is over is probed in the background. So
clients never probe bookies that they do not need.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from bookies.config import ClientConfig
from bookies.model import BookieId
from bookies.protocol.ledger.bookie_health import CircuitBreakers, Rank, ResponseTimes

READ = "read"  # requests of one entry, or of many
READ_BATCH = "read batch"


class BookieHealth:
    """Circuit breakers and response times of bookies, shared by everything that chooses among them.

    `probe`: starts a probe, which reports to `succeeded` or `failed` as every request does. Methods take the core's
    arguments, without the time.
    """

    def __init__(self, config: ClientConfig, probe: Callable[[BookieId], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._breakers = CircuitBreakers()
        self._times = ResponseTimes()
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

    def order(self, bookies: Iterable[BookieId]) -> list[BookieId]:
        """Return all of the bookies, healthy ones first, otherwise in the given order."""
        now = self._loop.time()
        ordered = self._breakers.order(bookies, now)
        for bookie in reversed(ordered):
            if self._breakers.rank(bookie, now) is Rank.HEALTHY:
                break
            if self._breakers.take_probe(bookie, now):
                self._probe(bookie)
        return ordered

    def ailing(self) -> dict[BookieId, Rank]:
        """Return the bookies that are not healthy, with their ranks, best rank first. Probes those that are due."""
        now = self._loop.time()
        ranks = self._breakers.ailing(now)
        for bookie in ranks:
            if self._breakers.take_probe(bookie, now):
                self._probe(bookie)
        return ranks

    def hedge_delay_s(self, bookie: BookieId, request_type: str = READ) -> float:
        """Return the seconds without an answer after which another replica should be asked too.

        The value lies between `hedge_delay_min_ms` and `hedge_delay_max_ms`; it is the maximum until enough answers
        were timed.
        """
        late = self._times.late_after_s(bookie, request_type)
        return self._delay_max_s if late is None else min(max(late, self._delay_min_s), self._delay_max_s)
