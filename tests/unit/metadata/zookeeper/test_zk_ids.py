"""The generation of ids in batches: how many are fetched, and that none comes twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.fakes.zookeeper import Server, driven
from tests.fakes.zookeeper_requests import NotedZooKeeper, settle

from bookies.errors import ClientClosed, MetadataError
from bookies.metadata.zookeeper import ZkCluster, ZooKeeperDriver, zk_ids
from bookies.metadata.zookeeper.zk_ids import FETCHED_IDS_MAX
from bookies.metadata.zookeeper.zk_layout import SHORT_ID_STOP, Manager
from bookies.metadata.zookeeper.zookeeper_port import Acl, Create
from bookies.runtime import aio


class World:
    def __init__(self, **changes: Any) -> None:
        self.server = Server("/ledgers", "/ledgers/idgen")
        self.zookeeper, self.driver = self.client(**changes)

    def client(self, **changes: Any) -> tuple[NotedZooKeeper, ZooKeeperDriver]:
        zookeeper = NotedZooKeeper(self.server)
        driver = ZooKeeperDriver(
            "zk://fake/ledgers", zookeeper, aio.runtime(seed=1), ZkCluster("/ledgers", **changes), lease_ms=2000
        )
        return zookeeper, driver

    @property
    def fetches(self) -> list[int]:
        """How many ids each request took."""
        requests = [each for each in self.zookeeper.requests if isinstance(each[0], Create)]
        return [(len(each) + 1) // 2 for each in requests if "/ID-" in each[0].path]

    async def next(self, count: int) -> list[int]:
        """One after the other."""
        return [await self.driver.next_ledger_id() for _ in range(count)]

    def start(self, count: int) -> list[asyncio.Task[int]]:
        """At once."""
        loop = asyncio.get_running_loop()
        return [loop.create_task(self.driver.next_ledger_id()) for _ in range(count)]


def play(body: Callable[[World], Coroutine[Any, Any, None]], **changes: Any) -> None:
    async def main() -> None:
        world = World(**changes)
        await driven(world.driver, lambda: body(world))

    asyncio.run(main())


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long this machine takes: every id is asked for in quick succession."""
    monkeypatch.setattr(zk_ids, "QUICK_S", 3600.0)


def test_ids_in_quick_succession_are_fetched_by_more_and_more(quick: None) -> None:
    async def body(world: World) -> None:
        used = 0
        while used < 1000:
            count = min(max(used // 8, 1), 64)
            assert await world.next(count) == list(range(used, used + count))
            assert world.fetches[-1] == count
            used += count
        assert len(world.fetches) < 60
        assert await world.next(1) == [used]
        await settle()
        assert not [path for path in world.server.nodes if "/ID-" in path]
        server_client = world.client()[0]
        await server_client.open()
        path, _ = await server_client.create("/ledgers/idgen/ID-", b"", Acl.OPEN, is_sequential=True)
        assert path == f"/ledgers/idgen/ID-{used + 64:010d}"  # what others are given comes after them

    play(body)


def test_one_id_now_and_then_is_one_request_each_and_leaves_none_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zk_ids, "QUICK_S", -1.0)  # everything is long ago

    async def body(world: World) -> None:
        assert await world.next(5) == [0, 1, 2, 3, 4]
        assert world.fetches == [1] * 5

    play(body)


def test_a_pause_ends_the_haste(quick: None) -> None:
    """What is left goes unused, an eighth of what was used at most."""

    async def body(world: World) -> None:
        assert await world.next(43) == list(range(43))
        assert world.fetches[-1] == 5
        left = sum(world.fetches) - 43
        assert 0 < left <= 5
        world.driver._ids._asked_at -= 7200
        assert await world.next(3) == [43 + left, 44 + left, 45 + left]
        assert world.fetches[-3:] == [1, 1, 1]

    play(body)


def test_those_who_wait_get_theirs_together(quick: None) -> None:
    async def body(world: World) -> None:
        world.zookeeper.hold()
        first = world.start(16)
        await settle()
        more = world.start(FETCHED_IDS_MAX + 1)
        await settle()
        world.zookeeper.release()
        ids = [await each for each in (*first, *more)]
        assert sorted(ids) == list(range(16 + FETCHED_IDS_MAX + 1))
        assert world.fetches[:3] == [16, FETCHED_IDS_MAX, (16 + FETCHED_IDS_MAX) // 8]

    play(body)


def test_whoever_gives_up_leaves_the_ids_to_the_others(quick: None) -> None:
    async def body(world: World) -> None:
        world.zookeeper.hold()
        callers = world.start(3)
        await settle()
        callers[0].cancel()
        await settle()
        world.zookeeper.release()
        assert [await each for each in callers[1:]] == [0, 1]
        assert await world.next(1) == [2]

    play(body)


def test_a_failure_is_told_to_all_who_wait(quick: None) -> None:
    async def body(world: World) -> None:
        await world.next(1)
        world.server.is_silent = True
        errors = await asyncio.gather(*world.start(5), return_exceptions=True)
        assert {type(each) for each in errors} == {MetadataError}
        assert len({id(each) for each in errors}) == 5
        world.server.is_silent = False
        assert await world.next(2) == [1, 2]

    play(body)


def test_lost_answers_cost_ids_and_repeat_none(quick: None) -> None:
    async def body(world: World) -> None:
        world.server.lost_replies = 1
        ids = await world.next(2)
        world.server.lost_requests = 1
        ids += await world.next(2)
        assert world.driver.zookeeper is world.zookeeper
        world.zookeeper.expire()
        ids += await world.next(30)
        assert ids == sorted(set(ids))
        assert len(ids) == 34

    play(body)


def test_nobody_waits_for_a_closed_driver(quick: None) -> None:
    async def body(world: World) -> None:
        world.zookeeper.hold()
        callers = world.start(3)
        await settle()
        await world.driver.close()
        assert {type(each) for each in await asyncio.gather(*callers, return_exceptions=True)} == {ClientClosed}

    play(body)


@pytest.mark.parametrize("manager", [Manager.HIERARCHICAL, Manager.LONG, Manager.FLAT])
def test_two_clients_and_one_of_apaches_never_get_the_same(manager: Manager, quick: None) -> None:
    async def body(world: World) -> None:
        _, other = world.client()
        await other.open()
        ids: list[int] = []
        prefix = "/ledgers/ID-" if manager is Manager.FLAT else "/ledgers/idgen/ID-"
        for _ in range(50):
            path, _ = await world.zookeeper.create(prefix, b"", Acl.OPEN, is_ephemeral=True, is_sequential=True)
            ids += [int(path[-10:]), await other.next_ledger_id(), *(await asyncio.gather(*world.start(3)))]
        assert len(set(ids)) == 250
        assert (max(world.fetches) > 3) is (manager is not Manager.FLAT)
        await other.close()

    play(body, manager=manager)


def test_a_batch_ends_with_the_31_bits(quick: None) -> None:
    """And with those of a directory of long ids."""

    async def body(world: World) -> None:
        await world.next(40)
        world.driver._ids._ready = range(0)
        world.server.nodes["/ledgers/idgen"].sequence = SHORT_ID_STOP - 3
        high = 1 << 32
        assert await world.next(5) == [*range(SHORT_ID_STOP - 3, SHORT_ID_STOP), high, high + 1]
        world.driver._ids._ready = range(0)
        world.server.nodes["/ledgers/idgen-long/HOB-0000000001"].sequence = SHORT_ID_STOP - 1
        assert await world.next(4) == [high + SHORT_ID_STOP - 1, 2 * high, 2 * high + 1, 2 * high + 2]

    play(body)


def test_what_was_fetched_is_not_given_below_a_bound(quick: None) -> None:
    async def body(world: World) -> None:
        await world.next(43)
        given = await world.driver.given_ids()
        assert given.next_id == sum(world.fetches) > 43
        assert await world.next(20) == list(range(given.next_id, given.next_id + 20))
        await world.driver.restore_ids(type(given)(1000))
        assert await world.next(1) == [1000]

    play(body)
