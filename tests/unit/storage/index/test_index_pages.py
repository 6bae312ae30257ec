"""Pages of the index: what changes while it is being written, what may be dropped, what a failure leaves."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, cast

import pytest

from bookies.config import BookieConfig
from bookies.errors import LedgerUnknownToBookie
from bookies.lab.sim.world.disk import SimDisk
from bookies.lab.sim.world.loop import SimLoop
from bookies.lab.sim.world.workers import SimWorkers
from bookies.runtime.ports import Clock, Network, Runtime
from bookies.storage.entry_log.log_directories import LogDirectories
from bookies.storage.index import LedgerIndex
from bookies.storage.index.catalog import CatalogFile
from bookies.storage.index.catalog_format import pack
from bookies.storage.index.index_files import find_index_files
from bookies.storage.index.index_format import STATE_FENCED, IndexHeader
from bookies.storage.index.index_ledger import Ledger
from bookies.storage.index.index_readers import Readers

PAGE_SIZE = 64
SLOTS = 8  # in a page


class Bench:
    """An index over a disk in memory, and the worker that writes."""

    def __init__(self, **settings: Any) -> None:
        self.disk = SimDisk(Random(0))
        self.disk.make_directories("/l")
        self.config = BookieConfig(index_page_size=PAGE_SIZE, open_files_max=8, **settings)
        self.workers = SimWorkers(Random(0), mean_ms=0.01)
        runtime = Runtime(cast(Clock, None), cast(Network, None), self.disk, self.workers, Random(0))
        self.index = LedgerIndex(runtime, self.config, ["/l"], Readers(runtime, self.config, LogDirectories(["/l"])))
        self.index.adopt_files(find_index_files(self.disk, ["/l"]), None)
        self.index.catalog_writer.file.replace(list(pack(self.index.catalog.contents())))
        self.worker = self.workers.start("checkpoint")

    def create(self, ledger_id: int = 1) -> Ledger:
        return self.index.create(ledger_id, IndexHeader(b"key"))

    async def install(self, entry_ids: Sequence[int], value: int, ledger_id: int = 1) -> None:
        await self.index.install(ledger_id, entry_ids, value.to_bytes(8, "big") * len(entry_ids))

    async def flush(self) -> None:
        frozen = self.index.freeze()
        try:
            await self.index.write(frozen, self.worker)
        finally:
            self.index.unfreeze(frozen)

    def in_file(self, ledger_id: int = 1) -> list[int]:
        """The slots on disk."""
        data = self.disk.files()[f"/l/0/{ledger_id:x}/{ledger_id:x}.idx"][1024:]
        assert len(data) % PAGE_SIZE == 0
        return [int.from_bytes(data[at : at + 8], "big") for at in range(0, len(data), 8)]

    async def load_anew(self, ledger_id: int) -> Ledger:
        """The ledger as the next life sees it."""
        runtime = Runtime(cast(Clock, None), cast(Network, None), self.disk, self.workers, Random(0))
        index = LedgerIndex(runtime, self.config, ["/l"], Readers(runtime, self.config, LogDirectories(["/l"])))
        index.adopt_files(find_index_files(self.disk, ["/l"]), CatalogFile(self.disk, ["/l"], PAGE_SIZE).load())
        return await index.load(ledger_id)

    async def in_memory(self, count: int, ledger_id: int = 1) -> list[int]:
        ledger = await self.index.load(ledger_id)
        found = []
        for entry_id in range(count):
            slots = await self.index.slots(ledger, entry_id, 1)
            found.append(int.from_bytes(slots, "big"))
        return found


def run(script: Callable[[Bench], Any], **settings: Any) -> None:
    async def main() -> None:
        await script(Bench(**settings))

    loop = SimLoop()
    loop.run(main())
    loop.close()


def test_what_changes_while_it_is_written_is_written_again() -> None:
    async def script(bench: Bench) -> None:
        bench.create()
        await bench.install(range(3), 5)
        await bench.install(range(8, 16), 5)  # a page without anything missing, which is written without a copy
        frozen = bench.index.freeze()
        writing = asyncio.ensure_future(bench.index.write(frozen, bench.worker))
        await asyncio.sleep(0)
        await bench.install(range(2, 11), 7)  # the same pages, now with slots whose log is not synced yet
        bench.index.set_header(bench.index.get(1), IndexHeader(b"key", STATE_FENCED))  # type: ignore[arg-type]
        await writing
        bench.index.unfreeze(frozen)
        assert bench.in_file() == [5, 5, 5, 0, 0, 0, 0, 0] + [5] * 8
        assert await bench.in_memory(12) == [5, 5, 7, 7, 7, 7, 7, 7, 7, 7, 7, 5]
        assert bench.index.is_dirty
        await bench.flush()
        assert bench.in_file() == [5] * 2 + [7] * 9 + [5] * 5
        assert not bench.index.is_dirty
        assert bench.index.cache.dirty_size == 0
        assert (await bench.load_anew(1)).header.is_fenced

    run(script)


def test_a_failed_write_leaves_everything_dirty() -> None:
    async def script(bench: Bench) -> None:
        for ledger_id in range(1, 5):
            bench.create(ledger_id)
            await bench.install(range(20), ledger_id, ledger_id)
        for operation in ("open", "pwrite", "pwritev", "rename"):
            bench.disk.fail(operation, "/l/0/2", lambda: OSError(28, "no space"))
            with pytest.raises(OSError, match="no space"):
                await bench.flush()
            assert bench.index.is_dirty
        await bench.install(range(18, 22), 9, 2)
        await bench.flush()
        assert not bench.index.is_dirty
        assert bench.in_file(2)[:23] == [2] * 18 + [9] * 4 + [0]
        assert bench.in_file(3)[:20] == [3] * 20

    run(script)


def test_clean_pages_are_dropped_and_read_again() -> None:
    async def script(bench: Bench) -> None:
        bench.create()
        await bench.install(range(100 * SLOTS), 3)
        await bench.flush()
        ledger = bench.index.get(1)
        assert ledger is not None
        assert len(ledger.pages) < 20
        assert bench.index.cache.clean_size <= 4096
        assert await bench.in_memory(100 * SLOTS) == [3] * 100 * SLOTS
        await bench.install(range(5, 7), 4)
        assert await bench.in_memory(8) == [3] * 5 + [4] * 2 + [3]

    run(script, index_cache_size=4096)


def test_slots_of_any_pattern() -> None:
    async def script(bench: Bench) -> None:
        ledger = bench.create()
        await bench.install([1, 2, 7, 8, 9, 30], 1)
        await bench.install(range(0, 20, 4), 2)
        expected = [2, 1, 1, 0, 2, 0, 0, 1, 2, 1, 0, 0, 2, 0, 0, 0, 2] + [0] * 13 + [1]
        assert await bench.in_memory(31) == expected
        assert ledger.last_entry_id == 30
        assert await bench.index.entry_runs(ledger) == [
            range(3), range(4, 5), range(7, 10), range(12, 13), range(16, 17), range(30, 31)
        ]  # fmt: skip
        await bench.flush()
        assert bench.in_file() == [*expected, 0]

    run(script)


def test_an_unknown_ledger() -> None:
    async def script(bench: Bench) -> None:
        assert not bench.index.is_known(5)
        with pytest.raises(LedgerUnknownToBookie):
            await bench.index.load(5)

    run(script)


def test_idle_ledgers_are_forgotten_and_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookies.storage.index.index.LEDGERS_MAX", 3)

    async def script(bench: Bench) -> None:
        for ledger_id in range(1, 9):
            bench.create(ledger_id)
        bench.index.forget_idle(lambda ledger_id: True)
        assert bench.index.get(1) is not None  # dirty
        await bench.flush()
        kept = bench.index.get(2)
        assert kept is not None
        kept.users = 1
        bench.index.forget_idle(lambda ledger_id: ledger_id != 4)
        assert [ledger_id for ledger_id in range(1, 9) if bench.index.get(ledger_id)] == [2, 4, 8]
        assert sorted(bench.index.ledger_ids()) == list(range(1, 9))
        assert (await bench.index.load(1)).header == IndexHeader(b"key")

    run(script)


def test_entries_with_gaps_leave_what_is_between_them() -> None:
    async def script(bench: Bench) -> None:
        random, model = Random(3), [0] * 80
        bench.create()
        for value in range(1, 40):
            entry_ids = sorted(random.sample(range(80), random.randint(1, 20)))
            slots = b"".join((100 * value + entry_id).to_bytes(8, "big") for entry_id in entry_ids)
            await bench.index.install(1, array("q", entry_ids), slots)
            for entry_id in entry_ids:
                model[entry_id] = 100 * value + entry_id
            assert await bench.in_memory(80) == model
            if value % 7 == 0:
                await bench.flush()
                assert bench.in_file() == model
        ledger = bench.index.get(1)
        assert ledger is not None
        assert ledger.last_entry_id == max(entry_id for entry_id, slot in enumerate(model) if slot)

    run(script)
