"""A bookie's new id is put into the records, on virtual time: only where it has the entries, and resumable."""

from __future__ import annotations

import asyncio

import pytest
from tests.sim.recovery_world import World, run

from bookies.metadata.interface.driver import Versioned
from bookies.model import BookieId, BookieMode
from bookies.protocol.pacing import RateLimit
from bookies.replication.operator import Operator
from bookies.replication.operator.renaming import Renaming, RenamingResult, RenamingRules

NEW = BookieId("new")


async def named_as(world: World, bookie: str, name: BookieId = NEW) -> None:
    """The same process answers under another name too: requests do not name a bookie."""
    info = await world.user.driver.bookie_info(BookieId(bookie))
    assert info is not None
    await world.user.driver.register(name, BookieMode.WRITABLE, info)


async def rename(
    world: World, rules: RenamingRules, old: str = "b1", new: BookieId = NEW, pace: RateLimit | None = None
) -> RenamingResult:
    user = world.user
    operator = Operator(user.runtime, user.client, user.driver, user.name)
    result = await world.act(Renaming(operator, BookieId(old), new, rules, pace).run())
    assert isinstance(result, RenamingResult)
    return result


def test_all_records_get_the_new_id_also_after_an_interruption() -> None:
    async def scenario(world: World) -> None:
        ledgers = [await world.write((5, 3, 2)) for _ in range(150)]
        await world.act(named_as(world, "b1"))
        before = [world.record(ledger_id) for ledger_id in ledgers]
        planned = await rename(world, RenamingRules(is_dry=True))
        assert (planned.changed, planned.kept, planned.coverage.ledgers) == (150, {}, 150)
        assert [world.record(ledger_id) for ledger_id in ledgers] == before
        first = asyncio.create_task(rename(world, RenamingRules(), pace=RateLimit(20)))
        await asyncio.sleep(4)
        first.cancel()
        await asyncio.wait((first,))
        left = [ledger_id for ledger_id in ledgers if world.record(ledger_id).names("b1")]
        assert 0 < len(left) < 150
        rest = await rename(world, RenamingRules())
        assert (rest.changed, rest.kept) == (len(left), {})
        for record in before:
            ensembles = tuple(
                (start, tuple(NEW if bookie == "b1" else bookie for bookie in ensemble))
                for start, ensemble in record.ensembles
            )
            assert world.record(record.ledger_id).ensembles == ensembles
        assert all([await world.is_whole(ledger_id) for ledger_id in ledgers[:5]])
        await world.act(world.user.driver.unregister(NEW))

    run(scenario)


def test_a_bookie_without_the_entries_is_not_named() -> None:
    async def scenario(world: World) -> None:
        ledger_id = await world.write((5, 3, 2))
        world.cluster.add_bookie("b6")
        await world.start("b6")
        await world.act(named_as(world, "b6"))
        result = await rename(world, RenamingRules())
        assert result.changed == 0
        assert "new does not list entries 0 to" in result.kept[ledger_id]
        assert world.record(ledger_id).names("b1")
        # A bookie that holds another position cannot hold this one too.
        result = await rename(world, RenamingRules(), new=BookieId("b2"))
        assert "has b2 in another position" in result.kept[ledger_id]
        result = await rename(world, RenamingRules(is_verified=False))
        assert (result.changed, result.kept) == (1, {})
        await world.act(world.user.driver.unregister(NEW))

    run(scenario)


def test_a_record_that_changed_after_the_bookie_was_asked_keeps_the_id() -> None:
    """Its fragments are others than those that the bookie was asked for."""

    async def scenario(world: World) -> None:
        ledger_id = await world.write(bookies=["b1", "b2", "b3"])
        turned = ((0, tuple(reversed(world.record(ledger_id).last_ensemble))),)

        class Overtaken(Renaming):
            async def _lacking(self, ledger: Versioned) -> str:
                why = await super()._lacking(ledger)
                await world.admin.change_record(
                    ledger_id,
                    lambda record: record.replace(ensembles=turned) if record.ensembles != turned else None,
                )
                return why

        await world.act(named_as(world, "b1"))
        user = world.user
        operator = Operator(user.runtime, user.client, user.driver, user.name)
        result = await world.act(Overtaken(operator, BookieId("b1"), NEW, RenamingRules()).run())
        assert (result.changed, result.kept) == (0, {ledger_id: "its record changed meanwhile; repeat the command"})
        assert world.record(ledger_id).ensembles == turned
        assert (await rename(world, RenamingRules())).changed == 1
        assert not world.record(ledger_id).names("b1")
        await world.act(world.user.driver.unregister(NEW))

    run(scenario)


def test_an_open_ledger_and_one_that_is_locked_keep_the_id() -> None:
    async def scenario(world: World) -> None:
        async def left_open() -> int:
            ledger = await world.user.client.create(ensemble=5, write_quorum=3, ack_quorum=2)
            await ledger.append_many([b"x"] * 10)
            return int(ledger.ledger_id)

        growing, locked = await world.act(left_open()), await world.write((5, 3, 2))
        await world.act(named_as(world, "b1"))
        lock = await world.act(world.user.driver.recovery.lock(locked, "a repair", needs_mark=False))
        result = await rename(world, RenamingRules())
        assert result.changed == 0
        assert "it is not closed" in result.kept[growing]
        assert "has its lock" in result.kept[locked]
        await world.act(world.user.driver.recovery.unlock(lock))
        result = await rename(world, RenamingRules(with_growing=True))
        assert (result.changed, result.kept) == (2, {})
        assert NEW in world.record(growing).last_ensemble
        assert "b1" not in world.record(growing).bookies
        await world.act(world.user.driver.unregister(NEW))

    run(scenario)


@pytest.mark.parametrize("is_silent", [False, True])
def test_an_acknowledged_entry_that_is_not_known_to_be_confirmed_is_asked_for(is_silent: bool) -> None:
    """A bookie that denies it could make a recovery end the ledger before it. What does not answer may have more."""

    async def scenario(world: World) -> None:
        async def left_open() -> int:
            ledger = await writer.client.create(ensemble=3, write_quorum=3, ack_quorum=2, bookies=["b1", "b2", "b3"])
            await ledger.append(b"x")
            return int(ledger.ledger_id)

        writer = world.cluster.new_client("writer2", {"explicit_lac_interval_ms": 0})
        await writer.participant.create_task(world.cluster.open_client(writer))
        world.cluster.add_bookie("b6")
        await world.start("b6")
        await world.act(named_as(world, "b1" if is_silent else "b6"))
        ledger_id = await writer.participant.create_task(left_open())
        if is_silent:
            world.kill("b2")
        result = await rename(world, RenamingRules(with_growing=True))
        assert result.changed == 0
        assert ("b2" if is_silent else "new does not list entries 0 to 0") in result.kept[ledger_id]
        await world.act(world.user.driver.unregister(NEW))

    run(scenario)


def test_a_writer_that_runs_meanwhile_loses_no_entry() -> None:
    """It keeps the old id in its copy of the record, and meets the new one when it next changes the ensemble."""

    async def scenario(world: World) -> None:
        async def write() -> int:
            ledger = await world.user.client.create(
                ensemble=3, write_quorum=3, ack_quorum=2, bookies=["b1", "b2", "b3"]
            )
            await ledger.append_many([b"%d" % number for number in range(20)])
            await named_as(world, "b1")
            user = world.user
            operator = Operator(user.runtime, user.client, user.driver, user.name)
            result = await Renaming(operator, BookieId("b1"), NEW, RenamingRules(with_growing=True)).run()
            assert result.changed == 1
            await ledger.append_many([b"%d" % number for number in range(20, 40)])
            await asyncio.sleep(1)  # The checker of ack quorums does not know that both names are one bookie.
            world.kill("b1")
            await ledger.append_many([b"%d" % number for number in range(40, 60)])
            await ledger.seal()
            async with user.client.open(ledger.ledger_id) as reader:
                payloads = [entry.payload async for entry in reader.read()]
            assert payloads == [b"%d" % number for number in range(60)]
            return int(ledger.ledger_id)

        ledger_id = await world.act(write())
        record = world.record(ledger_id)
        assert record.ensembles[0] == (0, (NEW, "b2", "b3"))
        assert "b1" not in record.bookies
        await world.act(world.user.driver.unregister(NEW))

    run(scenario)
