"""Metrics of auto-recovery: stages of repairs and recoveries, and findings of the auditor."""

from __future__ import annotations

import asyncio

from tests.sim.recovery_world import Healer, World, run

from bookies.metrics import client_table, recovery_table
from bookies.metrics.metric import Collection

SHORTAGE = "auditor_NUM_LEDGERS_HAVING_{}_OF_AN_ENTRY"


def values(healer: Healer) -> dict[tuple[str, str], float]:
    """Return the samples by name and the value of their only label, or an empty text."""
    collection = Collection((recovery_table.TABLE,), {"recovery": lambda: healer.recovery}, lambda: 0.0)
    samples = [sample for family in collection.families() for sample in family.samples]
    assert collection.failed == 0
    return {(name, labels[0][1] if labels else ""): value for name, labels, value in samples if len(labels) <= 1}


def test_a_repair_is_timed_by_stage_and_an_open_ledger_sets_the_ensemble() -> None:
    async def scenario(world: World) -> None:
        ledgers = [await world.write() for _ in range(5)]
        opened = await world.act(world.user.client.create(ensemble=4, write_quorum=2, ack_quorum=2).begin())
        healer = await world.heal()
        world.kill("b1")
        await world.until_whole(ledgers)
        await world.act(opened.close())
        metrics = values(healer)
        repaired = metrics["bookies_fragments_repaired_total", ""]
        assert repaired >= 1
        for stage in ("claim", "check", "read", "write", "metadata"):
            uncopied = (
                1 if stage in ("read", "write") else 0
            )  # The open ledger has no entries: only a name is replaced.
            assert metrics["bookies_repair_stage_seconds_count", stage] >= repaired - uncopied, stage
            assert metrics["bookies_repair_stage_seconds_sum", stage] > 0, stage
        assert metrics["bookies_ensemble_size_max", ""] == 4
        assert metrics["bookies_recovery_enabled", ""] == 1
        assert metrics["bookies_audit_ended_seconds", ""] > 0

    run(scenario)


def test_ledgers_are_counted_by_the_entry_with_the_fewest_replicas() -> None:
    async def scenario(world: World) -> None:
        single = await world.write((1, 1, 1))
        await world.write((3, 3, 2))
        healer = await world.heal(audit_ledgers_interval_s=1)
        [bookie] = world.record(single).last_ensemble
        await world.forget(bookie, single)

        async def is_counted() -> bool:
            return values(healer).get((SHORTAGE.format("NO_REPLICA"), "")) == 1

        await world.until(is_counted)
        assert values(healer)[SHORTAGE.format("LESS_THAN_WQ_REPLICAS"), ""] == 0

        async def is_lost() -> bool:
            return values(healer)["bookies_ledgers_with_lost_entries", ""] == 1

        await world.until(is_lost)

    run(scenario)


def test_the_switch_is_followed() -> None:
    async def scenario(world: World) -> None:
        healer = await world.heal()
        await world.act(world.user.driver.recovery.disable())
        await asyncio.sleep(1)
        assert values(healer)["bookies_recovery_enabled", ""] == 0

    run(scenario)


def test_the_recovery_of_a_ledger_is_timed_by_stage() -> None:
    async def scenario(world: World) -> None:
        other = world.cluster.new_client("writer2")
        await other.participant.create_task(world.cluster.open_client(other))

        async def write() -> int:
            ledger = await other.client.create()
            await ledger.append_many([b"x" * 100] * 50)
            return int(ledger.ledger_id)

        ledger_id = await other.participant.create_task(write())
        world.cluster.kill_client(other.name)
        await world.act(world.user.client.recover(ledger_id).begin())
        usage = world.user.client.usage()
        collection = Collection((client_table.TABLE,), {"client": lambda: usage}, lambda: usage.now_s)
        counts = {
            labels[0][1]: value
            for family in collection.families()
            for name, labels, value in family.samples
            if name == "bookies_client_recovery_stage_seconds_count"
        }
        assert counts == dict.fromkeys(("announce", "fence", "read", "write", "close"), 1)

    run(scenario)
