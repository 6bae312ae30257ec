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
)
from bookies.admin.shared.notes_text import announced_facts, announced_text, read_notes
from bookies.admin.shared.report import Report, Table

if TYPE_CHECKING:
    from bookies.admin.shared import Session
    from bookies.client.client import Client
    from bookies.errors import MetadataCorrupt
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
    status = await gather_status(session)
    rows = [
        (
            row["bookie"],
            row["mode"],
            row["address"] or "-",
            size_text(row["disk_free"]) if "disk_free" in row else "-",
            row["fragments"],
            announced_text(row),
        )
        for row in status["bookies"]
    ]
    table = Table(("bookie", "mode", "address", "disk free", "fragments", "announced"), rows, (3, 4))
    counts = status["ledgers"]
    damaged = f", {counts['unreadable']} cannot be read: `bk metadata check`" if counts["unreadable"] else ""
    ledgers = f"{counts['closed']} closed, {counts['open']} open, {counts['in_recovery']} in recovery{damaged}"
    return Report(status, [f"metadata  {status['metadata']}", table, f"ledgers   {ledgers}"])


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


async def gather_status(session: Session) -> dict[str, Any]:
    """Return bookies with mode, space, number of fragments and announcements, and the number of ledgers by state."""
    client, notes = session.client, (await read_notes(session.driver)).by_bookie
    fragments: dict[str, int] = {}
    counts = {"open": 0, "in_recovery": 0, "closed": 0, "unreadable": 0}
    unreadable: list[MetadataCorrupt] = []
    async for metadata in client.ledgers(unreadable=unreadable):
        counts[metadata.state.name.lower()] += 1
        for _, ensemble in metadata.ensembles:
            for bookie in ensemble:
                fragments[bookie] = fragments.get(bookie, 0) + 1
    counts["unreadable"] = len(unreadable)
    bookies: list[dict[str, Any]] = []
    for status in await client.bookies():
        row = {
            "bookie": status.id,
            "mode": status.mode,
            "address": status.address,
            "fragments": fragments.get(status.id, 0),
            **announced_facts(notes.get(status.id)),
        }
        bookies.append({**row, **await _space(client, status.id, status.mode)})
    return {"metadata": session.driver.uri, "bookies": bookies, "ledgers": counts}


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
            "with HTTP servers, and with Prometheus and Grafana if they are installed: dashboards and alerts",
            bool,
        ),
        shared=MACHINE,
    ),
    verb("down", "stop a local cluster", "bk down --json", _down, _DIRECTORY, shared=MACHINE),
    verb("status", "show the state of the cluster", "bk status --json", on_session(_status)),
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
