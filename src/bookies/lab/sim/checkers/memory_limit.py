"""What a client's writers hold in memory, told from messages alone: entries that not every replica has answered.

    memory   a client never holds more than its `memory_limit`

An entry is held as long as its client waits for an answer about it. Whatever may end that waiting counts as its end:
an answer when the bookie gives it, the end of a connection, a request as old as the client's patience, a committed
record that puts another bookie into the place. So what is counted is less than what is held, and what is reported is
certain. The bytes are those of the entries on the wire, without what frames add.

Source: client-protocol 2.16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bookies.lab.sim.world.network import SimTransport
from bookies.model import Ensemble


class _Entry:
    """One entry of one writer. `waiting`: bookie -> the connection to it, and until when its client waits."""

    __slots__ = ("asked", "size", "waiting")

    def __init__(self, size: int) -> None:
        self.size = size
        self.asked: dict[str, None] = {}  # bookies; one that is asked again had failed, and that was an answer
        self.waiting: dict[str, tuple[SimTransport, float]] = {}


class MemoryLimitChecker:
    """`report(promise, text)` is told of broken ones. `limit`: bytes of each client; `patience_s`: with an add."""

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
        """A client sends adds to a bookie. `sizes`: of each entry, by id."""
        held = self._held.setdefault(client, {})
        until_s = self._now_s() + self._patience_s
        for entry_id, size in sizes:
            entry = held.setdefault((ledger_id, entry_id), _Entry(size))
            if bookie not in entry.asked:
                entry.asked[bookie] = None
                entry.waiting[bookie] = line, until_s
        self._check(client, held)

    def answered(self, client: str, bookie: str, ledger_id: int, entry_ids: Sequence[int]) -> None:
        """The bookie answers adds, well or not."""
        held = self._held.get(client, {})
        for entry_id in entry_ids:
            if (entry := held.get((ledger_id, entry_id))) is not None:
                entry.waiting.pop(bookie, None)

    def committed(self, ledger_id: int, old: Ensemble, new: Ensemble) -> None:
        """The ledger's record has another last ensemble: who has lost its place is waited for no more."""
        moved = [bookie for bookie, other in zip(old, new, strict=True) if bookie != other]
        for held in self._held.values():
            for (where, _), entry in held.items():
                if where == ledger_id:
                    for bookie in moved:
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
