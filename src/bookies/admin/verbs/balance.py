"""`bk bookie balance`: move what bookies hold, until all hold as much as they have room for."""

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
from bookies.admin.shared.operators import who

if TYPE_CHECKING:
    from bookies.protocol.repair.balance import BalancePlan
    from bookies.replication.operator.balance import BalanceProgress, BalanceResult

SHOWN = 10  # moves that were refused


def configure(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "balance",
        help="move replicas from bookies that hold more than their share to those that hold less",
        description="A share is by the size of a bookie's disks. Only sealed ledgers are moved, and none to where "
        "it is placed less well. May be interrupted at any time; called again it goes on with a plan of what is left.",
        epilog="example:  bk bookie balance --dry-run",
    )
    add_common(parser)
    parser.add_argument("--dry-run", action="store_true", help="only say what would be moved")
    parser.add_argument(
        "--tolerance", metavar="PERCENT", type=float, default=10.0, help="above its share that a bookie may be (10)"
    )
    add_rate(parser)


def run(arguments: argparse.Namespace) -> int:
    """Raises `UsageError`, `BookKeeperError`."""
    check_rate(arguments)
    if not 0 < arguments.tolerance < 1000:
        raise UsageError(f"--tolerance {arguments.tolerance:g}: a percentage above 0")
    return with_session(arguments, lambda session: _balance(session, arguments))


async def _balance(session: Session, arguments: argparse.Namespace) -> int:
    from bookies.protocol.repair import RateLimit
    from bookies.replication.operator import Balance

    balance = Balance(session.runtime, session.client, session.driver, who(), RateLimit(arguments.rate))
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
    """For JSON."""
    return {
        "bookies": [
            {"bookie": each, "bytes": plan.before[each], "share": round(plan.shares[each]), "after": plan.after[each]}
            for each in plan.before
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
        (each, size_text(plan.before[each]), size_text(plan.shares[each]), size_text(plan.after[each]))
        for each in plan.before
    ]
    print_table(rows, ("bookie", "holds", "its share", "afterwards"), right=(1, 2, 3))
    if plan.moves:
        print(f"to move      {len(plan.moves):,} replicas, about {size_text(plan.size)}")
    else:
        print("nothing to move: no bookie is above its share by more than the tolerance, or has what others can take")


def _print_result(result: BalanceResult) -> None:
    copied = f"{result.entries:,} entries, {size_text(result.size)} in {result.took_s:,.1f} s"
    print(f"{result.moves:,} replicas moved: {copied}; the bookies that had them delete them in their next collection")
    for move, why in result.refused[:SHOWN]:
        print(f"ledger {move.ledger_id}, entries from {move.first:,}, stays on {move.source}: {why}")
    if len(result.refused) > SHOWN:
        print(f"and {len(result.refused) - SHOWN:,} more")
