"""What tasks do with their items, over fake bookies on virtual time: Spark only hands the items out."""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import Any

import pytest
from tests.fakes.offloaded import GIVEN_UP, URI, give_up, named
from tests.fakes.world import World, in_world, play
from tests.unit.client.repair.test_administration import assert_replicated, remove, written

from bookies.client.client import Client
from bookies.model import LedgerMetadata
from bookies.protocol.ledger.offload import is_given_up, offload_of
from bookies.protocol.quorums.quorum import stores
from bookies.spark.jobs import offload, reconcile, repair, restore, scrub, usage
from bookies.spark.jobs.shared.common import CarryOut, JobConfig, Outcome, Tools
from bookies.spark.jobs.shared.findings import Finding, Repair, one_by_bookie, repairs_of
from bookies.spark.jobs.shared.packing import Item
from bookies.spark.read import tables
from bookies.wire.digest import mac_key, package_entry


async def tools_of(store: Client) -> Tools:
    return Tools(store, {str(each.id): each.mode for each in await store.bookies()}, None)


async def scrubbed(store: Client, level: int, *ledger_ids: int) -> tuple[list[Finding], list[str]]:
    """Raw findings and outcomes of all items of these ledgers."""
    tools, findings, outcomes = await tools_of(store), [], []
    for ledger_id in ledger_ids:
        rows = tables.fragment_rows((await store.administration().record(ledger_id)).metadata)
        items = scrub.items_of(rows, level) or [scrub._item(ledger_id, 0, -1, 0, ())]
        for item in items:
            outcome, detail = await scrub.ScrubWork(level).carry_out(tools, item)
            outcomes.append(outcome)
            findings += [Finding(*each) for each in json.loads(json.dumps(detail)).get("findings", ())]
    return findings, outcomes


async def repaired(store: Client, plan: list[Repair], *, is_dry: bool = False) -> list[Outcome]:
    tools = await tools_of(store)
    items = repair.items_of([each._asdict() for each in plan])
    return [await repair.RepairWork(is_dry).carry_out(tools, item) for item in items]


def blamed(findings: list[Finding], record: LedgerMetadata | None = None) -> list[tuple[str, int, str]]:
    """(bookie, entry, kind) of every entry; with a record of one fragment, of those that the bookie stores."""
    return sorted(
        (each.bookie, entry_id, each.kind)
        for each in findings
        for entry_id in range(each.first_entry, each.last_entry + 1)
        if record is None
        or stores(
            [*map(str, record.last_ensemble)].index(each.bookie), entry_id, record.ensemble_size, record.write_quorum
        )
    )


async def spoiled(world: World, record: LedgerMetadata, random: Random, count: int) -> list[tuple[str, int, str]]:
    """Damage and remove entries of a ledger, at most one replica of each; what a scrub has to say of it."""
    found = []
    for entry_id in random.sample(range(record.last_entry_id + 1), 2 * count):
        bookie = random.choice([each for each in record.last_ensemble if entry_id in _entries(world, record, each)])
        if len(found) % 2:
            world.bookies[bookie].corrupt(record.ledger_id, entry_id)
            found.append((str(bookie), entry_id, "corrupt"))
        else:
            del _entries(world, record, bookie)[entry_id]
            found.append((str(bookie), entry_id, "missing"))
    return sorted(found)


def _entries(world: World, record: LedgerMetadata, bookie: Any) -> dict[int, bytes]:
    return world.bookies[bookie].ledgers[record.ledger_id].entries


# -- scrub and repair ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [3, 4])
@pytest.mark.parametrize("quorums", ["3/3/2", "3/2/2"])
@in_world()
async def test_a_scrub_finds_exactly_what_is_spoiled_and_a_repair_mends_it(
    world: World, level: int, quorums: str
) -> None:
    store = await world.client()
    ledger_id = await written(store, 400, quorums)
    record = await store.metadata(ledger_id)
    assert await scrubbed(store, level, ledger_id) == ([], ["done"])
    expected = await spoiled(world, record, Random(level), 30)
    findings, outcomes = await scrubbed(store, level, ledger_id)
    assert blamed(findings, record) == expected
    assert outcomes == ["done"]
    plan = repairs_of(findings, [])
    dry = await repaired(store, plan, is_dry=True)
    assert [each.outcome for each in dry] == ["done"]
    assert blamed((await scrubbed(store, level, ledger_id))[0], record) == expected, "a dry run changes nothing"
    assert [(each.outcome, each.detail["entries"]) for each in await repaired(store, plan)] == [("done", 60)]
    assert await scrubbed(store, level, ledger_id) == ([], ["done"])
    assert_replicated(world, record, 399)
    assert [each.outcome for each in await repaired(store, plan)] == ["satisfied"], "twice does no harm"


@pytest.mark.parametrize("state", GIVEN_UP)
@in_world()
async def test_what_bookies_were_allowed_to_forget_is_not_looked_for(world: World, state: Any) -> None:
    """Neither by a scrub, nor by one that was planned before, nor by a repair of what an earlier one has found."""
    store = await world.client()
    ledger_id = await written(store, 400)
    record = await store.metadata(ledger_id)
    tools = await tools_of(store)
    [item] = scrub.items_of(tables.fragment_rows(record), 3)
    for bookie in record.bookies:
        del world.bookies[bookie].ledgers[ledger_id]
    findings, _ = await scrubbed(store, 3, ledger_id)
    plan = repairs_of(findings, [])
    assert [outcome for outcome, _ in await repaired(store, plan)] == ["lost"]
    await give_up(store.administration(), ledger_id, state)
    outcome, detail = await scrub.ScrubWork(3).carry_out(tools, item)
    assert (outcome, detail) == ("done", {"findings": [], "covered": {}, "offloaded": ledger_id})
    assert await scrubbed(store, 3, ledger_id) == ([], ["done"])
    [(outcome, detail)] = await repaired(store, plan)
    assert (outcome, detail["said"]) == (
        "satisfied",
        [f"offloaded: its entries are in {URI}, and no bookie needs them"],
    )


@in_world()
async def test_what_bookies_forget_while_it_is_scrubbed_is_no_finding(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await world.client()
    ledger_id = await written(store, 400)
    record = await store.metadata(ledger_id)
    [item] = scrub.items_of(tables.fragment_rows(record), 3)
    tools, scan = await tools_of(store), store.administration().scan_replica

    async def late(*arguments: Any, **options: Any) -> Any:
        current = (await store.administration().record(ledger_id)).metadata
        if not is_given_up(current):
            await give_up(store.administration(), ledger_id)
            for bookie in record.bookies:
                world.bookies[bookie].ledgers.pop(ledger_id, None)
        return await scan(*arguments, **options)

    monkeypatch.setattr(tools.administration, "scan_replica", late)
    outcome, detail = await scrub.ScrubWork(3).carry_out(tools, item)
    assert (outcome, detail["findings"], detail["offloaded"]) == ("done", [], ledger_id)


@in_world()
async def test_a_task_that_runs_again_after_the_commit_leaves_the_files(world: World) -> None:
    """Spark repeats tasks whose results it has lost, and their files may have other row groups."""
    store = await world.client()
    record = await store.metadata(await written(store, 4))
    await give_up(store.administration(), record.ledger_id, named)
    arguments = {"ledger": record.ledger_id, "first": 0, "last": 3, "directory": URI}
    item = Item(f"{record.ledger_id}:0", 4, (), json.dumps(arguments))
    outcome, detail = await offload.CopyPart().carry_out(await tools_of(store), item)
    assert (outcome, detail) == ("failed", {"error": "another attempt of this run has offloaded it: repeat the run"})


@pytest.mark.parametrize("is_given_back", [False, True])
@in_world()
async def test_a_restore_waits_for_the_lock_of_the_ledger_and_holds_it(
    world: World, monkeypatch: pytest.MonkeyPatch, is_given_back: bool
) -> None:
    """A bookie deletes under this lock what it may forget, by a record that it has read before."""
    store = await world.client()
    ledger_id = await written(store, 400)
    record = await give_up(store.administration(), ledger_id)
    locks, tools = store._driver.recovery, await tools_of(store)
    lock = await locks.lock(ledger_id, "b1", needs_mark=False)
    assert lock is not None
    held: list[str] = []

    async def restored(tools: Tools, administration: Any, ledger_id: int, lock: Any) -> Any:
        held.append((await locks.locks())[ledger_id])
        return restore._done(offload_of(await tools.client.metadata(ledger_id)))

    monkeypatch.setattr(restore, "_restore", restored)
    if is_given_back:
        asyncio.get_running_loop().call_later(12, lambda: freed.append(asyncio.ensure_future(locks.unlock(lock))))
    freed: list[Any] = []
    outcome, detail = await restore.Restore(False, "monday").carry_out(tools, Item(str(ledger_id), 0, (), ""))
    if is_given_back:
        assert (outcome, detail, held) == (
            "done",
            {"entries": 400, "bytes": record.length},
            ["bk spark restore, run monday"],
        )
        assert await locks.locks() == {}
    else:
        assert (outcome, held) == ("waiting", [])
        assert "b1 has its lock" in detail["error"]
        assert await store.metadata(ledger_id) == record


@pytest.mark.parametrize("level", [1, 3])
@in_world()
async def test_a_lost_replica_of_a_striped_ledger_is_one_finding(world: World, level: int) -> None:
    store = await world.client()
    ledger_id = await written(store, 400, "3/2/2")
    record = await store.metadata(ledger_id)
    bookie = record.last_ensemble[1]
    del world.bookies[bookie].ledgers[ledger_id]
    [finding], _ = await scrubbed(store, level, ledger_id)
    assert (finding.bookie, finding.first_entry, finding.last_entry) == (bookie, 0, 399)
    [outcome] = await repaired(store, repairs_of([finding], []))
    assert outcome.detail["entries"] == len([each for each in range(400) if stores(1, each, 3, 2)])
    assert_replicated(world, record, 399)


@in_world()
async def test_levels_see_what_they_look_at(world: World) -> None:
    store = await world.client()
    ledger_id = await written(store, 100)
    record = await store.metadata(ledger_id)
    a, b, c = record.last_ensemble
    del _entries(world, record, a)[50]
    world.bookies[b].corrupt(ledger_id, 60)
    world.bookies[c].corrupt(ledger_id, 99)
    middle, damaged, end = (a, 50, "missing"), (b, 60, "corrupt"), (c, 99, "corrupt")
    for level, expected in enumerate(([], [middle], [end], [middle, damaged, end], [middle, damaged, end])):
        assert blamed((await scrubbed(store, level, ledger_id))[0]) == sorted(expected)


@in_world()
async def test_replicas_with_different_payloads_are_for_people(world: World) -> None:
    store = await world.client()
    ledger_id = await written(store, 20)
    record = await store.metadata(ledger_id)
    bookie = record.last_ensemble[1]
    assert record.digest_type is not None
    body = package_entry(record.digest_type, mac_key(b"s3cret"), ledger_id, 5, 4, 60, b"forged 123")
    _entries(world, record, bookie)[5] = body
    assert (await scrubbed(store, 3, ledger_id))[0] == []
    findings, _ = await scrubbed(store, 4, ledger_id)
    assert blamed(findings) == [(bookie, 5, "differs")]
    assert repairs_of(findings, []) == []
    last = package_entry(record.digest_type, mac_key(b"s3cret"), ledger_id, 19, 18, 999, b"%010d" % 19)
    _entries(world, record, bookie)[19] = last
    assert blamed((await scrubbed(store, 2, ledger_id))[0]) == [(bookie, 19, "length-mismatch")]


@in_world(bookie_count=5)
async def test_a_bookie_that_is_gone_is_one_finding_and_is_replaced(world: World) -> None:
    store = await world.client()
    ids = [await written(store, 30) for _ in range(6)]
    lost = (await store.metadata(ids[0])).last_ensemble[0]
    await remove(world, lost)
    findings, outcomes = await scrubbed(store, 3, *ids)
    [finding] = one_by_bookie(findings)
    assert (finding.bookie, finding.kind) == (lost, "unavailable")
    assert outcomes.count("partly") == len(findings) > 0
    outcomes_of_repair = await repaired(store, repairs_of(findings, [lost]))
    assert {each.outcome for each in outcomes_of_repair} == {"done"}
    assert await scrubbed(store, 3, *ids) == ([], ["done"] * 6)
    for ledger_id in ids:
        assert_replicated(world, await store.metadata(ledger_id), 29)


@in_world(bookie_count=5)
async def test_a_replacement_waits_for_the_lock_of_its_ledger(world: World) -> None:
    """Of others for a while; of another item of the same run until that is done."""
    store = await world.client()
    ledger_id = await written(store, 30)
    record = await store.metadata(ledger_id)
    lost = record.last_ensemble[0]
    await remove(world, lost)
    plan = [Repair(ledger_id, 0, lost, -1, -1, "replace", "")]
    other = world._drivers[0].recovery
    lock = await other.lock(ledger_id, "worker-7", needs_mark=False)
    assert lock is not None
    [outcome] = await repaired(store, plan)
    assert outcome.outcome == "waiting"
    assert "worker-7 has its lock" in outcome.detail["error"]
    assert await store.metadata(ledger_id) == record
    waiting = asyncio.create_task(repaired(store, plan))
    await asyncio.sleep(20)  # Virtual seconds.
    await other.unlock(lock)
    assert [each.outcome for each in await waiting] == ["done"]
    assert_replicated(world, await store.metadata(ledger_id), 29)
    # One of the same run, for longer than anybody else would be waited for.
    [bookie, *_] = (await store.metadata(ledger_id)).last_ensemble
    await remove(world, bookie)
    lock = await other.lock(ledger_id, repair.RepairWork(False)._owner, needs_mark=False)
    assert lock is not None
    waiting = asyncio.create_task(repaired(store, [Repair(ledger_id, 0, bookie, -1, -1, "replace", "")]))
    await asyncio.sleep(300)
    assert not waiting.done()
    await other.unlock(lock)
    assert [each.outcome for each in await waiting] == ["done"]
    assert_replicated(world, await store.metadata(ledger_id), 29)


@in_world()
async def test_a_bookie_that_stops_answering_is_asked_no_more(world: World) -> None:
    store = await world.client()
    ledger_id = await written(store, 30)
    a, _, _ = (await store.metadata(ledger_id)).last_ensemble
    await world.take_down(a)
    findings, outcomes = await scrubbed(store, 3, ledger_id, ledger_id)
    assert [each.kind for each in findings] == ["unavailable"] * 2
    assert outcomes == ["partly"] * 2
    assert repairs_of(findings, []) == [], "it is registered: it may come back"


@in_world()
async def test_a_ledger_that_is_being_written_is_not_disturbed_and_not_blamed(world: World) -> None:
    store = await world.client()
    ledger_id = await written(store, 30, seal=False)
    record = await store.metadata(ledger_id)
    a, b, _ = record.last_ensemble
    del _entries(world, record, a)[10]
    assert (await scrubbed(store, 3, ledger_id))[0] == [], "two of three have it: that is how it is written"
    del _entries(world, record, b)[10]
    findings, _ = await scrubbed(store, 3, ledger_id)
    assert blamed(findings) == [(a, 10, "missing"), (b, 10, "missing")]
    assert [each.outcome for each in await repaired(store, repairs_of(findings, []))] == ["left-alone"]
    assert (await store.metadata(ledger_id)) == record


@in_world()
async def test_what_changed_since_it_was_planned_is_left_out(world: World) -> None:
    store = await world.client()
    ledger_id, other = await written(store, 30), await written(store, 30)
    lost = (await store.metadata(ledger_id)).last_ensemble[0]
    plan = [Repair(ledger_id, 0, lost, -1, -1, "replace", ""), Repair(ledger_id, 0, "b9", 1, 1, "renew", "")]
    [outcome] = await repaired(store, plan)
    assert outcome.outcome == "satisfied"
    assert f"{lost} is back" in outcome.detail["said"]
    assert "b9 no longer holds it" in outcome.detail["said"]
    assert [each.outcome for each in await repaired(store, [Repair(other, 5, lost, 1, 1, "renew", "")])] == [
        "satisfied"
    ]
    await store.delete(other)
    assert [each.outcome for each in await repaired(store, [Repair(other, 0, lost, 1, 1, "renew", "")])] == ["gone"]
    _, detail = await scrub.ScrubWork(3).carry_out(await tools_of(store), scrub._item(other, 0, 29, 0, (lost,)))
    assert detail == {}


@in_world()
async def test_a_deletion_during_a_scrub_is_nobodys_fault(world: World) -> None:
    store = await world.client()
    ledger_id = await written(store, 30)
    record = await store.metadata(ledger_id)
    for bookie in record.last_ensemble:
        del world.bookies[bookie].ledgers[ledger_id]

    class Late(Tools):
        """Its first look at the records is from before the deletion."""

    tools = Late(store, {str(each.id): each.mode for each in await store.bookies()}, None)
    found = await tools.administration.fragments(ledger_id)
    await store.delete(ledger_id)

    async def before(_: int) -> Any:
        return found

    tools.administration.fragments = before  # type: ignore[method-assign]
    outcome = await scrub.ScrubWork(3).carry_out(tools, scrub._item(ledger_id, 0, 29, 0, ()))
    assert outcome == ("gone", {})


@in_world()
async def test_without_a_good_copy_it_is_lost_and_without_bookies_it_waits(world: World) -> None:
    store = await world.client()
    ledger_id = await written(store, 30)
    record = await store.metadata(ledger_id)
    a, b, c = record.last_ensemble
    for bookie in (a, b, c):
        world.bookies[bookie].corrupt(ledger_id, 3)
    plan = [Repair(ledger_id, 0, a, 3, 3, "renew", "")]
    assert [each.outcome for each in await repaired(store, plan)] == ["lost"]
    await remove(world, c)
    plan = [Repair(ledger_id, 0, c, -1, -1, "replace", "")]
    [outcome] = await repaired(store, plan)
    assert outcome.outcome == "waiting"
    assert "start another bookie" in outcome.detail["error"]
    plan = [Repair(ledger_id, 0, c, 1, 1, "renew", "")]
    assert [each.outcome for each in await repaired(store, plan)] == ["waiting"]


# -- reconcile, usage ------------------------------------------------------------------------------------------------


@in_world()
async def test_leftovers_and_lost_ledgers_are_looked_at_again(world: World) -> None:
    store = await world.client()
    gone, kept = await written(store, 30), await written(store, 30)
    record = await store.metadata(gone)
    await store.delete(gone)
    tools = await tools_of(store)
    [item] = reconcile.probe_items([gone, kept, 99], [record.last_ensemble[0]])
    outcome, detail = await reconcile.Check().carry_out(tools, item)
    [found] = detail["found"]
    assert outcome == "done"
    assert found == ("leftover", gone, "", record.last_ensemble[0], 30, "entries 0 to 29")
    log = store.log("orders")
    await log.create()
    async with log.lead() as leader:
        await leader.append(b"one")
    ledger_id = (await log.manifest()).ledger_ids[0]
    [item] = reconcile.lost_items([{"log": "orders", "seq": 0, "ledger_id": ledger_id}])
    assert await reconcile.Check().carry_out(tools, item) == ("done", {}), "it is there after all"
    await store.delete(ledger_id)
    _, detail = await reconcile.Check().carry_out(tools, item)
    assert [each[:3] for each in detail["found"]] == [("missing-ledger", ledger_id, "orders")]
    [item] = reconcile.lost_items([{"log": "nobody", "seq": 0, "ledger_id": ledger_id}])
    assert (await reconcile.Check().carry_out(tools, item)).outcome == "gone"


@in_world()
async def test_an_open_ledger_says_how_long_it_is(world: World) -> None:
    store = await world.client()
    ledger_id = await written(store, 30, seal=False, size=100)
    tools = await tools_of(store)
    outcome, detail = await usage.Measure().carry_out(tools, Item("x", 0, (), json.dumps({"ledger": ledger_id})))
    assert (outcome, detail["length"]) == ("done", 100 * (detail["last_entry"] + 1))
    assert detail["last_entry"] >= 0
    missing = Item("x", 0, (), json.dumps({"ledger": 99}))
    assert (await usage.Measure().carry_out(tools, missing)).outcome == "gone"


# -- every item becomes a row ----------------------------------------------------------------------------------------


def test_an_item_that_fails_is_a_row_and_not_the_end() -> None:
    class Breaks:
        async def carry_out(self, tools: Tools, item: Item) -> Outcome:
            raise ZeroDivisionError("our mistake")

    async def act(world: World) -> None:
        store = await world.client()
        carry = CarryOut(JobConfig("memory:", "r1"), Breaks(), None, "test", None)
        row = await carry._one(await tools_of(store), Item("x", 0))
        assert (row["item"], row["outcome"], row["run_id"]) == ("x", "failed", "r1")
        assert "our mistake" in json.loads(row["detail"])["error"]
        carry = CarryOut(JobConfig("memory:", "r1"), scrub.ScrubWork(3), None, "test", None)
        await asyncio.wait_for(store.close(), 10)
        row = await carry._one(Tools.__new__(Tools), Item("x", 0, (), "no JSON"))
        assert row["outcome"] == "failed"

    play(act)
