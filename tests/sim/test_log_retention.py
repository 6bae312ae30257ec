"""Retention by the elected auditor: logs lose what their limits allow, while leaders append and consumers read."""

from __future__ import annotations

import asyncio

from tests.sim.recovery_world import World, run

from bookies.client.log import Log
from bookies.config import RecoveryConfig
from bookies.lab.sim.world import SimClient
from bookies.model import BookieId
from bookies.protocol.log import Position
from bookies.replication.daemon.log_housekeeper import TTL_S, LogHousekeeper
from bookies.replication.operator.status import HOUSEKEEPING
from bookies.runtime.events import Events

RETENTION_S = 2


async def fill(log: Log, ledgers: int, pause_s: float = 1.0) -> list[Position]:
    """Ledgers of ten entries, by one leader; their first positions."""
    firsts = []
    async with log.lead() as writer:
        for number in range(ledgers):
            firsts.append(await writer.append(b"%d" % number))
            await writer.append_many([b"more"] * 9)
            await writer.roll()
            await asyncio.sleep(pause_s)
    return firsts


def test_an_auditor_removes_what_the_limits_of_each_log_allow() -> None:
    async def scenario(world: World) -> None:
        client = world.user.client
        limited, held, endless = (client.log(name) for name in ("limited", "held", "endless"))

        async def prepare() -> list[Position]:
            for log in (limited, held, endless):
                await log.create()
            firsts = [await fill(log, 6) for log in (limited, held, endless)]
            await limited.set_retention(age=10)
            await held.set_retention(rows=10)
            await held.move_cursor("billing", firsts[1][2])
            return firsts[1]

        firsts = await world.act(prepare())
        await world.heal(log_retention_interval_s=RETENTION_S)

        async def is_short() -> bool:
            return len((await world.act(limited.manifest())).extents) == 2

        await world.until(is_short)
        history = await world.act(limited.history())
        assert {removal.reasons for removal in history} == {("age",)}
        assert sum(removal.rows for removal in history) == 50
        assert [removal.before for removal in await world.act(held.history())] == [firsts[2]]
        assert await world.act(endless.history()) == []
        assert len((await world.act(endless.manifest())).extents) == 7

        await world.act(held.move_cursor("billing", firsts[4]))

        async def has_gone_on() -> bool:
            return [removal.before for removal in await world.act(held.history())][1:] == [firsts[4]]

        await world.until(has_gone_on)
        await world.act(held.delete_cursor("billing"))
        await world.until(lambda: _begins_at(world, held, firsts[5]))

    run(scenario)


async def _begins_at(world: World, log: Log, position: Position) -> bool:
    beginning = (await world.act(log.manifest())).beginning
    return beginning is not None and beginning.ledger_id == position.ledger_id


def test_one_log_that_cannot_be_read_does_not_delay_the_others() -> None:
    async def scenario(world: World) -> None:
        broken, sound = world.user.client.log("broken"), world.user.client.log("sound")

        async def prepare() -> None:
            await sound.create()
            await fill(sound, 5)
            await sound.set_retention(rows=1)
            await world.user.driver.create_record("log-times/broken", b"?")
            await broken.create()
            await fill_without_times(broken)

        async def fill_without_times(log: Log) -> None:
            await fill(log, 4, 0.0)
            data, version = await world.user.driver.read_record("log-times/broken")
            assert data
            await world.user.driver.write_record("log-times/broken", b"?", version)
            await log.set_retention(age=1)

        await world.act(prepare())
        await world.heal(log_retention_interval_s=RETENTION_S)

        async def is_short() -> bool:
            return len((await world.act(sound.manifest())).extents) == 2

        await world.until(is_short)
        assert len((await world.act(broken.manifest())).extents) == 5

    run(scenario)


def test_retention_goes_on_under_another_auditor_and_stops_when_switched_off() -> None:
    async def scenario(world: World) -> None:
        log = world.user.client.log("orders")

        async def prepare() -> list[Position]:
            await log.create()
            await log.set_retention(rows=10)
            return await fill(log, 4, 0.0)

        await world.act(world.user.driver.recovery.disable())
        await world.act(prepare())
        for _ in range(2):
            await world.heal(log_retention_interval_s=RETENTION_S)
        await asyncio.sleep(5 * RETENTION_S)
        assert len((await world.act(log.manifest())).extents) == 5
        auditor = await world.act(world.user.driver.recovery.auditor())
        world.cluster.kill_client(auditor)
        await world.act(world.user.driver.recovery.enable())

        async def is_short() -> bool:
            return len((await world.act(log.manifest())).extents) == 2

        await world.until(is_short)

    run(scenario)


async def keep_logs(world: World, number: int) -> tuple[SimClient, LogHousekeeper]:
    """Start a bookie's candidate for the housekeeping of logs."""
    client = world.cluster.new_client(f"replicator-keeper{number}")
    await client.participant.create_task(world.cluster.open_client(client))
    config = RecoveryConfig(log_retention_interval_s=RETENTION_S)
    events = Events("recovery", client.runtime.clock)
    keeper = LogHousekeeper(client.client, client.driver, config, BookieId(f"b{number}"), events)
    client.participant.create_task(keeper.run(), name=f"log housekeeping of b{number}")
    return client, keeper


async def leader(world: World) -> str | None:
    name: str | None = await world.act(world.user.client.election(HOUSEKEEPING).leader())
    return name


async def prepared(world: World, name: str) -> Log:
    """A log of five ledgers, of which its limit lets two stay."""
    log = world.user.client.log(name)

    async def prepare() -> None:
        await log.create()
        await log.set_retention(rows=10)
        await fill(log, 4, 0.0)

    await world.act(prepare())
    return log


async def ledgers(world: World, log: Log) -> int:
    return len((await world.act(log.manifest())).extents)


def test_one_bookie_without_auto_recovery_applies_retention_and_another_replaces_it() -> None:
    async def scenario(world: World) -> None:
        first, second = await prepared(world, "first"), await prepared(world, "second")
        keepers = {f"b{number}": await keep_logs(world, number) for number in (1, 2)}

        async def are_short() -> bool:
            return [await ledgers(world, log) for log in (first, second)] == [2, 2]

        await world.until(are_short)
        elected = await leader(world)
        assert elected is not None
        removed = {name: keeper.retention.removed for name, (_, keeper) in keepers.items()}
        own = removed.pop(elected)
        assert (own.ledgers, own.entries) == (6, 60)
        assert own.size > 0
        [(other, others)] = removed.items()
        assert others.ledgers == 0

        world.cluster.kill_client(keepers[elected][0].name)
        third = await prepared(world, "third")
        await asyncio.sleep(2 * TTL_S)
        assert await leader(world) == other
        assert await ledgers(world, third) == 2
        assert others.entries == 30

    run(scenario)


def test_the_housekeeper_stops_when_auto_recovery_is_disabled_and_leaves_the_work_to_an_auditor() -> None:
    async def scenario(world: World) -> None:
        await world.act(world.user.driver.recovery.disable())
        log = await prepared(world, "orders")
        _, keeper = await keep_logs(world, 1)
        await asyncio.sleep(5 * RETENTION_S)
        assert await leader(world) == "b1"
        assert await ledgers(world, log) == 5
        await world.act(world.user.driver.recovery.enable())

        async def is_short() -> bool:
            return await ledgers(world, log) == 2

        await world.until(is_short)
        assert keeper.retention.removed.ledgers == 3

        healer = await world.heal(log_retention_interval_s=10 * RETENTION_S)
        await asyncio.sleep(3 * RETENTION_S)
        later = await prepared(world, "later")
        await asyncio.sleep(12 * RETENTION_S)
        assert await ledgers(world, later) == 2
        assert healer.recovery.auditor.retention.removed.ledgers == 3
        assert keeper.retention.removed.ledgers == 3

    run(scenario)


def test_an_auditor_of_apache_does_not_stop_the_housekeeper() -> None:
    async def scenario(world: World) -> None:
        log = await prepared(world, "orders")
        candidacy = await world.act(world.user.driver.recovery.campaign(BookieId("apache"), lambda: None))
        await keep_logs(world, 1)

        async def is_short() -> bool:
            return await ledgers(world, log) == 2

        await world.until(is_short)
        await world.act(candidacy.resign())

    run(scenario)
