"""`bk bookie balance`: move replicas until every bookie holds its share by disk size."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from bookies.admin.shared import Progress, Session, UsageError
from bookies.admin.shared.command_line import RATE, Option, check_rate, verb
from bookies.admin.shared.common import size_text, with_session
from bookies.admin.shared.operators import operator_name
from bookies.admin.shared.report import Report, Table, print_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bookies.protocol.repair.balance import BalancePlan
    from bookies.replication.operator.balance import BalanceProgress, BalanceResult

SHOWN = 10  # refused moves that are printed


def _run(arguments: argparse.Namespace) -> Report:
    check_rate(arguments)
    if not 0 < arguments.tolerance < 1000:
        raise UsageError(f"--tolerance {arguments.tolerance:g}: must be a percentage above 0 and below 1000")
    return with_session(arguments, lambda session: _balance(session, arguments))


async def _balance(session: Session, arguments: argparse.Namespace) -> Report:
    from bookies.protocol.pacing import RateLimit
    from bookies.replication.operator import Balance, Operator

    balance = Balance(
        Operator(session.runtime, session.client, session.driver, operator_name()), RateLimit(arguments.rate)
    )
    plan = await balance.plan(arguments.tolerance / 100)
    facts = described(plan) | {"dry_run": arguments.dry_run}
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
    return Report(facts | _described_result(result), _result_lines(result))


def described(plan: BalancePlan) -> dict[str, object]:
    """Return the plan for JSON."""
    return {
        "bookies": [
            {
                "bookie": bookie,
                "bytes": plan.before[bookie],
                "share": round(plan.shares[bookie]),
                "after": plan.after[bookie],
            }
            for bookie in plan.before
        ],
        "moves": len(plan.moves),
        "size": plan.size,
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
    if plan.moves:
        yield f"to move      {len(plan.moves):,} replicas, about {size_text(plan.size)}"
    else:
        yield (
            "nothing to move: no bookie exceeds its share by more than the tolerance, or no other bookie can hold "
            "what it has"
        )


def _result_lines(result: BalanceResult) -> Iterator[str]:
    copied = f"{result.entries:,} entries, {size_text(result.size)} in {result.took_s:,.1f} s"
    yield f"{result.moves:,} replicas moved: {copied}; the old copies are deleted by the next garbage collection"
    for move, why in result.refused[:SHOWN]:
        yield f"ledger {move.ledger_id}, entries from {move.first:,}, stays on {move.source}: {why}"
    if len(result.refused) > SHOWN:
        yield f"and {len(result.refused) - SHOWN:,} more"


VERBS = (
    verb(
        "bookie balance",
        "move replicas from bookies that hold more than their share to those that hold less",
        "bk bookie balance --dry-run",
        _run,
        Option("--dry-run", "report what would be moved", bool),
        Option(
            "--tolerance PERCENT",
            "percentage by which a bookie may exceed its share (default 10)",
            float,
            default=10.0,
        ),
        RATE,
        description="A bookie's share is proportional to the size of its disks. Moves only sealed ledgers, and none to "
        "a worse placement. May be interrupted at any time; the next call plans the remaining moves.",
    ),
)
