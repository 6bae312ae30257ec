"""`bk log append`: lines that a log cannot hold do not stop its leader, and lines that were read can be appended."""

from __future__ import annotations

import argparse
import os
import pathlib

import pytest
from tests.fakes.world import World, in_world

from bookies.admin.commands.log import _append_from
from bookies.admin.shared import UsageError
from bookies.client.client import Client
from bookies.errors import InvalidArgument
from bookies.lab.sim.world.loop import SimLoop
from bookies.protocol.log.records import LogRecord

TEXT = '{"text": "a"}\n'


@pytest.fixture(autouse=True)
def files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the simulated loop refuse to watch files, as epoll does."""

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(SimLoop, "add_reader", refuse)


async def append(client: Client, log: str, path: pathlib.Path, lines: str) -> None:
    path.write_text(lines)  # noqa: ASYNC240
    arguments = argparse.Namespace(
        log=log, password="", format="json", key=None, header=[], roll_size=1 << 20, json=True
    )
    descriptor = os.open(path, os.O_RDONLY)
    try:
        await _append_from(client, arguments, descriptor)
    finally:
        os.close(descriptor)


async def records(client: Client, log: str) -> list[LogRecord]:
    async with client.log(log).open() as reader:
        return [record async for record in reader.read().records()]


@pytest.mark.parametrize(
    ("record_format", "lines", "error"),
    [
        ("raw", TEXT + '{"text": "b", "key": "k"}\n', InvalidArgument),
        ("raw", '{"text": "b", "time_ms": 5}\n', InvalidArgument),
        ("raw", "nonsense\n" + TEXT, UsageError),
        ("envelope", '{"text": "b", "time": 5}\n', UsageError),
    ],
)
def test_lines_that_are_refused_stop_no_leader(
    record_format: str, lines: str, error: type[Exception], tmp_path: pathlib.Path
) -> None:
    @in_world()
    async def run(world: World) -> None:
        client, other = await world.client(), await world.client()
        await client.log("orders").create(record_format=record_format)
        async with client.log("orders").lead() as leader:
            with pytest.raises(error):
                await append(other, "orders", tmp_path / "lines", lines)
            await leader.append(b"x")
        await append(other, "orders", tmp_path / "lines", "")
        await append(other, "orders", tmp_path / "lines", TEXT)
        assert [record.value for record in await records(client, "orders")] == [b"x", b"a"]

    run()


def test_what_was_read_can_be_appended(tmp_path: pathlib.Path) -> None:
    @in_world()
    async def run(world: World) -> None:
        client = await world.client()
        await client.log("orders").create(record_format="envelope")
        line = '{"position": "7:0", "text": "a", "key": "k", "writer": "w", "sequence": 3, "time_ms": 1700000000123}\n'
        await append(client, "orders", tmp_path / "lines", line)
        [record] = await records(client, "orders")
        assert (record.value, record.key, record.headers) == (b"a", b"k", None)
        assert record.timestamp == 1_700_000_000.123

    run()
