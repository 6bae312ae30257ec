"""Writers check their records before they use a connection that is newer than what they know."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.fakes.world import World, play

from bookies.client.client import Client
from bookies.errors import BookieTimeout, LedgerFenced, LedgerNotFound, MetadataError, NotEnoughBookies
from bookies.metadata.embedded import MemoryDriver
from bookies.model import BookieId, LedgerState
from bookies.wire.messages import AddRequest

WRITERS = 1000


def checks_of(client: Client) -> int:
    """Reads of records before adds, so far."""
    return sum(count for (_, what), count in client._driver.operations.counts.items() if what == "current_ledgers")


def added(world: World, ledger_id: int) -> dict[BookieId, list[int]]:
    """Entries that each bookie was asked to add, in order."""
    found: dict[BookieId, list[int]] = {}
    for name, bookie in world.bookies.items():
        for request in bookie.requests:
            if isinstance(request, AddRequest):
                for number, entry_ids, _ in request.adds.stretches():
                    if number == ledger_id:
                        found.setdefault(name, []).extend(entry_ids)
    return found


async def close_record(world: World, ledger_id: int, state: LedgerState) -> None:
    driver = MemoryDriver(world.store)
    await driver.open()
    record = await driver.read_ledger(ledger_id)
    ended = record.metadata.replace(state=state)
    if state is LedgerState.CLOSED:
        ended = ended.replace(last_entry_id=-1)
    await driver.write_ledger(ended, record.version)
    await driver.close()


async def reconnect(world: World, *names: BookieId) -> None:
    for name in names:
        world.bookies[name].drop_connections()
    await asyncio.sleep(0.1)


@pytest.mark.parametrize("wire", ["v2", "v3"])
def test_a_thousand_writers_share_the_reads_after_a_bookie_was_lost(wire: str) -> None:
    async def act(world: World) -> None:
        store = await world.client(wire=wire)
        writers = [await store.create(ensemble=3, ack_quorum=3) for _ in range(WRITERS)]
        await asyncio.gather(*(writer.append(b"before") for writer in writers))
        before = checks_of(store)
        assert before <= 3 * (WRITERS // 64 + 1)  # at most one for each connection
        await asyncio.gather(*(writer.append(b"again") for writer in writers))
        assert checks_of(store) == before  # nothing for a connection that is known
        await reconnect(world, writers[0].metadata.last_ensemble[0])
        begun = world.loop.time()
        await asyncio.gather(*(writer.append(b"after") for writer in writers))
        assert checks_of(store) - before <= WRITERS // 64 + 1
        assert world.loop.time() - begun < 1
        for writer in writers[::100]:
            assert all(ids == [0, 1, 2] for ids in added(world, writer.ledger_id).values())
            assert len(writer.metadata.ensembles) == 1

    play(act)


@pytest.mark.parametrize("state", [LedgerState.IN_RECOVERY, LedgerState.CLOSED])
@pytest.mark.parametrize("wire", ["v2", "v3"])
def test_nothing_is_sent_to_a_ledger_that_has_ended(state: LedgerState, wire: str) -> None:
    async def act(world: World) -> None:
        store = await world.client(wire=wire)
        writer = await store.create(ensemble=3, ack_quorum=3)
        await writer.append(b"0")
        await reconnect(world, *world.bookies)
        await close_record(world, writer.ledger_id, state)
        with pytest.raises(LedgerFenced):
            await writer.append(b"1")
        await asyncio.sleep(1)
        assert all(ids == [0] for ids in added(world, writer.ledger_id).values())
        assert store._pool.total_size == 0

    play(act)


@pytest.mark.parametrize("wire", ["v2", "v3"])
def test_a_ledger_that_is_sealed_at_once_reaches_all_replicas(wire: str) -> None:
    """Its record is CLOSED when the checks of the later connections read it, and contains the entries that wait."""

    async def act(world: World) -> None:
        client = await world.client(wire=wire)
        writer = await client.create(ensemble=3, write_quorum=3, ack_quorum=1)
        await writer.append_many([b"one", b"two"])
        await writer.seal()
        await asyncio.sleep(0.1)
        assert sorted(added(world, writer.ledger_id).values()) == [[0, 1]] * 3

    play(act)


@pytest.mark.parametrize(
    ("is_sealed", "delay_s", "lacks", "took_s"),
    [
        (True, 0.5, 0, 0.5),
        (True, 5.0, 1, 1.0),
        (False, 0.5, 1, 0.0),
    ],
)
@pytest.mark.parametrize("wire", ["v2", "v3"])
def test_a_client_that_closes_waits_a_second_for_replicas_of_sealed_ledgers(
    wire: str, is_sealed: bool, delay_s: float, lacks: int, took_s: float
) -> None:
    """The connection to one bookie is established late."""

    async def act(world: World) -> None:
        client = await world.client(wire=wire)
        connect = client._pool._connector.open

        async def connect_late(connection: Any) -> None:
            await asyncio.sleep(delay_s if connection.bookie == "b3" else 0)
            await connect(connection)

        client._pool._connector.open = connect_late  # type: ignore[method-assign]
        writer = await client.create(ensemble=3, write_quorum=3, ack_quorum=2)
        await writer.append_many([b"one", b"two"])
        if is_sealed:
            await writer.seal()
        begun_s = world.loop.time()
        await client.close()
        assert world.loop.time() - begun_s == pytest.approx(took_s, abs=0.1)
        assert len(added(world, writer.ledger_id)) == 3 - lacks

    play(act)


@pytest.mark.parametrize("idle_s", [29, 31])
def test_a_writer_that_was_idle_checks_its_record_on_connections_that_never_broke(idle_s: float) -> None:
    async def act(world: World) -> None:
        store = await world.client()
        writer = await store.create(ensemble=3, ack_quorum=3)
        await writer.append(b"0")
        before = checks_of(store)
        await asyncio.sleep(idle_s)
        await asyncio.gather(*(writer.append(b"%d" % number) for number in range(1, 4)))
        await writer.append(b"4")
        assert checks_of(store) - before == (idle_s > 30)
        assert all(ids == [0, 1, 2, 3, 4] for ids in added(world, writer.ledger_id).values())
        await store.delete(writer.ledger_id)
        await asyncio.sleep(idle_s)
        if idle_s > 30:
            with pytest.raises(LedgerNotFound):
                await writer.append(b"5")

    play(act)


def test_a_writer_checks_its_record_after_the_machine_has_slept() -> None:
    """Its bookies may have forgotten the fence of its ledger meanwhile."""

    async def act(world: World) -> None:
        client = await world.client()
        writer = await client.create(ensemble=3, ack_quorum=3)
        await writer.append(b"0")
        await close_record(world, writer.ledger_id, LedgerState.IN_RECOVERY)
        client._runtime.clock.slept_s = 31.0  # type: ignore[attr-defined]
        with pytest.raises(LedgerFenced):
            await writer.append(b"1")
        assert all(ids == [0] for ids in added(world, writer.ledger_id).values())

    play(act)


@pytest.mark.parametrize("delay_s", [0.05, 60])
def test_a_writer_that_was_idle_goes_on_without_the_store(delay_s: float) -> None:
    async def act(world: World) -> None:
        store = await world.client()
        writer = await store.create(ensemble=3, ack_quorum=3)
        await writer.append(b"0")
        broken = Broken(store, delay_s)
        broken.is_broken = True
        await asyncio.sleep(31)
        begun = world.loop.time()
        await asyncio.gather(writer.append(b"1"), writer.append(b"2"))
        assert world.loop.time() - begun < 1.1
        await asyncio.sleep(31)
        broken.delay_s = 0.05
        await reconnect(world, *world.bookies)  # A new connection needs the store.
        appending = asyncio.ensure_future(writer.append(b"3"))
        await asyncio.sleep(3)
        broken.is_broken = False
        assert await appending == 3
        assert all(ids == [0, 1, 2, 3] for ids in added(world, writer.ledger_id).values())

    play(act)


def test_a_deleted_ledger_is_reported_as_missing() -> None:
    async def act(world: World) -> None:
        store = await world.client()
        writer = await store.create(ensemble=3, ack_quorum=3)
        await writer.append(b"0")
        await store.delete(writer.ledger_id)
        await reconnect(world, *world.bookies)
        with pytest.raises(LedgerNotFound):
            await writer.append(b"1")

    play(act)


class Broken:
    """The store fails checks, after a delay in seconds."""

    def __init__(self, client: Client, delay_s: float = 0.05) -> None:
        self.delay_s = delay_s
        self.driver: Any = client._driver
        self.is_broken = False
        self._read = self.driver.current_ledgers
        self.driver.current_ledgers = self.current_ledgers

    async def current_ledgers(self, ledger_ids: list[int], known: list[Any]) -> Any:
        if self.is_broken:
            await asyncio.sleep(self.delay_s)
            raise MetadataError("not now")
        return await self._read(ledger_ids, known)


def test_the_add_time_out_bounds_the_wait() -> None:
    async def act(world: World) -> None:
        store = await world.client(add_timeout_ms=700)
        broken = Broken(store)
        writer = await store.create(ensemble=3, ack_quorum=3)
        await writer.append(b"0")
        broken.is_broken = True
        await reconnect(world, *world.bookies)
        begun = world.loop.time()
        with pytest.raises(NotEnoughBookies) as caught:
            await writer.append(b"1")
        assert 0.6 < world.loop.time() - begun < 1.5
        assert any(isinstance(cause, BookieTimeout) for cause in caught.value.causes.values())
        assert all(ids == [0] for ids in added(world, writer.ledger_id).values())

    play(act)


def test_appends_on_other_connections_go_on_and_held_ones_keep_their_order() -> None:
    async def act(world: World) -> None:
        store = await world.client()
        broken = Broken(store)
        writer = await store.create(ensemble=3, ack_quorum=2)
        await writer.append(b"0")
        broken.is_broken = True
        victim = writer.metadata.last_ensemble[0]
        await reconnect(world, victim)
        for number in range(1, 20):
            assert await writer.append(b"%d" % number) == number
        await asyncio.sleep(0.2)
        assert added(world, writer.ledger_id)[victim] == [0]
        broken.is_broken = False
        await asyncio.sleep(1.5)
        assert added(world, writer.ledger_id)[victim] == list(range(20))
        assert store._pool.total_size == 0

    play(act)


def test_a_connection_that_breaks_fails_what_it_holds() -> None:
    async def act(world: World) -> None:
        store = await world.client()
        broken = Broken(store)
        writer = await store.create(ensemble=3, ack_quorum=3)
        await writer.append(b"0")
        broken.is_broken = True
        await reconnect(world, *world.bookies)
        appending = writer.append_nowait(b"1")
        await asyncio.sleep(0.2)
        await reconnect(world, *world.bookies)
        with pytest.raises(NotEnoughBookies):
            await appending
        assert store._pool.total_size == 0

    play(act)


def test_a_recovery_does_not_ask() -> None:
    async def act(world: World) -> None:
        store = await world.client()
        writer = await store.create(ensemble=3, ack_quorum=2)
        await writer.append_many([b"0"] * 5)
        other = await world.client()
        async with other.recover(writer.ledger_id) as reader:
            assert reader.last_add_confirmed == 4
        assert checks_of(other) == 0

    play(act)
