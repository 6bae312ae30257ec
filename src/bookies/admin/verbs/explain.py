"""`bk ledger explain` and `bk recovery why`: location and state of every replica, and the pending repairs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from bookies.admin.shared import Session
from bookies.admin.shared.common import time_text
from bookies.admin.shared.report import Report

if TYPE_CHECKING:
    from bookies.client.transport import BookieStatus
    from bookies.errors import MetadataError
    from bookies.model import BookieId, LedgerMetadata
    from bookies.protocol.repair import FragmentVerdict
    from bookies.protocol.repair.fragments import ReplicaVerdict
    from bookies.replication.base import Membership
    from bookies.replication.operator import ManualRepair
    from bookies.replication.operator.manual_repair import LedgerDiagnosis

SWITCHED_OFF = "auto-recovery is disabled, so no ledger is repaired automatically: bk recovery enable"


@asynccontextmanager
async def present_membership(session: Session) -> AsyncIterator[Membership]:
    """Yield what this process sees of the cluster's bookies. It writes nothing to the metadata store."""
    from bookies.config import RecoveryConfig
    from bookies.replication.base import Membership
    from bookies.runtime.events import Events

    clock = session.runtime.clock
    membership = Membership(session.driver, clock, RecoveryConfig(), Events("recovery", clock), writes_delay=False)
    try:
        await membership.start()
        yield membership
    finally:
        membership.stop()


@asynccontextmanager
async def by_hand(
    session: Session, on_trouble: Callable[[MetadataError], None] | None = None
) -> AsyncIterator[ManualRepair]:
    """Yield a `ManualRepair`, which checks and repairs single ledgers, in this session.

    `on_trouble`: see `MetadataLoop`.
    """
    from bookies.replication.operator import ManualRepair

    async with present_membership(session) as membership:
        yield ManualRepair(session.driver, session.client.administration(), membership, on_trouble)


# -- one entry, or all of a ledger -------------------------------------------------------------------------------------


async def explain(session: Session, ledger_id: int, entry_id: int | None) -> Report:
    """Return the state of a ledger's replicas, or of one entry's. Status 1 if one is not good."""
    from bookies.protocol.ledger.offload import is_given_up

    async with by_hand(session) as hand:
        standing = await hand.diagnose(ledger_id)
    bookies = {bookie.id: bookie for bookie in await session.client.bookies()}
    facts: dict[str, Any] = {
        "ledger": ledger_id,
        "state": standing.record.state.name,
        "recovery": recovery_facts(standing),
    }
    lines = [_head(standing.record)]
    if entry_id is None:
        facts["fragments"] = [await _fragment(session, standing, verdict, bookies) for verdict in standing.verdicts]
        for fragment in facts["fragments"]:
            lines += _fragment_lines(fragment)
        good = min((fragment["fewest_good"] for fragment in facts["fragments"]), default=None)
    else:
        facts["entry"] = await _entry(session, standing, entry_id, bookies)
        lines += _entry_lines(facts["entry"], standing.record)
        good = sum(replica["state"] == "stored" for replica in facts["entry"]["replicas"])
    record = standing.record
    is_there = entry_id is None or not record.is_closed or entry_id <= record.last_entry_id
    facts["verdict"] = _verdict(standing, good) if is_there else f"the ledger has no entry {entry_id:,}"
    is_whole = good in (None, record.write_quorum) or is_given_up(record)
    is_fine = is_there and standing.trouble is None and is_whole
    return Report(facts, [*lines, *recovery_lines(standing), f"verdict: {facts['verdict']}"], int(not is_fine))


def _head(record: LedgerMetadata) -> str:
    digest = record.digest_type.name.lower() if record.digest_type else "digest unknown"
    quorums = f"E{record.ensemble_size}/Qw{record.write_quorum}/Qa{record.ack_quorum}"
    created = ""
    if record.ctime_ms:
        created = f"  created {time_text(record.ctime_ms)}"
    end = f"  {record.last_entry_id + 1:,} entries" if record.is_closed else ""
    return f"ledger {record.ledger_id}  {record.state.name}  {quorums}  {digest}{end}{created}"


def _bookie_facts(
    bookie: BookieId, standing: LedgerDiagnosis, bookies: Mapping[BookieId, BookieStatus]
) -> dict[str, Any]:
    status = bookies.get(bookie)
    notes = []
    if bookie in standing.circumstances.leaving:
        notes.append("is being drained")
    if bookie in standing.circumstances.excused:
        notes.append("in maintenance")
    elif bookie in standing.circumstances.lost:
        notes.append("counts as lost")
    return {
        "bookie": bookie,
        "mode": "unknown to the cluster" if status is None else status.mode,
        "location": None if status is None else status.location,
        "notes": notes,
    }


async def _fragment(
    session: Session, standing: LedgerDiagnosis, verdict: FragmentVerdict, bookies: Mapping[BookieId, BookieStatus]
) -> dict[str, Any]:
    fragment = verdict.fragment
    adherence, findings = await session.client.administration().judge_placement(fragment)
    return {
        "first_entry": fragment.first,
        "last_entry": fragment.last,
        "finished": fragment.is_finished,
        "fewest_good": verdict.fewest_replicas,
        "replicas": [
            _bookie_facts(replica.bookie, standing, bookies) | _replica_facts(replica) for replica in verdict.replicas
        ],
        "placement": {1: "not as the policy wants it", 3: "less than desired"}.get(adherence, "as wanted"),
        "placement_findings": findings,
    }


def _replica_facts(replica: ReplicaVerdict) -> dict[str, Any]:
    return {
        "state": replica.state.value,
        "entry": replica.entry_id,
        "error": None if replica.error is None else replica.error.message,
    }


def _fragment_lines(facts: Mapping[str, Any]) -> list[str]:
    end = f"to {facts['last_entry']:,}" if facts["finished"] else "and later"
    lines = [f"entries {facts['first_entry']:,} {end}  at least {facts['fewest_good']} good replicas"]
    for replica in facts["replicas"]:
        where = "" if replica["entry"] is None else f" at entry {replica['entry']:,}"
        lines.append(f"  {_bookie_text(replica)}  {replica['state']}{where}{_because(replica['error'])}")
    lines.append(
        f"  placement {facts['placement']}" + "".join(f"; {finding}" for finding in facts["placement_findings"])
    )
    return lines


def _bookie_text(replica: Mapping[str, Any]) -> str:
    about = [replica["mode"], *([replica["location"]] if replica["location"] else []), *replica["notes"]]
    return f"{replica['bookie']} ({', '.join(about)})"


def _because(error: str | None) -> str:
    return "" if error is None else f": {error}"


async def _entry(
    session: Session, standing: LedgerDiagnosis, entry_id: int, bookies: Mapping[BookieId, BookieStatus]
) -> dict[str, Any]:
    """Return what each bookie of an entry's write set answers."""
    record = standing.record
    index = record.fragment_index(entry_id)
    first, _ = record.ensembles[index]
    last = None if index + 1 == len(record.ensembles) else record.ensembles[index + 1][0] - 1
    answers = await session.client.administration().ask_holders(record, entry_id, standing.circumstances.registered)
    return {
        "entry": entry_id,
        "fragment": index + 1,
        "first_entry": first,
        "last_entry": last,
        "replicas": [
            _bookie_facts(bookie, standing, bookies)
            | {"state": _state_word(error), "error": None if error is None else error.message}
            for bookie, error in answers
        ],
    }


def _state_word(error: Exception | None) -> str:
    from bookies.errors import BookKeeperError
    from bookies.protocol.repair.fragments import state_of

    if error is None:
        return "stored"
    assert isinstance(error, BookKeeperError)
    return state_of(error).value


def _entry_lines(facts: Mapping[str, Any], record: LedgerMetadata) -> list[str]:
    end = "and later" if facts["last_entry"] is None else f"to {facts['last_entry']:,}"
    names = " ".join(replica["bookie"] for replica in facts["replicas"])
    lines = [
        f"entry {facts['entry']:,}  fragment {facts['fragment']} (entries {facts['first_entry']:,} {end})  "
        f"write set: {names}"
    ]
    if record.is_closed and facts["entry"] > record.last_entry_id:
        lines.append(f"  the ledger ends at entry {record.last_entry_id:,}")
    for replica in facts["replicas"]:
        good = "  digest ok" if replica["state"] == "stored" else ""
        lines.append(f"  {_bookie_text(replica)}  {replica['state']}{good}{_because(replica['error'])}")
    return lines


def _verdict(standing: LedgerDiagnosis, good: int | None) -> str:
    """Return the state of the ledger as one sentence. `good`: fewest good replicas of an entry; None: no entries."""
    from bookies.protocol.ledger.offload import offloaded_to

    record = standing.record
    if standing.trouble is not None:
        return f"its replicas could not be checked: {standing.trouble}"
    if (place := offloaded_to(record)) is not None:
        return f"offloaded: its entries are in {place}, and no bookie needs them"
    if good is None:
        return "it has no entries, so no replica can be missing"
    if good == 0:  # A bookie that lacks one entry does not count for any.
        text = "no bookie has all entries that it should have, so some may be unreadable now"
    else:
        holds = "holds" if good >= record.ack_quorum else "does not hold"
        text = f"{good} of {record.write_quorum} replicas are good, ack quorum {record.ack_quorum} {holds}: readable"
    if good < record.write_quorum:
        return f"{text}. Under-replicated: {_next(standing, 'repaired')}"
    if not (leaving := _leaving(standing)):
        return f"{text}. Fully replicated."
    are = (
        f"a replica is on {leaving[0]}, which is"
        if len(leaving) == 1
        else f"replicas are on {', '.join(leaving)}, which are"
    )
    return f"{text}. Complete, but {are} being drained: {_next(standing, 'copied to another bookie')}"


def _leaving(standing: LedgerDiagnosis) -> list[BookieId]:
    """Return the bookies that have good replicas of the ledger and are being drained."""
    bookies = [replica.bookie for verdict in standing.verdicts for replica in verdict.replicas if replica.error is None]
    return [replica for replica in dict.fromkeys(bookies) if replica in standing.circumstances.leaving]


def _next(standing: LedgerDiagnosis, done: str) -> str:
    """Return what happens to the ledger next. `done`: the participle of the pending work, such as `repaired`."""
    from bookies.replication.operator.status import lost_entries, problem_facts

    assessment, ledger_id = standing.assessment, standing.record.ledger_id
    if assessment.losses:
        [lost, *_] = problem_facts((), assessment.losses)["losses"]
        return f"{lost_entries(lost)} are lost unless a bookie that has them returns"
    goes_on = standing.mark is not None and standing.is_enabled
    if standing.record.state.name == "IN_RECOVERY":
        then = "after a grace period" if goes_on else f"by bk recovery repair {ledger_id}"
        return f"a client began to recover it and has not finished; the recovery is completed {then}"
    if assessment.wants_sealing:
        then = (
            "it is sealed after a grace period" if goes_on else f"bk recovery repair {ledger_id} --seal-open seals it"
        )
        return f"its writer uses a lost bookie; {then}"
    if assessment.jobs:
        if standing.locked_by is not None:
            return f"it is being {done} by {standing.locked_by}"
        if done == "repaired" and _may_be_lost(standing):
            return (
                f"no checked replica is good. bk recovery repair {ledger_id} copies the entries that can be read, and "
                "names those that are lost"
            )
        if goes_on:
            return f"it is marked, and will be {done}"
        return f"bk recovery repair {ledger_id} has it {done} now"
    for wait in assessment.waits:
        bookie = f"{wait.bookie}: " if wait.bookie else ""
        return f"it waits for {wait.cause.value}; {bookie}{wait.reason}"
    return "an entry is bad that the check of the ledger does not read; bk ledger repair repairs it"


def _may_be_lost(standing: LedgerDiagnosis) -> bool:
    """Report whether every replica of an entry lacks it or has a damaged entry, so that there may be no source."""
    return any(verdict.fewest_replicas == 0 for verdict in standing.verdicts)


# -- state of auto-recovery ----------------------------------------------------------------------------------------


def recovery_facts(standing: LedgerDiagnosis) -> dict[str, Any]:
    """Return the state of auto-recovery for a ledger, for JSON."""
    from bookies.replication.operator.status import problem_facts

    mark, assessment = standing.mark, standing.assessment
    return {
        "state": None if standing.trouble else assessment.state.value,
        "trouble": standing.trouble,
        "marked": None if mark is None else {"bookies": list(mark.replicas), "since_ms": mark.ctime_ms},
        "locked_by": standing.locked_by,
        "repairs_enabled": standing.is_enabled,
        "looked_at": standing.depth,
        **problem_facts(assessment.waits, assessment.losses),
        "reports": [{"process": process.name, **report} for process, report in standing.reports],
    }


def recovery_lines(standing: LedgerDiagnosis) -> list[str]:
    """Return lines about the ledger's mark, its lock, and the latest report of a worker."""
    mark = standing.mark
    if mark is None:
        lines = ["not marked as lacking replicas"]
    else:
        since = f" since {time_text(mark.ctime_ms)}" if mark.ctime_ms else ""
        lines = [f"marked as lacking replicas{since}, bookies: {', '.join(mark.replicas) or 'none named'}"]
    if standing.locked_by is not None:
        lines.append(f"being repaired by {standing.locked_by}")
    if not standing.is_enabled:
        lines.append(SWITCHED_OFF)
    for process, report in standing.reports[:1]:
        lines += _report_lines(process.name, report)
    return lines


def _report_lines(name: str, report: Mapping[str, Any]) -> list[str]:
    tries = f"{report['tries']} {'try' if report['tries'] == 1 else 'tries'}"
    again = "when a bookie returns" if report["next_ms"] is None else f"at {time_text(report['next_ms'])}"
    lines = [
        f"{name} could not repair it: {report['state']} since {time_text(report['since_ms'])}, {tries}, next {again}"
    ]
    lines += [f"  {line}" for line in problem_lines(report["waits"], report["losses"])]
    return lines


def problem_lines(waits: Sequence[Mapping[str, Any]], losses: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return lines about what a repair waits for, and about lost entries with the evidence of each bookie."""
    from bookies.replication.operator.status import lost_entries

    lines = []
    for loss in losses:
        evidence = "; ".join(f"{bookie}: {why}" for bookie, why in loss["evidence"].items())
        lines.append(f"{lost_entries(loss)} are lost: {evidence}")
        if (left := loss.get("others_have")) is not None:
            have = f"have {left} good {'replica' if left == 1 else 'replicas'}, or more,"
            lines.append(
                f"  other entries of those bookies {have} and are not copied: only those bookies can restore the lost"
            )
    for wait in waits:
        bookie = f"{wait['bookie']}: " if wait["bookie"] else ""
        lines.append(f"{_entries(wait)} wait for {wait['for']}: {bookie}{wait['why']}")
    return lines


def _entries(wait: Mapping[str, Any]) -> str:
    return f"entries {wait['first']:,} {'and later' if wait['last'] < 0 else 'to ' + format(wait['last'], ',')}"


async def why(session: Session, ledger_id: int) -> Report:
    """Return why a ledger lacks replicas, and what happens next. Status 0 if it lacks none."""
    async with by_hand(session) as hand:
        standing = await hand.diagnose(ledger_id)
    facts = recovery_facts(standing)
    good = min((verdict.fewest_replicas for verdict in standing.verdicts), default=None)
    state = facts["state"] or "unknown"
    if state == "repairable" and good == standing.record.write_quorum and _leaving(standing):
        state = "to be moved"
    lines = [
        f"checked: {standing.depth}; bk ledger verify {ledger_id} --percentage 100 reads all",
        *problem_lines(facts["waits"], facts["losses"]),
        *recovery_lines(standing),
    ]
    head = f"ledger {ledger_id}  {standing.record.state.name}  {state}: {_verdict(standing, good)}"
    text = [head, *(f"  {line}" for line in lines)]
    return Report({"ledger": ledger_id, **facts}, text, int(facts["state"] != "healthy"))
