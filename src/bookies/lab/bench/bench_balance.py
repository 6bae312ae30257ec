"""`bk bench balance`: an empty bookie joins five full ones under load; how it gets its share, and what adds notice.

The benchmark runs a cluster of its own with auto-recovery in the bookies, and fills it with sealed ledgers. Entries are
added at a share of the sustained rate, each at its due time; latencies count from the due times. Auto-recovery is
disabled and enabled in turn, for the same number of seconds each, so every period in which replicas move has a period
without moves just before it. *p99 over before* is the median of these pairs.

*Balanced* is the time of enabled periods until no bookie deviates from its share of sealed data by more than 10 %.
*Moved while disabled* counts from a second after auto-recovery was disabled.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from contextlib import suppress
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any

from bookies.admin.shared import Progress, UsageError
from bookies.admin.shared.command_line import Option
from bookies.admin.shared.common import run_async
from bookies.admin.shared.report import Report
from bookies.lab.bench.bench_common import data_directory, figures, fill, own_cluster
from bookies.lab.bench.bench_recovery import LOAD_SIZE, LOADED_LEDGERS, RATE_S, PacedAdds
from bookies.runtime.histogram import Histogram

if TYPE_CHECKING:
    from bookies.admin.cluster import LocalCluster
    from bookies.client.client import Client
    from bookies.metadata.interface import MetadataDriver
    from bookies.protocol.repair.balance import BalancePlan

BOOKIES = 5
TOLERANCE = 0.10
SETTLE_S = 1.0  # between a change of the switch and a measurement
LIMIT_S = 3_600.0

OPTIONS = (
    Option("--quick", "use 60 ledgers and short periods; takes about a minute", bool),
    Option("--ledgers", "number of sealed ledgers at the start (default 500)", int, default=500),
    Option("--entries", "entries per sealed ledger (default 128)", int, default=128),
    Option("--size", "payload of an entry, in bytes (default 16384)", int, default=16_384),
    Option("--rate", "bytes per second that move, the setting balance_rate_size (default 10e6)", float, default=10e6),
    Option("--seconds", "seconds of a period (default 10)", float, default=10.0),
    Option("--load", "rate of adds (1 KiB) as a share of the sustained rate (default 0.3)", float, default=0.3),
)


def run(arguments: argparse.Namespace) -> Report:
    """Measure and print the table. Return 1 if bookies were not balanced in time, or replicas moved when disabled."""
    if min(arguments.ledgers, arguments.entries, arguments.size) < 1 or min(arguments.rate, arguments.seconds) <= 0:
        raise UsageError("--ledgers, --entries and --size must be 1 or more, --rate and --seconds above 0")
    if not 0 < arguments.load < 1:
        raise UsageError(f"--load {arguments.load:g}: must be a share, above 0 and below 1")
    if arguments.quick:
        arguments.ledgers, arguments.seconds = min(arguments.ledgers, 60), min(arguments.seconds, 3.0)
    settings = {
        "auto_recovery": True,
        "balance_interval_s": 1,
        "balance_rate_size": int(arguments.rate),
        "balance_excess_size": arguments.entries * arguments.size,
        "recovery_report_interval_ms": 1_000,
    }
    with data_directory() as directory, own_cluster(f"{directory}/bk-data", BOOKIES, settings=settings) as cluster:
        result = run_async(partial(_measure, cluster, arguments))
    return figures(result, int(result["balanced_s"] is None or result["moved_while_disabled"] > 0), spaced=True)


async def _measure(cluster: LocalCluster, arguments: argparse.Namespace) -> dict[str, Any]:
    from bookies.client.client import Client
    from bookies.metadata.uri import connect
    from bookies.runtime import aio

    runtime = aio.runtime()
    driver = connect(cluster.metadata_uri, runtime, may_create=False)
    async with Client(runtime, driver) as client:
        await driver.recovery.disable()
        await fill(client, arguments)
        await asyncio.to_thread(cluster.add_bookie)
        ledgers = [await client.create(ensemble=3, write_quorum=3, ack_quorum=2) for _ in range(LOADED_LEDGERS)]
        load = PacedAdds(ledgers, bytes(LOAD_SIZE))
        per_s = arguments.load * await load.measure_rate(min(RATE_S, arguments.seconds))
        adding = asyncio.ensure_future(load.run(per_s))
        try:
            return await _Bench(client, driver, load, arguments).run() | {"adds_per_s": round(per_s)}
        finally:
            adding.cancel()
            with suppress(asyncio.CancelledError):
                await adding


class _Bench:
    """Pairs of periods on a cluster with an empty bookie, while adds run."""

    def __init__(self, client: Client, driver: MetadataDriver, load: PacedAdds, arguments: argparse.Namespace) -> None:
        from bookies.replication.operator import Operator
        from bookies.replication.repair.balance import Balance
        from bookies.runtime import aio

        self._driver = driver
        self._load = load
        self._arguments = arguments
        self._balance = Balance(Operator(aio.runtime(), client, driver, "bench"))

    async def run(self) -> dict[str, Any]:
        begun = await self._plan()
        before, moving = Histogram(), Histogram()
        ratios: list[float] = []
        enabled_s, moved_wrongly, plan = 0.0, 0, begun
        progress = Progress("per cent of deviation", None, quiet=self._arguments.json)
        while plan.imbalance > TOLERANCE and enabled_s < LIMIT_S:
            still, at_rest = await self._period()
            moved_wrongly += at_rest.before != plan.before
            await self._driver.recovery.enable()
            started = time.monotonic()
            busy, plan = await self._period()
            await self._driver.recovery.disable()
            enabled_s += time.monotonic() - started
            await asyncio.sleep(SETTLE_S)
            plan = await self._plan()
            ratios.append(busy.summary()["p99_us"] / max(1.0, still.summary()["p99_us"]))
            before.merge(still)
            moving.merge(busy)
            progress.update(round(100 * plan.imbalance))
        progress.clear()
        moved = sum(max(0, plan.before[bookie] - size) for bookie, size in begun.before.items())
        return {
            "bytes_held": {bookie: begun.before[bookie] for bookie in sorted(begun.before)},
            "share": round(next(iter(begun.shares.values()))),
            "deviation_at_first": round(begun.imbalance, 3),
            "bytes_moved": moved,
            "balanced_s": round(enabled_s, 1) if plan.imbalance <= TOLERANCE else None,
            "bytes_moved_per_s": round(moved / enabled_s) if enabled_s else 0,
            "bytes_held_at_last": {bookie: plan.before[bookie] for bookie in sorted(plan.before)},
            "deviation_at_last": round(plan.imbalance, 3),
            "moved_while_disabled": moved_wrongly,
            **{f"{name}_before": value for name, value in before.summary().items()},
            **{f"{name}_moving": value for name, value in moving.summary().items()},
            "p99_of_all_over_before": round(moving.summary()["p99_us"] / max(1.0, before.summary()["p99_us"]), 2),
            "pairs": len(ratios),
            "p99_over_before": round(median(ratios), 2) if ratios else None,
            "p99_over_before_worst": round(max(ratios), 2) if ratios else None,
            "adds_failed": self._load.errors,
        }

    async def _period(self) -> tuple[Histogram, BalancePlan]:
        """Measure adds for some seconds; return their latencies, and the plan at the end."""
        await asyncio.sleep(SETTLE_S)
        self._load.take()
        await asyncio.sleep(self._arguments.seconds)
        return self._load.take(), await self._plan()

    async def _plan(self) -> BalancePlan:
        from bookies.replication.repair.balance import Slack

        return await self._balance.plan(Slack(TOLERANCE, TOLERANCE))
