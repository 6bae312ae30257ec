"""One of four bookies is hostile: nobody hangs, nothing acknowledged is lost, nothing wrong is read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bookies.errors import BookKeeperError
from bookies.lab.sim.checkers import Story
from bookies.lab.sim.clients.plan import Plan
from bookies.lab.sim.faults import Profile
from bookies.lab.sim.faults.fault_schedule import FaultPlan
from bookies.lab.sim.run import Simulation
from bookies.lab.sim.world import SimClient
from bookies.lab.sim.world.hostile import MISDEEDS

TIMEOUT_MS = 300
DURATION_S = 1.5
# Of everything under way when the work ends, with the hostile bookie as hostile as before. One request times out after
# TIMEOUT_MS; an operation makes some dozens one after the other at most.
FINISH_S = 30.0
RECOVERY_TRIES = 5
# Every acknowledgement takes an honest bookie.
QUORUMS = ((3, 3, 2), (3, 3, 2), (4, 3, 2), (3, 2, 2), (4, 4, 3), (2, 2, 2))


def profile(wire: str, **behaviour: Any) -> Profile:
    settings: dict[str, object] = {
        "add_timeout_ms": TIMEOUT_MS,
        "read_timeout_ms": TIMEOUT_MS,
        "connect_timeout_ms": 1_000,
        "wire": wire,
    }
    return Profile(
        bookies=3,
        duration_s=DURATION_S,
        plan=Plan(quorums=QUORUMS, digests=("crc32c", "crc32", "hmac"), recovery_ms=300),
        faults=FaultPlan(weights={}),
        client_settings=settings,
        hostile=behaviour,
    )


class HostileRun:
    """One seed. `misdeeds`: as for `HostileBookie`; none: all."""

    def __init__(self, seed: int, wire: str = "v2", misdeeds: tuple[str, ...] = (), honesty: float = 0.5) -> None:
        self.simulation = Simulation(seed, profile(wire, misdeeds=misdeeds, honesty=honesty))
        assert self.simulation.hostile is not None
        self.process = self.simulation.hostile
        self.hostile = self.process.bookie

    def run(self) -> None:
        self.simulation.run(lambda _: self._scenario())
        assert not self.simulation.history.violations, "\n".join(self.simulation.history.violations)

    async def _scenario(self) -> None:
        simulation = self.simulation
        await simulation.cluster.start()
        await self.process.start()
        simulation.workload.start()
        await asyncio.sleep(simulation.profile.duration_s)
        simulation.workload.stop()
        # Tails end when the checker has recovered their ledgers.
        finishing = asyncio.create_task(simulation.workload.finish())
        checker = simulation.cluster.new_client("checker")
        await checker.participant.create_task(self._check(checker), name="checker")
        try:
            async with asyncio.timeout(FINISH_S):
                await finishing
        except TimeoutError:
            simulation.history.violated("I-19", f"{FINISH_S:g} s were not enough:\n{simulation.loop.describe_tasks()}")
            return
        await simulation.cluster.stop()
        await self.process.stop()

    async def _check(self, client: SimClient) -> None:
        """Every ledger is recovered and read back, past a bookie that is still hostile."""
        await self.simulation.cluster.open_client(client)
        for story in list(self.simulation.history.stories.values()):
            async with asyncio.timeout(FINISH_S):
                await self._check_ledger(client, story)

    async def _check_ledger(self, client: SimClient, story: Story) -> None:
        history = self.simulation.history
        for tries in range(RECOVERY_TRIES):
            try:
                async with client.client.recover(story.ledger_id, password=story.password) as ledger:
                    end = ledger.metadata.last_entry_id
                    history.ended(story, client.name, end, ledger.metadata.length)
                    count = await self.simulation.workload.readers.read_all(client, story, ledger)
                if count != end + 1:
                    history.violated("I-1", f"{count} entries of ledger {story.ledger_id} were read, not {end + 1}")
                return
            except BookKeeperError as error:
                if tries == RECOVERY_TRIES - 1:
                    history.violated("L-2", f"ledger {story.ledger_id} cannot be read back: {error!r}")


@pytest.mark.parametrize("wire", ["v2", "v3"])
@pytest.mark.parametrize("seed", range(2))
def test_a_bookie_that_does_everything_wrong(seed: int, wire: str) -> None:
    run = HostileRun(seed, wire)
    run.run()
    assert run.simulation.history.counts["entries acknowledged"] > 0
    assert run.hostile.counts["honest"] > 0


@pytest.mark.parametrize("misdeed", MISDEEDS)
def test_a_bookie_that_always_does_the_same_thing_wrong(misdeed: str) -> None:
    seed = list(MISDEEDS).index(misdeed)
    run = HostileRun(seed, ("v2", "v3")[seed % 2], (misdeed,), honesty=0.0)
    run.run()
    assert run.hostile.counts[misdeed] > 0
    assert run.simulation.history.counts["entries acknowledged"] > 0


def test_the_same_seed_is_the_same_run() -> None:
    def once() -> tuple[str, dict[str, Any]]:
        run = HostileRun(3)
        run.run()
        return run.simulation.trace.digest(), run.hostile.counts

    assert once() == once()
