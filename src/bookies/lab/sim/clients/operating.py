"""Simulated operators: they announce maintenance, drain bookies, balance data, repair ledgers and renew entries.

They are killed while doing so. Promise:

    whole  after a repair of a closed ledger that succeeded, every bookie in its record holds its entries; after a
           renewal, the bookie holds the renewed ones

An operator's intent outlives the operator: a bookie stays in draining until another operator continues or cancels the
drain. Only one bookie at a time is drained, so that others remain to copy to.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bookies.errors import BookKeeperError, LedgerUnknownToBookie
from bookies.lab.sim.checkers import History
from bookies.lab.sim.world import SimClient, SimCluster
from bookies.lab.sim.world.sim_metadata import write_set_of
from bookies.metadata.shared import BookieNotes
from bookies.model import BookieId, LedgerMetadata
from bookies.replication.operator import Drain, Operator
from bookies.replication.repair.balance import Balance, BalanceProgress, Slack

if TYPE_CHECKING:
    from bookies.lab.sim.clients.roles import Roles

OPERATOR = "replicator-operator"  # its commits are checked like those of replicators
ACTIONS = ("maintenance", "drain", "balance", "repair", "renew")
WEIGHTS = (2, 3, 2)
REPAIR_WEIGHTS = (2, 2, 1, 5, 4)
COPIED = "entries copied by repairs"
BROKEN_OFF = "entries copied by operators that were broken off"  # perhaps in vain
PATIENCE_S = (0.3, 1.0, 3.0)
SLACK = Slack(0.05, 0.05)


class Operators:
    """The acts of all operators of a workload. `mean_ms`: mean pause before each act. `repairs`: also of ledgers."""

    def __init__(
        self, roles: Roles, cluster: SimCluster, history: History, mean_ms: float, *, repairs: bool = False
    ) -> None:
        self._weights = REPAIR_WEIGHTS if repairs else WEIGHTS
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
        (action,) = random.choices(ACTIONS[: len(self._weights)], self._weights)
        bookie = BookieId(random.choice(list(self._cluster.bookies)))
        acts = (self._maintain, self._drain, self._balance, self._repair, self._renew)
        work = dict(zip(ACTIONS, acts, strict=True))[action]
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
        client.participant.on_kill(lambda: self._count(drain, BROKEN_OFF))
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
            self._count(drain, COPIED)
        finally:
            drain.stop()
            if client.participant.is_alive:
                self._count(drain, BROKEN_OFF)  # what is not counted yet

    def _count(self, drain: Drain, name: str) -> None:
        """Count the entries that a drain has copied, once."""
        done = drain.copies
        self._history.count(name, sum(totals.entries for totals in done))
        self._history.count("entries renewed by repairs", sum(totals.renewed for totals in done))
        for totals in done:
            totals.entries = totals.renewed = 0

    async def _balance(self, client: SimClient, bookie: BookieId) -> None:
        balance = Balance(Operator(client.runtime, client.client, client.driver, client.name))
        copied = 0

        def report(progress: BalanceProgress) -> None:
            nonlocal copied
            self._history.count(BROKEN_OFF, progress.entries - copied)
            copied = progress.entries

        result = await balance.run(await balance.plan(SLACK), report)
        self._history.count(BROKEN_OFF, -copied)
        self._history.count(COPIED, result.entries)
        self._history.count("operators: fragments moved", result.moves)

    # -- ledgers -------------------------------------------------------------------------------------------------
    def _closed(self) -> list[LedgerMetadata]:
        """Return the youngest closed ledgers with entries."""
        records = [history[-1].after for history in self._cluster.store.commits.values()]
        closed = [record for record in records if record is not None and record.is_closed and record.last_entry_id >= 0]
        return closed[-8:]

    async def _repair(self, client: SimClient, _: BookieId) -> None:
        """Repair a ledger, preferably one that seems to lack replicas."""
        if closed := self._closed():
            needy = [record for record in closed if self._lacking(record, range(record.last_entry_id + 1))]
            record = self._roles.random.choice(needy or closed)
            await client.client.administration().repair_ledger(record.ledger_id, percentage=100)
            self._history.count("ledgers repaired by operators")
            await self._check_whole(client, record.ledger_id, None, range(record.last_entry_id + 1))

    async def _renew(self, client: SimClient, _: BookieId) -> None:
        """Renew entries on one bookie, preferably on one that seems to lack several."""
        if not (closed := self._closed()):
            return
        lacking = [(record, self._lacking(record, range(record.last_entry_id + 1))) for record in closed]
        needy = [(record, bookie) for record, of in lacking for bookie, ids in of.items() if len(ids) > 1]
        places = needy or [(record, bookie) for record in closed for bookie in record.bookies]
        record, bookie = self._roles.random.choice(places)
        administration = client.client.administration()
        missing = await administration.missing_entries(bookie, record.ledger_id)
        first = self._roles.random.randint(0, record.last_entry_id)
        for entries in missing or [range(first, record.last_entry_id + 1)]:
            await administration.renew_entries(record.ledger_id, bookie, [entries])
            self._history.count("replicas renewed by operators")
            await self._check_whole(client, record.ledger_id, bookie, entries)

    def _lacking(self, record: LedgerMetadata, entries: range) -> dict[BookieId, list[int]]:
        """Return those of these entries that bookies in the record lack, as far as the witness knows."""
        lacking: dict[BookieId, list[int]] = {}
        if (witness := self._cluster.witness) is None:
            return lacking
        for entry_id in entries:
            for bookie in write_set_of(record, entry_id):
                if not witness.holds(bookie, record.ledger_id, entry_id):
                    lacking.setdefault(bookie, []).append(entry_id)
        return lacking

    async def _check_whole(self, client: SimClient, ledger_id: int, only: BookieId | None, entries: range) -> None:
        """Check that the bookies in the record, or one of them, hold these entries."""
        if (record := self._cluster.store.record(ledger_id)) is None:
            return
        for bookie, ids in self._lacking(record, entries).items():
            if only not in (None, bookie):
                continue
            # The answer to the add may have been lost, so the witness does not know of it: the bookie itself does.
            server, life = self._cluster.bookies[bookie].server, self._cluster.bookies[bookie].lives
            try:
                runs = [] if server is None else await server.storage.list_entries(ledger_id)
            except LedgerUnknownToBookie:
                runs = []
            except (BookKeeperError, OSError):
                continue  # It dies just now, or cannot tell.
            is_same = server is not None and self._cluster.bookies[bookie].lives == life
            still = self._cluster.store.record(ledger_id)
            if not is_same or still is None or still.ensembles != record.ensembles:
                continue
            if lost := [entry_id for entry_id in ids if not any(entry_id in run for run in runs)]:
                text = f"{client.name} has repaired ledger {ledger_id}, and {bookie} lacks its entries {lost}"
                self._history.violated("whole", text)

    async def settle(self, client: SimClient) -> None:
        """End all maintenance and cancel some drains, at the end of the run. Called as the participant."""
        notes = self._notes(client)
        intents = await notes.read()
        for bookie in intents.exempt:
            await notes.end_maintenance(bookie)
        for bookie in intents.draining:
            if self._roles.random.random() < 0.5:
                await notes.end_draining(bookie)
