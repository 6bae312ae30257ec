"""Users of a log besides leaders and readers: jobs that commit transactions, reapers, consumers, and lock holders.

A job has an application, whose next version follows from the last commit that a job of it knows of. A version has the
same entries in every attempt. Two jobs of one application may attempt a version at the same time, as after a restart
whose predecessor is still alive. Consumers with a lease share two names, and lock holders a lock and an election.

Promises: "transaction", "cursor" and "consumer" in `checkers/log_consumers.py`, "lease" in `checkers/leases.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from itertools import islice

from bookies.client.log import Log
from bookies.client.log.consumers import LogConsumer
from bookies.errors import BookKeeperError, LogTruncated
from bookies.lab.sim.checkers.log_consumers import claimed_at, cursors_of
from bookies.lab.sim.checkers.log_history import Reading, Session, Txn
from bookies.lab.sim.clients.roles import NAME, LogRoles
from bookies.lab.sim.world import SimClient
from bookies.protocol.log import Position

JOBS_PER_APPLICATION = 2
CONSUMERS = ("billing", "shipping")  # names of consumers
TURNS = ("nightly", "mailer")  # a lock and an election


class _Abort(Exception):
    """A job fails inside its transaction."""


class LogUsers:
    """The acts of these clients."""

    def __init__(self, workload: LogRoles) -> None:
        self._workload = workload
        self._log_history = workload.log_history
        self._next: dict[str, int] = {}  # application -> its next version

    # -- transactions --------------------------------------------------------------------------------------------
    async def transact(self, client: SimClient) -> None:
        """Commit one version of the application after the other."""
        log = await self._workload.open_log(client)
        number = int(client.name.removeprefix("job").partition(".")[0])
        app = f"app{(number + 1) // JOBS_PER_APPLICATION}"
        while not self._workload.is_stopping:
            version = self._next.get(app, 0)
            txn = self._transaction(app, version)
            txn.open_count += 1
            try:
                await self._attempt(log, app, version, txn)
            except (_Abort, BookKeeperError) as error:
                if isinstance(error, BookKeeperError):
                    self._workload.history.failed(client.name, f"transaction {txn.name}", error)
                if txn.open_count == 1 and not txn.commit_count and self._workload.random.random() < 0.5:
                    txn.is_given_up = True
                    self._next[app] = max(self._next.get(app, 0), version + 1)
                    self._workload.history.count("transactions given up")
                await self._workload.sleep(50)
            finally:
                txn.open_count -= 1

    def _transaction(self, app: str, version: int) -> Txn:
        if (txn := self._log_history.transactions.get((app, version))) is None:
            count = self._workload.random.choice((1, 2, 5, 12))
            txn = Txn(f"{app}:{version}", [f"{app}/{version}/{index}".encode() for index in range(count)])
            self._log_history.transactions[app, version] = txn
            self._log_history.attempt(app, txn.payloads, self._workload.now_s())
        return txn

    async def _attempt(self, log: Log, app: str, version: int, txn: Txn) -> None:
        random = self._workload.random
        transaction = log.transaction(
            app,
            version,
            ledger_size=random.choice((20, 1 << 20)),
            on_open_tail=random.choice(("fail", "fence")),
            timeout=random.choice((1.0, 60.0)),
        )
        payloads, fails = iter(txn.payloads), random.random() < 0.15
        async with transaction:
            while batch := list(islice(payloads, random.choice((1, 3)))):
                await transaction.append_many(self._workload.given(batch))
                await asyncio.sleep(random.choice((0.0, 0.0, 0.01, 0.1)))
            if fails or txn.is_given_up:
                raise _Abort
            txn.commit_count += 1
        txn.is_committed = True
        self._next[app] = max(self._next.get(app, 0), version + 1)
        self._workload.history.count("transactions committed")

    async def reap(self, client: SimClient) -> None:
        """Give up what the jobs have left, soon after they wrote it."""
        log = await self._workload.open_log(client)
        grace_s = self._workload.plan.grace_ms / 1000
        while not self._workload.is_stopping:
            try:
                async for row in log.reap(orphan_grace=grace_s, replay_grace=grace_s / 2):
                    self._workload.history.count("ledgers reaped", int(row.outcome == "deleted"))
            except BookKeeperError as error:
                self._workload.history.failed(client.name, "reaping", error)
            await self._workload.sleep(200)

    # -- cursors -------------------------------------------------------------------------------------------------
    async def consume(self, client: SimClient) -> None:
        """Read from the consumer's cursor on, and move it. A consumer that follows a dead one continues there."""
        cursor, workload = client.name.partition(".")[0], self._workload
        log = await self._workload.open_log(client)
        while not workload.is_stopping:
            start = None
            try:
                known = (await log.cursors()).get(cursor)
                start = None if known is None else known.position
                async with log.open() as reader:
                    reading = workload.begin_reading(start)
                    left = workload.random.choice((1, 5, 50))
                    async for entry in reader.read(start):
                        reading.entries.append(workload.found(entry))
                        left -= 1
                        if not left:
                            break
                if reading.entries:
                    position = reading.entries[-1][0].next
                    await log.move_cursor(cursor, position)
                    self._log_history.moves.setdefault(cursor, []).append((workload.now_s(), position))
                    workload.history.count("cursors moved")
            except LogTruncated as error:
                store = workload.cluster.store
                commits = store.record_commits.get(f"cursors/{log.name}")
                current = cursors_of(commits[-1].after if commits else None).get(cursor)
                if workload.plan.retainers:
                    await self._reset(client, log, cursor)
                elif start is not None and current is not None and current[0] == start and not store.is_stale:
                    workload.history.violated("cursor", f"{client.name} cannot read from its cursor {start}: {error}")
            except BookKeeperError as error:
                workload.history.failed(client.name, "consuming", error)
            await workload.sleep(100)

    # -- consumers with a lease ----------------------------------------------------------------------------------
    async def follow(self, client: SimClient) -> None:
        """Consume the log under one of the names, as often as the process lives."""
        workload, random = self._workload, self._workload.random
        log = await workload.open_log(client)
        while not workload.is_stopping:
            name = random.choice(CONSUMERS)
            consuming = log.consumer(
                name,
                failover=random.random() < 0.8,
                commit_interval=random.choice((None, 0.05, 0.5)),
                ttl=random.choice((1.0, 2.5)),
                timeout=5.0,
            )
            try:
                async with consuming as rows:
                    session = self._begin_session(client, name, rows)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(random.choice((0.3, 2.0))):
                            await self._handle(rows, session)
                    session.handled += session.handed_out(workload.now_s())
            except _Abort:
                pass
            except LogTruncated as error:
                workload.history.failed(client.name, f"consuming as {name}", error)
                await self._reset(client, log, name)
            except TimeoutError as error:
                workload.cluster.trace.note(client.name, f"does not consume: {error}")
            except BookKeeperError as error:
                workload.history.failed(client.name, f"consuming as {name}", error)
            await workload.sleep(50)

    def _begin_session(self, client: SimClient, name: str, rows: LogConsumer) -> Session:
        workload = self._workload
        workload.leases.acquired(f"consumer {name}", client.name, rows.lease)
        session = Session(name, client.name, rows.lease.token, Reading(workload.now_s()))
        session.reading.start = claimed_at(workload.cluster.store, NAME, session)
        session.reading.is_stale = session.reading.start is None and workload.cluster.store.is_stale
        self._log_history.sessions.append(session)
        workload.history.count("turns of consumers")
        return session

    async def _handle(self, rows: LogConsumer, session: Session) -> None:
        """Handle entries until cancelled, some slowly. A handling may fail."""
        workload, random = self._workload, self._workload.random
        async for entry in rows:
            session.reading.entries.append(workload.found(entry))
            workload.history.count("entries consumed")
            if random.random() < 0.2:
                await asyncio.sleep(random.choice((0.0, 0.01, 0.3)))
            if random.random() < 0.02:
                raise _Abort
            session.handled += session.handed_out(workload.now_s())
            if random.random() < 0.1:
                await rows.commit()
                session.committed.append((workload.now_s(), entry.position.next))

    async def _reset(self, client: SimClient, log: Log, name: str) -> None:
        """Move a cursor that retention has passed to the beginning of the log."""
        try:
            cursor = (await log.cursors())[name]
            beginning = (await log.manifest()).beginning
            if beginning is None or Position(beginning.ledger_id, beginning.first) <= cursor.position:
                return  # Another process has moved it.
            position = Position(beginning.ledger_id, beginning.first)
            self._log_history.resets.append((client.name, name, position))
            await log.move_cursor(name, position, expected=cursor.position)
        except (BookKeeperError, KeyError) as error:
            self._workload.cluster.trace.note(client.name, f"has not moved cursor {name}: {error}")

    # -- turns ---------------------------------------------------------------------------------------------------
    async def take_turns(self, client: SimClient) -> None:
        """Hold a lock or lead an election for a while, again and again."""
        workload, random = self._workload, self._workload.random
        while not workload.is_stopping:
            name, ttl, waits = random.choice(TURNS), random.choice((1.0, 2.5)), random.random() < 0.8
            is_lock = name == TURNS[0]
            begin = partial(client.client.lock, name) if is_lock else client.client.election(name).lead
            try:
                async with begin(ttl=ttl, wait=waits) as lease:
                    workload.leases.acquired(name, client.name, lease)
                    workload.history.count("turns")
                    await asyncio.sleep(random.choice((0.0, 0.1, 1.0, 3.0)))
            except BookKeeperError as error:
                workload.history.failed(client.name, f"its turn of {name}", error)
            await workload.sleep(100)

    async def end(self, client: SimClient, last: bytes) -> None:
        """Get every turn, and consume up to the last entry, after the healing. Raises `BookKeeperError`."""
        workload, plan = self._workload, self._workload.plan
        if plan.turn_takers:
            async with client.client.lock(TURNS[0]) as lease:
                workload.leases.acquired(TURNS[0], client.name, lease)
        log = client.client.log(NAME)
        for name in CONSUMERS if plan.followers else ():
            try:
                await self._consume_to(client, log, name, last)
            except LogTruncated:
                await self._reset(client, log, name)
                await self._consume_to(client, log, name, last)

    async def _consume_to(self, client: SimClient, log: Log, name: str, last: bytes) -> None:
        async with log.consumer(name) as rows:
            session = self._begin_session(client, name, rows)
            async for entry in rows:
                session.reading.entries.append(self._workload.found(entry))
                session.handled += session.handed_out(self._workload.now_s())
                if session.reading.entries[-1][1] == last:
                    break
