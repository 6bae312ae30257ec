"""The client over real sockets, loops and disks: three bookies in this process, asyncio and its blocking twin."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import CancelledError
from operator import attrgetter
from pathlib import Path

import pytest
from msgspec.structs import replace

import bookies as bk
from bookies.bookie.server import BookieServer
from bookies.client.blocking.blocking import LoopThread
from bookies.config import BookieConfig
from bookies.metadata.uri import connect as connect_metadata
from bookies.runtime import aio


class Bookies:
    """Three bookies in a loop and thread of their own, on free ports, with embedded metadata."""

    def __init__(self, directory: Path) -> None:
        self.uri = f"file:{directory}/metadata"
        self._directory = directory
        (directory / "metadata").mkdir()
        self._thread = LoopThread()
        self._started: list[tuple[BookieServer, object]] = []
        self._thread.call(self._start())

    async def _start(self) -> None:
        runtime = aio.runtime()
        for number in range(3):
            driver = connect_metadata(self.uri, runtime)
            await driver.open()
            await driver.initialize_cluster()
            home = self._directory / f"b{number}"
            config = BookieConfig(
                bookie_id=f"b{number}",
                port=0,
                journal_directories=(f"{home}/journal",),
                ledger_directories=(f"{home}/ledgers",),
                journal_preallocate_size=1 << 20,
            )
            server = BookieServer(runtime, config, driver)
            await server.start()
            self._started.append((server, driver))

    async def _stop_one(self, number: int) -> None:
        server, driver = self._started[number]
        await server.stop()
        await driver.close()  # type: ignore[attr-defined]

    def stop(self, number: int) -> None:
        self._thread.call(self._stop_one(number))
        del self._started[number]

    def close(self) -> None:
        while self._started:
            self.stop(0)
        self._thread.stop()


WITHOUT_ZOOKEEPER = """
import threading
import bookies as bk

try:
    bk.blocking.connect("zk://localhost:1/ledgers")
except bk.MetadataError as error:
    print(error)
    print(threading.active_count(), "thread")
"""


@pytest.fixture(scope="module", autouse=True)
def without_zookeeper() -> Iterator[subprocess.Popen[str]]:
    """A client that waits ten seconds for a server that does not run. It begins with the first test of the file."""
    command = [sys.executable, "-c", WITHOUT_ZOOKEEPER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    cluster = Bookies(tmp_path_factory.mktemp("bookies"))
    yield cluster.uri
    cluster.close()


def payloads(count: int) -> list[bytes]:
    return [b"%d " % number * 20 for number in range(count)]


# -- asyncio -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "write_quorum", "loop_factory"),
    [("v2", 3, asyncio.new_event_loop), ("v2", 2, aio.new_event_loop), ("v3", 3, aio.new_event_loop)],
)
def test_write_tail_read(uri: str, wire: str, write_quorum: int, loop_factory: object) -> None:
    async def main() -> None:
        async with bk.connect(uri, wire=wire) as store:
            async with store.create(write_quorum=write_quorum, ack_quorum=2, password=b"pw") as ledger:
                reader = await store.open(ledger.ledger_id, password=b"pw")
                tail = asyncio.ensure_future(collect(reader.tail(0)))
                assert await ledger.append(b"first") == 0
                assert await ledger.append_many(payloads(1500)) == 1500
            assert await asyncio.wait_for(tail, 20) == [b"first", *payloads(1500)]
            assert await collect(reader.read(0)) == [b"first", *payloads(1500)]
            assert (await reader.read_last()).id == 1500
            table = await reader.read_arrow(1, 1500)
            assert table.column("value").to_pylist() == payloads(1500)
            for each in await store.bookies():
                total, free = await store.bookie_space(each.id)
                assert total >= free > 0
                held = sum(map(len, await store.list_entries(each.id, ledger.ledger_id)))
                assert held == 1501 if write_quorum == 3 else 900 < held < 1100
            await reader.close()

    with asyncio.Runner(loop_factory=loop_factory) as runner:  # type: ignore[arg-type]
        runner.run(main())


async def collect(entries: object) -> list[bytes]:
    return [entry.payload async for entry in entries]  # type: ignore[attr-defined]


def test_recovery_over_real_sockets(uri: str) -> None:
    async def main() -> None:
        async with bk.connect(uri) as store, bk.connect(uri) as other:
            writer = await store.create()
            await writer.append_many(payloads(500))
            async with other.recover(writer.ledger_id) as reader:
                assert await collect(reader.read()) == payloads(500)
            with pytest.raises(bk.LedgerFenced):
                await writer.append(b"late")
            await writer.close()

    asyncio.run(main())


def test_memory_of_a_long_read_is_bounded(uri: str) -> None:
    async def main() -> None:
        async with bk.connect(uri, read_ahead_size=1 << 20) as store:
            async with store.create() as ledger:
                for _ in range(12):
                    await ledger.append_many([bytes(1000)] * 1000)
            async with store.open(ledger.ledger_id) as reader:
                gc.collect()
                tracemalloc.start()
                count = 0
                async for _ in reader.read():
                    count += 1
                _, peak = tracemalloc.get_traced_memory()
                tracemalloc.stop()
            assert count == 12_000
            assert peak < 8 << 20, f"{peak:,} bytes at once"

    asyncio.run(main())


@pytest.mark.parametrize("wire", ["v2", "v3"])
@pytest.mark.parametrize("options", [{}, {"write_quorum": 2, "ack_quorum": 2}, {"digest": "hmac", "password": b"pw"}])
def test_reads_over_both_protocols_of_replicated_and_striped_ledgers(
    uri: str, wire: str, options: dict[str, object]
) -> None:
    password = options.get("password", b"")
    assert isinstance(password, bytes)
    with bk.blocking.connect(uri, wire=wire, sticky_reads=True) as store:
        with store.create(**options) as ledger:  # type: ignore[arg-type]
            ledger.append_many(payloads(1500))
        with store.open(ledger.ledger_id, password=password) as reader:
            for _ in range(2):
                assert [entry.payload for entry in reader.read(timeout=60)] == payloads(1500)
            assert [entry.payload for entry in reader.read(700, 702)] == payloads(1500)[700:703]
            batch = reader.read_batch(100, size_max=4096)
            assert batch.payloads() == payloads(1500)[100 : 100 + len(batch)]


# -- blocking ------------------------------------------------------------------------------------------------------


def test_blocking_twin(uri: str) -> None:
    threads = threading.active_count()
    with bk.blocking.connect(uri) as store:
        with store.create(password=b"pw", labels={"app": "twin"}) as ledger:
            assert ledger.append(b"first", timeout=60) == 0
            assert ledger.append_many(payloads(2000)) == 2000
            assert ledger.last_add_confirmed == 2000
            assert repr(ledger).startswith(f"<Ledger {ledger.ledger_id} open E3/Qw3/Qa2 last_add_confirmed=2000")
        assert ledger.metadata.is_closed
        with store.open(ledger.ledger_id, password=b"pw") as reader:
            assert [entry.payload for entry in reader.read()] == [b"first", *payloads(2000)]
            assert sum(map(len, reader.read_batches(1))) == 2000
            assert [entry.id for entry in reader.tail(1990)] == list(range(1990, 2001))
            assert reader.read_last().id == reader.read_last_add_confirmed() == reader.last_add_confirmed
            assert reader.read_arrow(5, 6).column("value").to_pylist() == payloads(2000)[4:6]
            assert reader.read_entry(0).payload == b"first"
            assert reader.labels == {"app": "twin"}
            assert reader.is_sealed
            assert reader.length == reader.metadata.length
            assert reader.read_batch(7, count_max=3).payloads() == payloads(2000)[6:9]
            assert [entry.payload for entry in reader.read_unconfirmed(1999, 2000, timeout=60)] == payloads(2000)[1998:]
            assert reader.try_read_last_add_confirmed() == 2000
            assert reader.read_last_add_confirmed_and_entry(2001) == (2000, None)
            found = reader.read_last_add_confirmed_and_entry(0, parallel=True)
            assert (found.last_add_confirmed, found.entry) == (2000, reader.read_entry(0))
            with pytest.raises(bk.ReadFailed):
                list(reader.read(0, 9999))
        found = [record.ledger_id for record in store.ledgers(label=("app", "twin"))]
        assert found == [ledger.ledger_id]
        assert store.metadata(ledger.ledger_id) == reader.metadata
        assert store.is_sealed(ledger.ledger_id)
        assert [each.mode for each in store.bookies()] == ["writable"] * 3
        store.delete(ledger.ledger_id)
        with pytest.raises(bk.LedgerNotFound):
            store.open(ledger.ledger_id)
        with pytest.raises(bk.NotEnoughBookies, match="3 registered"):
            store.create(ensemble=4)
    assert threading.active_count() == threads
    with pytest.raises(bk.ClientClosed, match="connect again"):
        store.bookies()
    store.close()


def test_blocking_appends_that_do_not_wait(uri: str) -> None:
    with bk.blocking.connect(uri, memory_limit=1 << 20) as store:
        with store.create() as ledger:
            futures = []
            for number in range(300):
                try:
                    futures.append(ledger.append_nowait(b"%d" % number * 2000))
                except bk.BookieBusy:
                    ledger.wait_writable(timeout=60)
                    futures.append(ledger.append_nowait(b"%d" % number * 2000))
            assert [future.result(60) for future in futures] == list(range(300))
            assert ledger.push_many(payloads(100)).result(60) == 399
            assert ledger.pending_count == 0
            ledger.allow_ensemble_changes(False)
            store.allow_ensemble_changes(True)
            with pytest.raises(bk.InvalidArgument):
                ledger.append_nowait("text")  # type: ignore[arg-type]
        with pytest.raises(bk.LedgerClosed):
            ledger.append_nowait(b"late")
        lost = store.create()
        pending = lost.append_nowait(b"x")
        lost.close()
        assert isinstance(pending.exception(20), bk.LedgerClosed | None)
        kept = store.create()
        reader = store.open(ledger.ledger_id)
        assert sum(map(len, reader.read().batches())) == 400
        assert sum(map(len, store.administration().open(ledger.ledger_id).read_batches(7))) == 393
    for late in (lambda: kept.append_nowait(b"x"), lambda: kept.push_many([b"x"]), lambda: kept.append(b"x")):
        with pytest.raises(bk.ClientClosed):
            late()


def test_the_blocking_administration_watches(uri: str) -> None:
    with bk.blocking.connect(uri) as store:
        seen = threading.Event()
        sets: list[bk.BookieSet] = []

        def changed(bookies: bk.BookieSet) -> None:
            sets.append(bookies)
            seen.set()

        watch = store.administration().watch_bookies(bk.BookieMode.WRITABLE, changed)
        assert seen.wait(60)
        assert len(sets[0].bookies) == 3
        watch.cancel()
        watch.cancel()
        forgotten = store.administration().watch_bookies(bk.BookieMode.WRITABLE, changed)
    forgotten.cancel()


def test_the_blocking_administration_puts_a_ledger_on_other_bookies(uri: str) -> None:
    with bk.blocking.connect(uri) as store:
        administration = store.administration()
        with store.create(ensemble=2, write_quorum=1, ack_quorum=1) as writer:
            writer.append_many([b"%d" % number for number in range(100)])
        record = store.metadata(writer.ledger_id)
        with store.open(writer.ledger_id) as reader:
            batches = list(reader.read().batches())
        [unused] = set(administration.bookies().bookies) - set(record.last_ensemble)
        new = administration.with_new_bookies(record)
        while unused not in new.last_ensemble:  # chosen at random
            new = administration.with_new_bookies(record)
        with pytest.raises(bk.ReplicationFailed):
            administration.check_entries(new)
        for batch in batches:
            administration.write_entries(new, batch)
        administration.check_entries(new)
        administration.change_record(writer.ledger_id, lambda found: replace(found, ensembles=new.ensembles))
        with store.open(writer.ledger_id) as reader:
            assert [entry.payload for entry in reader.read()] == [b"%d" % number for number in range(100)]


@pytest.mark.parametrize("who", ["client", "reader"])
def test_a_blocking_tail_that_is_closed_says_so(uri: str, who: str) -> None:
    store = bk.blocking.connect(uri)
    ledger = store.create()
    ledger.append(b"x")
    reader = store.open(ledger.ledger_id)
    has_one = threading.Event()
    outcome: list[BaseException | None] = []

    def tail() -> None:
        try:
            for _ in reader.tail(0):
                has_one.set()
            outcome.append(None)
        except (bk.BookKeeperError, asyncio.CancelledError, CancelledError) as error:
            outcome.append(error)

    thread = threading.Thread(target=tail)
    thread.start()
    assert has_one.wait(60)
    (store if who == "client" else reader).close()
    thread.join(60)
    assert len(outcome) == 1
    assert outcome[0] is None or isinstance(outcome[0], bk.ClientClosed | bk.LedgerClosed), outcome
    store.close()


def test_a_blocking_iteration_goes_on_after_a_time_out(uri: str) -> None:
    with bk.blocking.connect(uri) as store, store.create() as ledger, store.open(ledger.ledger_id) as reader:
        entries = reader.tail(0, timeout=0.5)
        found: list[int] = []
        id_of = attrgetter("id")
        for count in (2, 1, 3):
            ledger.append_many([b"x"] * count)
            with pytest.raises(TimeoutError):
                found.extend(map(id_of, entries))
        assert found == list(range(6))
        ledger.append_many([b"x"] * 3)
        ledger.seal()
        assert next(entries).id == 6
        assert next(entries).id == 7
        assert [entry.id for entry in entries] == [8]
        assert list(entries) == []


def test_blocking_inside_a_running_loop(uri: str) -> None:
    """As in a notebook, whose cells run on a loop."""

    async def cell() -> list[bytes]:
        with bk.blocking.connect(uri) as store:
            with store.create() as ledger:
                ledger.append_many([b"a", b"b"])
            return [entry.payload for entry in store.recover(ledger.ledger_id).read()]

    assert asyncio.run(cell()) == [b"a", b"b"]


def test_an_interruption_cancels_the_call_and_leaves_the_client_usable(
    uri: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bk.blocking.connect(uri) as store:
        ledger = store.create()
        reader = store.open(ledger.ledger_id)
        started = threading.Event()
        submit = asyncio.run_coroutine_threadsafe

        def interrupted(coroutine: object, loop: object) -> object:
            future = submit(coroutine, loop)  # type: ignore[arg-type]

            def result(timeout: float | None = None) -> object:
                started.set()
                raise KeyboardInterrupt

            future.result = result  # type: ignore[method-assign]
            return future

        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            next(reader.tail(0))
        assert started.is_set()
        monkeypatch.undo()
        ledger.append(b"still here")
        ledger.seal()
        assert [entry.payload for entry in reader.tail(0)] == [b"still here"]


def test_a_client_that_was_forgotten_ends_its_thread(uri: str) -> None:
    threads = threading.active_count()
    store = bk.blocking.connect(uri)
    assert threading.active_count() > threads
    with store.create() as written:
        written.append(b"x")
    ledger_id = written.ledger_id
    del written
    reader = store.open(ledger_id)
    del store
    gc.collect()
    assert [entry.payload for entry in reader.read()] == [b"x"]  # A handle keeps its client alive.
    del reader
    gc.collect()
    assert threading.active_count() == threads


def test_a_store_that_is_not_there(without_zookeeper: subprocess.Popen[str]) -> None:
    out, err = without_zookeeper.communicate(timeout=60)
    assert out.startswith("no ZooKeeper server at localhost:1 has answered"), err
    assert out.endswith("\n1 thread\n")
    threads = threading.active_count()
    with pytest.raises(bk.ConfigError):
        bk.blocking.connect("nonsense")
    assert threading.active_count() == threads


def test_a_stopped_bookie_is_replaced_or_missed(tmp_path: Path) -> None:
    cluster = Bookies(tmp_path)
    try:
        with bk.blocking.connect(cluster.uri) as store:
            with store.create(ensemble=2) as ledger:
                ledger.append_many(payloads(100))
                gone = ledger.metadata.last_ensemble[0]
                cluster.stop(int(gone[1:]))
                ledger.append_many(payloads(100))
            assert gone not in ledger.metadata.last_ensemble
            assert [entry.payload for entry in store.open(ledger.ledger_id).read()] == payloads(100) * 2
    finally:
        cluster.close()
