"""What a scrub decides, without Spark and without IO: what is wrong with a record, which replicas to blame, what to do.

A finding blames entries first..last of one ledger on one bookie for one `kind`:

    metadata         the record itself is not right, or names a bookie that nobody knows; `bookie` may be empty
    missing          the bookie answers, and does not have the entries
    corrupt          it has them, and the digest does not fit
    unreadable       it has them, and answers with an error
    length-mismatch  the last entry does not say the length that the record says
    differs          a good digest, and another payload than the other replicas have
    unavailable      the bookie does not answer; one finding for each bookie, not for each replica

Source: spark 5.1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from bookies.client.repair.scan import BadRun
from bookies.errors import BookKeeperError, DigestMismatch
from bookies.model import LedgerMetadata
from bookies.protocol.ledger.offload import is_given_up
from bookies.protocol.ledger.read import NEGATIVE
from bookies.protocol.quorums import write_set
from bookies.protocol.quorums.quorum import next_stored
from bookies.protocol.repair import Fragment

METADATA, MISSING, CORRUPT, UNREADABLE = "metadata", "missing", "corrupt", "unreadable"
LENGTH_MISMATCH, DIFFERS, UNAVAILABLE = "length-mismatch", "differs", "unavailable"
MENDABLE = (MISSING, CORRUPT, UNREADABLE)
RENEW, REPLACE = "renew", "replace"


class Finding(NamedTuple):
    """See the module. `fragment`: the first entry of the fragment; -1 where it is about no fragment."""

    ledger_id: int
    fragment: int
    bookie: str
    first_entry: int
    last_entry: int
    kind: str
    detail: str


class Repair(NamedTuple):
    """One line of a repair plan: give the bookie these entries again, or replace it in the whole fragment."""

    ledger_id: int
    fragment: int
    bookie: str
    first_entry: int
    last_entry: int
    action: str
    reason: str


def kind_of(error: BookKeeperError) -> str:
    """What a failed read of an entry says of the replica."""
    if isinstance(error, NEGATIVE):
        return MISSING
    return CORRUPT if isinstance(error, DigestMismatch) else UNREADABLE


def findings_of(fragment: Fragment, bookie: str, bad: Iterable[BadRun]) -> list[Finding]:
    return joined(
        fragment,
        [
            Finding(
                fragment.ledger_id, fragment.first, bookie, run.first, run.last, kind_of(run.error), run.error.message
            )
            for run in bad
        ],
    )


def joined(fragment: Fragment, findings: Iterable[Finding]) -> list[Finding]:
    """Ascending findings about one bookie: those of a kind with nothing that it stores between them become one.

    A bookie of a striped fragment stores a few entries of each turn, and has lost all of them at once or none.
    """
    found: list[Finding] = []
    size = len(fragment.ensemble)
    for each in findings:
        if found and found[-1].kind == each.kind:
            position = [str(member) for member in fragment.ensemble].index(each.bookie)
            if next_stored(position, found[-1].last_entry + 1, size, fragment.write_quorum) == each.first_entry:
                found[-1] = found[-1]._replace(last_entry=each.last_entry)
                continue
        found.append(each)
    return found


def check_record(record: LedgerMetadata, known: Collection[str]) -> list[Finding]:
    """Level 0: what can be told from the metadata alone. `known`: the bookies that are registered or have a cookie."""
    found: list[Finding] = []

    def wrong(index: int, bookie: str, detail: str) -> None:
        first = record.ensembles[index][0] if record.ensembles else -1
        last = record.ensembles[index + 1][0] - 1 if index + 1 < len(record.ensembles) else record.last_entry_id
        found.append(Finding(record.ledger_id, first, bookie, first, max(first, last), METADATA, detail))

    if not record.ensembles:
        return [Finding(record.ledger_id, -1, "", -1, -1, METADATA, "it has no fragment")]
    if not record.ensemble_size >= record.write_quorum >= record.ack_quorum >= 1:
        quorums = f"E{record.ensemble_size}/Qw{record.write_quorum}/Qa{record.ack_quorum}"
        wrong(0, "", f"its quorums make no sense: {quorums}")
    starts = [first for first, _ in record.ensembles]
    if starts[0] != 0 or any(second <= first for first, second in pairwise(starts)):
        wrong(0, "", f"its fragments begin at {', '.join(map(str, starts))}, which do not ascend from 0")
    if record.is_closed and record.last_entry_id < starts[-1] - 1:
        wrong(len(starts) - 1, "", f"it ends at entry {record.last_entry_id}, before its last fragment begins")
    for index, (_, ensemble) in enumerate(record.ensembles):
        if len(ensemble) != record.ensemble_size:
            wrong(index, "", f"an ensemble of {len(ensemble)} bookies in place of {record.ensemble_size}")
        for bookie, count in Counter(ensemble).items():
            if count > 1:
                wrong(index, bookie, f"the bookie is {count} times in one ensemble")
            if bookie not in known and not is_given_up(record):
                wrong(index, bookie, "there is no such bookie: not registered, and no cookie")
    return found


def too_few(fragment: Fragment, ack_quorum: int, missing: Mapping[int, Sequence[range]]) -> dict[int, list[range]]:
    """Of a fragment that is being written: runs that so many positions lack that an ack quorum cannot have them.

    What an ack quorum has is confirmed; that others lack it yet is how a ledger is written, and no finding.
    `missing`: runs by position. The result has the same form.
    """
    allowed = fragment.write_quorum - ack_quorum
    bounds = sorted({bound for runs in missing.values() for run in runs for bound in (run.start, run.stop)})
    found: dict[int, list[range]] = {}
    for start, stop in pairwise(bounds):
        lacking = [position for position, runs in missing.items() if any(run.start <= start < run.stop for run in runs)]
        if len(lacking) > allowed:
            for position in lacking:
                found.setdefault(position, []).append(range(start, stop))
    return found


def differing(fragment: Fragment, hashes: Mapping[int, Mapping[int, bytes]]) -> list[tuple[int, int, str]]:
    """Level 4: (position, entry, why) of replicas whose payload is not that of the others.

    `hashes`: by position, of the good entries. The majority is right; without one all are blamed.
    """
    found = []
    size = len(fragment.ensemble)
    for entry_id in sorted({each for of_position in hashes.values() for each in of_position}):
        holders = write_set(entry_id, size, fragment.write_quorum)
        there = {each: hashes[each][entry_id] for each in holders if entry_id in hashes.get(each, {})}
        votes = Counter(there.values()).most_common()
        if len(votes) < 2:
            continue
        is_clear = votes[0][1] > len(there) // 2
        for position, value in there.items():
            if not is_clear:
                found.append((position, entry_id, "the replicas have different payloads, and none has a majority"))
            elif value != votes[0][0]:
                found.append((position, entry_id, "another payload than most replicas have"))
    return found


def one_by_bookie(findings: Sequence[Finding]) -> list[Finding]:
    """A bookie that does not answer is one finding, which says how many replicas could not be looked at."""
    counts: Counter[str] = Counter()
    reasons: dict[str, str] = {}
    others = []
    for each in findings:
        if each.kind == UNAVAILABLE:
            counts[each.bookie] += 1
            reasons.setdefault(each.bookie, each.detail)
        else:
            others.append(each)
    silent = [
        Finding(-1, -1, bookie, -1, -1, UNAVAILABLE, f"{count:,} replicas were not looked at: {reasons[bookie]}")
        for bookie, count in sorted(counts.items())
    ]
    return [*silent, *sorted(others)]


def repairs_of(findings: Iterable[Finding], gone: Collection[str]) -> list[Repair]:
    """The plan: what is bad on a bookie that answers is written to it again; one that is gone is replaced.

    `gone`: bookies that are not registered. What a digest cannot decide is left to people: metadata that makes no
    sense, payloads that differ, lengths that do not fit.
    """
    plan = []
    for each in findings:
        if each.fragment < 0 or not each.bookie:
            continue
        if each.bookie in gone:
            plan.append(Repair(each.ledger_id, each.fragment, each.bookie, -1, -1, REPLACE, each.kind))
        elif each.kind in MENDABLE:
            plan.append(
                Repair(each.ledger_id, each.fragment, each.bookie, each.first_entry, each.last_entry, RENEW, each.kind)
            )
    return sorted(set(plan))
