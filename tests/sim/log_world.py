"""Logs on a simulated cluster: leaders that duel, readers that follow, and what must hold of the log afterwards.

The checks know nothing of the code under test but its record: they look at what was acknowledged and when, at every
committed list of ledgers, at what readers got, and at what a last reader finds (client-protocol 8.2, I-20 to I-22).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from random import Random
from typing import Any, TypeVar

from bookies.client.log import Log
from bookies.client.log_writer import LogWriter
from bookies.errors import BookKeeperError, LogTruncated
from bookies.protocol.log import Manifest, Position, illegality, parse_manifest
from bookies.protocol.log_segments import joined, parse_segment
from bookies.sim.cluster import SimClient, SimCluster
from bookies.sim.faults import FaultPlan, Faults, Injected
from bookies.sim.loop import SimLoop
from bookies.sim.trace import Trace

T = TypeVar("T")
NAME = "orders"
SETTINGS: dict[str, object] = {"add_timeout_ms": 300, "read_timeout_ms": 300, "connect_timeout_ms": 1_000}
HEALED_DEADLINE_S = 120.0


@dataclass(frozen=True)
class Ack:
    at_s: float
    process: str
    position: Position
    payload: bytes


@dataclass
class LogHistory:
    """What everybody saw. `truncated_to`: payloads before this position need not be there; by whoever asked."""

    acks: list[Ack] = field(default_factory=list)
    attempted: dict[bytes, tuple[str, int]] = field(default_factory=dict)  # payload -> by whom, as which of all
    readings: list[list[tuple[Position, bytes]]] = field(default_factory=list)  # each from the beginning
    final: list[tuple[Position, bytes]] = field(default_factory=list)
    outcomes: dict[LogWriter, list[tuple[int, bool]]] = field(default_factory=dict)  # (which attempt, success)
    was_truncated: bool = False
    problems: list[str] = field(default_factory=list)


class LogWorld:
    """One run. Processes are named by their role and their life; they are killed and paused as any participant."""

    def __init__(self, seed: object = 0, *, bookies: int = 4, quorums: tuple[int, int, int] = (3, 3, 2)) -> None:
        self.loop = SimLoop()
        self.trace = Trace(self.loop.time)
        self.cluster = SimCluster(self.loop, self.trace, f"logs/{seed}", bookies, client_settings=SETTINGS)
        self.history = LogHistory()
        self.seed = seed
        self.quorums = quorums
        self.is_over = False
        self._count = 0

    def run(self, main: Callable[[LogWorld], Coroutine[Any, Any, None]], deadline_s: float = 20_000.0) -> LogHistory:
        """Make the log, run `main`, heal, read everything, check everything. Problems are in the history."""

        async def body() -> None:
            await self.cluster.start()
            maker = await self.process("maker")
            ensemble, write_quorum, ack_quorum = self.quorums
            await self.as_process(
                maker, self.log(maker).create(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum)
            )
            await main(self)
            self.is_over = True
            await self.cluster.heal()
            async with asyncio.timeout(HEALED_DEADLINE_S):
                await self._read_back()
                await self._check_ledgers()

        try:
            try:
                self.loop.run(body(), deadline_s=deadline_s)
            except BookKeeperError as error:
                self.history.problems.append(f"L-4: {type(error).__name__}: {error}")
            except AssertionError as error:
                self.history.problems.append(f"errors: {error!r}")
            self.loop.note_unread_errors()
            self.history.problems += [f"errors: {text}" for text in (*self.loop.errors, *self.cluster.problems)]
            self._check_commits()
            self._check_log()
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
        """Raises `asyncio.CancelledError` when the process dies first."""
        task = client.participant.create_task(coroutine)
        ended: asyncio.Future[None] = self.loop.create_future()
        task.add_done_callback(lambda _: ended.done() or ended.set_result(None), context=self.loop.world.copy())
        client.participant.on_kill(lambda: None if ended.done() else ended.set_result(None))
        await ended
        if not task.done():
            raise asyncio.CancelledError(f"{client.name} died")
        return task.result()

    def log(self, client: SimClient) -> Log:
        return client.client.log(NAME)

    # -- what processes do ---------------------------------------------------------------------------------------
    async def append(self, client: SimClient, writer: LogWriter, payloads: list[bytes]) -> Position:
        """Append in one call, and write down what was answered, when."""
        for payload in payloads:
            self.history.attempted[payload] = (client.name, len(self.history.attempted))
        number = self.history.attempted[payloads[0]][1]
        try:
            last = await (writer.append(payloads[0]) if len(payloads) == 1 else writer.append_many(payloads))
        except BookKeeperError:
            self.history.outcomes.setdefault(writer, []).append((number, False))
            raise
        self.history.outcomes.setdefault(writer, []).append((number, True))
        # Of a batch that went over to another ledger only the last position is known.
        self.history.acks += [Ack(self.loop.time(), client.name, last, payload) for payload in payloads]
        return last

    async def lead_for_ever(self, client: SimClient, random: Random) -> None:
        """Lead, append, roll, lose the lead, try again."""
        names = (f"{client.name}/{number}".encode() for number in count())
        while not self.is_over:
            roll_size, roll_age = random.choice((300, 3_000, 1 << 20)), random.choice((0.2, 100.0))
            try:
                async with self.log(client).lead(roll_size=roll_size, roll_age=roll_age) as writer:
                    await self._append_some(client, writer, names, random)
            except BookKeeperError as error:
                self.trace.note(client.name, f"stopped leading: {type(error).__name__}: {error}")
                await asyncio.sleep(random.uniform(0, 0.5))

    async def _append_some(self, client: SimClient, writer: LogWriter, names: Iterator[bytes], random: Random) -> None:
        """So many at once; now and then a roll. Raises what the first of them raises, when all have ended."""
        window = random.choice((1, 4, 16))
        pending: deque[asyncio.Future[Any]] = deque()
        try:
            for _ in range(random.choice((3, 30, 100))):
                batch = list(islice(names, random.choice((1, 1, 5))))
                pending.append(asyncio.ensure_future(self.append(client, writer, batch)))
                if random.random() < 0.03:
                    pending.append(asyncio.ensure_future(writer.roll()))
                while len(pending) >= window:
                    await pending.popleft()
                if random.random() < 0.3:
                    await asyncio.sleep(random.choice((0.0, 0.001, 0.01, 0.1)))
                if self.is_over:
                    break
            while pending:
                await pending.popleft()
        finally:
            await asyncio.gather(*pending, return_exceptions=True)

    async def follow(self, client: SimClient, seen: list[tuple[Position, bytes]]) -> None:
        """Tail from where the last tail ended, for ever."""
        start: Position | None = None
        while True:
            try:
                async with self.log(client).open() as reader:
                    if start is None:
                        async for entry in reader.read():
                            seen.append((entry.position, entry.payload))
                            start = entry.position.next
                    if start is not None:
                        async for entry in reader.tail(start):
                            seen.append((entry.position, entry.payload))
                            start = entry.position.next
            except BookKeeperError as error:
                self.trace.note(client.name, f"tail failed: {type(error).__name__}: {error}")
            await asyncio.sleep(0.1)

    async def supervise(self, role: str, life: Callable[[SimClient], Awaitable[None]]) -> None:
        """Start a process again whenever it dies."""
        while not self.is_over:
            client = await self.process(role)
            try:
                await self.as_process(client, life(client))  # type: ignore[arg-type]
            except asyncio.CancelledError:
                if client.participant.is_alive:
                    raise
                await asyncio.sleep(0.2)

    async def duel(self, plan: FaultPlan, duration_s: float, leaders: int = 2) -> None:
        """Leaders and a reader while things go wrong, then without that until everybody has ended."""
        faults = Faults(self.cluster, f"{self.seed}/faults", plan, Injected())
        random = Random(f"{self.seed}/duel")

        def leads(client: SimClient) -> Awaitable[None]:
            return self.lead_for_ever(client, Random(f"{random.random()}"))

        def follows(client: SimClient) -> Awaitable[None]:
            self.history.readings.append([])
            return self.follow(client, self.history.readings[-1])

        roles = [asyncio.ensure_future(self.supervise(f"leader{index}", leads)) for index in range(leaders)]
        reader = asyncio.ensure_future(self.supervise("reader", follows))
        breaking = asyncio.ensure_future(faults.run())
        await asyncio.sleep(duration_s)
        faults.stop()
        breaking.cancel()
        self.is_over = True
        await self.cluster.heal()
        async with asyncio.timeout(HEALED_DEADLINE_S):
            await asyncio.gather(*roles)
        reader.cancel()

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

    async def _check_ledgers(self) -> None:
        """Every listed ledger exists; what is not listed holds nothing that was acknowledged."""
        manifest = self.manifests()[-1][2]
        assert manifest is not None
        for ledger_id in manifest.ledger_ids:
            if self.cluster.store.record(ledger_id) is None:
                self.history.problems.append(f"I-20: ledger {ledger_id} is listed and does not exist")
        for ledger_id in manifest.deleting:
            self.history.problems.append(f"garbage: ledger {ledger_id} is still to be deleted")

    def manifests(self) -> list[tuple[float, str, Manifest | None]]:
        """(when, who, list) of every commit."""
        commits = self.cluster.store.record_commits[f"logs/{NAME}"]
        return [
            (each.at_s, each.author, None if each.after is None else self._whole(parse_manifest(NAME, each.after)))
            for each in commits
        ]

    def _whole(self, head: Manifest) -> Manifest:
        """With the extents of its segments, which hold the same whenever they hold anything."""
        found = {}
        for segment in head.segments:
            contents = [each.after for each in self.cluster.store.record_commits[segment.name] if each.after]
            found[segment.name] = parse_segment(segment.name, contents[0])
        return joined(head, found)

    def _check_commits(self) -> None:
        before: Manifest | None = None
        for at_s, author, after in self.manifests():
            if problem := illegality(before, after):
                self.history.problems.append(f"I-21: {author} committed at {at_s:.3f}: {problem}")
            if after is not None:
                for ledger_id in after.ledger_ids[:-2]:
                    states = [each for each in self.cluster.store.commits[ledger_id] if each.at_s <= at_s]
                    if not any(each.after is not None and each.after.is_closed for each in states):
                        self.history.problems.append(f"I-21: ledger {ledger_id} is open, with two behind it")
            before = after

    def _check_log(self) -> None:
        history = self.history
        payloads = [payload for _, payload in history.final]
        at = {payload: index for index, payload in enumerate(payloads)}
        for payload in dict.fromkeys(payloads):
            if payloads.count(payload) > 1:
                history.problems.append(f"I-20: {payload!r} is in the log {payloads.count(payload)} times")
            if payload not in history.attempted:
                history.problems.append(f"I-20: {payload!r} was never appended")
        for ack in history.acks:
            if ack.payload not in at and not history.was_truncated:
                history.problems.append(f"I-20: {ack.payload!r} was acknowledged at {ack.position} and is not there")
        for seen in history.readings:
            if seen != history.final[: len(seen)]:
                wrong = next(i for i, each in enumerate(seen) if history.final[i : i + 1] != [each])
                history.problems.append(f"I-20: a reader got {seen[wrong]} as number {wrong}, the log has another")
        for process in dict.fromkeys(process for process, _ in history.attempted.values()):
            own = [history.attempted[payload] for payload in payloads if payload in history.attempted]
            numbers = [number for author, number in own if author == process]
            if numbers != sorted(numbers):
                history.problems.append(f"order: what {process} appended is in the log in another order")
        for outcomes in history.outcomes.values():
            failed = min((number for number, is_success in outcomes if not is_success), default=1 << 60)
            late = [number for number, is_success in outcomes if is_success and number > failed]
            if late:
                history.problems.append(f"I-3: attempts {late} succeeded, and {failed} before them did not")
        self._check_leaders(at)

    def _check_leaders(self, at: dict[bytes, int]) -> None:
        """I-22: each ledger has one writer; nothing is acknowledged behind a later leader's back."""
        listed: dict[int, tuple[int, str]] = {}  # ledger -> epoch and author of the commit that listed it
        ends: dict[int, tuple[float, str, int]] = {}  # ledger -> when a later leader took over, who, its end then
        for at_s, author, manifest in self.manifests():
            for extent in manifest.extents if manifest is not None else ():
                assert manifest is not None
                new = listed.setdefault(extent.ledger_id, (manifest.epoch, author))
                is_over = manifest.epoch > new[0] and author != new[1]
                if is_over and extent.ledger_id not in ends:
                    last = -2 if extent.last is None else extent.last
                    ends[extent.ledger_id] = (at_s, author, last)
        for ack in self.history.acks:
            epoch_author = listed.get(ack.position.ledger_id)
            if epoch_author is None or epoch_author[1] != ack.process:
                self.history.problems.append(f"I-22: {ack} in a ledger of {epoch_author}")
            at_s, author, last = ends.get(ack.position.ledger_id, (float("inf"), "", -1))
            if ack.at_s > at_s and ack.position.entry_id > last:
                self.history.problems.append(f"I-22: {ack} after {author} took over at {at_s:.3f} with end {last}")
        order = [listed[position.ledger_id][0] for position, _ in self.history.final]
        if order != sorted(order):
            self.history.problems.append("I-22: entries of an earlier leader are behind those of a later one")


async def read_all(log: Log, start: Position | None = None) -> list[bytes]:
    """The payloads from `start` on. Raises `LogTruncated`."""
    async with log.open() as reader:
        return [entry.payload async for entry in reader.read(start)]


__all__ = ["NAME", "Ack", "LogHistory", "LogTruncated", "LogWorld", "read_all"]
