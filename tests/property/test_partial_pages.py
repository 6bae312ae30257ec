"""Slots that a database accepts without the rest of their page: what readers see, what is written, what races do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import cast

import pytest

from bookies.config import BookieConfig
from bookies.errors import DiskFull
from bookies.lab.sim.world.databases import SimDatabases
from bookies.lab.sim.world.disk import SimDisk
from bookies.lab.sim.world.loop import SimLoop
from bookies.lab.sim.world.workers import SimWorkers
from bookies.runtime.ports import Clock, Network, Runtime
from bookies.storage.entry_log.log_directories import LogDirectories
from bookies.storage.index import LedgerIndex
from bookies.storage.index.catalog_format import pack
from bookies.storage.index.index_format import IndexHeader
from bookies.storage.index.index_readers import Readers
from bookies.storage.rocksdb.database_files import DatabaseFiles, OpenDatabases, path_of

PAGE_SIZE, SLOTS = 64, 8
ENTRIES = 4 * SLOTS
LEDGERS = (1, 2, 3)
LOGS = (0, 1, 2)


class CountingFiles(DatabaseFiles):
    page_reads = 0
    is_full = False

    def read_page(self, path: str, page: int) -> bytes:
        CountingFiles.page_reads += 1
        return super().read_page(path, page)

    def write(self, writes):  # type: ignore[no-untyped-def]
        if CountingFiles.is_full:
            raise DiskFull("no space")
        return super().write(writes)


class LateReaders(Readers):
    """Pages arrive some time after they were read from the database."""

    def read_page(self, ledger_id: int, path: str, page: int) -> asyncio.Future[bytes]:
        async def late(reading: asyncio.Future[bytes]) -> bytes:
            data = await reading
            await asyncio.sleep(0.02)
            return data

        return asyncio.ensure_future(late(super().read_page(ledger_id, path, page)))


class Bench:
    """An index in databases whose pages leave memory as soon as they are clean, and what it should hold."""

    def __init__(self, seed: int = 0) -> None:
        CountingFiles.page_reads, CountingFiles.is_full = 0, False
        self.chance = Random(seed)
        self.disk = SimDisk(Random(0))
        self.disk.make_directories("/l")
        self.shared = OpenDatabases(self.disk, SimDatabases(self.disk), "/l", LogDirectories(["/l"], is_split=True), 0)
        self.shared.open((), is_new=True, may_be_cut=False)
        self.workers = SimWorkers(Random(seed), mean_ms=1)
        self.worker = self.workers.start("checkpoint")
        self.index = self.new_index()
        self.index.catalog_writer.file.replace(list(pack(self.index.catalog.contents())))
        for ledger_id in LEDGERS:
            self.index.create(ledger_id, IndexHeader(b"key"))
        self.model = {ledger_id: [0] * ENTRIES for ledger_id in LEDGERS}

    def new_index(self) -> LedgerIndex:
        config = BookieConfig(index_page_size=PAGE_SIZE, index_cache_size=400)
        runtime = Runtime(cast(Clock, None), cast(Network, None), self.disk, self.workers, Random(0))

        def files(open_files_max: int, mode: str) -> DatabaseFiles:
            return CountingFiles(self.disk, PAGE_SIZE, [self.shared], open_files_max, mode)

        readers = LateReaders(runtime, config, LogDirectories(["/l"]), files)
        return LedgerIndex(runtime, config, ["/l"], readers, new_files=files)

    def new_life(self) -> LedgerIndex:
        """The index as the next start finds it."""
        index = self.new_index()
        index.adopt_files({ledger_id: f"/l/{path_of(ledger_id)}" for ledger_id in LEDGERS}, None)
        return index

    async def install(self, ledger_id: int, entry_ids: list[int], log_id: int) -> None:
        slots = [log_id << 32 | self.chance.randrange(1, 1 << 31) for _ in entry_ids]
        await self.index.install(ledger_id, entry_ids, b"".join(slot.to_bytes(8, "big") for slot in slots))
        for entry_id, slot in zip(entry_ids, slots, strict=True):
            self.model[ledger_id][entry_id] = slot

    async def flush(self) -> None:
        frozen = self.index.freeze()
        try:
            await self.index.write(frozen, self.worker)
        finally:
            self.index.unfreeze(frozen)

    async def content(self, index: LedgerIndex, ledger_id: int) -> list[int]:
        ledger = await index.load(ledger_id)
        slots = [await index.slots(ledger, entry_id, 1) for entry_id in range(ENTRIES)]
        return [int.from_bytes(slot, "big") for slot in slots]

    async def is_right(self, index: LedgerIndex) -> bool:
        return all([await self.content(index, ledger_id) == self.model[ledger_id] for ledger_id in LEDGERS])


def run(script: Callable[[Bench], Awaitable[None]], seed: int = 0) -> None:
    async def main() -> None:
        await script(Bench(seed))

    loop = SimLoop()
    loop.run(main())
    loop.close()


def test_setting_slots_of_ledgers_in_turn_reads_no_page() -> None:
    async def script(bench: Bench) -> None:
        for entry_id in range(12):
            for ledger_id in LEDGERS:
                await bench.install(ledger_id, [entry_id], 1)
            await bench.flush()
        assert CountingFiles.page_reads == 0
        assert bench.index.cache.dirty_size == 0
        assert await bench.is_right(bench.index)
        assert CountingFiles.page_reads > 0

    run(script)


def test_a_page_that_was_dropped_during_its_load_is_read_again() -> None:
    async def script(bench: Bench) -> None:
        await bench.install(1, [0], 1)
        await bench.flush()
        bench.index.cache.add(ledger := await bench.index.load(1), 99, b"")  # evicts page 0
        assert 0 not in ledger.pages
        await bench.install(1, [1], 1)  # partial
        reading = asyncio.ensure_future(bench.content(bench.index, 1))
        while not CountingFiles.page_reads:  # noqa: ASYNC110 - a worker reads it
            await asyncio.sleep(0.001)
        await bench.flush()  # writes and drops the page, which was read without the slot and has not arrived
        assert await reading == bench.model[1]

    run(script)


def test_a_full_disk_leaves_partial_pages_as_they_are() -> None:
    async def script(bench: Bench) -> None:
        await bench.install(2, [3, 4], 1)
        await bench.flush()
        await bench.install(1, [0], 1)
        await bench.flush()  # page 0 of ledger 2 has left memory
        await bench.install(2, [5], 2)
        await bench.install(2, [1], 2)  # before the partial page's first slot
        CountingFiles.is_full = True
        with pytest.raises(DiskFull):
            await bench.flush()
        assert await bench.content(bench.index, 2) == bench.model[2]
        await bench.install(2, [0, 6], 2)
        CountingFiles.is_full = False
        await bench.flush()
        assert not bench.index.is_dirty
        assert await bench.is_right(bench.new_life())

    run(script)


@pytest.mark.parametrize("seed", range(40))
def test_readers_moves_writes_and_failures_at_the_same_time(seed: int) -> None:
    async def add(bench: Bench) -> None:
        for _ in range(60):
            chance, ledger_id = bench.chance, bench.chance.choice(LEDGERS)
            first, count = chance.randrange(ENTRIES), chance.choice((1, 1, 2, 5))
            entry_ids = sorted(
                {min(first + chance.choice((number, 2 * number)), ENTRIES - 1) for number in range(count)}
            )
            await bench.install(ledger_id, entry_ids, chance.choice(LOGS))
            await asyncio.sleep(chance.expovariate(1000))

    async def read(bench: Bench) -> None:
        for _ in range(60):
            ledger_id, entry_id = bench.chance.choice(LEDGERS), bench.chance.randrange(ENTRIES)
            slot = await bench.index.slots(await bench.index.load(ledger_id), entry_id, 1)
            assert int.from_bytes(slot, "big") == bench.model[ledger_id][entry_id]

    async def scan(bench: Bench) -> None:
        for _ in range(10):
            ledger_id = bench.chance.choice(LEDGERS)
            before = {entry_id for entry_id, slot in enumerate(bench.model[ledger_id]) if slot}
            runs = await bench.index.entry_runs(await bench.index.load(ledger_id))
            assert before <= {entry_id for run in runs for entry_id in run}

    async def compact(bench: Bench) -> None:
        for _ in range(30):
            ledger_id, entry_id = bench.chance.choice(LEDGERS), bench.chance.randrange(ENTRIES)
            log_id, new = bench.chance.choice(LOGS), bench.chance.randrange(3 << 32, 4 << 32)
            await bench.index.move(ledger_id, entry_id, log_id, new.to_bytes(8, "big"))
            old = bench.model[ledger_id][entry_id]
            if old and old >> 32 == log_id:
                bench.model[ledger_id][entry_id] = new

    async def write(bench: Bench) -> None:
        for _ in range(20):
            CountingFiles.is_full = bench.chance.random() < 0.3
            try:
                await bench.flush()
            except DiskFull:
                continue
            await asyncio.sleep(bench.chance.expovariate(500))

    async def script(bench: Bench) -> None:
        await asyncio.gather(*(task(bench) for task in (add, read, read, scan, compact, write)))
        assert await bench.is_right(bench.index)
        CountingFiles.is_full = False
        await bench.flush()
        assert bench.index.cache.dirty_size == 0
        assert await bench.is_right(bench.new_life())

    run(script, seed)
