"""Locks on a store that loses requests and replies: one holder at any moment, tokens that grow, and progress."""

from __future__ import annotations

import asyncio
import os
from random import Random

import pytest
from tests.fakes.world import World, play

from bookies.client.turns.lease import Contest, Lease
from bookies.errors import LeaseHeld, LeaseLost, MetadataError
from bookies.metadata.embedded import MemoryDriver
from bookies.protocol.log.lease import Candidate

SEEDS = int(os.environ.get("BK_SWEEP_SEEDS", "4"))
PROCESSES, END_S, TTL_S = 5, 300.0, 3.0


class LostMessages:
    """Requests and replies that are late or lost; now and then the store is unavailable for one process."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._outage_s = 0.0

    async def before(self, operation: str, driver: MemoryDriver) -> None:
        await self._pass(operation, "request")

    async def after(self, operation: str, driver: MemoryDriver) -> None:
        await self._pass(operation, "reply")

    async def _pass(self, operation: str, message: str) -> None:
        if operation not in ("read_record", "write_record", "create_record"):
            return
        await asyncio.sleep(self._random.choice((0.001, 0.01, 0.3, self._random.uniform(0, 2))))
        now_s = asyncio.get_running_loop().time()
        if self._random.random() < 0.01:
            self._outage_s = now_s + self._random.uniform(1, 10)
        if now_s < self._outage_s or self._random.random() < 0.05:
            raise MetadataError(f"the {message} was lost")


class Processes:
    """Processes that take one lock in turn. `tokens`: of the holders, in order."""

    def __init__(self, world: World, seed: int) -> None:
        self.tokens: list[int] = []
        self.lost_count = self.refused_count = 0
        self._world = world
        self._random = Random(seed)
        self._held: list[Lease] = []

    async def run(self, number: int) -> None:
        runtime = self._world.runtime(f"process{number}")
        driver = MemoryDriver(
            self._world.store, runtime, faults=LostMessages(Random(f"{number}/{runtime.random.random()}"))
        )
        await driver.open()
        contest = Contest(runtime, driver, "locks/x", "lock x")
        while asyncio.get_running_loop().time() < END_S:
            try:
                async with contest.opening(TTL_S, self._random.random() < 0.8, f"process {number}") as lease:
                    await self._hold(lease)
            except LeaseLost:
                self.lost_count += 1
            except LeaseHeld:
                self.refused_count += 1
            await asyncio.sleep(self._random.uniform(0, 3))
        await driver.close()

    async def _hold(self, lease: Lease) -> None:
        self._held = [other for other in self._held if other.is_held]
        assert lease.is_held
        assert not self._held, "two processes hold the lock"
        assert not self.tokens or lease.token > self.tokens[-1]
        self._held.append(lease)
        self.tokens.append(lease.token)
        await asyncio.sleep(self._random.uniform(0, 8))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_one_process_at_a_time_has_a_lock(seed: int) -> None:
    async def act(world: World) -> Processes:
        processes = Processes(world, seed)
        await asyncio.gather(*map(processes.run, range(PROCESSES)))
        return processes

    processes = play(act, 1, seed)
    assert len(processes.tokens) > 15
    assert processes.lost_count > 0


def test_a_mutant_that_removes_others_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    due_s = Candidate._dead_s
    monkeypatch.setattr(Candidate, "_dead_s", lambda self, other: due_s(self, other) - other.ttl_ms / 1500)

    def sweep() -> None:
        for seed in range(10):
            test_one_process_at_a_time_has_a_lock(seed)

    with pytest.raises(AssertionError, match="two processes hold the lock"):
        sweep()
