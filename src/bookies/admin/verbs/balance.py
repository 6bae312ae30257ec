"""`bk bookie balance`: move replicas until every bookie holds its share by disk size, or explain what would move."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from bookies.admin.shared import Progress, Session, UsageError
from bookies.admin.shared.command_line import RATE, Option, check_rate, verb
from bookies.admin.shared.common import OnCluster, size_text, with_session
from bookies.admin.shared.operators import operator_name
from bookies.admin.shared.report import Report, Table, print_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bookies.model import BookieId
    from bookies.protocol.repair.balance import BalancePlan
    from bookies.replication.repair.balance import BalanceProgress, BalanceResult

SHOWN = 10  # refused moves that are printed
AUTOMATIC = "the automatic balance"


def _run(arguments: argparse.Namespace) -> Report:
    check_rate(arguments)
    _check_tolerance(arguments)
    return with_session(arguments, lambda session: _balance(session, arguments))


async def _explain(session: Session, arguments: argparse.Namespace) -> Report:
    """Answer for another process, which waits for the answer only."""
    if not arguments.why:
        raise UsageError("only `bk bookie balance --why` works with --server: to move replicas, run it in the cluster")
    _check_tolerance(arguments)
    return await _balance(session, arguments)


def _check_tolerance(arguments: argparse.Namespace) -> None:
    if not 0 < arguments.tolerance < 1000:
        raise UsageError(f"--tolerance {arguments.tolerance:g}: must be a percentage above 0 and below 1000")


async def _balance(session: Session, arguments: argparse.Namespace) -> Report:
    from bookies.protocol.pacing import RateLimit
    from bookies.replication.operator import Operator
    from bookies.replication.repair.balance import Balance, Slack

    rate = RateLimit(arguments.rate)
    balance = Balance(Operator(session.runtime, session.client, session.driver, operator_name()), rate)
    tolerance = arguments.tolerance / 100
    plan = await balance.plan(Slack(tolerance, tolerance))
    facts = described(plan) | {"dry_run": arguments.dry_run or arguments.why}
    if arguments.why:
        automatic = await _automatic(session)
        return Report(facts | {"automatic": automatic}, [*_why_text(plan), *_automatic_text(plan, automatic)])
    if arguments.dry_run or not plan.moves:
        return Report(facts, [*_plan_text(plan), *(["nothing was changed"] if arguments.dry_run else [])])
    if not arguments.json:
        print_text(_plan_text(plan))
    progress = Progress("replicas moved", None, quiet=arguments.json)

    def report(news: BalanceProgress) -> None:
        left = "" if news.remaining_s is None else f", {news.remaining_s:,.0f} s left"
        copied = f"{news.entries:,} entries, {size_text(news.size_done)} of {size_text(news.size)}"
        progress.update(news.moves_done, f"of {news.moves:,}  {copied}{left}")

    try:
        result = await balance.run(plan, report)
    finally:
        progress.clear()
    return Report(facts | _described_result(result), _result_lines(plan, result))


async def _automatic(session: Session) -> dict[str, Any] | None:
    """Return the last report of the automatic balance, with the process that made it; None: there is none."""
    from bookies.replication.operator.status import read_processes

    reports = [
        {"process": process.name, **report}
        for process in await read_processes(session.driver)
        for report in process.auditor
        if report["checks"] == ["balance"]
    ]
    return max(reports, key=lambda report: report["began_ms"], default=None)


def described(plan: BalancePlan) -> dict[str, object]:
    """Return the plan for JSON."""
    reasons = plan.reasons()
    return {
        "bookies": [
            {
                "bookie": bookie,
                "bytes": plan.before[bookie],
                "share": round(plan.shares[bookie]),
                "after": plan.after[bookie],
                "read_bytes_per_s": plan.read_rates.get(bookie),
                "why": reasons[bookie],
            }
            for bookie in plan.before
        ],
        "excluded": dict(plan.excluded),
        "obstacle": plan.obstacle,
        "imbalance": round(plan.imbalance, 4),
        "relieves": plan.relieves,
        "moves": len(plan.moves),
        "size": plan.size,
        "is_partial": plan.is_partial,
    }


def _described_result(result: BalanceResult) -> dict[str, object]:
    return {
        "moved": result.moves,
        "entries": result.entries,
        "bytes_copied": result.size,
        "took_s": round(result.took_s, 3),
        "refused": [
            {
                "ledger": move.ledger_id,
                "first_entry": move.first,
                "source": move.source,
                "target": move.target,
                "why": why,
            }
            for move, why in result.refused
        ],
    }


def _plan_text(plan: BalancePlan) -> Iterator[str | Table]:
    rows = [
        (bookie, size_text(plan.before[bookie]), size_text(plan.shares[bookie]), size_text(plan.after[bookie]))
        for bookie in plan.before
    ]
    yield Table(("bookie", "holds", "its share", "afterwards"), rows, (1, 2, 3))
    yield _summary(plan)
    if not plan.moves:
        yield "`bk bookie balance --why` shows the reason for each bookie"


def _summary(plan: BalancePlan) -> str:
    if plan.moves:
        more = "; too many replicas for one plan, so call it again afterwards" if plan.is_partial else ""
        return f"to move      {len(plan.moves):,} replicas, about {size_text(plan.size)}{more}"
    return "nothing to move: no bookie deviates from its share by more than the tolerance, or no replica can move"


def _why_text(plan: BalancePlan) -> Iterator[str | Table]:
    def deviation(bookie: BookieId) -> str:
        share = plan.shares[bookie]
        return f"{100 * (plan.before[bookie] - share) / share:+.1f} %" if share else "-"

    def reads(bookie: BookieId) -> str:
        return f"{size_text(plan.read_rates[bookie])}/s" if bookie in plan.read_rates else "-"

    reasons = plan.reasons()
    rows = [
        (bookie, size_text(held), size_text(plan.shares[bookie]), deviation(bookie), reads(bookie), reasons[bookie])
        for bookie, held in plan.before.items()
    ]
    rows += [
        (bookie, "-", "-", "-", "-", f"neither gives nor receives: {why}") for bookie, why in plan.excluded.items()
    ]
    yield Table(("bookie", "holds", "its share", "deviates", "is read", "why"), rows, (1, 2, 3, 4))
    yield _summary(plan)


def _automatic_text(plan: BalancePlan, automatic: dict[str, Any] | None) -> Iterator[str]:
    if automatic is None:
        yield f"{AUTOMATIC} has not reported: no auditor runs, its first check is due, or balance_interval_s is 0"
    else:
        facts = ", ".join(
            f"{name} {size_text(value) if name.startswith('bytes') else value}"
            for name, value in automatic["facts"].items()
        )
        yield f"{AUTOMATIC}, last round of {automatic['process']}: {facts}"
    if plan.obstacle is not None:
        yield f"{AUTOMATIC} moves nothing at present: {plan.obstacle}"


def _result_lines(plan: BalancePlan, result: BalanceResult) -> Iterator[str]:
    copied = f"{result.entries:,} entries, {size_text(result.size)} in {result.took_s:,.1f} s"
    yield f"{result.moves:,} replicas moved: {copied}; the old copies are deleted by the next garbage collection"
    if plan.is_partial:
        yield "there were too many replicas for one plan: call it again"
    for move, why in result.refused[:SHOWN]:
        yield f"ledger {move.ledger_id}, entries from {move.first:,}, stays on {move.source}: {why}"
    if len(result.refused) > SHOWN:
        yield f"and {len(result.refused) - SHOWN:,} more"


VERBS = (
    verb(
        "bookie balance",
        "move replicas from bookies that hold more than their share to those that hold less",
        "bk bookie balance --dry-run",
        OnCluster(_run, _explain),
        Option("--dry-run", "report what would be moved", bool),
        Option("--why", "report why each bookie gives, receives or stands still, and change nothing", bool),
        Option(
            "--tolerance PERCENT",
            "percentage by which a bookie may deviate from its share (default 10)",
            float,
            default=10.0,
        ),
        RATE,
        description="A bookie's share is proportional to the size of its disks. Moves only finished fragments, and "
        "none to a worse placement. May be interrupted at any time; the next call plans the remaining moves. The "
        "auditor does the same automatically, see balance_interval_s.",
    ),
)
