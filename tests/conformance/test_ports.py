"""One suite for the ports, over the real world and over the simulator: what shells may rely on in both."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from bookies.errors import DirectoryInUse, DiskFull
from bookies.lab.sim.world import Trace
from bookies.lab.sim.world.disk import NOTHING_SURVIVES, SimDisk
from bookies.lab.sim.world.loop import Participant, SimLoop
from bookies.lab.sim.world.network import SimNetwork
from bookies.lab.sim.world.workers import SimWorkers
from bookies.runtime import aio
from bookies.runtime.files import OsDisk
from bookies.runtime.ports import Disk, Network, Worker, Workers
from bookies.runtime.threads import ThreadWorkers

# -- Disk and File ---------------------------------------------------------------------------------------------------


@pytest.fixture(params=["os", "sim"])
def disk(request: pytest.FixtureRequest) -> Disk:
    return OsDisk() if request.param == "os" else SimDisk(Random(1))


@pytest.fixture
def root(disk: Disk, tmp_path: pathlib.Path) -> str:
    path = str(tmp_path / "root")
    disk.make_directories(path)
    return path


def test_modes_of_open(disk: Disk, root: str) -> None:
    path = f"{root}/a"
    for mode in ("r", "r+"):
        with pytest.raises(FileNotFoundError):
            disk.open(path, mode)
    file = disk.open(path, "x+")
    file.pwrite(b"hello", 0)
    file.close()
    with pytest.raises(FileExistsError):
        disk.open(path, "x+")
    for mode in ("r", "r+", "w+"):
        file = disk.open(path, mode)
        assert file.path == path
        assert file.pread(10, 0) == b"hello", f"{mode} does not truncate"
        file.close()
        file.close()
    with pytest.raises(FileNotFoundError):
        disk.open(f"{root}/missing/a", "w+")


def test_reads_are_short_only_at_the_end(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/a", "x+")
    file.pwrite(b"0123456789", 0)
    assert file.pread(4, 3) == b"3456"
    assert file.pread(100, 7) == b"789"
    assert file.pread(4, 10) == b""
    assert file.pread(4, 1000) == b""
    assert file.pread(0, 0) == b""
    assert file.size() == 10
    file.close()


def test_holes_read_as_zeros(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/a", "x+")
    file.pwrite(b"end", 600)
    assert file.pread(603, 0) == bytes(600) + b"end"
    file.close()


@pytest.mark.parametrize("count", [1, 3, 1024, 1025, 3000])
def test_many_buffers_in_one_write(disk: Disk, root: str, count: int) -> None:
    parts: list[bytes | bytearray | memoryview] = []
    for number in range(count):
        data = b"%06d" % number
        parts.append((data, bytearray(data), memoryview(data))[number % 3])
    file = disk.open(f"{root}/a", "x+")
    file.pwritev(parts, 7)
    assert file.size() == 7 + 6 * count
    assert file.pread(6 * count, 7) == b"".join(bytes(part) for part in parts)
    file.close()


def test_truncate_and_allocate(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/a", "x+")
    file.pwrite(b"0123456789", 0)
    file.truncate(4)
    assert file.pread(100, 0) == b"0123"
    file.allocate(2, 100)
    assert file.size() == 102
    assert file.pread(200, 0) == b"0123" + bytes(98)
    file.allocate(0, 10)
    assert file.size() == 102
    file.truncate(200)
    assert file.pread(200, 102) == bytes(98)
    file.fdatasync()
    file.fsync()
    file.drop_cache(0, 200)
    assert file.size() == 200
    file.close()


def test_what_is_skipped_on_the_way_to_the_next_data_is_zeros(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/a", "x+")
    assert file.next_data(0) == 0
    file.pwrite(b"front", 3)
    file.pwrite(b"back", 1_000_000)
    file.truncate(2_000_000)
    assert file.next_data(0) <= 3
    assert file.next_data(5) <= 1_000_000
    assert file.next_data(1_000_003) == 1_000_003
    assert 1_000_004 <= file.next_data(1_000_004) <= 2_000_000
    for offset in (2_000_000, 3_000_000):
        assert file.next_data(offset) == 2_000_000
    file.close()


def test_directories_and_names(disk: Disk, root: str) -> None:
    assert disk.list(root) == []
    disk.make_directories(f"{root}/x/y/z")
    disk.make_directories(f"{root}/x/y")
    assert disk.is_directory(f"{root}/x/y/z")
    assert not disk.is_directory(f"{root}/x/nothing")
    for name in ("b", "a", "c"):
        disk.open(f"{root}/{name}", "x+").close()
    assert disk.list(root) == ["a", "b", "c", "x"]
    assert disk.exists(f"{root}/a")
    assert not disk.is_directory(f"{root}/a")
    disk.rename(f"{root}/a", f"{root}/b")
    assert disk.list(root) == ["b", "c", "x"]
    disk.link(f"{root}/b", f"{root}/d")
    disk.unlink(f"{root}/b")
    disk.sync_directory(root)
    assert disk.list(root) == ["c", "d", "x"]
    with pytest.raises(FileExistsError):
        disk.link(f"{root}/c", f"{root}/d")
    for call in (disk.unlink, disk.list, disk.sync_directory, disk.read_bytes):
        with pytest.raises(FileNotFoundError):
            call(f"{root}/nothing")
    with pytest.raises(FileNotFoundError):
        disk.rename(f"{root}/nothing", f"{root}/e")


@pytest.mark.parametrize("count", [2, 60])
def test_syncing_many_at_once(disk: Disk, root: str, count: int) -> None:
    """Names and bytes are there afterwards; in the simulated disk they would survive a crash."""
    lock = disk.lock_directory(root)
    paths = [f"{root}/{number}/a" for number in range(count)]
    disk.make_directories(*[f"{root}/{number}" for number in range(count)])
    files = [disk.open(path, "x+") for path in paths]
    for file in files:
        file.pwrite(b"hello", 0)
    disk.sync_many(files, [f"{root}/{number}" for number in range(count)])
    disk.sync_many([], [])
    for file in files:
        file.close()
    lock.release()
    if isinstance(disk, SimDisk):
        disk.crash(NOTHING_SURVIVES)
    assert [disk.read_bytes(path) for path in paths] == [b"hello"] * count


def test_removing_directories(disk: Disk, root: str) -> None:
    disk.make_directories(f"{root}/a/b")
    with pytest.raises(OSError, match="not empty"):
        disk.remove_directory(f"{root}/a")
    disk.remove_directory(f"{root}/a/b")
    assert disk.list(f"{root}/a") == []
    disk.remove_directory(f"{root}/a")
    assert not disk.exists(f"{root}/a")
    with pytest.raises(FileNotFoundError):
        disk.remove_directory(f"{root}/a")


def test_what_is_below_a_directory_is_on_its_device(disk: Disk, root: str) -> None:
    disk.make_directories(f"{root}/a/b")
    assert disk.device(root) == disk.device(f"{root}/a/b")
    with pytest.raises(FileNotFoundError):
        disk.device(f"{root}/missing")


def test_an_open_file_survives_its_name(disk: Disk, root: str) -> None:
    file = disk.open(f"{root}/a", "x+")
    file.pwrite(b"still here", 0)
    disk.unlink(f"{root}/a")
    assert not disk.exists(f"{root}/a")
    assert file.pread(10, 0) == b"still here"
    file.close()


def test_replace_bytes(disk: Disk, root: str) -> None:
    path = f"{root}/state"
    disk.replace_bytes(path, b"one, and longer")
    disk.replace_bytes(path, b"two")
    assert disk.read_bytes(path) == b"two"
    assert disk.list(root) == ["state"], "the temporary name is gone"
    with pytest.raises(FileNotFoundError):
        disk.replace_bytes(f"{root}/missing/state", b"")


def test_usage(disk: Disk, root: str) -> None:
    total, usable = disk.usage(root)
    assert 0 < usable <= total


def test_directory_lock_is_exclusive_until_released(disk: Disk, root: str) -> None:
    lock = disk.lock_directory(root)
    with pytest.raises(DirectoryInUse, match="in use"):
        disk.lock_directory(root)
    lock.release()
    lock.release()
    again = disk.lock_directory(root)
    again.release()
    with pytest.raises(FileNotFoundError):
        disk.lock_directory(f"{root}/nothing")


def test_full_disk(tmp_path: pathlib.Path) -> None:
    disk = SimDisk(Random(1), capacity=4096)
    disk.make_directories("/d")
    file = disk.open("/d/a", "x+")
    with pytest.raises(DiskFull, match="/d/a"):
        file.pwrite(bytes(10_000), 0)


def test_full_device_names_the_path() -> None:
    file = OsDisk().open("/dev/full", "r+")
    with pytest.raises(DiskFull, match="/dev/full"):
        file.pwrite(b"x", 0)
    with pytest.raises(DiskFull, match="/dev/full"):
        file.pwritev([b"x", b"y"], 0)
    file.close()


# -- Workers and Network: on the loop of their world -----------------------------------------------------------------

Body = Callable[[Workers, Network, str], Coroutine[Any, Any, None]]


def run_real(body: Body) -> None:
    asyncio.run(body(ThreadWorkers(), aio.AsyncioNetwork(), "127.0.0.1"))


def run_uvloop(body: Body) -> None:
    aio.run(body(ThreadWorkers(), aio.AsyncioNetwork(), "127.0.0.1"))


def run_sim(body: Body) -> None:
    loop = SimLoop()
    network = SimNetwork(loop, Trace(loop.time), Random(2))
    participant = Participant(loop, "host")

    async def main() -> None:
        await participant.create_task(body(SimWorkers(Random(3)), network.port("host"), "host"))

    try:
        loop.run(main())
    finally:
        loop.close()


@pytest.fixture(params=[run_real, run_uvloop, run_sim], ids=["asyncio", "uvloop", "sim"])
def world(request: pytest.FixtureRequest) -> Callable[[Body], None]:
    result: Callable[[Body], None] = request.param
    return result


def test_worker_runs_in_order(world: Callable[[Body], None]) -> None:
    async def body(workers: Workers, network: Network, host: str) -> None:
        worker: Worker = workers.start("one")
        done: list[int] = []
        futures = [worker.run(done.append, number) for number in range(100)]
        resolved: list[int] = []
        for number, future in enumerate(futures):
            future.add_done_callback(lambda _, number=number: resolved.append(number))
        futures[50].cancel()
        assert await worker.run(sum, [1, 2, 3]) == 6
        assert done == list(range(100)), "a cancelled future does not stop its call"
        assert [number for number in resolved if number != 50] == [n for n in range(100) if n != 50]
        with pytest.raises(ZeroDivisionError):
            await worker.run(divmod, 1, 0)
        last = worker.run(done.append, 100)
        worker.close()
        worker.close()
        assert done[-1] == 100, "close runs what is queued"
        await last

    world(body)


class Echo(asyncio.Protocol):
    """Sends back what it gets, and its end."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        assert isinstance(data, bytes)
        self.transport.write(data)  # type: ignore[attr-defined]


class CollectionLoop(asyncio.Protocol):
    def __init__(self) -> None:
        self.received = b""
        self.wanted = 0
        self.arrived = asyncio.get_running_loop().create_future()
        self.lost = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.received += data
        if len(self.received) >= self.wanted and not self.arrived.done():
            self.arrived.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(error)


def test_streams_arrive_in_order_and_end(world: Callable[[Body], None]) -> None:
    async def body(workers: Workers, network: Network, host: str) -> None:
        listener = await network.listen(host, 0, Echo)
        assert listener.address[1] > 0
        transport, protocol = await network.connect(host, listener.address[1], CollectionLoop)
        assert isinstance(protocol, CollectionLoop)
        assert transport.get_extra_info("peername")[1] == listener.address[1]
        data = Random(5).randbytes(300_000)
        protocol.wanted = len(data)
        transport.write(data[:1000])
        transport.writelines([data[1000:5000], memoryview(data)[5000:]])
        await protocol.arrived
        assert protocol.received == data
        transport.close()
        assert await protocol.lost is None
        listener.close()
        await listener.wait_closed()
        with pytest.raises(OSError):
            await network.connect(host, listener.address[1], CollectionLoop)

    world(body)


def test_port_in_use(world: Callable[[Body], None]) -> None:
    async def body(workers: Workers, network: Network, host: str) -> None:
        listener = await network.listen(host, 0, Echo)
        with pytest.raises(OSError) as caught:
            await network.listen(host, listener.address[1], Echo)
        assert caught.value.errno == 98
        listener.close()
        await listener.wait_closed()
        again = await network.listen(host, listener.address[1], Echo)
        again.close()
        await again.wait_closed()

    world(body)


def test_paused_reader_gets_everything_later(world: Callable[[Body], None]) -> None:
    async def body(workers: Workers, network: Network, host: str) -> None:
        listener = await network.listen(host, 0, Echo)
        transport, protocol = await network.connect(host, listener.address[1], CollectionLoop)
        assert isinstance(protocol, CollectionLoop)
        transport.pause_reading()
        protocol.wanted = 5
        transport.write(b"hello")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await asyncio.shield(protocol.arrived)
        assert protocol.received == b""
        transport.resume_reading()
        await protocol.arrived
        transport.close()
        await protocol.lost
        listener.close()
        await listener.wait_closed()

    world(body)
