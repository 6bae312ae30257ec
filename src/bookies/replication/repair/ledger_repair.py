"""Repair one marked ledger, whose lock the caller holds: check, decide, copy, and check again.

The check before finds out what is true now, whatever the mark says; the bookies that it names are looked at completely
(`closely.py`). The check after finds out whether it was enough, and it is this one that allows the mark to go: it sees,
too, when a target has lost its copy before the record named it. What cannot be repaired ends as a `Wait` or a `Loss` of
the assessment, never as an exception; of those only the metadata store's and those of a client that is closed come
through.

Partial copies stay bounded: a copy begins only when every entry may be somewhere, and once an entry has turned out to
be nowhere the replicas that have to have it are not copied again before a bookie comes back. Source: metadata 8.7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bookies.client.base.metadata_loop import MetadataLoop
from bookies.client.repair import Administration
from bookies.client.repair.replication import CopyProgress
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
from bookies.model import BookieId, LedgerState
from bookies.protocol.placement.placement_policy import Adherence
from bookies.protocol.quorums.quorum import stores
from bookies.protocol.repair import Fragment, FragmentVerdict, RateLimit
from bookies.protocol.repair.fragments import ReplicaState
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
from bookies.replication.repair.full_check import FullReplicaCheck
from bookies.runtime.tasks import all_of

Problem = Wait | Loss
UNLIMITED_S = float("inf")  # a grace that never ends: the writer is left alone
ROUNDS_MAX = 4  # of check and repair; then the rest waits
LOSSES_MAX = 16  # entries of a replica that are passed over, one by one, because they are nowhere
FRAGMENTS_AT_ONCE = 4


@dataclass(slots=True)
class Totals:
    """What all repairs of a process have copied: `entries`, `size` in bytes, both of all copies.

    `renewed`: those entries of bookies that stayed where they are.
    """

    ledgers: int = 0
    fragments: int = 0
    sealed: int = 0
    entries: int = 0
    renewed: int = 0
    size: int = 0


@dataclass(slots=True)
class Outcome:
    """How it stands with a ledger now. `fewest`: good replicas of the entry worst off; None: nobody knows, or no entry.

    `grace_s`: how long its writer still has.
    """

    state: RepairState
    waits: Sequence[Wait] = ()
    losses: Sequence[Loss] = ()
    bookies: Sequence[BookieId] = ()
    fewest: int | None = None
    grace_s: float = 0.0


class LedgerRepair:
    """`updating`: changes a record that was just read. `circumstances`: as they are when it is called.

    `grace`: how long to leave the writer of this record alone, in seconds, 0: no more. `totals`: added to. `slots`: of
    which each fragment takes one while it is copied. `may_lack`: bookies that the mark names, which are looked at
    completely; as `FullReplicaCheck.at` has them. None: the ledger is not marked.
    """

    def __init__(
        self,
        administration: Administration,
        updating: Callable[[Versioned], MetadataLoop],
        circumstances: Callable[[], Circumstances],
        grace: Callable[[Versioned], float],
        pace: RateLimit,
        totals: Totals,
        percentage: int,
        *,
        slots: asyncio.Semaphore | None = None,
        repairs_placement: bool = False,
        may_lack: Callable[[], Mapping[BookieId, bool]] | None = None,
    ) -> None:
        self._administration = administration
        self._updating = updating
        self._circumstances = circumstances
        self._grace = grace
        self._pace = pace
        self._totals = totals
        self._percentage = percentage
        self._slots = slots or asyncio.Semaphore(FRAGMENTS_AT_ONCE)
        self._repairs_placement = repairs_placement
        self._may_lack = may_lack or dict
        self._close_look: FullReplicaCheck  # of each run its own

    async def run(self, ledger_id: int, known: Sequence[Loss] = ()) -> Outcome:
        """`known`: found to be lost before, and nothing came back since. Raises `MetadataError`, `ClientClosed`."""
        self._close_look = FullReplicaCheck(self._administration, self._pace)
        try:
            return await self._rounds(ledger_id, known)
        except LedgerNotFound:
            return Outcome(RepairState.HEALTHY)  # Deleted.

    async def _rounds(self, ledger_id: int, known: Sequence[Loss]) -> Outcome:
        failed: dict[int, list[Problem]] = {}  # by the first entry of the fragment
        written: Versioned | None = None
        for _ in range(ROUNDS_MAX):
            found = written or await self._administration.record(ledger_id)
            written = None
            assessment, verdicts = await self._check(found)
            grace_s = 0.0
            if assessment.wants_sealing:
                grace_s = self._grace(found)
                if found.metadata.state is LedgerState.IN_RECOVERY and grace_s == UNLIMITED_S:
                    grace_s = 0.0  # There is no writer left to be spared.
                problem = _in_grace(found, grace_s) if grace_s > 0 else await self._seal(ledger_id)
                if problem is None:
                    continue
                assessment.waits.append(problem)
            jobs: list[Job] = []
            for job in assessment.jobs:
                losses = [each for each in known if any(each.touches(job.fragment, at) for at in job.replaced)]
                job = job._replace(replaced=_untouched(job.fragment, job.replaced, losses))
                if not job.renewed and not job.replaced:
                    failed.setdefault(job.fragment.first, [*losses])
                if job.fragment.first not in failed:
                    jobs.append(job)
            if not jobs:
                break
            update = self._updating(found)
            outcomes = await self._work(jobs, update)
            if (away := _store_of(outcomes)) is not None:  # Nothing can be learnt from it now, either.
                losses = [each for problems in outcomes for each in problems if isinstance(each, Loss)]
                left = Assessment([], [*assessment.waits, away], [*assessment.losses, *losses])
                return Outcome(left.state, left.waits, left.losses, left.bookies)
            for job, problems in zip(jobs, outcomes, strict=True):
                losses = [each for each in problems if isinstance(each, Loss)]
                known = [*known, *losses]
                remains = not job.renewed and _untouched(job.fragment, job.replaced, losses)
                if problems and not (remains and len(losses) == len(problems)):
                    failed[job.fragment.first] = problems
            if found.metadata.is_closed and update.current.version > found.version:
                written = update.current  # As it has been since; of an unfinished ledger its writer may know better.
        return _outcome(assessment, verdicts, failed, grace_s)

    async def _check(self, found: Versioned) -> tuple[Assessment, Sequence[FragmentVerdict]]:
        circumstances = self._circumstances()
        try:
            check = await self._administration.check_record(
                found, circumstances.registered, percentage=self._percentage
            )
        except (ClientClosed, LedgerNotFound, MetadataError):
            raise
        except BookKeeperError as error:
            # Where an unfinished ledger ends cannot be learnt. With a lost bookie only a recovery would find out.
            assessment = Assessment()
            assessment.wants_sealing = circumstances.asks_for_sealing(found.metadata)
            if not assessment.wants_sealing:
                assessment.waits.append(Wait(Cause.ANSWER, 0, -1, None, str(error)))
            return assessment, ()
        verdicts = await self._close_look.at(found.metadata, check.fragments, self._may_lack())
        assessment = assess(found.metadata, verdicts, circumstances)
        if self._repairs_placement and found.metadata.is_closed:
            await self._add_misplaced(assessment, verdicts, circumstances)
        return assessment, verdicts

    async def _add_misplaced(
        self, assessment: Assessment, verdicts: Sequence[FragmentVerdict], circumstances: Circumstances
    ) -> None:
        """Fragments that are well, and not where the placement policy wants them."""
        at_work = [job.fragment.first for job in assessment.jobs]
        for verdict in verdicts:
            fragment = verdict.fragment
            if fragment.first in at_work or not verdict.is_ok:
                continue
            adherence, why = await self._administration.judge_placement(fragment)
            if adherence > Adherence.FAIL:
                continue
            try:
                positions = await self._administration.misplaced(fragment, list(circumstances.unwanted))
            except NotEnoughBookies as error:
                reason = "; ".join([*why[:1], error.message]) + circumstances.left_out(fragment.ensemble)
                assessment.waits.append(Wait(Cause.TARGET, fragment.first, fragment.last, None, reason))
            else:
                assessment.jobs.append(Job(verdict, (), tuple(positions), verdict.fewest_replicas))

    async def _seal(self, ledger_id: int) -> Wait | None:
        """End the writer; None: done."""
        try:
            await self._administration.recover(ledger_id)
        except (ClientClosed, LedgerNotFound, MetadataError):
            raise
        except BookKeeperError as error:
            return not_sealed(error, self._circumstances())
        self._totals.sealed += 1
        return None

    # -- copying -------------------------------------------------------------------------------------------------
    async def _work(self, jobs: Sequence[Job], update: MetadataLoop) -> list[list[Problem]]:
        """What came of each job; nothing: done, or not needed any more."""
        outcomes: list[list[Problem]] = [[] for _ in jobs]
        waiting: Iterator[tuple[int, Job]] = iter(enumerate(jobs))

        async def work() -> None:
            for index, job in waiting:
                async with self._slots:
                    if _store_of(outcomes) is None:
                        outcomes[index] = await self._carry_out(job, update)

        await all_of(work() for _ in range(min(FRAGMENTS_AT_ONCE, len(jobs))))
        return outcomes

    async def _carry_out(self, job: Job, update: MetadataLoop) -> list[Problem]:
        fragment, problems, found = job.fragment, list[Problem](), update.current
        try:
            replaced = self._still_to_replace(job)
            for position in job.renewed:
                try:
                    problems += await self._renew(job.verdict, position, found)
                except (BookieReadOnly, WriteFailed):
                    replaced.append(position)  # It is there, and cannot store anything: another one has to.
            if any(isinstance(each, Wait) for each in problems):
                return problems
            replaced = [*_untouched(fragment, replaced, [each for each in problems if isinstance(each, Loss)])]
            nowhere = await self._nowhere(job, replaced, found) if replaced and job.good == 0 else []
            problems += nowhere
            if replaced and not nowhere:
                await self._administration.replicate_fragment(
                    fragment,
                    most_urgent_first(job.verdict, replaced, self._circumstances().leaving),
                    exclude=list(self._circumstances().unwanted),
                    pace=self._pace,
                    progress=self._counter(),
                    update=update,
                )
        except (ClientClosed, LedgerNotFound):
            raise
        except (VersionConflict, FragmentNotFinished):
            return problems  # Somebody else changed the record: the next check sees what is left to do.
        except MetadataError as error:
            return [Wait(Cause.STORE, fragment.first, fragment.last, None, str(error))]
        except NotEnoughBookies as error:
            reason = error.message + self._circumstances().left_out(fragment.ensemble)
            return [*problems, Wait(Cause.TARGET, fragment.first, fragment.last, None, reason)]
        except BookKeeperError as error:
            return [*problems, await self._explained(fragment, error, found)]
        self._totals.fragments += not problems
        return problems

    def _still_to_replace(self, job: Job) -> list[int]:
        """Without bookies that have come back since they were checked: they have all they had."""
        circumstances = self._circumstances()
        came_back = [
            replica.position
            for replica in job.verdict.replicas
            if replica.state is ReplicaState.UNAVAILABLE
            and replica.bookie in circumstances.registered
            and replica.bookie not in circumstances.leaving
        ]
        return [position for position in job.replaced if position not in came_back]

    async def _renew(self, verdict: FragmentVerdict, position: int, found: Versioned) -> list[Problem]:
        """Give a bookie again what it lacks of a fragment, or has damaged, and nothing else; what is lost of that."""
        fragment, replica = verdict.fragment, verdict.replicas[position]
        is_damaged = isinstance(replica.error, DigestMismatch)
        scan = await self._administration.scan_replica(
            found.metadata, replica.bookie, fragment.stored(position), pace=self._pace, is_listing=not is_damaged
        )
        if scan.stopped is not None:
            raise scan.stopped
        runs = [range(bad.first, bad.last + 1) for bad in scan.bad]
        if not runs and replica.entry_id is not None:
            runs = [range(replica.entry_id, replica.entry_id + 1)]
        losses: list[Problem] = []
        while runs:
            try:
                renewed = await self._administration.renew_entries(
                    fragment.ledger_id, replica.bookie, runs, pace=self._pace, progress=self._counter()
                )
                self._totals.renewed += renewed
            except BookKeeperError as error:
                problem = await self._explained(fragment, error, found)
                if not isinstance(problem, Loss) or len(losses) >= LOSSES_MAX:
                    raise
                losses.append(problem)  # The others can be made good all the same.
                after = problem.last + 1
                runs = [range(max(run.start, after), run.stop) for run in runs if run.stop > after]
            else:
                break
        return losses

    def _counter(self) -> Callable[[CopyProgress], None]:
        """Adds what one operation has copied to the totals as it goes."""
        entries = size = 0

        def count(progress: CopyProgress) -> None:
            nonlocal entries, size
            self._totals.entries += progress.entries - entries
            self._totals.size += progress.size - size
            entries, size = progress.entries, progress.size

        return count

    # -- evidence ------------------------------------------------------------------------------------------------
    async def _nowhere(self, job: Job, positions: Sequence[int], found: Versioned) -> list[Problem]:
        """Before these positions of a fragment are copied that has no good replica of some entries: whether those are
        anywhere.

        The entries that the check has missed are looked for at every bookie that must have them.
        """
        fragment = job.fragment
        suspects = [each.entry_id for each in job.verdict.replicas if each.entry_id is not None]
        suspects += [each for at in positions for each in (fragment.first_stored(at), fragment.last_stored(at))]
        size, write_quorum = len(fragment.ensemble), fragment.write_quorum
        stored = [each for each in suspects if any(stores(at, each, size, write_quorum) for at in positions)]
        problems: list[Problem] = []
        for entry_id in sorted(dict.fromkeys(stored)):
            problem = await self._judge(fragment, entry_id, found)
            if problem is not None:
                problems.append(problem)
        return problems

    async def _explained(self, fragment: Fragment, error: BookKeeperError, found: Versioned) -> Problem:
        """Why a copy failed: an entry that nobody delivers, or a bookie that does not take it."""
        if error.entry_id is not None and fragment.first <= error.entry_id <= fragment.last:
            problem = await self._judge(fragment, error.entry_id, found)
            if problem is not None:
                return problem
        bookie = None if error.bookie is None else BookieId(error.bookie)
        if bookie in fragment.ensemble:
            return Wait(Cause.ANSWER, fragment.first, fragment.last, bookie, str(error))
        reason = f"{error}{self._circumstances().left_out(fragment.ensemble)}"
        return Wait(Cause.TARGET, fragment.first, fragment.last, bookie, reason)

    async def _judge(self, fragment: Fragment, entry_id: int, found: Versioned) -> Problem | None:
        circumstances = self._circumstances()
        answers = await self._administration.ask_holders(found.metadata, entry_id, circumstances.registered)
        return judge_entry(fragment, entry_id, answers, circumstances)


def _store_of(outcomes: Sequence[Sequence[Problem]]) -> Wait | None:
    """What waits for the metadata store, if anything does."""
    waits = [each for problems in outcomes for each in problems if isinstance(each, Wait)]
    return next((each for each in waits if each.cause is Cause.STORE), None)


def _untouched(fragment: Fragment, positions: Sequence[int], losses: Sequence[Loss]) -> tuple[int, ...]:
    """Those of the positions that store nothing which is lost."""
    return tuple(at for at in positions if not any(each.touches(fragment, at) for each in losses))


def not_sealed(error: BookKeeperError, circumstances: Circumstances) -> Wait:
    """What a ledger waits for whose recovery has failed: what the recovery failed of, not that it did."""
    cause, failure = Cause.ANSWER, error.__cause__ or error
    left_out = ""
    if isinstance(failure, NotEnoughBookies):
        # A recovery takes bookies that are not wanted when there are no others.
        cause, left_out = Cause.TARGET, circumstances.left_out(by_word=False)
    elif isinstance(failure, MetadataError):
        cause = Cause.STORE
    return Wait(cause, 0, -1, None, f"its end cannot be decided: {error}{left_out}")


def _in_grace(found: Versioned, grace_s: float) -> Wait:
    first, last = found.metadata.ensembles[-1][0], -1
    if found.metadata.state is LedgerState.IN_RECOVERY:
        return Wait(Cause.RECOVERY, first, last, None, f"for {grace_s:.0f} s; after that it is gone on with")
    return Wait(Cause.GRACE, first, last, None, f"for {grace_s:.0f} s; after that the ledger is sealed")


def _outcome(
    assessment: Assessment, verdicts: Sequence[FragmentVerdict], failed: Mapping[int, Sequence[Problem]], grace_s: float
) -> Outcome:
    """What is left, once nothing more can be done now."""
    problems = [each for job in assessment.jobs for each in failed.get(job.fragment.first, ())]
    unsettled = [job for job in assessment.jobs if job.fragment.first not in failed]
    waits = [*assessment.waits, *(each for each in problems if isinstance(each, Wait))]
    losses = [*assessment.losses, *(each for each in problems if isinstance(each, Loss))]
    waits += [
        Wait(Cause.BOOKIE, job.fragment.first, job.fragment.last, None, "it changes as fast as it is repaired")
        for job in unsettled
    ]
    if assessment.wants_sealing and not waits:
        waits.append(Wait(Cause.STORE, 0, -1, None, "it was sealed, and the metadata store does not show that yet"))
    left = Assessment([], waits, losses)
    fewest = min((verdict.fewest_replicas for verdict in verdicts), default=None)
    bookies = left.bookies
    if assessment.wants_sealing:  # Whose return may help to decide the end.
        bookies += [
            replica.bookie
            for verdict in verdicts
            for replica in verdict.replicas
            if not verdict.fragment.is_finished and replica.state is not ReplicaState.OK
        ]
    return Outcome(left.state, waits, losses, list(dict.fromkeys(bookies)), fewest, grace_s)
