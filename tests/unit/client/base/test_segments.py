"""Long lists in the metadata store: readers, truncations, deletions, and what processes that die leave behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from tests.fakes.world import World, play

from bookies.client.base.segments import LogStore
from bookies.client.client import Client
from bookies.client.log import Log
from bookies.client.log.base import log_operations
from bookies.config import ClientConfig
from bookies.errors import MetadataCorrupt, MetadataError
from bookies.metadata.embedded import MemoryDriver
from bookies.protocol.log import Position, log_segments

COUNT = 20


@pytest.fixture(autouse=True)
def short_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_segments, "HEAD_EXTENTS_MAX", 5)
    monkeypatch.setattr(log_segments, "HEAD_EXTENTS_KEPT", 3)
    monkeypatch.setattr(log_segments, "SEGMENT_EXTENTS_MAX", 4)
    monkeypatch.setattr(log_operations, "DELETING_MAX", 6)


def with_log(act: Callable[[World, Client, Log], Awaitable[None]], count: int = COUNT) -> None:
    async def main(world: World) -> None:
        client = await world.client()
        log = client.log("orders")
        await log.create()
        for number in range(count):
            async with log.transaction("app", number) as txn:
                await txn.append(b"%d" % number)
        await act(world, client, log)

    play(main)


async def payloads(log: Log) -> list[int]:
    async with log.open() as reader:
        return [int(entry.payload) async for entry in reader.read()]


async def segments(client: Client) -> list[str]:
    return list(await client.transactions().driver.record_names("log-segments/"))


def test_a_long_log_is_read_led_truncated_and_deleted() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        assert await payloads(log) == list(range(COUNT))
        manifest = await log.manifest()
        assert [segment.name for segment in manifest.segments] == sorted(await segments(client), key=_first)
        assert len(manifest.segments) > 2
        async with log.lead() as writer:
            for number in range(COUNT, COUNT + 6):
                await writer.append(b"%d" % number)
                await writer.roll()
        assert await payloads(log) == list(range(COUNT + 6))
        for row in (3, 17):
            extent = (await log.manifest()).find(Position((await log.manifest()).ledger_ids[0], 0))
            assert extent is not None
            manifest = await log.manifest()
            await log.truncate(Position(manifest.extents[row - manifest.rows_truncated].ledger_id, 0))
            assert await payloads(log) == list(range(row, COUNT + 6))
            manifest = await log.manifest()
            assert manifest.deleting == ()
            assert [segment.name for segment in manifest.segments] == sorted(await segments(client), key=_first)
        assert [each.ledger_id async for each in client.ledgers()] == manifest.ledger_ids
        await log.delete()
        assert await segments(client) == []
        assert [each async for each in client.ledgers()] == []

    with_log(act)


def _first(name: str) -> int:
    return int(name.rsplit("/", 1)[1].split("-")[0])


def test_a_reader_of_an_old_list_reads_it_again_when_a_segment_is_gone() -> None:
    async def act(world: World, client: Client, log: Log) -> None:
        driver = client.transactions().driver
        store = LogStore(driver, "orders")
        original = driver.read_record

        async def read_record(name: str) -> tuple[bytes, int]:
            found = await original(name)
            if name == "logs/orders":
                driver.read_record = original  # type: ignore[method-assign]
                await log.truncate(Position((await log.manifest()).extents[11].ledger_id, 0))
            return found

        driver.read_record = read_record  # type: ignore[method-assign]
        manifest, version = await store.read()
        assert manifest.rows_truncated == 11
        assert len(manifest.extents) == COUNT - 11
        name = manifest.segments[0].name
        await driver.delete_record(name, (await driver.read_record(name))[1])
        with pytest.raises(MetadataCorrupt, match=f"segment {name} of log orders is lost"):
            await LogStore(driver, "orders").read()
        assert version

    with_log(act)


class FailAt:
    """Of the calls of a client to the store: number `at` is lost before or after its effect, or the client dies."""

    def __init__(self, kind: str, at: int) -> None:
        self.kind = kind
        self.at = at
        self.count = 0

    async def before(self, operation: str, driver: MemoryDriver) -> None:
        if operation in ("create_record", "write_record", "delete_record", "transact"):
            self.count += 1
            self._fail("before")

    async def after(self, operation: str, driver: MemoryDriver) -> None:
        if operation in ("create_record", "write_record", "delete_record", "transact"):
            self._fail("after")

    def _fail(self, when: str) -> None:
        if self.count == self.at and self.kind.endswith(when):
            raise asyncio.CancelledError if self.kind.startswith("dies") else MetadataError("the connection broke")


@pytest.mark.parametrize("kind", ["lost before", "lost after", "dies before", "dies after"])
@pytest.mark.parametrize("work", ["commit", "truncate"])
def test_a_failure_at_any_step_loses_nothing_and_the_next_sweep_finds_what_is_left(work: str, kind: str) -> None:
    def trial(at: int) -> bool:
        faults = FailAt(kind, at)

        async def act(world: World, client: Client, log: Log) -> None:
            runtime = world.runtime("victim")
            driver = MemoryDriver(world.store, runtime)
            victim = await Client(runtime, driver, ClientConfig()).open_session()
            before = Position((await log.manifest()).extents[5].ledger_id, 0)
            driver._faults = faults
            task = asyncio.ensure_future(_work(victim.log("orders"), work, before))
            await asyncio.wait([task])
            driver._faults = None
            await victim.close()
            await _work(log, work, before)
            first = 5 if work == "truncate" else 0
            assert await payloads(log) == list(range(first, 11 if work == "truncate" else 12))
            await log.truncate(Position((await log.manifest()).extents[-3].ledger_id, 0))
            manifest = await log.manifest()
            assert [segment.name for segment in manifest.segments] == await segments(client)
            await log.delete()
            assert await segments(client) == []

        with_log(act, 11)  # The twelfth moves extents to a segment, and a short segment to a longer one.
        return faults.count >= at

    at = 1
    while trial(at):
        at += 1
    assert at > 3


async def _work(log: Log, work: str, before: Position) -> None:
    if work == "truncate":
        await log.truncate(before)
    else:
        async with log.transaction("app", 11) as txn:
            await txn.append(b"11")
