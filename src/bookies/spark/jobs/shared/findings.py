"""Decisions of a scrub: what is wrong with a record, which replicas to blame, what to repair. No Spark, no IO.

A finding blames entries first..last of one ledger on one bookie, with one `kind`:

    metadata         the record is wrong, or names an unknown bookie; `bookie` may be empty
    missing          the bookie answers, and does not have the entries
    corrupt          it has them, and the digest does not match
    unreadable       it has them, and answers with an error
    length-mismatch  the last entry has another length than the record
    differs          the digest matches, and the payload differs from that of the other replicas
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
REPAIRABLE = (MISSING, CORRUPT, UNREADABLE)
RENEW, REPLACE = "renew", "replace"


class Finding(NamedTuple):
    """One finding: see the module. `fragment`: first entry of the fragment; -1 if it concerns no fragment."""

    ledger_id: int
    fragment: int
    bookie: str
    first_entry: int
    last_entry: int
    kind: str
    detail: str


class Repair(NamedTuple):
    """One line of a repair plan: write these entries to the bookie again, or replace it in the whole fragment."""

    ledger_id: int
    fragment: int
    bookie: str
    first_entry: int
    last_entry: int
    action: str
    reason: str


def kind_of(error: BookKeeperError) -> str:
    """Return the kind of finding that a failed read of an entry is."""
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
    """Join ascending findings about one bookie: those of one kind, with no stored entry between them, become one.

    A bookie of a striped fragment stores a few entries of each stripe, and usually has lost all of them or none.
    """
    result: list[Finding] = []
    size = len(fragment.ensemble)
    for finding in findings:
        if result and result[-1].kind == finding.kind:
            position = [str(member) for member in fragment.ensemble].index(finding.bookie)
            if next_stored(position, result[-1].last_entry + 1, size, fragment.write_quorum) == finding.first_entry:
                result[-1] = result[-1]._replace(last_entry=finding.last_entry)
                continue
        result.append(finding)
    return result


def check_record(record: LedgerMetadata, known: Collection[str]) -> list[Finding]:
    """Return the findings of level 0, from metadata alone. `known`: bookies that are registered or have a cookie."""
    findings: list[Finding] = []

    def wrong(index: int, bookie: str, detail: str) -> None:
        first = record.ensembles[index][0] if record.ensembles else -1
        last = record.ensembles[index + 1][0] - 1 if index + 1 < len(record.ensembles) else record.last_entry_id
        findings.append(Finding(record.ledger_id, first, bookie, first, max(first, last), METADATA, detail))

    if not record.ensembles:
        return [Finding(record.ledger_id, -1, "", -1, -1, METADATA, "it has no fragment")]
    if not record.ensemble_size >= record.write_quorum >= record.ack_quorum >= 1:
        quorums = f"E{record.ensemble_size}/Qw{record.write_quorum}/Qa{record.ack_quorum}"
        wrong(0, "", f"its quorums are inconsistent: {quorums}")
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
                wrong(index, bookie, "no such bookie exists: it is not registered and has no cookie")
    return findings


def too_few(fragment: Fragment, ack_quorum: int, missing: Mapping[int, Sequence[range]]) -> dict[int, list[range]]:
    """Return the runs of an open fragment that more positions lack than its ack quorum allows.

    Entries that an ack quorum has are confirmed; other replicas may still be in flight, which is no finding.
    `missing`: runs by position. The result has the same form.
    """
    allowed = fragment.write_quorum - ack_quorum
    bounds = sorted({bound for runs in missing.values() for run in runs for bound in (run.start, run.stop)})
    result: dict[int, list[range]] = {}
    for start, stop in pairwise(bounds):
        lacking = [position for position, runs in missing.items() if any(run.start <= start < run.stop for run in runs)]
        if len(lacking) > allowed:
            for position in lacking:
                result.setdefault(position, []).append(range(start, stop))
    return result


def differing(fragment: Fragment, hashes: Mapping[int, Mapping[int, bytes]]) -> list[tuple[int, int, str]]:
    """Return position, entry and reason for replicas whose payload differs from the others (level 4).

    `hashes`: by position, of the good entries. The majority is right; without one all replicas are blamed.
    """
    result = []
    size = len(fragment.ensemble)
    for entry_id in sorted({key for of_position in hashes.values() for key in of_position}):
        holders = write_set(entry_id, size, fragment.write_quorum)
        hash_of = {replica: hashes[replica][entry_id] for replica in holders if entry_id in hashes.get(replica, {})}
        votes = Counter(hash_of.values()).most_common()
        if len(votes) < 2:
            continue
        is_clear = votes[0][1] > len(hash_of) // 2
        for position, value in hash_of.items():
            if not is_clear:
                result.append((position, entry_id, "the replicas have different payloads, and none has a majority"))
            elif value != votes[0][0]:
                result.append((position, entry_id, "its payload differs from that of most replicas"))
    return result


def one_by_bookie(findings: Sequence[Finding]) -> list[Finding]:
    """Join the findings about each unavailable bookie into one that counts the replicas that were not checked."""
    counts: Counter[str] = Counter()
    reasons: dict[str, str] = {}
    others = []
    for finding in findings:
        if finding.kind == UNAVAILABLE:
            counts[finding.bookie] += 1
            reasons.setdefault(finding.bookie, finding.detail)
        else:
            others.append(finding)
    silent = [
        Finding(-1, -1, bookie, -1, -1, UNAVAILABLE, f"{count:,} replicas were not checked: {reasons[bookie]}")
        for bookie, count in sorted(counts.items())
    ]
    return [*silent, *sorted(others)]


def repairs_of(findings: Iterable[Finding], gone: Collection[str]) -> list[Repair]:
    """Return the repair plan: rewrite bad entries to bookies that answer, replace bookies that are not registered.

    `gone`: bookies that are not registered. Operators decide about findings that a digest cannot settle: inconsistent
    metadata, payloads that differ, lengths that do not match.
    """
    plan = []
    for finding in findings:
        if finding.fragment < 0 or not finding.bookie:
            continue
        if finding.bookie in gone:
            plan.append(Repair(finding.ledger_id, finding.fragment, finding.bookie, -1, -1, REPLACE, finding.kind))
        elif finding.kind in REPAIRABLE:
            plan.append(
                Repair(
                    finding.ledger_id,
                    finding.fragment,
                    finding.bookie,
                    finding.first_entry,
                    finding.last_entry,
                    RENEW,
                    finding.kind,
                )
            )
    return sorted(set(plan))
