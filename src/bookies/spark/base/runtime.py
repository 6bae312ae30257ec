"""The client inside a Spark worker: one event loop thread and one connection pool per process, reused by its tasks.

Workers are forked and a fork carries no threads, so the cache is bound to the process id. Spark ends an idle worker
without notice, so no part relies on being closed. Source: spark 1.2 and 3.5.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from bookies.distributedlog.formats.log_names import is_namespace
from bookies.errors import BookieUnreachable
from bookies.model import BookieId

if TYPE_CHECKING:
    from bookies.client.base.locations import Nearby
    from bookies.client.client import Client
    from bookies.client.transport import BookiePool
    from bookies.config import ClientConfig
    from bookies.distributedlog import Namespace
    from bookies.runtime import ports
    from bookies.spark.base.plan import Address

T = TypeVar("T")
_Key = tuple[str, "ClientConfig"]  # URI, settings
_worker: Worker | None = None
_END = object()


class Worker:
    """An event loop on its own thread that runs until the process ends."""

    def __init__(self) -> None:
        from bookies.runtime import aio
        from bookies.runtime.memory import collect_rarely, keep_freed_memory

        keep_freed_memory()
        collect_rarely()
        self.pid = os.getpid()
        self.runtime = aio.runtime()
        self.loop = aio.new_event_loop()
        self._clients: dict[_Key, asyncio.Task[Client]] = {}
        self._namespaces: dict[_Key, asyncio.Task[Namespace]] = {}
        self._pools: dict[_Key, tuple[BookiePool, dict[str, Address]]] = {}
        self._files: ports.Worker | None = None
        thread = threading.Thread(target=self.loop.run_forever, name="bookies", daemon=True)
        thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its end. Interrupting the wait cancels it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def client(self, uri: str, config: ClientConfig) -> Client:
        """Return the client with these settings, shared by the whole process. Call on the loop.

        `uri`: of a metadata store, or of a namespace of DistributedLog. Raises what connecting raises; the next call
        tries again.
        """
        if is_namespace(uri):
            return (await self.namespace(uri, config)).client
        return await self._shared(self._clients, (uri, config), lambda: self.new_client(uri, config).open_session())

    async def namespace(self, uri: str, config: ClientConfig) -> Namespace:
        """Return the namespace with these settings, shared by the whole process. Call on the loop. See `client`."""
        from bookies.distributedlog import open_namespace

        async def opened() -> Namespace:
            return await open_namespace(uri, config=config)

        return await self._shared(self._namespaces, (uri, config), opened)

    async def _shared(
        self, tasks: dict[_Key, asyncio.Task[T]], key: _Key, make: Callable[[], Coroutine[Any, Any, T]]
    ) -> T:
        opening = tasks.get(key)
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception() is not None)):
            opening = tasks[key] = self.loop.create_task(make())
        return await asyncio.shield(opening)

    def pool(self, uri: str, config: ClientConfig, addresses: Mapping[str, Address]) -> BookiePool:
        """Return connections to the bookies at these addresses, shared by all tasks of the process. Call on the loop.

        The metadata store is asked only for bookies that are not among them. Near bookies are those near this process.
        """
        from bookies.client.base.locations import Nearby
        from bookies.client.transport import BookiePool
        from bookies.config import ClientConfig
        from bookies.configuration import configured

        key = uri, config
        if key not in self._pools:
            known: dict[str, Address] = {}

            async def ask(bookie: str) -> Address | None:
                return (await addresses_of(await self.client(uri, config))).get(bookie)

            here = replace(config, location=config.location or configured(ClientConfig).location)
            nearby = Nearby(self.runtime, here)
            self._pools[key] = BookiePool(self.runtime, config, resolver(known, ask), nearby=nearby), known
        pool, known = self._pools[key]
        if not addresses.items() <= known.items():
            known.update(addresses)
            update_nearby(pool.nearby, config, known)
        return pool

    def files(self) -> ports.Worker:
        """Return a thread for blocking file calls, shared by all tasks of the process. Call on the loop."""
        if self._files is None:
            self._files = self.runtime.workers.start("files")
        return self._files

    def new_client(self, uri: str, config: ClientConfig | None = None) -> Client:
        """Return a client of the caller's own that is not open yet. Raises `ConfigError`."""
        from bookies.client.client import Client
        from bookies.metadata.uri import connect

        return Client(self.runtime, connect(uri, self.runtime), config)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop without waiting for it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def iterate(
        self, make: Callable[[], AsyncGenerator[T, None]], size_of: Callable[[T], int], size_max: int
    ) -> Iterator[T]:
        """Yield the items of the asynchronous generator, fetched ahead by at most `size_max` bytes or one item."""
        return _Ahead(self, make, size_of, size_max).items()


class _Ahead(Generic[T]):
    """A bounded channel from a coroutine on the loop to the thread that iterates."""

    def __init__(
        self, worker: Worker, make: Callable[[], AsyncGenerator[T, None]], size_of: Callable[[T], int], size_max: int
    ) -> None:
        self._worker, self._make, self._size_of, self._size_max = worker, make, size_of, size_max
        self._items: queue.SimpleQueue[tuple[Any, int]] = queue.SimpleQueue()
        self._put = 0  # bytes; written on the loop's thread only
        self._taken = 0  # bytes; written on the iterating thread only
        self._is_waiting = False
        self._room = asyncio.Event()

    def items(self) -> Iterator[T]:
        task = asyncio.run_coroutine_threadsafe(self._fetch(), self._worker.loop)
        try:
            while True:
                item, size = self._items.get()
                if item is _END:
                    task.result()
                    return
                yield item
                self._taken += size
                # Waking the loop costs more than a batch. Wake it only if it waits and half of the space is free.
                if self._is_waiting and 2 * (self._put - self._taken) <= self._size_max:
                    self._worker.loop.call_soon_threadsafe(self._room.set)
        finally:
            task.cancel()

    async def _fetch(self) -> None:
        try:
            async with contextlib.aclosing(self._make()) as items:
                async for item in items:
                    size = self._size_of(item)
                    while not self._has_room(size):
                        self._room.clear()
                        self._is_waiting = True
                        if not self._has_room(size):  # The other thread may have taken one before it saw the flag.
                            await self._room.wait()
                        self._is_waiting = False
                    self._put += size
                    self._items.put((item, size))
        finally:
            self._items.put((_END, 0))

    def _has_room(self, size: int) -> bool:
        ahead = self._put - self._taken
        return ahead == 0 or ahead + size <= self._size_max


def worker() -> Worker:
    """Return this process's worker."""
    global _worker
    if _worker is None or _worker.pid != os.getpid():
        _worker = Worker()
    return _worker


async def addresses_of(client: Client) -> dict[str, Address]:
    """Return the address of each registered bookie."""
    addresses = {}
    for bookie in await client.bookies():
        if bookie.address:
            host, _, port = bookie.address.rpartition(":")
            addresses[str(bookie.id)] = (host, int(port), bookie.location or "")
    return addresses


def resolver(
    addresses: dict[str, Address], ask: Callable[[str], Awaitable[Address | None]]
) -> Callable[[str], Coroutine[Any, Any, tuple[str, int]]]:
    """Return a function that resolves bookies to `addresses`, which come from the partition.

    `ask` is called for bookies that are not among them.
    """

    async def resolve(bookie: str) -> tuple[str, int]:
        if bookie not in addresses:
            address = await ask(bookie)
            if address is None:
                raise BookieUnreachable("is not registered, so it is down: start it", bookie=bookie)
            addresses[bookie] = address
        return addresses[bookie][:2]

    return resolve


def update_nearby(nearby: Nearby, config: ClientConfig, addresses: Mapping[str, Address]) -> None:
    """Let a task know where the bookies are, as the driver knew it, and where its own host is.

    That is `location`, else what `fault_domains` has for this host, else where a bookie on this host is.
    """
    from bookies.client.base.locations import policy_of
    from bookies.protocol.placement.topology import Topology, parse_fault_domains

    hosts = {BookieId(bookie): host for bookie, (host, _, _) in addresses.items()}
    topology = Topology({bookie: location for bookie, (_, _, location) in addresses.items() if location}, hosts)
    nearby.update(topology, policy_of(config, topology).kind, parse_fault_domains(config.fault_domains), hosts)
