"""Which ledgers may be older than a bookie's directories, and what happens to their adds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bookies.bookie import former_ledgers
from bookies.bookie.former_ledgers import find_former_ledgers
from bookies.bookie.server import BookieServer
from bookies.bookie.storage_port import Storage
from bookies.bookie.unknown_ledgers import settle_unknown_ledgers
from bookies.config import BookieConfig
from bookies.errors import MetadataCorrupt, MetadataError, Status
from bookies.kernels import Adds
from bookies.lab.sim.world.deferring import Deferring
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.embedded.memory import MemoryStore
from bookies.metadata.interface.driver import GivenIds, Versioned
from bookies.model import BookieId, LedgerMetadata, LedgerState
from bookies.protocol.quorums import IdSet
from bookies.runtime.events import Events
from bookies.storage.engine.quarantine_format import QuarantineState
from bookies.storage.engine.store_writes import RefusedAdds
from bookies.storage.identity.former_ledgers_format import ALL_LEDGERS, RUNS_MAX, pack, parse, union
from bookies.storage.store import LedgerStore
from bookies.wire.messages import AddResponses, BareResponse, ReadRequest, ReadResponse, Response

from .conftest import KEY, RawClient, World, adds

B1, B2 = BookieId("b1"), BookieId("b2")
FILES = ("/journal/current/formerLedgers", "/ledgers/current/formerLedgers")


class SlowDriver(MemoryDriver):
    """Answers checks when it is told to, with the records of the moment when it was asked."""

    reads = 0
    is_answering: asyncio.Event
    failure: MetadataError | None = None

    async def current_ledgers(
        self, ledger_ids: Sequence[int], known: Sequence[Versioned] = ()
    ) -> list[Versioned | MetadataCorrupt | None]:
        self.reads += 1
        records = await super().current_ledgers(ledger_ids)
        await self.is_answering.wait()
        if self.failure is not None:
            raise self.failure
        return records


async def make_ledgers(store: MemoryStore, count: int, **changes: object) -> MemoryDriver:
    """Ledgers 0, 1, .. of bookie b1; the session that made them."""
    driver = MemoryDriver(store)
    await driver.open()
    await driver.initialize_cluster()
    for _ in range(count):
        ledger_id = await driver.next_ledger_id()
        await driver.create_ledger(LedgerMetadata(ledger_id, 1, 1, 1, ((0, (B1,)),)).replace(**changes))
    return driver


async def close(driver: MemoryDriver, ledger_id: int) -> None:
    found = await driver.read_ledger(ledger_id)
    end = found.metadata.replace(state=LedgerState.CLOSED, last_entry_id=-1, length=0)
    await driver.write_ledger(end, found.version)


async def serving(
    world: World, wrap: Callable[[LedgerStore], Storage] | None = None
) -> tuple[BookieServer, SlowDriver, RawClient]:
    async def start() -> tuple[BookieServer, SlowDriver]:
        runtime = world.runtime("bookie")
        driver = SlowDriver(world.metadata, runtime)
        driver.is_answering = asyncio.Event()
        driver.is_answering.set()
        await driver.open()
        server = BookieServer(runtime, BookieConfig(**world.settings), driver, wrap)
        world._started.append((server, driver))
        await server.start()
        return server, driver

    server, driver = await world.on_bookie(start())
    return server, driver, await world.connect(server)


def statuses(responses: list[Response]) -> list[Status]:
    assert all(isinstance(response, AddResponses | BareResponse) for response in responses)
    return [response.status for response in responses]  # type: ignore[union-attr]


# -- which ledgers -------------------------------------------------------------------------------------------------
def test_generated_chosen_and_deleted_ids_are_noted_once(world: World) -> None:
    async def body(world: World) -> None:
        driver = await make_ledgers(world.metadata, 3)
        for chosen in (900, 901, 5_000):
            await driver.create_ledger(LedgerMetadata(chosen, 1, 1, 1, ((0, (B1,)),)))
        await driver.delete_ledger(5_000)
        server, _, _ = await serving(world)
        ids = server.store.former_ledgers
        assert (ids.bound, ids.runs) == (3, [(900, 902), (5_000, 5_001)])
        assert all(world.disk.exists(path) for path in FILES)
        await world.on_bookie(server.stop())
        await make_ledgers(world.metadata, 10)
        server, _, _ = await serving(world)
        assert server.store.former_ledgers.bound == 3
        await driver.close()

    world.run(body)


@pytest.mark.parametrize("damage", ["missing", "changed", "older", "changed, with a forgotten id"])
def test_the_careful_value_counts(world: World, damage: str) -> None:
    """One directory was replaced or restored, or its file is damaged."""

    async def body(world: World) -> None:
        server, _, _ = await serving(world)
        assert server.store.former_ledgers.bound == 0
        await world.on_bookie(server.stop())
        driver = await make_ledgers(world.metadata, 5)
        data = world.disk.read_bytes(FILES[1])
        if damage == "missing":
            world.disk.unlink(FILES[1])
        elif damage.startswith("changed"):
            if damage != "changed":
                world.disk.replace_bytes(FILES[0], pack(union(parse(data), [(700, 701)])))
            world.disk.replace_bytes(FILES[1], data.replace(b"below 0", b"below 1"))
        else:
            for path in FILES:
                world.disk.unlink(path)
            server, _, _ = await serving(world)
            await world.on_bookie(server.stop())
            world.disk.replace_bytes(FILES[0], data)
        server, _, _ = await serving(world)
        assert server.store.former_ledgers.bound == 5
        assert (700 in server.store.former_ledgers) == ("forgotten" in damage)
        await driver.close()

    world.run(body)


def test_every_ledger_counts_while_the_ids_are_unknown(world: World) -> None:
    """The store does not answer, or has too many ids to note. The next start takes them."""

    class Unknown(MemoryDriver):
        async def given_ids(self) -> GivenIds:
            raise MetadataError("not now")

    async def find(driver: MemoryDriver) -> IdSet:
        runtime = world.runtime("bookie")
        config = BookieConfig(**world.settings)
        return await find_former_ledgers(runtime, config, driver, Events("test", runtime.clock))

    async def body(world: World) -> None:
        driver = await make_ledgers(world.metadata, 1)
        for chosen in range(10, 10 + 2 * RUNS_MAX, 2):
            await driver.create_ledger(LedgerMetadata(chosen, 1, 1, 1, ((0, (B1,)),)))
        for path in FILES:
            world.disk.make_directories(path.rpartition("/")[0])
        unknown = Unknown(world.metadata)
        await unknown.open()
        assert (await find(unknown)).bound == ALL_LEDGERS
        assert not world.disk.exists(FILES[0])
        assert len((await find(driver)).runs) == RUNS_MAX
        await driver.create_ledger(LedgerMetadata(1 << 40, 1, 1, 1, ((0, (B1,)),)))
        for path in FILES:
            world.disk.unlink(path)
        assert (await find(driver)).bound == ALL_LEDGERS
        await unknown.close()
        await driver.close()

    world.run(body)


# -- their adds ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("version", [2, 3])
def test_few_reads_answer_for_all_adds_that_wait(world: World, version: int) -> None:
    async def body(world: World) -> None:
        maker = await make_ledgers(world.metadata, 40)
        server, driver, client = await serving(world)
        driver.is_answering.clear()
        for ledger_id in range(40):
            client.send(adds(ledger_id, range(3), version=version), adds(ledger_id, range(3, 5), version=version))
        client.send(adds(1_000, [0], version=version))  # younger than the bookie
        wire = "v3" if version == 3 else "v2"
        assert statuses([await client.response(wire)]) == [Status.OK]
        await asyncio.sleep(1)
        assert driver.reads <= former_ledgers.READS_AT_ONCE + 1
        assert not client.frames
        assert server._reception.intake.adds_size > 0
        driver.is_answering.set()
        count = 40 * 5
        assert statuses([await client.response(wire) for _ in range(count)]) == [Status.OK] * count
        assert statuses(await client.add(adds(7, [5], version=version))) == [Status.OK]
        assert driver.reads <= former_ledgers.READS_AT_ONCE + 1
        assert server._reception.intake.adds_size == 0
        await maker.close()

    world.run(body)


def test_an_ended_ledger_is_refused_and_a_fence_during_the_read_as_well(world: World) -> None:
    async def body(world: World) -> None:
        maker = await make_ledgers(world.metadata, 4)
        await close(maker, 0)
        await maker.delete_ledger(1)
        server, driver, client = await serving(world)
        for ledger_id in (0, 1):
            assert statuses(await client.add(adds(ledger_id, range(2)))) == [Status.FENCED] * 2
        assert statuses(await client.add(adds(0, [0], is_recovery=True, is_high_priority=True))) == [Status.OK]
        assert statuses(await client.add(adds(0, [1]))) == [Status.FENCED]  # known now, and not fenced here
        driver.is_answering.clear()
        client.send(adds(2, [0]))
        await asyncio.sleep(0.1)
        fenced = await client.ask(ReadRequest(2, 0, 2, -1, KEY, True, True))
        assert isinstance(fenced, ReadResponse | BareResponse)
        driver.is_answering.set()
        assert statuses([await client.response()]) == [Status.FENCED]
        read = await client.ask(ReadRequest(2, 0, 2, 0))
        assert isinstance(read, ReadResponse)
        assert read.status is Status.NO_ENTRY
        assert server._reception.intake.adds_size == 0
        await maker.close()

    world.run(body)


def test_a_read_does_not_count_after_its_ledger_was_deleted_with_its_fence(world: World) -> None:
    """While it is in flight, ledger 0 is fenced here, sealed, moved to another bookie, and deleted here as surplus."""

    async def delete_surplus(server: BookieServer, ledger_id: int) -> list[int]:
        assert server.store.parts is not None
        removals = server.store.parts.removals
        await removals.quarantine([ledger_id], QuarantineState.SURPLUS, 0)
        return await removals.delete([ledger_id], 0)

    async def body(world: World) -> None:
        maker = await make_ledgers(world.metadata, 2)
        world.settings["gc_interval_ms"] = 1 << 40
        server, driver, client = await serving(world)
        driver.is_answering.clear()
        client.send(adds(0, [0]), adds(1, [0]))
        await asyncio.sleep(0.1)
        assert driver.reads == 1
        await client.ask(ReadRequest(2, 0, 0, -1, KEY, True, True))
        await close(maker, 0)
        found = await maker.read_ledger(0)
        await maker.write_ledger(found.metadata.replace(ensembles=((0, (B2,)),)), found.version)
        assert await world.on_bookie(delete_surplus(server, 0)) == [0]
        driver.is_answering.set()
        answers = [await client.response() for _ in range(2)]
        assert {answer.ledger_id: answer.status for answer in answers} == {  # type: ignore[union-attr]
            0: Status.FENCED,
            1: Status.OK,
        }
        assert driver.reads == 2
        assert 0 not in set(server.store.ledger_ids())
        assert server._reception.intake.adds_size == 0
        await maker.close()

    world.run(body)


def test_a_bookie_that_the_record_does_not_name_asks_again_for_later_adds(world: World) -> None:
    """The first add is of a bookie that was replaced; the second one follows a change that the read did not see."""

    async def body(world: World) -> None:
        maker = await make_ledgers(world.metadata, 1, ensembles=((0, (B2,)),))
        _, driver, client = await serving(world)
        driver.is_answering.clear()
        client.send(adds(0, [4]))
        await asyncio.sleep(0.1)
        client.send(adds(0, [5]))
        await asyncio.sleep(0.1)
        driver.is_answering.set()
        responses = [await client.response()]
        assert statuses(responses) == [Status.IO_ERROR]  # v2 has no other code for it
        assert statuses([await client.response()]) == [Status.IO_ERROR]
        assert driver.reads == 2
        found = await maker.read_ledger(0)
        await maker.write_ledger(found.metadata.replace(ensembles=((0, (B2,)), (5, (B1,)))), found.version)
        assert statuses(await client.add(adds(0, [5]))) == [Status.OK]
        await maker.close()

    world.run(body)


@pytest.mark.parametrize("is_silent", [False, True])
def test_an_unavailable_store_fails_the_adds_in_bounded_time(world: World, is_silent: bool) -> None:
    async def body(world: World) -> None:
        maker = await make_ledgers(world.metadata, 2)
        server, driver, client = await serving(world)
        if is_silent:
            driver.is_answering.clear()
        else:
            driver.failure = MetadataError("not now")
        loop = asyncio.get_running_loop()
        begun = loop.time()
        assert statuses(await client.add(adds(0, [0], version=3))) == [Status.UNKNOWN_LEDGER_STATE]
        assert loop.time() - begun <= former_ledgers.WAIT_S + 0.1
        assert server._reception.intake.adds_size == 0
        driver.failure = None
        driver.is_answering.set()
        assert statuses(await client.add(adds(0, [0]))) == [Status.OK]
        await maker.close()

    world.run(body)


def test_later_adds_of_some_ledgers_do_not_keep_others_waiting(world: World) -> None:
    """The store is silent. All reads in progress are for ledgers that get another add before the first one fails."""

    async def body(world: World) -> None:
        count = former_ledgers.READS_AT_ONCE
        maker = await make_ledgers(world.metadata, count + 1)
        server, driver, client = await serving(world)
        driver.is_answering.clear()
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for ledger_id in range(count + 1):
            client.send(adds(ledger_id, [0], version=3))
            await asyncio.sleep(0.01)
        await asyncio.sleep(former_ledgers.WAIT_S - 1)
        client.send(*(adds(ledger_id, [1], version=3) for ledger_id in range(count)))
        answers = [await client.response("v3") for _ in range(count + 1)]
        assert statuses(answers) == [Status.UNKNOWN_LEDGER_STATE] * (count + 1)
        assert [response.ledger_id for response in answers] == [*range(count + 1)]  # type: ignore[union-attr]
        assert loop.time() - begun <= former_ledgers.WAIT_S + 0.2
        driver.is_answering.set()
        assert statuses([await client.response("v3") for _ in range(count)]) == [Status.OK] * count
        assert server._reception.intake.adds_size == 0
        await maker.close()

    world.run(body)


def test_a_mistake_in_a_resumed_add_ends_its_connection_alone(world: World) -> None:
    class Mistaken(Deferring):
        is_mistaken = False

        def add(self, adds: Adds, *arguments: Any, **fields: Any) -> list[RefusedAdds]:
            if self.is_mistaken and adds.first_ledger_id == 0:
                raise ValueError("a mistake")
            return super().add(adds, *arguments, **fields)

    async def body(world: World) -> None:
        maker = await make_ledgers(world.metadata, 2)
        server, driver, client = await serving(world, Mistaken)
        other = await world.connect(server)
        driver.is_answering.clear()
        client.send(adds(0, [0]), adds(0, [1]))
        other.send(adds(0, [2]), adds(1, [0]))
        await asyncio.sleep(0.1)
        server.storage.is_mistaken = True  # type: ignore[attr-defined]
        driver.is_answering.set()
        await client.closed()
        await other.closed()
        assert server._reception.intake.adds_size == 0
        last = await world.connect(server)
        assert statuses(await last.add(adds(1, [1]))) == [Status.OK]
        await maker.close()

    world.run(body)


def test_a_stop_refuses_what_waits(world: World) -> None:
    async def body(world: World) -> None:
        maker = await make_ledgers(world.metadata, 1)
        server, driver, client = await serving(world)
        driver.is_answering.clear()
        client.send(adds(0, [0]))
        await asyncio.sleep(0.1)
        await world.on_bookie(server.stop())
        assert statuses([await client.response()]) == [Status.IO_ERROR]
        assert server._reception.intake.adds_size == 0
        await maker.close()

    world.run(body)


def test_ledgers_of_one_request_wait_apart(world: World) -> None:
    """Of many ledgers in turn only the old ones wait."""

    async def body(world: World) -> None:
        maker = await make_ledgers(world.metadata, 2)
        _, driver, client = await serving(world)
        driver.is_answering.clear()
        ledgers = [0, 100, 1, 101, 0, 100]
        client.send(*(adds(ledger_id, [number]) for number, ledger_id in enumerate(ledgers)))
        first = [await client.response() for _ in range(3)]
        assert sorted(response.ledger_id for response in first) == [100, 100, 101]  # type: ignore[union-attr]
        driver.is_answering.set()
        later = [await client.response() for _ in range(3)]
        assert sorted(response.ledger_id for response in later) == [0, 0, 1]  # type: ignore[union-attr]
        assert statuses([*first, *later]) == [Status.OK] * 6
        await maker.close()

    world.run(body)


def test_a_ledger_whose_fence_was_in_a_lost_part_of_a_journal_is_checked(world: World) -> None:
    """It has moved to another bookie since, so its record does not name this one any more."""

    async def body(world: World) -> None:
        server, driver, client = await serving(world)
        maker = await make_ledgers(world.metadata, 2)
        assert statuses(await client.add(adds(0, [0]))) == [Status.OK]
        await client.ask(ReadRequest(2, 0, 0, -1, KEY, True, True))
        assert statuses(await client.add(adds(1, [0]))) == [Status.OK]
        await close(maker, 0)
        found = await maker.read_ledger(0)
        await maker.write_ledger(found.metadata.replace(ensembles=((0, (B2,)),)), found.version)
        await world.on_bookie(server.abort())
        await world.on_bookie(driver.close())
        (path,) = [name for name in world.disk.files() if name.endswith(".txn")]
        data = world.disk.read_bytes(path)
        world.disk.replace_bytes(path, data[:512] + b"\xee" * 1024 + data[1536:])
        server, driver, client = await serving(world)
        events = Events("test", world.runtime("bookie").clock)
        await world.on_bookie(settle_unknown_ledgers(server.store, driver, B1, events))
        assert statuses(await client.add(adds(0, [1]))) == [Status.FENCED]
        await maker.close()

    world.run(body)
