"""Drain: empties a bookie, ledger by ledger, by copying its entries to others until no record names it.

    announce it  ->  find its ledgers  ->  repair each under its lock  ->  list again, until none is left

The intent is a note that writers and auto-recovery respect (`metadata/shared/bookie_notes.py`): writers choose the
bookie last, and repairs do not copy to it. The note stays when the command is interrupted or cannot move some ledgers.
A new drain then continues: each ledger is either finished, as its record shows, or unchanged.

The work is that of a worker (`client/repair/ledger_repair.py`: check, copy before swap, check again). The drain does it
at once instead of leaving it to workers by marks. So it works in a cluster without auto-recovery or with auto-recovery
switched off, the operator sets its rate, and its progress is known exactly. Running workers help: they see the same
intent, and the ledger's lock prevents that a ledger is copied twice.

If the bookie is stopped, it counts as lost here, because the operator declares it. All other bookies count as lost only
by the judgement of auto-recovery, as in `presumed_lost.py`: by marks, and by reports of running processes, because this
process has just begun to watch. Source: metadata 8.11 and 8.12, client-protocol 7.4; pains 34.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from bookies.client.repair.ledger_repair import UNLIMITED_S, LedgerRepair, Outcome, RepairRules, not_sealed
from bookies.client.repair.replication import Account, Totals
from bookies.config import RecoveryConfig
from bookies.errors import (
    BookKeeperError,
    ClientClosed,
    CookieNotFound,
    LedgerNotFound,
    MetadataCorrupt,
    MetadataError,
    NotEnoughBookies,
    VersionConflict,
)
from bookies.metadata.interface.bookie_places import note_place
from bookies.metadata.interface.driver import Versioned
from bookies.metadata.interface.recovery_store import LedgerLock, Mark
from bookies.metadata.shared import BookieNotes
from bookies.model import BookieId
from bookies.protocol.pacing import RateLimit
from bookies.protocol.repair import Fragment
from bookies.protocol.repair.drain import Forecast, Portion, interleaved, portion_of
from bookies.protocol.repair.fragments import fragments_on, fragments_without_entries, is_named
from bookies.protocol.repair.repair_work import Cause, Circumstances, RepairState, Wait
from bookies.replication.base import Membership
from bookies.replication.base.operator_parts import Operator
from bookies.replication.base.replication_records import Coverage, records
from bookies.replication.base.store_outage import StoreOutageRetry
from bookies.replication.operator.drain_work import LOCKED, Blocked, DrainProgress, DrainWork, described
from bookies.replication.operator.presumed_lost import PresumedLost
from bookies.replication.operator.status import ProcessStatus, witnesses
from bookies.runtime.events import Events
from bookies.runtime.tasks import all_of

LANES = 8  # ledgers at a time
PERCENTAGE = 0  # of entries read by the check, beside the first and the last
STATE_S = 5.0  # between two notes of the progress
STOP_S = 2.0  # for a last note after an interrupt
AGAIN_S = 5.0  # before the next attempt at ledgers that wait for something
STORE_TRIES = 3  # rounds for ledgers that failed at the store, although it answers again


class DrainPlan(Struct):
    """Plan of a drain.

    targets: bytes that each bookie would get by the present choice.
    unreadable: ledgers with an unreadable record, of which it is unknown whether they name the bookie.
    helpers: processes that run auto-recovery. They see the intent and copy too, each at the rate of its own settings,
        and continue when this one stops. Empty while auto-recovery is switched off.
    """

    bookie: BookieId
    mode: str
    portions: list[Portion] = field(default_factory=list)
    targets: dict[BookieId, int] = field(default_factory=dict)
    blocked: list[Blocked] = field(default_factory=list)
    unreadable: Sequence[int] = ()
    helpers: list[str] = field(default_factory=list)

    @property
    def fragments(self) -> int:
        return sum(portion.fragments for portion in self.portions)

    @property
    def entries(self) -> int:
        return sum(portion.entries for portion in self.portions)

    @property
    def size(self) -> int:
        return sum(portion.size for portion in self.portions)


class DrainResult(Struct):
    """Result of a drain.

    is_empty: no record names the bookie.
    blocked: obstacles, if it is not empty.
    entries, size: copied by this process; `size` in bytes.
    took_s, predicted_s, predicted_after_s: duration, the first forecast of it, and when that was made.
    marked: ledgers that still lack replicas for another reason; marked for auto-recovery.
    """

    is_empty: bool = False
    is_cancelled: bool = False
    blocked: list[Blocked] = field(default_factory=list)
    entries: int = 0
    size: int = 0
    took_s: float = 0.0
    predicted_s: float | None = None
    predicted_after_s: float | None = None
    marked: list[int] = field(default_factory=list)
    unreadable: Sequence[int] = ()


class Drain:
    """Drain of one bookie. `start` first, `stop` at the end.

    seals: seal ledgers whose writer still adds to the bookie; the writer fails.
    """

    def __init__(
        self, operator: Operator, bookie: BookieId, *, pace: RateLimit | None = None, seals: bool = False
    ) -> None:
        runtime, client, driver, self._owner = operator
        self._driver = driver
        self._outages = StoreOutageRetry(driver)
        self._bookie = bookie
        self._pace = pace or RateLimit(None)
        self._seals = seals
        self._wall_ms = runtime.clock.wall_ms
        self._administration = client.administration()
        self._notes = BookieNotes(driver, runtime.clock.wall_ms)
        self._events = Events("drain", runtime.clock)
        self._membership = Membership(driver, runtime.clock, RecoveryConfig(), self._events, writes_delay=False)
        self._work = DrainWork()
        self._is_cancelled = False
        self._witnesses: list[ProcessStatus] = []

    async def start(self) -> None:
        """Start to watch the cluster. Raises `MetadataError`."""
        await self._membership.start()

    def stop(self) -> None:
        self._membership.stop()

    # -- planning ------------------------------------------------------------------------------------------------
    async def plan(self) -> DrainPlan:
        """Return the work, and the obstacles that records and registrations show; change nothing."""
        plan = DrainPlan(self._bookie, await self._mode())
        if await self._driver.recovery.is_enabled():
            plan.helpers = [process.name for process in await witnesses(self._driver)]
        plan.unreadable = await self._visit_records(lambda ledger: self._plan_ledger(ledger, plan))
        plan.portions.sort(key=lambda portion: portion.ledger_id)
        plan.blocked.sort(key=lambda blocked: (blocked.ledger_id, blocked.first))
        return plan

    async def _mode(self) -> str:
        mode = (await self._driver.modes()).get(self._bookie)
        return "down" if mode is None else mode.value

    async def _visit_records(self, visit: Callable[[Versioned], Coroutine[Any, Any, None]]) -> list[int]:
        """Visit every record that names the bookie; return the ids of ledgers with unreadable records."""
        coverage = Coverage()
        async for page in records(self._driver, RateLimit(None), coverage):
            named = [ledger for ledger in page if is_named(ledger.metadata, self._bookie)]
            await all_of(map(visit, named))
        return coverage.unreadable

    async def _plan_ledger(self, ledger: Versioned, plan: DrainPlan) -> None:
        try:
            portion, fragments = await self._portion(ledger)
        except LedgerNotFound:
            return
        plan.portions.append(portion)
        for fragment, positions in fragments_on(fragments, [self._bookie]):
            blocked = self._foreseen(fragment)
            if blocked is None and fragment.is_finished:
                blocked = await self._choose(fragment, positions, portion, plan)
            if blocked is not None:
                plan.blocked.append(blocked)

    async def _portion(self, ledger: Versioned) -> tuple[Portion, list[Fragment]]:
        """Return the bookie's portion of a ledger, and the fragments. Raises `LedgerNotFound`, `MetadataError`."""
        record = ledger.metadata
        last, length = record.last_entry_id, record.length
        if not record.is_closed:
            try:
                reader = await self._administration.open(record.ledger_id)
            except (ClientClosed, LedgerNotFound, MetadataError):
                raise
            except BookKeeperError:
                pass  # No bookie reports its end, so it counts for little.
            else:
                last, length = reader.last_add_confirmed, reader.length
                await reader.close()
        fragments = [*await self._administration.fragments_of(ledger), *fragments_without_entries(record)]
        return portion_of(record, fragments, self._bookie, last, length), fragments

    def _foreseen(self, fragment: Fragment) -> Blocked | None:
        """Return an obstacle that is certain without asking a bookie for an entry."""
        if not fragment.is_finished:
            return None if self._seals else self._unfinished(fragment)
        registered = self._membership.registered
        for members in fragment.write_sets:
            holders = [fragment.ensemble[position] for position in members]
            if self._bookie in holders and not any(bookie in registered for bookie in holders):
                why = f"none of {', '.join(holders)}, which have its entries, is registered: start one of them"
                return Blocked(fragment.ledger_id, fragment.first, fragment.last, Cause.BOOKIE.value, why)
        return None

    def _unfinished(self, fragment: Fragment) -> Blocked:
        why = "it is open, and its writer may continue to add entries to the bookie; sealing it ends the writer"
        return Blocked(fragment.ledger_id, fragment.first, -1, Cause.WRITER.value, why, can_be_sealed=True)

    async def _choose(
        self, fragment: Fragment, positions: Sequence[int], portion: Portion, plan: DrainPlan
    ) -> Blocked | None:
        circumstances = self._membership.circumstances()
        unwanted = [*circumstances.unwanted, self._bookie]
        try:
            chosen = await self._administration.plan_fragment(fragment, positions, exclude=unwanted)
        except NotEnoughBookies as error:
            why = error.message + circumstances.left_out(fragment.ensemble)
            return Blocked(fragment.ledger_id, fragment.first, fragment.last, Cause.TARGET.value, why)
        size = portion.size * len(fragment.stored(positions[0])) // max(1, portion.entries)
        for replacement in chosen:
            plan.targets[replacement.new] = plan.targets.get(replacement.new, 0) + size
        return None

    # -- moving --------------------------------------------------------------------------------------------------
    async def begin(self) -> None:
        """Announce that the bookie is to be emptied; an existing announcement of another process stays."""
        await self._notes.begin_draining(self._bookie, self._owner)
        await self._membership.refresh(is_forced=True)

    async def cancel(self) -> bool:
        """End the drain; False: there was none. Copied replicas stay where they are."""
        return await self._notes.end_draining(self._bookie)

    async def run(
        self, plan: DrainPlan, report: Callable[[DrainProgress], None] | None = None, *, waits: bool = False
    ) -> DrainResult:
        """Empty the bookie, after `begin`.

        Ends when it is empty, when an operator cancels the drain, or when only blocked ledgers are left, unless it
        `waits` for their obstacles to end. Retries during an outage of the metadata store, for `store_outage.AWAY_S`;
        then raises `MetadataError`. The intent stays, and a new drain continues.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time()
        work = self._work = DrainWork(plan.portions, plan.blocked)
        forecast = Forecast(len(work.total), plan.size, begun)
        result = DrainResult()
        watching = loop.create_task(self._watch(forecast, result, report, begun))
        try:
            await self._outages.run(lambda: self._rounds(work.left, forecast, result, waits=waits))
        except asyncio.CancelledError:
            with contextlib.suppress(MetadataError, TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await self._note(f"{self._owner} has stopped: {described(self.progress(forecast), goes_on=False)}")
            raise
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        result.took_s = loop.time() - begun
        result.entries, result.size = work.done.entries, work.done.size
        result.is_cancelled = self._is_cancelled
        result.marked = sorted(work.marked)
        end = "it is empty" if result.is_empty else f"{len(result.blocked):,} ledgers are in the way"
        await self._outages.run(lambda: self._note(end))
        return result

    async def _rounds(
        self, portions: Sequence[Portion], forecast: Forecast, result: DrainResult, *, waits: bool
    ) -> None:
        loop = asyncio.get_running_loop()
        todo, tries = list(portions), 0
        while not self._is_cancelled:
            await self._outages.unlock()
            self._witnesses = await witnesses(self._driver)
            self._outages.trouble = None
            before, began = len(self._work.finished), loop.time()
            await self._process(interleaved(todo))
            left: dict[int, Portion] = {}

            async def collect(ledger: Versioned, left: dict[int, Portion] = left) -> None:
                try:
                    left[ledger.metadata.ledger_id] = (await self._portion(ledger))[0]
                except LedgerNotFound:
                    return

            # Once its own write has come back, this session reads what was changed before it, whichever server it asks.
            await self._note("it is looked at what is left")
            result.unreadable = await self._visit_records(collect)
            self._work.settle(todo, left)
            if not left:
                result.is_empty, result.blocked = not result.unreadable, []
                return
            result.blocked = [
                blocked for ledger_id in sorted(left) for blocked in self._work.blocked.get(ledger_id, ())
            ]
            if len(self._work.finished) == before and all(ledger_id in self._work.blocked for ledger_id in left):
                causes = {blocked.cause for blocked in result.blocked}
                tries += Cause.STORE.value in causes
                is_passing = LOCKED in causes or (Cause.STORE.value in causes and tries < STORE_TRIES)
                if not waits and not is_passing:
                    return
                await self._pause(forecast, began)
            elif todo and all(portion.ledger_id in left for portion in todo):
                # A server of the store that lags behind still lists what is moved, or writers choose the bookie again.
                await self._pause(forecast, began)
            todo = list(left.values())

    async def _pause(self, forecast: Forecast, began_s: float) -> None:
        await asyncio.sleep(AGAIN_S)
        await self._membership.refresh(is_forced=True)
        forecast.idled(asyncio.get_running_loop().time() - began_s)

    async def _process(self, portions: Sequence[Portion]) -> None:
        waiting: Iterator[Portion] = iter(portions)

        async def lane() -> None:
            for portion in waiting:
                if self._is_cancelled:
                    return
                await self._ledger(portion)

        await all_of(lane() for _ in range(min(LANES, len(portions))))

    async def _ledger(self, portion: Portion) -> None:
        """Process one ledger under its lock; afterwards it is finished, or its obstacle is known."""
        store, ledger_id, work = self._driver.recovery, portion.ledger_id, self._work
        await self._membership.refresh()  # A drain may take hours, in which operators announce other things.
        mark = await store.mark_of(ledger_id)
        is_marked = mark is not None
        presumed = PresumedLost.of(mark, self._witnesses, [self._bookie])
        await presumed.settle(self._membership)
        version = None if mark is None else mark.version  # A mark that grows meanwhile stands for more, and stays.
        lock = await store.lock(ledger_id, self._owner, needs_mark=is_marked, mark_version=version)
        if lock is None:
            holder = (await store.locks()).get(ledger_id, "another process")
            work.blocked[ledger_id] = [Blocked(ledger_id, 0, -1, LOCKED, f"{holder} has its lock")]
            return
        totals = Totals()
        work.busy[ledger_id] = portion, totals
        try:
            outcome = await self._repair(lock, portion, totals, presumed, mark)
            if outcome is None:
                work.finish(portion)
            elif outcome.state is RepairState.HEALTHY and is_marked:
                if not await self._membership.knows_new_drains():
                    await store.done(lock)
            elif outcome.state is not RepairState.HEALTHY and ledger_id not in work.blocked:
                work.marked[ledger_id] = None
                known = self._membership.circumstances()
                named = [bookie for bookie in outcome.bookies if bookie in known.registered or bookie in known.lost]
                # A bookie that is away for less than the delay is not named: workers would treat it as lost.
                await store.mark(ledger_id, named, self._wall_ms(), is_damage=True)
        finally:
            work.busy.pop(ledger_id, None)
            work.done.entries += totals.entries
            work.done.size += totals.size
            await self._outages.unlock(lock)

    async def _repair(
        self,
        lock: LedgerLock,
        portion: Portion,
        totals: Totals,
        presumed: PresumedLost,
        mark: Mark | None,
    ) -> Outcome | None:
        """Repair one ledger; None: it was deleted. Raises `MetadataError`.

        presumed: bookies that count as lost.
        mark: the ledger's mark.
        """
        ledger_id = lock.ledger_id
        self._work.blocked.pop(ledger_id, None)
        rules = RepairRules(
            circumstances=partial(self._circumstances, presumed),
            grace=lambda ledger: 0.0 if self._may_seal(ledger) else UNLIMITED_S,
            lock=lock,
            on_trouble=self._outages.failed,
            percentage=PERCENTAGE,
            repairs_placement=mark is not None and not mark.replicas,
            may_lack=lambda: self._named_by_mark(mark),
        )
        repair = LedgerRepair(self._administration, rules, Account(self._pace, totals=totals))
        try:
            record = await self._administration.record(ledger_id)
            if self._may_seal(record):
                await self._administration.recover(ledger_id)
            outcome = await repair.run(ledger_id)
            record = await self._administration.record(ledger_id)
        except LedgerNotFound:
            return None
        except (ClientClosed, MetadataError):
            raise
        except BookKeeperError as error:
            self._work.blocked[ledger_id] = [
                self._waiting(ledger_id, not_sealed(error, self._membership.circumstances()))
            ]
            return Outcome(RepairState.WAITING)
        if is_named(record.metadata, self._bookie):
            # A server of the store that lags behind shows the record as it was before the repair.
            [current] = await self._driver.current_ledgers([ledger_id], [record])
            if current is None:
                return None
            record = record if isinstance(current, MetadataCorrupt) else current
        if not is_named(record.metadata, self._bookie):
            self._work.finish(portion)
            return outcome
        blocked = self._reasons(record, outcome)
        if record.metadata.is_closed and any(one.cause == Cause.WRITER.value for one in blocked):
            # It has no writer: the repair was shown an older record. Rounds are repeated for the store's sake.
            blocked = [Blocked(ledger_id, 0, -1, Cause.STORE.value, "one of its servers lags behind")]
        self._work.blocked[ledger_id] = blocked
        return outcome

    def _circumstances(self, presumed: PresumedLost) -> Circumstances:
        """Return the states of bookies, with this one first of those to be emptied."""
        known = presumed.circumstances(self._membership)
        return replace(known, leaving=sorted(known.leaving, key=lambda bookie: bookie != self._bookie))

    def _named_by_mark(self, mark: Mark | None) -> dict[BookieId, bool]:
        """Return the bookies that a mark may stand for, beside the one that is emptied."""
        named = () if mark is None else mark.replicas
        return self._membership.may_lack([bookie for bookie in named if bookie != self._bookie], None)

    def _may_seal(self, ledger: Versioned) -> bool:
        return self._seals and not ledger.metadata.is_closed and self._bookie in ledger.metadata.last_ensemble

    def _reasons(self, ledger: Versioned, outcome: Outcome) -> list[Blocked]:
        """Return why the bookie still has entries of this ledger."""
        ledger_id = ledger.metadata.ledger_id
        blocked = [self._waiting(ledger_id, wait) for wait in outcome.waits]
        for loss in outcome.losses:
            evidence = "; ".join(f"{bookie}: {why}" for bookie, why in loss.evidence)
            blocked.append(
                Blocked(ledger_id, loss.first, loss.last, "lost", f"no bookie has {loss.entries}: {evidence}")
            )
        if not blocked:
            first = ledger.metadata.ensembles[-1][0]
            blocked = [Blocked(ledger_id, first, -1, Cause.WRITER.value, "its writer has chosen the bookie meanwhile")]
        return list(dict.fromkeys(blocked))  # Two waits may be the same obstacle to the operator.

    def _waiting(self, ledger_id: int, wait: Wait) -> Blocked:
        if wait.cause in (Cause.WRITER, Cause.GRACE):
            why = "it is open, and its writer has not replaced the bookie yet; sealing it ends the writer"
            return Blocked(ledger_id, wait.first, -1, Cause.WRITER.value, why, can_be_sealed=True)
        bookie = f"{wait.bookie}: " if wait.bookie is not None else ""
        return Blocked(ledger_id, wait.first, wait.last, wait.cause.value, f"{bookie}{wait.reason}")

    # -- progress ------------------------------------------------------------------------------------------------
    async def _watch(
        self,
        forecast: Forecast,
        result: DrainResult,
        report: Callable[[DrainProgress], None] | None,
        begun: float,
    ) -> None:
        """Report the progress, here and in the note; detect there that the drain was cancelled."""
        loop = asyncio.get_running_loop()
        noted_at = loop.time()
        while True:
            await asyncio.sleep(0.1)
            progress = self.progress(forecast)
            if result.predicted_s is None and progress.remaining_s is not None:
                result.predicted_after_s = loop.time() - begun
                result.predicted_s = result.predicted_after_s + progress.remaining_s
            if report is not None:
                report(progress)
            if loop.time() - noted_at >= STATE_S:
                noted_at = loop.time()
                try:
                    await self._note(described(progress))
                except MetadataError as error:
                    self._events.warning("drain.state_not_noted", bookie=self._bookie, error=error)

    @property
    def copies(self) -> list[Totals]:
        """Return the totals of what this process has copied."""
        return self._work.copies

    def progress(self, forecast: Forecast) -> DrainProgress:
        """Return the progress of finished ledgers, and of those in progress here. Others' ledgers count when done."""
        now = asyncio.get_running_loop().time()
        return self._work.progress(forecast, now, self._pace.charge(0, now), self._outages.trouble)

    async def _note(self, state: str) -> None:
        if not await self._notes.set_draining_state(self._bookie, state):
            self._is_cancelled = True

    # -- the end -------------------------------------------------------------------------------------------------
    async def remove(self) -> None:
        """Remove the bookie, which is stopped and empty, from the cluster: delete its cookie, and then the intent.

        Deletes the cookie only in the version that was read before the last listing of the records. Raises
        `VersionConflict` if it has changed (the bookie was started with other directories), `BookKeeperError` if the
        bookie is registered or named, or the drain was cancelled.
        """
        await self._note("it is checked before its removal")  # The reads are newer than this write, as in `_rounds`.
        if self._is_cancelled:
            raise BookKeeperError(f"bookie {self._bookie} keeps its cookie: its drain was cancelled meanwhile")
        try:
            _, version = await self._driver.read_cookie(self._bookie)
        except CookieNotFound:
            version = None
        await self._check_down()
        left: list[int] = []

        async def collect(ledger: Versioned) -> None:
            left.append(ledger.metadata.ledger_id)

        unreadable = await self._visit_records(collect)
        if left or unreadable:
            problem = "name it" if left else "have records that cannot be read"
            ids = ", ".join(map(str, (left or unreadable)[:5]))
            raise BookKeeperError(
                f"bookie {self._bookie} keeps its cookie: {len(left or unreadable):,} ledgers {problem} ({ids})"
            )
        await self._check_down()  # The records of many ledgers take minutes to read.
        if version is not None:
            try:
                await self._driver.delete_cookie(self._bookie, version)
            except CookieNotFound:
                pass  # Another process has deleted it.
            except VersionConflict as error:
                raise VersionConflict(
                    f"the cookie of bookie {self._bookie} has changed meanwhile, so it was started again; it stays"
                ) from error
        await note_place(self._driver, self._bookie, None)
        await self._notes.end_draining(self._bookie)

    async def _check_down(self) -> None:
        """Raise `BookKeeperError` if the bookie is registered."""
        mode = await self._mode()
        if mode != "down":
            raise BookKeeperError(
                f"bookie {self._bookie} is registered ({mode}), so it keeps its cookie: stop it first"
            )
