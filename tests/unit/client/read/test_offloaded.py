"""Readers that were open before the bookies forgot a ledger: they go on in its files."""

from __future__ import annotations

import pathlib
from itertools import pairwise

import pytest
from tests.fakes.world import World, in_world

from bookies.client.client import Client
from bookies.client.read.offloaded import INDEX, OffloadedFiles
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


def names_in(directory: pathlib.Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def make_old(directory: pathlib.Path) -> None:
    """Give the index the name that it had in earlier versions."""
    [index] = directory.glob("_index-*.json")
    index.rename(directory / INDEX)


async def copied(store: Client, ledger_id: int, directory: pathlib.Path, parts: int) -> Offload:
    """Write a copy in this number of parts, a tenth of the entries in each but the last."""
    written = []
    async with store.open(ledger_id) as reader:
        last = reader.last_add_confirmed
        bounds = [*(number * last // 10 for number in range(parts)), last + 1]
        for first, stop in pairwise(bounds):
            writer = tier.PartsWriter(str(directory))
            async for batch in reader.read_batches(first, stop - 1):
                writer.append(batch)
            written += writer.finish()
    index, content = tier.index_of(ledger_id, "one", written)
    crc = tier.write_index(str(directory), index)
    return Offload("one", str(directory), PARQUET, content.rows, content.size, content.crc, crc, 1)


async def offload(world: World, store: Client, ledger_id: int, directory: pathlib.Path) -> None:
    """Copy the ledger, let the record say that the copy is enough, and let the bookies forget it."""
    copy = await copied(store, ledger_id, directory, 1)

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


@in_world()
async def test_what_another_driver_of_the_run_writes_does_no_harm_to_a_committed_copy(
    world: World, tmp_path: pathlib.Path
) -> None:
    """It has begun before the commit, and writes the same parts, and an index of its own, into the same directory."""
    store = await world.client()
    ledger_id = await sealed(store)
    await offload(world, store, ledger_id, tmp_path)
    committed = names_in(tmp_path)
    other = await copied(store, ledger_id, tmp_path, 2)
    files = OffloadedFiles(await store.metadata(ledger_id))
    assert files.check().crc == other.crc
    assert files.copy.index != other.index
    assert len(names_in(tmp_path)) == 5
    tier.delete_others(str(tmp_path), files.index(), files.copy.index)
    assert names_in(tmp_path) == committed
    files.check()
    files.close()


@in_world()
async def test_a_copy_of_an_earlier_version_is_read(world: World, tmp_path: pathlib.Path) -> None:
    store = await world.client()
    ledger_id = await sealed(store)
    await offload(world, store, ledger_id, tmp_path)
    make_old(tmp_path)
    async with store.open(ledger_id) as reader:
        assert [entry.payload async for entry in reader.read()] == list(map(payload, range(40)))
    files = OffloadedFiles(await store.metadata(ledger_id))
    tier.delete_others(str(tmp_path), files.index(), files.copy.index)
    files.check()
    files.close()
