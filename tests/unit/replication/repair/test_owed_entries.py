"""When a ledger leaves limbo: not while its record may come to name the bookie for entries that were lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, cast

from bookies.errors import ReadFailed
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.embedded.memory import MemoryStore
from bookies.model import BookieId, LedgerMetadata, LedgerState
from bookies.protocol.pacing import RateLimit
from bookies.protocol.repair.owed import OwedCounts
from bookies.replication.repair import OwedEntries
from bookies.runtime import aio
from bookies.runtime.events import Events

B2 = BookieId("b2")


class FakeLimbo(list[int]):
    def __init__(self, ledger_ids: Iterable[int]) -> None:
        super().__init__(ledger_ids)
        self.doubts: dict[int, int] = {}


class FakeStore:
    """A store that holds nothing, with ledgers in limbo. `ended`: those that have left it."""

    has_unknown_ledgers = False

    def __init__(self, *ledger_ids: int) -> None:
        self.limbo = FakeLimbo(ledger_ids)
        self.ended: list[int] = []
        self.has_settled = asyncio.Event()

    async def held_entries(self, ledger_id: int) -> list[range]:
        return []

    async def end_limbo(self, doubts: Mapping[int, int]) -> None:
        self.ended += doubts
        self.has_settled.set()
        self.limbo[:] = [ledger_id for ledger_id in self.limbo if ledger_id not in self.ended]


async def no_fragments(record: Any) -> list[Any]:
    return []


def test_a_ledger_that_a_repair_has_locked_stays_in_limbo() -> None:
    store = FakeStore(1, 2, 3)

    async def main() -> None:
        runtime = aio.runtime()
        driver = MemoryDriver(MemoryStore("x"), runtime)
        await driver.open()
        await driver.initialize_cluster()
        for ledger_id in (1, 2):
            closed = LedgerMetadata(
                ledger_id, 1, 1, 1, ((0, (B2,)),), state=LedgerState.CLOSED, last_entry_id=5, length=9
            )
            await driver.create_ledger(closed)
        lock = await driver.recovery.lock(2, "a worker", needs_mark=False)
        assert lock is not None
        server = SimpleNamespace(owed=OwedCounts(), store=store, bookie_id="b1")
        access = SimpleNamespace(driver=driver, runtime=runtime)
        tools = SimpleNamespace(access=access, fragments_of=no_fragments)
        owed = OwedEntries(cast(Any, server), cast(Any, tools), RateLimit(None), 4, Events("test", runtime.clock))
        running = asyncio.create_task(owed.run())
        await asyncio.sleep(0)
        assert server.owed.entries == 1, "it is not known yet"
        await store.has_settled.wait()
        assert store.ended == [1]
        assert owed.describe() == {"2": "no entry; waits: another process repairs it, perhaps with this bookie"}
        assert owed.waits[3] == "it is deleted; garbage collection removes it"
        store.limbo.remove(3)
        await driver.recovery.unlock(lock)
        await running
        assert server.owed.entries == 0
        await driver.close()

    aio.run(main())
    assert store.ended == [1, 2]


def test_a_verdict_of_an_earlier_attempt_ends_no_limbo() -> None:
    """A locked ledger holds all that it must. While it is locked it loses entries, and cannot be read."""
    store, attempts = FakeStore(1), 0

    async def main() -> None:
        runtime = aio.runtime()
        driver = MemoryDriver(MemoryStore("x"), runtime)
        await driver.open()
        await driver.initialize_cluster()
        await driver.create_ledger(
            LedgerMetadata(1, 1, 1, 1, ((0, (B2,)),), state=LedgerState.CLOSED, last_entry_id=5, length=9)
        )
        lock = await driver.recovery.lock(1, "a worker", needs_mark=False)

        async def fragments_of(record: Any) -> list[Any]:
            nonlocal attempts
            attempts += 1
            if attempts == 1:
                await driver.recovery.unlock(lock)
            if attempts == 2:
                raise ReadFailed("its index file is being rebuilt")
            if attempts == 3:
                assert store.ended == []
            return []

        server = SimpleNamespace(owed=OwedCounts(), store=store, bookie_id="b1")
        access = SimpleNamespace(driver=driver, runtime=runtime)
        tools = SimpleNamespace(access=access, fragments_of=fragments_of)
        events = Events("test", runtime.clock)
        await OwedEntries(cast(Any, server), cast(Any, tools), RateLimit(None), 4, events).run()
        await driver.close()

    aio.run(main())
    assert (store.ended, attempts) == ([1], 3)
