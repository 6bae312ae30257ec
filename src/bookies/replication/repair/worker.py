"""Replication worker: takes marked ledgers, the most urgent first, and repairs several at a time.

    list the marks  ->  rank some by their records  ->  lock one  ->  repair  ->  delete the mark, or report why not

The load on the metadata store is bounded. The workers of a cluster divide the ledgers among themselves by their places
in the queue of auditor candidates. Records are ranked many at a time. The repair of a ledger costs one lock, one read,
one swap of the record, and the deletions of mark and lock.

The agenda decides which ledger is next, and when to retry a failed one (`protocol/repair/agenda.py`). The repair itself
is in `client/repair/ledger_repair.py`. A lock is held only during the work on its ledger, and released on every
outcome. When the session with the metadata store ends, so do the locks, and all work in progress is aborted: it can be
repeated, and until a copy is complete the record is unchanged.

Every ledger that could not be repaired has a report: what it waits for, or which entries are lost and why.
Source: metadata 8.5, 8.7 and 8.8.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from msgspec import Struct

from bookies.client.repair.ledger_repair import LedgerRepair, Outcome, RepairRules
from bookies.client.repair.replication import Account, Totals
from bookies.errors import BookKeeperError, MetadataError
from bookies.metadata.interface.driver import Versioned
from bookies.metadata.interface.recovery_store import UNREAD, LedgerLock
from bookies.model import BookieId, LedgerState
from bookies.protocol.pacing import RateLimit
from bookies.protocol.repair.agenda import NEVER, Agenda, Item, Share
from bookies.protocol.repair.drain import replicas_elsewhere
from bookies.protocol.repair.repair_work import Cause, Circumstances, Loss, RepairState, Wait
from bookies.replication.base.task_parts import TaskParts
from bookies.runtime.histogram import Outcomes, Stages
from bookies.runtime.tasks import all_of, throttle

LISTING_MIN_S, LISTING_MAX_S = 1.0, 60.0  # between two listings of the marks
LISTING_SHARE = 20  # minimal pause between two listings, as a multiple of the time that one takes
IDLE_SHARE = 0.25  # fraction of that pause, when there is no other work
LISTED_PER_S = 1000  # marks in listings, on average; a listing may need a request for each
ANNOUNCED_S = 30.0  # between two reads of the notes about bookies
STORE_PAUSE_S = 1.0  # after a failure of the store
AGAIN_S = 0.1  # before the next attempt at a ledger whose mark differs from the listing
HELD_S = 5.0  # before the next attempt at a ledger that another process has locked
REPORTS_MAX = 2_000  # ledgers that could not be repaired


class LedgerReport(Struct, frozen=True):
    """Report on a ledger that could not be repaired. Times: wall clock, ms.

    next_ms: the next attempt; None: when a bookie that it waits for returns.
    tries: consecutive failed attempts.
    """

    ledger_id: int
    state: RepairState
    fewest: int | None
    waits: tuple[Wait, ...]
    losses: tuple[Loss, ...]
    since_ms: int
    checked_ms: int
    next_ms: int | None
    tries: int


class _Bookies(NamedTuple):
    """Bookies as the worker knows them: registered, writable and not avoided, and lost."""

    registered: Sequence[BookieId] = ()
    targets: Sequence[BookieId] = ()
    lost: Sequence[BookieId] = ()


class _Signals(NamedTuple):
    """Signals between listing and lanes. `is_idle`: this worker's share is done."""

    has_work: asyncio.Event
    wants_listing: asyncio.Event
    is_idle: asyncio.Event


class Activity(Struct):
    """Activity of a worker.

    acted_ms: wall clock of the last repair.
    trouble: the last failure of the metadata store.
    """

    doing: str = "not started"
    acted_ms: int | None = None
    trouble: str | None = None


class Worker:
    """Replication worker of a process. `run` it; the other members are for its status."""

    def __init__(self, parts: TaskParts, pace: RateLimit) -> None:
        self.attempts = Outcomes()  # of repairs of one ledger each
        self.reports: dict[int, LedgerReport] = {}
        self.busy: dict[int, float] = {}  # ledgers being repaired, since when by the loop's clock
        self.activity = Activity()
        self._parts = parts
        config = parts.config
        self._agenda = Agenda(
            config.recovery_backoff_ms / 1000, config.recovery_backoff_max_ms / 1000, parts.runtime.random.randrange
        )
        self._account = Account(pace)
        self._slots = asyncio.Semaphore(config.recovery_ledgers_at_once)
        self._rate = RateLimit(config.recovery_metadata_rate)
        self._named: dict[int, dict[BookieId, float]] = {}  # by marks of ledgers on the agenda, and when seen first
        self._grace: dict[int, tuple[object, dict[object, float]]] = {}  # unfinished ledgers: ensembles, reasons since
        self._signals = _Signals(asyncio.Event(), asyncio.Event(), asyncio.Event())
        self._ranking = asyncio.Lock()  # prevents that several lanes read the same records
        self._known = _Bookies()

    @property
    def totals(self) -> Totals:
        """Return the counts of what this worker has repaired."""
        return self._account.totals

    @property
    def stages(self) -> Stages:
        """Return the durations of the stages of its repairs."""
        return self._account.stages

    @property
    def waiting_count(self) -> int:
        """Return the number of marked ledgers that this worker knows."""
        return len(self._agenda)

    async def run(self) -> None:
        """Repair until cancelled. Raises `MetadataError`; then call it again later. Holds no lock afterwards."""
        expired = asyncio.Event()
        watches = [
            self._parts.driver.on_session_expired(expired.set),
            self._parts.driver.recovery.watch_marks(self._signals.wants_listing.set),
        ]
        self._parts.membership.listen(self._bookies_changed)
        self._signals.wants_listing.set()
        for ledger_id in list(self.busy):
            self._agenda.release(ledger_id)
        self.busy.clear()
        try:
            lanes = [self._lane() for _ in range(self._parts.config.recovery_ledgers_at_once)]
            await all_of((self._list(), self._follow_bookies(), _raise_when(expired), *lanes))
        finally:
            self._parts.membership.unlisten(self._bookies_changed)
            for watch in watches:
                watch.cancel()
            self.activity.doing = "stopped"

    # -- listing -------------------------------------------------------------------------------------------------
    async def _list(self) -> None:
        """Keep the agenda up to date with the marks. The more marks, the more rarely all are listed."""
        loop = asyncio.get_running_loop()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LISTING_MAX_S):
                    await self._signals.wants_listing.wait()
            begun = loop.time()
            try:
                await self._parts.switch.wait_on()
                begun = loop.time()  # The wait does not count as time of the listing.
                self._signals.wants_listing.clear()
                await self._list_once()
            except MetadataError as error:
                await self._wait_for_store(error)
                self._signals.wants_listing.set()
            await self._pause(LISTING_SHARE * (loop.time() - begun))

    async def _pause(self, at_least_s: float) -> None:
        """Pause between two listings; shorter when only ledgers of other shares are left."""
        longest_s = min(LISTING_MAX_S, max(LISTING_MIN_S, at_least_s, len(self._agenda) / LISTED_PER_S))
        shortest_s = max(LISTING_MIN_S, IDLE_SHARE * longest_s)
        await asyncio.sleep(shortest_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, longest_s - shortest_s)):
                await self._signals.is_idle.wait()
        self._signals.is_idle.clear()
        if self._agenda.is_idle and (self._agenda.has_others or self._agenda.is_cut):
            self._signals.wants_listing.set()

    async def _list_once(self) -> None:
        loop, store, agenda = asyncio.get_running_loop(), self._parts.driver.recovery, self._agenda
        agenda.begin_listing(Share(*await store.queue_position()))
        begun = loop.time()
        listed: dict[int, dict[BookieId, float]] = {}
        async for marks in store.marks(agenda.needs):
            for mark in marks:
                agenda.offer(mark.ledger_id, len(mark.replicas), mark.ctime_ms, mark.version, loop.time())
                if mark.ledger_id in agenda:
                    seen = self._named.get(mark.ledger_id, {})
                    is_read = mark.version != UNREAD
                    listed[mark.ledger_id] = (
                        {bookie: seen.get(bookie, begun) for bookie in mark.replicas} if is_read else seen
                    )
            self._named |= listed
            self._signals.has_work.set()
        takes_up = agenda.is_idle and agenda.has_others
        agenda.end_listing(await store.locked_ids() if takes_up else (), loop.time())
        self._named = listed
        self._parts.membership.note_marked({bookie for named in listed.values() for bookie in named})
        for ledger_id in [ledger_id for ledger_id in self.reports if ledger_id not in self._agenda]:
            self._forget(ledger_id)
        self._signals.has_work.set()

    async def _follow_bookies(self) -> None:
        """Update the agenda when a bookie begins to count as lost, and when operators announce a change."""
        loop = asyncio.get_running_loop()
        announced_at = loop.time()
        while True:
            wait_s = self._parts.membership.next_loss_s()
            await asyncio.sleep(1.0 if wait_s is None else min(1.0, max(0.01, wait_s)))
            is_due = loop.time() - announced_at >= ANNOUNCED_S
            try:
                await self._parts.membership.refresh(is_forced=is_due)
            except MetadataError as error:
                await self._wait_for_store(error)
            else:
                announced_at = loop.time() if is_due else announced_at
            self._bookies_changed()

    async def _wait_for_store(self, error: MetadataError) -> None:
        """Pause after a retriable failure of the store; raise any other."""
        if not error.retriable:
            raise error
        self.activity.trouble = str(error)
        await asyncio.sleep(STORE_PAUSE_S * self._parts.runtime.random.uniform(0.5, 1.5))

    def _bookies_changed(self) -> None:
        """Make ledgers due that wait for bookies which returned, or count as lost now."""
        membership, before = self._parts.membership, self._known
        now = self._known = _Bookies(sorted(membership.registered), membership.targets, membership.lost())
        changed = [bookie for bookie in now.registered if bookie not in before.registered]
        changed += [bookie for bookie in now.lost if bookie not in before.lost]
        if changed:
            self._agenda.returned(changed)
            for ledger_id, report in list(self.reports.items()):
                if any(bookie in changed for loss in report.losses for bookie, _ in loss.evidence):
                    self.reports[ledger_id] = _without_losses(report)
        if any(bookie not in before.targets for bookie in now.targets):
            self._agenda.targets_came()
        if changed or now.targets != before.targets:
            self._signals.has_work.set()

    # -- repairing -----------------------------------------------------------------------------------------------
    async def _lane(self) -> None:
        """Repair one ledger after the other."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                await self._parts.switch.wait_on()
                await self._rank()
                if await self._parts.switch.is_off():  # The reads and their rate limit may have taken long.
                    continue
            except MetadataError as error:
                await self._wait_for_store(error)
                continue
            item = self._agenda.take(loop.time())
            if item is None:
                await self._wait()
                continue
            self.busy[item.ledger_id] = loop.time()
            self.activity.doing = f"repairing ledger {item.ledger_id}"
            try:
                await self._attempt(item)
            except MetadataError as error:
                self._postpone(item, Outcome(RepairState.WAITING, [Wait(Cause.STORE, 0, -1, None, str(error))]))
                if error.retriable:
                    await self._wait_for_store(error)
            finally:
                self.busy.pop(item.ledger_id, None)
                if item.is_busy:
                    self._agenda.release(item.ledger_id)

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        due_at = self._agenda.next_due()
        self._signals.has_work.clear()
        self._signals.is_idle.set()
        if not self.busy:
            self.activity.doing = "waiting for something to repair"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if due_at is None else max(0.01, due_at - loop.time())):
                await self._signals.has_work.wait()

    async def _rank(self) -> None:
        """Read the records of the ledgers that may be next, and rank these by urgency."""
        loop = asyncio.get_running_loop()
        async with self._ranking:
            ids = self._agenda.to_rank(loop.time())
            if not ids:
                return
            await throttle(self._rate, len(ids))
            lost = self._parts.membership.lost()
            for ledger_id, record in zip(ids, await self._parts.driver.read_ledgers(ids), strict=True):
                missing = [*lost, *self._named.get(ledger_id, ())]
                # A deleted or unreadable record is handled when the ledger is taken.
                self._agenda.rank(
                    ledger_id, replicas_elsewhere(record.metadata, missing) if isinstance(record, Versioned) else 0
                )

    async def _attempt(self, item: Item) -> None:
        """Lock a ledger and repair it; delete its mark, or record why not."""
        store, ledger_id = self._parts.driver.recovery, item.ledger_id
        version = None if item.version == UNREAD else item.version
        began_s = self._now()
        lock = await store.lock(ledger_id, self._parts.owner, needs_mark=True, mark_version=version)
        if lock is None:  # Another process repairs it, or has done so; the next listing shows which.
            self._agenda.postpone(ledger_id, self._now(), for_s=HELD_S * self._parts.runtime.random.uniform(0.5, 1.5))
            self._agenda.stale(ledger_id)
            self._signals.wants_listing.set()
            return
        self._account.stages.end("claim", began_s, self._now())
        try:
            await self._repair(item, lock)
        finally:
            await store.unlock(lock)

    async def _repair(self, item: Item, lock: LedgerLock) -> None:
        ledger_id, store = item.ledger_id, self._parts.driver.recovery
        marked_ms: int | None = item.ctime_ms
        if item.version == UNREAD and (mark := await store.mark_of(ledger_id)) is not None:
            seen, now, marked_ms = self._named.get(ledger_id, {}), self._now(), mark.ctime_ms
            self._named[ledger_id] = {bookie: seen.get(bookie, now) for bookie in mark.replicas}
        if lock.mark_version is not None:
            item.version = lock.mark_version  # This repair stands for it. Another one in a listing is news.
        rules = RepairRules(
            circumstances=partial(self._circumstances, ledger_id),
            grace=self._grace_left,
            lock=lock,
            percentage=self._parts.config.audit_verification_percentage,
            repairs_placement=self._parts.config.recovery_repairs_placement,
            may_lack=lambda: self._parts.membership.may_lack(
                self._named.get(ledger_id, {}), marked_ms, self._named.get(ledger_id)
            ),
            slots=self._slots,
        )
        repair = LedgerRepair(self._parts.client.administration(), rules, self._account)
        before = self.reports.get(ledger_id)
        while True:
            notes_version = self._parts.membership.notes_version
            outcome = await repair.run(ledger_id, before.losses if before is not None else ())
            if outcome.state is not RepairState.HEALTHY or not await self._is_outdated(ledger_id, notes_version):
                break
        self.activity.acted_ms = self._parts.runtime.clock.wall_ms()
        if outcome.state is not RepairState.HEALTHY:
            self._postpone(item, outcome)
            self.attempts.failed.record(self._now() - self.busy.get(ledger_id, self._now()))
        elif await store.done(lock):
            self._account.totals.ledgers += 1
            self.attempts.succeeded.record(self._now() - self.busy.get(ledger_id, self._now()))
            self._agenda.done(ledger_id)
            self._forget(ledger_id)
        else:  # The mark was renewed meanwhile, or another process has deleted it.
            self._agenda.postpone(ledger_id, self._now(), for_s=AGAIN_S)
            self._agenda.stale(ledger_id)
            self._signals.wants_listing.set()

    def _circumstances(self, ledger_id: int) -> Circumstances:
        """Return the states of bookies. Those named by the mark are only `claimed` lost: enough for copies, not for
        ending a writer."""
        return self._parts.membership.circumstances(
            claimed=self._parts.membership.away_when_marked(self._named.get(ledger_id, {}))
        )

    async def _is_outdated(self, ledger_id: int, notes_version: int) -> bool:
        """Report whether a ledger was found healthy with notes that are older than its mark.

        A mark may name a registered bookie: one that returned, or one that is to be emptied, which this process may not
        have read yet.
        """
        named, registered = self._named.get(ledger_id, ()), self._parts.membership.registered
        if not named or any(bookie in registered for bookie in named):
            await self._parts.membership.read_notes()
        return self._parts.membership.notes_version != notes_version

    def _postpone(self, item: Item, outcome: Outcome) -> None:
        is_lost = bool(outcome.losses) and not outcome.waits
        wants_target = any(wait.cause is Cause.TARGET for wait in outcome.waits)
        now, now_ms = self._now(), self._parts.runtime.clock.wall_ms()
        due_at = self._agenda.postpone(
            item.ledger_id,
            now,
            bookies=outcome.bookies,
            wants_target=wants_target,
            is_lost=is_lost,
            for_s=outcome.grace_s,
        )
        before = self.reports.get(item.ledger_id)
        is_searched_again = item.has_news and bool(outcome.losses)
        report = LedgerReport(
            item.ledger_id,
            RepairState.WAITING if is_searched_again else outcome.state,
            outcome.fewest,
            tuple(outcome.waits),
            () if is_searched_again else tuple(outcome.losses),
            now_ms if before is None else before.since_ms,
            now_ms,
            None if due_at == NEVER else now_ms + int((due_at - now) * 1000),
            1 if before is None else before.tries + 1,
        )
        if before is None and len(self.reports) >= REPORTS_MAX:
            self._parts.events.warning("recovery.many_reports", ledger=item.ledger_id, kept=REPORTS_MAX)
            return
        self.reports[item.ledger_id] = report
        why = [f"{loss.entries} are lost" for loss in report.losses]
        why += [f"waits for {wait.cause.value}: {wait.reason}" for wait in report.waits]
        if why and (before is None or before.state is not report.state):
            self._parts.events.warning(
                "recovery.not_repaired", ledger=item.ledger_id, state=report.state.value, why=why[0]
            )

    # -- writers of unfinished ledgers ---------------------------------------------------------------------------
    def _grace_left(self, ledger: Versioned) -> float:
        """Return the rest of the grace period, in seconds, before the ledger is sealed.

        The period restarts when the writer has changed its bookies, and with every absence: a bookie that returned and
        is lost again has not blocked the ledger all the time. A client that has begun a recovery has the same time to
        finish it.
        """
        record, now = ledger.metadata, self._now()
        known, before = self._grace.get(record.ledger_id, (None, {}))
        if known != record.ensembles:
            before = {}
        lost = self._circumstances(record.ledger_id).lost_at_the_end_of(record)
        reasons: list[object] = [(bookie, self._parts.membership.absence.away_since(bookie)) for bookie in lost]
        if record.state is LedgerState.IN_RECOVERY:
            reasons.append(record.state)
        since = {reason: before.get(reason, now) for reason in reasons}
        self._grace[record.ledger_id] = (record.ensembles, since)
        return max(
            0.0, min(since.values(), default=now) + self._parts.config.recovery_open_ledger_grace_ms / 1000 - now
        )

    def _forget(self, ledger_id: int) -> None:
        self.reports.pop(ledger_id, None)
        self._grace.pop(ledger_id, None)
        self._named.pop(ledger_id, None)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _without_losses(report: LedgerReport) -> LedgerReport:
    """Return the report without losses, because the lost entries are searched for again."""
    return LedgerReport(
        report.ledger_id,
        RepairState.WAITING,
        report.fewest,
        report.waits,
        (),
        report.since_ms,
        report.checked_ms,
        report.checked_ms,
        report.tries,
    )


async def _raise_when(expired: asyncio.Event) -> None:
    await expired.wait()
    raise SessionLost


class SessionLost(BookKeeperError):
    """The session with the metadata store ended, and every lock with it."""

    retriable = True
