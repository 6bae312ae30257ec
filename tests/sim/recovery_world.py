"""A small cluster with auto-recovery, for tests that say what happens to whom and when."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bookies.client.repair import Administration
from bookies.config import RecoveryConfig
from bookies.lab.sim.run import Result, Simulation, simulate
from bookies.lab.sim.world import SimClient, SimCluster
from bookies.lab.sim.world.disk import PROCESS_DIES
from bookies.metadata.shared import BookieNotes
from bookies.model import BookieId, LedgerMetadata
from bookies.replication.daemon import AutoRecovery

QUICK: Mapping[str, object] = {
    "lost_bookie_delay_s": 5,
    "audit_ledgers_interval_s": 0,
    "audit_bookies_interval_s": 0,
    "recovery_open_ledger_grace_ms": 10_000,
    "recovery_backoff_ms": 1_000,
    "recovery_backoff_max_ms": 20_000,
    "recovery_report_interval_ms": 1_000,
}


@dataclass
class Healer:
    """One process that takes part."""

    client: SimClient
    recovery: AutoRecovery
    task: asyncio.Task[None]


class World:
    """The cluster of one run."""

    def __init__(self, simulation: Simulation) -> None:
        self.cluster: SimCluster = simulation.cluster
        self.simulation = simulation
        self.healers: list[Healer] = []
        self.user: SimClient
        self.names = 0

    @property
    def notes(self) -> BookieNotes:
        return BookieNotes(self.user.driver, self.user.runtime.clock.wall_ms)

    @property
    def admin(self) -> Administration:
        return self.user.client.administration()

    async def begin(self) -> None:
        await self.cluster.start()
        self.user = self.cluster.new_client("writer1")
        await self.user.participant.create_task(self.cluster.open_client(self.user))

    async def act(self, work: Coroutine[Any, Any, Any]) -> Any:
        """As the user."""
        return await self.user.participant.create_task(work)

    async def heal(self, client_settings: Mapping[str, object] | None = None, **settings: object) -> Healer:
        """Start another process that takes part. `client_settings`: of its client."""
        self.names += 1
        client = self.cluster.new_client(f"replicator-healer{self.names}", client_settings)
        await client.participant.create_task(self.cluster.open_client(client))

        recovery = AutoRecovery(
            client.runtime,
            client.client,
            client.driver,
            RecoveryConfig(**{**QUICK, **settings}),  # type: ignore[arg-type]
            BookieId(client.name),
            client.name,
        )
        task = client.participant.create_task(recovery.run(), name=f"auto-recovery of {client.name}")
        self.healers.append(Healer(client, recovery, task))
        return self.healers[-1]

    async def end(self) -> None:
        """Stop what takes part, in the orderly way: nothing of it may stay in the store."""
        for healer in self.healers:
            if healer.client.participant.is_alive:
                healer.task.cancel()
                await asyncio.wait((healer.task,))
                assert healer.task.cancelled()
        store = self.user.driver.recovery
        assert await self.act(store.locks()) == {}
        assert await self.act(store.auditor()) is None
        killed = [f"autorecovery/{each.client.name}" for each in self.healers if not each.client.participant.is_alive]
        assert await self.act(self.user.driver.record_names("autorecovery/")) == killed

    # -- ledgers -------------------------------------------------------------------------------------------------
    async def write(
        self, quorums: tuple[int, int, int] = (3, 3, 2), count: int = 30, *, size: int = 100, **options: Any
    ) -> int:
        """A sealed ledger; its id."""

        async def write() -> int:
            size_, write_quorum, ack_quorum = quorums
            async with self.user.client.create(
                ensemble=size_, write_quorum=write_quorum, ack_quorum=ack_quorum, **options
            ) as ledger:
                if count:
                    await ledger.append_many([b"%06d" % number + bytes(size) for number in range(count)])
                return int(ledger.ledger_id)

        return int(await self.act(write()))

    def record(self, ledger_id: int) -> LedgerMetadata:
        record = self.cluster.store.record(ledger_id)
        assert record is not None
        return record

    async def is_whole(self, ledger_id: int) -> bool:
        check = await self.act(self.admin.check_ledger(ledger_id, percentage=100))
        return bool(check.is_ok)

    async def marked(self) -> list[int]:
        async def marked() -> list[int]:
            return [each async for ids in self.user.driver.recovery.marked_ids() for each in ids]

        found = await self.act(marked())
        assert isinstance(found, list)
        return found

    async def until(self, condition: Callable[[], Awaitable[bool]], limit_s: float = 120.0) -> float:
        """Wait for it; how long it took, virtual seconds."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        while not await condition():
            assert loop.time() - begun < limit_s, "it did not happen"
            await asyncio.sleep(0.25)
        return loop.time() - begun

    async def until_whole(self, ledger_ids: Sequence[int], limit_s: float = 120.0) -> float:
        async def whole() -> bool:
            return not await self.marked() and all([await self.is_whole(each) for each in ledger_ids])

        return await self.until(whole, limit_s)

    async def has_reported(self, ledger_id: int) -> bool:
        return any(ledger_id in healer.recovery.worker.reports for healer in self.healers)

    # -- bookies -------------------------------------------------------------------------------------------------
    def kill(self, *names: str) -> None:
        for name in names:
            self.cluster.crash_bookie(name, PROCESS_DIES)

    async def start(self, *names: str) -> None:
        for name in names:
            await self.cluster.start_bookie(name)

    def cut_off(self, *, is_cut: bool) -> None:
        """The user from the metadata store."""
        network, name = self.cluster.network, self.user.name
        for source, target in ((name, "metadata"), ("metadata", name)):
            (network.block if is_cut else network.unblock)(source, target)

    async def forget(self, name: str, ledger_id: int) -> None:
        """The bookie serves on, and has lost all of a ledger."""
        bookie = self.cluster.bookies[name]
        assert bookie.participant is not None
        assert bookie.server is not None
        store = bookie.server.store

        async def drop() -> None:
            await asyncio.sleep(0.2)  # virtual seconds: the last replica may come after the acknowledgement
            await store.checkpoint()
            await store._open().checkpointer.index_writer.drop_ledgers([ledger_id])

        if self.cluster.witness is not None:
            self.cluster.witness.may_deny[name, ledger_id] = None
        await bookie.participant.create_task(drop())

    def copied(self) -> int:
        """Entries, of all copies."""
        return sum(healer.recovery.worker.totals.entries for healer in self.healers)


def run(
    scenario: Callable[[World], Coroutine[Any, Any, None]], seed: int = 1, *, bookies: int = 5, **settings: Any
) -> Result:
    """Run it on a calm cluster; no promise may be broken."""

    async def whole(simulation: Simulation) -> None:
        world = World(simulation)
        for number in range(simulation.profile.bookies + 1, bookies + 1):
            world.cluster.add_bookie(f"b{number}")
        await world.begin()
        await scenario(world)
        await world.end()

    result = simulate(seed, "calm", scenario=whole)
    assert not result.violations, result.report()
    return result
