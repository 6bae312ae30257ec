"""Readers that were open before the bookies forgot a ledger: they go on in its files."""

from __future__ import annotations

import pathlib

import pytest
from tests.fakes.world import World, in_world

from bookies.client.client import Client
from bookies.errors import LedgerUnknownToBookie, NotSupported
from bookies.model import LedgerMetadata
from bookies.protocol.ledger.offload import PARQUET, Offload, given_up, offloaded

tier = pytest.importorskip("bookies.spark.write.tier")


def payload(number: int) -> bytes:
    return b"payload %d" % number


async def sealed(store: Client, count: int = 40) -> int:
    writer = await store.create(ensemble=3)
    await writer.append_many([payload(number) for number in range(count)])
    await writer.seal()
    return writer.ledger_id


async def offload(world: World, store: Client, ledger_id: int, directory: pathlib.Path) -> None:
    """Copy the ledger, let the record say that the copy is enough, and let the bookies forget it."""
    writer = tier.PartsWriter(str(directory))
    async with store.open(ledger_id) as reader:
        async for batch in reader.read_batches():
            writer.append(batch)
    index, content = tier.index_of(ledger_id, "one", writer.finish())
    crc = tier.write_index(str(directory), index)
    copy = Offload("one", str(directory), PARQUET, content.rows, content.size, content.crc, crc, 1)

    def change(record: LedgerMetadata) -> LedgerMetadata | None:
        named = offloaded(record, copy)
        return given_up(record if named is None else named, "one", 2)

    await store.administration().change_record(ledger_id, change)
    for bookie in world.bookies.values():
        bookie.ledgers.pop(ledger_id, None)


@in_world()
async def test_a_reader_that_is_open_goes_on_in_the_files(world: World, tmp_path: pathlib.Path) -> None:
    store = await world.client()
    ledger_id = await sealed(store)
    async with store.open(ledger_id) as reader:
        assert (await reader.read_entry(0)).payload == payload(0)
        await offload(world, store, ledger_id, tmp_path)
        assert (await reader.read_entry(7)).payload == payload(7)
        assert [entry.payload async for entry in reader.read()] == list(map(payload, range(40)))


@in_world()
async def test_an_iteration_goes_on_behind_what_it_has_delivered(world: World, tmp_path: pathlib.Path) -> None:
    store = await world.client(read_ahead_size=1 << 16)
    writer = await store.create(ensemble=3)
    large = [payload(number) * 2_000 for number in range(40)]
    for each in large:
        await writer.append(each)
    await writer.seal()
    async with store.open(writer.ledger_id) as reader:
        batches = reader.read_batches()
        found = [entry.payload for entry in (await anext(batches)).entries()]
        assert 0 < len(found) < 40
        await offload(world, store, writer.ledger_id, tmp_path)
        async for batch in batches:
            found += [entry.payload for entry in batch.entries()]
        assert found == large


@in_world()
async def test_who_wants_the_bookies_is_told_what_they_say(world: World, tmp_path: pathlib.Path) -> None:
    store = await world.client()
    ledger_id = await sealed(store)
    async with store.open(ledger_id, tier="bookies") as reader:
        await offload(world, store, ledger_id, tmp_path)
        with pytest.raises(LedgerUnknownToBookie):
            await reader.read_entry(7)


@in_world()
async def test_a_ledger_without_a_copy_has_no_files(world: World) -> None:
    store = await world.client()
    ledger_id = await sealed(store)
    with pytest.raises(NotSupported, match="it is not offloaded"):
        await store.open(ledger_id, tier="offloaded")
