"""`bk up`, `bk down`, `bk status`, `bk cluster`: a local cluster, and the state of any cluster."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from bookies.admin.shared import UsageError
from bookies.admin.shared.command_line import MACHINE, Option, verb
from bookies.admin.shared.common import (
    DATA_DIRECTORY,
    find_data_directory,
    interruptible,
    on_driver,
    on_session,
    size_text,
    time_text,
    with_session,
)
from bookies.admin.shared.notes_text import announced_facts, announced_text, read_notes
from bookies.admin.shared.report import Report, Table

if TYPE_CHECKING:
    from bookies.admin.shared import Session
    from bookies.client.client import Client
    from bookies.metadata.interface import MetadataDriver


def _up(arguments: argparse.Namespace) -> Report:
    from bookies.admin.cluster import LocalCluster
    from bookies.admin.cluster.local_cluster import BOOKIES_MAX
    from bookies.errors import BookKeeperError

    directory = os.path.abspath(arguments.directory or find_data_directory() or DATA_DIRECTORY)
    wanted = arguments.bookies
    if wanted is not None and not 1 <= wanted <= BOOKIES_MAX:
        raise UsageError(f"--bookies {wanted}: a local cluster has 1 to {BOOKIES_MAX}")
    if arguments.metadata:
        from bookies.metadata.uri import connect
        from bookies.runtime import aio

        connect(arguments.metadata, aio.runtime())  # checks the URI; the store is not opened
    cluster = LocalCluster(directory, bookies=wanted, metadata_uri=arguments.metadata, detach=True)
    if wanted is not None and wanted < len(cluster.bookies):
        print(
            f"the cluster has {len(cluster.bookies)} bookies; --bookies {wanted} does not remove any", file=sys.stderr
        )
    cluster.enable_log_housekeeping()
    if arguments.observe:
        cluster.enable_http()
    failures: dict[str, BookKeeperError] = {}
    observed: tuple[dict[str, str], list[str]] = {}, []
    with interruptible():
        started = cluster.start(failures=failures)
        if arguments.observe:
            from bookies.admin.cluster.monitoring import Monitoring

            observed = Monitoring(cluster).start()
    for error in failures.values():
        print(f"bk up: {error}", file=sys.stderr)
    names = ", ".join(started)
    if failures:
        serving = [bookie.id for bookie in cluster.bookies if bookie.id not in failures]
        text = f"started {names or 'none'}; {', '.join(serving)} of {len(cluster.bookies)} bookies serve"
    else:
        text = f"started {names}" if started else "all bookies were running already"
    place = f"data in {directory}; metadata {cluster.metadata_uri}"
    addresses = [f"{name:10} {url}" for name, url in observed[0].items()]
    facts = cluster.describe() | ({"observe": observed[0]} if arguments.observe else {})
    return Report(facts, [text, place, *addresses, _NEXT], int(bool(failures)), observed[1])


_NEXT = "next:  bk status    id=$(seq 1000 | bk ledger append --new)    bk ledger read $id | tail -1    bk down"


def _down(arguments: argparse.Namespace) -> Report:
    from bookies.admin.cluster import LocalCluster
    from bookies.admin.cluster.monitoring import Monitoring

    directory = arguments.directory or find_data_directory()
    if directory is None:
        raise UsageError("no bk-data directory found from here upwards: name the cluster's with --directory DIR")
    cluster = LocalCluster.load(directory)
    with interruptible():
        stopped = [*cluster.stop(), *Monitoring(cluster).stop()]
    text = f"stopped {', '.join(stopped)}" if stopped else "nothing was running"
    kept = f"the data is kept in {cluster.directory}; `bk up` starts it again"
    return Report({"stopped": stopped, "directory": cluster.directory}, [text, kept])


async def _status(session: Session, arguments: argparse.Namespace) -> Report:
    status = await gather_status(session, must_count=arguments.count)
    rows = [
        (
            row["bookie"],
            row["mode"],
            row["address"] or "-",
            size_text(row["disk_free"]) if "disk_free" in row else "-",
            "-" if row["fragments"] is None else row["fragments"],
            announced_text(row),
        )
        for row in status["bookies"]
    ]
    table = Table(("bookie", "mode", "address", "disk free", "fragments", "announced"), rows, (3, 4))
    return Report(status, [f"metadata  {status['metadata']}", table, f"ledgers   {_ledgers_text(status)}"])


def _ledgers_text(status: dict[str, Any]) -> str:
    counts, counted_ms = status["ledgers"], status["counted_ms"]
    if counts is None:
        return "too many to count each time, and never counted: `bk status --count` does it"
    damaged = f", {counts['unreadable']} cannot be read: `bk metadata check`" if counts["unreadable"] else ""
    when = "" if counted_ms is None else f" (counted at {time_text(counted_ms)}; `bk status --count` counts again)"
    return f"{counts['closed']} closed, {counts['open']} open, {counts['in_recovery']} in recovery{damaged}{when}"


def _top(arguments: argparse.Namespace) -> int:
    from bookies.admin.remote import top

    return with_session(arguments, lambda session: top.watch(session, arguments))


async def _health(session: Session, arguments: argparse.Namespace) -> Report:
    from bookies.admin.verbs.cluster_health import health

    return await health(session)


async def _info(driver: MetadataDriver, arguments: argparse.Namespace) -> Report:
    facts = await gather_info(driver)
    return Report(facts, [f"{name.replace('_', ' '):18} {value}" for name, value in facts.items() if value != ""])


async def gather_info(driver: MetadataDriver) -> dict[str, Any]:
    """Return the facts of Apache's `clusterinfo`. `unavailable_bookies` have a cookie and are not registered."""
    from bookies.model import BookieMode

    modes = {mode: (await driver.bookies(mode)).bookies for mode in BookieMode}
    registered = {bookie: None for bookies in modes.values() for bookie in bookies}
    known = dict.fromkeys((*(await driver.all_bookies()).bookies, *registered))
    return {
        "metadata": driver.uri,
        "layout": driver.layout,
        "instance_id": await driver.instance_id(),
        "bookies": len(known),
        "writable_bookies": len(modes[BookieMode.WRITABLE]),
        "read_only_bookies": len(modes[BookieMode.READ_ONLY]),
        "unavailable_bookies": len(known) - len(registered),
    }


async def gather_status(session: Session, *, must_count: bool = False) -> dict[str, Any]:
    """Return bookies with mode, space, number of fragments and announcements, and the number of ledgers by state.

    `must_count`: count also a large number of ledgers now, and keep the counts. Otherwise the numbers are those that
    were kept, with `counted_ms`; None: never counted.
    """
    from bookies.metadata.ledger_counts import LIVE_MAX, count_ledgers, keep_counts, kept_counts

    client, notes = session.client, (await read_notes(session.driver)).by_bookie
    now_ms = session.runtime.clock.wall_ms()
    counts = await count_ledgers(session.driver, now_ms, at_most=None if must_count else LIVE_MAX)
    is_live = counts is not None
    if counts is None:
        counts = await kept_counts(session.driver)
    elif counts.total > LIVE_MAX:
        await keep_counts(session.driver, counts)
    bookies: list[dict[str, Any]] = []
    for status in await client.bookies():
        row = {
            "bookie": status.id,
            "mode": status.mode,
            "address": status.address,
            "fragments": None if counts is None else counts.fragments.get(status.id, 0),
            **announced_facts(notes.get(status.id)),
        }
        bookies.append({**row, **await _space(client, status.id, status.mode)})
    return {
        "metadata": session.driver.uri,
        "bookies": bookies,
        "ledgers": None if counts is None else counts.states,
        "counted_ms": None if is_live or counts is None else counts.counted_ms,
    }


async def _space(client: Client, bookie: Any, mode: str) -> dict[str, int]:
    from bookies.errors import BookieError

    if mode == "down":
        return {}
    try:
        total, free = await client.bookie_space(bookie)
    except BookieError:
        return {}  # The bookie stopped after the list was read; its row has no space.
    return {"disk_total": total, "disk_free": free}


_DIRECTORY = Option("--directory DIR", f"directory of the cluster's data (default: {DATA_DIRECTORY})")
VERBS = (
    verb(
        "up",
        "start a local cluster",
        "bk up --bookies 4",
        _up,
        _DIRECTORY,
        Option("--bookies", "number of bookies (default 3, or the previous number)", int),
        Option(
            "--metadata URI",
            "metadata store of the bookies: zk://HOST:2181/PATH or etcd://HOST:2379/PATH (default: an embedded "
            "store in the directory)",
        ),
        Option(
            "--observe",
            "start HTTP servers in the bookies; if installed, also Prometheus and Grafana with alerts and dashboards",
            bool,
        ),
        shared=MACHINE,
    ),
    verb("down", "stop a local cluster", "bk down --json", _down, _DIRECTORY, shared=MACHINE),
    verb(
        "status",
        "show the state of the cluster",
        "bk status --json",
        on_session(_status),
        Option(
            "--count", "count the ledgers now; without it, a cluster above 20,000 shows the auditor's last count", bool
        ),
    ),
    verb(
        "top",
        "watch the cluster live until interrupted",
        "bk top --interval 5",
        _top,
        Option("--interval SECONDS", "time between two frames (default 2)", float, default=2.0),
        Option("--once", "print one frame, as always if the output is no terminal", bool),
        Option("--token-file FILE", "token for the bookies' HTTP servers; also BK_TOKEN_FILE or BK_TOKEN"),
        Option("--authority FILE", "PEM file of authorities for them; also BK_SERVER_AUTHORITY"),
        description="Bookies with an HTTP server (http_port) show rates and latencies too.",
    ),
    verb(
        "cluster info",
        "print instance id, layout, bookies by mode; reads only the metadata store",
        "bk cluster info --json",
        on_driver(_info),
    ),
    verb(
        "cluster health",
        "report whether all is well, and if not, why and what to do",
        "bk cluster health",
        on_session(_health),
        description="Checks bookies, their disks, auto-recovery and ledgers that lack replicas, without reading "
        "ledgers: a million of them take no longer than a few. Exit status 1 if a finding needs action now.",
    ),
)
