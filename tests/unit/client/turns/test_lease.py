"""Locks, elections and leaders that take turns, through the client: waiting, loss, release, and what is refused."""

from __future__ import annotations

import asyncio

import pytest
from tests.fakes.world import World, in_world

from bookies.client.client import Client
from bookies.errors import (
    ClientClosed,
    InvalidArgument,
    LeaseHeld,
    LeaseLost,
    LogFenced,
    LogNotFound,
    MetadataError,
    RecordNotFound,
)
from bookies.metadata.embedded import MemoryDriver
from bookies.protocol.log.lease import parse_queue


class Outage:
    """Makes requests for records fail while `is_on`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, driver: object) -> None:
        self.is_on = False
        for name in ("read_record", "write_record", "create_record"):
            original = getattr(MemoryDriver, name)

            async def request(own: MemoryDriver, *arguments: object, original: object = original) -> object:
                if self.is_on and own is driver:
                    raise MetadataError("the store does not answer")
                return await original(own, *arguments)  # type: ignore[operator]

            monkeypatch.setattr(MemoryDriver, name, request)


def now() -> float:
    return asyncio.get_running_loop().time()


async def names_of(client: Client, record: str) -> list[str]:
    data, _ = await client._driver.read_record(record)
    return [each.text for each in parse_queue(record, data).participants]


@in_world()
async def test_turns_come_in_the_order_of_arrival_and_begin_at_once(world: World) -> None:
    clients = [await world.client() for _ in range(4)]
    served: list[tuple[int, int]] = []

    async def work(number: int) -> None:
        async with clients[number].lock("nightly", text=f"p{number}") as lease:
            assert lease.is_held
            lease.check()
            served.append((number, lease.token))
            await asyncio.sleep(30)

    tasks = []
    for number in range(4):
        tasks.append(asyncio.create_task(work(number)))
        await asyncio.sleep(1)
    assert await names_of(clients[0], "locks/nightly") == ["p0", "p1", "p2", "p3"]
    await asyncio.gather(*tasks)
    assert served == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert 120 <= now() < 122
    async with clients[0].lock("nightly") as lease:
        assert lease.token == 5
    assert not lease.is_held
    with pytest.raises(LeaseLost, match="was released"):
        lease.check()


@in_world()
async def test_a_dead_process_is_passed_after_its_ttl(world: World) -> None:
    first, second = await world.client(), await world.client()
    lease = await first.lock("x", ttl=5)
    waiting = asyncio.create_task(second.lock("x", ttl=5).begin())
    await asyncio.sleep(1)
    began_s = now()
    next(task for task in asyncio.all_tasks() if task.get_name() == "keep lock x").cancel()  # as if killed
    got = await waiting
    assert 3.0 < now() - began_s < 6.5
    assert not lease.is_held
    assert got.token > lease.token
    with pytest.raises(LeaseLost, match="lock x was not renewed in time"):
        lease.check()
    await got.release()


@in_world()
async def test_the_block_of_a_lost_lease_is_cancelled_before_another_process_has_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await world.client(), await world.client()
    outage = Outage(monkeypatch, first._driver)
    lost: list[float] = []

    async def work() -> None:
        async with first.lock("x", ttl=3) as lease:
            lease.on_lost(lambda: lost.append(now()))
            outage.is_on = True
            await asyncio.sleep(1000)

    async def follow() -> float:
        async with second.lock("x", ttl=3):
            return now()

    working = asyncio.create_task(work())
    await asyncio.sleep(0.5)
    following = asyncio.create_task(follow())
    with pytest.raises(LeaseLost, match="another process may have it"):
        await working
    assert await following > lost[0]
    assert len(lost) == 1


@in_world()
async def test_a_cancellation_from_outside_stays_one(world: World) -> None:
    client = await world.client()
    entered = asyncio.Event()

    async def work() -> None:
        async with client.lock("x"):
            entered.set()
            await asyncio.sleep(1000)

    task = asyncio.create_task(work())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await names_of(client, "locks/x") == []


@in_world()
async def test_without_waiting(world: World) -> None:
    first, second = await world.client(), await world.client()
    async with first.lock("x", text="worker 7"):
        began_s = now()
        with pytest.raises(LeaseHeld, match="lock x is held by worker 7"):
            await second.lock("x", wait=False)
        assert now() - began_s < 4  # a third of the ttl
        with pytest.raises(TimeoutError, match="wait for lock x: not done within 2 s"):
            await second.lock("x", timeout=2)
        assert await names_of(first, "locks/x") == ["worker 7"]
    async with second.lock("x", wait=False) as lease:
        assert lease.token > 1


@in_world()
async def test_who_leads(world: World) -> None:
    first, second = await world.client(), await world.client()
    election = second.election("mailer")
    assert await election.leader() is None
    async with first.election("mailer").lead(text="a"):
        assert await election.leader() == "a"
        waiting = asyncio.create_task(election.lead(text="b").begin())
        await asyncio.sleep(1)
    lease = await waiting
    assert await election.leader() == "b"
    await lease.release()
    await lease.release()
    assert (await election.leader(), repr(election)) == (None, "<Election mailer>")
    assert "not held" in repr(lease)


@in_world()
async def test_a_record_that_disappears_ends_the_lease(world: World) -> None:
    client = await world.client()

    async def work() -> None:
        async with client.lock("x"):
            _, version = await client._driver.read_record("locks/x")
            await client._driver.delete_record("locks/x", version)
            await asyncio.sleep(1000)

    with pytest.raises(LeaseLost):
        await work()
    with pytest.raises(RecordNotFound):
        await client._driver.read_record("locks/x")


@in_world()
async def test_what_is_refused(world: World) -> None:
    client = await world.client()
    for call in (
        lambda: client.lock("a b"),
        lambda: client.election("/"),
        lambda: client.lock("x", ttl=0),
        lambda: client.lock("x", wait=1),  # type: ignore[arg-type]
        lambda: client.lock("x", text=""),
    ):
        with pytest.raises(InvalidArgument):
            call()
    lease = await client.lock("x")
    await client.close()
    with pytest.raises(ClientClosed):
        await client.lock("x")
    await lease.release()


# -- leaders ---------------------------------------------------------------------------------------------------------


@in_world()
async def test_leaders_that_wait_take_turns(world: World) -> None:
    clients = [await world.client() for _ in range(3)]
    await clients[0].log("orders").create()
    epochs = []

    async def lead(number: int) -> None:
        async with clients[number].log("orders").lead(wait=True) as writer:
            for _ in range(3):
                await writer.append(b"%d" % number)
                await asyncio.sleep(5)
            epochs.append(writer.epoch)

    await asyncio.gather(*map(lead, range(3)))
    assert epochs == [1, 2, 3]
    async with clients[0].log("orders").open() as reader:
        payloads = [entry.payload async for entry in reader.read()]
    assert payloads == sorted(payloads, key=payloads.index)
    assert len(payloads) == 9
    assert await names_of(clients[0], "leaders/orders") == []


@in_world()
async def test_a_leader_that_does_not_wait_stops_one_that_holds_the_turn(world: World) -> None:
    first, second, third = [(await world.client()).log("orders") for _ in range(3)]
    await first.create()
    with pytest.raises(LogNotFound):
        await (await world.client()).log("none").lead(wait=True)
    async with first.lead(wait=True) as writer:
        await writer.append(b"a")
        waiting = asyncio.create_task(third.lead(wait=True).begin())
        async with second.lead() as other:
            await other.append(b"b")
        with pytest.raises(LogFenced):
            await writer.append(b"c")
        await asyncio.sleep(30)
        assert not waiting.done()  # the turn is given up by the end of the block
        with pytest.raises(InvalidArgument):
            first.lead(wait="yes")  # type: ignore[arg-type]
        await writer.abandon()
    leader = await waiting
    assert leader.epoch == 3
    await leader.close()


@in_world()
async def test_a_leader_without_its_turn_goes_on_until_another_one_leads(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await world.client(), await world.client()
    log = first.log("orders")
    await log.create()
    outage = Outage(monkeypatch, first._driver)
    writer = await log.lead(wait=True)
    outage.is_on = True
    await asyncio.sleep(60)
    await writer.append(b"a")
    outage.is_on = False
    await asyncio.sleep(30)
    assert await names_of(second, "leaders/orders") != []  # it has the turn again
    await writer.append(b"b")
    outage.is_on = True
    other = await second.log("orders").lead(wait=True)
    await other.append(b"c")
    outage.is_on = False
    await asyncio.sleep(30)
    waiting = await names_of(second, "leaders/orders")
    assert len(waiting) == 1  # the first one does not lead any more, and does not wait again
    await other.close()
    assert await names_of(second, "leaders/orders") == []
    with pytest.raises(LogFenced, match="another process"):
        await writer.append(b"d")
    await writer.abandon()


@in_world()
async def test_leaders_of_a_deleted_log_leave_no_turns_behind(world: World) -> None:
    first, second = await world.client(), await world.client()
    log = first.log("orders")
    await log.create()
    writer = await log.lead(wait=True)
    waiting = asyncio.create_task(second.log("orders").lead(wait=True).begin())
    await asyncio.sleep(5)
    await second.log("orders").delete()
    await asyncio.sleep(30)
    with pytest.raises((LogNotFound, LogFenced)):
        await writer.append(b"a")
    await writer.abandon()
    with pytest.raises(LogNotFound):
        await waiting
    for name in ("leaders/orders", "logs/orders"):
        with pytest.raises(RecordNotFound):
            await first._driver.read_record(name)


@in_world()
async def test_a_leader_that_is_released_at_once_gives_its_turn_up(world: World) -> None:
    client = await world.client()
    log = client.log("orders")
    await log.create()
    writer = await log.lead(wait=True)
    await writer.abandon()
    assert await names_of(client, "leaders/orders") == []
    with pytest.raises(LogFenced, match="was chosen"):
        await log.lead(wait=True, is_candidate=lambda: False)
    assert await names_of(client, "leaders/orders") == []
