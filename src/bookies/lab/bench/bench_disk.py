"""`bk bench disk`: bookies lose disks under load; time and bytes until they are whole, beside copying a whole bookie.

The benchmark runs a cluster of its own, whose bookies have four ledger directories each, and fills it with sealed
ledgers. While entries are appended at a steady rate, one bookie after the other is killed, one of its directories is
deleted, and the bookie starts without it (`lost_directories`). *Serves* is the time from the start of the process until
it serves; *whole* the time until no ledger of it is in limbo. *Owed* is what the bookie has found to be missing,
*fetched* what it has copied from others; entries have one size, so both are exact.

At the end one bookie is killed for good and everything that it held is copied to others, which is what the loss of a
disk costs otherwise, at the same rate. Before that every replica of every entry is read: none may be missing.
"""

from __future__ import annotations

import argparse
import asyncio
import pathlib
import shutil
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bookies.admin.shared import Progress, UsageError
from bookies.admin.shared.command_line import Option
from bookies.admin.shared.common import run_async, size_text
from bookies.admin.shared.report import Report, Table
from bookies.lab.bench.bench_common import data_directory, fill

if TYPE_CHECKING:
    from bookies.admin.cluster import LocalCluster
    from bookies.admin.cluster.local_cluster import LocalBookie
    from bookies.client.client import Client

BOOKIES = 5
DISKS = ("ledgers", "ledgers1", "ledgers2", "ledgers3")
LEASE_MS = 2_000
LOAD_ENTRIES = 200  # of a ledger under load
POLL_S = 0.05
LIMIT_S = 600.0
SETTINGS = {"checkpoint_interval_ms": 2_000, "entry_log_size_max": 4 << 20}

OPTIONS = (
    Option("--quick", "lose three disks of small bookies; takes less than a minute", bool),
    Option("--losses", "number of disks to lose, one after the other (default 10)", int, default=10),
    Option("--ledgers", "number of sealed ledgers at the start (default 400)", int, default=400),
    Option("--entries", "entries per sealed ledger (default 100)", int, default=100),
    Option("--size", "payload of an entry, in bytes (default 4096)", int, default=4096),
    Option("--load", "entries appended per second meanwhile (default 200)", float, default=200.0),
    Option("--rate", "bytes per second that are fetched, or copied at the end (default 20e6)", float, default=20e6),
)


def run(arguments: argparse.Namespace) -> Report:
    """Measure and print the table. Return 1 if a bookie was not whole in time, or a replica is missing."""
    from bookies.admin.cluster import LocalCluster

    if min(arguments.losses, arguments.ledgers, arguments.entries) < 1 or arguments.rate < 1:
        raise UsageError("--losses, --ledgers, --entries and --rate must be 1 or more")
    if arguments.size < 0 or arguments.load < 0:
        raise UsageError("--size and --load must be 0 or more")
    if arguments.quick:
        arguments.losses, arguments.ledgers = min(arguments.losses, 3), min(arguments.ledgers, 60)
    with data_directory() as directory:
        settings = SETTINGS | {"recovery_rate_size": int(arguments.rate)}
        cluster = LocalCluster(f"{directory}/bk-data", BOOKIES, lease_ms=LEASE_MS, settings=settings)
        for bookie in cluster.bookies:
            bookie.disks = DISKS
        try:
            cluster.start()
            return run_async(lambda: _measure(cluster, arguments))
        finally:
            cluster.stop()


async def _measure(cluster: LocalCluster, arguments: argparse.Namespace) -> Report:
    from bookies.client.connect import connect

    async with connect(cluster.metadata_uri) as client:
        ledgers = await fill(client, arguments)
        await asyncio.sleep(2 * SETTINGS["checkpoint_interval_ms"] / 1000)
        stop = asyncio.Event()
        load = asyncio.ensure_future(_load(client, arguments, stop, ledgers))
        rows: list[dict[str, Any]] = []
        progress = Progress("disks lost", arguments.losses, quiet=arguments.json)
        for number in range(arguments.losses):
            bookie = cluster.bookies[number % BOOKIES]
            rows.append(await _lose(cluster, bookie, DISKS[number // BOOKIES % len(DISKS)]))
            progress.update(number + 1)
        progress.clear()
        stop.set()
        appended, failed = await load
        problems = await _verify(client, ledgers)
        whole = await _copy_whole(cluster, client, cluster.bookies[0], arguments.rate)
    return _report(rows, whole, {"entries_appended": appended, "appends_failed": failed, "problems": problems})


async def _load(
    client: Client, arguments: argparse.Namespace, stop: asyncio.Event, ledgers: list[int]
) -> tuple[int, int]:
    """Append to short ledgers, one after the other; return the entries appended and those that failed."""
    from bookies.errors import BookKeeperError

    payload, appended, failed = bytes(arguments.size), 0, 0
    while not stop.is_set() and arguments.load:
        try:
            async with await client.create(ensemble=3, write_quorum=3, ack_quorum=2) as ledger:
                ledgers.append(ledger.ledger_id)
                for _ in range(LOAD_ENTRIES):
                    await ledger.append(payload)
                    appended += 1
                    await asyncio.sleep(1 / arguments.load)
                    if stop.is_set():
                        break
        except BookKeeperError:
            failed += 1
    return appended, failed


async def _lose(cluster: LocalCluster, bookie: LocalBookie, disk: str) -> dict[str, Any]:
    """Kill a bookie, delete one of its directories, and start it; return the figures."""
    place = bookie.directory / disk
    held = sum(_size_of(bookie.directory / name) for name in DISKS)
    lost = _size_of(place)
    await asyncio.to_thread(cluster.kill, bookie.id)
    shutil.rmtree(place)
    bookie.settings["lost_directories"] = f"{bookie.id}/{disk}"
    begun = time.monotonic()
    await asyncio.to_thread(cluster.restart, bookie.id)
    serves_s = time.monotonic() - begun
    while True:
        facts = await asyncio.to_thread(_owed, bookie)
        if facts["is_settled"] and not facts["ledgers_in_limbo"]:
            break
        if time.monotonic() - begun > LIMIT_S:
            break
        await asyncio.sleep(POLL_S)
    return {
        "bookie": bookie.id,
        "held_bytes": held,
        "lost_bytes": lost,
        "owed_bytes": facts["found_bytes"],
        "fetched_bytes": facts["fetched_bytes"],
        "serves_s": round(serves_s, 2),
        "whole_s": round(time.monotonic() - begun, 2),
        "is_whole": not facts["ledgers_in_limbo"],
    }


def _owed(bookie: LocalBookie) -> dict[str, Any]:
    from bookies.admin.verbs.control import ask
    from bookies.storage.disks.directories import CONTROL_FILE

    files = [path for name in DISKS if (path := bookie.directory / name / CONTROL_FILE).exists()]
    return dict(ask(files[0], "owed", {})[1])


def _size_of(directory: pathlib.Path) -> int:
    """Return the bytes of the entry logs in a ledger directory."""
    return sum(path.stat().st_size for path in directory.glob("current/*.log"))


async def _verify(client: Client, ledgers: Sequence[int]) -> int:
    """Read every replica of every entry; return the number of ledgers with a bad one."""
    administration = client.administration()
    return sum([not (await administration.check_ledger(ledger_id, percentage=100)).is_ok for ledger_id in ledgers])


async def _copy_whole(cluster: LocalCluster, client: Client, bookie: LocalBookie, rate: float) -> dict[str, Any]:
    """Kill a bookie for good and copy what it held to others; return the figures."""
    from bookies.model import BookieId

    await asyncio.to_thread(cluster.kill, bookie.id)
    while True:
        registered = [status.id for status in await client.bookies() if status.mode != "down"]
        if bookie.id not in registered:
            break
        await asyncio.sleep(POLL_S)
    begun = time.monotonic()
    report = await client.administration().recover_bookies([BookieId(bookie.id)], bytes_per_s=rate)
    return {"copied_bytes": report.size, "whole_s": round(time.monotonic() - begun, 2)}


def _report(rows: Sequence[dict[str, Any]], whole: dict[str, Any], others: dict[str, int]) -> Report:
    owed, fetched = (sum(row[name] for row in rows) for name in ("owed_bytes", "fetched_bytes"))
    facts = {"losses": rows, "whole_bookie": whole, "fetched_over_owed": round(fetched / max(1, owed), 3), **others}
    cells = [
        (
            f"disk of {row['bookie']}",
            size_text(row["lost_bytes"]),
            size_text(row["owed_bytes"]),
            size_text(row["fetched_bytes"]),
            f"{row['serves_s']:.2f}",
            f"{row['whole_s']:.2f}",
        )
        for row in rows
    ]
    cells.append(("whole bookie", "-", "-", size_text(whole["copied_bytes"]), "-", f"{whole['whole_s']:.2f}"))
    lines: list[str | Table] = [
        Table(("lost", "entry logs", "owed", "fetched", "serves after s", "whole after s"), cells, (1, 2, 3, 4, 5)),
        f"fetched over owed {facts['fetched_over_owed']}; entries appended meanwhile {others['entries_appended']:,}, "
        f"ledgers whose append failed {others['appends_failed']}, ledgers with a bad replica {others['problems']}",
    ]
    is_good = all(row["is_whole"] for row in rows) and not others["problems"]
    return Report(facts, lines, int(not is_good))
