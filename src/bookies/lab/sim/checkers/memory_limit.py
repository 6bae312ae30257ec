"""Checker of the memory limit: the entries that a client's writers hold in memory, derived from messages alone.

    memory   a client never holds more than its `memory_limit`

A client holds an entry as long as it waits for an answer about it. Every event that may end this waiting counts as its
end: the moment at which the bookie answers, the end of the connection, the request's time-out, and a committed record
that replaces the bookie. So the checker counts no more than the client holds, and a reported violation is certain. The
bytes are those of the entries on the wire, without framing.

Source: client-protocol 2.16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bookies.lab.sim.world.network import SimTransport
from bookies.model import Ensemble


class _Entry:
    """One entry of one writer. `waiting`: bookie -> the connection to it, and when the request times out, seconds."""

    __slots__ = ("asked", "size", "waiting")

    def __init__(self, size: int) -> None:
        self.size = size
        self.asked: dict[str, None] = {}  # bookies; a second request to one follows its failure, which is an answer
        self.waiting: dict[str, tuple[SimTransport, float]] = {}


class MemoryLimitChecker:
    """Checker of the bytes that clients hold in memory.

    `report(promise, text)` receives broken promises. `limit`: bytes of each client. `patience_s`: time-out of an add.
    """

    def __init__(
        self, report: Callable[[str, str], None], now_s: Callable[[], float], limit: int, patience_s: float
    ) -> None:
        self._report = report
        self._now_s = now_s
        self._limit = limit
        self._patience_s = patience_s / 2  # an add may have waited for its connection before it was sent
        self._held: dict[str, dict[tuple[int, int], _Entry]] = {}  # client -> (ledger, entry)

    def sent(
        self, client: str, line: SimTransport, bookie: str, ledger_id: int, sizes: Sequence[tuple[int, int]]
    ) -> None:
        """Record adds that a client sends to a bookie, and check its limit. `sizes`: (entry, bytes) of each."""
        held = self._held.setdefault(client, {})
        until_s = self._now_s() + self._patience_s
        for entry_id, size in sizes:
            entry = held.setdefault((ledger_id, entry_id), _Entry(size))
            if bookie not in entry.asked:
                entry.asked[bookie] = None
                entry.waiting[bookie] = line, until_s
        self._check(client, held)

    def answered(self, client: str, bookie: str, ledger_id: int, entry_ids: Sequence[int]) -> None:
        """Record a bookie's answers to adds, successful or not."""
        held = self._held.get(client, {})
        for entry_id in entry_ids:
            if (entry := held.get((ledger_id, entry_id))) is not None:
                entry.waiting.pop(bookie, None)

    def committed(self, ledger_id: int, old: Ensemble, new: Ensemble) -> None:
        """Record a change of the ledger's last ensemble: clients no longer wait for replaced bookies."""
        replaced = [bookie for bookie, other in zip(old, new, strict=True) if bookie != other]
        for held in self._held.values():
            for (entry_ledger_id, _), entry in held.items():
                if entry_ledger_id == ledger_id:
                    for bookie in replaced:
                        entry.waiting.pop(bookie, None)

    def _check(self, client: str, held: dict[tuple[int, int], _Entry]) -> None:
        now_s, size = self._now_s(), 0
        for entry in held.values():
            for bookie, (line, until_s) in list(entry.waiting.items()):
                if line.is_closing() or now_s >= until_s:
                    del entry.waiting[bookie]
            if entry.waiting:
                size += entry.size
        if size > self._limit:
            self._report("memory", f"{client} waits for answers about {size:,} bytes; its limit is {self._limit:,}")
