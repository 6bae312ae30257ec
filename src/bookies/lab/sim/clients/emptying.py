"""Operators that empty bookies, which then return under their ids.

The ways are legal, so no entry may be lost, and none may be acknowledged in a ledger that has ended:

    drain      the bookie serves while its data moves to others; it is stopped and formatted; then the drain ends
    recover    the bookie is up or down; what it holds is recovered and copied from the other replicas; then format
    lost disk  the bookie is down and decommissioned; then it starts on an empty disk

After a decommission that succeeded, no ledger that had ended before it names the bookie for an entry ("decommission").
A bookie is formatted only if no record names it for an entry, as `bk bookie format` demands. Otherwise it returns as it
was. An attempt that fails is repeated: the store may be unavailable, and other bookies may be down.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bookies.errors import BookKeeperError
from bookies.lab.sim.checkers import History
from bookies.lab.sim.world import SimClient, SimCluster
from bookies.lab.sim.world.disk import PROCESS_DIES
from bookies.metadata.shared import BookieNotes
from bookies.model import BookieId
from bookies.protocol.repair.fragments import is_named
from bookies.replication.operator import Drain, Operator

if TYPE_CHECKING:
    from bookies.lab.sim.clients.roles import Roles

EMPTIER = "replicator-emptier"  # its commits are checked like those of replicators
WAYS = ("drain", "recover", "lost disk")
ATTEMPTS_MAX = 8
PATIENCE_S = 3.0
PAUSE_S = 0.3  # between attempts; longer than the lease of a bookie that was stopped


class Emptiers:
    """The acts of all these operators of a workload, one bookie at a time. `mean_ms`: mean pause before each act."""

    def __init__(self, roles: Roles, cluster: SimCluster, history: History, mean_ms: float) -> None:
        self._roles = roles
        self._cluster = cluster
        self._history = history
        self._mean_ms = mean_ms
        self._is_busy = False
        self._stopped: str | None = None  # a bookie that is down until it is emptied, or given back

    def stop(self) -> None:
        """Give back a bookie that is not emptied yet, at the end of the run."""
        if self._stopped is not None:
            self._give_back(self._stopped)

    async def empty(self, client: SimClient) -> None:
        """Empty one bookie and start it again. Called as the operator's participant."""
        await self._roles.sleep(self._mean_ms)
        if self._roles.is_stopping or self._is_busy:
            return
        self._is_busy = True
        way = self._roles.random.choice(WAYS)
        name = self._roles.random.choice([name for name, known in self._cluster.bookies.items() if not known.is_gone])
        client.participant.on_kill(lambda: self._give_back(name))
        attempt = {"drain": self._drain, "recover": self._recover, "lost disk": self._decommission}[way]
        for number in range(ATTEMPTS_MAX):
            if way == "lost disk" or (way == "recover" and (number > 1 or self._roles.random.random() < 0.5)):
                self._take_down(name)
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await attempt(client, BookieId(name))
            except (BookKeeperError, TimeoutError) as error:
                self._history.count("attempts to empty a bookie that failed")
                self._cluster.trace.note(client.name, f"has not emptied {name} yet: {type(error).__name__}: {error}")
            if not self._is_needed(name):
                self._take_down(name)
            if self._is_over() or (self._stopped == name and not self._is_needed(name)):
                break
            await asyncio.sleep(PAUSE_S)
        is_emptied = self._stopped == name and not self._is_needed(name)
        self._history.count(f"bookies {'emptied' if is_emptied else 'not emptied'}: {way}")
        if is_emptied:
            self._stopped = None
            # As one step of the world: a format that was interrupted has to be repeated before the bookie starts.
            loop = self._cluster.loop
            await loop.create_task(self._format(name), context=loop.world.copy())
        self._give_back(name)
        if way == "drain":
            await BookieNotes(client.driver, client.runtime.clock.wall_ms).end_draining(BookieId(name))

    def _is_over(self) -> bool:
        return self._roles.is_stopping

    def _take_down(self, name: str) -> None:
        if self._stopped == name or self._is_over():
            return
        self._stopped = name
        self._cluster.lose_bookie(name, PROCESS_DIES)

    async def _format(self, name: str) -> None:
        await self._cluster.empty_bookie(name)
        self._give_back(name)

    def _give_back(self, name: str) -> None:
        """Start the bookie again, if it was stopped."""
        bookie = self._cluster.bookies[name]
        self._is_busy, self._stopped = False, None
        if bookie.is_gone:
            bookie.gone_s = None
            self._cluster.restart_later(name, 0.01)

    def _is_needed(self, name: str) -> bool:
        """Report whether, any ledger's record names the bookie."""
        records = [history[-1].after for history in self._cluster.store.commits.values()]
        return any(record is not None and is_named(record, BookieId(name)) for record in records)

    async def _recover(self, client: SimClient, bookie: BookieId) -> None:
        await client.client.administration().recover_bookies([bookie], skip_open=False, force=True)

    async def _decommission(self, client: SimClient, bookie: BookieId) -> None:
        await asyncio.sleep(self._cluster.lease_s)  # until its registration has expired
        ended = [
            ledger_id
            for ledger_id, history in self._cluster.store.commits.items()
            if history[-1].after is not None and history[-1].after.is_closed
        ]
        await client.client.administration().decommission(bookie)
        for ledger_id in ended:
            record = self._cluster.store.record(ledger_id)
            if record is not None and is_named(record, bookie):
                text = f"{client.name} has decommissioned {bookie}, and {record!r} names it"
                self._history.violated("decommission", text)

    async def _drain(self, client: SimClient, bookie: BookieId) -> None:
        is_sealing = self._roles.random.random() < 0.7
        drain = Drain(Operator(client.runtime, client.client, client.driver, client.name), bookie, seals=is_sealing)
        await drain.start()
        try:
            await drain.begin()
            await drain.run(await drain.plan())
        finally:
            drain.stop()
