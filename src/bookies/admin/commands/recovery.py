"""`bk recovery`: auto-recovery of a cluster: take part, look at it, repair by hand, switch it off and on, audit."""

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
    run_async,
    say,
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
        help="take part, as an auditor and a worker, in the foreground until SIGTERM",
        description="Bookies that run with auto_recovery=true take part themselves; this is for machines without one. "
        "Settings: BK_... variables, as docs/reference/settings.md lists them.",
        epilog="example:  bk recovery run --metadata zk://zk1:2181/ledgers",
    )
    add_common(run_parser)
    status = verbs.add_parser(
        "status", help="who takes part and what each does", epilog="example:  bk recovery status --json"
    )
    add_common(status)
    status.add_argument(
        "--watch",
        metavar="SECONDS",
        type=float,
        nargs="?",
        const=5.0,
        help="a line every so many seconds (5) with entries, bytes and the time left, until nothing is marked",
    )
    listing = verbs.add_parser(
        "list",
        help="ledgers that lack replicas, who works on them, and why they could not be repaired",
        epilog="example:  bk recovery list",
    )
    add_common(listing)
    repair = verbs.add_parser(
        "repair",
        help="repair ledgers now, by hand, also while repairs are switched off",
        description="Checks, copies, and takes the mark away, as a worker does, under the ledger's lock. What a ledger "
        "waits for, or has lost, is printed.",
        epilog="example:  bk recovery repair 17 18 --lost b3",
    )
    add_common(repair)
    repair.add_argument("ledgers", metavar="LEDGER", type=int, nargs="*", help="(default: all that are marked)")
    repair.add_argument(
        "--lost", metavar="ID", action="append", default=[], help="take this bookie for lost, without waiting"
    )
    repair.add_argument(
        "--seal-open", action="store_true", help="seal open ledgers that a lost bookie is in, which ends their writers"
    )
    repair.add_argument("--percentage", metavar="P", type=int, default=0, help="of the entries to read for the check")
    add_rate(repair)
    repair.add_argument("--dry-run", action="store_true", help="only say what would be done")
    why = verbs.add_parser(
        "why",
        help="why a ledger lacks replicas: what it waits for, the evidence, the next try",
        epilog="example:  bk recovery why 17",
    )
    add_common(why)
    why.add_argument("ledger", metavar="LEDGER", type=int)
    for verb, text in (
        ("enable", "let ledgers be repaired again"),
        ("disable", "let no ledger be repaired by itself, in the whole cluster; what is under way is finished"),
        ("audit", "have the auditor look at once, and take bookies that are away for lost without waiting"),
    ):
        parser_of_verb = verbs.add_parser(verb, help=text, epilog=f"example:  bk recovery {verb}")
        add_common(parser_of_verb)
        if verb == "audit":
            parser_of_verb.add_argument(
                "--checks", action="store_true", help="also the checks of replicas that are made at intervals"
            )
    delay = verbs.add_parser(
        "delay",
        help="how long a bookie may be away before it counts as lost",
        epilog="example:  bk recovery delay 600",
    )
    add_common(delay)
    delay.add_argument("seconds", metavar="SECONDS", type=int, nargs="?", help="set it (default: only print it)")


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
        raise UsageError(f"--percentage {arguments.percentage}: a percentage, 0 to 100")
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
        who = Participant(runtime, lambda: connect(uri, runtime, may_create=False), config, client_config, name, host)
        await RecoveryProcess(who).run()
        return 0

    try:
        return run_async(main)
    except KeyboardInterrupt:
        return 0  # That is how it ends.


# -- looking -------------------------------------------------------------------------------------------------------


async def _status(driver: MetadataDriver, arguments: argparse.Namespace) -> int:
    from bookies.replication.operator.status import read_status
    from bookies.runtime import aio

    if arguments.watch is not None:
        from bookies.admin.verbs.recovery_work import watch

        if arguments.watch <= 0:
            raise UsageError(f"--watch {arguments.watch:g}: a number of seconds above 0")
        return await watch(driver, arguments)
    found = await read_status(driver, aio.runtime().clock.wall_ms())
    if arguments.json:
        print_json(asdict(found))
        return 0
    _print_status(found, aio.runtime().clock.wall_ms())
    return 0


def _print_status(found: RecoveryStatus, now_ms: int) -> None:
    print(f"repairs        {'on' if found.is_enabled else 'switched off: bk recovery enable'}")
    print(f"auditor        {found.auditor or 'none: nobody takes part'}")
    delay = found.lost_bookie_delay_s
    said = "as long as the first auditor says" if delay is None else f"{delay} s not registered"
    print(f"lost after     {said}")
    print(f"marked         {found.marked:,} ledgers, {len(found.locks):,} of them being repaired")
    rows = []
    for process in found.processes:
        worker = process.worker
        doing = next((task["doing"] for task in process.tasks if task["task"] == "worker"), "-")
        rows.append(
            (
                process.name,
                f"{max(0, now_ms - process.written_ms) / 1000:,.0f} s ago",
                GONE if process.name in found.gone else doing,
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
    """The first reason of a report, in a line."""
    from bookies.replication.operator.status import lost_entries

    if report is None:
        return "its turn has not come"
    for loss in report["losses"]:
        return f"{lost_entries(loss)} are on no bookie that is there"
    for wait in report["waits"]:
        bookie = f" ({wait['bookie']})" if wait["bookie"] else ""
        return f"waits for {wait['for']}{bookie}: {wait['why']}"
    return "it is looked at again"


# -- doing ---------------------------------------------------------------------------------------------------------


async def _enable(driver: MetadataDriver, arguments: argparse.Namespace) -> int:
    changed = await driver.recovery.enable()
    return say(arguments, {"changed": changed}, "repairs are on" if changed else "repairs were on already")


async def _disable(driver: MetadataDriver, arguments: argparse.Namespace) -> int:
    changed = await driver.recovery.disable()
    return say(
        arguments,
        {"changed": changed},
        "no ledger is repaired until `bk recovery enable`" if changed else "it was off already",
    )


async def _audit(driver: MetadataDriver, arguments: argparse.Namespace) -> int:
    store = driver.recovery
    if not await store.is_enabled():
        raise UsageError("repairs are switched off, and so is the auditor: bk recovery enable")
    auditor = await store.auditor()
    if auditor is None:
        raise UsageError("there is no auditor: start bookies with auto_recovery=true, or bk recovery run")
    if arguments.checks:
        from bookies.metadata.interface.recovery_store import AuditKind

        for kind in AuditKind:
            await store.set_checked_at_ms(kind, 0)
    await store.set_lost_bookie_delay_s(await store.lost_bookie_delay_s() or 0)
    return say(arguments, {"changed": True}, f"auditor {auditor} was asked to look")


async def _delay(driver: MetadataDriver, arguments: argparse.Namespace) -> int:
    store = driver.recovery
    before = await store.lost_bookie_delay_s()
    if arguments.seconds is not None and arguments.seconds != before:  # the same again would ask for an audit
        await store.set_lost_bookie_delay_s(arguments.seconds)
    delay_s = before if arguments.seconds is None else arguments.seconds
    text = "nobody has said: the first auditor will" if delay_s is None else f"{delay_s} s"
    return say(arguments, {"seconds": delay_s}, text)
