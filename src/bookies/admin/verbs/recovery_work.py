"""`bk recovery repair`, which repairs ledgers now, and `bk recovery status --watch`, which follows the work."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from bookies.admin.shared import Progress, Session
from bookies.admin.shared.command_line import check_rate
from bookies.admin.shared.common import print_json, size_text
from bookies.admin.shared.report import Report

if TYPE_CHECKING:
    from bookies.metadata.interface import MetadataDriver
    from bookies.replication.operator import ManualRepair
    from bookies.replication.operator.status import RecoveryStatus

FAILED = "failed"  # state of a ledger that does not exist, or whose record cannot be read
LOCKED = "locked"  # state of a ledger whose lock another process has held for a minute

# -- repair ------------------------------------------------------------------------------------------------------------


async def repair(session: Session, arguments: argparse.Namespace) -> Report | int:
    """Repair these ledgers, or all marked ones, one after the other. Return 1 if one is not repaired."""
    from bookies.admin.shared.operators import check_known, store_line
    from bookies.admin.verbs.explain import by_hand

    check_rate(arguments)
    for name in dict.fromkeys(arguments.lost):
        await check_known(session, name)
    ids = list(dict.fromkeys(arguments.ledgers)) or await _marked(session.driver)
    if not ids:
        return Report({"ledgers": []}, ["no ledger is marked as lacking replicas"])
    progress = Progress("ledgers", len(ids), quiet=arguments.json)
    async with by_hand(session, lambda error: progress.note(store_line(error))) as hand:
        if arguments.dry_run:
            return await _show(hand, ids, arguments)
        return await _repair_all(session.driver, hand, ids, arguments, progress)


async def _marked(driver: MetadataDriver) -> list[int]:
    return [ledger_id async for ids in driver.recovery.marked_ids() for ledger_id in ids]


async def _show(hand: ManualRepair, ids: Sequence[int], arguments: argparse.Namespace) -> int:
    """Print what each ledger lacks, after one check. Return 1 if a ledger's record cannot be read."""
    from bookies.admin.verbs.explain import problem_lines, recovery_facts
    from bookies.errors import LedgerNotFound, MetadataCorrupt
    from bookies.model import BookieId

    lost = [BookieId(name) for name in arguments.lost]
    rows: list[dict[str, Any]] = []
    for ledger_id in ids:
        try:
            standing = await hand.diagnose(ledger_id, lost=lost, percentage=arguments.percentage)
        except (LedgerNotFound, MetadataCorrupt) as error:
            rows.append(_failed(ledger_id, error))
            if not arguments.json:
                _print_problems(rows[-1])
            continue
        facts = recovery_facts(standing)
        fragments = len(standing.assessment.jobs)
        rows.append({"ledger": ledger_id, "fragments_to_repair": fragments, **facts})
        if not arguments.json:
            sealing = ", after sealing it" if standing.assessment.wants_sealing else ""
            print(f"ledger {ledger_id}: {facts['state']}, {fragments:,} fragments would be repaired{sealing}")
            for line in problem_lines(facts["waits"], facts["losses"]):
                print(f"  {line}")
    failed = [row["ledger"] for row in rows if row["state"] == FAILED]
    if arguments.json:
        print_json({"dry_run": True, "ledgers": rows})
    else:
        print(f"nothing was changed{_and_failed(failed)}")
    return int(bool(failed))


async def _repair_all(
    driver: MetadataDriver, hand: ManualRepair, ids: Sequence[int], arguments: argparse.Namespace, progress: Progress
) -> int:
    from bookies.admin.shared.operators import operator_name
    from bookies.admin.verbs.explain import SWITCHED_OFF
    from bookies.admin.verbs.replication import one_by_one
    from bookies.client.repair.replication import Totals
    from bookies.errors import LedgerLocked, LedgerNotFound, MetadataCorrupt, MetadataError
    from bookies.model import BookieId
    from bookies.protocol.pacing import RateLimit
    from bookies.protocol.repair.repair_work import RepairState
    from bookies.replication.operator.status import problem_facts

    pace, rows = RateLimit(arguments.rate), list[dict[str, Any]]()

    async def repair(ledger_id: int) -> None:
        try:
            outcome, totals = await hand.repair(
                ledger_id,
                operator_name(),
                lost=[BookieId(name) for name in arguments.lost],
                seals=arguments.seal_open,
                pace=pace,
                percentage=arguments.percentage,
            )
        except (LedgerNotFound, MetadataCorrupt) as error:
            if isinstance(error, LedgerNotFound) and ledger_id not in arguments.ledgers:
                return  # Deleted since it was marked.
            add(_failed(ledger_id, error), Totals())
        else:
            add(
                {"ledger": ledger_id, "state": outcome.state.value} | problem_facts(outcome.waits, outcome.losses),
                totals,
            )

    def add(row: dict[str, Any], totals: Totals) -> None:
        rows.append(row | {"entries": totals.entries, "size": totals.size, "sealed": bool(totals.sealed)})
        if not arguments.json and row["state"] != RepairState.HEALTHY.value:
            progress.clear()
            _print_problems(row)

    def give_up(error: LedgerLocked) -> None:
        row: dict[str, Any] = {"ledger": error.ledger_id, "state": LOCKED, "by": error.owner, "waits": [], "losses": []}
        add(row, Totals())

    await one_by_one(ids, repair, give_up, progress)
    left = [row for row in rows if row["state"] != RepairState.HEALTHY.value]
    if arguments.json:
        print_json({"dry_run": False, "ledgers": rows})
    else:
        entries, size = sum(row["entries"] for row in rows), sum(row["size"] for row in rows)
        copied = f"{entries:,} entries, {size_text(size)} copied"
        failed = [row["ledger"] for row in rows if row["state"] == FAILED]
        print(f"{len(rows) - len(left):,} of {len(rows):,} ledgers are whole: {copied}{_and_failed(failed)}")
        with contextlib.suppress(MetadataError):  # The hint is optional: the repairs are done.
            if len(left) > len(failed) and not await driver.recovery.is_enabled():
                print(SWITCHED_OFF)
    return int(bool(left))


def _failed(ledger_id: int, error: Exception) -> dict[str, Any]:
    """Return the row of a ledger that could not be checked."""
    return {"ledger": ledger_id, "state": FAILED, "error": str(error), "waits": [], "losses": []}


def _and_failed(ids: Sequence[int]) -> str:
    return f"; {len(ids):,} failed: {', '.join(map(str, ids))}" if ids else ""


def _print_problems(row: dict[str, Any]) -> None:
    from bookies.admin.verbs.explain import problem_lines

    if row["state"] == LOCKED:
        print(f"ledger {row['ledger']}: {row['by'] or 'another process'} holds its lock; repeat the repair later")
        return
    if row["state"] == FAILED:
        print(row["error"])
        return
    print(f"ledger {row['ledger']}: {row['state']}")
    for line in problem_lines(row["waits"], row["losses"]):
        print(f"  {line}")


# -- watching ----------------------------------------------------------------------------------------------------------


class Sample(Struct, frozen=True):
    """Progress of all processes together at one time.

    `at_s`: seconds of the loop's clock; `marked`: ledgers that are marked. The other figures are totals since the
    processes began.
    """

    at_s: float
    marked: int
    repaired: int
    entries: int
    size: int


def sample_of(status: RecoveryStatus, now_s: float) -> Sample:
    """Return the sample of a status."""
    workers = [process.worker for process in status.processes]
    return Sample(
        now_s,
        status.marked,
        sum(worker["ledgers_repaired"] for worker in workers),
        sum(worker["entries_copied"] for worker in workers),
        sum(worker["bytes_copied"] for worker in workers),
    )


def remaining_s(first: Sample, last: Sample) -> float | None:
    """Extrapolate the seconds until no ledger is marked. None: no mark was removed between the samples."""
    elapsed_s, done = last.at_s - first.at_s, first.marked - last.marked
    if not last.marked:
        return 0.0
    return None if elapsed_s <= 0 or done <= 0 else last.marked * elapsed_s / done


async def watch(driver: MetadataDriver, arguments: argparse.Namespace) -> int:
    """Print a line per interval, until no ledger is marked."""
    from bookies.replication.operator.status import read_status
    from bookies.runtime import aio

    clock, loop = aio.runtime().clock, asyncio.get_running_loop()
    first: Sample | None = None
    while True:
        status = await read_status(driver, clock.wall_ms())
        now = sample_of(status, loop.time())
        if first is None or now.marked > first.marked:
            first = now
        _print_sample(status, now, remaining_s(first, now), arguments)
        if not now.marked:
            return 0
        await asyncio.sleep(arguments.watch)


def _print_sample(status: RecoveryStatus, now: Sample, left_s: float | None, arguments: argparse.Namespace) -> None:
    from bookies.replication.operator.status import latest_reports

    latest = latest_reports(status.processes)
    reports = [latest[ledger_id] for ledger_id in status.stuck]
    if arguments.json:
        facts = {"marked": now.marked, "being_repaired": len(status.locks), "repaired": now.repaired}
        print_json(facts | {"entries": now.entries, "size": now.size, "remaining_s": left_s, "stuck": len(reports)})
        return
    text = f"{now.marked:,} marked, {len(status.locks):,} being repaired; "
    text += f"{now.repaired:,} repaired, {now.entries:,} entries, {size_text(now.size)} copied"
    if now.marked:
        text += "" if left_s is None else f", about {left_s:,.0f} s left"
    for report in reports[:1]:
        causes = [f"waits for {wait['for']}" for wait in report["waits"]] or ["has lost entries"]
        text += f"; {len(reports):,} could not be repaired, {report['ledger_id']} {causes[0]}"
    print(text if status.is_enabled else f"{text}; auto-recovery is disabled: bk recovery enable", flush=True)
