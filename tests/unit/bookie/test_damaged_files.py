"""What a bookie with damaged files says on the wire: it has an entry, it never had it, or it cannot know."""

from __future__ import annotations

import asyncio

from bookies.errors import Status
from bookies.lab.sim.world.disk import PROCESS_DIES
from bookies.metadata.embedded import MemoryDriver
from bookies.model import BookieId, LedgerMetadata
from bookies.wire.messages import BatchReadRequest, ListEntriesRequest, ReadLacRequest, ReadRequest, Request

from .conftest import World, adds

UNKNOWN = {Status.UNKNOWN_LEDGER_STATE, Status.IO_ERROR}  # v2 has no code of its own for it
ABSENT = {Status.NO_ENTRY, Status.NO_LEDGER}
INDEX = "/ledgers/current/0/1/1.idx"


def questions(ledger_id: int, entry_id: int) -> list[Request]:
    """About one entry, the last one, the LAC and the list, in every version that has them."""
    return [
        ReadRequest(2, 0, ledger_id, entry_id),
        ReadRequest(3, 1, ledger_id, entry_id),
        BatchReadRequest(2, 0, ledger_id, entry_id, 5, 10_000),
        ReadRequest(2, 0, ledger_id, -1),
        ReadRequest(3, 3, ledger_id, -1),
        ReadLacRequest(3, 4, ledger_id),
        ListEntriesRequest(3, 5, ledger_id),
    ]


async def statuses(world: World, asked: list[Request]) -> list[Status]:
    clients = {version: await world.connect(world.servers[-1]) for version in (2, 3)}
    return [(await clients[request.version].ask(request)).status for request in asked]


async def restart(world: World) -> None:
    """The process dies and comes back."""
    server, driver = world.forget_last()
    await world.on_bookie(server.abort())
    world.disk.crash(PROCESS_DIES)
    await world.on_bookie(driver.close())
    await world.start()


def test_have_never_had_and_unknown(world: World) -> None:
    """An entry log that is gone hides entries; an index file that is gone does so until it is built again."""

    async def body(world: World) -> None:
        server = await world.start()
        client = await world.connect(server)
        await client.add(adds(1, range(10)))
        assert set(await statuses(world, questions(1, 3))) == {Status.OK}
        found = await statuses(world, questions(1, 10))
        assert set(found[:3]) == {Status.NO_ENTRY}
        assert set(found[3:]) == {Status.OK}
        assert set(await statuses(world, questions(2, 0))) <= ABSENT
        await world.on_bookie(server.store.checkpoint())
        data = world.disk.files()[INDEX]
        world.disk.flip_bit(INDEX, 1024 + 8 * 3 + 1)
        await restart(world)
        found = await statuses(world, questions(1, 3))
        assert found[0] in UNKNOWN
        assert not set(found) & ABSENT
        await asyncio.sleep(5)
        assert set(await statuses(world, questions(1, 3))) == {Status.OK}
        assert set((await statuses(world, questions(1, 10)))[:3]) == {Status.NO_ENTRY}
        await world.on_bookie(world.servers[-1].store.checkpoint())
        assert world.disk.files()[INDEX] == data
        world.disk.unlink("/ledgers/current/0.log")
        await restart(world)
        found = await statuses(world, questions(1, 3))
        assert set(found[:6]) == {Status.IO_ERROR}
        assert found[6] is Status.OK  # the index knows what there should be

    world.run(body)


def test_after_a_hole_in_the_journal_the_metadata_says_whose_promises_may_be_lost(world: World) -> None:
    async def body(world: World) -> None:
        server, driver = await world.start(), world.drivers[-1]
        for ledger_id, bookie in ((1, "b1"), (2, "b1"), (3, "other")):
            await driver.create_ledger(LedgerMetadata(ledger_id, 1, 1, 1, ((0, (BookieId(bookie),)),)))
        client = await world.connect(server)
        for entry_id in range(10):
            await client.add(adds(1, [entry_id]))
        [journal] = [path for path in world.disk.files() if path.endswith(".txn")]
        world.disk.flip_bit(journal, 512 * 4, 7)
        calls = MemoryDriver.ledger_ids
        MemoryDriver.ledger_ids = lambda self: waits_for_ever()  # type: ignore[assignment,method-assign]
        try:
            await restart(world)
            for ledger_id in (1, 2, 3, 4):
                found = await statuses(world, questions(ledger_id, 50))
                assert set(found) <= UNKNOWN, (ledger_id, found)
                client = await world.connect(world.servers[-1])
                assert (await client.add(adds(ledger_id, [50])))[0].status in UNKNOWN
        finally:
            MemoryDriver.ledger_ids = calls  # type: ignore[method-assign]
        await restart(world)
        await asyncio.sleep(5)
        for ledger_id in (1, 2):
            assert set(await statuses(world, questions(ledger_id, 50))) <= UNKNOWN
        assert (await statuses(world, questions(1, 9)))[:3] == [Status.OK] * 3
        for ledger_id in (3, 4):
            assert set(await statuses(world, questions(ledger_id, 50))) <= ABSENT
        client = await world.connect(world.servers[-1])
        # The fence of any older ledger may have been lost with the hole, so its record is asked: 3 does not name this
        # bookie. The record of 4 does not exist yet, so it is no older ledger.
        assert (await client.add(adds(3, [50])))[0].status in UNKNOWN
        assert (await client.add(adds(4, [50])))[0].status is Status.OK

    async def waits_for_ever():  # type: ignore[no-untyped-def]
        await asyncio.sleep(1e6)
        yield ()

    world.run(body)
