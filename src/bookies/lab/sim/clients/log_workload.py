"""Workload on a log: leaders that take over from each other, append, roll and truncate; readers and tails; and others.

Some remove old ledgers by limits or merge small ones, some search for times. `log_users.py` has jobs that commit
transactions, consumers, and processes that take turns; `log_producers.py` has producers that number their entries, and
conditional appends.

All faults of clients affect these processes. After the healing all leaders end. Then one more process leads and appends
the last entry, and every tail must reach it.

Source: client-protocol 5; I-20 to I-22, L-4; docs/explanation/logs.md, "Times" and "Retention".
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
from bookies.lab.sim.checkers.log_appends import check_conditions, check_numbers
from bookies.lab.sim.checkers.log_consumers import check_cursors, check_sessions, check_transactions
from bookies.lab.sim.checkers.log_history import ListCommit, LogCheck, Reading, Seek, Truncation
from bookies.lab.sim.checkers.log_times import TimeCheck, removals_of, truncations_by
from bookies.lab.sim.clients.log_producers import LogProducers
from bookies.lab.sim.clients.log_users import LogUsers
from bookies.lab.sim.clients.plan import LogPlan
from bookies.lab.sim.clients.roles import NAME, LogRoles
from bookies.lab.sim.world import SimClient, SimCluster
from bookies.lab.sim.world.cluster import WALL_START_MS
from bookies.lab.sim.world.sim_metadata import SimStore
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.log_model import Extent, parse_manifest
from bookies.protocol.log.log_segments import joined, parse_segment

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


class LogWorkload(LogRoles):
    """All clients of one run with a log. Runs the plan until `stop`."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, plan: LogPlan) -> None:
        super().__init__(cluster, history, random, plan)
        self._users = LogUsers(self)
        self._leading: list[asyncio.Task[None]] = []
        self._is_over = False  # the last entry is in the log, or cannot be appended
        if plan.seekers or plan.retainers:
            cluster.store.start_ms = WALL_START_MS  # Both use the creation times of ledgers.
        if plan.skew != 1.0:
            cluster.client_skew = random.choice((0.0, 0.0, plan.skew, 1.0))

    def start(self) -> None:
        plan, users, producers = self.plan, self._users, LogProducers(self)
        self._leading = self.fill("leader", plan.leaders, self._lead)
        self._leading += self.fill("truncator", plan.truncators, self._truncate)
        self.fill("reader", plan.readers, self._read)
        self.fill("readertail", plan.tails, self._tail)
        self._leading += self.fill("job", plan.jobs, users.transact)
        self._leading += self.fill("reaper", plan.reapers, users.reap)
        self.fill("consumer", plan.consumers, users.consume)
        self._leading += self.fill("leader-producer", plan.producers, producers.produce)
        self._leading += self.fill("leader-decider", plan.deciders, producers.decide)
        self._leading += self.fill("follower", plan.followers, users.follow)
        self._leading += self.fill("turntaker", plan.turn_takers, users.take_turns)
        self._leading += self.fill("retainer", plan.retainers, self._retain)
        self._leading += self.fill("roller", plan.rollers, self._roll_up)
        self._leading += self.fill("seeker", plan.seekers, self._seek)

    async def check(self) -> None:
        """Let a last leader append and a last reader read the whole log, then check all promises."""
        for task in self._leading:
            await asyncio.shield(task)
        client = self.cluster.new_client("last", {})
        await client.participant.create_task(self._end(client), name="last")
        await self.finish()
        store = self.cluster.store
        commits = list_commits(store)
        token = next((commit.manifest.token for commit in commits if commit.manifest is not None), "")
        removals = removals_of(store, NAME, token)
        check = LogCheck(self.log_history, commits, store, self.history.violated, truncations_by(removals))
        times = TimeCheck(check, removals, (min(self.cluster.skews_ms), max(self.cluster.skews_ms)))
        check.run()
        check_transactions(check)
        check_cursors(check, NAME, times)
        check_sessions(check, NAME)
        check_numbers(check)
        check_conditions(check)
        times.check_seeks()
        times.check_retention()

    # -- leading -------------------------------------------------------------------------------------------------
    async def _lead(self, client: SimClient) -> None:
        """Lead the log, append and roll until the lead is lost, and repeat."""
        random, names = self.random, (f"{client.name}/{number}".encode() for number in count())
        log = await self.open_log(client)
        while not self.is_stopping:
            roll_size, roll_age = random.choice((50, 300, 3_000, 1 << 20)), random.choice((0.2, 100.0))
            try:
                async with log.lead(roll_size=roll_size, roll_age=roll_age, wait=self.waits()) as writer:
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
                pending.append(asyncio.ensure_future(self.append(client, writer, batch)))
                if random.random() < 0.06:
                    pending.append(asyncio.ensure_future(writer.roll()))
                if self.plan.truncators and random.random() < 0.01:
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

    async def _end(self, client: SimClient) -> None:
        try:
            await self.cluster.open_client(client)
            log = await self.open_log(client)
            async with log.lead() as writer:
                await self.append(client, writer, [THE_END])
            await self._users.end(client, THE_END)
            async with log.open() as reader:
                self.log_history.final = [self.found(entry) async for entry in reader.read()]
        except BookKeeperError as error:
            self.history.violated("L-4", f"the log has no leader that can append: {type(error).__name__}: {error}")
        finally:
            self._is_over = True

    # -- truncating ----------------------------------------------------------------------------------------------
    async def _truncate(self, client: SimClient) -> None:
        """Truncate the log before a random acknowledged position."""
        await self.sleep(self.plan.truncate_ms)
        if not self.is_stopping:
            await self._truncate_at(client, client.client.log(NAME))

    async def _truncate_at(self, client: SimClient, log: Log | LogWriter) -> None:
        known = [ack.position for ack in self.log_history.acks if ack.position is not None][-40:]
        known += [position for moves in self.log_history.moves.values() for _, position in moves[-10:]]
        if not known:
            return
        truncation = Truncation(self.random.choice(known))
        self.log_history.truncations.append(truncation)
        try:
            await log.truncate(truncation.before)
        except (CursorBehind, LogTruncated, InvalidArgument) as error:
            self.cluster.trace.note(client.name, f"truncation was refused: {error}")
        except BookKeeperError as error:
            self.history.failed(client.name, f"truncation before {truncation.before}", error)
        else:
            truncation.done_s = self.now_s()
            self.history.count("truncations")

    # -- limits and times ----------------------------------------------------------------------------------------
    async def _retain(self, client: SimClient) -> None:
        """Set the limits of the log, or remove what they allow to go."""
        await self.sleep(self.plan.retain_ms)
        random, log = self.random, client.client.log(NAME)
        limits: dict[str, Any] = {
            "age": random.choice((None, 0.3, 1.0)),
            "size": random.choice((None, 500, 3_000)),
            "rows": random.choice((None, 10, 60)),
        }
        cursor_age = random.choice((None, 0.5, 2.0)) if any(limits.values()) else None
        is_applied = random.random() < 0.7
        if self.is_stopping:
            return
        try:
            if is_applied:
                removals = await log.apply_retention()
                self.history.count("ledgers removed by retention", sum(len(row.ledgers) for row in removals))
            else:
                await log.set_retention(**limits, cursor_age=cursor_age)
        except BookKeeperError as error:
            self.history.failed(client.name, "the retention of the log", error)

    async def _roll_up(self, client: SimClient) -> None:
        await self.sleep(self.plan.retain_ms)
        if self.is_stopping:
            return
        try:
            result = await client.client.log(NAME).roll_up(below=self.random.choice((100, 500, 3_000, 1 << 20)))
            self.history.count("ledgers merged", result.merged)
        except BookKeeperError as error:
            self.history.failed(client.name, "a roll-up of the log", error)

    async def _seek(self, client: SimClient) -> None:
        """Search for a time of the run, mostly a late one."""
        await self.sleep(self.plan.seek_ms)
        store, random = self.cluster.store, self.random
        ago_s = random.choice((-1.0, random.expovariate(1), self.now_s() * random.random()))
        time_ms = WALL_START_MS + int((self.now_s() - ago_s) * 1000)
        seek = Seek(self.now_s(), time_ms, random.random() < 0.3, store.is_stale)
        if self.is_stopping:
            return
        try:
            seek.position = await client.client.log(NAME).at(time_ms / 1000, is_end=seek.is_end)
        except BookKeeperError as error:
            self.history.failed(client.name, "a search for a time", error)
            return
        seek.is_stale |= store.is_stale
        seek.ended_s = self.now_s()
        self.log_history.seeks.append(seek)
        self.history.count("searches for times")

    # -- reading -------------------------------------------------------------------------------------------------
    async def _read(self, client: SimClient) -> None:
        """Read the log to its end, from its beginning or from a random acknowledged position."""
        await self.sleep(self.plan.read_ms)
        if self.is_stopping:
            return
        known = [ack.position for ack in self.log_history.acks if ack.position is not None]
        start = self.random.choice(known) if known and self.random.random() < 0.4 else None
        try:
            async with client.client.log(NAME).open() as reader:
                reading = self.begin_reading(start)
                async for entry in reader.read(start):
                    reading.entries.append(self.found(entry))
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
                        reading = self.begin_reading()
                    assert reading is not None
                    entries = reader.read() if start is None else reader.tail(start, timeout=TAIL_STEP_S)
                    async for entry in entries:
                        reading.entries.append(self.found(entry))
                        start = entry.position.next
                        if reading.entries[-1][1] == THE_END:
                            return
            except TimeoutError:
                continue
            except LogTruncated:
                start = None
            except BookKeeperError as error:
                self.history.failed(client.name, "the tail of the log", error)
            await self.sleep(50)
            if self._is_over and not self.log_history.final:
                return  # The last entry could not be appended.
