"""`bk bookie drain` and `bk bookie maintenance`: take a bookie out of service, permanently or for a limited time."""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from bookies import units
from bookies.admin.shared import Progress, UsageError
from bookies.admin.shared.command_line import RATE, OneOf, Option, check_rate, verb
from bookies.admin.shared.common import OnCluster, on_session, size_text, time_text, with_session
from bookies.admin.shared.notes_text import FRESH_MS, state_text
from bookies.admin.shared.operators import check_known, operator_name, store_reporter
from bookies.admin.shared.report import Report, Table, print_text

if TYPE_CHECKING:
    from bookies.admin.shared import Session
    from bookies.metadata.shared.bookie_notes import Notes
    from bookies.model import BookieId
    from bookies.replication.operator import Drain
    from bookies.replication.operator.drain import DrainPlan, DrainResult
    from bookies.replication.operator.drain_work import Blocked, DrainProgress

RATE_ASSUMED = 32 * 1024 * 1024  # bytes per second, until a rate is measured
SHOWN = 20  # obstacles that are printed, one per line
MAINTENANCE_MAX_S = 7 * 86_400


def _run(arguments: argparse.Namespace) -> Report | int:
    check_rate(arguments)
    if arguments.cancel and arguments.dry_run:
        raise UsageError("--cancel copies nothing, so there is nothing to plan: omit --dry-run or --cancel")
    if arguments.beyond is not None and (arguments.bookie is None or arguments.beyond < 0):
        raise UsageError("--beyond N needs a NAME: the bookies NAME-N, NAME-(N+1) and so on are drained")
    body = _show if arguments.bookie is None else _drain if arguments.beyond is None else _drain_beyond
    return with_session(arguments, lambda session: body(session, arguments))


async def _run_within(session: Session, arguments: argparse.Namespace) -> Report:
    """Plan, announce or cancel a drain. Auto-recovery empties the bookie: a request does not wait for copies."""
    from bookies.replication.operator import Drain, Operator

    if arguments.bookie is None:
        return await _show(session, arguments)
    if arguments.dry_run or arguments.cancel:
        report = await _drain(session, arguments)
        assert isinstance(report, Report)
        return report
    bookie = await check_known(session, arguments.bookie)
    drain = Drain(
        Operator(session.runtime, session.client, session.driver, operator_name()), bookie, seals=arguments.seal_open
    )
    await drain.start()
    try:
        plan = await drain.plan()
        if not plan.helpers:
            raise UsageError(
                "no process of auto-recovery would empty it: start one with `bk recovery run`, or run "
                "`bk bookie drain` beside the cluster"
            )
        await drain.begin()
    finally:
        drain.stop()
    lines = [*_plan_lines(plan, None), f"{_helpers(plan)} emptying {bookie}, and writers avoid it"]
    return Report(described_plan(plan, None) | {"dry_run": False, "changed": True}, lines)


# -- maintenance -------------------------------------------------------------------------------------------------------


async def _maintenance(session: Session, arguments: argparse.Namespace) -> Report:
    from bookies.metadata.shared import BookieNotes

    notes = BookieNotes(session.driver, session.runtime.clock.wall_ms)
    if arguments.bookie is None:
        if arguments.duration or arguments.end:
            raise UsageError("name the bookie: bk bookie maintenance ID --for 20m")
        return await _show(session, arguments)
    bookie = await check_known(session, arguments.bookie)
    if arguments.end:
        was = await notes.end_maintenance(bookie)
        text = f"the maintenance of {bookie} has ended" if was else f"{bookie} was not in maintenance"
        return Report({"bookie": bookie, "changed": was}, [text])
    if arguments.duration is None:
        return await _show(session, arguments)
    seconds = parse_duration(arguments.duration)
    below, unreadable = await _endangered(session, bookie, await notes.read())
    facts: dict[str, object] = {"bookie": bookie, "below_ack_quorum": below, "without_replica": unreadable}
    remarks = [_warning(bookie, below, unreadable)] if below else []
    if arguments.dry_run or (below and not arguments.force):
        refused = bool(below) and not arguments.force
        text = f"nothing was changed{'; --force overrides the objections' if refused and not arguments.dry_run else ''}"
        return Report(facts | {"changed": False}, [text], int(refused), remarks)
    until_ms = session.runtime.clock.wall_ms() + round(seconds * 1000)
    await notes.begin_maintenance(bookie, until_ms, operator_name(), arguments.reason)
    text = (
        f"{bookie} is in maintenance until {time_text(until_ms)}: its replicas are not copied elsewhere, and writers "
        "avoid it"
    )
    return Report(facts | {"changed": True, "until_ms": until_ms}, [text], remarks=remarks)


def parse_duration(text: str) -> float:
    """Return the seconds of a time such as `90s`, `20m`, `2h`, `1d`. Raises `UsageError`."""
    seconds = units.parse_duration(text)
    if seconds is None:
        raise UsageError(f"--for {text}: expected a number and a unit (s, m, h or d), such as 20m")
    if seconds <= 0:
        raise UsageError(f"--for {text}: must be above 0; --end ends a maintenance")
    if seconds > MAINTENANCE_MAX_S:
        raise UsageError(
            f"--for {text}: at most {MAINTENANCE_MAX_S // 86_400} days, because its ledgers lack a replica meanwhile; "
            "empty a bookie that is unavailable for longer: bk bookie drain"
        )
    return seconds


async def _endangered(session: Session, bookie: BookieId, notes: Notes) -> tuple[list[int], list[int]]:
    """Return ledgers with fewer replicas than their ack quorum while the bookie is unavailable, and those with none.

    Other bookies that are unregistered or exempt by a note count as unavailable too.
    """
    from bookies.protocol.pacing import RateLimit
    from bookies.protocol.repair.drain import replicas_elsewhere
    from bookies.protocol.repair.fragments import is_stored_on
    from bookies.replication.base.replication_records import Coverage, records

    registered = await session.driver.modes()
    below, without = [], []
    async for page in records(session.driver, RateLimit(None), Coverage()):
        for ledger in page:
            record = ledger.metadata
            if not is_stored_on(record, bookie):
                continue
            members = dict.fromkeys(member for _, ensemble in record.ensembles for member in ensemble)
            absent = [
                member for member in members if member == bookie or member in notes.exempt or member not in registered
            ]
            left = replicas_elsewhere(record, absent)
            if left < record.ack_quorum:
                below.append(record.ledger_id)
            if left == 0:
                without.append(record.ledger_id)
    return below, without


def _warning(bookie: BookieId, below: Sequence[int], without: Sequence[int]) -> str:
    text = f"while {bookie} is unavailable, {_ledgers(below)} would have fewer replicas than the ack quorum"
    return text + (f", and {_ledgers(without)} none at all, so entries could not be read" if without else "")


def _ledgers(ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, ids[:5])) + (", ..." if len(ids) > 5 else "")
    return f"{len(ids):,} {'ledger' if len(ids) == 1 else 'ledgers'} ({shown})"


async def _show(session: Session, arguments: argparse.Namespace) -> Report:
    """Return the drain or maintenance notes of one bookie, or of all."""
    from bookies.metadata.shared import BookieNotes

    notes = await BookieNotes(session.driver, session.runtime.clock.wall_ms).read()
    rows: list[dict[str, Any]] = []
    for bookie, note in notes.by_bookie.items():
        announcement = note.draining if arguments.verb == "drain" else note.maintenance
        if announcement is not None and arguments.bookie in (None, bookie):
            rows.append({"bookie": bookie, **to_builtins(announcement)})
    return Report(rows, _notes_text(rows, arguments, session.runtime.clock.wall_ms()))


def _notes_text(rows: Sequence[dict[str, Any]], arguments: argparse.Namespace, now_ms: int) -> Iterator[str | Table]:
    if not rows:
        which = "no bookie is" if arguments.bookie is None else f"bookie {arguments.bookie} is not"
        yield f"{which} being drained" if arguments.verb == "drain" else f"{which} in maintenance"
    elif arguments.verb == "drain":
        cells = [(row["bookie"], time_text(row["since_ms"]), row["by"], state_text(row, now_ms)) for row in rows]
        yield Table(("bookie", "since", "by", "state"), cells)
        if any(now_ms - row["state_ms"] >= FRESH_MS for row in rows):
            yield "print the present state with: bk bookie drain ID --dry-run"
    else:
        cells = [(row["bookie"], time_text(row["until_ms"]), row["by"], row["reason"] or "-") for row in rows]
        yield Table(("bookie", "until", "by", "reason"), cells)


# -- drain -------------------------------------------------------------------------------------------------------------


async def _drain(session: Session, arguments: argparse.Namespace) -> Report | int:
    from bookies.protocol.pacing import RateLimit
    from bookies.replication.operator import Drain, Operator

    bookie = await check_known(session, arguments.bookie)
    operator = Operator(session.runtime, session.client, session.driver, operator_name())
    drain = Drain(operator, bookie, pace=RateLimit(arguments.rate), seals=arguments.seal_open)
    if arguments.cancel:
        was = await drain.cancel()
        text = f"writers may use {bookie} again" if was else f"{bookie} was not being drained"
        return Report({"bookie": bookie, "changed": was}, [text])
    await drain.start()
    try:
        plan = await drain.plan()
        facts = described_plan(plan, arguments.rate)
        if arguments.dry_run:
            lines = [*_plan_lines(plan, arguments.rate), "nothing was changed"]
            return Report(facts | {"dry_run": True}, lines, int(bool(plan.blocked or plan.unreadable)))
        if not arguments.json:
            print_text(_plan_lines(plan, arguments.rate))
        return await _carry_out(drain, plan, facts, arguments)
    finally:
        drain.stop()


async def _drain_beyond(session: Session, arguments: argparse.Namespace) -> Report:
    """Drain the bookies of a StatefulSet whose numbers are not below --beyond, the highest first."""
    from bookies.metadata.shared import BookieNotes
    from bookies.model import BookieId

    numbered = re.compile(rf"{re.escape(arguments.bookie)}-(0|[1-9][0-9]*)")
    matches = [
        match for bookie in (await session.driver.all_bookies()).bookies if (match := numbered.fullmatch(bookie))
    ]
    numbers = sorted((int(match[1]) for match in matches if int(match[1]) >= arguments.beyond), reverse=True)
    names = [BookieId(f"{arguments.bookie}-{number}") for number in numbers]
    if not names:
        return Report(
            [], [f"the cluster has no bookie {arguments.bookie}-{arguments.beyond} or above: nothing to drain"]
        )
    if not (arguments.dry_run or arguments.cancel):
        # All of them first: none copies to another that is drained too.
        notes = BookieNotes(session.driver, session.runtime.clock.wall_ms)
        for name in names:
            await notes.begin_draining(name, operator_name())
    reports = []
    for name in names:
        report = await _drain(session, argparse.Namespace(**vars(arguments) | {"bookie": name}))
        assert isinstance(report, Report)
        reports.append(report)
    lines = [line for report in reports for line in report.text]
    return Report([report.facts for report in reports], lines, max(report.status for report in reports))


async def _carry_out(drain: Drain, plan: DrainPlan, facts: dict[str, object], arguments: argparse.Namespace) -> Report:
    from bookies.errors import MetadataError

    progress = Progress("ledgers", None, quiet=arguments.json)

    report_store = store_reporter(progress)

    def report(news: DrainProgress) -> None:
        report_store(news.trouble)
        left = "" if news.remaining_s is None else f", {news.remaining_s:,.0f} s left"
        waits = f"; {len(news.waits_for):,} wait, first for {news.waits_for[0].cause}" if news.waits_for else ""
        done = f"of {news.ledgers:,}  {news.entries:,} entries, {size_text(news.size_done)} of {size_text(news.size)}"
        progress.update(news.ledgers_done, f"{done}{left}{waits}")

    await drain.begin()
    try:
        result = await drain.run(plan, report, waits=arguments.wait)
    except (asyncio.CancelledError, MetadataError):
        progress.clear()
        print(_stopped(plan), file=sys.stderr)
        raise
    finally:
        progress.clear()
    removes = result.is_empty and arguments.remove and not result.is_cancelled
    if not arguments.json:
        print_text(_result_lines(plan.bookie, result))
    lines = []
    if removes:
        await asyncio.shield(drain.remove())
        lines = [f"its cookie is deleted: the cluster has forgotten {plan.bookie}"]
    elif result.is_empty and result.is_cancelled:
        lines = [f"the drain was cancelled meanwhile: writers may use {plan.bookie} again, and it keeps its cookie"]
    elif result.is_empty:
        lines = [f"writers still avoid it. To remove it, stop it and run: bk bookie drain {plan.bookie} --remove"]
    facts = facts | {"dry_run": False, "removed": removes, **described_result(result)}
    return Report(facts, lines, int(not (removes if arguments.remove else result.is_empty)))


def _stopped(plan: DrainPlan) -> str:
    """Return the message of an interruption: which processes continue, at which rate, and how to end the drain."""
    bookie, again = plan.bookie, f"`bk bookie drain {plan.bookie}` continues it here"
    if not plan.helpers:
        return (
            "\nstopped: the copies made so far remain. No process continues the drain: auto-recovery does not run, or "
            f"it is disabled. Writers still avoid {bookie}: {again}, `bk bookie drain {bookie} --cancel` lets them use "
            "it again"
        )
    return (
        f"\nstopped: the copies made so far remain. {_helpers(plan)} emptying {bookie} in the background, at the rate "
        f"of their own settings (recovery_rate_size) and not at --rate: `bk bookie drain {bookie} --cancel` ends that "
        f"and lets writers use it again; {again}"
    )


def _helpers(plan: DrainPlan) -> str:
    processes = _count(len(plan.helpers), "process", "processes")
    return f"{processes} of auto-recovery {'continues' if len(plan.helpers) == 1 else 'continue'}"


def described_plan(plan: DrainPlan, rate: float | None) -> dict[str, object]:
    """Return the plan for JSON."""
    return {
        "bookie": plan.bookie,
        "mode": plan.mode,
        "ledgers": len(plan.portions),
        "fragments": plan.fragments,
        "entries": plan.entries,
        "size": plan.size,
        "needs_sealing": [item.ledger_id for item in plan.portions if item.needs_sealing],
        "targets": plan.targets,
        "assumed_s": _assumed_s(plan, rate),
        "foreseen": [to_builtins(item) for item in plan.blocked],
        "unreadable": list(plan.unreadable),
        "helpers": list(plan.helpers),
    }


def described_result(result: DrainResult) -> dict[str, object]:
    """Return the result for JSON."""
    return {
        "empty": result.is_empty,
        "cancelled": result.is_cancelled,
        "blocked": [to_builtins(obstacle) for obstacle in result.blocked],
        "entries_copied": result.entries,
        "bytes_copied": result.size,
        "took_s": round(result.took_s, 3),
        "predicted_s": result.predicted_s,
        "predicted_after_s": result.predicted_after_s,
        "marked": result.marked,
    }


def _assumed_s(plan: DrainPlan, rate: float | None) -> float:
    from bookies.protocol.repair.drain import assumed_s

    return assumed_s(len(plan.portions), plan.size, min(rate or RATE_ASSUMED, RATE_ASSUMED))


def _plan_lines(plan: DrainPlan, rate: float | None) -> Iterator[str]:
    yield (
        f"bookie {plan.bookie} ({plan.mode}) has {plan.entries:,} entries in {plan.fragments:,} fragments of "
        f"{_count(len(plan.portions), 'ledger')}: about {size_text(plan.size)} to copy"
    )
    if plan.targets:
        largest = sorted(plan.targets.items(), key=lambda target: (-target[1], target[0]))
        shown = ", ".join(f"{bookie} {size_text(size)}" for bookie, size in largest[:10])
        yield f"to           {shown}{f' and {len(largest) - 10} more' if len(largest) > 10 else ''}"
    if plan.portions:
        at = size_text(min(rate or RATE_ASSUMED, RATE_ASSUMED))
        why = "the limit of --rate" if rate and rate <= RATE_ASSUMED else "assumed until a rate is measured"
        yield f"time         about {_assumed_s(plan, rate):,.0f} s at {at} per second, {why}"
    if plan.helpers:
        processes = _count(len(plan.helpers), "process", "processes")
        yield (
            f"helped by    {processes} of auto-recovery, at the rate of their own settings; --rate does not limit them"
        )
    yield from _blocked_lines(plan.blocked)
    if plan.unreadable:
        yield f"unreadable   the records of {_ledgers(plan.unreadable)}: they may name the bookie"


def _blocked_lines(blocked: Sequence[Blocked]) -> Iterator[str]:
    if not blocked:
        return
    yield f"in the way   {_count(len(dict.fromkeys(obstacle.ledger_id for obstacle in blocked)), 'ledger')}"
    for obstacle in blocked[:SHOWN]:
        last = "later" if obstacle.last < 0 else f"{obstacle.last:,}"
        entries = f"entries {obstacle.first:,} {'and' if obstacle.last < 0 else 'to'} {last}"
        yield f"  ledger {obstacle.ledger_id}  {entries}: waits for {obstacle.cause}: {obstacle.reason}"
    if len(blocked) > SHOWN:
        causes = Counter(obstacle.cause for obstacle in blocked[SHOWN:])
        yield f"  and {len(blocked) - SHOWN:,} more: " + ", ".join(f"{n:,} for {cause}" for cause, n in causes.items())
    if any(obstacle.can_be_sealed for obstacle in blocked):
        yield "  --seal-open seals open ledgers, and their writers fail; --wait waits until they use other bookies"


def _result_lines(bookie: BookieId, result: DrainResult) -> Iterator[str]:
    took = f"{result.entries:,} entries, {size_text(result.size)} copied in {result.took_s:,.1f} s"
    if result.predicted_s is not None:
        took += f" (predicted after {result.predicted_after_s:,.1f} s: {result.predicted_s:,.1f} s)"
    if result.is_empty:
        yield f"bookie {bookie} is empty: {took}"
    elif result.is_cancelled:
        yield f"the drain of bookie {bookie} was cancelled: {took}"
    else:
        yield f"bookie {bookie} is not empty yet: {took}"
        yield from _blocked_lines(result.blocked)
        yield f"writers still avoid it: `bk bookie drain {bookie}` continues the drain, --cancel ends it"
    if result.marked:
        yield f"{_ledgers(result.marked)} lack replicas for another reason: bk recovery why {result.marked[0]}"


def _count(number: int, one: str, several: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"


VERBS = (
    verb(
        "bookie drain",
        "empty a bookie, running or stopped: copy its replicas to other bookies",
        "bk bookie drain b3 --dry-run",
        OnCluster(_run, _run_within),
        Option("bookie ID", "id of the bookie (default: list drains)", values="?"),
        Option("--dry-run", "report the plan and the obstacles", bool),
        RATE,
        Option("--seal-open", "seal ledgers that are still being written to the bookie; their writers fail", bool),
        Option("--wait", "wait until no obstacle is left, without a time limit", bool),
        Option("--beyond N", "ID is the name of a StatefulSet: drain its bookies ID-N and above", int),
        OneOf(
            Option(
                "--remove",
                "when the bookie is empty, delete its cookie: the cluster forgets it; it must be stopped by then",
                bool,
            ),
            Option("--cancel", "end the drain: writers use the bookie again, copies remain", bool),
        ),
        description="Prints the plan and the obstacles, then copies ledger by ledger and reports the remaining time. "
        "Writers choose other bookies meanwhile. May be interrupted at any time; the next call continues. Without ID: "
        "list the bookies that are being drained and their progress.",
    ),
    verb(
        "bookie maintenance",
        "announce a bookie's absence: its replicas are not copied elsewhere, and writers avoid it",
        "bk bookie maintenance b3 --for 20m --reason 'new disk'",
        on_session(_maintenance),
        Option("bookie ID", "id of the bookie (default: show all leases)", values="?"),
        OneOf(
            Option("--for TIME", "begin the lease, or change its duration, such as 20m or 2h", field="duration"),
            Option("--end", "end the lease now", bool),
        ),
        Option("--reason TEXT", "reason, shown in the lists of bookies", default=""),
        Option("--force", "begin even if ledgers will lack an ack quorum", bool),
        Option("--dry-run", "report which ledgers would lack an ack quorum", bool),
        description="The announcement is a lease that ends automatically. Without an option: show the leases. Refuses "
        "if ledgers would have fewer replicas than their ack quorum while the bookie is unavailable.",
    ),
)
