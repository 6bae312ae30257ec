"""Bookies are recovered, by clients that are killed and among bookies that crash, while others write and recover.

The checkers of every simulation run hold here too; I-18 is what this is about: no record names a bookie before that
bookie has durably all that its position stores.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from tests.sim.mutant_table import MUTANTS

from bookies.client.repair import replication
from bookies.errors import BookKeeperError
from bookies.lab.sim.run import Result, Simulation, simulate
from bookies.lab.sim.world import SimClient
from bookies.lab.sim.world.disk import NOTHING_SURVIVES
from bookies.model import BookieId

SEEDS = 2
DURATION_S = 4.0  # of virtual time


def run(seed: int, profile: str) -> tuple[Result, int]:
    """A sweep's run with replicators in it, and how many fragments they replicated."""
    moves: list[replication.Move] = []

    async def scenario(simulation: Simulation) -> None:
        cluster, workload = simulation.cluster, simulation.workload
        random = Random(f"{seed}/replicators")
        await cluster.start()

        async def replicate(client: SimClient) -> None:
            administration = client.client.administration()
            for _ in range(random.randint(1, 3)):
                await asyncio.sleep(random.expovariate(2.0))
                bookie = BookieId(random.choice(list(cluster.bookies)))
                try:
                    report = await administration.recover_bookies([bookie], skip_open=random.random() < 0.7, force=True)
                    moves.extend(report.moves)
                except BookKeeperError as error:
                    cluster.trace.note(client.name, f"recovery of {bookie} failed: {type(error).__name__}: {error}")

        workload.start()
        slots = [asyncio.create_task(workload.keep_running(f"replicator{n}", replicate)) for n in (1, 2)]
        faults = asyncio.create_task(simulation.faults.run())
        await asyncio.sleep(simulation.profile.duration_s)
        simulation.faults.stop()
        faults.cancel()
        workload.stop()
        await cluster.heal()
        await asyncio.wait(slots)
        await simulation.heal_and_check()

    result = simulate(seed, profile, scenario=scenario, duration_s=DURATION_S)
    return result, len(moves)


@pytest.mark.parametrize("profile", ["calm", "crashes", "metadata"])
def test_nothing_is_lost_by_replicating(profile: str) -> None:
    replicated = 0
    for seed in range(SEEDS):
        result, count = run(seed, profile)
        assert not result.violations, result.report()
        replicated += count
    assert replicated > 0


def test_copies_survive_a_power_failure_of_all_bookies() -> None:
    """A bookie is gone for good; then the others lose their power just when it has been replaced."""

    async def scenario(simulation: Simulation) -> None:
        cluster = simulation.cluster
        await cluster.start()
        client = cluster.new_client("replicator1")
        await client.participant.create_task(cluster.open_client(client))

        async def act() -> None:
            store = client.client
            ledgers = []
            for size, write_quorum, ack_quorum in ((3, 3, 2), (4, 3, 2), (3, 2, 2), (2, 2, 2)):
                async with store.create(ensemble=size, write_quorum=write_quorum, ack_quorum=ack_quorum) as ledger:
                    await ledger.append_many([b"%d" % number for number in range(100)])
                    ledgers.append(ledger.ledger_id)
            cluster.crash_bookie("b1", NOTHING_SURVIVES)
            administration = store.administration()
            report = await administration.recover_bookies([BookieId("b1")], force=True)
            assert report.moves
            for name in ("b2", "b3", "b4", "b5"):
                cluster.crash_bookie(name, NOTHING_SURVIVES, restart_after_s=0.1)
            await asyncio.sleep(3)
            assert await administration.ledgers_on([BookieId("b1")]) == {}
            for ledger_id in ledgers:
                check = await administration.check_ledger(ledger_id, percentage=100)
                assert check.is_ok, check

        await client.participant.create_task(act())
        await cluster.stop()

    result = simulate(1, "calm", scenario=scenario)
    assert not result.violations, result.report()


def test_the_checker_notices_a_swap_before_the_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: the record names the bookies at once, and the entries follow."""
    (mutant,) = [each for each in MUTANTS if each.what == "swap before copy"]
    mutant.apply(monkeypatch)
    assert any(each.startswith("I-18") for seed in range(SEEDS) for each in run(seed, "calm")[0].violations)
