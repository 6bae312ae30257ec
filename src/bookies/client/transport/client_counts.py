"""Counts of one client's work, for metrics: plain numbers, changed once per batch."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from bookies.model import BookieId
from bookies.runtime.histogram import Outcomes, Stages

RECOVERY_STAGES = ("announce", "fence", "read", "write", "close")


class FetchCounts(Struct):
    """Counts of requests and their outcomes, of one fetch or of several in one loop.

    `failures`: responses, or ends of connections, that delivered no entry. `digest_failures`: those of them that did
    not verify. `hedges`: requests sent because another replica was late.
    """

    requests: int = 0
    failures: int = 0
    digest_failures: int = 0
    hedges: int = 0


class ClientCounts(Struct):
    """Work of one client so far.

    * `appends`: seconds from sending to confirmation, of one batch of each writer at a time.
    * `entries_confirmed`, `entries_failed`: entries appended, by outcome.
    * `ensemble_changes`: replacements of failed bookies.
    * `replicas_sent`, `bytes_sent`: entries sent to bookies, once for each replica, and their bytes.
    * `timeouts`: bookies that did not answer in time or could not be reached.
    * `fetches`: requests of readers.
    * `bytes_by_nearness`: bytes by nearness of the bookie, and "received" or "sent"; `reads_by_nearness`: requests to
      read entries. Brought up to date by `BookiePool.count_traffic`.
    * `recoveries`: stages of the recovery of ledgers: announce, fence, read (writes run beside it), write, close.
    """

    appends: Outcomes = field(default_factory=Outcomes)
    entries_confirmed: int = 0
    entries_failed: int = 0
    ensemble_changes: int = 0
    replicas_sent: int = 0
    bytes_sent: int = 0
    timeouts: int = 0
    connections_opened: int = 0
    connections_lost: int = 0
    fetches: FetchCounts = field(default_factory=FetchCounts)
    recoveries: Stages = field(default_factory=lambda: Stages(*RECOVERY_STAGES))
    bytes_by_nearness: dict[tuple[str, str], int] = field(default_factory=dict)
    reads_by_nearness: dict[str, int] = field(default_factory=dict)

    def traffic(self, nearness: str, received: int, sent: int, reads: int) -> None:
        """Add what went to and came from a bookie."""
        for direction, size in (("received", received), ("sent", sent)):
            key = nearness, direction
            self.bytes_by_nearness[key] = self.bytes_by_nearness.get(key, 0) + size
        self.reads_by_nearness[nearness] = self.reads_by_nearness.get(nearness, 0) + reads


class ClientUsage(Struct, frozen=True):
    """A client's counts, and what it holds now. Sizes in bytes; `pending`: unanswered adds by bookie.

    `now_s`: the monotonic clock.
    """

    counts: ClientCounts
    memory_used: int
    memory_limit: int
    connections: int
    pending: Mapping[BookieId, int]
    metadata_requests: Mapping[tuple[str, str], int]
    now_s: float
    slow_bookies: int = 0
