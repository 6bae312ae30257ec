"""`bk log retention`, `history`, `compact` and `roll-up`: which entries a log keeps, and in which ledgers."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from bookies.admin.shared.command_line import OneOf, Option, check_rate, verb
from bookies.admin.shared.common import Progress, on_client, on_session, size_text, time_text
from bookies.admin.shared.report import Report, Table
from bookies.admin.shared.times import seconds_of
from bookies.admin.shared.usage import UsageError
from bookies.units import duration_text, parse_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bookies.admin.shared import Session
    from bookies.client.client import Client
    from bookies.protocol.log.retention import LogRemoval, Retention

_LIMITS = ("age", "size", "rows", "cursor_age")


async def _retention(session: Session, arguments: argparse.Namespace) -> Report:
    log = session.client.log(arguments.log)
    is_set = any(getattr(arguments, name) is not None for name in _LIMITS)
    if is_set and (arguments.off or arguments.apply):
        raise UsageError("--off and --apply go without limits: set them with a command of their own")
    if arguments.dry_run and not arguments.apply:
        raise UsageError("--dry-run is for --apply: a command that sets limits removes nothing")
    if is_set or arguments.off:
        await log.set_retention(**limits_of(arguments))
    policy = await log.retention()
    decision = await log.retention_decision()
    facts = _limits(policy) | {"held_by": list(decision.held_by)}
    lines = [_policy_text(arguments.log, policy)]
    removals = [] if decision.removal is None else [decision.removal]
    if arguments.apply and not arguments.dry_run:
        removals = await log.apply_retention()
    name = "removed" if arguments.apply and not arguments.dry_run else "would_remove"
    facts[name] = [_facts(removal) for removal in removals]
    lines += [f"{name.replace('_', ' ')} {_removal_text(removal)}" for removal in removals]
    if arguments.apply and not removals:
        lines.append("nothing to remove")
    if decision.held_by:
        lines.append(f"cursors that keep more: {', '.join(decision.held_by)}")
    remarks = []
    if policy.has_limit and not arguments.apply and not await _is_applied(session):
        remarks.append(
            "no process of auto-recovery runs, and no bookie with log_housekeeping: until one does, only --apply "
            "removes entries"
        )
    return Report(facts, lines, remarks=remarks)


async def _is_applied(session: Session) -> bool:
    """Report whether a process applies the limits of logs periodically."""
    from bookies.replication.operator.status import HOUSEKEEPING

    if await session.driver.recovery.auditor() is not None:
        return True
    return await session.client.election(HOUSEKEEPING).leader() is not None


def _size(option: str, text: str) -> int:
    size = parse_size(text)
    if size is None:
        raise UsageError(f"{option} {text}: must be a number of bytes such as 500m or 100GiB")
    return size


def _limits(policy: Retention) -> dict[str, object]:
    return {
        "age_s": None if policy.age_ms is None else policy.age_ms / 1000,
        "size": policy.size,
        "rows": policy.rows,
        "cursor_age_s": None if policy.cursor_age_ms is None else policy.cursor_age_ms / 1000,
    }


def _policy_text(name: str, policy: Retention) -> str:
    limits = []
    if policy.age_ms is not None:
        limits.append(f"the entries of the last {duration_text(policy.age_ms / 1000)}")
    if policy.size is not None:
        limits.append(f"the newest {size_text(policy.size)}")
    if policy.rows is not None:
        limits.append(f"the newest {policy.rows:,} entries")
    text = f"log {name} keeps {'at least ' if limits else 'all entries'}{' or '.join(limits)}"
    if len(limits) > 1:
        text += ", whichever is less"
    if policy.cursor_age_ms is not None:
        text += f"; cursors hold entries for {duration_text(policy.cursor_age_ms / 1000)}"
    return text


def _removal_text(removal: LogRemoval) -> str:
    names = "no ledger yet"
    if removal.ledgers:
        first, last = removal.ledgers[0], removal.ledgers[-1]
        names = f"ledger {first}" if first == last else f"ledgers {first} to {last}"
    text = f"{names}: {removal.rows:,} entries, {size_text(removal.size)} (limit: {', '.join(removal.reasons)})"
    return f"{text}; passed cursors {', '.join(removal.passed)}" if removal.passed else text


def _facts(removal: LogRemoval) -> dict[str, object]:
    return {
        "at_ms": removal.at_ms,
        "before": str(removal.before),
        "reasons": list(removal.reasons),
        "ledgers": list(removal.ledgers),
        "entries": removal.rows,
        "bytes": removal.size,
        "passed_cursors": list(removal.passed),
    }


async def _history(client: Client, arguments: argparse.Namespace) -> Report:
    removals = await client.log(arguments.log).history()
    return Report([_facts(removal) for removal in removals], [_table(removals)])


def _table(removals: Sequence[LogRemoval]) -> Table:
    rows = [
        (
            time_text(removal.at_ms),
            removal.before,
            f"{len(removal.ledgers)}: {removal.ledgers[0]} to {removal.ledgers[-1]}" if removal.ledgers else 0,
            f"{removal.rows:,}",
            size_text(removal.size),
            ", ".join(removal.reasons),
            ", ".join(removal.passed) or "-",
        )
        for removal in removals
    ]
    return Table(("time", "begins at", "ledgers", "entries", "payload", "limit", "passed cursors"), rows, (3, 4))


async def _compact(client: Client, arguments: argparse.Namespace) -> Report:
    log = client.log(arguments.log, password=arguments.password.encode())
    age_s = seconds_of("--tombstone-age", arguments.tombstone_age)
    result = await log.compact(tombstone_age=age_s, dry_run=arguments.dry_run)
    action = "would remove" if arguments.dry_run else "removed"
    text = (
        f"{action} {result.removed:,} of {result.entries:,} entries of log {arguments.log}, "
        f"{size_text(result.bytes_removed)} of {size_text(result.bytes)}; ledgers replaced: {len(result.ledgers)}"
    )
    return Report({"log": arguments.log, "dry_run": arguments.dry_run, **to_builtins(result)}, [text])


async def _roll_up(client: Client, arguments: argparse.Namespace) -> Report:
    check_rate(arguments)
    log = client.log(arguments.log, password=arguments.password.encode())
    progress = Progress("bytes", None, quiet=arguments.json)
    try:
        result = await log.roll_up(
            below=_size("--below", arguments.below),
            rate=arguments.rate,
            dry_run=arguments.dry_run,
            progress=lambda done, total: progress.update(done, f"of {size_text(total)}"),
        )
    finally:
        progress.clear()
    name = arguments.log
    action = "would merge" if arguments.dry_run else "merged"
    lines = [
        f"{action} {result.merged:,} of {result.ledgers:,} ledgers of log {name} into {result.runs:,}, "
        f"{size_text(result.bytes)}; ledgers afterwards: {result.left:,}"
    ]
    if not result.runs:
        lines = [f"log {name} has no neighbouring closed ledgers below {arguments.below} to merge"]
    if result.offloaded:
        remedy = "`bk spark restore` brings them back to bookies"
        lines.append(
            f"{result.offloaded:,} small ledgers stay, because each is offloaded to files of its own: {remedy}"
        )
    facts = {"log": name, "dry_run": arguments.dry_run, **to_builtins(result), "left": result.left}
    return Report(facts, lines)


def limits_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the limits that options name."""
    return {
        "age": None if arguments.age is None else seconds_of("--age", arguments.age),
        "size": None if arguments.size is None else _size("--size", arguments.size),
        "rows": arguments.rows,
        "cursor_age": None if arguments.cursor_age is None else seconds_of("--cursor-age", arguments.cursor_age),
    }


_LOG = Option("log LOG", "name of the log")
PASSWORD = Option("--password", "password of the log's ledgers (default: empty)", default="")
LIMITS = (
    Option("--age DURATION", "keep entries for this time, such as 7d"),
    Option("--size BYTES", "keep this number of payload bytes, such as 100GiB"),
    Option("--rows COUNT", "keep this number of entries", int),
    Option("--cursor-age DURATION", "pass a cursor that has not moved for this time (default: pass none)"),
)
VERBS = (
    verb(
        "log retention",
        "show, set or apply the limits of a log; auto-recovery removes older ledgers",
        "bk log retention orders --age 7d --size 100GiB",
        on_session(_retention),
        _LOG,
        *LIMITS,
        OneOf(
            Option("--off", "remove all limits", bool),
            Option("--apply", "remove now what the limits allow", bool),
        ),
        Option("--dry-run", "with --apply: report what would be removed", bool),
        description="Limits replace those of an earlier command. Whole ledgers are removed, the oldest first, as soon "
        "as one limit allows it; the last two ledgers always stay, and so does what a cursor has not read.",
    ),
    verb(
        "log compact",
        "keep only the last record of each key, in a log that was created with --compaction key",
        "bk log compact accounts --dry-run",
        on_client(_compact),
        _LOG,
        PASSWORD,
        Option(
            "--tombstone-age DURATION",
            "time for which the last record of a key stays if it has no value (default 1d)",
            default="1d",
        ),
        Option("--dry-run", "report what would be removed", bool),
        description="Closed ledgers are written again without superseded records. Positions do not change, and readers "
        "and leaders go on.",
    ),
    verb(
        "log roll-up",
        "merge the small ledgers of a log into large ones; entries and positions do not change",
        "bk log roll-up orders --dry-run",
        on_client(_roll_up),
        _LOG,
        Option(
            "--below BYTES", "merge ledgers with less payload, into ones with at least that (64MiB)", default="64MiB"
        ),
        PASSWORD,
        Option(
            "--rate BYTES", "bytes to read per second; each is read to copy and to check it (default: no limit)", float
        ),
        Option("--dry-run", "report what would be merged", bool),
        description="Closed ledgers that follow each other are copied into one, which is read back and then takes "
        "their place. Readers and leaders go on. Repeat the command after an interruption.",
    ),
    verb(
        "log history",
        "list the removals of a log's retention",
        "bk log history orders",
        on_client(_history),
        _LOG,
    ),
)
