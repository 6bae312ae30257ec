"""Users of a log besides leaders and readers: jobs that commit transactions, reapers, and consumers with a cursor.

A job has an application, whose next version follows from the last commit that a job of it knows of. A version has the
same entries in every attempt. Two jobs of one application may attempt a version at the same time, as after a restart
whose predecessor is still alive. Promises: the promises "transaction" and "cursor" in `checkers/log_consumers.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import islice

from bookies.client.log import Log
from bookies.errors import BookKeeperError, LogTruncated
from bookies.lab.sim.checkers.log_consumers import cursors_of
from bookies.lab.sim.checkers.log_history import LogHistory, Reading, Txn
from bookies.lab.sim.clients.roles import Roles
from bookies.lab.sim.world import SimClient
from bookies.protocol.log import Position

JOBS_PER_APPLICATION = 2


class _Abort(Exception):
    """A job fails inside its transaction."""


class LogUsers:
    """The acts of these clients. `open_log`: returns the log, which the first client creates."""

    def __init__(
        self,
        workload: Roles,
        log_history: LogHistory,
        open_log: Callable[[SimClient], Awaitable[Log]],
        begin_reading: Callable[[Position | None], Reading],
        grace_ms: int,
    ) -> None:
        self._begin_reading = begin_reading
        self._grace_s = grace_ms / 1000
        self._workload = workload
        self._log_history = log_history
        self._open_log = open_log
        self._next: dict[str, int] = {}  # application -> its next version

    # -- transactions --------------------------------------------------------------------------------------------
    async def transact(self, client: SimClient) -> None:
        """Commit one version of the application after the other."""
        log = await self._open_log(client)
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
            self._log_history.attempt(app, txn.payloads)
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
                await transaction.append_many(batch)
                await asyncio.sleep(random.choice((0.0, 0.0, 0.01, 0.1)))
            if fails or txn.is_given_up:
                raise _Abort
            txn.commit_count += 1
        txn.is_committed = True
        self._next[app] = max(self._next.get(app, 0), version + 1)
        self._workload.history.count("transactions committed")

    async def reap(self, client: SimClient) -> None:
        """Give up what the jobs have left, soon after they wrote it."""
        log = await self._open_log(client)
        while not self._workload.is_stopping:
            try:
                async for row in log.reap(orphan_grace=self._grace_s, replay_grace=self._grace_s / 2):
                    self._workload.history.count("ledgers reaped", int(row.outcome == "deleted"))
            except BookKeeperError as error:
                self._workload.history.failed(client.name, "reaping", error)
            await self._workload.sleep(200)

    # -- cursors -------------------------------------------------------------------------------------------------
    async def consume(self, client: SimClient) -> None:
        """Read from the consumer's cursor on, and move it. A consumer that follows a dead one continues there."""
        cursor, workload = client.name.partition(".")[0], self._workload
        log = await self._open_log(client)
        while not workload.is_stopping:
            start = None
            try:
                known = (await log.cursors()).get(cursor)
                start = None if known is None else known.position
                async with log.open() as reader:
                    reading = self._begin_reading(start)
                    left = workload.random.choice((1, 5, 50))
                    async for entry in reader.read(start):
                        reading.entries.append((entry.position, entry.payload))
                        left -= 1
                        if not left:
                            break
                if reading.entries:
                    position = reading.entries[-1][0].next
                    await log.move_cursor(cursor, position)
                    self._log_history.moves.setdefault(cursor, []).append((workload.cluster.loop.time(), position))
                    workload.history.count("cursors moved")
            except LogTruncated as error:
                store = workload.cluster.store
                commits = store.record_commits.get(f"cursors/{log.name}")
                current = cursors_of(commits[-1].after if commits else None)
                if start is not None and current.get(cursor) == start and not store.is_stale:
                    workload.history.violated("cursor", f"{client.name} cannot read from its cursor {start}: {error}")
            except BookKeeperError as error:
                workload.history.failed(client.name, "consuming", error)
            await workload.sleep(100)
