"""A client's surroundings on virtual time: a network, fake bookies, a metadata store in memory."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, TypeVar

from tests.fakes.bookie import FakeBookie
from tests.fakes.scenes import scenes_of

from bookies.client.client import Client
from bookies.config import ClientConfig
from bookies.errors import LedgerNotFound
from bookies.lab.sim.world import Trace
from bookies.lab.sim.world.disk import SimDisk
from bookies.lab.sim.world.loop import SimLoop
from bookies.lab.sim.world.network import SimNetwork
from bookies.lab.sim.world.workers import SimWorkers
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.embedded.memory import MemoryStore
from bookies.metadata.interface.driver import Versioned
from bookies.model import BookieId, BookieInfo, BookieMode, Endpoint
from bookies.runtime.ports import Listener, Runtime

T = TypeVar("T")
PORT = 3181


class LoopClock:
    """`slept_s`: for how long the machine has slept, in which the loop's time stood still."""

    slept_s = 0.0

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + int(self._loop.time() * 1000)

    def monotonic(self) -> float:
        return self._loop.time()

    def with_sleep(self) -> float:
        return self._loop.time() + self.slept_s


class LaggingDriver(MemoryDriver):
    """A server that does not know the ledgers yet answers the plain reads."""

    async def read_ledger(self, ledger_id: int) -> Versioned:
        raise LedgerNotFound("no such ledger in the metadata store", ledger_id=ledger_id)


class World:
    """Bookies b1, b2, ... and clients. Everything inside runs on one virtual loop: see `play`."""

    def __init__(self, loop: SimLoop, bookie_count: int, seed: int = 1) -> None:
        self.loop = loop
        self.network = SimNetwork(loop, Trace(loop.time), Random(seed))
        self.store = MemoryStore("world")
        self.bookies: dict[BookieId, FakeBookie] = {}
        self._seed = seed
        self._listeners: dict[BookieId, Listener] = {}
        self._drivers: list[MemoryDriver] = []
        self._clients: list[Client] = []
        self._names = [BookieId(f"b{number}") for number in range(1, bookie_count + 1)]

    def runtime(self, host: str) -> Runtime:
        random = Random(f"{self._seed}/{host}")
        return Runtime(LoopClock(self.loop), self.network.port(host), SimDisk(), SimWorkers(random), random)

    async def start(self) -> None:
        for name in self._names:
            self.bookies[name] = FakeBookie()
            driver = MemoryDriver(self.store, self.runtime(name))
            self._drivers.append(driver)
            await driver.open()
            await driver.initialize_cluster()
            await self.listen(name)
            info = BookieInfo((Endpoint("bookie", name, PORT, "bookie-rpc"),))
            await driver.create_cookie(name, b"cookie")
            await driver.register(name, BookieMode.WRITABLE, info)

    async def listen(self, name: BookieId) -> None:
        """Let a bookie be reachable (again)."""
        self._listeners[name] = await self.network.port(name).listen(name, PORT, self.bookies[name].accept)

    async def take_down(self, name: BookieId) -> None:
        """Refuse connections and drop those there are; the bookie stays registered."""
        self._listeners[name].close()
        self.bookies[name].drop_connections()

    async def client(self, **settings: Any) -> Client:
        runtime = self.runtime(f"client{len(self._clients)}")
        client = Client(runtime, MemoryDriver(self.store, runtime), ClientConfig(**settings))
        self._clients.append(client)
        return await client.open_session()

    async def stop(self) -> None:
        for client in self._clients:
            await client.close()
        for driver in self._drivers:
            await driver.close()
        for listener in self._listeners.values():
            listener.close()


def play(
    act: Callable[[World], Coroutine[Any, Any, T]], bookie_count: int = 3, seed: int = 1, deadline_s: float = 600.0
) -> T:
    """Run `act` in a fresh world, on virtual time; nothing may be left behind, nothing may have failed unseen."""
    loop = SimLoop()

    async def main() -> T:
        world = World(loop, bookie_count, seed)
        await world.start()
        try:
            return await act(world)
        finally:
            await world.stop()

    try:
        result = loop.run(main(), deadline_s=deadline_s)
        assert not loop.errors, loop.errors
        return result
    finally:
        loop.close()


in_world = scenes_of(play)
