"""Transactions that share a request: each has the answer it would have got alone, whatever becomes of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
from tests.fakes.zookeeper import Server
from tests.fakes.zookeeper_requests import NotedZooKeeper, settle

from bookies.errors import ClientClosed, MetadataError, SessionExpired
from bookies.metadata.zookeeper import zk_groups
from bookies.metadata.zookeeper.zk_groups import Groups
from bookies.metadata.zookeeper.zookeeper_port import (
    Acl,
    Check,
    Create,
    Denied,
    NodeExists,
    NodeMissing,
    Operation,
    Outcome,
    OutcomeUnknown,
    SetData,
    Stat,
    WrongVersion,
)
from bookies.runtime.tasks import Tasks


class World:
    """A server with /a, and the groups of one client."""

    def __init__(self) -> None:
        self.server = Server("/a")
        self.zookeeper = NotedZooKeeper(self.server)
        self.deaths: list[BaseException] = []
        self.tasks = Tasks(self.deaths.append)
        self.is_closed = False
        self.groups = Groups(self.zookeeper, self._require_open)

    def _require_open(self) -> Tasks:
        if self.is_closed:
            raise ClientClosed("the session is closed")
        return self.tasks

    async def close(self) -> None:
        self.is_closed = True
        await self.tasks.stop()
        await self.zookeeper.close()
        self.zookeeper.release()

    def start(self, *operations: Operation) -> asyncio.Task[list[Outcome]]:
        return asyncio.get_running_loop().create_task(self.groups.multi(operations))

    async def begin(self) -> asyncio.Task[list[Outcome]]:
        """One that is under way and makes /a/first; what comes until `release` waits for it."""
        self.zookeeper.hold()
        first = self.start(made("first"))
        await settle()
        return first


def made(name: str, data: bytes = b"") -> Create:
    return Create(f"/a/{name}", data, Acl.OPEN)


@pytest.fixture(autouse=True)
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what comes while a request is under way is one group."""
    monkeypatch.setattr(zk_groups, "IN_FLIGHT_MAX", 1)


def play(body: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        world = World()
        await world.zookeeper.open()
        async with asyncio.timeout(120):
            await body(world)
            await world.close()
        assert not world.deaths

    asyncio.run(main())


async def outcomes_of(*calls: Awaitable[list[Outcome]]) -> list[Any]:
    return await asyncio.gather(*calls, return_exceptions=True)


def test_what_comes_while_one_is_under_way_is_one_request() -> None:
    async def body(world: World) -> None:
        first = await world.begin()
        revision, check = SetData("/a", b"", -1), Check("/a", 0)
        others = [world.start(check, revision, made(str(number))) for number in range(3)]
        written = world.start(SetData("/a/first", b"x", 0))
        await settle()
        world.zookeeper.release()
        assert await first == ["/a/first"]
        answers = [await each for each in others]
        assert [each[0] for each in answers] == [None] * 3
        assert [each[2] for each in answers] == ["/a/0", "/a/1", "/a/2"]
        stats = {each[1] for each in answers}
        (stat,) = stats
        assert isinstance(stat, Stat)
        assert stat.mzxid == world.server.nodes["/a/0"].czxid == world.server.nodes["/a/2"].czxid
        assert (await written)[0] == world.server.nodes["/a/first"].stat()
        assert world.zookeeper.requests == [
            [made("first")],
            [check, revision, made("0"), made("1"), made("2"), SetData("/a/first", b"x", 0)],
        ]
        assert await world.start(made("alone")) == ["/a/alone"]

    play(body)


def test_the_same_write_twice_is_two_writes() -> None:
    """One of them comes too late, though it wants the same."""

    async def body(world: World) -> None:
        first = await world.begin()
        twice = [world.start(SetData("/a/first", b"x", 0)) for _ in range(2)]
        await settle()
        world.zookeeper.release()
        await first
        assert sorted(type(each).__name__ for each in await outcomes_of(*twice)) == ["WrongVersion", "list"]

    play(body)


def test_a_refusal_is_for_the_one_that_it_is_about() -> None:
    async def body(world: World) -> None:
        first = await world.begin()
        good = [world.start(Check("/a", 0), made(str(number))) for number in range(3)]
        bad = [
            world.start(Check("/a", 0), made("parent/is/missing")),
            world.start(Check("/a", 5), made("never")),
            world.start(made("never"), SetData("/a/first", b"", 7)),
        ]
        same = [world.start(made("same")) for _ in range(2)]
        await settle()
        world.zookeeper.release()
        await first
        assert await outcomes_of(*good) == [[None, f"/a/{number}"] for number in range(3)]
        refusals = await outcomes_of(*bad)
        assert [type(each) for each in refusals] == [NodeMissing, WrongVersion, WrongVersion]
        assert [each.index for each in refusals] == [1, 0, 1]
        assert [each.path for each in refusals] == ["/a/parent/is/missing", "/a", "/a/first"]
        assert [type(each) for each in await outcomes_of(*same)] == [list, NodeExists]
        assert "/a/never" not in world.server.nodes

    play(body)


def test_denied_access_is_for_the_one_that_it_is_about() -> None:
    async def body(world: World) -> None:
        first = await world.begin()
        good = [world.start(made(str(number))) for number in range(3)]
        bad = world.start(made("secret"))
        await settle()
        world.server.denied.add("/a/secret")
        world.zookeeper.release()
        await first
        assert await outcomes_of(*good) == [[f"/a/{number}"] for number in range(3)]
        assert [type(each) for each in await outcomes_of(bad)] == [Denied]
        assert await world.start(made("next")) == ["/a/next"]

    play(body)


def test_after_a_lost_answer_everybody_has_to_look() -> None:
    async def body(world: World) -> None:
        first = await world.begin()
        others = [world.start(made(str(number))) for number in range(3)]
        await settle()
        world.server.lost_replies = 2
        world.zookeeper.release()
        errors = await outcomes_of(first, *others)
        assert len(world.zookeeper.requests) == 2
        assert [type(each) for each in errors] == [OutcomeUnknown] * 4
        assert len({id(each) for each in errors}) == 4  # each is raised in another task
        assert "/a/2" in world.server.nodes
        assert await world.start(made("next")) == ["/a/next"]

    play(body)


def test_a_session_that_ends_under_a_group() -> None:
    async def body(world: World) -> None:
        first = await world.begin()
        others = [world.start(made(str(number))) for number in range(3)]
        await settle()
        world.zookeeper.expire()
        world.zookeeper.release()
        assert [type(each) for each in await outcomes_of(first)] == [SessionExpired]
        assert await outcomes_of(*others) == [[f"/a/{number}"] for number in range(3)]  # in the next session
        world.zookeeper.hold()
        others = [world.start(made(f"more{number}")) for number in range(3)]
        await settle()
        world.zookeeper.expire()
        world.zookeeper.release()
        assert [type(each) for each in await outcomes_of(*others)] == [SessionExpired] * 3

    play(body)


def test_what_comes_in_one_turn_is_one_request_and_some_are_under_way_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(zk_groups, "IN_FLIGHT_MAX", 2)

    async def body(world: World) -> None:
        world.zookeeper.hold()
        turns = []
        for turn in range(4):
            turns.append([world.start(made(f"{turn}-{number}")) for number in range(3)])
            await settle()
        assert len(world.zookeeper.requests) == 2
        world.zookeeper.release()
        for each in turns:
            await outcomes_of(*each)
        names = [[each.path[3:] for each in request] for request in world.zookeeper.requests]
        first, second, third, fourth = ([f"{turn}-{number}" for number in range(3)] for turn in range(4))
        assert names == [first, second, third + fourth]

    play(body)


def test_whoever_gives_up_does_not_disturb_the_others() -> None:
    async def body(world: World) -> None:
        first = await world.begin()
        second, third, fourth = (world.start(made(str(number))) for number in range(3))
        await settle()
        second.cancel()  # before it was sent
        first.cancel()  # under way
        await settle()
        world.zookeeper.release()
        await settle()
        assert await third == ["/a/1"]
        assert await fourth == ["/a/2"]
        assert world.zookeeper.requests[1] == [made("1"), made("2")]
        assert "/a/0" not in world.server.nodes
        world.zookeeper.hold()
        fifth, sixth = (world.start(made(str(number))) for number in (5, 6))
        await settle()
        fifth.cancel()  # in a request with another
        await settle()
        world.zookeeper.release()
        assert await sixth == ["/a/6"]
        assert [each.cancelled() for each in (first, second, fifth)] == [True] * 3
        assert await world.start(made("next")) == ["/a/next"]

    play(body)


@pytest.mark.parametrize("turns", [0, 1, 100])
def test_nobody_waits_for_a_closed_driver(turns: int) -> None:
    """Whenever it is closed: before the group has begun, or while it is under way."""

    async def body(world: World) -> None:
        first = await world.begin()
        others = [world.start(made(str(number))) for number in range(3)]
        await settle()
        first.cancel()
        for _ in range(turns):
            await asyncio.sleep(0)
        late = world.start(made("late"))
        await world.close()
        answers = await outcomes_of(*others, late)
        assert {type(each) for each in answers} == {ClientClosed}

    play(body)


def test_groups_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zk_groups, "GROUP_COUNT_MAX", 3)
    monkeypatch.setattr(zk_groups, "GROUP_SIZE_MAX", 1000)

    async def body(world: World) -> None:
        first = await world.begin()
        others = [world.start(made(str(number))) for number in range(4)]
        others += [
            world.start(made(name, bytes(size))) for name, size in (("a", 400), ("b", 400), ("c", 2000), ("d", 1))
        ]
        await settle()
        world.zookeeper.release()
        await first
        for each in others:
            await each
        names = [[each.path[3:] for each in request] for request in world.zookeeper.requests[1:]]
        assert names == [["0", "1", "2"], ["3", "a"], ["b"], ["c"], ["d"]]

    play(body)


def test_a_store_that_does_not_answer_is_told_to_all() -> None:
    async def body(world: World) -> None:
        first = await world.begin()
        others = [world.start(made(str(number))) for number in range(3)]
        await settle()
        world.server.is_silent = True
        world.zookeeper.release()
        assert {type(each) for each in await outcomes_of(first, *others)} == {MetadataError}

    play(body)
