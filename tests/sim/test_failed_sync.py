"""A failed sync of an entry log is final, whoever called: the system reports the next one as done, without the data."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

import pytest

from bookies.lab.sim.world.disk import NOTHING_SURVIVES
from bookies.storage.disks.durable_files import SyncFailed
from bookies.storage.store import LedgerStore

from .conftest import entry_body

COUNT = 40
SYNCS = "fdatasync|fsync"


def error() -> OSError:
    return OSError(errno.EIO, "Input/output error")


@pytest.fixture
def bookie(machine: Any) -> Callable[..., Any]:
    def make(seed: object = 0, **settings: object) -> Any:
        made = machine(seed, checkpoint_interval_ms=60_000, **settings)
        made.disk.forgets_failed_syncs = True
        return made

    return make


async def add(store: LedgerStore, promises: Any) -> None:
    await promises.add(store, 1, {entry: entry_body(1, entry) for entry in range(COUNT)})


def all_are_read_after_a_power_failure(made: Any) -> None:
    made.disk.faults.clear()
    made.crash(NOTHING_SURVIVES)

    async def check(store: LedgerStore, promises: Any) -> None:
        assert len(promises.acknowledged) == COUNT
        for ledger_id, entry_id in promises.acknowledged:
            assert await store.read(ledger_id, entry_id) in promises.submitted[ledger_id, entry_id]

    assert made.live(check)


@pytest.mark.parametrize("index", ["files", "rocksdb"])
@pytest.mark.parametrize("second", ["checkpoint", "stop"])
def test_one_that_waited_does_not_succeed(bookie: Callable[..., Any], index: str, second: str) -> None:
    made = bookie(ledger_index=index)

    async def script(store: LedgerStore, promises: Any) -> None:
        await add(store, promises)
        made.disk.fail(SYNCS, ".log", error)
        outcomes = await asyncio.gather(store.checkpoint(), getattr(store, second)(), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [SyncFailed, SyncFailed]

    made.live(script, stops=False)
    assert made.disk.exists("/ledgers0/current/DIRTY")
    all_are_read_after_a_power_failure(made)


@pytest.mark.parametrize("moment", range(8))
def test_one_after_a_caller_that_was_cancelled_does_not_succeed(bookie: Callable[..., Any], moment: int) -> None:
    made = bookie(moment)

    async def script(store: LedgerStore, promises: Any) -> None:
        await add(store, promises)
        made.disk.fail(SYNCS, ".log", error)
        task = asyncio.create_task(store.checkpoint())
        await asyncio.sleep(moment * 50e-6)
        task.cancel()
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
        assert isinstance(outcome, asyncio.CancelledError | SyncFailed)
        with pytest.raises(SyncFailed):
            await store.checkpoint()

    made.live(script, stops=False)
    all_are_read_after_a_power_failure(made)


@pytest.mark.parametrize("seed", range(4))
def test_one_of_the_last_directory_while_another_has_failed(bookie: Callable[..., Any], seed: int) -> None:
    made = bookie(seed, ledgers=2)

    async def script(store: LedgerStore, promises: Any) -> None:
        made.disk.fail("", "/ledgers0/current", error, count=1 << 40)
        made.disk.fail(SYNCS, "/ledgers1/current/0.log", error)
        await add(store, promises)
        with pytest.raises(SyncFailed):
            await store.checkpoint()
        with pytest.raises(SyncFailed):
            await store.checkpoint()

    made.live(script, stops=False)
    all_are_read_after_a_power_failure(made)
