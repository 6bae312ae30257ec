"""One log on a simulated cluster, for schedules written by hand: its processes, and what must hold of it afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from msgspec import field

from bookies.client.log import Log, LogWriter
from bookies.errors import BookKeeperError, LogTruncated
from bookies.lab.sim.checkers.log_history import ListCommit, LogCheck, LogHistory
from bookies.lab.sim.clients.log_workload import NAME, list_commits
from bookies.lab.sim.world import SimClient, SimCluster, Trace
from bookies.lab.sim.world.loop import SimLoop
from bookies.protocol.log import Position

T = TypeVar("T")
SETTINGS: dict[str, object] = {"add_timeout_ms": 300, "read_timeout_ms": 300, "connect_timeout_ms": 1_000}
HEALED_DEADLINE_S = 120.0


class SeenLog(LogHistory):
    """What everybody saw, and what of it broke a promise."""

    problems: list[str] = field(default_factory=list)

    def report(self, promise: str, text: str) -> None:
        self.problems.append(f"{promise}: {text}")


def _check_outcome(task: asyncio.Task[Any]) -> None:
    """Let what went on without a caller fail as it may, and no other way."""
    if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, BookKeeperError):
        raise error


class LogWorld:
    """One run. Processes are named by their role and their life; they are killed and paused as any participant."""

    def __init__(self, seed: object = 0, *, bookies: int = 4, quorums: tuple[int, int, int] = (3, 3, 2)) -> None:
        self.loop = SimLoop()
        self.trace = Trace(self.loop.time)
        self.cluster = SimCluster(self.loop, self.trace, f"logs/{seed}", bookies, client_settings=SETTINGS)
        self.history = SeenLog()
        self.seed = seed
        self.quorums = quorums
        self._count = 0

    def run(self, main: Callable[[LogWorld], Coroutine[Any, Any, None]], deadline_s: float = 20_000.0) -> SeenLog:
        """Make the log, run `main`, heal, read everything, check everything. Problems are in the history."""

        async def body() -> None:
            await self.cluster.start()
            maker = await self.process("maker")
            ensemble, write_quorum, ack_quorum = self.quorums
            await self.as_process(
                maker, self.log(maker).create(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum)
            )
            await main(self)
            await self.cluster.heal()
            async with asyncio.timeout(HEALED_DEADLINE_S):
                await self._read_back()
                self._check_garbage()

        try:
            try:
                self.loop.run(body(), deadline_s=deadline_s)
            except BookKeeperError as error:
                self.history.problems.append(f"L-4: {type(error).__name__}: {error}")
            except AssertionError as error:
                self.history.problems.append(f"errors: {error!r}")
            self.loop.note_unread_errors()
            self.history.problems += [f"errors: {text}" for text in (*self.loop.errors, *self.cluster.problems)]
            LogCheck(self.history, self.manifests(), self.cluster.store, self.history.report).run()
        finally:
            self.trace.is_over = True
            self.loop.close()
        return self.history

    # -- processes -----------------------------------------------------------------------------------------------
    async def process(self, role: str) -> SimClient:
        """A new client that is connected, however long the store takes."""
        while True:
            self._count += 1
            client = self.cluster.new_client(f"{role}.{self._count}")
            try:
                await self.as_process(client, self.cluster.open_client(client))
                return client
            except BookKeeperError:
                self.cluster.kill_client(client.name)

    async def as_process(self, client: SimClient, coroutine: Coroutine[Any, Any, T]) -> T:
        """Raises `asyncio.CancelledError` when the process dies first. A cancelled wait leaves it to the process."""
        task = client.participant.create_task(coroutine)
        ended: asyncio.Future[None] = self.loop.create_future()
        task.add_done_callback(lambda _: ended.done() or ended.set_result(None), context=self.loop.world.copy())
        client.participant.on_kill(lambda: None if ended.done() else ended.set_result(None))
        try:
            await ended
        except asyncio.CancelledError:
            task.add_done_callback(_check_outcome, context=self.loop.world.copy())
            raise
        if not task.done():
            raise asyncio.CancelledError(f"{client.name} died")
        return task.result()

    def log(self, client: SimClient) -> Log:
        return client.client.log(NAME)

    # -- what processes do ---------------------------------------------------------------------------------------
    async def append(self, client: SimClient, writer: LogWriter, payloads: list[bytes]) -> Position:
        """Append in one call, and write down what was answered, when."""
        number = self.history.attempt(client.name, payloads)
        try:
            last = await (writer.append(payloads[0]) if len(payloads) == 1 else writer.append_many(payloads))
        except BookKeeperError:
            self.history.failed(writer, number)
            raise
        self.history.succeeded(self.loop.time(), client.name, writer, number, payloads, last)
        return last

    # -- checks --------------------------------------------------------------------------------------------------
    async def _read_back(self) -> None:
        """A last leader can append (L-4), and a last reader reads everything."""
        client = await self.process("last")

        async def read() -> None:
            async with self.log(client).lead() as writer:
                await self.append(client, writer, [b"the end"])
            async with self.log(client).open() as reader:
                self.history.final = [(entry.position, entry.payload) async for entry in reader.read()]

        await self.as_process(client, read())

    def manifests(self) -> list[ListCommit]:
        """Every commit of the list."""
        return list_commits(self.cluster.store)

    def _check_garbage(self) -> None:
        manifest = self.manifests()[-1].manifest
        assert manifest is not None
        for ledger_id in manifest.deleting:
            self.history.report("garbage", f"ledger {ledger_id} is still to be deleted")


async def read_all(log: Log, start: Position | None = None) -> list[bytes]:
    """The payloads from `start` on. Raises `LogTruncated`."""
    async with log.open() as reader:
        return [entry.payload async for entry in reader.read(start)]


__all__ = ["LogTruncated", "LogWorld", "SeenLog", "read_all"]
