"""Auto-recovery's znodes: Apache's are read as they are, ours are the same, and nothing is left behind."""

from __future__ import annotations

import asyncio
import base64
import copy
import json
import pathlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from tests.fakes.zookeeper import FakeZooKeeper, Node, Server

from bookies.errors import MetadataCorrupt, MetadataError, SessionExpired
from bookies.metadata.interface.recovery_store import AuditKind, LedgerLock
from bookies.metadata.zookeeper import ZkCluster, ZooKeeperDriver
from bookies.metadata.zookeeper.zk_layout import RecoveryPaths
from bookies.metadata.zookeeper.zookeeper_port import (
    Acl,
    Create,
    Delete,
    Operation,
    Outcome,
    OutcomeUnknown,
    SetData,
    Stat,
)
from bookies.model import BookieId
from bookies.runtime import aio

GOLDEN = pathlib.Path(__file__).parents[3] / "golden" / "metadata"
ROOT = "/auto"
TOP = f"{ROOT}/underreplication"
LEDGERS = {0: 1795260632259, 1: 1795260632270, 12345678: 1795260632274}  # and when they were marked
CHECKED = {AuditKind.ALL_LEDGERS: 1795260625075, AuditKind.PLACEMENT: 1795260625196, AuditKind.REPLICAS: 1795260625205}
BK1, BK2, BK3 = BookieId("bk-1"), BookieId("bk-2"), BookieId("bk-3")
Tree = dict[str, tuple[bytes, bool, int, Acl]]  # data, whether it is ephemeral, version, who may do what


def golden(stage: str) -> Tree:
    """What Apache's auto-recovery left in ZooKeeper, without cluster and ledgers."""
    found = json.loads((GOLDEN / f"8-autorecovery-{stage}.json").read_text())
    return {
        each["path"]: (base64.b64decode(each["data"]), each["ephemeral"], each["version"], Acl(each["acl"][0][:-3]))
        for each in found["nodes"]
        if each["path"].startswith(TOP)
    }


def tree(server: Server) -> Tree:
    return {
        path: (node.data, node.owner != 0, node.version, node.acl)
        for path, node in sorted(server.nodes.items())
        if path.startswith(TOP)
    }


def put(server: Server, nodes: Tree) -> None:
    """As if somebody else had made these."""
    for path, (data, is_ephemeral, version, acl) in nodes.items():
        server.apply([Create(path, data, acl, is_ephemeral)], 99)
        for _ in range(version):
            server.apply([SetData(path, data)], 99)


class BehindZooKeeper(FakeZooKeeper):
    """After a lost answer its server is one that has not applied that change yet, until a read synchronizes.

    `meanwhile`: called once after a lost answer. `checked`: called once after a znode's stat was read.
    """

    meanwhile: Callable[[], Awaitable[object]] | None = None
    checked: Callable[[], Awaitable[object]] | None = None
    _applied: dict[str, Node] | None = None  # None: everything

    async def _change(self, operations: Sequence[Operation], only_in: int | None = None) -> tuple[int, list[Outcome]]:
        before = copy.deepcopy(self.server.nodes) if self.server.lost_replies else None
        try:
            return await super()._change(operations, only_in)
        except OutcomeUnknown:
            self._applied = before
            if (meanwhile := self.meanwhile) is not None:
                self.meanwhile = None
                await meanwhile()
            raise

    async def exists(self, path: str, *, sync: bool = False, watch: Callable[[], None] | None = None) -> Stat | None:
        if sync:
            self._applied = None
        stat = await super().exists(path, sync=sync, watch=watch)
        if self._applied is not None:
            stat = self._applied[path].stat() if path in self._applied else None
        if (checked := self.checked) is not None:
            self.checked = None
            await checked()
        return stat


class World:
    def __init__(self) -> None:
        self.server = Server(ROOT)
        self.drivers: list[ZooKeeperDriver] = []

    async def driver(self, client: FakeZooKeeper | None = None) -> ZooKeeperDriver:
        client = client or FakeZooKeeper(self.server)
        driver = ZooKeeperDriver("zk://fake/auto", client, aio.runtime(seed=1), ZkCluster(ROOT), lease_ms=2000)
        await driver.open()
        self.drivers.append(driver)
        return driver


def play(body: Callable[[World], Awaitable[None]]) -> None:
    async def main() -> None:
        world = World()
        try:
            async with asyncio.timeout(120):
                await body(world)
        finally:
            for driver in world.drivers:
                await driver.close()

    asyncio.run(main())


async def lock_of(driver: ZooKeeperDriver, ledger_id: int) -> LedgerLock:
    lock = await driver.recovery.lock(ledger_id, "localhost", needs_mark=True)
    assert lock is not None
    return lock


# -- Apache's znodes -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ledger_id", "path"),
    [
        (5, "0000/0000/0000/0005/urL0000000005"),
        (12345678, "0000/0000/00bc/614e/urL0012345678"),
        (2147483647, "0000/0000/7fff/ffff/urL2147483647"),
        (4294967297, "0000/0001/0000/0001/urL4294967297"),
    ],
)
def test_paths_of_marks(ledger_id: int, path: str) -> None:
    places = RecoveryPaths("/x")
    assert places.mark(ledger_id) == f"/x/ledgers/{path}"
    assert places.marked_in(places.mark(ledger_id).rpartition("/")[0]) == ledger_id


def test_what_apache_has_left_is_read() -> None:
    async def body(world: World) -> None:
        put(world.server, golden("lost"))
        driver = await world.driver()
        recovery = driver.recovery
        marks = [mark async for page in recovery.marks() for mark in page]
        assert {mark.ledger_id: (mark.replicas, mark.ctime_ms) for mark in marks} == {
            ledger_id: ((BK3,), at_ms) for ledger_id, at_ms in LEDGERS.items()
        }
        assert [each async for page in recovery.marked_ids() for each in page] == list(LEDGERS)
        assert await recovery.locks() == {0: "localhost", 1: "localhost"}
        assert await recovery.auditor() == BK1
        assert await recovery.lost_bookie_delay_s() == 0
        assert {kind: await recovery.checked_at_ms(kind) for kind in AuditKind} == CHECKED
        assert await recovery.is_enabled()
        assert await recovery.lock(0, "here", needs_mark=True) is None
        assert await recovery.lock(12345678, "here", needs_mark=True) is not None
        put(world.server, {path: node for path, node in golden("disabled").items() if path.endswith("/disable")})
        assert not await recovery.is_enabled()

    play(body)


def test_ours_are_the_same_at_every_stage() -> None:
    async def body(world: World) -> None:
        one, two = await world.driver(), await world.driver()
        await one.recovery.campaign(BK1, lambda: None)
        await two.recovery.campaign(BK2, lambda: None)
        assert await one.recovery.init_lost_bookie_delay_s(0) == 0
        for kind, at_ms in CHECKED.items():
            await one.recovery.set_checked_at_ms(kind, at_ms)
        assert tree(world.server) == golden("idle")
        for ledger_id, at_ms in LEDGERS.items():
            assert await one.recovery.mark(ledger_id, [BK3], at_ms)
        locks = [await lock_of(one, 0), await lock_of(two, 1)]
        assert tree(world.server) == golden("lost")
        await one.recovery.disable()
        await one.recovery.unlock(locks[0])
        assert tree(world.server) == golden("disabled")
        await two.recovery.enable()
        assert await two.recovery.done(locks[1])
        for ledger_id in (0, 12345678):
            assert await one.recovery.done(await lock_of(one, ledger_id))
        assert tree(world.server) == golden("repaired")

    play(body)


def test_another_layout_is_refused() -> None:
    async def body(world: World) -> None:
        nodes: Tree = {
            TOP: (b"", False, 0, Acl.OPEN),
            f"{TOP}/LAYOUT": (b'type: "X"\nversion: 1\n', False, 0, Acl.OPEN),
        }
        put(world.server, nodes)
        driver = await world.driver()
        for call in (
            driver.recovery.mark(5, [], 1),
            driver.recovery.is_enabled(),
            driver.recovery.campaign(BK1, print),
        ):
            with pytest.raises(MetadataCorrupt, match="layout"):
                await call

    play(body)


def test_what_is_no_mark_and_no_lock_is_left_alone() -> None:
    async def body(world: World) -> None:
        driver = await world.driver()
        await driver.recovery.mark(5, [BK3], 1)
        strange = (
            "ledgers/00",
            "ledgers/0000/xyz0",
            "ledgers/0000/0001/0000",
            "ledgers/0000/0000/0000/0005/urL5",
            "locks/x",
        )
        for path in strange:
            parts = path.split("/")
            for depth in range(1, len(parts) + 1):
                below = f"{TOP}/{'/'.join(parts[:depth])}"
                if below not in world.server.nodes:
                    world.server.apply([Create(below, b"?", Acl.OPEN)], 99)
        path = f"{TOP}/ledgers/0000/0000/0000/0006"
        world.server.apply([Create(path, b"", Acl.OPEN)], 99)  # left empty
        assert [each async for page in driver.recovery.marked_ids() for each in page] == [5]
        assert await driver.recovery.locks() == {}
        unreadable = "urL0000000006"
        world.server.apply([Create(f"{path}/{unreadable}", b"\xff\xfe", Acl.OPEN)], 99)
        mark = await driver.recovery.mark_of(6)
        assert mark is not None
        assert (mark.replicas, mark.ctime_ms) == ((), None)
        assert await driver.recovery.mark(6, [BK3], 7)
        assert world.server.nodes[f"{path}/{unreadable}"].data == b'replica: "bk-3"\nctime: 7\n'

    play(body)


# -- lost answers, and servers that lag behind -------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["lost answer", "lost session"])
def test_a_deletion_of_a_mark_spares_the_next_mark(how: str) -> None:
    """Every new mark has ZooKeeper's version 0, so the version alone does not protect it."""

    async def body(world: World) -> None:
        client = BehindZooKeeper(world.server)
        driver, other = await world.driver(client), await world.driver()
        assert await other.recovery.mark(7, [BK1], 1)
        lock = await lock_of(driver, 7)

        async def mark_again() -> None:
            assert await other.recovery.mark(7, [BK2], 2)

        async def repair_and_mark_again() -> None:
            client.expire()
            with pytest.raises(SessionExpired):
                await client.exists(ROOT)  # The next request is in a new session.
            assert await other.recovery.done(await lock_of(other, 7))
            await mark_again()

        if how == "lost answer":
            world.server.lost_replies = 1
            client.meanwhile = mark_again
        else:
            client.checked = repair_and_mark_again
        assert not await driver.recovery.done(lock)
        mark = await other.recovery.mark_of(7)
        assert mark is not None
        assert mark.replicas == (BK2,)

    play(body)


def test_a_release_that_is_repeated_spares_the_next_lock() -> None:
    async def body(world: World) -> None:
        client = BehindZooKeeper(world.server)
        driver, other = await world.driver(client), await world.driver()
        assert await other.recovery.mark(7, [BK1], 1)
        lock = await lock_of(driver, 7)
        nodes, path = driver.recovery.nodes, RecoveryPaths(TOP).lock(7)
        taken: list[LedgerLock] = []

        async def lock_next() -> None:
            taken.append(await lock_of(other, 7))

        world.server.lost_replies = 1
        client.meanwhile = lock_next
        with pytest.raises(OutcomeUnknown):
            await nodes.release(path, lock.session)
        await nodes.release(path, lock.session)
        assert other.recovery.is_held(taken[0])
        assert await other.recovery.locked_ids() == [7]

    play(body)


def test_a_lock_that_was_taken_unnoticed_is_released_once_a_server_answers() -> None:
    async def body(world: World) -> None:
        client = BehindZooKeeper(world.server)
        driver, other = await world.driver(client), await world.driver()
        assert await other.recovery.mark(7, [BK1], 1)
        assert await driver.recovery.is_enabled()
        await other.recovery.unlock(await lock_of(other, 7))

        async def fall_silent() -> None:
            world.server.is_silent = True

        world.server.lost_replies = 1
        client.meanwhile = fall_silent
        with pytest.raises(MetadataError, match="has answered"):
            await driver.recovery.lock(7, "localhost", needs_mark=True)
        path, released = RecoveryPaths(TOP).lock(7), asyncio.Event()
        assert path in world.server.nodes
        world.server.watch(path, False, client, released.set)
        world.server.is_silent = False
        await released.wait()
        assert await lock_of(other, 7)

    play(body)


# -- watches ---------------------------------------------------------------------------------------------------------


def watches(server: Server) -> list[Any]:
    return [key for key, watches in server._watches.items() if watches]


def test_watches_are_as_many_as_directories_above_marks_and_are_taken_back() -> None:
    async def body(world: World) -> None:
        driver, other = await world.driver(), await world.driver()
        for ledger_id in (1, 2, 1 << 20):
            await other.recovery.mark(ledger_id, [BK3], 1)
        news = asyncio.Event()
        watch = driver.recovery.watch_marks(news.set)
        await news.wait()
        above = [
            path
            for path in world.server.nodes
            if path.startswith(f"{TOP}/ledgers") and path.removeprefix(f"{TOP}/ledgers").count("/") < 4
        ]
        assert len(watches(world.server)) == len(above) + 1  # and the locks
        watch.cancel()
        await asyncio.sleep(0.01)
        assert watches(world.server) == []

    play(body)


def test_a_mark_that_goes_and_comes_back_between_two_looks_is_told() -> None:
    async def body(world: World) -> None:
        driver = await world.driver()
        await driver.recovery.mark(5, [BK3], 1)
        news = asyncio.Event()
        driver.recovery.watch_marks(news.set)
        await news.wait()
        path = RecoveryPaths(TOP).mark(5)
        directory = path.rpartition("/")[0]
        node: Node = world.server.nodes[path]
        changes = [Delete(path), Delete(directory), Create(directory, b"", Acl.OPEN), Create(path, node.data, Acl.OPEN)]
        for _ in range(2):
            news.clear()
            for change in changes:
                world.server.apply([change], 99)
            await news.wait()

    play(body)


def test_watching_asks_little_for_each_mark() -> None:
    async def body(world: World) -> None:
        driver, other = await world.driver(), await world.driver()
        news = asyncio.Event()
        driver.recovery.watch_marks(news.set)
        await news.wait()
        for ledger_id in range(100):
            await other.recovery.mark(ledger_id, [BK3], 1)
        await asyncio.sleep(1)
        before = driver.operations.total
        for ledger_id in range(100):
            lock = await other.recovery.lock(ledger_id, "host.example", needs_mark=True)
            assert lock is not None
            await asyncio.sleep(0.01)
            assert await other.recovery.done(lock)
        await asyncio.sleep(1)
        assert 0 < driver.operations.total - before < 50
        news.clear()
        await other.recovery.mark(7, [BK3], 1)
        await news.wait()
        await asyncio.sleep(1)
        lock = await other.recovery.lock(7, "host.example", needs_mark=True)
        assert lock is not None
        await asyncio.sleep(1)
        news.clear()
        await other.recovery.unlock(lock)
        await news.wait()

    play(body)


def test_marks_are_told_again_after_a_lost_session() -> None:
    async def body(world: World) -> None:
        driver, other = await world.driver(), await world.driver()
        news = asyncio.Event()
        driver.recovery.watch_marks(news.set)
        await news.wait()
        news.clear()
        driver.zookeeper.expire()  # type: ignore[attr-defined]
        await other.recovery.mark(5, [BK3], 1)
        await news.wait()

    play(body)
