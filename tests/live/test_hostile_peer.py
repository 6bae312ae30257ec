"""Peers that misbehave, over real sockets: a hostile bookie among three good ones, hostile clients at a good bookie."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import pathlib
import socket
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from random import Random

import pytest

import bookies as bk
from bookies.admin.cluster import LocalCluster
from bookies.lab.sim.world.hostile import MISDEEDS, HostileBookie, strangers
from bookies.metadata.uri import connect as connect_driver
from bookies.runtime import aio
from bookies.wire.client import encode_request
from bookies.wire.messages import BatchReadRequest, ReadRequest

pytestmark = pytest.mark.live

SETTINGS = {"journal_preallocate_size": 1 << 20, "index_cache_size": 1 << 20, "write_cache_size": 4 << 20}
CLIENT = {"add_timeout_ms": 250, "read_timeout_ms": 250, "connect_timeout_ms": 500}
BOUND_S = 30.0  # of one operation: a few requests that time out one after the other, on a busy machine
COUNT = 30
TRIES = 30


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("hostile") / "bk-data", 3, settings=SETTINGS) as cluster:
        yield cluster
        assert len(cluster.pids()) == 3
        for bookie in cluster.bookies:
            assert "ERROR" not in bookie.log.read_text()


@contextlib.asynccontextmanager
async def hostile_bookie(
    cluster: LocalCluster, misdeeds: tuple[str, ...], honesty: float
) -> AsyncIterator[HostileBookie]:
    runtime = aio.runtime(seed=1)
    driver = connect_driver(cluster.metadata_uri, runtime)
    await driver.open()
    name = f"hostile-{len(misdeeds)}-{misdeeds[0].replace(' ', '-')}"
    bookie = HostileBookie(runtime.network, driver, name, Random(1), misdeeds=misdeeds, honesty=honesty)
    await bookie.start("127.0.0.1")
    try:
        yield bookie
    finally:
        await driver.unregister(bookie.bookie_id)
        await bookie.stop()
        await driver.close()


async def create(store: bk.Client, bookie: HostileBookie) -> bk.LedgerWriter:
    """A ledger with the hostile bookie in its ensemble."""
    for _ in range(TRIES):
        ledger = await store.create(timeout=BOUND_S)
        if bookie.bookie_id in ledger.metadata.last_ensemble:
            return ledger
        await ledger.close()
    raise AssertionError(f"{bookie.bookie_id} is never chosen")


def payloads(ledger_id: int) -> list[bytes]:
    return [b"ledger %d entry %d. " % (ledger_id, entry_id) * (entry_id % 7) for entry_id in range(COUNT)]


async def write(store: bk.Client, bookie: HostileBookie, *, is_sealed: bool) -> int:
    """A ledger of `payloads`; its id."""
    ledger = await create(store, bookie)
    entries = payloads(ledger.ledger_id)
    for start in range(0, COUNT, 10):
        assert await ledger.append_many(entries[start : start + 10], timeout=BOUND_S) == start + 9
    if is_sealed:
        assert await ledger.seal(timeout=BOUND_S) == COUNT - 1
    await ledger.close()
    return ledger.ledger_id


async def insist(recovering: bk.Client, ledger_id: int) -> bk.LedgerReader:
    """Recover a ledger; that too few bookies gave a good answer is no reason to give up."""
    for tries in range(TRIES):
        try:
            return await recovering.recover(ledger_id, timeout=BOUND_S)
        except bk.BookKeeperError:
            if tries == TRIES - 1:
                raise
    raise AssertionError


@pytest.mark.parametrize("misdeed", [*MISDEEDS, "all"])
def test_a_hostile_bookie_costs_time_and_nothing_else(cluster: LocalCluster, misdeed: str) -> None:
    number = list(MISDEEDS).index(misdeed) if misdeed in MISDEEDS else 0
    misdeeds = tuple(MISDEEDS) if misdeed == "all" else (misdeed,)

    async def main() -> None:
        async with hostile_bookie(cluster, misdeeds, honesty=0.3) as bookie:
            for is_sealed in (True, False):
                # A client that has met it avoids it for a while.
                async with bk.connect(cluster.metadata_uri, wire=("v2", "v3")[number % 2], **CLIENT) as store:
                    ledger_id = await write(store, bookie, is_sealed=is_sealed)
                    async with await insist(store, ledger_id) as ledger:
                        assert ledger.last_add_confirmed == COUNT - 1
                        async with asyncio.timeout(BOUND_S):
                            found = [entry.payload async for entry in ledger.read()]
                        assert found == payloads(ledger_id)
            assert bookie.counts[misdeeds[0]] > 0 or misdeed == "all"

    asyncio.run(main())


@pytest.mark.parametrize("wire", ["v2", "v3"])
def test_answers_that_nobody_asked_for_are_not_kept(cluster: LocalCluster, wire: str) -> None:
    async def main() -> None:
        async with (
            hostile_bookie(cluster, ("silence",), honesty=1.0) as bookie,
            bk.connect(cluster.metadata_uri, wire=wire) as store,
        ):
            ledger = await create(store, bookie)
            await ledger.append(b"before")
            flood = b"".join(strangers(Random(1), int(wire[1]), 1000))
            (connection, *_) = bookie.connections
            # The answer to an append comes behind the flood.
            for number in range(6):
                if number == 1:
                    gc.collect()
                    tracemalloc.start()
                connection.send(flood)
                await ledger.append(b"behind a flood", timeout=BOUND_S)
            await ledger.seal(timeout=BOUND_S)
            assert await store.bookie_space(bookie.bookie_id) == (1 << 40, 1 << 39)
            gc.collect()
            kept, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert kept < len(flood)
            assert len(ledger.metadata.ensembles) == 1  # The bookie was never replaced.
            await ledger.close()

    asyncio.run(main())


def rss(pid: int) -> int:
    """Bytes of memory that a process has."""
    return int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


def stuff(connection: socket.socket, data: bytes, times: int) -> None:
    """Send as often as the peer takes it, and read nothing."""
    connection.setblocking(False)
    with contextlib.suppress(BlockingIOError, ConnectionError):
        for _ in range(times):
            connection.sendall(data)


def read_when_not_busy(store: bk.blocking.Client, ledger_id: int) -> bytes:
    """What others asked for may still be under way."""
    deadline = time.monotonic() + BOUND_S
    while True:
        try:
            with store.open(ledger_id) as reader:
                return bytes(reader.read_entry(3).payload)
        except (bk.BookieBusy, bk.BookieTimeout):
            if time.monotonic() > deadline:
                raise


def test_clients_that_ask_for_all_and_take_nothing_do_not_make_a_bookie_grow(tmp_path: pathlib.Path) -> None:
    limits = {"reads_in_progress_size_max": 4 << 20, "adds_in_progress_size_max": 4 << 20}
    with (
        LocalCluster(tmp_path / "bk-data", 1, settings=SETTINGS | limits) as cluster,
        bk.blocking.connect(cluster.metadata_uri) as store,
        store.create(ensemble=1) as ledger,
    ):
        ledger.append_many([bytes(100_000)] * 20)
        (pid,), bookie = cluster.pids(), cluster.bookies[0]
        before = rss(pid)
        connections = []
        for number in range(24):
            connection = socket.create_connection((bookie.host or "", bookie.port), timeout=120)
            connections.append(connection)
            read = ReadRequest(2, 0, ledger.ledger_id, number % 20)
            batch = BatchReadRequest(2, number, ledger.ledger_id, 0, 20, 2 << 20)
            stuff(connection, b"".join(map(bytes, encode_request(batch if number % 2 else read))), 2000)
            assert ledger.append(b"meanwhile") == 20 + number
        # Budgets, and for each connection what may wait in its socket's buffer.
        assert rss(pid) - before < 80 << 20
        for connection in connections:
            connection.close()
        assert read_when_not_busy(store, ledger.ledger_id) == bytes(100_000)
        assert cluster.pids() == [pid]
