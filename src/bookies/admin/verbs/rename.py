"""`bk bookie rename`: put a bookie's new id into all ledgers' records."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from bookies.admin.shared import Progress, Session, UsageError
from bookies.admin.shared.command_line import Option, verb
from bookies.admin.shared.common import with_session
from bookies.admin.shared.operators import check_known, operator_name
from bookies.admin.shared.report import Report

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bookies.replication.operator.renaming import RenamingResult

SHOWN = 20  # ledgers that are printed


def _run(arguments: argparse.Namespace) -> Report:
    from bookies.metadata.formats.serde import is_bookie_id
    from bookies.metadata.shared.change_log import check_reason

    check_reason(arguments.reason)
    if arguments.old == arguments.new or not is_bookie_id(arguments.new):
        raise UsageError(f"{arguments.new!r} is no other bookie id: letters, digits, - . _ : only")
    if arguments.rate is not None and arguments.rate <= 0:
        raise UsageError(f"--rate {arguments.rate:g}: must be above 0 records per second")
    return with_session(arguments, lambda session: _rename(session, arguments))


async def _rename(session: Session, arguments: argparse.Namespace) -> Report:
    from bookies.metadata.shared.change_log import note_change
    from bookies.model import BookieId
    from bookies.protocol.pacing import RateLimit
    from bookies.replication.base.operator_parts import Operator
    from bookies.replication.operator.renaming import Renaming, RenamingRules

    old, new, owner = BookieId(arguments.old), BookieId(arguments.new), operator_name()
    modes = await session.driver.modes()
    if old in modes:
        raise UsageError(f"bookie {old} is registered, so it still has this id: stop it first. Nothing was changed")
    if new not in modes and not arguments.unverified:
        raise UsageError(
            f"bookie {new} is not registered, so it cannot be asked for its entries: start it, or pass --unverified if "
            f"it certainly has the files of {old}. Nothing was changed"
        )
    await check_known(session, old)
    rules = RenamingRules(arguments.open, not arguments.unverified, arguments.dry_run)
    operator = Operator(session.runtime, session.client, session.driver, owner)
    renaming = Renaming(operator, old, new, rules, RateLimit(arguments.rate))
    if not arguments.dry_run:
        difference = {"field": "id", "before": old, "after": new}
        now_ms = session.runtime.clock.wall_ms()
        await note_change(session.driver, now_ms, owner, arguments.reason, f"bookie {old}", [difference])
    progress = Progress("records", None, quiet=arguments.json)

    def report(news: RenamingResult) -> None:
        progress.update(news.coverage.ledgers, f"{news.changed:,} changed, {len(news.kept):,} kept")

    try:
        result = await renaming.run(report)
    finally:
        progress.clear()
    facts = {
        "old": old,
        "new": new,
        "dry_run": arguments.dry_run,
        "records": result.coverage.ledgers,
        "unreadable": result.coverage.unreadable,
        "changed": result.changed,
        "kept": [{"ledger": ledger_id, "why": why} for ledger_id, why in sorted(result.kept.items())],
    }
    is_whole = not result.kept and not result.coverage.unreadable_count
    return Report(facts, _lines(result, arguments), int(not is_whole))


def _lines(result: RenamingResult, arguments: argparse.Namespace) -> Iterator[str]:
    done = "would be changed" if arguments.dry_run else "were changed"
    yield f"{result.coverage.ledgers:,} records read, {result.changed:,} {done} from {arguments.old} to {arguments.new}"
    for ledger_id, why in sorted(result.kept.items())[:SHOWN]:
        yield f"ledger {ledger_id} names {arguments.old} still: {why}"
    if len(result.kept) > SHOWN:
        yield f"and {len(result.kept) - SHOWN:,} more"
    if result.coverage.unreadable_count:
        yield f"{result.coverage.unreadable_count:,} records cannot be read: bk metadata check"


VERBS = (
    verb(
        "bookie rename",
        "put a bookie's new id into the records of all ledgers",
        "bk bookie rename 10.0.0.7:3181 b7 --reason 'names instead of addresses' --dry-run",
        _run,
        Option("old OLD", "id that the records name; its bookie is stopped"),
        Option("new NEW", "id under which a bookie with the same files runs"),
        Option("--reason TEXT", "reason, which `bk metadata changes` shows", is_required=True),
        Option("--rate RECORDS", "records to read per second, at most (default: no limit)", float),
        Option("--open", "also change last fragments of ledgers that are not closed: stop their writers first", bool),
        Option("--unverified", "do not ask NEW whether it has the entries", bool),
        Option("--dry-run", "report what would be changed", bool),
        description="Changes every record by compare-and-swap under the ledger's lock, if NEW lists the entries. "
        "Repeat the command after an interruption. A bookie that moves keeps its id, and needs no such change.",
    ),
)
