"""Two leaders of one log duel while everything else goes wrong: I-20, I-21, I-22, L-4 on every seed."""

from __future__ import annotations

import pytest
from tests.sim.log_world import LogWorld

from bookies.sim.faults import FaultPlan

CLIENTS = FaultPlan(
    gap_ms=250,
    weights={
        "kill client": 2,
        "kill client at an await": 3,
        "pause client": 3,
        "cut connection": 2,
        "metadata trouble": 3,
        "isolate from the store": 1,
        "expire session": 1,
        "partition": 1,
    },
)
BOOKIES = FaultPlan(
    gap_ms=300,
    weights={
        "crash bookie": 3,
        "crash bookie in a disk call": 2,
        "crash all bookies": 0.3,
        "pause bookie": 2,
        "isolate": 2,
        "slow host": 1,
        "cut connection": 3,
        "kill client at an await": 1,
        "metadata trouble": 1,
    },
)
PLANS = {"calm": FaultPlan(weights={}), "clients": CLIENTS, "bookies": BOOKIES}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("plan", PLANS)
def test_duelling_leaders(plan: str, seed: int) -> None:
    world = LogWorld(f"{plan}/{seed}")
    history = world.run(lambda world: world.duel(PLANS[plan], 6.0))
    assert not history.problems, "\n".join([*history.problems[:10], *world.trace.tail(50)])
    assert history.acks


@pytest.mark.parametrize("seed", range(4))
def test_a_leader_without_rivals_goes_on_after_every_failure_of_its_ledger(seed: int) -> None:
    world = LogWorld(f"alone/{seed}", bookies=3)  # none to replace a bookie: each failure of two ends the ledger
    history = world.run(lambda world: world.duel(BOOKIES, 6.0, leaders=1))
    assert not history.problems, "\n".join([*history.problems[:10], *world.trace.tail(50)])


def test_a_seed_is_one_run() -> None:
    traces = []
    for _ in range(2):
        world = LogWorld("again")
        world.run(lambda world: world.duel(CLIENTS, 3.0))
        traces.append(world.trace.digest())
    assert traces[0] == traces[1]
