"""Operators that empty bookies, which then return under their ids.

The ways are legal, so no entry may be lost, and none may be acknowledged in a ledger that has ended:

    drain      the bookie serves while its data moves to others; then it is stopped and formatted
    recover    the bookie is up or down; what it holds is recovered and copied from the other replicas; then format
    lost disk  likewise, and the data is gone before the recovery begins

A bookie is formatted only if no record names it. Otherwise it returns as it was.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bookies.errors import BookKeeperError
from bookies.lab.sim.checkers import History
from bookies.lab.sim.world import SimClient, SimCluster
from bookies.lab.sim.world.disk import PROCESS_DIES
from bookies.model import BookieId
from bookies.replication.operator import Drain, Operator

if TYPE_CHECKING:
    from bookies.lab.sim.clients.roles import Roles

EMPTIER = "replicator-emptier"  # its commits are checked like those of replicators
WAYS = ("drain", "recover", "lost disk")
ATTEMPTS_MAX = 4
PATIENCE_S = 3.0


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
        name = self._roles.random.choice(list(self._cluster.bookies))
        client.participant.on_kill(lambda: self._give_back(name))
        if way == "lost disk" or (way == "recover" and self._roles.random.random() < 0.5):
            self._take_down(name)
        for _ in range(ATTEMPTS_MAX):
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await (self._drain if way == "drain" else self._recover)(client, BookieId(name))
            except (BookKeeperError, TimeoutError):
                self._history.count("attempts to empty a bookie that failed")
            if self._is_over():
                break
            if not self._is_named(name):
                self._take_down(name)
                break
        if self._stopped == name and not self._is_named(name):
            self._stopped = None
            # As one step of the world: a format that was interrupted has to be repeated before the bookie starts.
            loop = self._cluster.loop
            await loop.create_task(self._format(name), context=loop.world.copy())
            self._history.count(f"bookies emptied: {way}")
        self._give_back(name)

    def _is_over(self) -> bool:
        return self._roles.is_stopping

    def _take_down(self, name: str) -> None:
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

    def _is_named(self, name: str) -> bool:
        """Report whether the record of any ledger names the bookie."""
        commits = self._cluster.store.commits.values()
        return any(history[-1].after is not None and history[-1].after.names(name) for history in commits)

    async def _recover(self, client: SimClient, bookie: BookieId) -> None:
        await client.client.administration().recover_bookies([bookie], skip_open=False, force=True)

    async def _drain(self, client: SimClient, bookie: BookieId) -> None:
        drain = Drain(Operator(client.runtime, client.client, client.driver, client.name), bookie)
        await drain.start()
        try:
            await drain.begin()
            await drain.run(await drain.plan())
            await drain.cancel()
        finally:
            drain.stop()
