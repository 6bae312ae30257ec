"""State of a scenario's run: the cluster of a simulation, the clients by their names, and their operations.

The first letter of a client's name is its role, which the checkers need: writers, recoveries, readers and
administrators may commit different changes of a ledger's record. All operations are recorded in the simulation's
history, as in seeded runs, so all checkers judge scenarios too.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine, Iterable, Sequence
from random import Random
from typing import Any

from msgspec import Struct, field

from bookies.client.read import LedgerReader
from bookies.client.write import LedgerWriter
from bookies.errors import BookKeeperError
from bookies.lab.sim.checkers import Story
from bookies.lab.sim.clients.healing import HEALER
from bookies.lab.sim.run import Simulation
from bookies.lab.sim.scenario.scenario_failure import ScenarioFailure
from bookies.lab.sim.scenario.scenario_messages import STORE, Interception
from bookies.lab.sim.world import SimClient
from bookies.lab.sim.world.cluster import SimBookie
from bookies.lab.sim.world.disk import SimDisk
from bookies.lab.sim.world.sim_metadata import STORE_HOST
from bookies.lab.sim.world.workers import SimWorkers
from bookies.metadata.embedded import MemoryDriver
from bookies.model import LedgerMetadata
from bookies.replication.daemon import AutoRecovery

ROLES = {
    "W": "writer",
    "R": "recoverer",
    "T": "reader",
    "H": HEALER,
    "A": "replicator",
}  # H before A: both roles begin with "replicator"
SETTLING_S = 0.02  # after every step: longer than any delay without a fault
PATIENCE_S = 120.0  # an awaited event must happen within this time
WORKER_MS = 0.1


class Operation(Struct):
    """An operation of a client. `error`: how it failed. `number`: its position in the order of the ends."""

    client: str
    text: str
    task: asyncio.Task[None]
    error: BaseException | None = None
    number: int = 0
    is_over: bool = False
    is_awaited: bool = False


class Actor(Struct):
    """State of one client. `shown`: the highest entry that it has read. `healing`: the task of `recovery`."""

    settings: dict[str, object] = field(default_factory=dict)
    writer: LedgerWriter | None = None
    reader: LedgerReader | None = None
    shown: int = -1
    recovery: AutoRecovery | None = None
    healing: asyncio.Task[None] | None = None


class _Preference(Random):
    """A client's random generator, which also orders bookies: the preferred ones first, then by name."""

    preferred: Sequence[str] = ()

    def shuffle(self, x: Any) -> None:
        ranks = {bookie: rank for rank, bookie in enumerate(self.preferred)}
        x.sort(key=lambda bookie: (ranks.get(bookie, len(ranks)), bookie))


class Stage:
    """State of one run of one scenario."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.cluster = simulation.cluster
        self.history = simulation.history
        self.trace = simulation.trace
        self.loop = simulation.loop
        self.messages = Interception(self.cluster.network, self.trace, name_of)
        self.actors: dict[str, Actor] = defaultdict(Actor)
        self.operations: dict[str, Operation] = {}
        self.old_disks: dict[str, SimDisk] = {}  # of wiped bookies
        self.deferred: list[int] = []  # ledgers whose appends are acknowledged before they are durable
        self.allowed: list[str] = []
        self.observer: MemoryDriver | None = None  # session for the steps that inspect the store
        self.story: Story | None = None
        self._ended = 0
        conditions = self.cluster.network.conditions
        conditions.delay_ms = (0.1, 1e-30)  # equal delays: messages arrive in the order in which they are sent
        conditions.split_probability = 0.0

    # -- ledger, bookies, clients --------------------------------------------------------------------------------
    @property
    def ledger(self) -> Story:
        """The scenario's ledger. Raises `ScenarioFailure` before it is created."""
        if self.story is None:
            raise ScenarioFailure("no ledger has been created")
        return self.story

    @property
    def record(self) -> LedgerMetadata | None:
        """The ledger's committed record; None: never created, or deleted."""
        commits = self.cluster.store.commits.get(self.ledger.ledger_id, [])
        return commits[-1].after if commits else None

    def add_bookie(self, name: str) -> None:
        self.cluster.add_bookie(name)
        bookie = self.cluster.bookies[name]
        bookie.workers = SimWorkers(Random(f"{self.cluster.seed}/{name}/workers"), mean_ms=WORKER_MS)

    def bookie(self, name: str) -> SimBookie:
        if name not in self.cluster.bookies:
            raise ScenarioFailure(f"there is no bookie {name}; `cluster` names {', '.join(self.cluster.bookies)}")
        return self.cluster.bookies[name]

    def wipe(self, name: str) -> None:
        """Give a stopped bookie an empty disk."""
        bookie = self.bookie(name)
        self.old_disks[name] = bookie.disk
        bookie.disk = SimDisk(Random(f"{self.cluster.seed}/{name}/new disk"), capacity=bookie.disk.capacity)

    def client(self, name: str) -> SimClient:
        """Return a living client. Raises `ScenarioFailure` if it does not exist."""
        client = self.cluster.clients.get(host_of(name))
        if client is None:
            raise ScenarioFailure(f"there is no client {name}: no step has started it, or it has ended")
        return client

    def is_alive(self, name: str) -> bool:
        return host_of(name) in self.cluster.clients

    async def connected(self, name: str) -> SimClient:
        """Return the client. The first step that names a client starts it."""
        if host_of(name) in self.cluster.clients:
            return self.client(name)
        choices = _Preference(f"{self.cluster.seed}/{name}")
        client = self.cluster.new_client(host_of(name), self.actors[name].settings, choices)
        self.messages.watch_store(name, client)
        await client.participant.create_task(self.cluster.open_client(client), name=f"{name} connects")
        return client

    def prefer(self, name: str, bookies: Sequence[str]) -> None:
        """Set the bookies that this client chooses first."""
        for bookie in bookies:
            self.bookie(bookie)
        random = self.client(name).runtime.random
        assert isinstance(random, _Preference)
        random.preferred = tuple(bookies)

    def writer(self, name: str) -> LedgerWriter:
        writer = self.actors[name].writer
        if writer is None:
            raise ScenarioFailure(f"{name} has not created a ledger")
        return writer

    def reader(self, name: str) -> LedgerReader:
        reader = self.actors[name].reader
        if reader is None:
            raise ScenarioFailure(f"{name} has not opened a ledger")
        return reader

    # -- operations ----------------------------------------------------------------------------------------------
    def begin(self, client: SimClient, text: str, work: Coroutine[Any, Any, None]) -> Operation:
        """Start an operation of a client. It begins with the next iteration of the event loop."""
        name = name_of(client.name)
        earlier = self.operations.get(text)
        if earlier is not None and not earlier.is_awaited:
            raise ScenarioFailure(f"`{text}` was started before and not awaited; add `await {text}` before this step")
        task = client.participant.create_task(work, name=text)
        operation = self.operations[text] = Operation(name, text, task)
        task.add_done_callback(lambda _: self._note_end(operation), context=self.loop.world.copy())
        return operation

    def _note_end(self, operation: Operation) -> None:
        self._ended += 1
        operation.number = self._ended
        operation.is_over = True
        operation.error = None if operation.task.cancelled() else operation.task.exception()
        if operation.error is not None:
            self.trace.note(operation.client, f"{operation.text}: {type(operation.error).__name__}: {operation.error}")
            if not isinstance(operation.error, BookKeeperError | ScenarioFailure):
                self.history.unexpected(operation.client, operation.text, operation.error)

    async def finish(self, operations: Iterable[Operation], ending: str | None) -> None:
        """Wait until all operations have ended as written, with success or `fails ERROR`, and in this order."""
        expected = ending.removeprefix("fails ") if ending else ""
        last = 0
        for operation in operations:
            operation.is_awaited = True
            await self._end_of(operation)
            error = operation.error
            if isinstance(error, ScenarioFailure):
                raise error
            actual = type(error).__name__ if error is not None else ""
            if actual != expected:
                wanted = f"to fail with {expected}" if expected else "to succeed"
                happened = f"it failed with {actual}: {error}" if actual else "it succeeded"
                raise ScenarioFailure(f"expected `{operation.text}` {wanted}; {happened}")
            if operation.number < last:
                raise ScenarioFailure(f"`{operation.text}` ended before the operation in front of it")
            last = operation.number

    async def _end_of(self, operation: Operation) -> None:
        deadline = self.loop.time() + PATIENCE_S
        while not operation.is_over:
            if host_of(operation.client) not in self.cluster.clients:
                raise ScenarioFailure(f"`{operation.text}` never ended: {operation.client} is dead")
            if self.loop.time() > deadline:
                raise ScenarioFailure(f"`{operation.text}` has not ended after {PATIENCE_S:.0f} s")
            await asyncio.sleep(SETTLING_S / 4)

    async def perform(self, client: SimClient, text: str, work: Coroutine[Any, Any, None], ending: str | None) -> None:
        """Start an operation and wait for its end, unless `ending` is "&"."""
        operation = self.begin(client, text, work)
        if ending != "&":
            await self.finish([operation], ending)

    def forgotten(self) -> list[str]:
        """Return a line for each background operation of a living client that was never awaited."""
        return [
            f"`{operation.text} &` is never awaited"
            for operation in self.operations.values()
            if not operation.is_awaited and host_of(operation.client) in self.cluster.clients
        ]


def host_of(name: str) -> str:
    """Return the simulator's name of a host, from its name in the scenario."""
    if name == STORE:
        return STORE_HOST
    return ROLES[name[0]] + name[1:] if name[0] in ROLES else name


def name_of(host: str) -> str:
    """Return the scenario's name of a host, from its name in the simulator."""
    for letter, role in ROLES.items():
        if host.startswith(role):
            return letter + host.removeprefix(role)
    return STORE if host == STORE_HOST else host
