"""A bookie with its real storage on a simulated disk, network and clock, and clients that send what they like."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from random import Random
from typing import Any, TypeVar

import pytest
from tests.fakes.adds import add_request
from tests.fakes.kerberos import FakeKerberos

from bookies.bookie.server import BookieServer
from bookies.config import BookieConfig
from bookies.errors import MetadataCorrupt
from bookies.kernels import Records
from bookies.lab.sim.world import Trace
from bookies.lab.sim.world.cluster import SimClock
from bookies.lab.sim.world.disk import SimDisk
from bookies.lab.sim.world.loop import Participant, SimLoop
from bookies.lab.sim.world.network import SimNetwork
from bookies.lab.sim.world.workers import SimWorkers
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.embedded.memory import MemoryStore
from bookies.metadata.interface.driver import Versioned
from bookies.model import DigestType
from bookies.runtime.ports import Runtime
from bookies.wire import digest
from bookies.wire.client import ResponseDecoder, encode_request
from bookies.wire.framing import FrameReader
from bookies.wire.messages import AddRequest, Request, Response

T = TypeVar("T")
SIZE_MAX = 5 << 20
KEY = digest.master_key(b"")


def package(ledger_id: int, entry_id: int, payload: bytes, *, lac: int | None = None) -> bytes:
    """An entry body with CRC32C and the empty password."""
    lac = entry_id - 1 if lac is None else lac
    return digest.package_entry(DigestType.CRC32C, b"", ledger_id, entry_id, lac, len(payload), payload)


def adds(ledger_id: int, entry_ids: Sequence[int], *, version: int = 2, size: int = 100, **fields: Any) -> AddRequest:
    """Adds of entries whose payload says who they are."""
    lac = fields.pop("lac", None)
    bodies = [package(ledger_id, each, b"%d/%d " % (ledger_id, each) * (size // 8), lac=lac) for each in entry_ids]
    last = max(entry_ids) - 1 if lac is None else lac
    txn_ids = [1000 + each for each in entry_ids] if version == 3 else None
    key = fields.pop("key", KEY)
    return add_request(version, ledger_id, key, entry_ids, Records.of(bodies), last, txn_ids=txn_ids, **fields)


class RawClient(asyncio.Protocol):
    """Sends bytes or requests; takes frames or responses apart, in the order of their arrival."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.is_lost = False
        self.has_ended = False
        self._reader = FrameReader(SIZE_MAX)
        self._news = asyncio.Event()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        buffer, starts = self._reader.feed(data)
        self.frames += [buffer[start:end] for start, end in itertools.pairwise(starts)]
        self._news.set()

    def eof_received(self) -> None:
        self.has_ended = True
        self._news.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        self._news.set()

    def send(self, *requests: Request) -> None:
        self.transport.write(b"".join(bytes(part) for request in requests for part in encode_request(request)))

    async def frame(self) -> bytes:
        """The next frame, its length word included."""
        while not self.frames:
            assert not self.is_lost, "the bookie closed the connection"
            self._news.clear()
            await self._news.wait()
        return self.frames.pop(0)

    async def response(self, wire: str = "v2") -> Response:
        (response,) = ResponseDecoder(wire, SIZE_MAX).feed(await self.frame())
        return response

    async def ask(self, request: Request) -> Response:
        self.send(request)
        return await self.response("v3" if request.version == 3 else "v2")

    async def add(self, batch: AddRequest) -> list[Response]:
        self.send(batch)
        wire = "v3" if batch.version == 3 else "v2"
        return [await self.response(wire) for _ in batch.adds.entry_ids]

    async def closed(self) -> None:
        """Wait for the end of what the bookie sends, and let go."""
        while not self.is_lost and not self.has_ended:
            self._news.clear()
            await self._news.wait()
        self.transport.close()
        while not self.is_lost:
            self._news.clear()
            await self._news.wait()


class WatchedDriver(MemoryDriver):
    """Metadata driver of a bookie. `asked`: the ledgers whose current records it was asked for, in order.

    `instead`: what it does in place of such an answer.
    """

    def __init__(self, store: MemoryStore, runtime: Runtime) -> None:
        super().__init__(store, runtime)
        self.asked: list[int] = []
        self.instead: Callable[[], Awaitable[object]] | None = None

    async def current_ledgers(
        self, ledger_ids: Sequence[int], known: Sequence[Versioned] = ()
    ) -> list[Versioned | MetadataCorrupt | None]:
        self.asked += ledger_ids
        if self.instead is not None:
            await self.instead()
        return await super().current_ledgers(ledger_ids, known)


class World:
    """One host for bookies, one for clients. `run` gives a coroutine the world; virtual time makes waiting free."""

    def __init__(self, seed: int = 1, capacity: int = 64 << 20) -> None:
        self.kerberos = FakeKerberos()
        self.loop = SimLoop()
        self.network = SimNetwork(self.loop, Trace(self.loop.time), Random(seed))
        self.disk = SimDisk(Random(seed), capacity=capacity)
        self.workers = SimWorkers(Random(seed))
        self.metadata = MemoryStore()
        self.bookie_host = Participant(self.loop, "bookie")
        self.client_host = Participant(self.loop, "client")
        self.settings: dict[str, Any] = {
            "bookie_id": "b1",
            "gc_interval_ms": 0,
            "scrub_period_ms": 0,
            "host": "bookie",
            "port": 3181,
            "journal_directories": ("/journal",),
            "ledger_directories": ("/ledgers",),
            "journal_preallocate_size": 16 << 10,
            "journal_size_max": 4 << 20,
            "entry_log_size_max": 16 << 20,
        }
        self._started: list[tuple[BookieServer, WatchedDriver]] = []

    def runtime(self, host: str) -> Runtime:
        ports = SimClock(self.loop, 0), self.network.port(host), self.disk, self.workers, Random(7)
        return Runtime(*ports, kerberos=lambda: self.kerberos)

    async def new_server(self, **settings: Any) -> BookieServer:
        """A server with an open metadata session, not started."""
        runtime = self.runtime("bookie")
        driver = WatchedDriver(self.metadata, runtime)
        await driver.open()
        server = BookieServer(runtime, BookieConfig(**(self.settings | settings)), driver)
        self._started.append((server, driver))
        return server

    async def start(self, **settings: Any) -> BookieServer:
        server = await self.on_bookie(self.new_server(**settings))
        await self.on_bookie(server.start())
        return server

    @property
    def servers(self) -> list[BookieServer]:
        return [server for server, _ in self._started]

    @property
    def drivers(self) -> list[WatchedDriver]:
        return [driver for _, driver in self._started]

    def forget_last(self) -> tuple[BookieServer, WatchedDriver]:
        """The last server and its session: `run` does not stop it at the end."""
        return self._started.pop()

    async def on_bookie(self, body: Coroutine[Any, Any, T]) -> T:
        return await self.bookie_host.create_task(body)

    async def connect(self, server: BookieServer) -> RawClient:
        async def connect() -> RawClient:
            _, protocol = await self.network.port("client").connect(*server.address, RawClient)
            assert isinstance(protocol, RawClient)
            return protocol

        return await self.client_host.create_task(connect())

    def run(self, body: Callable[[World], Coroutine[Any, Any, T]]) -> T:
        async def main() -> T:
            try:
                return await self.client_host.create_task(body(self))
            finally:
                for server, driver in self._started:
                    await self.on_bookie(server.stop())
                    await self.on_bookie(driver.close())

        try:
            return self.loop.run(main())
        finally:
            self.loop.close()


@pytest.fixture
def world() -> Iterator[World]:
    return World()
