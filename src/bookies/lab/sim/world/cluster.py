"""A whole cluster in one process: bookies on simulated disks, clients, and a metadata store, all on one loop.

The bookies are `bookie.server.BookieServer`, the clients `client.client.Client`, unchanged. Only their `Runtime` and
their path to the metadata store are simulated. Every life of a bookie and every client is a `Participant`, so a fault
can pause it, or kill it at any `await` or in the middle of a disk call.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from msgspec import Struct, field

from bookies.bookie.server import BookieServer
from bookies.bookie.storage_port import Storage
from bookies.client.client import Client
from bookies.config import BookieConfig, ClientConfig, RecoveryConfig
from bookies.errors import MetadataError
from bookies.lab.sim.world.databases import SimDatabases
from bookies.lab.sim.world.deferring import Deferring
from bookies.lab.sim.world.disk import PROCESS_DIES, Loss, SimDisk
from bookies.lab.sim.world.faulty_storage import FaultyStorage, StorageFaults
from bookies.lab.sim.world.loop import Participant, SimLoop
from bookies.lab.sim.world.network import SimNetwork
from bookies.lab.sim.world.sim_metadata import SimDriver, SimStore
from bookies.lab.sim.world.trace import Trace
from bookies.lab.sim.world.witness import Witness
from bookies.lab.sim.world.workers import SimWorkers
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.embedded.memory import MemoryStore
from bookies.model import BookieId
from bookies.protocol.repair.owed import OwedCounts
from bookies.replication.daemon.process import BesideBookie
from bookies.runtime.ports import Runtime
from bookies.storage.checkpoint.index_writes import StorageObserver
from bookies.storage.store import LedgerStore

if TYPE_CHECKING:
    from bookies.replication.daemon import AutoRecovery

BOOKIE_PORT = 3181
DISK_CAPACITY = 64 << 20  # bytes
WALL_START_MS = 1_700_000_000_000
TRACE = f"00-{1:032x}-{1:016x}-01"  # identity of a sampled span


async def resolve(bookie: BookieId) -> tuple[str, int]:
    """Return host and port of a bookie, for a pool that has no client."""
    return bookie, BOOKIE_PORT


class SimClock:
    """`runtime.ports.Clock` of one host. Its wall clock is off by `skew_ms`, which a fault may change."""

    def __init__(self, loop: SimLoop, skew_ms: int) -> None:
        self._loop = loop
        self.skew_ms = skew_ms

    def wall_ms(self) -> int:
        return WALL_START_MS + self.skew_ms + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()

    with_sleep = monotonic  # No host sleeps.


class SimBookie(Struct):
    """One bookie through all its lives. `participant` and `server` belong to the current life, if there is one."""

    name: str
    config: BookieConfig
    disk: SimDisk
    workers: SimWorkers
    clock: SimClock
    storage_faults: StorageFaults = field(default_factory=StorageFaults)
    participant: Participant | None = None
    server: BookieServer | None = None
    driver: SimDriver | None = None
    lives: int = 0
    is_lost: bool = False  # it refused to start, which is reported as a problem
    gone_s: float | None = None  # virtual time at which it was lost for good; it is never restarted
    restart: asyncio.Task[None] | None = None
    beside: asyncio.Task[None] | None = None  # fetches owed entries
    beside_driver: SimDriver | None = None  # its session
    owed: list[OwedCounts] = field(default_factory=list)  # of each life

    @property
    def is_gone(self) -> bool:
        return self.gone_s is not None

    @property
    def is_up(self) -> bool:
        return self.participant is not None and self.participant.is_alive


class SimClient(Struct):
    """One client process."""

    name: str
    participant: Participant
    client: Client
    driver: SimDriver
    runtime: Runtime
    clock: SimClock
    recovery: AutoRecovery | None = None  # set if the process takes part in auto-recovery


@dataclasses.dataclass
class SimCluster:
    """The simulated cluster. All its random generators are seeded with names that begin with `seed`."""

    loop: SimLoop
    trace: Trace
    seed: str
    bookie_count: int
    bookie_settings: dict[str, object] = dataclasses.field(default_factory=dict)
    client_settings: dict[str, object] = dataclasses.field(default_factory=dict)
    lease_s: float = 2.0
    defers_syncs: bool = False  # bookies answer adds with deferred sync before these are durable
    fetches_owed: bool = False  # bookies fetch the entries that they owe
    disks: int = 1  # ledger directories of a bookie
    traced_probability: float = 0.0  # of an append, or a read of one entry, whose bookies learn the caller's span

    def __post_init__(self) -> None:
        self.network = SimNetwork(self.loop, self.trace, Random(f"{self.seed}/network"))
        self.store = SimStore(self.network, self.trace)
        self.memory = MemoryStore()
        self.bookies: dict[str, SimBookie] = {}
        self.clients: dict[str, SimClient] = {}
        self.problems: list[str] = []
        self.client_skew = 1.0  # of the difference between clients' clocks and the true time
        self.skews_ms = {0}  # how much clients' clocks were ahead
        self.rotten: dict[str, None] = {}  # bookies whose durable data was damaged
        self.witness: Witness | None = None
        self.on_copy: Callable[[str], None] | None = None  # called with the auto-recovery process that copied entries
        self.on_index_write: Callable[[SimBookie], None] | None = None  # called before a bookie writes index files
        for number in range(1, self.bookie_count + 1):
            self.add_bookie(f"b{number}")

    def add_bookie(self, name: str) -> None:
        """Add a bookie, which still has to be started."""
        random = Random(f"{self.seed}/{name}")
        settings: dict[str, object] = {
            "bookie_id": name,
            "host": name,
            "port": BOOKIE_PORT,
            "journal_directories": (f"/{name}/journal",),
            "ledger_directories": tuple(f"/{name}/ledgers{number or ''}" for number in range(self.disks)),
            "journal_size_max": 1 << 20,
            "journal_preallocate_size": 16 << 10,
            "write_cache_size": 1 << 20,
            "entry_log_size_max": 1 << 20,
            "index_cache_size": 1 << 20,
            "checkpoint_interval_ms": random.choice((100, 500, 2_000)),
            "checkpoint_journal_size": 1 << 20,
            "lease_ms": int(self.lease_s * 1000),
            "gc_interval_ms": 0,
            "control": False,
            "scrub_period_ms": 0,
        }
        config = BookieConfig(**(settings | self.bookie_settings))  # type: ignore[arg-type]
        disk = self._new_disk(name, "disk")
        workers = SimWorkers(Random(f"{self.seed}/{name}/workers"), mean_ms=random.choice((0.05, 0.2, 2.0)))
        clock = SimClock(self.loop, random.randint(-30_000, 30_000))
        self.bookies[name] = SimBookie(name, config, disk, workers, clock)

    def _new_disk(self, name: str, purpose: str) -> SimDisk:
        disk = SimDisk(Random(f"{self.seed}/{name}/{purpose}"), capacity=DISK_CAPACITY)
        disk.forgets_failed_syncs = True
        return disk

    # -- bookies -------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Initialize the cluster in the metadata store and start every bookie."""
        driver = MemoryDriver(self.memory)
        await driver.open()
        await driver.initialize_cluster()
        await driver.close()
        for bookie in self.bookies.values():
            await self.start_bookie(bookie.name)

    async def start_bookie(self, name: str) -> None:
        """Begin a bookie's next life and wait until it serves or has died again."""
        bookie = self.bookies[name]
        assert not bookie.is_up
        bookie.lives += 1
        participant = Participant(self.loop, name)
        bookie.participant = participant
        self.network.report_half_open(name)
        runtime = Runtime(
            clock=bookie.clock,
            network=self.network.port(name),
            disk=bookie.disk,
            workers=bookie.workers,
            random=Random(f"{self.seed}/{name}/{bookie.lives}"),
        )
        driver = SimDriver(self.store, self.memory, name)
        bookie.driver = driver
        self.trace.note(name, f"starts (life {bookie.lives})")
        started: asyncio.Future[bool] = self.loop.create_future()
        disk_life, failures = bookie.disk.life, bookie.disk.life.failure_count

        async def live() -> None:
            try:
                await driver.open()
                server = BookieServer(runtime, bookie.config, driver, partial(self._wrap, bookie))
                server.store.observer = _Observer(self, bookie)
                server.store.databases = SimDatabases(bookie.disk)
                await server.start()
                bookie.server = server
                if self.witness is not None:
                    await self.witness.check_memory(name, server)
            except Exception as error:  # noqa: BLE001
                # A process that cannot start exits. Its supervisor restarts it, see `_life_ended`.
                self.trace.note(name, f"could not start: {type(error).__name__}: {error}")
                if not isinstance(error, MetadataError) and disk_life.failure_count == failures:
                    bookie.is_lost = True
                    text = f"{name} does not start after its crash: {type(error).__name__}: {error}"
                    self.problems.append(text)
                    if self.witness is not None:
                        self.witness.report("B-1", text)
                started.set_result(False)
                return
            self.trace.note(name, "serves")
            if self.fetches_owed:
                self._fetch_owed(bookie, participant, runtime, server)
            started.set_result(True)
            await server.wait_failed()

        task = participant.create_task(live(), name=f"life of {name}")
        task.add_done_callback(lambda _: self._life_ended(bookie, participant), context=self.loop.world.copy())
        participant.on_kill(lambda: None if started.done() else started.set_result(False))
        await started

    def _fetch_owed(self, bookie: SimBookie, participant: Participant, runtime: Runtime, server: BookieServer) -> None:
        """Run the part of auto-recovery that every bookie has."""
        config = RecoveryConfig(log_retention_interval_s=0)
        client_config = ClientConfig(**self.client_settings)  # type: ignore[arg-type]

        def open_driver() -> SimDriver:
            bookie.beside_driver = SimDriver(self.store, self.memory, bookie.name)
            return bookie.beside_driver

        part = BesideBookie(config, client_config, open_driver, repairs=False)
        bookie.owed.append(server.owed)
        bookie.beside = participant.create_task(part.run(server, runtime), name=f"owed entries of {bookie.name}")

    def _wrap(self, bookie: SimBookie, store: LedgerStore) -> Storage:
        """Return the storage that serves a bookie's requests: faults first, then the witness, then deferred syncs."""
        storage: Storage = Deferring(store) if self.defers_syncs else store
        if self.witness is not None:
            storage = self.witness.watch(bookie.name, storage)
        return FaultyStorage(storage, bookie.storage_faults)

    def _life_ended(self, bookie: SimBookie, participant: Participant) -> None:
        """Handle a bookie that exited without a fault: end its process; its supervisor restarts it."""
        if participant.is_alive:
            self.crash_bookie(bookie.name, PROCESS_DIES, restart_after_s=0.2)

    def crash_bookie(
        self, name: str, loss: Loss, *, is_silent: bool = False, restart_after_s: float | None = None
    ) -> None:
        """Kill a bookie now. `loss`: what its disk loses. `is_silent`: its peers do not notice (power failure)."""
        bookie = self.bookies[name]
        if not bookie.is_up:
            return
        assert bookie.participant is not None
        assert bookie.driver is not None
        event = "process dies" if loss.keeps_cache else f"power fails (survival {loss.survival})"
        self.trace.note(name, f"{event}{', silently' if is_silent else ''}")
        bookie.participant.kill()
        bookie.disk.is_down = True
        self.network.crash(bookie.participant, is_silent=is_silent)
        # Deferred: the victim may be in the middle of a call, which first has to unwind from a disk that is down.
        self.loop.call_soon(bookie.disk.crash, loss, context=self.loop.world.copy())
        bookie.server = None
        self._expire_later(bookie.driver)
        if bookie.beside_driver is not None:
            self._expire_later(bookie.beside_driver)
            bookie.beside_driver = None
        if restart_after_s is not None:
            self.restart_later(name, restart_after_s)

    def crash_in_disk_call(self, name: str, calls: int, loss: Loss, *, is_silent: bool, restart_after_s: float) -> None:
        """Kill a bookie just before its disk call number `calls` from now. A write may be half done."""
        bookie = self.bookies[name]
        if bookie.is_up:
            bookie.disk.crash_at = bookie.disk.call_count + calls
            bookie.disk.on_crash = lambda: self.crash_bookie(
                name, loss, is_silent=is_silent, restart_after_s=restart_after_s
            )

    async def empty_bookie(self, name: str) -> None:
        """Give a bookie that is down an empty disk and delete its cookie, so that it may start again under its id."""
        bookie = self.bookies[name]
        assert not bookie.is_up
        self.trace.note(name, "is emptied")
        bookie.disk = self._new_disk(name, f"disk after life {bookie.lives}")
        if self.witness is not None:
            self.witness.emptied(name)
        driver = MemoryDriver(self.memory)
        await driver.open()
        _, version = await driver.read_cookie(BookieId(name))
        await driver.delete_cookie(BookieId(name), version)
        await driver.close()

    @property
    def owing(self) -> list[str]:
        """Return the bookies that may owe entries: those that are down, do not know yet which ledgers they had, or have
        ledgers in limbo."""
        stores = {name: bookie.server.store if bookie.server else None for name, bookie in self.bookies.items()}
        return [name for name, store in stores.items() if store is None or store.has_unknown_ledgers or store.limbo]

    def lose_directories(
        self, name: str, paths: Sequence[str], loss: Loss, *, is_empty: bool, restart_s: float
    ) -> None:
        """Kill a bookie, lose these directories of it, and start it again with the operator's consent.

        `is_empty`: there are empty disks in their place.
        """
        bookie = self.bookies[name]
        self.trace.note(name, f"loses {', '.join(paths)}")
        bookie.config = dataclasses.replace(bookie.config, lost_directories=tuple(paths))
        if self.witness is not None:
            self.witness.lost_disk(name)
        self.crash_bookie(name, loss, restart_after_s=restart_s)
        for path in paths:
            self.loop.call_soon(partial(bookie.disk.lose_directory, path, is_empty=is_empty))

    def lose_bookie(self, name: str, loss: Loss) -> None:
        """Kill a bookie now, for good."""
        bookie = self.bookies[name]
        bookie.gone_s = self.loop.time()
        self.trace.note(name, "is gone for good")
        if bookie.restart is not None:
            bookie.restart.cancel()
        self.crash_bookie(name, loss)

    def restart_later(self, name: str, delay_s: float) -> None:
        async def restart() -> None:
            await asyncio.sleep(delay_s)
            bookie = self.bookies[name]
            while not bookie.is_up and not bookie.is_lost and not bookie.is_gone:
                await self.start_bookie(name)
                await asyncio.sleep(0.5)

        bookie = self.bookies[name]
        if bookie.restart is None or bookie.restart.done():
            bookie.restart = self.loop.create_task(restart(), name=f"restart {name}", context=self.loop.world.copy())

    def _expire_later(self, driver: SimDriver) -> None:
        """End the metadata session of a dead participant when its lease expires."""

        async def expire() -> None:
            await asyncio.sleep(self.lease_s)
            await driver.end_session()

        self.loop.create_task(expire(), name="lease", context=self.loop.world.copy())

    # -- clients -------------------------------------------------------------------------------------------------
    def new_client(
        self, name: str, settings: Mapping[str, object] | None = None, random: Random | None = None
    ) -> SimClient:
        """Return a new client process, which still has to connect: call `open_client` as its participant.

        `settings`: of its `ClientConfig`; None: those of the cluster. `random`: the client's random generator.
        """
        assert name not in self.clients
        participant = Participant(self.loop, name)
        random = random or Random(f"{self.seed}/{name}")
        clock = SimClock(self.loop, int(random.randint(-30_000, 30_000) * self.client_skew))
        self.skews_ms.add(clock.skew_ms)
        runtime = Runtime(
            clock=clock,
            network=self.network.port(name),
            disk=SimDisk(),
            workers=SimWorkers(random),
            random=random,
        )
        driver = SimDriver(self.store, self.memory, name)
        config = ClientConfig(**(self.client_settings if settings is None else settings))  # type: ignore[arg-type]
        client = Client(runtime, driver, config)
        if self.traced_probability:
            client.traced_by(lambda: TRACE if random.random() < self.traced_probability else "")
        self.clients[name] = SimClient(name, participant, client, driver, runtime, clock)
        return self.clients[name]

    async def open_client(self, client: SimClient) -> None:
        """Connect a client to the metadata store. Called as its participant."""
        await client.client.open_session()

    async def close_client(self, client: SimClient) -> None:
        """Close a client in an orderly way. Called as its participant."""
        await client.client.close()
        self.clients.pop(client.name, None)

    def kill_client(self, name: str) -> None:
        client = self.clients.pop(name)
        self.trace.note(name, "is killed")
        client.participant.kill()
        self.network.crash(client.participant, is_silent=False)
        self._expire_later(client.driver)

    def expire_session(self, name: str) -> None:
        """Expire a participant's metadata session, if it has one, as the store does after a missed lease."""
        process = self.bookies.get(name) or self.clients.get(name)
        if process is not None and process.driver is not None:
            self.trace.note(name, "loses its metadata session")
            process.driver.expire()

    # -- the end -------------------------------------------------------------------------------------------------
    async def heal(self) -> None:
        """End every fault and wait until every bookie serves."""
        self.trace.note("world", "heals everything")
        self.store.heal()
        self.network.heal()
        for client in self.clients.values():
            client.participant.defuse()
            client.participant.resume()
        for bookie in self.bookies.values():
            bookie.workers.slowness = 1.0
            bookie.disk.crash_at = None
            bookie.disk.faults.clear()
            bookie.storage_faults.refusals, bookie.storage_faults.is_in_limbo = 0, False
            bookie.disk.grow(DISK_CAPACITY)
            if bookie.participant is not None:
                bookie.participant.defuse()
                bookie.participant.resume()
            if not bookie.is_up and not bookie.is_gone:
                if bookie.restart is not None:
                    bookie.restart.cancel()
                bookie.restart = None
                self.restart_later(bookie.name, 0.0)
        for bookie in self.bookies.values():
            if bookie.restart is not None and not bookie.is_gone:
                await bookie.restart
        self.network.report_half_open()

    async def stop(self) -> None:
        """Stop clients, then bookies, in an orderly way. Tasks that they leave behind are problems."""
        for client in list(self.clients.values()):
            await client.participant.create_task(self.close_client(client), name="close client")
            self._note_leftovers(client.participant)
        for bookie in self.bookies.values():
            if bookie.server is not None and bookie.participant is not None:
                if bookie.beside is not None:
                    bookie.beside.cancel()
                    await asyncio.wait((bookie.beside,))
                await bookie.participant.create_task(bookie.server.stop(), name="stop bookie")
                await asyncio.sleep(0)
                self._note_leftovers(bookie.participant)

    def _note_leftovers(self, participant: Participant) -> None:
        tasks = [line for line in self.loop.leftover_tasks(participant) if not line.startswith("life of")]
        self.problems += [f"{participant.name} is stopped, but this task of it is not: {line}" for line in tasks]


class _Observer(StorageObserver):
    """Observer of the storage of one life of a bookie, for the cluster."""

    def __init__(self, cluster: SimCluster, bookie: SimBookie) -> None:
        self._cluster = cluster
        self._bookie = bookie

    def index_write_begins(self) -> None:
        """Call `on_index_write`, if the bookie serves."""
        if self._cluster.on_index_write is not None and self._bookie.server is not None:
            self._cluster.on_index_write(self._bookie)

    def deletion_begins(self, ledger_ids: Sequence[int]) -> None:
        if self._cluster.witness is not None:
            self._cluster.witness.check_deletions(self._bookie.name, ledger_ids)
