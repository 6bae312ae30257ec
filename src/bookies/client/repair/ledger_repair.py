"""Repair of one ledger, whose lock the caller holds: check, decide, copy, and check again.

This is the only engine that makes replicas whole. Auto-recovery, the repair and the drain by operators, and
`repair_ledger` run it with different `RepairRules`. `recover_bookies` knows without a check what to copy, so it uses
the second half, `LedgerRepair.work`.

The first check determines the present state, independent of a mark; it covers all entries of the bookies that the
mark names (`full_check.py`). The last check determines whether the repair was complete, and only this check allows
removal of the mark. It also detects a target that lost its copy before the record named it. Damage that cannot be
repaired becomes a `Wait` or a `Loss` of the assessment, not an exception. Only errors of the metadata store and of a
closed client are raised.

Partial copies stay bounded. A copy begins only when every entry may be on some bookie. Once an entry proves to be on
none, the replicas that must hold it are not copied again before a bookie returns. Source: metadata 8.7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct, field

from bookies.client.base.metadata_loop import MetadataLoop
from bookies.client.repair.full_check import FullReplicaCheck
from bookies.client.repair.replica_tools import ReplicaTools
from bookies.client.repair.replication import Account, Copying, Move, avoiding, renew, replicate_positions
from bookies.errors import (
    BookieReadOnly,
    BookKeeperError,
    ClientClosed,
    DigestMismatch,
    FragmentNotFinished,
    LedgerNotFound,
    MetadataError,
    NotEnoughBookies,
    VersionConflict,
    WriteFailed,
)
from bookies.metadata.interface.driver import Versioned
from bookies.metadata.interface.recovery_store import LedgerLock
from bookies.model import BookieId, LedgerState
from bookies.protocol.placement.placement_policy import Adherence
from bookies.protocol.quorums.quorum import stores
from bookies.protocol.repair import Fragment, FragmentVerdict
from bookies.protocol.repair.fragments import ReplicaState, stored_in
from bookies.protocol.repair.repair_work import (
    Assessment,
    Cause,
    Circumstances,
    Job,
    Loss,
    RepairState,
    Wait,
    assess,
    judge_entry,
    most_urgent_first,
)
from bookies.protocol.repair.replicate import Replacement, renewals
from bookies.runtime.tasks import all_of

Problem = Wait | Loss
UNLIMITED_S = float("inf")  # a grace period that never ends: the writer is never ended
ROUNDS_MAX = 4  # of check and repair; then the rest waits
LOSSES_MAX = 16  # entries of a replica that are skipped, one by one, because they are on no bookie
FRAGMENTS_AT_ONCE = 4


class Outcome(Struct):
    """State of a ledger after a repair.

    fewest: good replicas of the entry with the fewest; None: unknown, or no entries.
    grace_s: rest of the writer's grace period.
    verdicts: of the last check.
    """

    state: RepairState
    waits: Sequence[Wait] = ()
    losses: Sequence[Loss] = ()
    bookies: Sequence[BookieId] = ()
    fewest: int | None = None
    grace_s: float = 0.0
    verdicts: Sequence[FragmentVerdict] = ()


class RepairRules(Struct, frozen=True, kw_only=True):
    """Circumstances of a repair, in which those who start one differ.

    circumstances: returns the present states of bookies: what counts as lost, what to avoid.
    grace: returns the rest of the grace period of a record's writer, seconds; 0: it is over. None: fragments that may
        still grow are left to their writer, and no ledger is sealed.
    lock: the ledger's lock; a swap fails when it is lost. None: the repair is dry.
    on_trouble: as of `MetadataLoop`.
    percentage: share of the entries to check, beside the first and the last of each replica.
    is_dry: only plan the moves.
    repairs_placement: also move replicas that violate the placement policy.
    may_lack: returns the bookies that the mark names, for a full check, as in `FullReplicaCheck.run`.
    at_once: fragments that are copied concurrently.
    slots: each fragment uses one while it is copied; shared with other repairs.
    """

    circumstances: Callable[[], Circumstances]
    grace: Callable[[Versioned], float] | None = None
    lock: LedgerLock | None = None
    on_trouble: Callable[[MetadataError], None] | None = None
    percentage: float = 0
    is_dry: bool = False
    repairs_placement: bool = False
    may_lack: Callable[[], Mapping[BookieId, bool]] = dict
    at_once: int = FRAGMENTS_AT_ONCE
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(FRAGMENTS_AT_ONCE))


class LedgerRepair:
    """Repair of one ledger. `account`: counts what is copied, and limits its rate.

    `moves`: made so far, or planned. `failures`: errors of fragments that were not copied, by their first entry.
    """

    def __init__(self, tools: ReplicaTools, rules: RepairRules, account: Account) -> None:
        self.moves: list[Move] = []
        self.failures: dict[int, BookKeeperError] = {}
        self._tools = tools
        self._rules = rules
        self._account = account
        self._full_check: FullReplicaCheck  # a new one for each run

    async def run(self, ledger_id: int, known: Sequence[Loss] = ()) -> Outcome:
        """Repair a ledger. `known`: losses found before, if no bookie has returned since.

        Raises `MetadataError`, `ClientClosed`.
        """
        self._full_check = FullReplicaCheck(self._tools, self._account.pace)
        try:
            return await self._rounds(ledger_id, known)
        except LedgerNotFound:
            return Outcome(RepairState.HEALTHY)  # Deleted.

    async def _rounds(self, ledger_id: int, known: Sequence[Loss]) -> Outcome:
        failed: dict[int, list[Problem]] = {}  # by the first entry of the fragment
        written: Versioned | None = None
        loop = asyncio.get_running_loop()
        for _ in range(ROUNDS_MAX):
            ledger = written or await self._tools.record(ledger_id)
            written = None
            began_s = loop.time()
            assessment, verdicts = await self._check(ledger)
            self._account.stages.end("check", began_s, loop.time())
            grace_s = 0.0
            if assessment.wants_sealing and self._rules.grace is not None:
                grace_s = self._rules.grace(ledger)
                if ledger.metadata.state is LedgerState.IN_RECOVERY and grace_s == UNLIMITED_S:
                    grace_s = 0.0  # In recovery there is no writer to end.
                problem = _in_grace(ledger, grace_s) if grace_s > 0 else await self._seal(ledger_id)
                if problem is None:
                    continue
                assessment.waits.append(problem)
            jobs: list[Job] = []
            for job in assessment.jobs:
                losses = [loss for loss in known if any(loss.touches(job.fragment, at) for at in job.replaced)]
                job = job._replace(replaced=_untouched(job.fragment, job.replaced, losses))
                if not job.renewed and not job.replaced:
                    failed.setdefault(job.fragment.first, [*losses])
                if job.fragment.first not in failed:
                    jobs.append(job)
            if not jobs:
                break
            update = self.updating(ledger)
            outcomes = await self.work(jobs, update)
            if self._rules.is_dry:
                break
            if (store_wait := _store_wait(outcomes)) is not None:  # The store cannot be read now, either.
                losses = [problem for problems in outcomes for problem in problems if isinstance(problem, Loss)]
                left = Assessment([], [*assessment.waits, store_wait], [*assessment.losses, *losses])
                return Outcome(left.state, left.waits, left.losses, left.bookies, verdicts=verdicts)
            for job, problems in zip(jobs, outcomes, strict=True):
                losses = [problem for problem in problems if isinstance(problem, Loss)]
                known = [*known, *losses]
                remains = not job.renewed and _untouched(job.fragment, job.replaced, losses)
                if problems and not (remains and len(losses) == len(problems)):
                    failed[job.fragment.first] = problems
            if ledger.metadata.is_closed and update.current.version > ledger.version:
                written = (
                    update.current
                )  # The newest record. An unfinished ledger is read again: its writer may change it.
        return _outcome(assessment, verdicts, failed, grace_s)

    async def _check(self, ledger: Versioned) -> tuple[Assessment, Sequence[FragmentVerdict]]:
        circumstances = self._rules.circumstances()
        try:
            check = await self._tools.check_record(ledger, circumstances.registered, percentage=self._rules.percentage)
        except (ClientClosed, LedgerNotFound, MetadataError):
            raise
        except BookKeeperError as error:
            if self._rules.grace is None:
                raise
            # The end of an unfinished ledger is unknown. With a lost bookie only a recovery can determine it.
            assessment = Assessment()
            assessment.wants_sealing = circumstances.asks_for_sealing(ledger.metadata)
            if not assessment.wants_sealing:
                assessment.waits.append(Wait(Cause.ANSWER, 0, -1, None, str(error)))
            return assessment, ()
        verdicts = await self._full_check.run(ledger.metadata, check.fragments, self._rules.may_lack())
        if self._rules.grace is None:
            verdicts = [verdict for verdict in verdicts if verdict.fragment.is_finished]
        now, asked = self._rules.circumstances(), circumstances.registered
        gone = [bookie for bookie in ledger.metadata.bookies if bookie in asked and bookie not in now.registered]
        if gone:  # The check may take minutes, and a mark does not grow for a bookie that it names already.
            circumstances, verdicts = now, [verdict.without(gone) for verdict in verdicts]
        assessment = assess(ledger.metadata, verdicts, circumstances)
        assessment.wants_sealing &= self._rules.grace is not None
        if self._rules.repairs_placement and ledger.metadata.is_closed:
            await self._add_misplaced(assessment, verdicts, circumstances)
        return assessment, verdicts

    async def _add_misplaced(
        self, assessment: Assessment, verdicts: Sequence[FragmentVerdict], circumstances: Circumstances
    ) -> None:
        """Add jobs for intact fragments that violate the placement policy."""
        at_work = [job.fragment.first for job in assessment.jobs]
        for verdict in verdicts:
            fragment = verdict.fragment
            if fragment.first in at_work or not verdict.is_ok:
                continue
            adherence, why = await self._tools.judge_placement(fragment)
            if adherence > Adherence.FAIL:
                continue
            try:
                positions = await self._tools.misplaced(fragment, list(circumstances.unwanted))
            except NotEnoughBookies as error:
                reason = "; ".join([*why[:1], error.message]) + circumstances.left_out(fragment.ensemble)
                assessment.waits.append(Wait(Cause.TARGET, fragment.first, fragment.last, None, reason))
            else:
                assessment.jobs.append(Job(verdict, (), tuple(positions), verdict.fewest_replicas))

    async def _seal(self, ledger_id: int) -> Wait | None:
        """Seal a ledger, which ends its writer; return what that waits for, or None: done."""
        try:
            await self._tools.recover(ledger_id)
        except (ClientClosed, LedgerNotFound, MetadataError):
            raise
        except BookKeeperError as error:
            return not_sealed(error, self._rules.circumstances())
        self._account.totals.sealed += 1
        return None

    # -- copying -------------------------------------------------------------------------------------------------
    def updating(self, ledger: Versioned) -> MetadataLoop:
        """Return the loop that changes a record that was just read."""
        access, rules = self._tools.access, self._rules
        return MetadataLoop(access.runtime, access.driver, ledger, rules.lock, rules.on_trouble)

    async def work(self, jobs: Sequence[Job], update: MetadataLoop) -> list[list[Problem]]:
        """Carry out the jobs; return the problems of each; none: done, or no longer needed."""
        outcomes: list[list[Problem]] = [[] for _ in jobs]
        waiting: Iterator[tuple[int, Job]] = iter(enumerate(jobs))

        async def work() -> None:
            for index, job in waiting:
                async with self._rules.slots:
                    if _store_wait(outcomes) is None:
                        outcomes[index] = await self._carry_out(job, update)

        if self._rules.at_once == 1:
            await work()
        else:
            await all_of(work() for _ in range(min(self._rules.at_once, len(jobs))))
        return outcomes

    async def _carry_out(self, job: Job, update: MetadataLoop) -> list[Problem]:
        """Carry out one job; return its problems, and keep its error in `failures`."""
        fragment, ledger, problems, done = job.fragment, update.current, list[Problem](), list[Replacement]()
        self.failures.pop(fragment.first, None)
        try:
            await self._copy(job, update, problems, done)
        except (ClientClosed, LedgerNotFound):
            raise
        except BookKeeperError as error:
            self.failures[fragment.first] = error
            problems = await self._problems_of(fragment, error, problems, ledger)
        finally:
            if done:
                self.moves.append(Move(fragment.ledger_id, fragment.first, fragment.last, tuple(done)))
        self._account.totals.fragments += not problems
        return problems

    async def _copy(self, job: Job, update: MetadataLoop, problems: list[Problem], done: list[Replacement]) -> None:
        """Renew and replace the replicas of a job; add lost entries to `problems`, and finished copies to `done`."""
        fragment, ledger, rules, access = job.fragment, update.current, self._rules, self._tools.access
        replaced = self._still_to_replace(job)
        if rules.is_dry:
            renewed, replaced = self._planned(job, replaced)
            done += renewals(fragment, renewed)
        for position in () if rules.is_dry else job.renewed:
            try:
                lost = await self._renew(job.verdict, position, ledger)
            except (BookieReadOnly, WriteFailed):
                replaced.append(position)  # The bookie is up, but cannot store entries: another one has to.
            else:
                problems += lost
                if not lost:
                    done += renewals(fragment, [position])
        if any(isinstance(problem, Wait) for problem in problems):
            return
        replaced = [*_untouched(fragment, replaced, [problem for problem in problems if isinstance(problem, Loss)])]
        if replaced and job.good == 0 and not rules.is_dry:
            missing = await self._missing_everywhere(job, replaced, ledger)
            problems += missing
            if missing:
                return
        if replaced:
            circumstances, moves = rules.circumstances(), list[Move]()
            positions = most_urgent_first(job.verdict, replaced, circumstances.leaving)
            choose = avoiding(access, list(circumstances.unwanted))
            copying = Copying(access, self._account, None if rules.is_dry else update)
            try:
                await replicate_positions(copying, fragment, positions, choose, moves)
            finally:
                done += [replacement for move in moves for replacement in move.replacements]

    def _planned(self, job: Job, replaced: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the positions that would be renewed, and those that would be replaced: entries of bookies that are not
        writable, too."""
        writable, ensemble = self._tools.access.candidates(), job.fragment.ensemble
        renewed = [at for at in job.renewed if ensemble[at] in writable]
        return renewed, [*replaced, *(at for at in job.renewed if at not in renewed)]

    async def _problems_of(
        self, fragment: Fragment, error: BookKeeperError, problems: list[Problem], ledger: Versioned
    ) -> list[Problem]:
        """Return the problems of a fragment, of which `problems` were found before its copy failed."""
        if isinstance(error, VersionConflict | FragmentNotFinished):
            return problems  # Another process changed the record: the next check determines the remaining work.
        if isinstance(error, MetadataError):
            return [Wait(Cause.STORE, fragment.first, fragment.last, None, str(error))]
        if isinstance(error, NotEnoughBookies):
            reason, last = error.message + self._rules.circumstances().left_out(fragment.ensemble), fragment.last
            if last < fragment.first:
                reason, last = f"no entry is missing, but the record names a bookie for later ones: {reason}", -1
            return [*problems, Wait(Cause.TARGET, fragment.first, last, None, reason)]
        return [*problems, await self._explained(fragment, error, ledger)]

    def _still_to_replace(self, job: Job) -> list[int]:
        """Return the positions to replace, without bookies that returned since the check: they have their entries."""
        circumstances = self._rules.circumstances()
        came_back = [
            replica.position
            for replica in job.verdict.replicas
            if replica.state is ReplicaState.UNAVAILABLE
            and replica.bookie in circumstances.registered
            and replica.bookie not in circumstances.leaving
        ]
        return [position for position in job.replaced if position not in came_back]

    async def _renew(self, verdict: FragmentVerdict, position: int, ledger: Versioned) -> list[Problem]:
        """Copy to a bookie only the entries of a fragment that it lacks, or has damaged; return those that are lost."""
        fragment, replica = verdict.fragment, verdict.replicas[position]
        is_damaged = isinstance(replica.error, DigestMismatch)
        scan = await self._tools.scan_replica(
            ledger.metadata,
            replica.bookie,
            fragment.stored(position),
            pace=self._account.pace,
            is_listing=not is_damaged,
        )
        if scan.stopped is not None:
            raise scan.stopped
        runs = [range(bad.first, bad.last + 1) for bad in scan.bad]
        if not runs and replica.entry_id is not None:
            runs = [range(replica.entry_id, replica.entry_id + 1)]
        losses: list[Problem] = []
        while runs:
            try:
                # By the record that was checked: a store that lags behind may return one without these entries.
                account = Account(self._account.pace, self._account.absorb())
                ids = stored_in(fragment.stored(position), runs)
                await renew(self._tools.access, ledger.metadata, fragment, position, ids, account)
                self._account.totals.renewed += account.totals.entries
            except BookKeeperError as error:
                problem = await self._explained(fragment, error, ledger)
                if not isinstance(problem, Loss) or len(losses) >= LOSSES_MAX:
                    raise
                self.failures[fragment.first] = error
                losses.append(problem)  # The other entries can still be renewed.
                after = problem.last + 1
                runs = [range(max(run.start, after), run.stop) for run in runs if run.stop > after]
            else:
                break
        return losses

    # -- evidence ------------------------------------------------------------------------------------------------
    async def _missing_everywhere(self, job: Job, positions: Sequence[int], ledger: Versioned) -> list[Problem]:
        """Return the problems that would break a copy to these positions of a fragment without a good replica.

        Asks every bookie that must have them for the entries that the check missed.
        """
        fragment = job.fragment
        suspects = [replica.entry_id for replica in job.verdict.replicas if replica.entry_id is not None]
        suspects += [entry for at in positions for entry in (fragment.first_stored(at), fragment.last_stored(at))]
        size, write_quorum = len(fragment.ensemble), fragment.write_quorum
        stored = [entry for entry in suspects if any(stores(at, entry, size, write_quorum) for at in positions)]
        problems: list[Problem] = []
        for entry_id in sorted(dict.fromkeys(stored)):
            problem = await self._judge(fragment, entry_id, ledger)
            if problem is not None:
                problems.append(problem)
        return problems

    async def _explained(self, fragment: Fragment, error: BookKeeperError, ledger: Versioned) -> Problem:
        """Return why a copy failed: an entry that no bookie delivers, or a bookie that does not accept it."""
        if error.entry_id is not None and fragment.first <= error.entry_id <= fragment.last:
            problem = await self._judge(fragment, error.entry_id, ledger)
            if problem is not None:
                return problem
        bookie = None if error.bookie is None else BookieId(error.bookie)
        if bookie in fragment.ensemble:
            return Wait(Cause.ANSWER, fragment.first, fragment.last, bookie, str(error))
        reason = f"{error}{self._rules.circumstances().left_out(fragment.ensemble)}"
        return Wait(Cause.TARGET, fragment.first, fragment.last, bookie, reason)

    async def _judge(self, fragment: Fragment, entry_id: int, ledger: Versioned) -> Problem | None:
        circumstances = self._rules.circumstances()
        answers = await self._tools.ask_holders(ledger.metadata, entry_id, circumstances.registered)
        return judge_entry(fragment, entry_id, answers, circumstances)


def _store_wait(outcomes: Sequence[Sequence[Problem]]) -> Wait | None:
    """Return the first wait for the metadata store; None: there is none."""
    waits = [problem for problems in outcomes for problem in problems if isinstance(problem, Wait)]
    return next((wait for wait in waits if wait.cause is Cause.STORE), None)


def _untouched(fragment: Fragment, positions: Sequence[int], losses: Sequence[Loss]) -> tuple[int, ...]:
    """Return the positions that store no lost entry."""
    return tuple(at for at in positions if not any(loss.touches(fragment, at) for loss in losses))


def not_sealed(error: BookKeeperError, circumstances: Circumstances) -> Wait:
    """Return what a ledger waits for after a failed recovery: the cause of that failure."""
    cause, failure = Cause.ANSWER, error.__cause__ or error
    left_out = ""
    if isinstance(failure, NotEnoughBookies):
        # A recovery uses unwanted bookies when there are no others.
        cause, left_out = Cause.TARGET, circumstances.left_out(by_word=False)
    elif isinstance(failure, MetadataError):
        cause = Cause.STORE
    return Wait(cause, 0, -1, None, f"its end cannot be decided: {error}{left_out}")


def _in_grace(ledger: Versioned, grace_s: float) -> Wait:
    first, last = ledger.metadata.ensembles[-1][0], -1
    if ledger.metadata.state is LedgerState.IN_RECOVERY:
        return Wait(Cause.RECOVERY, first, last, None, f"for {grace_s:.0f} s; after that it is gone on with")
    return Wait(Cause.GRACE, first, last, None, f"for {grace_s:.0f} s; after that the ledger is sealed")


def _outcome(
    assessment: Assessment, verdicts: Sequence[FragmentVerdict], failed: Mapping[int, Sequence[Problem]], grace_s: float
) -> Outcome:
    """Return the outcome, when nothing more can be repaired now."""
    problems = [problem for job in assessment.jobs for problem in failed.get(job.fragment.first, ())]
    unsettled = [job for job in assessment.jobs if job.fragment.first not in failed]
    waits = [*assessment.waits, *(problem for problem in problems if isinstance(problem, Wait))]
    losses = [*assessment.losses, *(problem for problem in problems if isinstance(problem, Loss))]
    waits += [
        Wait(Cause.BOOKIE, job.fragment.first, job.fragment.last, None, "it changes as fast as it is repaired")
        for job in unsettled
    ]
    if assessment.wants_sealing and not waits:
        waits.append(Wait(Cause.STORE, 0, -1, None, "it was sealed, and the metadata store does not show that yet"))
    left = Assessment([], waits, losses)
    fewest = min((verdict.fewest_replicas for verdict in verdicts), default=None)
    bookies = left.bookies
    if assessment.wants_sealing:  # The return of these bookies may help to decide the end.
        bookies += [
            replica.bookie
            for verdict in verdicts
            for replica in verdict.replicas
            if not verdict.fragment.is_finished and replica.state is not ReplicaState.OK
        ]
    return Outcome(left.state, waits, losses, list(dict.fromkeys(bookies)), fewest, grace_s, verdicts)
