"""Auto-recovery's state when the store's answers are lost: all is as if they were not, and nothing stays locked."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import pytest
from tests.fakes import etcd, zookeeper

from bookies.errors import MetadataError
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.embedded.memory import MemoryStore
from bookies.metadata.etcd import EtcdDriver
from bookies.metadata.interface import MetadataDriver, RecoveryStore
from bookies.metadata.interface.recovery_store import LedgerLock
from bookies.metadata.zookeeper import ZkCluster, ZooKeeperDriver
from bookies.model import BookieId
from bookies.runtime import aio

A, B = BookieId("bk-a:3181"), BookieId("bk-b:3181")


class Server(Protocol):
    lost_requests: int
    lost_replies: int
    is_silent: bool


class LossyMemory:
    """A memory store whose answers, or requests, are lost as those of the others."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.lost_requests = 0
        self.lost_replies = 0
        self.is_silent = False

    async def before(self, operation: str, driver: MemoryDriver) -> None:
        if self.is_silent or (self.lost_requests and not operation.startswith(("read", "nodes", "watch"))):
            self.lost_requests -= bool(self.lost_requests)
            raise MetadataError("the request was lost")

    async def after(self, operation: str, driver: MemoryDriver) -> None:
        if self.lost_replies and not operation.startswith(("read", "nodes", "watch")):
            self.lost_replies -= 1
            raise MetadataError("the reply was lost")


def make(name: str) -> tuple[Server, Callable[[], MetadataDriver]]:
    runtime = aio.runtime(seed=1)
    if name == "memory":
        memory = LossyMemory()
        return memory, lambda: MemoryDriver(memory.store, runtime, faults=memory)
    if name == "etcd":
        keys = etcd.Server("/x")
        return keys, lambda: EtcdDriver("etcd://fake/x", etcd.FakeEtcd(keys), runtime, "/x", lease_ms=10_000)
    server = zookeeper.Server("/x")
    return server, lambda: ZooKeeperDriver(
        "zk://fake/x", zookeeper.FakeZooKeeper(server), runtime, ZkCluster("/x"), lease_ms=10_000
    )


@pytest.fixture(params=["memory", "zookeeper", "etcd"])
def store(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def play(store: str, body: Callable[[Server, RecoveryStore, RecoveryStore], Awaitable[None]]) -> None:
    async def main() -> None:
        server, new_driver = make(store)
        drivers = [new_driver(), new_driver()]
        for driver in drivers:
            await driver.open()
        try:
            async with asyncio.timeout(120):
                await body(server, drivers[0].recovery, drivers[1].recovery)
        finally:
            for driver in drivers:
                await driver.close()

    asyncio.run(main())


def lose(server: Server, what: str, count: int = 1) -> None:
    setattr(server, what, count)


async def at_last(operation: Callable[[], Awaitable[Any]]) -> Any:
    """As whoever goes on after a failure that can be retried."""
    while True:
        try:
            return await operation()
        except MetadataError as error:
            if not error.retriable:
                raise


async def until(operation: Callable[[], Awaitable[Any]]) -> Any:
    """What comes of it when something does. What is to be waited for goes on in the background of a driver."""
    while True:
        found = await operation()
        if found:
            return found
        await asyncio.sleep(0.001)


async def is_none(operation: Awaitable[Any]) -> bool:
    return not await operation


@pytest.mark.parametrize("what", ["lost_requests", "lost_replies"])
def test_marks(store: str, what: str) -> None:
    async def body(server: Server, one: RecoveryStore, two: RecoveryStore) -> None:
        await two.mark(1, [A], 1)
        for replicas in ([A], [B, A]):
            lose(server, what)
            is_new = await at_last(lambda replicas=replicas: one.mark(5, replicas, 1))
            assert is_new or store == "memory"
        mark = await two.mark_of(5)
        assert mark is not None
        assert mark.replicas == (A, B)
        lose(server, what)
        assert await at_last(lambda: one.unmark(mark)) or store == "memory"
        assert await two.mark_of(5) is None

    play(store, body)


@pytest.mark.parametrize("what", ["lost_requests", "lost_replies"])
def test_switch_and_delay(store: str, what: str) -> None:
    async def body(server: Server, one: RecoveryStore, two: RecoveryStore) -> None:
        await two.mark(1, [A], 1)
        for change, is_enabled in ((one.disable, False), (one.enable, True)):
            lose(server, what)
            assert await at_last(change) or store == "memory"
            assert await two.is_enabled() is is_enabled
        lose(server, what)
        assert await at_last(lambda: one.init_lost_bookie_delay_s(5)) == 5
        lose(server, what)
        await at_last(lambda: one.set_lost_bookie_delay_s(6))
        assert await two.lost_bookie_delay_s() == 6

    play(store, body)


@pytest.mark.parametrize("what", ["lost_requests", "lost_replies"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_locks(store: str, what: str, count: int) -> None:
    async def body(server: Server, one: RecoveryStore, two: RecoveryStore) -> None:
        await two.mark(5, [A], 1)
        for number in range(4):
            lose(server, what, count)
            lock = await until(lambda: at_last(lambda: one.lock(5, "one", needs_mark=True)))
            assert isinstance(lock, LedgerLock)
            lose(server, what, 0)
            assert await two.lock(5, "two", needs_mark=True) is None
            lose(server, what, count)
            if number % 2:
                await one.unlock(lock)
            else:
                await asyncio.gather(one.done(lock), return_exceptions=True)
            lose(server, what, 0)
            await two.mark(5, [A], 1)
            await two.unlock(await until(lambda: two.lock(5, "two", needs_mark=True)))
            assert await two.locks() == {}

    play(store, body)


@pytest.mark.parametrize("what", ["lost_requests", "lost_replies"])
def test_votes(store: str, what: str) -> None:
    async def body(server: Server, one: RecoveryStore, two: RecoveryStore) -> None:
        await two.mark(1, [A], 1)
        for _ in range(3):
            lose(server, what)
            candidacy = await at_last(lambda: one.campaign(A, lambda: None))
            assert await until(two.auditor) == A
            lose(server, what)
            await candidacy.resign()
            lose(server, what, 0)
            await until(lambda: is_none(two.auditor()))

    play(store, body)


def test_a_silent_store_keeps_nobody_from_giving_up(store: str) -> None:
    async def body(server: Server, one: RecoveryStore, two: RecoveryStore) -> None:
        await one.mark(5, [A], 1)
        lock = await one.lock(5, "one", needs_mark=True)
        assert lock is not None
        candidacy = await one.campaign(A, lambda: None)
        server.is_silent = True
        async with asyncio.timeout(60):
            await one.unlock(lock)
            await candidacy.resign()
        assert not one.is_held(lock)
        server.is_silent = False
        await until(lambda: is_none(two.auditor()))
        await until(lambda: is_none(two.locks()))

    play(store, body)
