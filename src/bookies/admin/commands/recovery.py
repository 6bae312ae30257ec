"""`bk recovery`: auto-recovery of a cluster: run a process, show its state, repair by hand, enable, disable, audit."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from bookies.admin.shared import UsageError
from bookies.admin.shared.common import (
    add_common,
    add_rate,
    metadata_uri,
    print_json,
    print_table,
    report_done,
    run_async,
    size_text,
    with_driver,
)

if TYPE_CHECKING:
    from bookies.metadata.interface import MetadataDriver
    from bookies.replication.operator.status import RecoveryStatus

GONE = "gone: its session has ended"


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    run_parser = verbs.add_parser(
        "run",
        help="run an auditor and a worker in the foreground until SIGTERM",
        description="Bookies with auto_recovery=true run auto-recovery themselves; this is for machines without such a "
        "bookie. Settings: BK_... variables, see docs/reference/settings.md.",
        epilog="example:  bk recovery run --metadata zk://zk1:2181/ledgers",
    )
    add_common(run_parser)
    status = verbs.add_parser(
        "status",
        help="show the auditor, the processes of auto-recovery and their work",
        epilog="example:  bk recovery status --json",
    )
    add_common(status)
    status.add_argument(
        "--watch",
        metavar="SECONDS",
        type=float,
        nargs="?",
        const=5.0,
        help="print a line every SECONDS (default 5) with entries, bytes and the time left, until no ledger is marked",
    )
    listing = verbs.add_parser(
        "list",
        help="list marked ledgers, the workers that repair them, and the reasons of failed repairs",
        epilog="example:  bk recovery list",
    )
    add_common(listing)
    _configure_repair(verbs)
    why = verbs.add_parser(
        "why",
        help="explain why a ledger lacks replicas: what it waits for, the evidence, the next attempt",
        epilog="example:  bk recovery why 17",
    )
    add_common(why)
    why.add_argument("ledger", metavar="LEDGER", type=int, help="ledger id")
    for verb, text in (
        ("enable", "enable auto-recovery in the whole cluster"),
        ("disable", "disable auto-recovery in the whole cluster; repairs in progress are finished"),
        ("audit", "request an audit now, which treats unregistered bookies as lost without delay"),
    ):
        parser_of_verb = verbs.add_parser(verb, help=text, epilog=f"example:  bk recovery {verb}")
        add_common(parser_of_verb)
        if verb == "audit":
            parser_of_verb.add_argument(
                "--checks", action="store_true", help="also run the periodic checks of replicas"
            )
    delay = verbs.add_parser(
        "delay",
        help="print or set the time before an unregistered bookie counts as lost",
        epilog="example:  bk recovery delay 600",
    )
    add_common(delay)
    delay.add_argument(
        "seconds", metavar="SECONDS", type=int, nargs="?", help="new delay in seconds (default: print the delay)"
    )


def _configure_repair(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    repair = verbs.add_parser(
        "repair",
        help="repair ledgers now, also while auto-recovery is disabled",
        description="Checks and copies like a worker, under the ledger's lock, and removes the mark. Prints what a "
        "ledger waits for, and the entries it has lost.",
        epilog="example:  bk recovery repair 17 18 --lost b3",
    )
    add_common(repair)
    repair.add_argument("ledgers", metavar="LEDGER", type=int, nargs="*", help="ledger ids (default: all marked ones)")
    repair.add_argument(
        "--lost",
        metavar="ID",
        action="append",
        default=[],
        help="bookie to treat as lost without delay; may be repeated",
    )
    repair.add_argument(
        "--seal-open", action="store_true", help="seal open ledgers with a lost bookie; their writers fail"
    )
    repair.add_argument(
        "--percentage",
        metavar="P",
        type=int,
        default=0,
        help="percentage of the entries to read for the check (default 0)",
    )
    add_rate(repair)
    repair.add_argument("--dry-run", action="store_true", help="report what would be repaired")


def run(arguments: argparse.Namespace) -> int:
    if arguments.verb == "run":
        return _run(arguments)
    if arguments.verb in ("repair", "why"):
        return _by_hand(arguments)
    bodies = {
        "status": _status,
        "list": _list,
        "enable": _enable,
        "disable": _disable,
        "audit": _audit,
        "delay": _delay,
    }

    async def main() -> int:
        body = bodies[arguments.verb]
        return await with_driver(metadata_uri(arguments), lambda driver: body(driver, arguments))

    return run_async(main)


def _by_hand(arguments: argparse.Namespace) -> int:
    from bookies.admin.shared.common import with_session
    from bookies.admin.verbs import explain, recovery_work

    if arguments.verb == "why":
        return with_session(arguments, lambda session: explain.why(session, arguments.ledger, arguments))
    if not 0 <= arguments.percentage <= 100:
        raise UsageError(f"--percentage {arguments.percentage}: must be 0 to 100")
    return with_session(arguments, lambda session: recovery_work.repair(session, arguments))


def _run(arguments: argparse.Namespace) -> int:
    from bookies.bookie.main import configure_logging
    from bookies.config import ClientConfig, RecoveryConfig, from_environment
    from bookies.metadata.uri import connect
    from bookies.model import BookieId
    from bookies.replication.daemon.process import Participant, RecoveryProcess
    from bookies.runtime import aio

    uri, host = metadata_uri(arguments), socket.gethostname()
    config, client_config = from_environment(RecoveryConfig), from_environment(ClientConfig)
    configure_logging()

    async def main() -> int:
        runtime = aio.runtime()
        name = BookieId(f"{host}-{os.getpid()}")
        participant = Participant(
            runtime, lambda: connect(uri, runtime, may_create=False), config, client_config, name, host
        )
        await RecoveryProcess(participant).run()
        return 0

    try:
        return run_async(main)
    except KeyboardInterrupt:
        return 0  # A signal is the regular end.


# -- reading -------------------------------------------------------------------------------------------------------


async def _status(driver: MetadataDriver, arguments: argparse.Namespace) -> int:
    from bookies.replication.operator.status import read_status
    from bookies.runtime import aio

    if arguments.watch is not None:
        from bookies.admin.verbs.recovery_work import watch

        if arguments.watch <= 0:
            raise UsageError(f"--watch {arguments.watch:g}: must be a number of seconds above 0")
        return await watch(driver, arguments)
    status = await read_status(driver, aio.runtime().clock.wall_ms())
    if arguments.json:
        print_json(asdict(status))
        return 0
    _print_status(status, aio.runtime().clock.wall_ms())
    return 0


def _print_status(status: RecoveryStatus, now_ms: int) -> None:
    print(f"repairs        {'on' if status.is_enabled else 'disabled; enable them with bk recovery enable'}")
    print(f"auditor        {status.auditor or 'none: no process of auto-recovery runs'}")
    delay = status.lost_bookie_delay_s
    text = "not set: the first auditor sets it" if delay is None else f"{delay} s not registered"
    print(f"lost after     {text}")
    print(f"marked         {status.marked:,} ledgers, {len(status.locks):,} of them being repaired")
    rows = []
    for process in status.processes:
        worker = process.worker
        doing = next((task["doing"] for task in process.tasks if task["task"] == "worker"), "-")
        rows.append(
            (
                process.name,
                f"{max(0, now_ms - process.written_ms) / 1000:,.0f} s ago",
                GONE if process.name in status.gone else doing,
                f"{worker['ledgers_repaired']:,}",
                f"{worker['entries_copied']:,}",
                size_text(worker["bytes_copied"]),
                f"{len(process.reports) + process.reports_omitted:,}",
                sum(task["failures"] for task in process.tasks),
            )
        )
    if rows:
        print()
        headers = ("process", "heard of", "worker", "repaired", "entries", "copied", "not repaired", "failures")
        print_table(rows, headers, right=(1, 3, 4, 5, 6, 7))


async def _list(driver: MetadataDriver, arguments: argparse.Namespace) -> int:
    from bookies.replication.operator.status import latest_reports, read_processes

    locks = await driver.recovery.locks()
    reports = latest_reports(await read_processes(driver))
    rows: list[dict[str, Any]] = []
    async for marks in driver.recovery.marks():
        for mark in marks:
            report = reports.get(mark.ledger_id)
            rows.append(
                {
                    "ledger": mark.ledger_id,
                    "missing": list(mark.replicas),
                    "since_ms": mark.ctime_ms,
                    "locked_by": locks.get(mark.ledger_id),
                    "report": report,
                }
            )
    if arguments.json:
        print_json(rows)
        return 0
    print_table(
        [
            (row["ledger"], ", ".join(row["missing"]) or "-", row["locked_by"] or "-", _why(row["report"]))
            for row in rows
        ],
        ("ledger", "bookies", "being repaired by", "why not yet"),
        right=(0,),
    )
    return 0


def _why(report: Mapping[str, Any] | None) -> str:
    """Return the first reason of a report as one line."""
    from bookies.replication.operator.status import lost_entries

    if report is None:
        return "no worker has tried it yet"
    for loss in report["losses"]:
        return f"{lost_entries(loss)} are on no available bookie"
    for wait in report["waits"]:
        bookie = f" ({wait['bookie']})" if wait["bookie"] else ""
        return f"waits for {wait['for']}{bookie}: {wait['why']}"
    return "a worker checks it again"


# -- changing ------------------------------------------------------------------------------------------------------


async def _enable(driver: MetadataDriver, arguments: argparse.Namespace) -> int:
    changed = await driver.recovery.enable()
    return report_done(
        arguments, {"changed": changed}, "auto-recovery is enabled" if changed else "auto-recovery was enabled already"
    )


async def _disable(driver: MetadataDriver, arguments: argparse.Namespace) -> int:
    changed = await driver.recovery.disable()
    return report_done(
        arguments,
        {"changed": changed},
        "auto-recovery is disabled until `bk recovery enable`" if changed else "auto-recovery was disabled already",
    )


async def _audit(driver: MetadataDriver, arguments: argparse.Namespace) -> int:
    store = driver.recovery
    if not await store.is_enabled():
        raise UsageError("auto-recovery is disabled, and with it the auditor: enable it with `bk recovery enable`")
    auditor = await store.auditor()
    if auditor is None:
        raise UsageError("there is no auditor: start bookies with auto_recovery=true, or `bk recovery run`")
    if arguments.checks:
        from bookies.metadata.interface.recovery_store import AuditKind

        for audit in AuditKind:
            await store.set_checked_at_ms(audit, 0)
    await store.set_lost_bookie_delay_s(await store.lost_bookie_delay_s() or 0)
    return report_done(arguments, {"changed": True}, f"audit requested from auditor {auditor}")


async def _delay(driver: MetadataDriver, arguments: argparse.Namespace) -> int:
    store = driver.recovery
    before = await store.lost_bookie_delay_s()
    if arguments.seconds is not None and arguments.seconds != before:  # writing the same value would request an audit
        await store.set_lost_bookie_delay_s(arguments.seconds)
    delay_s = before if arguments.seconds is None else arguments.seconds
    text = "not set: the first auditor sets it" if delay_s is None else f"{delay_s} s"
    return report_done(arguments, {"seconds": delay_s}, text)
