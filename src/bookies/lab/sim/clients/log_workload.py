"""Workload on a log: leaders that take over from each other, append, roll and truncate; readers and tails; and users.

The users commit transactions and move cursors (`log_users.py`).

All faults of clients affect these processes. After the healing all leaders end. Then one more process leads and appends
the last entry, and every tail must reach it. Source: client-protocol 5; I-20 to I-22, L-4.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from itertools import count, islice
from random import Random
from typing import Any

from bookies.client.log import Log, LogWriter
from bookies.errors import BookKeeperError, CursorBehind, InvalidArgument, LogTruncated
from bookies.lab.sim.checkers import History
from bookies.lab.sim.checkers.log_consumers import check_cursors, check_transactions
from bookies.lab.sim.checkers.log_history import ListCommit, LogCheck, LogHistory, Reading, Truncation
from bookies.lab.sim.clients.log_users import LogUsers
from bookies.lab.sim.clients.plan import LogPlan
from bookies.lab.sim.clients.roles import Roles
from bookies.lab.sim.world import SimClient, SimCluster
from bookies.lab.sim.world.sim_metadata import SimStore
from bookies.model import LedgerState
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.log_model import Extent, parse_manifest
from bookies.protocol.log.log_segments import joined, parse_segment

NAME = "orders"
THE_END = b"the end"
TAIL_STEP_S = 1.0  # a tail without new entries checks after this time whether the run is over


def list_commits(store: SimStore, name: str = NAME) -> list[ListCommit]:
    """Return every committed list of a log's ledgers, including the extents in segments."""
    commits = []
    for commit in store.record_commits.get(f"logs/{name}", []):
        head = None if commit.after is None else parse_manifest(name, commit.after)
        manifest = None if head is None else joined(head, _segments(store, head))
        commits.append(ListCommit(commit.at_s, commit.author, manifest))
    return commits


def _segments(store: SimStore, head: Manifest) -> dict[str, tuple[Extent, ...]]:
    """Return the extents of a list's segments. A segment's contents never change while it exists."""
    contents = {
        segment.name: next(commit.after for commit in store.record_commits[segment.name] if commit.after)
        for segment in head.segments
    }
    return {name: parse_segment(name, content) for name, content in contents.items()}


class LogWorkload(Roles):
    """All clients of one run with a log. Runs the plan until `stop`."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, plan: LogPlan) -> None:
        super().__init__(cluster, history, random)
        self._plan = plan
        self._log_history = LogHistory()
        self._leading: list[asyncio.Task[None]] = []
        self._is_over = False  # the last entry is in the log, or cannot be appended

    def start(self) -> None:
        plan = self._plan
        self._leading = self.fill("leader", plan.leaders, self._lead)
        self._leading += self.fill("truncator", plan.truncators, self._truncate)
        self.fill("reader", plan.readers, self._read)
        self.fill("readertail", plan.tails, self._tail)
        users = LogUsers(self, self._log_history, self._log, self._begin_reading, plan.grace_ms)
        self._leading += self.fill("job", plan.jobs, users.transact)
        self._leading += self.fill("reaper", plan.reapers, users.reap)
        self.fill("consumer", plan.consumers, users.consume)

    async def check(self) -> None:
        """Let a last leader append and a last reader read the whole log, then check all promises."""
        for task in self._leading:
            await asyncio.shield(task)
        client = self.cluster.new_client("last", {})
        await client.participant.create_task(self._end(client), name="last")
        await self.finish()
        store = self.cluster.store
        check = LogCheck(self._log_history, list_commits(store), store, self.history.violated)
        check.run()
        check_transactions(check)
        check_cursors(check, NAME)

    def _now_s(self) -> float:
        return self.cluster.loop.time()

    async def _log(self, client: SimClient) -> Log:
        """Return the log. The first client creates it."""
        log = client.client.log(NAME)
        ensemble, write_quorum, ack_quorum = self._plan.quorums
        await log.create(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum, exist_ok=True)
        return log

    # -- leading -------------------------------------------------------------------------------------------------
    async def _lead(self, client: SimClient) -> None:
        """Lead the log, append and roll until the lead is lost, and repeat."""
        random, names = self.random, (f"{client.name}/{number}".encode() for number in count())
        log = await self._log(client)
        while not self.is_stopping:
            roll_size, roll_age = random.choice((50, 300, 3_000, 1 << 20)), random.choice((0.2, 100.0))
            try:
                async with log.lead(roll_size=roll_size, roll_age=roll_age) as writer:
                    self.history.count("leads")
                    await self._append_some(client, writer, names)
            except BookKeeperError as error:
                self.history.failed(client.name, "its lead", error)
                await self.sleep(200)

    async def _append_some(self, client: SimClient, writer: LogWriter, names: Iterator[bytes]) -> None:
        """Append with a random number in flight, sometimes roll or truncate. Raises the first error, at the end."""
        random = self.random
        window = random.choice((1, 4, 16, 64))
        pending: deque[asyncio.Future[Any]] = deque()
        try:
            for _ in range(random.choice((3, 30, 100))):
                batch = list(islice(names, random.choice((1, 1, 5))))
                pending.append(asyncio.ensure_future(self._append(client, writer, batch)))
                if random.random() < 0.06:
                    pending.append(asyncio.ensure_future(writer.roll()))
                if self._plan.truncators and random.random() < 0.01:
                    pending.append(asyncio.ensure_future(self._truncate_at(client, writer)))
                while len(pending) >= window:
                    await pending.popleft()
                if random.random() < 0.3:
                    await asyncio.sleep(random.choice((0.0, 0.001, 0.01, 0.1)))
                if self.is_stopping:
                    break
            while pending:
                await pending.popleft()
        finally:
            await asyncio.gather(*pending, return_exceptions=True)

    async def _append(self, client: SimClient, writer: LogWriter, payloads: list[bytes]) -> None:
        """Append in one call, and record the result and its time."""
        log_history, witness = self._log_history, self.history.witness
        number = log_history.attempt(client.name, payloads)
        try:
            last = await (writer.append(payloads[0]) if len(payloads) == 1 else writer.append_many(payloads))
        except BookKeeperError:
            log_history.failed(writer, number)
            raise
        log_history.succeeded(self._now_s(), client.name, writer, number, payloads, last)
        self.history.count("entries acknowledged", len(payloads))
        record = self.cluster.store.record(last.ledger_id)
        if witness is not None and record is not None and record.state is LedgerState.OPEN:
            witness.check_acknowledgement(last.ledger_id, last.entry_id, last.entry_id)

    async def _end(self, client: SimClient) -> None:
        try:
            await self.cluster.open_client(client)
            log = await self._log(client)
            async with log.lead() as writer:
                await self._append(client, writer, [THE_END])
            async with log.open() as reader:
                self._log_history.final = [(entry.position, entry.payload) async for entry in reader.read()]
        except BookKeeperError as error:
            self.history.violated("L-4", f"the log has no leader that can append: {type(error).__name__}: {error}")
        finally:
            self._is_over = True

    # -- truncating ----------------------------------------------------------------------------------------------
    async def _truncate(self, client: SimClient) -> None:
        """Truncate the log before a random acknowledged position."""
        await self.sleep(self._plan.truncate_ms)
        if not self.is_stopping:
            await self._truncate_at(client, client.client.log(NAME))

    async def _truncate_at(self, client: SimClient, log: Log | LogWriter) -> None:
        known = [ack.position for ack in self._log_history.acks if ack.position is not None][-40:]
        known += [position for moves in self._log_history.moves.values() for _, position in moves[-10:]]
        if not known:
            return
        truncation = Truncation(self.random.choice(known))
        self._log_history.truncations.append(truncation)
        try:
            await log.truncate(truncation.before)
        except (CursorBehind, LogTruncated, InvalidArgument) as error:
            self.cluster.trace.note(client.name, f"truncation was refused: {error}")
        except BookKeeperError as error:
            self.history.failed(client.name, f"truncation before {truncation.before}", error)
        else:
            truncation.done_s = self._now_s()
            self.history.count("truncations")

    # -- reading -------------------------------------------------------------------------------------------------
    def _begin_reading(self, start: Position | None = None) -> Reading:
        reading = Reading(self._now_s(), start, is_stale=self.cluster.store.is_stale)
        self._log_history.readings.append(reading)
        return reading

    async def _read(self, client: SimClient) -> None:
        """Read the log to its end, from its beginning or from a random acknowledged position."""
        await self.sleep(self._plan.read_ms)
        if self.is_stopping:
            return
        known = [ack.position for ack in self._log_history.acks if ack.position is not None]
        start = self.random.choice(known) if known and self.random.random() < 0.4 else None
        try:
            async with client.client.log(NAME).open() as reader:
                reading = self._begin_reading(start)
                async for entry in reader.read(start):
                    reading.entries.append((entry.position, entry.payload))
                    self.history.count("entries read")
        except BookKeeperError as error:
            self.history.failed(client.name, "a reading of the log", error)

    async def _tail(self, client: SimClient) -> None:
        """Tail the log from its beginning. Begin again if the next entry was truncated."""
        reading: Reading | None = None
        start: Position | None = None
        while True:
            try:
                async with client.client.log(NAME).open() as reader:
                    if start is None:
                        reading = self._begin_reading()
                    assert reading is not None
                    entries = reader.read() if start is None else reader.tail(start, timeout=TAIL_STEP_S)
                    async for entry in entries:
                        reading.entries.append((entry.position, entry.payload))
                        start = entry.position.next
                        if entry.payload == THE_END:
                            return
            except TimeoutError:
                continue
            except LogTruncated:
                start = None
            except BookKeeperError as error:
                self.history.failed(client.name, "the tail of the log", error)
            await self.sleep(50)
            if self._is_over and not self._log_history.final:
                return  # The last entry could not be appended.
