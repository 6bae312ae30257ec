"""`bk metadata orphans`: records of ledgers of which no bookie has any entry, deleted by mark and wait."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bookies.admin.metadata.metadata_check import CheckResult, lists_of_logs
from bookies.admin.shared import Progress, Session, UsageError
from bookies.admin.shared.common import time_text
from bookies.admin.shared.operators import operator_name
from bookies.admin.shared.report import Report, Table
from bookies.admin.shared.times import seconds_of

if TYPE_CHECKING:
    from bookies.replication.operator.orphans import OrphanMark, Orphans, OrphanSearch

SHOWN = 20  # ledgers that are named


async def orphans(session: Session, arguments: argparse.Namespace) -> Report:
    """Report the orphaned records; mark or delete them if that is asked for. Raises `UsageError`, `MetadataError`."""
    from bookies.metadata.shared.change_log import check_reason
    from bookies.protocol.pacing import RateLimit
    from bookies.replication.base.operator_parts import Operator
    from bookies.replication.operator.orphans import OrphanSearch

    wait_ms = int(seconds_of("--wait", arguments.wait) * 1000)
    if arguments.rate is not None and arguments.rate <= 0:
        raise UsageError(f"--rate {arguments.rate:g}: must be above 0 records per second")
    if arguments.delete and not arguments.dry_run:
        check_reason(arguments.reason)
    operator = Operator(session.runtime, session.client, session.driver, operator_name())
    search, progress = (
        OrphanSearch(operator, RateLimit(arguments.rate)),
        Progress("records", None, quiet=arguments.json),
    )
    result = await search.find(lambda news: progress.update(news.coverage.ledgers, f"{len(news.records):,} orphans"))
    progress.clear()
    kept = await _kept(session, result)
    if arguments.mark and not arguments.dry_run:
        marks = await search.mark(result)
    else:
        marks = await search.marks()
    due = [ledger_id for ledger_id in search.due(result, marks, wait_ms) if ledger_id not in kept]
    deleted = []
    if arguments.delete and not arguments.dry_run:
        deleted = await _delete(session, search, result, due, arguments.reason)
    rows = [_row(ledger_id, result, marks, kept, due, deleted) for ledger_id in sorted(result.records)]
    facts = {
        "records": result.coverage.ledgers,
        "orphans": rows,
        "unknown": [{"ledger": ledger_id, "why": why} for ledger_id, why in sorted(result.unknown.items())],
        "deleted": deleted,
    }
    status = int(bool(result.unknown) or len(deleted) < len(result.records))
    return Report(facts, _lines(result, rows, arguments), status)


async def _kept(session: Session, result: Orphans) -> dict[int, str]:
    """Return why logs keep ledgers. A log that cannot be read may list any of the orphans."""
    check = CheckResult()
    lists = await lists_of_logs(session.driver, check)
    kept = {ledger_id: f"log {log} lists it" for log, ledger_ids in lists.items() for ledger_id in ledger_ids}
    for finding in check.findings[:1]:
        text = f"log {finding.subject} cannot be read and may list it; see bk metadata check"
        kept = dict.fromkeys(result.records, text) | kept
    return kept


async def _delete(session: Session, search: OrphanSearch, result: Orphans, due: list[int], reason: str) -> list[int]:
    from bookies.metadata.shared.change_log import note_change

    deleted = []
    for ledger_id in due:
        record = repr(result.records[ledger_id].metadata)
        difference = {"field": "record", "before": record, "after": "-"}
        now_ms = session.runtime.clock.wall_ms()
        await note_change(session.driver, now_ms, operator_name(), reason, f"ledger {ledger_id}", [difference])
        if await search.delete(result, ledger_id):
            deleted.append(ledger_id)
    return deleted


def _row(
    ledger_id: int,
    result: Orphans,
    marks: dict[int, OrphanMark],
    kept: dict[int, str],
    due: list[int],
    deleted: list[int],
) -> dict[str, Any]:
    record, mark = result.records[ledger_id].metadata, marks.get(ledger_id)
    if ledger_id in deleted:
        state = "deleted"
    elif ledger_id in kept:
        state = f"kept: {kept[ledger_id]}"
    elif mark is None or mark.version != result.records[ledger_id].version:
        state = "not marked"
    else:
        state = "due" if ledger_id in due else "marked"
    return {
        "ledger": ledger_id,
        "entries": record.last_entry_id + 1,
        "bookies": record.bookies,
        "marked_ms": None if mark is None else mark.since_ms,
        "state": state,
    }


def _lines(result: Orphans, rows: list[dict[str, Any]], arguments: argparse.Namespace) -> Iterator[str | Table]:
    yield f"{result.coverage.ledgers:,} records read, {len(rows):,} of ledgers of which no bookie has an entry"
    if rows:
        cells = [
            (
                row["ledger"],
                f"{row['entries']:,}",
                ", ".join(row["bookies"]),
                "-" if row["marked_ms"] is None else time_text(row["marked_ms"]),
                row["state"],
            )
            for row in rows
        ]
        yield Table(("ledger", "entries", "bookies", "marked", "state"), cells, (0, 1))
    for ledger_id, why in sorted(result.unknown.items())[:SHOWN]:
        yield f"ledger {ledger_id} is unknown: {why}"
    if len(result.unknown) > SHOWN:
        yield f"and {len(result.unknown) - SHOWN:,} more are unknown"
    if result.unknown:
        yield "start their bookies; or bk bookie recover copies what is left, and bk cookie delete forgets the bookie"
    if not (arguments.mark or arguments.delete) or arguments.dry_run:
        yield "nothing was changed"
