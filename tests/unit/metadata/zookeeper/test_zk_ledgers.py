"""Many ledgers at a time: what each caller gets when requests are shared and something goes wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

import pytest
from tests.fakes.zookeeper import Server, driven
from tests.fakes.zookeeper_requests import NotedZooKeeper, settle

from bookies.errors import LedgerExists, LedgerNotFound, NotSupported, VersionConflict
from bookies.metadata.interface.driver import LedgerDeletion, Versioned
from bookies.metadata.zookeeper import ZkCluster, ZooKeeperDriver
from bookies.metadata.zookeeper.zk_nodes import ATTEMPTS_MAX
from bookies.metadata.zookeeper.zookeeper_port import NodeMissing, Stat
from bookies.model import BookieId, LedgerMetadata, LedgerState
from bookies.runtime import aio

A, B = BookieId("bk-a:3181"), BookieId("bk-b:3181")
COUNT = 16
FIRST = 70_000  # not in the first list of spent ids, nor in a directory that is there


class World:
    def __init__(self) -> None:
        self.server = Server("/ledgers")
        self.zookeeper, self.driver = self.client()

    def client(self) -> tuple[NotedZooKeeper, ZooKeeperDriver]:
        zookeeper = NotedZooKeeper(self.server)
        cluster = ZkCluster("/ledgers")
        return zookeeper, ZooKeeperDriver("zk://fake/ledgers", zookeeper, aio.runtime(1), cluster, lease_ms=2000)

    async def create(self, ledger_ids: Iterable[int]) -> list[Any]:
        """At once; what became of each."""
        return await outcomes(self.driver.create_ledger(ledger(ledger_id)) for ledger_id in ledger_ids)

    async def check(self, found: Iterable[Versioned]) -> None:
        """Everybody knows the record as it is there."""
        for each in found:
            assert await self.driver.read_ledger(each.metadata.ledger_id) == each


def ledger(ledger_id: int, **changes: Any) -> LedgerMetadata:
    return LedgerMetadata(ledger_id, 2, 2, 1, ((0, (A, B)),), creator_token=ledger_id + 1, **changes)


def closed(found: Versioned) -> LedgerMetadata:
    return found.metadata.replace(state=LedgerState.CLOSED, last_entry_id=-1, length=0)


async def outcomes(calls: Iterable[Awaitable[Any]]) -> list[Any]:
    return await asyncio.gather(*calls, return_exceptions=True)


def play(body: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        world = World()
        await driven(world.driver, lambda: body(world))

    asyncio.run(main())


def test_requests_of_one_ledger_and_of_many() -> None:
    """What a ledger costs: create and close, each one request, be it for one or for many at a time."""

    async def body(world: World) -> None:
        (warm,) = await world.create([FIRST])
        assert warm.metadata.ctime_ms == world.server.nodes["/ledgers/00/0007/L0000"].ctime_ms
        assert world.server.nodes["/ledgers/00/0007/L0000"].version == 0  # as Apache's
        counts = world.driver.operations.total
        made = await world.driver.create_ledger(ledger(FIRST + 1))
        await world.driver.write_ledger(closed(made), made.version)
        assert world.driver.operations.total == counts + 2
        counts = world.driver.operations.total
        many = await world.create(range(FIRST + 2, FIRST + 2 + COUNT))
        assert world.driver.operations.total == counts + 1
        written = await outcomes(world.driver.write_ledger(closed(each), each.version) for each in many)
        assert world.driver.operations.total == counts + 2
        await world.check(written)

    play(body)


@pytest.mark.parametrize("lost", ["lost_replies", "lost_requests"])
def test_lost_answers(lost: str) -> None:
    async def body(world: World) -> None:
        await world.create([FIRST])
        for number in range(1, ATTEMPTS_MAX):
            setattr(world.server, lost, number)
            made = await world.create(range(FIRST + 100 * number, FIRST + 100 * number + COUNT))
            await world.check(made)
            setattr(world.server, lost, number)
            await world.check(await outcomes(world.driver.write_ledger(closed(each), each.version) for each in made))

    play(body)


def test_a_session_that_ends_in_the_middle() -> None:
    async def body(world: World) -> None:
        await world.create([FIRST])
        world.zookeeper.hold()
        creating = asyncio.ensure_future(world.create(range(FIRST + 1, FIRST + 1 + COUNT)))
        await settle()
        world.zookeeper.expire()
        world.zookeeper.release()
        await world.check(await creating)

    play(body)


def test_directories_and_lists_that_are_missing() -> None:
    async def body(world: World) -> None:
        made = await world.create([*range(FIRST, FIRST + COUNT), *range(7, 7 + COUNT), 1 << 40])
        await world.check(made)
        assert len({each.version for each in made}) < len(made)  # at least some were created together

    play(body)


def test_somebody_else_deletes_ledgers_meanwhile() -> None:
    """Each deletion changes the list that creations check; an id that was spent meanwhile is refused."""

    async def body(world: World) -> None:
        _, other = world.client()
        await other.open()
        await world.create([FIRST, FIRST + 1])
        world.zookeeper.hold()
        creating = asyncio.ensure_future(world.create(range(FIRST + 2, FIRST + 2 + COUNT)))
        await settle()
        await other.create_ledger(ledger(FIRST + 5))
        await other.delete_ledger(FIRST + 5)
        await other.delete_ledger(FIRST + 1)
        world.zookeeper.release()
        made = await creating
        refused = made.pop(3)
        assert isinstance(refused, LedgerExists)
        assert "deleted" in str(refused)
        await world.check(made)
        await other.close()

    play(body)


def test_conflicts_are_told_to_those_who_have_them() -> None:
    async def body(world: World) -> None:
        _, other = world.client()
        await other.open()
        made = await world.create(range(FIRST, FIRST + COUNT))
        stolen = await other.create_ledger(ledger(FIRST + COUNT, custom_metadata={"whose": b"other"}))
        await other.write_ledger(made[3].metadata.replace(state=LedgerState.IN_RECOVERY), made[3].version)
        await other.delete_ledger(FIRST + 7)
        calls = [world.driver.write_ledger(closed(each), each.version) for each in made]
        calls += [world.driver.create_ledger(ledger(FIRST + COUNT).replace(creator_token=5))]
        found = await outcomes(calls)
        assert isinstance(found.pop(COUNT), LedgerExists)
        assert isinstance(found.pop(7), LedgerNotFound)
        assert isinstance(found.pop(3), VersionConflict)
        assert len(found) == COUNT - 2
        await world.check([*found, stolen])
        await other.close()

    play(body)


def test_the_same_ledger_is_created_twice_at_once() -> None:
    """With one token: one ledger, and both know it. With two: the second is told that there is one."""

    async def body(world: World) -> None:
        await world.create([FIRST])
        world.zookeeper.hold()
        record = ledger(FIRST + 1)
        calls = [record, record, ledger(FIRST + 2), ledger(FIRST + 2).replace(creator_token=1)]
        creating = asyncio.ensure_future(outcomes(map(world.driver.create_ledger, calls)))
        await settle()
        world.zookeeper.release()
        one, same, first, second = await creating
        assert one == same
        await world.check([one, first])
        assert isinstance(second, LedgerExists)

    play(body)


def test_whoever_gives_up_does_not_disturb_the_others() -> None:
    async def body(world: World) -> None:
        await world.create([FIRST])
        world.zookeeper.hold()
        creating = [
            asyncio.ensure_future(world.driver.create_ledger(ledger(FIRST + number))) for number in range(1, 1 + COUNT)
        ]
        await settle()
        creating[5].cancel()
        await settle()
        world.zookeeper.release()
        found = await outcomes(creating)
        assert [isinstance(each, Versioned) for each in found] == [number != 5 for number in range(COUNT)]
        await world.check(each for each in found if isinstance(each, Versioned))
        again = await world.driver.create_ledger(ledger(FIRST + 6))  # it had been sent: it is its own
        await world.check([again])

    play(body)


def test_a_deposed_leader_does_not_answer_for_the_current_record() -> None:
    """It serves `sync` and reads with what it has; only a transaction shows that it lags behind."""

    async def body(world: World) -> None:
        created = await world.create(range(FIRST, FIRST + COUNT))
        zookeeper, other = world.client()
        await driven(other, lambda: written_behind(zookeeper, other, created))

    async def written_behind(zookeeper: NotedZooKeeper, other: ZooKeeperDriver, created: list[Versioned]) -> None:
        old = {path: (node.data, node.stat()) for path, node in zookeeper.server.nodes.items()}
        get, left = zookeeper.get, dict.fromkeys(old, 2)

        async def lagging(path: str, *, sync: bool = False) -> tuple[bytes, Stat]:
            """What a deposed leader answers, twice for each znode."""
            if path in old and left[path] > 0:
                left[path] -= 1
                return old[path]
            return await get(path, sync=sync)

        changed = [await other.write_ledger(closed(each), each.version) for each in created]
        zookeeper.get = lagging  # type: ignore[method-assign]
        ids = [each.metadata.ledger_id for each in created]
        assert [each.version for each in await other.read_ledgers(ids)] == [each.version for each in created]  # type: ignore[union-attr]
        before = len(zookeeper.requests)
        assert await other.current_ledgers(ids) == changed
        assert len(zookeeper.requests) - before == 1 + COUNT + 1  # together, refused; one by one, refused; together

    play(body)


def test_a_deposed_leader_does_not_answer_that_there_is_no_record() -> None:
    """The collection deletes the entries of such a ledger for good."""

    async def body(world: World) -> None:
        created = await world.create(range(FIRST, FIRST + 3))
        get, left = world.zookeeper.get, {path: 2 for path in world.server.nodes if "/L" in path}

        async def lagging(path: str, *, sync: bool = False) -> tuple[bytes, Stat]:
            if left.get(path, 0) > 0:
                left[path] -= 1
                raise NodeMissing(path)
            return await get(path, sync=sync)

        world.zookeeper.get = lagging  # type: ignore[method-assign]
        ids = [each.metadata.ledger_id for each in created]
        assert await world.driver.read_ledgers(ids) == [None] * 3
        assert await world.driver.current_ledgers([*ids, FIRST + 99]) == [*created, None]

    play(body)


def test_a_copy_that_is_current_costs_a_check_alone() -> None:
    """Writers of many ledgers reconnect together, and most records are as they left them."""

    async def body(world: World) -> None:
        created = await world.create(range(FIRST, FIRST + COUNT))
        ids = [each.metadata.ledger_id for each in created]
        before = len(world.zookeeper.requests)
        assert await world.driver.current_ledgers(ids, created) == created
        assert len(world.zookeeper.requests) - before == 1
        _, other = world.client()

        async def behind() -> None:
            changed = await other.write_ledger(closed(created[0]), created[0].version)
            assert await world.driver.current_ledgers(ids, created) == [changed, *created[1:]]

        await driven(other, behind)

    play(body)


async def restored(driver: ZooKeeperDriver) -> Versioned:
    await driver.unspend_id(FIRST)
    return await driver.create_ledger(ledger(FIRST))


def test_a_writer_that_slept_while_its_ledger_was_sealed_deleted_and_restored() -> None:
    """Its driver remembers the version of the znode, which ZooKeeper counts from 0 again."""

    async def body(world: World) -> None:
        made = await world.driver.create_ledger(ledger(FIRST))
        _, other = world.client()

        async def rest() -> None:
            end = closed(made).replace(last_entry_id=9, length=100)
            await other.write_ledger(end, made.version)
            await other.delete_ledger(FIRST)
            await other.unspend_id(FIRST)
            again = await other.create_ledger(end)
            assert await world.driver.current_ledgers([FIRST], [made]) == [again]
            with pytest.raises(VersionConflict):
                await world.driver.write_ledger(closed(made), made.version)
            await world.check([again])

        await driven(other, rest)

    play(body)


@pytest.mark.parametrize("is_transaction", [False, True])
def test_the_versions_of_a_record_that_is_made_again_are_new(is_transaction: bool) -> None:
    """However often it was changed before; in one transaction, with the content as it is to be from the beginning."""

    async def body(world: World) -> None:
        path = "/ledgers/00/0007/L0000"
        made = await world.driver.create_ledger(ledger(FIRST))
        for changes in (3, 1, 2_000, 0):
            for _ in range(min(changes, 3)):
                made = await world.driver.write_ledger(made.metadata, made.version)
            world.server.nodes[path].version += max(0, changes - 3)  # by others
            made = await world.driver.read_ledger(FIRST)
            before = world.server.nodes[path].version
            if is_transaction:
                await world.driver.transact([LedgerDeletion(FIRST, made.version)])
            else:
                await world.driver.delete_ledger(FIRST)
            made = await restored(world.driver)
            node = world.server.nodes[path]
            assert node.version > before
            assert (made.version, made.metadata.ctime_ms) == (node.czxid, node.ctime_ms)
            await world.check([made])
        assert len((await world.driver.given_ids()).spent) == 0

    play(body)


def test_the_beginnings_of_lives_are_seen_by_a_client_that_has_read_the_list_before() -> None:
    async def body(world: World) -> None:
        await world.create([FIRST, FIRST + 1])
        _, other = world.client()

        async def rest() -> None:
            await other.create_ledger(ledger(FIRST + 2))  # It has the list now.
            await world.driver.delete_ledger(FIRST)
            await world.driver.unspend_id(FIRST)
            await world.driver.unspend_id(FIRST)
            world.server.lost_replies = 1
            made = await other.create_ledger(ledger(FIRST))
            assert world.server.nodes["/ledgers/00/0007/L0000"].version == 1_000
            await world.check([made])
            await other.unspend_id(FIRST)  # It is not spent: nothing to do.
            before = world.server.zxid
            await other.unspend_id(FIRST + 1)
            assert world.server.zxid == before

        await driven(other, rest)

    play(body)


def test_a_record_that_was_changed_too_often_is_not_made_again() -> None:
    async def body(world: World) -> None:
        await world.create([FIRST])
        world.server.nodes["/ledgers/00/0007/L0000"].version = 10_000
        await world.driver.delete_ledger(FIRST)
        note = f"/ledgers-bookies/spent/000000000001/{FIRST - (1 << 16)}-10001"
        with pytest.raises(NotSupported, match=f"changed 10,001 times.*delete the znode {note}, and repeat"):
            await world.driver.unspend_id(FIRST)
        with pytest.raises(LedgerExists):
            await world.driver.create_ledger(ledger(FIRST))
        await world.zookeeper.delete(note)
        await world.check([await restored(world.driver)])

    play(body)
