"""`bk recovery`: auto-recovery of a cluster: run a process, show its state, repair by hand, enable, disable, audit."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins

from bookies.admin.shared import UsageError
from bookies.admin.shared.command_line import LOST, RATE, Option, verb
from bookies.admin.shared.common import (
    metadata_uri,
    on_driver,
    on_session,
    run_async,
    size_text,
    web_site,
    with_session,
)
from bookies.admin.shared.report import Report, Table

if TYPE_CHECKING:
    from bookies.admin.shared import Session
    from bookies.metadata.interface import MetadataDriver
    from bookies.replication.operator.status import RecoveryStatus

GONE = "gone: its session has ended"


def _run(arguments: argparse.Namespace) -> int:
    from bookies.bookie.main import configure_logging
    from bookies.config import ClientConfig, RecoveryConfig, SiteConfig
    from bookies.configuration import configured
    from bookies.metadata.uri import connect
    from bookies.model import BookieId
    from bookies.replication.daemon.process import Participant, RecoveryProcess
    from bookies.runtime import aio
    from bookies.runtime.service_manager import service_manager

    uri, host = metadata_uri(arguments), socket.gethostname()
    config, client_config = configured(RecoveryConfig), configured(ClientConfig)
    http_config = configured(
        SiteConfig, **({"http_port": arguments.http_port} if arguments.http_port is not None else {})
    )
    site = web_site() if http_config.http_port >= 0 else None
    configure_logging()

    async def main() -> int:
        runtime = aio.runtime()
        name = BookieId(f"{host}-{os.getpid()}")

        def open_driver() -> MetadataDriver:
            return connect(uri, runtime, may_create=False)

        process = RecoveryProcess(Participant(runtime, open_driver, config, client_config, name, host))
        manager = service_manager(os.environ)
        if site is None:
            async with manager.alive():
                with manager.serving(f"auto-recovery {name}"):
                    await process.run()
            return 0
        from bookies.admin.remote import remote_api

        surroundings = site.around_recovery(
            process, http_config, runtime, open_driver, client_config, remote_api.routes
        )
        async with manager.alive(), surroundings as (at, port):
            print(f"HTTP server on {at}:{port}", flush=True)
            with manager.serving(f"auto-recovery {name}, HTTP server on {at}:{port}"):
                await process.run()
        return 0

    try:
        return run_async(main)
    except KeyboardInterrupt:
        return 0  # A signal is the regular end.


# -- reading -------------------------------------------------------------------------------------------------------


async def _why(session: Session, arguments: argparse.Namespace) -> Report:
    from bookies.admin.verbs import explain

    return await explain.why(session, arguments.ledger)


def _repair(arguments: argparse.Namespace) -> Report | int:
    from bookies.admin.verbs import recovery_work

    if not 0 <= arguments.percentage <= 100:
        raise UsageError(f"--percentage {arguments.percentage}: must be 0 to 100")
    return with_session(arguments, lambda session: recovery_work.repair(session, arguments))


async def _status(driver: MetadataDriver, arguments: argparse.Namespace) -> Report | int:
    from bookies.replication.operator.status import read_status
    from bookies.runtime import aio

    if arguments.watch is not None:
        from bookies.admin.verbs.recovery_work import watch

        if arguments.watch <= 0:
            raise UsageError(f"--watch {arguments.watch:g}: must be a number of seconds above 0")
        return await watch(driver, arguments)
    now_ms = aio.runtime().clock.wall_ms()
    status = await read_status(driver, now_ms)
    return Report(to_builtins(status), status_text(status, now_ms))


def status_text(status: RecoveryStatus, now_ms: int) -> Iterator[str | Table]:
    """Yield the lines of a status and the table of processes."""
    yield f"repairs        {'on' if status.is_enabled else 'disabled; enable them with bk recovery enable'}"
    yield f"auditor        {status.auditor or 'none: no process of auto-recovery runs'}"
    delay = status.lost_bookie_delay_s
    text = "not set: the first auditor sets it" if delay is None else f"{delay} s not registered"
    yield f"lost after     {text}"
    if status.housekeeper is not None:
        yield f"limits of logs {status.housekeeper} applies them while no auditor does"
    yield f"marked         {status.marked:,} ledgers, {len(status.locks):,} of them being repaired"
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
        yield ""
        headers = ("process", "heard of", "worker", "repaired", "entries", "copied", "not repaired", "failures")
        yield Table(headers, rows, (1, 3, 4, 5, 6, 7))


async def _list(driver: MetadataDriver, arguments: argparse.Namespace) -> Report:
    from bookies.replication.operator.status import latest_reports, read_processes

    locks = await driver.recovery.locks()
    reports = latest_reports(await read_processes(driver))
    rows: list[dict[str, Any]] = []
    if arguments.limit is not None and arguments.limit < 1:
        raise UsageError(f"--limit {arguments.limit}: must be at least 1")
    async for marks in driver.recovery.marks():
        if arguments.limit is not None and len(rows) >= arguments.limit:
            break
        for mark in marks:
            if not _is_listed(mark.replicas, arguments):
                continue
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
    rows = rows[: arguments.limit]
    cells = [
        (row["ledger"], ", ".join(row["missing"]) or "-", row["locked_by"] or "-", _reason(row["report"]))
        for row in rows
    ]
    return Report(rows, [Table(("ledger", "bookies", "being repaired by", "why not yet"), cells, (0,))])


def _is_listed(missing: Sequence[str], arguments: argparse.Namespace) -> bool:
    wanted, others = arguments.missing, arguments.not_missing
    return (not wanted or any(bookie in missing for bookie in wanted)) and not any(
        bookie in missing for bookie in others
    )


def _reason(report: Mapping[str, Any] | None) -> str:
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


async def _enable(driver: MetadataDriver, arguments: argparse.Namespace) -> Report:
    changed = await driver.recovery.enable()
    text = "auto-recovery is enabled" if changed else "auto-recovery was enabled already"
    return Report({"changed": changed}, [text])


async def _disable(driver: MetadataDriver, arguments: argparse.Namespace) -> Report:
    changed = await driver.recovery.disable()
    text = "auto-recovery is disabled until `bk recovery enable`" if changed else "auto-recovery was disabled already"
    return Report({"changed": changed}, [text])


async def audit(driver: MetadataDriver, arguments: argparse.Namespace) -> Report:
    """Request an audit. Raises `InvalidArgument` if no auditor would do it."""
    from bookies.replication.operator.audit_request import request_audit

    auditor = await request_audit(driver, with_checks=arguments.checks)
    return Report({"changed": True}, [f"audit requested from auditor {auditor}"])


async def _delay(driver: MetadataDriver, arguments: argparse.Namespace) -> Report:
    store = driver.recovery
    before = await store.lost_bookie_delay_s()
    if arguments.seconds is not None and arguments.seconds != before:  # writing the same value would request an audit
        await store.set_lost_bookie_delay_s(arguments.seconds)
    delay_s = before if arguments.seconds is None else arguments.seconds
    text = "not set: the first auditor sets it" if delay_s is None else f"{delay_s} s"
    return Report({"seconds": delay_s}, [text])


VERBS = (
    verb(
        "recovery run",
        "run an auditor and a worker in the foreground until SIGTERM",
        "bk recovery run --metadata zk://zk1:2181/ledgers",
        _run,
        Option(
            "--http-port", "port of the HTTP server with probes and metrics (default: no server; 0: any free one)", int
        ),
        description="Bookies with auto_recovery=true run auto-recovery themselves; this is for machines without such "
        "a bookie. Settings: [recovery] of --config, or BK_... variables, see docs/reference/settings.md.",
    ),
    verb(
        "recovery status",
        "show the auditor, the processes of auto-recovery and their work",
        "bk recovery status --json",
        on_driver(_status),
        Option(
            "--watch SECONDS",
            "print a line every SECONDS (default 5) with entries, bytes and the time left, until no ledger is marked",
            float,
            values="?",
            bare=5.0,
        ),
    ),
    verb(
        "recovery list",
        "list marked ledgers, the workers that repair them, and the reasons of failed repairs",
        "bk recovery list",
        on_driver(_list),
        Option("--missing ID", "list only ledgers that lack this bookie's replicas; may be repeated", may_repeat=True),
        Option(
            "--not-missing ID", "leave out ledgers that lack this bookie's replicas; may be repeated", may_repeat=True
        ),
        Option("--limit COUNT", "list at most this number of ledgers", int),
    ),
    verb(
        "recovery repair",
        "repair ledgers now, also while auto-recovery is disabled",
        "bk recovery repair 17 18 --lost b3",
        _repair,
        Option("ledgers LEDGER", "ledger ids (default: all marked ones)", int, values="*"),
        LOST,
        Option("--seal-open", "seal open ledgers with a lost bookie; their writers fail", bool),
        Option("--percentage P", "percentage of the entries to read for the check (default 0)", int, default=0),
        RATE,
        Option("--dry-run", "report what would be repaired", bool),
        description="Checks and copies like a worker, under the ledger's lock, and removes the mark. Prints what a "
        "ledger waits for, and the entries it has lost.",
    ),
    verb(
        "recovery why",
        "explain why a ledger lacks replicas: what it waits for, the evidence, the next attempt",
        "bk recovery why 17",
        on_session(_why),
        Option("ledger LEDGER", "ledger id", int),
    ),
    verb("recovery enable", "enable auto-recovery in the whole cluster", "bk recovery enable", on_driver(_enable)),
    verb(
        "recovery disable",
        "disable auto-recovery in the whole cluster; repairs in progress are finished",
        "bk recovery disable",
        on_driver(_disable),
    ),
    verb(
        "recovery audit",
        "request an audit now, which treats unregistered bookies as lost without delay",
        "bk recovery audit",
        on_driver(audit),
        Option("--checks", "also run the periodic checks of replicas", bool),
    ),
    verb(
        "recovery delay",
        "print or set the time before an unregistered bookie counts as lost",
        "bk recovery delay 600",
        on_driver(_delay),
        Option("seconds SECONDS", "new delay in seconds (default: print the delay)", int, values="?"),
    ),
)
