"""`bk bookie balance`: move replicas until every bookie holds its share by disk size."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from bookies.admin.shared import Progress, Session, UsageError
from bookies.admin.shared.common import (
    add_common,
    add_rate,
    check_rate,
    print_json,
    print_table,
    size_text,
    with_session,
)
from bookies.admin.shared.operators import operator_name

if TYPE_CHECKING:
    from bookies.protocol.repair.balance import BalancePlan
    from bookies.replication.operator.balance import BalanceProgress, BalanceResult

SHOWN = 10  # refused moves that are printed


def configure(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "balance",
        help="move replicas from bookies that hold more than their share to those that hold less",
        description="A bookie's share is proportional to the size of its disks. Moves only sealed ledgers, and none to "
        "a worse placement. May be interrupted at any time; the next call plans the remaining moves.",
        epilog="example:  bk bookie balance --dry-run",
    )
    add_common(parser)
    parser.add_argument("--dry-run", action="store_true", help="report what would be moved")
    parser.add_argument(
        "--tolerance",
        metavar="PERCENT",
        type=float,
        default=10.0,
        help="percentage by which a bookie may exceed its share (default 10)",
    )
    add_rate(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run the verb. Raises `UsageError`, `BookKeeperError`."""
    check_rate(arguments)
    if not 0 < arguments.tolerance < 1000:
        raise UsageError(f"--tolerance {arguments.tolerance:g}: must be a percentage above 0 and below 1000")
    return with_session(arguments, lambda session: _balance(session, arguments))


async def _balance(session: Session, arguments: argparse.Namespace) -> int:
    from bookies.protocol.pacing import RateLimit
    from bookies.replication.operator import Balance

    balance = Balance(session.runtime, session.client, session.driver, operator_name(), RateLimit(arguments.rate))
    plan = await balance.plan(arguments.tolerance / 100)
    if not arguments.json:
        _print_plan(plan)
    if arguments.dry_run or not plan.moves:
        if arguments.json:
            print_json(described(plan) | {"dry_run": arguments.dry_run})
        elif arguments.dry_run:
            print("nothing was changed")
        return 0
    progress = Progress("replicas moved", None, quiet=arguments.json)

    def report(news: BalanceProgress) -> None:
        left = "" if news.remaining_s is None else f", {news.remaining_s:,.0f} s left"
        copied = f"{news.entries:,} entries, {size_text(news.size_done)} of {size_text(news.size)}"
        progress.update(news.moves_done, f"of {news.moves:,}  {copied}{left}")

    try:
        result = await balance.run(plan, report)
    finally:
        progress.clear()
    if arguments.json:
        print_json(described(plan) | {"dry_run": False, **_described_result(result)})
    else:
        _print_result(result)
    return 0


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


def _print_plan(plan: BalancePlan) -> None:
    rows = [
        (bookie, size_text(plan.before[bookie]), size_text(plan.shares[bookie]), size_text(plan.after[bookie]))
        for bookie in plan.before
    ]
    print_table(rows, ("bookie", "holds", "its share", "afterwards"), right=(1, 2, 3))
    if plan.moves:
        print(f"to move      {len(plan.moves):,} replicas, about {size_text(plan.size)}")
    else:
        print(
            "nothing to move: no bookie exceeds its share by more than the tolerance, or no other bookie can hold "
            "what it has"
        )


def _print_result(result: BalanceResult) -> None:
    copied = f"{result.entries:,} entries, {size_text(result.size)} in {result.took_s:,.1f} s"
    print(f"{result.moves:,} replicas moved: {copied}; the old copies are deleted by the next garbage collection")
    for move, why in result.refused[:SHOWN]:
        print(f"ledger {move.ledger_id}, entries from {move.first:,}, stays on {move.source}: {why}")
    if len(result.refused) > SHOWN:
        print(f"and {len(result.refused) - SHOWN:,} more")
