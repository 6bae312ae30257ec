"""Assessment of one marked ledger: which replicas to repair, what to wait for, what is lost.

A replica is *bad* only when that is certain: its bookie answers that it lacks an entry or has a damaged one, or its
bookie is not registered and counts as lost (`protocol/repair/absence.py`). A replica is unknown if its bookie does not
answer, is busy, cannot read, or has been away for less than the delay. Unknown is not missing: such a replica is waited
for and never copied.

    bad, bookie registered   renewed in place: only the missing entries are copied, the record does not change
    bad, bookie lost         copied to another bookie, which then replaces it in the record
    good, bookie leaving     likewise (the bookie is being drained)

A replica can be replaced when every entry of it may be on some bookie. If that is certainly not so, entries are *lost*.
A loss is a state with evidence, not an error to retry; only a bookie that returns can change it. So the lost bookie
keeps its place in the record. Another bookie there would not hold all that the record says (I-18), and a returned
bookie would not be asked for the entries that it alone has, and would delete them as surplus. The lost bookie's other
entries keep the replicas they have, as the loss reports (`Loss.left`). All other replicas of the fragment are repaired.

Fragments that may still grow are never copied (X-70). Their writer replaces the bookie with its next write. If a lost
bookie is still in the *last* ensemble after a grace period, the ledger is sealed: it may have no writer any more, and
with one more lost bookie its end might be undecidable. No other condition ends a writer: not a lost bookie that it has
replaced, although its progress is not confirmed yet; not a bookie that is lost by a mark alone; and not a missing entry
that was only just written. A ledger in recovery has no writer any more: if its recovery is not finished within the
grace period, the repair continues it.
Source: metadata 8.6 and 8.7, client-protocol 7.2 to 7.4.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, field

from bookies.errors import BookKeeperError, DigestMismatch
from bookies.model import INVALID_ENTRY_ID, BookieId, LedgerMetadata, LedgerState
from bookies.protocol.placement.placement_proof import abbreviated
from bookies.protocol.quorums import write_set
from bookies.protocol.repair.fragments import (
    Fragment,
    FragmentCheck,
    FragmentVerdict,
    ReplicaState,
    ReplicaVerdict,
    fragments_on,
    fragments_without_entries,
    state_of,
)

LEFTOVERS = "; what copies that broke off have left on a full one is deleted by bk bookie gc --surplus"


class RepairState(enum.Enum):
    """State of one ledger. LOST: entries are on no bookie; WAITING: for something that `Wait` names."""

    HEALTHY = "healthy"
    REPAIRABLE = "repairable"
    WAITING = "waiting"
    LOST = "lost"


class Cause(enum.Enum):
    """Cause for which a repair waits."""

    BOOKIE = "a bookie to come back, or to count as lost"
    MAINTENANCE = "the end of a bookie's maintenance"
    ANSWER = "a bookie to answer"
    TARGET = "a bookie to copy to"
    WRITER = "its writer to go on or to close it"
    GRACE = "the end of the grace period in which its writer may replace a lost bookie"
    RECOVERY = "the end of the recovery that somebody has begun"
    STORE = "the metadata store"


class Wait(NamedTuple):
    """Wait of entries first..last. `bookie`: the one concerned, if any; `reason`: text."""

    cause: Cause
    first: int
    last: int
    bookie: BookieId | None
    reason: str


class Loss(NamedTuple):
    """Loss of entries first..last, which are on no replica.

    evidence: each bookie that should have them, and why it does not.
    step: the loss covers every `step`-th entry only; above 1 if the ensemble is larger than the write set.
    left: fewest good replicas of the other entries of those bookies, which are not repaired (see the module); None:
        there are no such entries.
    """

    first: int
    last: int
    evidence: tuple[tuple[BookieId, str], ...]
    step: int = 1
    left: int | None = None

    @property
    def entries(self) -> str:
        """Return the entries as text."""
        return f"entries {self.first} to {self.last}{f', one in {self.step},' if self.step > 1 else ''}"

    def touches(self, fragment: Fragment, position: int) -> bool:
        """Report whether any of the entries belongs to a position of their fragment."""
        size = len(fragment.ensemble)
        if self.last < fragment.first or self.first > fragment.last:
            return False
        samples = range(self.first, min(self.last + 1, self.first + size * self.step), self.step)
        return any(position in write_set(entry_id, size, fragment.write_quorum) for entry_id in samples)


class Job(NamedTuple):
    """Repair of replicas of a fragment: those at `renewed` in place, those at `replaced` on other bookies.

    `good`: fewest replicas known to be good of any entry concerned.
    """

    verdict: FragmentVerdict
    renewed: tuple[int, ...]
    replaced: tuple[int, ...]
    good: int

    @property
    def fragment(self) -> Fragment:
        return self.verdict.fragment


class Circumstances(Struct, frozen=True):
    """Known states of bookies.

    lost: unregistered bookies that count as lost.
    excused: bookies in maintenance.
    leaving: bookies to be emptied.
    unwanted: bookies not to copy to, and why.
    read_only: bookies that cannot be copied to.
    claimed: of the lost, those that are lost by a mark alone, which does not say why it names them. That is enough for
        a copy, which harms no client. It is not enough to end a writer or to report entries as lost.
    """

    registered: Collection[BookieId]
    lost: Collection[BookieId] = ()
    excused: Collection[BookieId] = ()
    leaving: Sequence[BookieId] = ()
    unwanted: Mapping[BookieId, str] = field(default_factory=dict)
    read_only: Collection[BookieId] = ()
    claimed: Collection[BookieId] = ()

    def asks_for_sealing(self, record: LedgerMetadata) -> bool:
        """Report whether a ledger has to be sealed after a grace period: for a lost bookie, or because a recovery has
        begun. In recovery it has no writer any more, and the client that began the recovery may not finish it."""
        if record.is_closed:
            return False
        return record.state is LedgerState.IN_RECOVERY or bool(self.lost_at_the_end_of(record))

    def lost_at_the_end_of(self, record: LedgerMetadata) -> list[BookieId]:
        """Return the bookies of the last ensemble whose loss is a reason to end the ledger's writer."""
        return [bookie for bookie in record.last_ensemble if bookie in self.lost and bookie not in self.claimed]

    def left_out(self, members: Collection[BookieId] = (), *, by_word: bool = True) -> str:
        """Return the end of a sentence about a missing target: registered bookies that were not used, and why; empty:
        all were. `members`: bookies that have the entries already. `by_word`: include the unwanted ones."""
        reasons = dict.fromkeys(self.read_only, "read-only: its disks are full, or somebody wants it so")
        if by_word:
            reasons |= {bookie: why for bookie, why in self.unwanted.items() if bookie in self.registered}
        unused = [f"{bookie} ({why})" for bookie, why in sorted(reasons.items()) if bookie not in members]
        if not unused:
            return ""
        has_full = any(bookie not in members for bookie in self.read_only)
        return f"; not used: {abbreviated(unused)}{LEFTOVERS if has_full else ''}"


class Assessment(Struct):
    """Result of assessing a ledger. `wants_sealing`: seal it once its grace period is over."""

    jobs: list[Job] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    wants_sealing: bool = False

    @property
    def state(self) -> RepairState:
        """Return the worst state of any part."""
        if self.losses:
            return RepairState.LOST
        if self.jobs or self.wants_sealing:
            return RepairState.REPAIRABLE
        return RepairState.WAITING if self.waits else RepairState.HEALTHY

    @property
    def bookies(self) -> list[BookieId]:
        """Return the bookies whose return may change the assessment."""
        waited = [wait.bookie for wait in self.waits if wait.bookie is not None]
        return list(dict.fromkeys([*waited, *(bookie for loss in self.losses for bookie, _ in loss.evidence)]))


def assess(record: LedgerMetadata, verdicts: Sequence[FragmentVerdict], circumstances: Circumstances) -> Assessment:
    """Assess a ledger by the verdicts of its check."""
    assessment = Assessment()
    assessment.wants_sealing = circumstances.asks_for_sealing(record)
    for verdict in verdicts:
        if verdict.fragment.is_finished:
            _assess_finished(verdict, circumstances, assessment)
        elif not assessment.wants_sealing:
            _assess_growing(
                verdict, circumstances, assessment, is_last=verdict.fragment.first == record.ensembles[-1][0]
            )
    for fragment in fragments_without_entries(record):  # By the registrations alone: there is no entry to ask for.
        check = FragmentCheck(fragment, circumstances.registered, 0, lambda count: 0)
        _assess_finished(check.verdict(), circumstances, assessment)
    assessment.jobs.sort(key=lambda job: job.good)
    return assessment


def jobs_without(fragments: Sequence[Fragment], bookies: Sequence[BookieId], lost: Collection[BookieId]) -> list[Job]:
    """Return the jobs that replace all replicas of these bookies, by the record alone. `lost`: those without data."""
    jobs = []
    for fragment, positions in fragments_on(fragments, bookies):
        states = [ReplicaState.UNAVAILABLE if bookie in lost else ReplicaState.OK for bookie in fragment.ensemble]
        replicas = [
            ReplicaVerdict(position, bookie, state)
            for position, (bookie, state) in enumerate(zip(fragment.ensemble, states, strict=True))
        ]
        jobs.append(Job(FragmentVerdict(fragment, tuple(replicas)), (), tuple(positions), 1))
    return jobs


def _assess_finished(verdict: FragmentVerdict, circumstances: Circumstances, assessment: Assessment) -> None:
    fragment = verdict.fragment
    renewed: list[int] = []
    replaced: list[int] = []
    unknown: list[int] = []
    claimed: list[int] = []
    for replica in verdict.replicas:
        is_leaving = replica.bookie in circumstances.leaving
        if fragment.first_stored(replica.position) == INVALID_ENTRY_ID:
            # A short fragment has no entry at this position, so none can be missing. Only the name is replaced.
            if is_leaving or replica.bookie in circumstances.lost:
                replaced.append(replica.position)
            elif replica.state is not ReplicaState.OK:  # If it becomes lost, its mark is still needed.
                last = fragment.last if fragment.last >= fragment.first else INVALID_ENTRY_ID
                assessment.waits.append(_wait_for(fragment, replica, circumstances)._replace(last=last))
        elif replica.state is ReplicaState.OK:
            if is_leaving:
                replaced.append(replica.position)
        elif replica.state is ReplicaState.MISSING:
            (replaced if is_leaving else renewed).append(replica.position)
        elif replica.bookie in circumstances.lost:
            replaced.append(replica.position)
            if replica.bookie in circumstances.claimed:
                claimed.append(replica.position)
        else:
            unknown.append(replica.position)
            assessment.waits.append(_wait_for(fragment, replica, circumstances))
    if not renewed and not replaced:
        return
    may_hold = verdict.positions(ReplicaState.OK, ReplicaState.MISSING)
    hopeless = [members for members in fragment.write_sets if not any(position in may_hold for position in members)]
    stuck = {position for members in hopeless for position in members}
    moved = [position for position in replaced if position not in stuck]
    if renewed or moved:
        assessment.jobs.append(Job(verdict, tuple(renewed), tuple(moved), _good(verdict, [*renewed, *moved])))
    for position in sorted(stuck.intersection(claimed)):
        assessment.waits.append(_wait_for(fragment, verdict.replicas[position], circumstances))
    lost = [
        members for members in hopeless if not any(position in unknown or position in claimed for position in members)
    ]
    assessment.losses += _losses(verdict, lost)


def _good(verdict: FragmentVerdict, positions: Collection[int]) -> int:
    """Return the fewest good replicas of any entry that these positions store; all, if they store none."""
    good = verdict.positions(ReplicaState.OK)
    counts = [
        sum(position in good for position in members)
        for members in verdict.fragment.write_sets
        if any(position in positions for position in members)
    ]
    return min(counts, default=verdict.fragment.write_quorum)


def most_urgent_first(
    verdict: FragmentVerdict, positions: Sequence[int], leaving: Sequence[BookieId] = ()
) -> list[int]:
    """Return the positions in the order in which to replace them if not all can be.

    Lost replicas come before good ones of leaving bookies, then those with the fewest good replicas of an entry, then
    those whose bookie comes first in `leaving`.
    """
    good, ensemble = verdict.positions(ReplicaState.OK), verdict.fragment.ensemble

    def urgency(position: int) -> tuple[bool, int, int]:
        rank = leaving.index(ensemble[position]) if ensemble[position] in leaving else len(leaving)
        return position in good, _good(verdict, [position]), rank

    return sorted(positions, key=urgency)


def _losses(verdict: FragmentVerdict, lost: Sequence[tuple[int, ...]]) -> Iterator[Loss]:
    """Yield the losses: exactly the entries whose write set is one of `lost`, of which every bookie is lost."""
    fragment = verdict.fragment
    size, is_all = len(fragment.ensemble), len(lost) == len(fragment.write_sets)
    if is_all and lost:
        yield Loss(
            fragment.first,
            fragment.last,
            _evidence(fragment, sorted({position for members in lost for position in members})),
        )
        return
    lost_sets = [set(members) for members in lost]
    for first in range(fragment.first, min(fragment.last + 1, fragment.first + size)):
        members = write_set(first, size, fragment.write_quorum)
        if set(members) in lost_sets:
            last = first + (fragment.last - first) // size * size
            others = [other for other in fragment.write_sets if set(other) not in lost_sets and {*other} & {*members}]
            good = verdict.positions(ReplicaState.OK)
            left = min((sum(position in good for position in other) for other in others), default=None)
            yield Loss(first, last, _evidence(fragment, sorted(members)), size, left)


def _evidence(fragment: Fragment, positions: Sequence[int]) -> tuple[tuple[BookieId, str], ...]:
    return tuple((fragment.ensemble[position], "it is lost: not registered") for position in positions)


def _assess_growing(
    verdict: FragmentVerdict, circumstances: Circumstances, assessment: Assessment, *, is_last: bool
) -> None:
    """Assess a fragment that is not finished. `is_last`: its writer adds to it; of the others it is only unknown yet
    whether all their entries are confirmed."""
    fragment = verdict.fragment
    undecided = "whether the last add confirmed has got beyond these entries is not known yet"
    for replica in verdict.replicas:
        if not is_last and replica.bookie in circumstances.lost:
            assessment.waits.append(_waits_for_writer(fragment, replica.bookie, f"it is lost; {undecided}"))
        elif replica.bookie in circumstances.leaving and replica.state is ReplicaState.OK:
            text = "and receives entries" if is_last else undecided
            assessment.waits.append(_waits_for_writer(fragment, replica.bookie, f"it is to be emptied, {text}"))
        elif replica.state is ReplicaState.MISSING:
            text = f"it lacks entry {replica.entry_id}, which may be on its way"
            if isinstance(replica.error, DigestMismatch):
                text = f"its entry {replica.entry_id} does not verify"
            text = f"{text}; a ledger that is sealed is repaired"
            assessment.waits.append(_waits_for_writer(fragment, replica.bookie, text))
        elif replica.state is not ReplicaState.OK:
            assessment.waits.append(_wait_for(fragment, replica, circumstances))


def _waits_for_writer(fragment: Fragment, bookie: BookieId, reason: str) -> Wait:
    return Wait(Cause.WRITER, fragment.first, fragment.last, bookie, reason)


def _wait_for(fragment: Fragment, replica: ReplicaVerdict, circumstances: Circumstances) -> Wait:
    """Return the wait for a replica whose state is unknown."""
    bookie, reason = replica.bookie, replica.error.message if replica.error is not None else "nothing is known of it"
    cause = Cause.ANSWER
    if bookie in circumstances.excused:
        cause, reason = Cause.MAINTENANCE, "it is not registered, and under maintenance"
    elif bookie not in circumstances.registered:
        cause, reason = Cause.BOOKIE, "it is not registered, but not for so long that it would count as lost"
    return Wait(cause, fragment.first, fragment.last, bookie, reason)


def judge_entry(
    fragment: Fragment,
    entry_id: int,
    answers: Sequence[tuple[BookieId, BookKeeperError | None]],
    circumstances: Circumstances,
) -> Loss | Wait | None:
    """Judge an entry that no bookie delivered during a copy, after each of its bookies was asked again.

    `answers`: of every bookie that holds it by the record; error None: it delivered. Return None if the entry exists,
    so that the copy may be repeated.
    """
    evidence: list[tuple[BookieId, str]] = []
    for bookie, error in answers:
        if error is None:
            return None
        if bookie in circumstances.lost and bookie not in circumstances.claimed:
            evidence.append((bookie, "it is lost: not registered"))
        elif state_of(error) is ReplicaState.MISSING:
            evidence.append((bookie, error.message))
        else:
            replica = ReplicaVerdict(fragment.ensemble.index(bookie), bookie, state_of(error), entry_id, error)
            return _wait_for(fragment, replica, circumstances)._replace(first=entry_id, last=entry_id)
    return Loss(entry_id, entry_id, tuple(evidence))
