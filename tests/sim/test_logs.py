"""Two leaders of one log duel while everything else goes wrong: I-20, I-21, I-22, L-4 on every seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from tests.sim.log_world import LogWorld

from bookies.client import takeover
from bookies.client.log_writer import LogWriter
from bookies.client.writer import LedgerWriter
from bookies.protocol.log import Extent, LedgerEnd, Manifest, rolled
from bookies.sim.faults import FaultPlan
from bookies.sim.metadata import SimDriver

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


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("plan", PLANS)
def test_duelling_leaders(plan: str, seed: int) -> None:
    world = LogWorld(f"{plan}/{seed}")
    history = world.run(lambda world: world.duel(PLANS[plan], 4.0))
    assert not history.problems, "\n".join([*history.problems[:10], *world.trace.tail(50)])
    assert history.acks


@pytest.mark.parametrize("seed", range(2))
def test_a_leader_without_rivals_goes_on_after_every_failure_of_its_ledger(seed: int) -> None:
    world = LogWorld(f"alone/{seed}", bookies=3)  # none to replace a bookie: each failure of two ends the ledger
    history = world.run(lambda world: world.duel(BOOKIES, 4.0, leaders=1))
    assert not history.problems, "\n".join([*history.problems[:10], *world.trace.tail(50)])


def test_a_seed_is_one_run() -> None:
    traces = []
    for _ in range(2):
        world = LogWorld("again")
        world.run(lambda world: world.duel(CLIENTS, 2.0))
        traces.append(world.trace.digest())
    assert traces[0] == traces[1]


def test_leaders_that_read_an_old_list_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    original, random = SimDriver.read_record, Random(7)
    versions: dict[str, list[tuple[bytes, int]]] = {}

    async def read_record(self: SimDriver, name: str) -> tuple[bytes, int]:
        found = await original(self, name)
        known = versions.setdefault(name, [])
        if not known or known[-1][1] < found[1]:
            known.append(found)
        is_stale = self._host.startswith("leader") and random.random() < 0.4
        return known[max(0, len(known) - 2)] if is_stale else found

    monkeypatch.setattr(SimDriver, "read_record", read_record)
    world = LogWorld("stale")
    history = world.run(lambda world: world.duel(CLIENTS, 4.0))
    assert not history.problems, "\n".join([*history.problems[:10], *world.trace.tail(50)])


# -- mutants ---------------------------------------------------------------------------------------------------------
# The comment behind each names the promises by which it was caught when this was written.


def build_on_whatever_the_list_is_now(patch: pytest.MonkeyPatch) -> None:  # I-21, I-22
    def mutant(found: Manifest, basis: Manifest, ledger_id: int, ends: Any, *, leader: int | None) -> Manifest | None:
        if ledger_id in found.ledger_ids:
            return None
        changed = replace(found, extents=(*found.extents, Extent(found.next_seq, ledger_id)))
        return replace(changed, next_seq=found.next_seq + 1, epoch=found.epoch + 1)

    patch.setattr(takeover, "taken_over", mutant)


def acknowledge_before_the_ledger_in_front_is_closed(patch: pytest.MonkeyPatch) -> None:  # I-3
    async def mutant(self: LogWriter, ledger: LedgerWriter) -> None:
        async with self._changing:
            following = await takeover.new_ledger(self._parts, self._epoch)
            current = ledger.ledger_id
            await self._records.update(
                lambda found: rolled(found, self._epoch, current, following.ledger_id, self._ends)
            )
            self._install(following)
            last = await ledger.seal()
            self._ends = {current: LedgerEnd(last, ledger.length)}

    patch.setattr(LogWriter, "_roll", mutant)


def delete_before_the_list_says_so(patch: pytest.MonkeyPatch) -> None:  # I-20
    async def mutant(parts: takeover.LogParts, ledger: LedgerWriter) -> None:
        await original(parts, ledger)
        await parts.client.delete(ledger.ledger_id - 1)

    original = takeover.discard
    patch.setattr(takeover, "discard", mutant)


@pytest.mark.parametrize(
    "mutant",
    [
        build_on_whatever_the_list_is_now,
        acknowledge_before_the_ledger_in_front_is_closed,
        delete_before_the_list_says_so,
    ],
    ids=lambda mutant: str(mutant.__name__),
)
def test_mutants_are_found(mutant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    for seed in range(12):
        history = LogWorld(f"mutant/{seed}").run(lambda world: world.duel((CLIENTS, BOOKIES)[seed % 2], 4.0))  # noqa: B023
        if history.problems:
            return
    raise AssertionError("not found")
