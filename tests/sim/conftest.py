"""One bookie's storage through many lives on one simulated disk, and a record of what it has promised."""

from __future__ import annotations

import asyncio
import pickle
import struct
from collections.abc import Awaitable, Callable, Sequence
from functools import cache, partial
from random import Random
from typing import cast

import pytest
from tests.fakes.adds import add_to
from tests.fakes.copies import copies_of

from bookies.config import LEDGER_INDEXES, ROCKSDB, BookieConfig
from bookies.errors import EntryNotFound, LedgerFenced, ReadFailed, Unauthorized
from bookies.kernels import Adds, Records, digest, scan_records
from bookies.lab.sim.world.cluster import SimClock
from bookies.lab.sim.world.databases import SimDatabases
from bookies.lab.sim.world.disk import Loss, SimDisk
from bookies.lab.sim.world.loop import Participant, SimLoop
from bookies.lab.sim.world.workers import SimWorkers
from bookies.model import DigestType
from bookies.runtime.ports import Network, Runtime
from bookies.storage.store import LedgerStore

KEY = b"k" * 20
SPLIT = "rocksdb-split"  # databases in two directories
SETTINGS: dict[str, object] = {
    "journal_size_max": 1 << 20,
    "journal_preallocate_size": 4096,
    "write_cache_size": 1 << 20,
    "entry_log_size_max": 1 << 20,
    "index_cache_size": 1 << 20,
    "index_page_size": 64,
    "checkpoint_interval_ms": 3_600_000,
}


@cache
def entry_body(ledger_id: int, entry_id: int, version: int = 0, size: int = 60, has_digest: bool = True) -> bytes:
    """An entry with a CRC32C, or with four bytes that prove nothing."""
    header = struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, size * (entry_id + 1))
    payload = Random(f"{ledger_id}/{entry_id}/{version}/{size}").randbytes(size)
    return header + (digest(DigestType.CRC32C, b"", header, payload) if has_digest else b"none") + payload


def lac_body(ledger_id: int, last_add_confirmed: int) -> bytes:
    header = struct.pack(">qq", ledger_id, last_add_confirmed)
    return header + digest(DigestType.CRC32C, b"", header, b"")


class Promises:
    """What was asked of the storage and what it has answered."""

    def __init__(self) -> None:
        self.submitted: dict[tuple[int, int], list[bytes]] = {}
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.fences: dict[int, bool] = {}  # ledger -> was acknowledged
        self.lacs: dict[int, list[bytes]] = {}
        self.acknowledged_lacs: dict[int, int] = {}  # ledger -> index in `lacs`

    def add(
        self, store: LedgerStore, ledger_id: int, bodies: dict[int, bytes], *, is_recovery: bool = False
    ) -> asyncio.Future[None]:
        """Send entries as one batch; the future is done when they are acknowledged."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for entry_id, body in bodies.items():
            self.submitted.setdefault((ledger_id, entry_id), []).append(body)

        def done(error: BaseException | None) -> None:
            if error is not None:
                future.set_exception(error)
                return
            for entry_id, body in bodies.items():
                self.acknowledged[ledger_id, entry_id] = body
            future.set_result(None)

        ids = list(bodies)
        entry_ids: Sequence[int] = range(ids[0], ids[-1] + 1) if ids == list(range(ids[0], ids[-1] + 1)) else ids
        add_to(
            store,
            ledger_id,
            KEY,
            entry_ids,
            Records.of(list(bodies.values())),
            max(ids) - 1,
            is_recovery=is_recovery,
            is_deferred_sync=False,
            done=done,
        )
        return future

    async def add_mixed(self, store: LedgerStore, bodies: dict[tuple[int, int], bytes]) -> None:
        """Send entries of many ledgers together; return when all are acknowledged."""
        for ids, body in bodies.items():
            self.submitted.setdefault(ids, []).append(body)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        left = set(bodies)

        def done(part: Adds, error: BaseException | None) -> None:
            if error is not None:
                future.set_exception(error)
                return
            for ledger_id, entry_ids, _ in part.stretches():
                for entry_id in entry_ids:
                    self.acknowledged[ledger_id, entry_id] = bodies[ledger_id, entry_id]
                    left.remove((ledger_id, entry_id))
            if not left:
                future.set_result(None)

        adds = Adds.of_many([(*ids, ids[1] - 1) for ids in bodies], list(bodies.values()))
        refused = store.add(adds, KEY, is_recovery=False, is_deferred_sync=False, accepted=lambda size: None, done=done)
        for _, error in refused:
            raise error
        await future

    def fence(self, store: LedgerStore, ledger_id: int) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.fences.setdefault(ledger_id, False)

        def done(error: BaseException | None) -> None:
            assert error is None
            self.fences[ledger_id] = True
            future.set_result(None)

        store.fence(ledger_id, KEY, done)
        return future

    def write_lac(self, store: LedgerStore, ledger_id: int, last_add_confirmed: int) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        bodies = self.lacs.setdefault(ledger_id, [])
        number = len(bodies)
        bodies.append(lac_body(ledger_id, last_add_confirmed))

        def done(error: BaseException | None) -> None:
            assert error is None
            self.acknowledged_lacs[ledger_id] = number
            future.set_result(None)

        store.write_lac(ledger_id, KEY, last_add_confirmed, bodies[-1], done)
        return future

    async def check(self, store: LedgerStore) -> None:
        """Everything promised is kept, and nothing is there that nobody sent."""
        highest: dict[int, int] = {}
        for (ledger_id, entry_id), _ in self.acknowledged.items():
            highest[ledger_id] = max(highest.get(ledger_id, -1), entry_id)
            found = await store.read(ledger_id, entry_id)
            assert found in self.submitted[ledger_id, entry_id], (
                f"ledger {ledger_id} entry {entry_id} is not what was sent"
            )
            assert store.read_resident(ledger_id, entry_id) in (found, None)
        assert store.parts is not None
        await store.parts.rebuilder.wait_idle()  # until then the bookie says that it does not know what is missing
        for ledger_id, entry_id in highest.items():
            last = await store.read(ledger_id, -1)
            assert struct.unpack_from(">q", last, 8)[0] >= entry_id
            assert await store.last_add_confirmed(ledger_id) >= entry_id - 1
            await self._check_list(store, ledger_id)
        for ledger_id, was_acknowledged in self.fences.items():
            if was_acknowledged:
                assert await self.is_fenced(store, ledger_id), f"ledger {ledger_id} has lost its fence"
                assert await self._is_guarded(store, ledger_id), f"ledger {ledger_id} has lost its key"
        for ledger_id, number in self.acknowledged_lacs.items():
            found_lac, _ = await store.read_lac(ledger_id)
            assert found_lac in self.lacs[ledger_id][number:], f"ledger {ledger_id} has lost its explicit LAC"

    async def _check_list(self, store: LedgerStore, ledger_id: int) -> None:
        listed = [entry_id for run in await store.list_entries(ledger_id) for entry_id in run]
        for owner, entry_id in self.acknowledged:
            assert owner != ledger_id or entry_id in listed
        for entry_id in listed:  # no slot dangles
            assert (ledger_id, entry_id) in self.submitted, f"nobody sent entry {entry_id} of ledger {ledger_id}"
            await store.read(ledger_id, entry_id)
        for entry_id in listed[:: max(1, len(listed) // 3)]:
            batch = await store.read_batch(ledger_id, entry_id, 100, 4096)
            starts, reason = scan_records(batch, 0, len(batch), 1 << 20)
            assert reason == "end"
            for index, start in enumerate(starts[:-1]):
                assert struct.unpack_from(">qq", batch, start + 4) == (ledger_id, entry_id + index)
            assert store.read_batch_resident(ledger_id, entry_id, 100, 4096) in (batch, None)
        try:
            await store.read(ledger_id, max(listed) + 1)
        except EntryNotFound:
            pass
        else:
            raise AssertionError("an entry that was never sent")

    async def _is_guarded(self, store: LedgerStore, ledger_id: int) -> bool:
        """Whether another key than the ledger's is refused."""
        try:
            store.fence(ledger_id, b"another", lambda error: None)
        except Unauthorized:
            return True
        return False

    async def is_fenced(self, store: LedgerStore, ledger_id: int) -> bool:
        entry_id = 1_000 + len(self.submitted)
        try:
            await self.add(store, ledger_id, {entry_id: entry_body(ledger_id, entry_id)})
        except LedgerFenced:
            return True
        except ReadFailed as error:
            raise AssertionError(f"ledger {ledger_id}: {error}") from error
        return False


Script = Callable[[LedgerStore, Promises], Awaitable[None]]


class WatchedDisk(SimDisk):
    """A disk that shows its state at calls, as a crash at the call would leave it.

    `watched`: numbers of the calls. `seen`: called at each of them, with its number.
    """

    watched = range(0)
    seen: Callable[[int], None] | None = None

    def enter(
        self,
        operation: str,
        path: str,
        offset: int = 0,
        size: int = 0,
        *,
        target: str = "",
        partly: Callable[[float], None] | None = None,
    ) -> None:
        if self.seen is not None and not self.is_down and self.call_count + 1 in self.watched:
            drawn = self.random.getstate()
            if partly is not None:
                partly(self.random.random())  # The whole write follows, and gives what it would have given.
            self.call_count += 1
            self.seen(self.call_count)
            self.call_count -= 1
            self.random.setstate(drawn)
        super().enter(operation, path, offset, size, target=target, partly=partly)


class Machine:
    """A disk, and a storage that lives on it again and again."""

    def __init__(
        self, seed: object = 0, *, journals: int = 1, ledgers: int = 1, is_logging: bool = False, **settings: object
    ) -> None:
        self.seed = seed
        self.disk = WatchedDisk(Random(f"{seed}/disk"), is_logging=is_logging)
        self.promises = Promises()
        self.failures: list[BaseException] = []
        self.lives = 0
        self.mean_ms = 0.05
        self.config = BookieConfig(
            journal_directories=tuple(f"/journal{number}" for number in range(journals)),
            ledger_directories=tuple(f"/ledgers{number}" for number in range(ledgers)),
            **(SETTINGS | settings),  # type: ignore[arg-type]
        )

    def live(self, script: Script, *, crash_at: int | None = None, stops: bool = True) -> bool:
        """Start, run the script, stop in the orderly way. Returns False if the crash came first.

        `crash_at`: number of the disk call, from the start of this life on, at which the power fails.
        """
        self.lives += 1
        loop = SimLoop()
        participant = Participant(loop, "bookie")
        runtime = Runtime(
            SimClock(loop, self.lives * 100_000),
            cast(Network, None),
            self.disk,
            SimWorkers(Random(f"{self.seed}/{self.lives}/workers"), mean_ms=self.mean_ms),
            Random(f"{self.seed}/{self.lives}"),
        )

        async def life() -> None:
            store = LedgerStore(runtime, self.config, self.failures.append)
            store.databases = SimDatabases(self.disk)
            await store.start()
            try:
                await script(store, self.promises)
                if stops:
                    await store.stop()
            finally:
                store.abort()

        async def main() -> bool:
            crashed: asyncio.Future[None] = loop.create_future()

            def crash() -> None:
                participant.kill()
                crashed.set_result(None)

            self.disk.on_crash = crash
            if crash_at is not None:
                self.disk.crash_at = self.disk.call_count + crash_at
            task = participant.create_task(life())
            finished = loop.create_future()
            task.add_done_callback(lambda _: finished.set_result(None), context=loop.world.copy())
            await asyncio.wait([crashed, finished], return_when=asyncio.FIRST_COMPLETED)
            self.disk.crash_at = None
            if crashed.done():
                return False
            task.result()
            return True

        try:
            completed = loop.run(main())
            assert not loop.errors, loop.errors
            return completed
        finally:
            loop.close()

    def crash(self, loss: Loss) -> None:
        self.disk.crash(loss)

    def victims(
        self, script: Script, first: int = 1, step: int = 1, *, stops: bool = True
    ) -> list[tuple[int, Callable[[], Machine]]]:
        """Live to the end. Return for every `step`-th disk call from `first` on its number, from the start of this
        life on, and a function that makes machines whose power has failed there.

        They are in the state after `live(script, crash_at=number)`: until its crash each such life would be this one.
        """
        disk, begun = self.disk, self.disk.call_count
        images: list[tuple[int, bytes]] = []

        def seen(number: int) -> None:
            kept = disk.seen, disk.on_crash, disk.open_files, disk.locks
            disk.seen, disk.on_crash, disk.open_files, disk.locks = None, None, {}, {}
            images.append((number - begun, pickle.dumps(self)))
            disk.seen, disk.on_crash, disk.open_files, disk.locks = kept

        disk.watched, disk.seen = range(begun + first, 1 << 60, step), seen
        assert self.live(script, stops=stops)
        disk.seen = None
        return [(number, partial(pickle.loads, image)) for number, image in images]

    def copies(self) -> Callable[[], Machine]:
        """Return a function that makes machines in this state. A sweep so shares the lives before its crashes."""
        assert not self.disk.open_files
        self.disk.on_crash = None
        return copies_of(self)

    def check(self, lives: int = 2) -> None:
        """A life in which only the promises are checked; then another after an orderly stop."""
        for _ in range(lives):
            assert self.live(lambda store, promises: promises.check(store))
        assert not self.disk.open_files, f"left open: {self.disk.open_files}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of a module with `BOTH_INDEXES_BUT` on index files and on databases, but for those it names.

    Those in `ALSO_SPLIT` run on databases in two directories too.
    """
    but = getattr(metafunc.module, "BOTH_INDEXES_BUT", None)
    name = metafunc.function.__name__
    if but is not None and "machine" in metafunc.fixturenames and name not in but:
        split = [SPLIT] if name in getattr(metafunc.module, "ALSO_SPLIT", ()) else []
        metafunc.parametrize("machine", [*LEDGER_INDEXES, *split], indirect=True)


@pytest.fixture
def machine(request: pytest.FixtureRequest) -> Callable[..., Machine]:
    kind = getattr(request, "param", "files")
    if kind == SPLIT:
        return partial(Machine, ledger_index=ROCKSDB, ledgers=2)
    return partial(Machine, ledger_index=kind)


@pytest.fixture
def body() -> Callable[..., bytes]:
    return entry_body
