"""Simulated operators: they announce maintenance, drain bookies, balance data, and are killed while doing so.

An operator's intent outlives the operator: a bookie stays in draining until another operator continues or cancels the
drain. Only one bookie at a time is drained, so that others remain to copy to.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bookies.errors import BookKeeperError
from bookies.lab.sim.checkers import History
from bookies.lab.sim.world import SimClient, SimCluster
from bookies.metadata.shared import BookieNotes
from bookies.model import BookieId
from bookies.replication.operator import Balance, Drain, Operator
from bookies.replication.operator.balance import BalanceProgress

if TYPE_CHECKING:
    from bookies.lab.sim.clients.roles import Roles

OPERATOR = "replicator-operator"  # its commits are checked like those of replicators
ACTIONS = ("maintenance", "drain", "balance")
WEIGHTS = (2, 3, 2)
PATIENCE_S = (0.3, 1.0, 3.0)
TOLERANCE = 0.05


class Operators:
    """The acts of all operators of a workload. `mean_ms`: mean pause before each act."""

    def __init__(self, roles: Roles, cluster: SimCluster, history: History, mean_ms: float) -> None:
        self._roles = roles
        self._cluster = cluster
        self._history = history
        self._mean_ms = mean_ms

    async def operate(self, client: SimClient) -> None:
        """Do one act, to its end or until a time-out. Called as the operator's participant."""
        await self._roles.sleep(self._mean_ms)
        if self._roles.is_stopping:
            return
        random = self._roles.random
        (action,) = random.choices(ACTIONS, WEIGHTS)
        bookie = BookieId(random.choice(list(self._cluster.bookies)))
        work = {"maintenance": self._maintain, "drain": self._drain, "balance": self._balance}[action]
        self._history.count(f"operators: {action}")
        try:
            async with asyncio.timeout(random.choice(PATIENCE_S)):
                await work(client, bookie)
        except TimeoutError:
            self._history.count(f"operators: {action} broken off")
        except BookKeeperError as error:
            self._history.failed(client.name, action, error)

    def _notes(self, client: SimClient) -> BookieNotes:
        return BookieNotes(client.driver, client.runtime.clock.wall_ms)

    async def _maintain(self, client: SimClient, bookie: BookieId) -> None:
        until_ms = client.runtime.clock.wall_ms() + self._roles.random.randint(200, 4_000)
        await self._notes(client).begin_maintenance(bookie, until_ms, client.name)

    async def _drain(self, client: SimClient, bookie: BookieId) -> None:
        """Continue another operator's drain, or begin one; sometimes cancel it at the end."""
        for begun in (await self._notes(client).read()).draining:
            bookie = begun
        drain = Drain(Operator(client.runtime, client.client, client.driver, client.name), bookie)
        client.participant.on_kill(lambda: self._count(drain))
        await drain.start()
        try:
            await drain.begin()
            result = await drain.run(await drain.plan())
            self._history.count("operators: bookies emptied", int(result.is_empty))
            if result.is_empty and self._cluster.bookies[bookie].is_gone:
                await drain.remove()
                self._history.count("operators: bookies removed")
            elif self._roles.random.random() < 0.5:
                await drain.cancel()
        finally:
            drain.stop()
            if client.participant.is_alive:
                self._count(drain)

    def _count(self, drain: Drain) -> None:
        """Count the entries that a drain has copied, once."""
        done = drain.copies
        self._history.count("entries copied by repairs", sum(totals.entries for totals in done))
        self._history.count("entries renewed by repairs", sum(totals.renewed for totals in done))
        for totals in done:
            totals.entries = totals.renewed = 0

    async def _balance(self, client: SimClient, bookie: BookieId) -> None:
        balance = Balance(Operator(client.runtime, client.client, client.driver, client.name))
        entries = 0

        def report(progress: BalanceProgress) -> None:
            nonlocal entries
            self._history.count("entries copied by repairs", progress.entries - entries)
            entries = progress.entries

        result = await balance.run(await balance.plan(TOLERANCE), report)
        self._history.count("operators: fragments moved", result.moves)

    async def settle(self, client: SimClient) -> None:
        """End all maintenance and cancel some drains, at the end of the run. Called as the participant."""
        notes = self._notes(client)
        intents = await notes.read()
        for bookie in intents.exempt:
            await notes.end_maintenance(bookie)
        for bookie in intents.draining:
            if self._roles.random.random() < 0.5:
                await notes.end_draining(bookie)
