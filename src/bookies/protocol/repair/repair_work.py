"""What is to be done about one ledger that is marked: which replicas to make again, what to wait for, what is lost.

A replica is *bad* only when that is certain: its bookie says that it lacks an entry, or has a damaged one; or its
bookie is not registered and counts as lost (`protocol/repair/absence.py`). Whatever is not known, because a bookie does not
answer, is busy, cannot read, or is away for less than the delay, is waited for and never copied: unknown is not
missing.

    bad, bookie registered   made again where it is: nothing but what it lacks is copied, the record stays as it is
    bad, bookie lost         copied to another bookie, which then takes its place in the record
    good, bookie leaving     likewise (it is being emptied)

A replica can be made again elsewhere when every entry of it may be on some bookie. If not, and if that is certain,
entries are *lost*: that is a state with evidence and not an error to be repeated, and only a bookie that comes back can
change it. So its place in the record stays: another bookie there would not have all that the record says (I-18), and
the one that comes back would not be asked for the entries that it alone has, and delete them as surplus. What other
entries it had stay at the replicas they have, which the loss says (`Loss.left`). All other replicas of the fragment are
made again.

Fragments that may still grow are never copied (X-70). Their writer replaces the bookie as soon as it has something to
write; if a lost bookie is still in the *last* ensemble after a grace period the ledger is sealed, for it may have no
writer any more, and with one more bookie lost its end might be undecidable. Nothing else ends a writer: not a lost
bookie that it has replaced, though nobody can say yet that it has gone on; not a bookie that is lost by a mark alone;
and not that a bookie lacks an entry which was only just written. A ledger in recovery has no writer any more: if nobody
finishes the recovery within the grace period, it is gone on with.
Source: metadata 8.6 and 8.7, client-protocol 7.2 to 7.4.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bookies.errors import BookKeeperError, DigestMismatch
from bookies.model import INVALID_ENTRY_ID, BookieId, LedgerMetadata, LedgerState
from bookies.protocol.ledger.offload import is_given_up
from bookies.protocol.placement.placement_proof import some
from bookies.protocol.quorums import write_set
from bookies.protocol.repair.fragments import Fragment, FragmentVerdict, ReplicaState, ReplicaVerdict, state_of

LEFTOVERS = "; what copies that broke off have left on a full one is deleted by bk bookie gc --surplus"


class RepairState(enum.Enum):
    """How it stands with one ledger. LOST: entries are nowhere; WAITING: for something that `Wait` names."""

    HEALTHY = "healthy"
    REPAIRABLE = "repairable"
    WAITING = "waiting"
    LOST = "lost"


class Cause(enum.Enum):
    """What a repair waits for."""

    BOOKIE = "a bookie to come back, or to count as lost"
    MAINTENANCE = "the end of a bookie's maintenance"
    ANSWER = "a bookie to answer"
    TARGET = "a bookie to copy to"
    WRITER = "its writer to go on or to close it"
    GRACE = "the end of the grace period in which its writer may replace a lost bookie"
    RECOVERY = "the end of the recovery that somebody has begun"
    STORE = "the metadata store"


class Wait(NamedTuple):
    """Entries first..last wait for something. `bookie`: whose; `reason`: in words."""

    cause: Cause
    first: int
    last: int
    bookie: BookieId | None
    reason: str


class Loss(NamedTuple):
    """Entries first..last are on no replica. `evidence`: each bookie that ought to have them, and why it does not.

    `step`: only every so many-th of them, if the ensemble is larger than the write set. `left`: good replicas, at the
    least, of the other entries that those bookies have; they stay so few, as `repair_work` says. None: there are none.
    """

    first: int
    last: int
    evidence: tuple[tuple[BookieId, str], ...]
    step: int = 1
    left: int | None = None

    @property
    def entries(self) -> str:
        """Which, in words."""
        return f"entries {self.first} to {self.last}{f', one in {self.step},' if self.step > 1 else ''}"

    def touches(self, fragment: Fragment, position: int) -> bool:
        """Whether any of them is to be stored at a position of their fragment."""
        size = len(fragment.ensemble)
        if self.last < fragment.first or self.first > fragment.last:
            return False
        some_ids = range(self.first, min(self.last + 1, self.first + size * self.step), self.step)
        return any(position in write_set(each, size, fragment.write_quorum) for each in some_ids)


class Job(NamedTuple):
    """Make replicas of a fragment again: those at `renewed` where they are, those at `replaced` elsewhere.

    `good`: replicas known to be good of the entry that is worst off.
    """

    verdict: FragmentVerdict
    renewed: tuple[int, ...]
    replaced: tuple[int, ...]
    good: int

    @property
    def fragment(self) -> Fragment:
        return self.verdict.fragment


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What is known of bookies. `lost`: those not registered that count as lost; `excused`: away for maintenance.

    `leaving`: those to be emptied. `unwanted`: not to be copied to, and why. `read_only`: those that cannot be.
    `claimed`: of the lost, those that are so by a mark alone, which cannot say why it names them; enough for a copy,
    which costs nobody anything, and not for ending a writer, nor for saying that entries are lost.
    """

    registered: Collection[BookieId]
    lost: Collection[BookieId] = ()
    excused: Collection[BookieId] = ()
    leaving: Sequence[BookieId] = ()
    unwanted: Mapping[BookieId, str] = field(default_factory=dict)
    read_only: Collection[BookieId] = ()
    claimed: Collection[BookieId] = ()

    def asks_for_sealing(self, record: LedgerMetadata) -> bool:
        """Whether a ledger has to be sealed, after a grace period: for a lost bookie, or because somebody has begun to.
        Then it has no writer any more, and perhaps nobody who finishes what was begun."""
        if record.is_closed:
            return False
        return record.state is LedgerState.IN_RECOVERY or bool(self.lost_at_the_end_of(record))

    def lost_at_the_end_of(self, record: LedgerMetadata) -> list[BookieId]:
        """Bookies of the last ensemble whose loss is a reason to end the ledger's writer."""
        return [each for each in record.last_ensemble if each in self.lost and each not in self.claimed]

    def left_out(self, members: Collection[BookieId] = (), *, by_word: bool = True) -> str:
        """The end of a sentence about a target that is missing: bookies that are there and were not thought of, and
        why; nothing: all were. `members`: those that have the entries already. `by_word`: also the unwanted ones."""
        reasons = dict.fromkeys(self.read_only, "read-only: its disks are full, or somebody wants it so")
        if by_word:
            reasons |= {bookie: why for bookie, why in self.unwanted.items() if bookie in self.registered}
        said = [f"{bookie} ({why})" for bookie, why in sorted(reasons.items()) if bookie not in members]
        if not said:
            return ""
        has_full = any(bookie not in members for bookie in self.read_only)
        return f"; not used: {some(said)}{LEFTOVERS if has_full else ''}"


@dataclass(slots=True)
class Assessment:
    """What is to be done about a ledger. `wants_sealing`: once its grace period is over."""

    jobs: list[Job] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    wants_sealing: bool = False

    @property
    def state(self) -> RepairState:
        """The worst that is true of any part."""
        if self.losses:
            return RepairState.LOST
        if self.jobs or self.wants_sealing:
            return RepairState.REPAIRABLE
        return RepairState.WAITING if self.waits else RepairState.HEALTHY

    @property
    def bookies(self) -> list[BookieId]:
        """Whose return may change something."""
        waited = [wait.bookie for wait in self.waits if wait.bookie is not None]
        return list(dict.fromkeys([*waited, *(bookie for loss in self.losses for bookie, _ in loss.evidence)]))


def assess(record: LedgerMetadata, verdicts: Sequence[FragmentVerdict], circumstances: Circumstances) -> Assessment:
    """What the check of a ledger means."""
    found = Assessment()
    found.wants_sealing = circumstances.asks_for_sealing(record)
    for verdict in verdicts:
        if verdict.fragment.is_finished:
            _assess_finished(verdict, circumstances, found)
        elif not found.wants_sealing:
            _assess_growing(verdict, circumstances, found, is_last=verdict.fragment.first == record.ensembles[-1][0])
    found.jobs.sort(key=lambda job: job.good)
    return found


def _assess_finished(verdict: FragmentVerdict, circumstances: Circumstances, found: Assessment) -> None:
    fragment = verdict.fragment
    renewed: list[int] = []
    replaced: list[int] = []
    unknown: list[int] = []
    claimed: list[int] = []
    for replica in verdict.replicas:
        if fragment.first_stored(replica.position) == INVALID_ENTRY_ID:
            continue  # A short fragment has nothing there, so nothing can be missing.
        is_leaving = replica.bookie in circumstances.leaving
        if replica.state is ReplicaState.OK:
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
            found.waits.append(_wait_for(fragment, replica, circumstances))
    if not renewed and not replaced:
        return
    may_hold = verdict.positions(ReplicaState.OK, ReplicaState.MISSING)
    hopeless = [members for members in fragment.write_sets if not any(each in may_hold for each in members)]
    stuck = {position for members in hopeless for position in members}
    moved = [position for position in replaced if position not in stuck]
    if renewed or moved:
        found.jobs.append(Job(verdict, tuple(renewed), tuple(moved), _good(verdict, [*renewed, *moved]) or 0))
    for position in sorted(stuck.intersection(claimed)):
        found.waits.append(_wait_for(fragment, verdict.replicas[position], circumstances))
    gone = [members for members in hopeless if not any(each in unknown or each in claimed for each in members)]
    found.losses += _losses(verdict, gone)


def _good(verdict: FragmentVerdict, positions: Collection[int]) -> int | None:
    """Good replicas of the entry that is worst off of those that these positions store; None: they store none."""
    good = verdict.positions(ReplicaState.OK)
    counts = [
        sum(position in good for position in members)
        for members in verdict.fragment.write_sets
        if any(position in positions for position in members)
    ]
    return min(counts, default=None)


def most_urgent_first(
    verdict: FragmentVerdict, positions: Sequence[int], leaving: Sequence[BookieId] = ()
) -> list[int]:
    """In the order in which to replace them if not all can be: lost replicas before good ones of bookies that leave,
    those with the fewest good replicas of an entry first, then those whose bookie is named first as leaving."""
    good, ensemble = verdict.positions(ReplicaState.OK), verdict.fragment.ensemble

    def urgency(position: int) -> tuple[bool, int, int]:
        turn = leaving.index(ensemble[position]) if ensemble[position] in leaving else len(leaving)
        return position in good, _good(verdict, [position]) or 0, turn

    return sorted(positions, key=urgency)


def _losses(verdict: FragmentVerdict, gone: Sequence[tuple[int, ...]]) -> Iterator[Loss]:
    """Exactly the entries whose write set is one of these, of which every bookie is lost."""
    fragment = verdict.fragment
    size, is_all = len(fragment.ensemble), len(gone) == len(fragment.write_sets)
    if is_all and gone:
        yield Loss(
            fragment.first, fragment.last, _lost(fragment, sorted({each for members in gone for each in members}))
        )
        return
    lost_ids = [set(members) for members in gone]
    for first in range(fragment.first, min(fragment.last + 1, fragment.first + size)):
        members = write_set(first, size, fragment.write_quorum)
        if set(members) in lost_ids:
            last = first + (fragment.last - first) // size * size
            others = [each for each in fragment.write_sets if set(each) not in lost_ids and {*each} & {*members}]
            good = verdict.positions(ReplicaState.OK)
            left = min((sum(position in good for position in each) for each in others), default=None)
            yield Loss(first, last, _lost(fragment, sorted(members)), size, left)


def _lost(fragment: Fragment, positions: Sequence[int]) -> tuple[tuple[BookieId, str], ...]:
    return tuple((fragment.ensemble[each], "it is lost: not registered") for each in positions)


def _assess_growing(
    verdict: FragmentVerdict, circumstances: Circumstances, found: Assessment, *, is_last: bool
) -> None:
    """`is_last`: its writer adds to it; of others it is only not known yet whether all that they hold is confirmed."""
    fragment = verdict.fragment
    undecided = "whether the last add confirmed has got beyond these entries is not known yet"
    for replica in verdict.replicas:
        if not is_last and fragment.first_stored(replica.position) == INVALID_ENTRY_ID:
            continue
        if not is_last and replica.bookie in circumstances.lost:
            found.waits.append(_waits_for_writer(fragment, replica.bookie, f"it is lost; {undecided}"))
        elif replica.bookie in circumstances.leaving and replica.state is ReplicaState.OK:
            text = "and receives entries" if is_last else undecided
            found.waits.append(_waits_for_writer(fragment, replica.bookie, f"it is to be emptied, {text}"))
        elif replica.state is ReplicaState.MISSING:
            text = f"it lacks entry {replica.entry_id}, which may be on its way"
            if isinstance(replica.error, DigestMismatch):
                text = f"its entry {replica.entry_id} does not verify"
            text = f"{text}; a ledger that is sealed is repaired"
            found.waits.append(_waits_for_writer(fragment, replica.bookie, text))
        elif replica.state is not ReplicaState.OK:
            found.waits.append(_wait_for(fragment, replica, circumstances))


def _waits_for_writer(fragment: Fragment, bookie: BookieId, reason: str) -> Wait:
    return Wait(Cause.WRITER, fragment.first, fragment.last, bookie, reason)


def _wait_for(fragment: Fragment, replica: ReplicaVerdict, circumstances: Circumstances) -> Wait:
    """Nothing certain is known of this replica."""
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
    """What it means that a copy broke off because nobody delivered an entry, after each of its bookies was asked again.

    `answers`: of every bookie that holds it by the record; None: it delivered. None: it is there, so the copy may
    simply be repeated.
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


def fewest_left(record: LedgerMetadata, gone: Collection[BookieId]) -> int:
    """Replicas left, by the record alone, of the entry that is worst off when these bookies are gone."""
    size = record.ensemble_size
    if not gone or is_given_up(record):
        return record.write_quorum
    return min(
        sum(ensemble[position] not in gone for position in write_set(start, size, record.write_quorum))
        for _, ensemble in record.ensembles
        for start in range(size)
    )
