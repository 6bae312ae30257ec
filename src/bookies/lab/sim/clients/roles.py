"""Client processes in roles, one after the other: each runs until its work is done or it is killed.

`LogRoles` also has what all clients of a log share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from bookies.client.base import Entry
from bookies.client.log import Log, LogWriter
from bookies.encoding.envelope import Record
from bookies.errors import BookKeeperError
from bookies.lab.sim.checkers import History
from bookies.lab.sim.checkers.leases import LeaseChecker
from bookies.lab.sim.checkers.log_appends import record_for, value_in
from bookies.lab.sim.checkers.log_history import Found, LogHistory, Reading
from bookies.lab.sim.clients.plan import LogPlan, Settings
from bookies.lab.sim.world import SimClient, SimCluster
from bookies.model import LedgerState
from bookies.protocol.log import Position
from bookies.protocol.log.log_model import ENVELOPE

NAME = "orders"  # of the log
Act = Callable[[SimClient], Coroutine[Any, Any, None]]


class Roles:
    """Base of every workload: runs clients in roles. `is_replaced`: after a client has ended, the next one starts."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, *, is_replaced: bool = True) -> None:
        self.cluster = cluster
        self.history = history
        self.random = random
        self.is_replaced = is_replaced
        self.is_stopping = False
        self.healed = asyncio.Event()  # all faults have ended
        self._tasks: list[asyncio.Task[None]] = []

    def stop(self) -> None:
        """Let every client finish its current work and start no more."""
        self.is_stopping = True

    async def finish(self) -> None:
        """Wait until every client has finished. Requires `stop` before if clients are replaced."""
        assert self.is_stopping or not self.is_replaced
        for task in self._tasks:
            await asyncio.shield(task)

    def nudge(self) -> None:
        """Let planned actions that wait for their time begin now."""

    async def departed(self, client: SimClient) -> None:
        """React to the orderly close of a client. Called as its participant."""

    async def sleep(self, mean_ms: float) -> None:
        await asyncio.sleep(self.random.expovariate(1 / mean_ms) / 1000)

    def fill(self, role: str, count: int, act: Act, choices: tuple[Settings, ...] = ()) -> list[asyncio.Task[None]]:
        """Start `count` clients in a role and return the role's tasks. `choices`: each client takes one of them."""
        tasks = []
        for number in range(1, count + 1):
            slot = self.keep_running(f"{role}{number}", act, choices)
            tasks.append(asyncio.get_running_loop().create_task(slot, name=f"{role}{number}"))
        self._tasks += tasks
        return tasks

    async def keep_running(self, role: str, act: Act, choices: tuple[Settings, ...] = ()) -> None:
        """Run one client after the other in a role, each until it has done its work or is killed."""
        life = 0
        while not self.is_stopping:
            life += 1
            settings = {**self.cluster.client_settings, **self.random.choice(choices)} if choices else None
            client = self.cluster.new_client(f"{role}.{life}", settings)
            over = asyncio.get_running_loop().create_future()

            def end(*_: object, over: asyncio.Future[None] = over) -> None:
                if not over.done():
                    over.set_result(None)

            client.participant.on_kill(end)
            task = client.participant.create_task(self._live(client, act), name=f"{role}.{life}")
            task.add_done_callback(end, context=self.cluster.loop.world.copy())
            await over
            if not self.is_replaced:
                return
            await self.sleep(20)

    async def _live(self, client: SimClient, act: Act) -> None:
        try:
            await self.cluster.open_client(client)
            await act(client)
        except BookKeeperError as error:
            self.history.failed(client.name, "its work", error)
        except Exception as error:  # noqa: BLE001
            self.history.unexpected(client.name, "its work", error)
        await self.cluster.close_client(client)
        await self.departed(client)


class LogRoles(Roles):
    """Base of the workload on one log: the log, its history, and the entries that its clients append and read."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, plan: LogPlan) -> None:
        super().__init__(cluster, history, random)
        self.plan = plan
        self.log_history = LogHistory()
        self.leases = LeaseChecker(history.violated)

    def now_s(self) -> float:
        return self.cluster.loop.time()

    async def open_log(self, client: SimClient) -> Log:
        """Return the log. The first client creates it."""
        log = client.client.log(NAME)
        ensemble, write_quorum, ack_quorum = self.plan.quorums
        await log.create(
            ensemble=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            record_format=self.plan.record_format,
            exist_ok=True,
        )
        return log

    def waits(self) -> bool:
        """Decide whether a process waits for its turn before it leads."""
        return bool(self.plan.turns) and self.random.random() < self.plan.turns

    # -- entries -------------------------------------------------------------------------------------------------
    def given(self, values: list[bytes]) -> list[bytes | Record]:
        """Return what is appended for values."""
        return [record_for(value) if self.plan.record_format == ENVELOPE else value for value in values]

    def found(self, entry: Entry) -> Found:
        """Return the position and the value of an entry that was read. Check its record."""
        if self.plan.record_format != ENVELOPE:
            return entry.position, entry.payload
        value, problem = value_in(entry.payload)
        if problem:
            self.history.violated("record", f"{entry.position}: {problem}")
        return entry.position, value

    def begin_reading(self, start: Position | None = None) -> Reading:
        reading = Reading(self.now_s(), start, is_stale=self.cluster.store.is_stale)
        self.log_history.readings.append(reading)
        return reading

    async def append(self, client: SimClient, writer: LogWriter, values: list[bytes]) -> None:
        """Append in one call, and record the result and its time."""
        number = self.log_history.attempt(client.name, values, self.now_s())
        given = self.given(values)
        try:
            last = await (writer.append(given[0]) if len(given) == 1 else writer.append_many(given))
        except BookKeeperError:
            self.log_history.failed(writer, number)
            raise
        self.acknowledged(client, writer, number, values, last)

    def acknowledged(
        self, client: SimClient, writer: LogWriter, number: int, values: list[bytes], last: Position
    ) -> None:
        """Record a successful append, and check that its entries are where an ack quorum of bookies has them."""
        self.log_history.succeeded(self.now_s(), client.name, writer, number, values, last)
        self.history.count("entries acknowledged", len(values))
        witness, record = self.history.witness, self.cluster.store.record(last.ledger_id)
        if witness is not None and record is not None and record.state is LedgerState.OPEN:
            witness.check_acknowledgement(last.ledger_id, last.entry_id, last.entry_id)
