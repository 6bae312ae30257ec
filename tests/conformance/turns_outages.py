"""Locks, leaders and consumers on a real metadata service: processes are killed and suspended, the service restarts.

The tests of each service derive a class from `TurnsOutages` and provide the fixture `server`.
"""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from typing import ClassVar

import pytest
from tests.conformance.metadata_outages import PATIENCE_S, Server, driver_of, until

import bookies
from bookies.bookie.server import BookieServer
from bookies.client.log import Log
from bookies.client.turns.lease import CONSUMERS, LEADERS, LOCKS, Contest
from bookies.config import BookieConfig
from bookies.metadata.interface import MetadataDriver
from bookies.runtime import aio

ENTRIES = 5_000  # more than the consumers handle during a test
ONE = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}


@contextlib.asynccontextmanager
async def process(*words: str) -> AsyncIterator[Process]:
    started = await asyncio.create_subprocess_exec(sys.executable, "-m", "tests.live.turns", *words, stdout=PIPE)
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            started.kill()
        await started.communicate()


async def line(started: Process, word: str) -> str:
    """Read lines until one begins with this word; return its rest."""
    assert started.stdout is not None
    async for text in started.stdout:
        first, _, rest = text.decode().strip().partition(" ")
        if first == word:
            return rest
    raise AssertionError(f"the process ended without {word}")


async def left_at(log: Log, consumer: str) -> int:
    """Wait until the next process consumes, and return the entry at which the one before has left the cursor."""
    left = (await log.cursors())[consumer]
    while (cursor := (await log.cursors())[consumer]).token == left.token:
        left = cursor
        await asyncio.sleep(0.05)
    return left.position.entry_id


async def wait_queued(driver: MetadataDriver, record: str, count: int) -> None:
    contest = Contest(aio.runtime(), driver, record, record)

    async def has_come() -> bool:
        return len((await contest.queue())[0].participants) == count

    await until(has_come)


@contextlib.asynccontextmanager
async def bookie(uri: str, folder: pathlib.Path) -> AsyncIterator[None]:
    driver = await driver_of(uri)
    config = BookieConfig(
        bookie_id="b1", port=0, journal_directories=(f"{folder}/journal",), ledger_directories=(f"{folder}/ledgers",)
    )
    running = BookieServer(aio.runtime(), config, driver)
    await running.start()
    try:
        yield
    finally:
        await running.stop()
        await driver.close()


class TurnsOutages:
    """Tests for one service. `scheme`: of its addresses."""

    scheme: ClassVar[str]

    def uri(self, server: Server) -> str:
        return f"{self.scheme}://{server.address}/ledgers"

    def test_turns_of_a_lock(self, server: Server) -> None:
        """In order of arrival, whether the one before was killed or suspended, or the service was started again."""

        async def main() -> None:
            uri = self.uri(server)
            driver = await driver_of(uri)
            await driver.initialize_cluster()
            async with contextlib.AsyncExitStack() as stack:
                holders = []
                for count in range(1, 5):
                    holders.append(await stack.enter_async_context(process("lock", uri, "nightly")))
                    await wait_queued(driver, f"{LOCKS}nightly", count)
                tokens = [int(await line(holders[0], "token"))]
                holders[0].kill()
                tokens.append(int(await line(holders[1], "token")))
                holders[1].send_signal(signal.SIGSTOP)
                tokens.append(int(await line(holders[2], "token")))
                holders[1].send_signal(signal.SIGCONT)
                assert "was not renewed in time" in await line(holders[1], "lost")
                server.kill()
                await asyncio.to_thread(server.start)
                holders[2].kill()
                tokens.append(int(await line(holders[3], "token")))
                assert tokens == sorted(set(tokens))
            await driver.close()

        asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE_S))

    @pytest.mark.parametrize("how", ["kill", "suspend"])
    def test_leaders_and_consumers(self, server: Server, tmp_path: pathlib.Path, how: str) -> None:
        """The next leader, and the next consumer, continue where the one before has stopped; the service restarts."""

        async def main() -> None:
            uri = self.uri(server)
            driver = await driver_of(uri)
            await driver.initialize_cluster()
            async with bookie(uri, tmp_path), bookies.connect(uri) as store, contextlib.AsyncExitStack() as stack:

                async def pair(kind: str, log: str, record: str) -> tuple[Process, Process]:
                    first = await stack.enter_async_context(process(kind, uri, log, "a"))
                    await wait_queued(driver, record, 1)
                    second = await stack.enter_async_context(process(kind, uri, log, "a"))
                    await wait_queued(driver, record, 2)
                    return first, second

                for name in ("led", "read"):
                    await store.log(name).create(**ONE)
                async with store.log("read").lead() as writer:
                    await writer.append_many([b"%d" % number for number in range(ENTRIES)])
                leaders = await pair("leader", "led", f"{LEADERS}led")
                consumers = await pair("consumer", "read", f"{CONSUMERS}read/a")
                await line(leaders[0], "appended")
                await line(consumers[0], "handled")
                server.kill()
                await asyncio.to_thread(server.start)

                async def has_committed() -> bool:
                    return (await store.log("read").cursors())["a"].position.entry_id > 0

                await until(has_committed)
                for first in (leaders[0], consumers[0]):
                    first.send_signal(signal.SIGKILL if how == "kill" else signal.SIGSTOP)
                leaving = asyncio.ensure_future(left_at(store.log("read"), "a"))
                assert int(await line(leaders[1], "epoch")) == 2
                await line(leaders[1], "appended")
                assert int(await line(consumers[1], "handled")) == await leaving > 0
                if how == "suspend":
                    consumers[0].send_signal(signal.SIGCONT)
                    assert "not renewed in time" in await line(consumers[0], "lost")
            await driver.close()

        asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE_S))

    def test_shared_consumers(self, server: Server, tmp_path: pathlib.Path) -> None:
        """Each entry is handled although one process is killed, one is suspended, and the service restarts."""

        async def main() -> None:
            uri = self.uri(server)
            driver = await driver_of(uri)
            await driver.initialize_cluster()
            async with bookie(uri, tmp_path), bookies.connect(uri) as store, contextlib.AsyncExitStack() as stack:
                await store.log("shared").create(**ONE)
                async with store.log("shared").lead() as writer:
                    await writer.append_many([b"%d" % number for number in range(1_000)])
                members = [await stack.enter_async_context(process("shared", uri, "shared", "a")) for _ in range(3)]
                handled = {int(await line(member, "handled")) for member in members}
                members[1].send_signal(signal.SIGSTOP)
                members[0].kill()
                server.kill()
                await asyncio.to_thread(server.start)
                await wait_queued(driver, f"{CONSUMERS}shared/a", 1)
                members[1].send_signal(signal.SIGCONT)
                for index in (0, 1):
                    output = (await members[index].communicate())[0].decode().split("\n")
                    handled.update(int(text.split()[1]) for text in output if text.startswith("handled "))
                while len(handled) < 1_000:
                    handled.add(int(await line(members[2], "handled")))
            await driver.close()

        asyncio.run(asyncio.wait_for(main(), 2 * PATIENCE_S))
