"""Records that wait for others, to share a group of the journal with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from bookies.lab.sim.world.disk import PROCESS_DIES
from bookies.storage.journal.journal import PATIENCE_S
from bookies.storage.store import LedgerStore

Body = Callable[..., bytes]


def _groups(store: LedgerStore) -> int:
    return store.stats()["journal_groups"]


def test_an_explicit_lac_shares_the_group_of_the_next_add(machine: Any, body: Body) -> None:
    made = machine()

    async def script(store: LedgerStore, promises: Any) -> None:
        await promises.add(store, 1, {0: body(1, 0)})
        before, loop = _groups(store), asyncio.get_running_loop()
        began_s = loop.time()
        announcing = [asyncio.ensure_future(promises.write_lac(store, ledger_id, 0)) for ledger_id in (1, 2)]
        await asyncio.sleep(PATIENCE_S / 2)
        assert (_groups(store), store.stats()["journal_queued_size"]) != (before, 0)
        assert not any(done.done() for done in announcing)
        await promises.add(store, 1, {1: body(1, 1)})
        await asyncio.gather(*announcing)
        assert _groups(store) == before + 1
        assert loop.time() - began_s < PATIENCE_S

    assert made.live(script)
    made.check()


def test_without_others_it_is_written_alone(machine: Any, body: Body) -> None:
    made = machine()

    async def script(store: LedgerStore, promises: Any) -> None:
        before, loop = _groups(store), asyncio.get_running_loop()
        for lac in range(2):
            began_s = loop.time()
            await promises.write_lac(store, 1, lac)
            assert PATIENCE_S <= loop.time() - began_s < 2 * PATIENCE_S
        await asyncio.sleep(1)
        assert (_groups(store), store.stats()["journal_queued_size"]) == (before + 2, 0)

    assert made.live(script)
    made.check()


def test_a_force_and_a_fence_do_not_leave_it_behind(machine: Any, body: Body) -> None:
    made = machine()

    async def script(store: LedgerStore, promises: Any) -> None:
        for wait in (lambda: _forced(store, 1), lambda: promises.fence(store, 1)):
            announcing = asyncio.ensure_future(promises.write_lac(store, 1, 3))
            await asyncio.sleep(0)
            await wait()
            assert store.stats()["journal_queued_size"] == 0
            await announcing

    assert made.live(script)
    made.check()


async def _forced(store: LedgerStore, ledger_id: int) -> None:
    forced: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    store.force(ledger_id, lambda error: forced.set_result(None))
    await forced


def test_an_orderly_stop_writes_it_and_a_crash_promised_nothing(machine: Any, body: Body) -> None:
    made = machine()
    outcomes: list[BaseException | None] = []

    async def announce(store: LedgerStore, promises: Any) -> None:
        ledger_id = len(outcomes)
        store.write_lac(ledger_id, b"k" * 20, 5, ledger_id.to_bytes(8, "big") + (5).to_bytes(8, "big"), outcomes.append)

    async def look(store: LedgerStore, promises: Any) -> None:
        assert await store.last_add_confirmed(0) == 5

    assert made.live(announce)
    assert outcomes == [None]
    assert made.live(look)
    assert made.live(announce, stops=False)
    made.crash(PROCESS_DIES)
    assert outcomes == [None]
    assert made.live(look)
