"""The control endpoint: who may call, what comes back, what is refused."""

from __future__ import annotations

import asyncio
import errno
import json
from typing import Any

import pytest

from .conftest import World

SETTINGS: dict[str, Any] = {"gc_interval_ms": 60_000}


class Caller(asyncio.Protocol):
    """Sends lines and collects those that come back."""

    def __init__(self) -> None:
        self.lines: asyncio.Queue[bytes] = asyncio.Queue()
        self.buffer = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        for line in lines:
            self.lines.put_nowait(line)

    def connection_lost(self, error: Exception | None) -> None:
        self.lines.put_nowait(b"{}")

    async def ask(self, line: bytes) -> dict[str, Any]:
        self.transport.write(line + b"\n")
        return dict(json.loads(await self.lines.get()))


async def caller_of(world: World) -> tuple[Caller, str]:
    facts = json.loads(world.disk.files()["/ledgers/control.json"])
    assert facts["bookie"] == "b1"

    async def connect() -> Caller:
        _, protocol = await world.network.port("bookie").connect("bookie", facts["port"], Caller)
        assert isinstance(protocol, Caller)
        return protocol

    return await world.client_host.create_task(connect()), facts["token"]


def request(token: str, call: str, **arguments: object) -> bytes:
    return json.dumps({"token": token, "call": call, "arguments": arguments}).encode()


def test_calls_are_answered(world: World) -> None:
    async def body(world: World) -> None:
        await world.start(**SETTINGS)
        caller, token = await caller_of(world)
        assert (await caller.ask(request(token, "space")))["result"]["live_bytes"] is None  # nobody has looked yet
        assert (await caller.ask(request(token, "gc", wait=True)))["result"]["runs"] == 1
        space = (await caller.ask(request(token, "space")))["result"]
        assert (space["runs"], space["live_bytes"]) == (1, 0)
        assert (await caller.ask(request(token, "compact", kind="major", wait=True)))["result"]["runs"] == 2
        assert (await caller.ask(request(token, "orphans")))["result"] == []
        assert (await caller.ask(request(token, "suspend", suspended=True)))["result"] is None
        assert "--resume" in (await caller.ask(request(token, "compact", kind="minor")))["error"]
        assert "no such entry log" in (await caller.ask(request(token, "why", log="/any/where/77.log")))["error"]

    world.run(body)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"", "not a request"),
        (b"[]", "not a request"),
        (b'{"token": "x"}', "not a request"),
        (request("x", "space"), "wrong token"),
        (request("TOKEN", "explode"), "no call named 'explode'"),
        (request("TOKEN", "space", much=1), "much"),
        (request("TOKEN", "compact", kind="all"), "all"),
        (request("TOKEN", "undelete", ledger=77), "has no data of it"),
        (request("TOKEN", "why", log="x.txn"), "not an entry log"),
    ],
)
def test_what_is_no_call_is_refused(world: World, line: bytes, error: str) -> None:
    async def body(world: World) -> None:
        await world.start(**SETTINGS)
        caller, token = await caller_of(world)
        assert error in (await caller.ask(line.replace(b"TOKEN", token.encode())))["error"]

    world.run(body)


def test_a_stop_ends_it_and_a_long_line_the_connection(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start(**SETTINGS)
        caller, _ = await caller_of(world)
        caller.transport.write(b"x" * 100_000)
        assert await caller.lines.get() == b"{}"
        waiting, token = await caller_of(world)
        await world.on_bookie(server.stop())
        assert await waiting.ask(request(token, "space")) == {}

    world.run(body)


def test_the_scrub_is_asked_also_where_nothing_is_collected(world: World) -> None:
    async def body(world: World) -> None:
        await world.start(scrub_period_ms=3_600_000)
        caller, token = await caller_of(world)
        status = (await caller.ask(request(token, "suspend_scrub", suspended=True)))["result"]
        assert (status["is_suspended"], status["pass"]) == (True, 0)
        assert (await caller.ask(request(token, "scrub", now=True)))["result"]["is_running"]
        await asyncio.sleep(5)
        assert (await caller.ask(request(token, "scrub")))["result"]["is_running"]
        await caller.ask(request(token, "suspend_scrub", suspended=False))
        await asyncio.sleep(5)
        status = (await caller.ask(request(token, "scrub")))["result"]
        assert (status["is_running"], status["pass"], status["damage"]) == (False, 1, [])
        assert "collection is disabled (gc_interval_ms = 0)" in (await caller.ask(request(token, "gc")))["error"]

    world.run(body)


def test_full_disks_are_told_with_what_ends_it(world: World) -> None:
    async def body(world: World) -> None:
        server = await world.start(**SETTINGS, disk_check_interval_ms=100)
        caller, token = await caller_of(world)
        disks = (await caller.ask(request(token, "disks")))["result"]
        assert (disks["mode"], disks["reason"], disks["recoveries"]) == ("writable", None, "taken")
        assert list(disks["directory"]) == ["/ledgers/current", "/journal/current"]
        usage, world.disk.usage = world.disk.usage, lambda path: (1 << 40, 1 << 30)  # type: ignore[method-assign]
        await asyncio.sleep(1)
        disks = (await caller.ask(request(token, "disks")))["result"]
        assert (disks["mode"], disks["recoveries"]) == ("read-only", "taken")
        assert disks["directory"]["/ledgers/current"] == "1,073,741,824 of 1,099,511,627,776 bytes usable, full"
        state = (await caller.ask(request(token, "state")))["result"]
        assert disks["reason"] == state["read_only_because"]
        assert "adds are accepted again when 2.8 GiB are usable" in disks["reason"]
        assert state["registered_as"] == "read-only"
        assert server.store.stats()["disks_full"] == 2
        world.disk.usage = usage  # type: ignore[method-assign]
        await asyncio.sleep(1)
        assert (await caller.ask(request(token, "state")))["result"]["registered_as"] == "writable"

    world.run(body)


def test_every_ledger_directory_says_where_and_one_that_cannot_stops_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = world.disk.replace_bytes

    def refuse_first(path: str, data: bytes, **options: Any) -> None:
        if path == "/ledgers/control.json":
            raise OSError(errno.EROFS, "read-only file system")
        replace(path, data, **options)

    async def body(world: World) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(world.disk, "replace_bytes", refuse_first)
            server = await world.start(**SETTINGS, ledger_directories=("/ledgers", "/second"))
        assert "/ledgers/control.json" not in world.disk.files()
        assert json.loads(world.disk.files()["/second/control.json"])["bookie"] == "b1"
        await world.on_bookie(server.stop())
        await world.start(**SETTINGS, ledger_directories=("/ledgers", "/second"))
        files = world.disk.files()
        assert files["/ledgers/control.json"] == files["/second/control.json"]

    world.run(body)


def test_every_line_is_answered(world: World) -> None:
    async def body(world: World) -> None:
        await world.start(**SETTINGS)
        caller, token = await caller_of(world)
        unhashable = json.dumps({"token": token, "call": []}).encode()
        for line in (unhashable, b"[" * 20_000, b"1e999", b"\xff", b""):
            assert "error" in await asyncio.wait_for(caller.ask(line), 5)

    world.run(body)
