"""Read-only by an operator's wish: until he ends it, over restarts if the mode is kept."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from bookies.errors import Status
from bookies.metadata.embedded import MemoryDriver
from bookies.model import BookieMode
from bookies.storage.disks.status_format import parse

from .conftest import World, adds
from .test_control import caller_of, request

KEPT: dict[str, Any] = {"persist_bookie_status": True, "ledger_directories": ("/ledgers", "/more")}
FILES = ["/ledgers/current/BOOKIE_STATUS", "/more/current/BOOKIE_STATUS"]


async def modes(world: World) -> list[BookieMode]:
    driver = MemoryDriver(world.metadata)
    await driver.open()
    found = [mode for mode in BookieMode if (await driver.bookies(mode)).bookies == ("b1",)]
    await driver.close()
    return found


async def hold(world: World, read_only: bool) -> dict[str, Any]:
    caller, token = await caller_of(world)
    answer: dict[str, Any] = (await caller.ask(request(token, "hold", read_only=read_only)))["result"]
    return answer


def test_an_operator_makes_it_read_only_and_ends_it(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        client = await world.connect(server)
        assert (await client.add(adds(1, [0])))[0].status is Status.OK
        answer = await hold(world, True)
        assert (answer["mode"], answer["registered_as"]) == ("read-only", "read-only")
        assert "`bk bookie read-write` ends that" in answer["read_only_because"]
        assert "persist_bookie_status" in answer["until"]
        assert await modes(world) == [BookieMode.READ_ONLY]
        assert (await client.add(adds(1, [1])))[0].status is Status.READ_ONLY
        urgent = await world.connect(server)
        assert (await urgent.add(adds(1, [1], version=3, is_high_priority=True)))[0].status is Status.OK
        answer = await hold(world, False)
        assert (answer["mode"], answer["registered_as"]) == ("writable", "writable")
        assert answer["read_only_because"] is None
        assert await modes(world) == [BookieMode.WRITABLE]
        assert (await client.add(adds(1, [2])))[0].status is Status.OK
        await hold(world, True)
        await world.on_bookie(server.stop())
        assert not [path for path in world.disk.files() if "STATUS" in path]
        again = await world.start()
        assert again.state.mode is BookieMode.WRITABLE, "as was said"

    world.run(body)


def test_it_stays_so_over_restarts_when_the_mode_is_kept(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start(**KEPT)
        await asyncio.sleep(1)
        answer = await hold(world, True)
        assert "until" not in answer
        assert {parse(world.disk.files()[path]).is_held for path in FILES} == {True}
        await world.on_bookie(server.stop())
        for _ in range(2):
            server = await world.start(**KEPT)
            await asyncio.sleep(1)
            assert await modes(world) == [BookieMode.READ_ONLY]
            assert server.state.is_held_read_only
            await world.on_bookie(server.stop())
        server = await world.start(**KEPT)
        await hold(world, False)
        assert [parse(world.disk.files()[path]).is_read_only for path in FILES] == [False, False]
        await world.on_bookie(server.stop())
        server = await world.start(**KEPT)
        assert await modes(world) == [BookieMode.WRITABLE]

    world.run(body)


@pytest.mark.parametrize(
    ("first", "second", "mode"),
    [
        (b"1,READ_ONLY,1000,true\n", b"1,READ_WRITE,2000,false\n", BookieMode.WRITABLE),
        (b"1,READ_ONLY,3000,true\n", b"1,READ_WRITE,2000,false\n", BookieMode.READ_ONLY),
        (b"1,READ_ONLY,3000\n", None, BookieMode.READ_ONLY),
        (b"1,READ_ONLY,3000,false\n", None, BookieMode.WRITABLE),  # the disks may have room by now
        (b"nonsense", b"1,READ_ONLY,5,true\n", BookieMode.READ_ONLY),
        (b"nonsense", b"", BookieMode.WRITABLE),
    ],
)
def test_what_is_found_at_the_start(
    world: World, caplog: pytest.LogCaptureFixture, first: bytes, second: bytes | None, mode: BookieMode
) -> None:
    async def body(world: World) -> None:
        await world.on_bookie((await world.start(**KEPT)).stop())
        for path, data in zip(FILES, (first, second), strict=True):
            if data is not None:
                world.disk.put(path, data)
        server = await world.start(**KEPT)
        assert server.state.mode is mode
        assert await modes(world) == [mode]
        await hold(world, mode is BookieMode.WRITABLE)
        found = [parse(world.disk.files()[path]) for path in FILES]
        assert found[0] == found[1], "garbage is replaced as well"
        assert found[0].is_held == (mode is BookieMode.WRITABLE)
        await world.on_bookie(server.stop())
        await world.start(**(KEPT | {"persist_bookie_status": False}))
        assert await modes(world) == [BookieMode.WRITABLE], "without the setting nothing is read"

    world.run(body)
    assert caplog.text.count("status.malformed") == [first, second].count(b"nonsense") + [first, second].count(b"")


def test_a_clock_that_was_set_back_does_not_bring_back_the_past(world: World) -> None:
    async def body(world: World) -> None:
        await world.on_bookie((await world.start(**KEPT)).stop())
        future = 9_000_000_000_000
        world.disk.put(FILES[0], b"1,READ_ONLY,%d,true\n" % future)
        world.disk.fail("rename", "/ledgers/current/.BOOKIE_STATUS", lambda: OSError(5, "Input/output error"))
        server = await world.start(**KEPT)
        await hold(world, False)
        await world.on_bookie(server.stop())
        assert parse(world.disk.files()[FILES[1]]).written_ms > future
        server = await world.start(**KEPT)
        assert server.state.mode is BookieMode.WRITABLE

    world.run(body)


def test_a_mode_that_cannot_be_written_holds_until_the_stop(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def body(world: World) -> None:
        server = await world.start(**KEPT)
        await asyncio.sleep(1)
        world.disk.fail("open", "BOOKIE_STATUS", lambda: OSError(5, "Input/output error"), count=100)
        answer = await hold(world, True)
        assert answer["mode"] == "read-only"
        assert "Input/output error" in answer["until"]
        assert (await (await world.connect(server)).add(adds(1, [0])))[0].status is Status.READ_ONLY

    world.run(body)
    assert "status.not_kept" in caplog.text


def test_how_the_last_life_ended_is_said(world: World, caplog: pytest.LogCaptureFixture) -> None:
    async def body(world: World) -> None:
        server = await world.start()
        assert server.describe()["last_stop"] == "orderly"
        client = await world.connect(server)
        await client.add(adds(1, range(7)))
        world.disk.is_down = True
        await world.on_bookie(server.abort())
        await asyncio.sleep(1)
        world.disk.is_down = False
        world.disk.locks.clear()
        _, driver = world.forget_last()
        await world.on_bookie(driver.close())
        server = await world.start()
        assert server.describe()["last_stop"] == "not orderly: 7 entries were restored from the journal"
        caller, token = await caller_of(world)
        state = (await caller.ask(request(token, "state")))["result"]
        assert state["last_stop"] == server.describe()["last_stop"]
        assert state["ledger_directories"] == "/ledgers"
        await world.on_bookie(server.stop())
        assert (await world.start()).describe()["last_stop"] == "orderly"

    world.run(body)
    assert caplog.text.count("bookie.unclean_start") == 1
