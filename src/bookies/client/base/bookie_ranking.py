"""The health of bookies as one client sees it: the shell of `protocol/ledger/bookie_health.py`, with a clock and probes.

Whoever asks for an order or a rank also moves things on: a bookie whose pause is over is probed in the background, so
clients spend nothing on bookies that they do not need.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from bookies.config import ClientConfig
from bookies.model import BookieId
from bookies.protocol.ledger.bookie_health import CircuitBreakers, Rank, ResponseTimes

READ = "read"  # kinds of requests: one entry, or many
READ_BATCH = "read batch"


class BookieHealth:
    """Shared by everything that chooses among bookies. `probe`: starts a probe; its success is reported by
    `succeeded`, its failure by `failed`, as those of all requests. Methods take what the core takes, without the time.
    """

    def __init__(self, config: ClientConfig, probe: Callable[[BookieId], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._breakers = CircuitBreakers()
        self._times = ResponseTimes()
        self._probe = probe
        self._delay_min_s = config.hedge_delay_min_ms / 1000
        self._delay_max_s = max(config.hedge_delay_max_ms, config.hedge_delay_min_ms) / 1000

    def failed(self, bookie: BookieId) -> None:
        """It could not be reached, or did not answer in time."""
        self._breakers.failed(bookie, self._loop.time())

    def succeeded(self, bookie: BookieId) -> None:
        """It answered, whatever it said."""
        self._breakers.succeeded(bookie, self._loop.time())

    def observe(self, bookie: BookieId, kind: str, seconds: float) -> None:
        """It answered a request of this kind after so long."""
        self._times.observe(bookie, kind, seconds)
        self.succeeded(bookie)

    def rank(self, bookie: BookieId) -> Rank:
        """0: healthy; 1: failed a while ago, being probed; 2: failed within the last seconds."""
        if not self._breakers.knows(bookie):
            return Rank.HEALTHY
        now = self._loop.time()
        if self._breakers.take_probe(bookie, now):
            self._probe(bookie)
        return self._breakers.rank(bookie, now)

    def order(self, bookies: Iterable[BookieId]) -> list[BookieId]:
        """All of them, healthy ones first; otherwise in the given order."""
        now = self._loop.time()
        ordered = self._breakers.order(bookies, now)
        for bookie in reversed(ordered):
            if self._breakers.rank(bookie, now) is Rank.HEALTHY:
                break
            if self._breakers.take_probe(bookie, now):
                self._probe(bookie)
        return ordered

    def ailing(self) -> dict[BookieId, Rank]:
        """Those that are not healthy, with their ranks, the best first. Suspects among them are probed."""
        now = self._loop.time()
        ranks = self._breakers.ailing(now)
        for bookie in ranks:
            if self._breakers.take_probe(bookie, now):
                self._probe(bookie)
        return ranks

    def hedge_delay_s(self, bookie: BookieId, kind: str = READ) -> float:
        """When this bookie has not answered after so many seconds, another one is worth asking too.

        Between `hedge_delay_min_ms` and `hedge_delay_max_ms`; the latter while too little is known.
        """
        late = self._times.late_after_s(bookie, kind)
        return self._delay_max_s if late is None else min(max(late, self._delay_min_s), self._delay_max_s)
