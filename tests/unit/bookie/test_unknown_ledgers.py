"""Which ledgers a bookie may have made promises about, as the metadata tells."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from bookies.bookie.unknown_ledgers import settle_unknown_ledgers
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.embedded.memory import MemoryStore
from bookies.metadata.shared.nodes import Key, Put, Table
from bookies.model import BookieId, LedgerMetadata, LedgerState
from bookies.runtime import aio
from bookies.runtime.events import Events

B1, B2 = BookieId("b1"), BookieId("b2")


class FakeStore:
    """Uncertain until it is told."""

    settled: list[int] | None = None
    former: list[tuple[int, int]] | None = None

    @property
    def has_unknown_ledgers(self) -> bool:
        return self.settled is None

    async def note_former(self, runs: list[tuple[int, int]]) -> None:
        self.former = runs

    async def settle_unknown_ledgers(self, found: list[int]) -> int:
        self.settled = found
        return len(found)


def settle(store: FakeStore, prepare: Callable[[MemoryStore, MemoryDriver], Awaitable[None]]) -> None:
    """Settle the ledgers of b1 on a new cluster with what `prepare` puts there."""

    async def main() -> None:
        runtime, memory = aio.runtime(), MemoryStore("x")
        driver = MemoryDriver(memory, runtime)
        await driver.open()
        await driver.initialize_cluster()
        await prepare(memory, driver)
        await settle_unknown_ledgers(cast(Any, store), driver, B1, Events("test", runtime.clock))
        await driver.close()

    aio.run(main())


def test_a_record_that_cannot_be_read_may_name_the_bookie() -> None:
    """It stays uncertain, and keeps no other ledger so."""
    store = FakeStore()

    async def prepare(memory: MemoryStore, driver: MemoryDriver) -> None:
        for ledger_id, bookie in ((1, B1), (2, B2), (3, B2)):
            await driver.create_ledger(LedgerMetadata(ledger_id, 1, 1, 1, ((0, (bookie,)),)))
        memory.commit([], [Put(Key(Table.LEDGERS, 3), b"nonsense")])

    settle(store, prepare)
    assert store.settled == [1, 3]
    assert store.former == [(0, 0), (1, 4)]


def test_a_recovery_or_a_repair_may_have_written_to_a_bookie_that_no_record_names_yet() -> None:
    store = FakeStore()

    async def prepare(memory: MemoryStore, driver: MemoryDriver) -> None:
        for ledger_id, state in ((1, LedgerState.OPEN), (2, LedgerState.IN_RECOVERY), (3, LedgerState.OPEN)):
            await driver.create_ledger(LedgerMetadata(ledger_id, 1, 1, 1, ((0, (B2,)),), state=state))
        assert await driver.recovery.lock(3, "a worker", needs_mark=False) is not None

    settle(store, prepare)
    assert store.settled == [2, 3]
