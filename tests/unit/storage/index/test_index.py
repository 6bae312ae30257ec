"""The index on the loop: what happens between the end of a read and its callback."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import cast

from bookies.config import BookieConfig
from bookies.lab.sim.world.disk import SimDisk
from bookies.runtime.ports import Clock, Network, Runtime, Workers
from bookies.storage.index import LedgerIndex
from bookies.storage.index import index_format as layout
from bookies.storage.index.index_files import LoadedIndex
from bookies.storage.index.index_readers import Readers, Wanted

PAGE_SIZE = 64


class Reads:
    """Reads of a worker that end when the test says so."""

    def __init__(self) -> None:
        self.futures: list[asyncio.Future[object]] = []

    def read_page(self, *_: object) -> asyncio.Future[object]:
        self.futures.append(asyncio.get_running_loop().create_future())
        return self.futures[-1]

    def load_indexes(self, wanted: Sequence[Wanted]) -> list[asyncio.Future[object]]:
        return [self.read_page() for _ in wanted]


def index_with(reads: Reads) -> LedgerIndex:
    disk = SimDisk(Random(0))
    runtime = Runtime(cast(Clock, None), cast(Network, None), disk, cast(Workers, None), Random(0))
    index = LedgerIndex(runtime, BookieConfig(index_page_size=PAGE_SIZE), ["/ledgers"], cast(Readers, reads))
    index.adopt_files({7: "/ledgers/current/0/0/7.idx"}, None)
    return index


def test_who_asks_between_the_end_of_a_read_and_its_callback_gets_the_answer() -> None:
    """A future that is done does not let the loop run when it is awaited, so nobody may wait for its callback."""

    async def main() -> None:
        reads = Reads()
        index = index_with(reads)
        first = asyncio.create_task(index.load(7))
        await asyncio.sleep(0)
        [read] = reads.futures
        header = layout.IndexHeader(b"k" * 20)
        read.set_result(LoadedIndex(header, 1024 + PAGE_SIZE, 7))
        ledger = await index.load(7)
        assert ledger is await first

        waiting = asyncio.create_task(index.slots(ledger, 0, 8))
        await asyncio.sleep(0)
        read = reads.futures[-1]
        read.set_result(bytes(range(64)))
        assert await index.slots(ledger, 1, 2) == bytes(range(8, 24))
        assert await waiting == bytes(range(64))
        assert len(reads.futures) == 2

    asyncio.run(asyncio.wait_for(main(), 10))
