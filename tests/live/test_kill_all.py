"""Crashes by SIGKILL, of bookies and of writers: what was confirmed is there afterwards, and is what was written.

All bookies are killed `BK_KILL_ROUNDS` times; `make chaos` kills them for as long as it is asked to.
"""

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
from tests.live import appender
from tests.live.appender import BATCH, IN_FLIGHT, payload_of

import bookies as bk
from bookies.admin.cluster import LocalCluster

pytestmark = pytest.mark.live

ROUNDS = int(os.environ.get("BK_KILL_ROUNDS", "4"))
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
def running(directory: pathlib.Path, bookies: int, lease_ms: int) -> Iterator[LocalCluster]:
    with LocalCluster(directory / "bk-data", bookies, lease_ms=lease_ms, settings=SETTINGS) as cluster:
        yield cluster


def kill_all(cluster: LocalCluster) -> None:
    """All at the same moment, not one after the other."""
    for pid in cluster.pids():
        os.kill(pid, signal.SIGKILL)
    for bookie in cluster.bookies:
        cluster.kill(bookie.id)


async def create(store: bk.Client, **quorums: int) -> bk.LedgerWriter:
    """On a busy machine a bookie may lose its lease of half a second for a moment."""
    async with asyncio.timeout(120):
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
        async with asyncio.timeout(120):
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
    async with store.recover(ledger_id, timeout=120) as ledger:
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
        writing = Appender(store, confirmed)
        await writing.wait_confirmed()
        checks = [asyncio.create_task(check_while_it_lasts(store, ledger_id)) for ledger_id in before]
        await asyncio.sleep(random.uniform(0, 0.3))
        kill_all(cluster)
        await asyncio.gather(writing.task, *checks)
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

    with running(tmp_path, 3, 500) as cluster:
        asyncio.run(main(cluster))


# -- one cluster for the rest --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Every test leaves all of its bookies running. One more than needed, should one lose its lease for a moment."""
    with running(tmp_path_factory.mktemp("five"), 5, 1000) as cluster:
        yield cluster


@contextlib.contextmanager
def writer_process(cluster: LocalCluster, *quorums: int) -> Iterator[tuple[subprocess.Popen[str], Iterator[list[str]]]]:
    """An `appender` process, and the words of each whole line it says."""
    command = [sys.executable, appender.__file__, cluster.metadata_uri, *map(str, quorums)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, (line.split() for line in process.stdout if line.endswith("\n"))
        finally:
            process.kill()


def kill_writer(cluster: LocalCluster, after: int, *quorums: int) -> tuple[int, int]:
    """Kill a writer process once so many entries are confirmed. Returns (ledger id, last entry confirmed to it)."""
    ledger_id = confirmed = -1
    with writer_process(cluster, *quorums) as (process, lines):
        for word, number in lines:
            if word == "ledger":
                ledger_id = int(number)
            else:
                confirmed = int(number)
            if confirmed >= after:
                process.kill()
    return ledger_id, confirmed


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 2), (4, 2, 1), (1, 1, 1)])
def test_a_killed_writers_ledger_is_recovered_by_another(cluster: LocalCluster, quorums: tuple[int, int, int]) -> None:
    ledger_id, confirmed = kill_writer(cluster, 700, *quorums)

    async def main() -> None:
        async with bk.connect(cluster.metadata_uri, **CLIENT) as store:
            assert not (await store.metadata(ledger_id)).is_closed
            await check(store, ledger_id, confirmed)

    asyncio.run(main())


def test_several_recoverers_at_once_agree_on_one_end(cluster: LocalCluster) -> None:
    ledger_id, confirmed = kill_writer(cluster, 400, 3, 3, 2)

    async def recover(uri: str) -> bk.LedgerMetadata:
        async with bk.connect(uri, **CLIENT) as store, store.recover(ledger_id, timeout=120) as ledger:
            return ledger.metadata

    async def main() -> None:
        found = await asyncio.gather(*(recover(cluster.metadata_uri) for _ in range(5)))
        assert len({(each.state, each.last_entry_id, each.length, each.ensembles) for each in found}) == 1
        assert found[0].is_closed
        async with bk.connect(cluster.metadata_uri) as store:
            await check(store, ledger_id, confirmed)

    asyncio.run(main())


def test_a_living_writer_is_fenced_and_keeps_what_was_confirmed_to_it(cluster: LocalCluster) -> None:
    async def main() -> None:
        confirmed: dict[int, int] = {}
        async with bk.connect(cluster.metadata_uri) as store, bk.connect(cluster.metadata_uri) as other:
            writing = Appender(store, confirmed)
            await writing.wait_confirmed(300)
            await check(other, writing.ledger_id, confirmed[writing.ledger_id])
            await asyncio.wait_for(writing.task, 120)
            assert isinstance(writing.error, bk.LedgerFenced | bk.LedgerClosed), repr(writing.error)
            assert "may or may not be stored" in str(writing.error) or "nothing was sent" in str(writing.error)
            await check(other, writing.ledger_id, confirmed[writing.ledger_id])

    asyncio.run(main())


def test_one_bookie_after_the_other_is_killed_and_restarted_while_writing_goes_on(cluster: LocalCluster) -> None:
    async def main() -> None:
        confirmed: dict[int, int] = {}
        async with bk.connect(cluster.metadata_uri, **CLIENT) as store:
            writing = Appender(store, confirmed)
            for _ in range(3):
                count = confirmed.get(writing.ledger_id, -1) + 1
                await writing.wait_confirmed(count + 200)
                victim = (await store.metadata(writing.ledger_id)).last_ensemble[0]
                cluster.kill(victim)
                await writing.wait_confirmed(confirmed[writing.ledger_id] + 1 + 400)
                assert victim not in (await store.metadata(writing.ledger_id)).last_ensemble
                await asyncio.to_thread(cluster.restart, victim)
            async with bk.connect(cluster.metadata_uri) as other:
                await check(other, writing.ledger_id, confirmed[writing.ledger_id])
            await asyncio.wait_for(writing.task, 120)
            metadata = await store.metadata(writing.ledger_id)
            assert len(metadata.ensembles) >= 4
            assert metadata.last_entry_id >= confirmed[writing.ledger_id] > 1800

    asyncio.run(main())
