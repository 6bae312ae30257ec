"""`bk ledger repair` over fake bookies: whom it takes for lost, what it says of others, and locked ledgers."""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

import pytest
from tests.fakes.world import World, play
from tests.unit.client.repair.test_administration import assert_replicated, remove, written

from bookies.admin.shared import Session
from bookies.admin.shared.report import print_report
from bookies.admin.verbs import replication
from bookies.client.client import Client
from bookies.errors import InvalidArgument
from bookies.metadata.interface import MetadataDriver
from bookies.model import BookieId


async def repair(world: World, store: Client, *ledgers: int, lost: list[str] | None = None, **given: Any) -> int:
    values = {"ledgers": list(ledgers), "percentage": 100.0, "rate": None, "json": False, "dry_run": False}
    arguments = argparse.Namespace(**(values | {"lost": lost or []} | given))
    report = await replication.repair_ledgers(Session(store._runtime, store, store._driver), arguments)
    return print_report(report, as_json=arguments.json)


async def expect(driver: MetadataDriver, bookie: BookieId) -> None:
    """A cookie, as of all bookies that are to come back."""
    if bookie not in (await driver.all_bookies()).bookies:
        await driver.create_cookie(bookie, b"cookie")


def test_a_bookie_that_is_away_is_replaced_when_it_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    async def act(world: World) -> None:
        store = await world.client()
        ledger_id = await written(store, 30)
        record = await store.metadata(ledger_id)
        away = record.last_ensemble[0]
        await expect(world._drivers[0], away)
        assert await repair(world, store) == 0
        assert capsys.readouterr().out == "repaired 0 fragments of 1 ledger\n"
        with pytest.raises(InvalidArgument, match=f"{away} is registered, so it is not lost"):
            await repair(world, store, lost=[away])
        await remove(world, away)
        assert await repair(world, store, ledger_id) == 1
        said = capsys.readouterr().out
        assert f"ledger {ledger_id}: what {away} has of entries 0 to 29 is unknown (it is not registered)" in said
        assert f"pass --lost {away}\nrepaired 0 fragments of 1 ledger, 1 ledger not or only partly\n" in said
        assert await store.metadata(ledger_id) == record
        # Somebody else took it for lost, and it stays away.
        driver = store._driver
        await driver.recovery.mark(ledger_id, [away], None)
        assert await repair(world, store, ledger_id, dry_run=True, json=True) == 0
        plan = json.loads(capsys.readouterr().out)
        assert (plan["dry_run"], plan["left"]) == (True, [])
        assert [each["old"] for each in plan["fragments"][0]["replaced"]] == [away]
        assert await store.metadata(ledger_id) == record
        assert await repair(world, store, ledger_id) == 0
        assert capsys.readouterr().out.endswith("repaired 1 fragment of 1 ledger\n")
        assert_replicated(world, await store.metadata(ledger_id), 29)

    play(act, 5)


def test_whoever_asks_may_say_that_it_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    async def act(world: World) -> None:
        store = await world.client()
        ledger_id = await written(store, 30)
        away = (await store.metadata(ledger_id)).last_ensemble[0]
        await expect(world._drivers[0], away)
        await remove(world, away)
        begun = asyncio.get_running_loop().time()
        assert await repair(world, store, lost=[away]) == 0
        assert asyncio.get_running_loop().time() - begun < 1, "nothing is waited for"
        assert f"{away} -> " in capsys.readouterr().out
        assert_replicated(world, await store.metadata(ledger_id), 29)

    play(act, 5)


def test_ledgers_that_are_locked_wait_until_the_others_are_done(capsys: pytest.CaptureFixture[str]) -> None:
    async def act(world: World) -> None:
        store = await world.client()
        ledgers = [await written(store, 10) for _ in range(3)]
        for each in ledgers:
            first = (await store.metadata(each)).last_ensemble[0]
            del world.bookies[first].ledgers[each].entries[3]
        other = world._drivers[0].recovery
        locks = [await other.lock(each, f"worker-{each}", needs_mark=False) for each in ledgers[:2]]
        task = asyncio.create_task(repair(world, store))
        await asyncio.sleep(3)  # Virtual seconds: the first round is over.
        assert locks[0] is not None
        await other.unlock(locks[0])
        assert await task == 1
        said = capsys.readouterr()
        assert said.err.count("holds its lock; retrying at the end") == 2
        assert f"ledger {ledgers[1]}: worker-{ledgers[1]} has its lock" in said.out
        assert "repaired 2 fragments of 3 ledgers, 1 ledger not or only partly" in said.out
        assert_replicated(world, await store.metadata(ledgers[0]), 9)
        assert_replicated(world, await store.metadata(ledgers[2]), 9)

    play(act, 5)


def test_entries_that_different_bookies_lack_are_not_reported_as_lost(capsys: pytest.CaptureFixture[str]) -> None:
    async def act(world: World) -> None:
        store = await world.client()
        ledger_id = await written(store, 30)
        record = await store.metadata(ledger_id)
        for entry_id, bookie in enumerate(record.last_ensemble):
            del world.bookies[bookie].ledgers[ledger_id].entries[entry_id]
        assert await replication.verify_ledgers(store, [ledger_id], 100, as_json=False) == 1
        said = capsys.readouterr().out
        assert "  entries 0 to 29  no bookie has all of them\n" in said
        assert "fewest good replicas of an entry: not known, no bookie has all entries\n" in said
        assert await repair(world, store, ledger_id) == 0
        assert_replicated(world, record, 29)

    play(act)
