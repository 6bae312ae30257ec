"""Two leaders of one log duel while everything else goes wrong: I-20, I-21, I-22, L-4 on every seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from bookies.client.log import LogWriter
from bookies.client.log.base import log_operations
from bookies.client.write import LedgerWriter
from bookies.lab.sim.clients.plan import LogPlan
from bookies.lab.sim.faults.fault_schedule import FaultPlan
from bookies.lab.sim.faults.profiles import PROFILES
from bookies.lab.sim.run import Simulation, mixed, simulate
from bookies.lab.sim.world.sim_metadata import StoreFaults
from bookies.protocol.log import Manifest
from bookies.protocol.log.log_model import Extent, LedgerEnd, rolled

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


def run(seed: int, faults: FaultPlan, *, bookies: int = 4, leaders: int = 2, staleness: float = 0.0) -> Simulation:
    """A run without truncations, in which everything acknowledged has to be there at the end."""
    log = LogPlan(leaders=leaders, truncators=0)
    simulation = Simulation(seed, replace(PROFILES["logs"], bookies=bookies, faults=faults, log=log))
    simulation.cluster.store.faults = StoreFaults(stale_read=staleness)
    simulation.run(mixed)
    return simulation


def holds(simulation: Simulation) -> None:
    violations = simulation.history.violations
    assert not violations, "\n".join([*violations[:10], *simulation.trace.tail(50)])
    assert simulation.history.counts["entries acknowledged"] > 0


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("plan", PLANS)
def test_duelling_leaders(plan: str, seed: int) -> None:
    holds(run(seed, PLANS[plan]))


@pytest.mark.parametrize("seed", range(2))
def test_a_leader_without_rivals_goes_on_after_every_failure_of_its_ledger(seed: int) -> None:
    holds(run(seed, BOOKIES, bookies=3, leaders=1))  # none to replace a bookie: each failure of two ends the ledger


def test_a_seed_is_one_run() -> None:
    assert run(7, CLIENTS).trace.digest() == run(7, CLIENTS).trace.digest()


def test_leaders_that_read_an_old_list_now_and_then() -> None:
    weights = {kind: weight for kind, weight in CLIENTS.weights.items() if kind != "metadata trouble"}
    holds(run(1, replace(CLIENTS, weights=weights), staleness=0.3))


# -- mutants ---------------------------------------------------------------------------------------------------------
# The comment behind each names the promises by which it was caught when this was written.


def build_on_whatever_the_list_is_now(patch: pytest.MonkeyPatch) -> None:  # I-21, I-22
    def mutant(found: Manifest, basis: Manifest, ledger_id: int, ends: Any, *, leader: int | None) -> Manifest | None:
        if ledger_id in found.ledger_ids:
            return None
        changed = replace(found, extents=(*found.extents, Extent(found.next_seq, ledger_id)))
        return replace(changed, next_seq=found.next_seq + 1, epoch=found.epoch + 1)

    patch.setattr(log_operations, "taken_over", mutant)


def acknowledge_before_the_ledger_in_front_is_closed(patch: pytest.MonkeyPatch) -> None:  # I-3
    async def mutant(self: LogWriter, ledger: LedgerWriter) -> None:
        async with self._changing:
            following = await log_operations.new_ledger(self._parts, self._epoch)
            current = ledger.ledger_id
            await self._records.update(
                lambda found: rolled(found, self._epoch, current, following.ledger_id, self._ends)
            )
            self._install(following)
            last = await ledger.seal()
            self._ends = {current: LedgerEnd(last, ledger.length)}

    patch.setattr(LogWriter, "_roll", mutant)


def delete_before_the_list_says_so(patch: pytest.MonkeyPatch) -> None:  # I-20
    async def mutant(parts: log_operations.LogContext, ledger: LedgerWriter) -> None:
        await original(parts, ledger)
        await parts.client.delete(ledger.ledger_id - 1)

    original = log_operations.discard
    patch.setattr(log_operations, "discard", mutant)


@pytest.mark.parametrize(
    ("mutant", "first_seed"),  # A seed that catches it, so that the test is quick.
    [
        (build_on_whatever_the_list_is_now, 1),
        (acknowledge_before_the_ledger_in_front_is_closed, 19),
        (delete_before_the_list_says_so, 1),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_mutants_are_found(
    mutant: Callable[[pytest.MonkeyPatch], None], first_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    for seed in range(first_seed, first_seed + 40):
        if simulate(seed, "logs", stops_at_first=True).violations:
            return
    raise AssertionError("not found")
