"""Crashes by SIGKILL, of bookies and of writers: what was confirmed is there afterwards, and is what was written."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from random import Random

import pytest

import bookies as bk
from bookies.admin.local_cluster import LocalCluster
from tests.live import appender
from tests.live.appender import BATCH, IN_FLIGHT, payload_of

pytestmark = pytest.mark.live

ROUNDS = 20
# Small enough that journals roll, entry logs roll and checkpoints happen between and during the crashes.
SETTINGS = {
    "journal_preallocate_size": 1 << 20,
    "journal_size_max": 1 << 20,
    "write_cache_size": 1 << 20,
    "entry_log_size_max": 1 << 20,
    "index_cache_size": 1 << 20,
    "checkpoint_interval_ms": 150,
    "checkpoint_journal_size": 1 << 20,
}
CLIENT = {"add_timeout_ms": 2_000, "read_timeout_ms": 5_000, "connect_timeout_ms": 1_000}


@contextlib.contextmanager
def running(directory: pathlib.Path, bookies: int) -> Iterator[LocalCluster]:
    with LocalCluster(directory / "bk-data", bookies, lease_ms=500, settings=SETTINGS) as cluster:
        yield cluster


def kill_all(cluster: LocalCluster) -> None:
    """All at the same moment, not one after the other."""
    for pid in cluster.pids():
        os.kill(pid, signal.SIGKILL)
    for bookie in cluster.bookies:
        cluster.kill(bookie.id)


async def create(store: bk.Client, **quorums: int) -> bk.LedgerWriter:
    """On a busy machine a bookie may lose its lease of half a second for a moment."""
    async with asyncio.timeout(30):
        while True:
            try:
                return await store.create(**quorums)  # type: ignore[arg-type]
            except bk.NotEnoughBookies:
                await asyncio.sleep(0.05)


class Appender:
    """Appends to a new ledger for as long as that works. `confirmed`: the last entry confirmed to it, by ledger."""

    def __init__(self, store: bk.Client, confirmed: dict[int, int], **quorums: int) -> None:
        self._store = store
        self._confirmed = confirmed
        self._quorums = quorums
        self._begun = asyncio.Event()
        self.ledger_id = -1
        self.error: bk.BookKeeperError | None = None  # what ended it
        self.task = asyncio.create_task(self._append())

    async def wait_confirmed(self, count: int = 1) -> None:
        """Wait until so many entries are confirmed."""
        async with asyncio.timeout(30):
            while self._confirmed.get(self.ledger_id, -1) + 1 < count:
                self._begun.clear()
                waiting = asyncio.ensure_future(self._begun.wait())
                await asyncio.wait([waiting, self.task], return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                assert not self.task.done(), f"the appends ended early: {self.error!r}"

    async def _append(self) -> None:
        ledger = await create(self._store, **self._quorums)
        self.ledger_id = ledger.ledger_id
        self._confirmed[ledger.ledger_id] = -1
        in_flight: list[asyncio.Task[int]] = []
        start = 0
        try:
            while True:
                batch = [payload_of(ledger.ledger_id, entry_id) for entry_id in range(start, start + BATCH)]
                in_flight.append(asyncio.create_task(ledger.append_many(batch)))
                start += BATCH
                await asyncio.sleep(0)
                if len(in_flight) == IN_FLIGHT:
                    self._confirmed[ledger.ledger_id] = await in_flight.pop(0)
                    self._begun.set()
        except bk.BookKeeperError as error:
            self.error = error
        finally:
            for outcome in await asyncio.gather(*in_flight, return_exceptions=True):
                if isinstance(outcome, int):
                    self._confirmed[ledger.ledger_id] = outcome
            await ledger.close()


async def check(store: bk.Client, ledger_id: int, confirmed: int) -> None:
    """The ledger is sealed, holds what was confirmed, and nothing that was not written."""
    async with store.recover(ledger_id, timeout=30) as ledger:
        assert ledger.is_sealed
        last = ledger.last_add_confirmed
        assert last >= confirmed, f"ledger {ledger_id} ends at {last}, but entry {confirmed} was confirmed"
        following = length = 0
        async for batch in ledger.read_batches():
            for entry_id, payload in enumerate(batch.payloads(), batch.first_entry_id):
                assert entry_id == following
                assert payload == payload_of(ledger_id, entry_id), f"ledger {ledger_id} entry {entry_id} differs"
                following += 1
                length += len(payload)
        assert following == last + 1
        assert ledger.metadata.length == length


def test_kill_all_bookies_again_and_again(tmp_path: pathlib.Path) -> None:
    """Every round kills all bookies in the middle of appends, some also in the middle of a recovery or a read."""
    random = Random(1)
    confirmed: dict[int, int] = {}

    async def check_while_it_lasts(store: bk.Client, ledger_id: int) -> None:
        with contextlib.suppress(bk.BookKeeperError):
            await check(store, ledger_id, confirmed[ledger_id])

    async def one_round(cluster: LocalCluster, store: bk.Client) -> None:
        before = list(confirmed)[-1:]
        appender = Appender(store, confirmed)
        await appender.wait_confirmed()
        checks = [asyncio.create_task(check_while_it_lasts(store, ledger_id)) for ledger_id in before]
        await asyncio.sleep(random.uniform(0, 0.3))
        kill_all(cluster)
        await asyncio.gather(appender.task, *checks)
        await asyncio.to_thread(cluster.start)

    async def main(cluster: LocalCluster) -> None:
        async with bk.connect(cluster.metadata_uri, **CLIENT) as store:
            for _ in range(ROUNDS):
                await one_round(cluster, store)
        async with bk.connect(cluster.metadata_uri, **CLIENT) as store:
            for ledger_id, last in confirmed.items():
                await check(store, ledger_id, last)
        assert len(confirmed) == ROUNDS
        assert all(last >= 0 for last in confirmed.values())

    with running(tmp_path, 3) as cluster:
        asyncio.run(main(cluster))
