"""Automatic balance: the elected auditor moves replicas when bookies deviate from their shares of data.

A balance has the lowest priority. It begins only while every ledger has its replicas and no operator has announced a
maintenance or a drain. It stops, in the middle of a copy, when that changes or auto-recovery is disabled; a copy that
stops leaves the record unchanged. It keeps to a rate of its own, which yields to requests as repairs do.

It begins when a bookie deviates by more than `BEGIN`, and goes on until none deviates by more than `END`. No move is
ever taken back: each brings two bookies nearer to their shares (`protocol/repair/balance.py`). Two auditors at a time
do no harm: each move is checked under the ledger's lock. Source: pains 27.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from msgspec import Struct

from bookies.errors import BookKeeperError, ClientClosed, MetadataError
from bookies.model import BookieId
from bookies.protocol.pacing.adaptive_rate import AdaptiveRate
from bookies.protocol.repair.balance import BalancePlan, obstacle_of
from bookies.replication.auditor.checks import PassReport
from bookies.replication.base.operator_parts import Operator
from bookies.replication.base.task_parts import TaskParts
from bookies.replication.repair.balance import (
    RATE_MIN,
    Balance,
    BalanceProgress,
    BalanceResult,
    Slack,
    first_marked,
    owing_in,
)
from bookies.runtime.tasks import all_of

NAME = "balance"  # of its reports
BEGIN, END = 0.10, 0.05  # deviations from a share
LANES = 1  # ledgers at a time: more copies would arrive in bursts
PART_SIZE = 128 << 10  # bytes that a copy transfers at a time, for the same reason
SLOWDOWN = 1.2  # allowed multiple of the usual latency of requests
ASK_S = 10.0  # between two questions to bookies whether they have lost entries
RETRY_S = 60.0  # after something stood in the way, and after an election


class Moved(Struct):
    """Totals of the automatic balance of this process. `entries`, `size`: copied; `size` in bytes."""

    replicas: int = 0
    entries: int = 0
    size: int = 0


class AutomaticBalance:
    """Automatic balance of one auditor. `note`: is called with each report.

    `imbalance`: largest deviation from a share, as a fraction of it, by the last check; None: not known.
    """

    def __init__(self, parts: TaskParts, note: Callable[[PassReport], None]) -> None:
        config = parts.config
        self.moved = Moved()
        self.imbalance: float | None = None
        self.pace = AdaptiveRate(config.balance_rate_size or None, SLOWDOWN)
        self.pace.part_size = PART_SIZE
        self._parts = parts
        self._note = note
        self._is_begun = False
        self._has_copied = False  # in the last round
        self._named: frozenset[BookieId] = frozenset()  # bookies in records, while replicas move
        self._owing: list[BookieId] = []  # bookies that may have lost entries
        self._owing_due_s = 0.0  # when to ask for them again
        self._balance = Balance(
            Operator(parts.runtime, parts.client, parts.driver, parts.owner),
            self.pace,
            rate=config.audit_metadata_rate,
            lanes=LANES,
            obstacle=self._obstacle,
        )

    async def run(self) -> None:
        """Balance until cancelled. Raises `MetadataError`."""
        interval_s = self._parts.config.balance_interval_s
        wait_s = min(RETRY_S, interval_s)
        while interval_s:
            await asyncio.sleep(wait_s)
            try:
                wait_s = await self._round()
            except (ClientClosed, MetadataError):
                raise
            except BookKeeperError as error:
                self._parts.events.warning("balance.failed", error=error)
                wait_s = min(RETRY_S, interval_s)

    async def _round(self) -> float:
        """Check the shares, and move replicas if needed. Return the seconds until the next round."""
        config, wall_ms = self._parts.config, self._parts.runtime.clock.wall_ms
        facts: dict[str, object] = {}
        report = PassReport((NAME,), wall_ms(), facts=facts)
        obstacle, result = await self._obstacle(), BalanceResult()
        if obstacle is None:
            begin = END if self._is_begun else BEGIN
            # What the copies of a round have read must not count as the load of their sources.
            rate_min = inf if self._has_copied else RATE_MIN
            plan = await self._balance.plan(Slack(begin, END, config.balance_excess_size, rate_min))
            self._has_copied = False
            self.imbalance, obstacle = plan.imbalance, plan.obstacle
            facts["largest deviation in percent"] = round(100 * plan.imbalance, 1)
            if obstacle is None:
                self._is_begun = bool(plan.moves) and not plan.relieves
                if plan.moves:
                    facts |= {"replicas to move": len(plan.moves), "bytes to move": plan.size}
                    self._note(report)
                    self._has_copied = True
                    await self._move(plan, result)
                obstacle = result.stopped
        report.ended_ms = wall_ms()
        facts |= {"replicas moved": result.moves, "bytes moved": result.size}
        if obstacle is not None:
            facts["stopped by"] = obstacle
        elif result.refused:
            facts |= {"not moved": len(result.refused), "for example": result.refused[0][1]}
        self._note(report)
        if obstacle is not None:
            return min(RETRY_S, config.balance_interval_s)
        return 0.0 if result.moves else config.balance_interval_s

    async def _obstacle(self) -> str | None:
        """Return why no replica may move now; None: replicas may move."""
        membership = self._parts.membership
        await membership.refresh()
        is_on = not await self._parts.switch.is_off()
        missing = self._named - membership.registered
        marked, announced = await first_marked(self._parts.driver), membership.announced(self._named)
        if (now_s := self._parts.runtime.clock.monotonic()) >= self._owing_due_s:
            self._owing = owing_in(await self._balance.loads(sorted(membership.registered)))
            self._owing_due_s = now_s + ASK_S
        return obstacle_of(is_on, missing, marked, announced, self._owing)

    async def _move(self, plan: BalancePlan, result: BalanceResult) -> None:
        """Carry out a plan until something stands in the way; `result` receives what was done."""
        events = self._parts.events
        events.info("balance.began", replicas=len(plan.moves), bytes=plan.size, deviation=round(plan.imbalance, 3))

        def count(progress: BalanceProgress) -> None:
            self.moved.replicas += progress.moves_done - result.moves
            self.moved.entries += progress.entries - result.entries
            self.moved.size += progress.size_done - result.size
            result.moves, result.entries, result.size = progress.moves_done, progress.entries, progress.size_done

        async def moving() -> None:
            done = await self._balance.run(plan, count)
            result.refused, result.stopped = done.refused, done.stopped
            raise _Ended

        self._named = self._balance.named
        try:
            await all_of((moving(), self._watch(result)))
        except _Ended:
            events.info(
                "balance.ended",
                replicas=result.moves,
                bytes=result.size,
                refused=len(result.refused),
                stopped_by=result.stopped or "none",
            )
        finally:
            self._named = frozenset()

    async def _watch(self, result: BalanceResult) -> None:
        """Wait until something stands in the way, and raise `_Ended`."""
        changed = asyncio.Event()
        store, membership = self._parts.driver.recovery, self._parts.membership
        watches = [store.watch_marks(changed.set), store.watch_switch(changed.set)]
        membership.listen(changed.set)
        try:
            while (obstacle := await self._obstacle()) is None:
                await changed.wait()
                changed.clear()
        finally:
            membership.unlisten(changed.set)
            for watch in watches:
                watch.cancel()
        result.stopped = obstacle
        raise _Ended


class _Ended(Exception):
    """The moves are done, or something stands in the way."""
