"""Start, stop, registration and failure of a bookie, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from bookies.bookie.identity import check_identity, identity
from bookies.bookie.server import BookieServer
from bookies.bookie.state import Phase
from bookies.config import BookieConfig
from bookies.errors import (
    ConfigError,
    CookieMismatch,
    DirectoryInUse,
    DiskFull,
    MetadataError,
    RegisteredElsewhere,
    Status,
    StorageError,
)
from bookies.lab.sim.world.disk import Loss
from bookies.metadata.embedded import MemoryDriver
from bookies.metadata.embedded.memory import MemoryStore
from bookies.model import BookieId, BookieInfo, BookieMode, Endpoint
from bookies.wire.messages import ReadRequest

from .conftest import World, adds

B1 = BookieId("b1")


async def registered(world: World, mode: BookieMode) -> tuple[str, ...]:
    driver = MemoryDriver(world.metadata)
    await driver.open()
    found = (await driver.bookies(mode)).bookies
    await driver.close()
    return found


async def wait_until(condition: Callable[[], bool], step_s: float = 0.0001) -> None:
    """In virtual time, where looking often costs nothing."""
    for _ in range(1_000_000):
        if condition():
            return
        await asyncio.sleep(step_s)
    raise AssertionError("it never happened")


def test_a_bookie_publishes_where_it_really_listens(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start(port=0)
        assert server.address[1] != 0
        driver = MemoryDriver(world.metadata)
        await driver.open()
        info = await driver.bookie_info(B1)
        assert info is not None
        assert info.rpc_address() == server.address
        assert info.endpoints[0].id == "bookie"
        await driver.close()
        assert repr(server) == f"<BookieServer b1 at bookie:{server.address[1]}, {server.state!r}>"

    world.run(body)


def test_a_bookie_behind_a_proxy_publishes_the_proxy(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start(port=0, advertised_host="proxy.example", advertised_port=3181)
        driver = MemoryDriver(world.metadata)
        await driver.open()
        info = await driver.bookie_info(B1)
        assert info is not None
        assert info.rpc_address() == ("proxy.example", 3181)
        assert server.address[0] == "bookie"
        await driver.close()

    world.run(body)


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"host": "10.0.0.7", "port": 3181}, "10.0.0.7:3181"),
        ({"host": "0.0.0.0", "advertised_host": "b1.example"}, "b1.example:3181"),
        ({"host": "0.0.0.0", "advertised_host": "b1.example", "advertised_port": 4000}, "b1.example:4000"),
        ({"host": "0.0.0.0", "advertised_host": "b1.example", "bookie_id": "b1"}, "b1"),
        ({"host": "0.0.0.0"}, None),
        ({"host": "0.0.0.0", "bookie_id": "b1"}, None),
        ({"host": "10.0.0.7", "advertised_host": "0.0.0.0", "bookie_id": "b1"}, None),
    ],
)
def test_the_name_of_a_bookie_is_where_others_reach_it(settings: dict[str, Any], name: str | None) -> None:
    config = BookieConfig(**settings)
    if name is None:
        with pytest.raises(ConfigError, match="host"):
            check_identity(config)
    else:
        check_identity(config)
        assert identity(config) == name


def test_connections_are_closed_at_once_until_the_bookie_is_ready(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.on_bookie(world.new_server())
        held = asyncio.get_running_loop().create_future()
        start = server.store.start

        async def slow_start() -> None:
            await held
            await start()

        server.store.start = slow_start  # type: ignore[method-assign]
        task = world.bookie_host.create_task(server.start())
        await asyncio.sleep(0.1)
        early = await world.connect(server)
        await early.closed()
        assert await registered(world, BookieMode.WRITABLE) == ()
        held.set_result(None)
        await task
        client = await world.connect(server)
        assert (await client.add(adds(1, [0])))[0].status is Status.OK
        assert await registered(world, BookieMode.WRITABLE) == ("b1",)

    world.run(body)


def test_a_stopping_bookie_does_not_say_that_it_is_read_only(world: World) -> None:
    """A writer that delays ensemble changes would make one, or end where there is no other bookie."""

    async def body(world: World) -> None:
        server = await world.start()
        client = await world.connect(server)
        assert (await client.add(adds(1, [0])))[0].status is Status.OK
        unregister = server._registration.end

        async def slow_unregister() -> None:
            await asyncio.sleep(0.5)
            await unregister()

        server._registration.end = slow_unregister  # type: ignore[method-assign]
        stop = world.bookie_host.create_task(server.stop())
        await wait_until(lambda: not server.state.may_serve(), step_s=0.000_002)
        client.send(adds(1, [1]))
        await client.closed()
        assert not client.frames
        await stop

    world.run(body)


def test_stop_answers_what_was_accepted_and_unregisters(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        client = await world.connect(server)
        client.send(adds(1, range(1000)))
        await wait_until(
            lambda: server._reception.intake.adds_size > 0, step_s=0.000_002
        )  # less than a write to the disk takes
        began = asyncio.get_running_loop().time()
        stop = world.bookie_host.create_task(server.stop())
        answers = [await client.response() for _ in range(1000)]
        assert {answer.status for answer in answers} == {Status.OK}
        await client.closed()
        await stop
        assert asyncio.get_running_loop().time() - began < 5
        assert await registered(world, BookieMode.WRITABLE) == ()
        with pytest.raises(ConnectionRefusedError):
            await world.connect(server)
        await server.stop()
        again = await world.start()
        client = await world.connect(again)
        assert (await client.ask(ReadRequest(2, 0, 1, 999))).status is Status.OK

    world.run(body)


def test_what_was_answered_survives_a_power_failure(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        client = await world.connect(server)
        await client.add(adds(1, range(100)))
        await asyncio.sleep(1)  # no journal file is being prepared any more
        world.disk.is_down = True
        await world.on_bookie(server.abort())
        world.disk.crash(Loss(survival=0.0))
        world.disk.is_down = False
        (_, driver) = world._started.pop()
        await world.on_bookie(driver.close())
        client = await world.connect(await world.start())
        for entry_id in range(100):
            assert (await client.ask(ReadRequest(2, 0, 1, entry_id))).status is Status.OK

    world.run(body)


def test_a_lost_session_is_made_good_while_requests_are_served(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        client = await world.connect(server)
        (_, driver) = world._started[0]
        driver.expire()
        assert (await client.add(adds(1, [0])))[0].status is Status.OK
        await asyncio.sleep(30)
        assert await registered(world, BookieMode.WRITABLE) == ("b1",)

    world.run(body)


def test_a_bookie_ends_when_another_process_has_taken_its_id(world: World) -> None:
    """Its session had ended while it was paused. A client could reach either process."""

    async def body(world: World) -> None:
        server = await world.start()
        client = await world.connect(server)
        (_, driver) = world._started[0]
        driver.expire()
        clone = MemoryDriver(world.metadata)
        await clone.open()
        await clone.register(
            B1, BookieMode.WRITABLE, BookieInfo((Endpoint("bookie", "elsewhere", 3181, "bookie-rpc"),))
        )
        async with asyncio.timeout(60):
            assert isinstance(await server.wait_failed(), RegisteredElsewhere)
        assert not server.state.may_serve()
        await world.on_bookie(server.abort())
        await client.closed()
        await clone.close()

    world.run(body)


def test_registration_is_tried_again_until_it_works(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        (_, driver) = world._started[0]
        register, failures = driver.register, 3

        async def flaky(*arguments: Any) -> None:
            nonlocal failures
            if failures:
                failures -= 1
                raise MetadataError("no leader")
            await register(*arguments)

        driver.register = flaky  # type: ignore[method-assign]
        driver.expire()
        await asyncio.sleep(60)
        assert failures == 0
        assert server.state.registered_as is BookieMode.WRITABLE
        assert await registered(world, BookieMode.WRITABLE) == ("b1",)

    world.run(body)
    assert caplog.text.count("registration.failed") == 3


def test_a_read_only_bookie_is_registered_as_such_and_comes_back(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        server.state.hold_read_only(True)
        server._mode_changed()
        await asyncio.sleep(1)
        assert await registered(world, BookieMode.READ_ONLY) == ("b1",)
        assert await registered(world, BookieMode.WRITABLE) == ()
        server.state.hold_read_only(False)
        server._mode_changed()
        await asyncio.sleep(1)
        assert await registered(world, BookieMode.READ_ONLY) == ()
        assert await registered(world, BookieMode.WRITABLE) == ("b1",)

    world.run(body)


def test_a_failed_journal_is_the_end(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        client = await world.connect(server)
        await client.add(adds(1, [0]))
        world.disk.fail("fdatasync", "/journal", lambda: OSError(5, "Input/output error"))
        client.send(adds(1, [1]))
        async with asyncio.timeout(10):
            cause = await server.wait_failed()
        assert "Input/output error" in f"{cause} {cause.__cause__}"
        assert not server.state.may_serve()
        await asyncio.sleep(1)
        while client.frames:
            assert (await client.response()).status is not Status.OK
        await world.on_bookie(server.abort())
        await client.closed()

    world.run(body)
    assert "bookie.failed" in caplog.text


def test_a_dead_task_is_the_end(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        (_, driver) = world._started[0]

        async def broken(*arguments: Any) -> None:
            raise KeyError("a bug")

        driver.register = broken  # type: ignore[method-assign]
        driver.expire()
        async with asyncio.timeout(10):
            cause = await server.wait_failed()
        assert isinstance(cause, KeyError)
        assert "registration of b1" in "".join(cause.__notes__)

    world.run(body)


def test_port_in_use_changes_nothing(world: World) -> None:
    async def body(world: World) -> None:
        taken = await world.network.port("bookie").listen("bookie", 3181, asyncio.Protocol)
        server = await world.on_bookie(world.new_server())
        with pytest.raises(OSError) as caught:
            await world.on_bookie(server.start())
        assert caught.value.errno == 98
        assert not world.disk.files()
        taken.close()
        await world.on_bookie(server.stop())

    world.run(body)


def test_two_bookies_on_one_directory(world: World) -> None:
    async def body(world: World) -> None:
        first = await world.start()
        second = await world.on_bookie(world.new_server(port=3182))
        before = world.disk.files()
        with pytest.raises(DirectoryInUse):
            await world.on_bookie(second.start())
        assert world.disk.files() == before
        client = await world.connect(first)
        assert (await client.add(adds(1, [0])))[0].status is Status.OK
        assert await registered(world, BookieMode.WRITABLE) == ("b1",)

    world.run(body)


def test_two_new_bookies_cannot_both_take_empty_directories(world: World) -> None:
    async def body(world: World) -> None:
        servers = [await world.on_bookie(world.new_server(bookie_id=f"b{n}", port=4000 + n)) for n in (1, 2)]
        tasks = [world.bookie_host.create_task(server.start()) for server in servers]
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["DirectoryInUse", "NoneType"]
        (winner,) = [server for server, outcome in zip(servers, outcomes, strict=True) if outcome is None]
        await world.on_bookie(winner.stop())
        await world.start(bookie_id=winner.bookie_id)

    world.run(body)


def test_directories_of_another_bookie_or_cluster(world: World) -> None:
    async def body(world: World) -> None:
        await world.on_bookie((await world.start()).stop())
        other = await world.on_bookie(world.new_server(bookie_id="b2"))
        with pytest.raises(CookieMismatch, match="belongs to bookie b1"):
            await world.on_bookie(other.start())
        world.metadata, first = MemoryStore(), world.metadata
        stranger = await world.on_bookie(world.new_server())
        with pytest.raises(CookieMismatch, match="belongs to a cluster, but there is none at"):
            await world.on_bookie(stranger.start())
        driver = MemoryDriver(world.metadata)
        await driver.open()
        assert await driver.instance_id() is None, "no cluster was made by mistake"
        await driver.close()
        world.metadata = first
        await world.start()

    world.run(body)


def test_a_full_disk_turns_the_bookie_read_only_and_reads_go_on() -> None:
    world = World(capacity=24 << 20)

    async def body(world: World) -> None:
        server = await world.start(checkpoint_interval_ms=500, write_cache_size=1 << 20)
        client = await world.connect(server)
        accepted = -1
        for first in range(0, 10_000, 5):
            statuses = [answer.status for answer in await client.add(adds(1, range(first, first + 5), size=50_000))]
            if statuses != [Status.OK] * 5:
                break
            accepted = first + 4
            await asyncio.sleep(10)  # so long the disks may go unmeasured
        assert accepted > 0
        assert set(statuses) == {Status.READ_ONLY}
        await asyncio.sleep(10)
        assert not server._cause.done(), "a full disk is no failure"
        assert server.state.mode is BookieMode.READ_ONLY
        assert await registered(world, BookieMode.READ_ONLY) == ("b1",)
        for entry_id in (0, accepted):
            assert (await client.ask(ReadRequest(2, 0, 1, entry_id))).status is Status.OK

    world.run(body)


def test_start_failures_leave_nothing_behind(world: World) -> None:
    async def body(world: World) -> None:
        world.disk.fail("mkdir", "/ledgers", lambda: DiskFull("/ledgers: No space left on device"))
        server = await world.on_bookie(world.new_server())
        server.store.start, start = fail_start, server.store.start  # type: ignore[method-assign]
        with pytest.raises(StorageError):
            await world.on_bookie(server.start())
        with pytest.raises(ConnectionRefusedError):
            await world.connect(server)
        assert await registered(world, BookieMode.WRITABLE) == ()
        del start

    async def fail_start() -> None:
        raise StorageError("no")

    world.run(body)


def test_a_failure_during_the_start_is_the_failure_of_the_start(world: World) -> None:
    """A journal may fail after the storage has started and before the bookie serves."""

    class Driver(MemoryDriver):
        async def instance_id(self) -> str | None:
            server._fail(StorageError("the journal cannot be written"))
            return await super().instance_id()

    async def start() -> None:
        nonlocal server
        runtime = world.runtime("bookie")
        driver = Driver(world.metadata, runtime)
        await driver.open()
        server = BookieServer(runtime, BookieConfig(**world.settings), driver)
        with pytest.raises(StorageError, match="the journal cannot be written"):
            await server.start()
        await driver.close()

    async def body(world: World) -> None:
        await world.on_bookie(start())
        assert server.state.phase is Phase.STOPPING
        with pytest.raises(ConnectionRefusedError):
            await world.connect(server)
        assert await registered(world, BookieMode.WRITABLE) == ()

    server: BookieServer
    world.run(body)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"port": 0}, "needs a fixed bookie_id"),
        ({"host": "0.0.0.0"}, "name one address"),
        ({"bookie_id": "a b"}, "letters, digits"),
        ({"bookie_id": "ReadOnly"}, "not the name `readonly`"),
        ({"bookie_id": "a/b"}, "letters, digits"),
    ],
)
def test_identity(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        check_identity(BookieConfig(**settings))
    check_identity(BookieConfig(bookie_id="b-1.x_y:3"))
    assert BookieServer.__doc__
