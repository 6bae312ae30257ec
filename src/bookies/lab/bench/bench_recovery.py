"""`bk bench recovery`: duration and cost of the repair after one of five bookies is killed under load.

The benchmark runs a cluster of its own with auto-recovery in the bookies. It is filled with small sealed ledgers, and
the sustained rate of adds is measured. From then on entries are added at a share of that rate, each at its due time; an
add's latency counts from its due time. For the length of *before*, adds run unmeasured, so that the filled ledgers are
checkpointed. Then one bookie is killed. *Noticed* is the time of the first mark; *whole* is the time when no ledger is
marked and no record names the dead bookie for an entry. Both count from the kill.

*Bytes copied over bytes needed*: the copies that the workers report, over the dead bookie's contents: by the records at
the kill, and, for ledgers under load, when their writers had replaced it. *Metadata operations per ledger*: those of
all processes of auto-recovery, with the auditor's passes over all ledgers and session management, over the ledgers of
the dead bookie; and per caller and operation, unless they are negligible.

Latencies *during* count from the kill, so they include its effect on writers; *repairing*, from the first mark.
`--bytes` makes the ledgers few and large instead of many and small. Entries added meanwhile are always small. The free
disk space is checked at the start, and again when the rate is known, so the disk never fills.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from msgspec import Struct, field

from bookies.admin.shared import Progress, UsageError
from bookies.admin.shared.command_line import Option
from bookies.admin.shared.common import run_async, size_text
from bookies.admin.shared.report import Report
from bookies.lab.bench.bench_common import data_directory, figures, own_cluster
from bookies.lab.bench.bench_drive import memory_kib
from bookies.runtime.histogram import Histogram

if TYPE_CHECKING:
    from bookies.admin.cluster import LocalCluster
    from bookies.client.client import Client
    from bookies.client.write import LedgerWriter
    from bookies.metadata.interface import MetadataDriver
    from bookies.model import BookieId, LedgerMetadata

BOOKIES = 5
LOADED_LEDGERS = 4  # ledgers written throughout the run
FILLED_AT_ONCE = 32
CHUNK_SIZE = 1 << 20  # bytes of one append while filling
LARGE_LEDGERS, LARGE_SIZE = 100, 16_384  # with --bytes: number of ledgers, bytes of an entry
LOAD_SIZE = 1024  # bytes of an entry under load, at most
COPIES = 3
REPAIR_S = 300.0  # assumed duration of the load during the repair
SPARE = 0.1  # share of the free disk space that must remain
SHOWN_MIN = 0.01  # operations per ledger; smaller figures are not printed
WINDOW = 64  # adds in flight while the rate is measured
RATE_S = 15.0  # duration of the rate's measurement: the first seconds are faster than the sustained rate
TICK_S = 0.005  # between two bursts of paced adds
BACKLOG_MAX = 5_000  # adds in flight; later ones wait, which is part of their latency
POLL_S = 0.2
LEASE_MS, DELAY_S, REPORT_MS = 3_000, 2, 1_000
LIMIT_S = 1_800.0
BEFORE_S = 65


OPTIONS = (
    Option("--quick", "use 300 ledgers; takes less than a minute", bool),
    Option("--ledgers", "number of sealed ledgers at the start (default 10000; with --bytes: 100)", int),
    Option("--entries", "entries per sealed ledger (default 10)", int, default=10),
    Option("--size", "payload of an entry, in bytes (default 1024; with --bytes: 16384)", int),
    Option("--bytes", "payload of all sealed ledgers, in bytes, stored three times; replaces --entries", float),
    Option(
        "--seconds",
        f"seconds of measurement before the kill (default {BEFORE_S}, so that it includes a checkpoint)",
        float,
        default=BEFORE_S,
    ),
    Option(
        "--load",
        "rate of adds (of up to 1 KiB) during the repair, as a share of the sustained rate (default 0.5)",
        float,
        default=0.5,
    ),
)


def limit(arguments: argparse.Namespace) -> None:
    """Check the options, set their defaults, and reduce them with `--quick`. Raises UsageError."""
    is_large = arguments.bytes is not None
    if arguments.ledgers is None:
        arguments.ledgers = LARGE_LEDGERS if is_large else 10_000
    if arguments.size is None:
        arguments.size = LARGE_SIZE if is_large else 1024
    if is_large:
        arguments.entries = int(arguments.bytes / max(1, arguments.ledgers * arguments.size))
    if arguments.ledgers < 1 or arguments.entries < 1 or arguments.size < 0 or arguments.seconds <= 0:
        raise UsageError("--ledgers and --entries must be 1 or more, --size 0 or more, --seconds above 0")
    if not 0 <= arguments.load < 1:
        raise UsageError(f"--load {arguments.load:g}: must be a share, from 0 to below 1")
    if arguments.quick:
        arguments.ledgers, arguments.seconds = min(arguments.ledgers, 300), min(arguments.seconds, 4)


def run(arguments: argparse.Namespace) -> Report:
    """Measure and print the table. Return 1 if the cluster was not fully replicated in time."""
    limit(arguments)
    settings = {
        "auto_recovery": True,
        "lost_bookie_delay_s": DELAY_S,
        "recovery_report_interval_ms": REPORT_MS,
    }
    with (
        data_directory() as directory,
        own_cluster(f"{directory}/bk-data", BOOKIES, lease_ms=LEASE_MS, settings=settings) as cluster,
    ):
        result = run_async(partial(_measure, cluster, directory, arguments))
    return figures(result, int(result["whole_after_s"] is None), spaced=True)


async def _measure(cluster: LocalCluster, directory: str, arguments: argparse.Namespace) -> dict[str, Any]:
    from bookies.client.client import Client
    from bookies.metadata.uri import connect
    from bookies.runtime import aio

    runtime = aio.runtime()
    driver = connect(cluster.metadata_uri, runtime, may_create=False)
    async with Client(runtime, driver) as client:
        result = await Bench(cluster, client, driver, arguments, Space(directory)).run()
    return result | {"largest_bookie_mib": max(map(_memory_of, cluster.pids()), default=0.0)}


def _memory_of(pid: int) -> float:
    """Return the peak resident memory of a process, in MiB; 0 if it has ended."""
    with suppress(OSError):
        return round(memory_kib(pid, "VmHWM") / 1024, 1)
    return 0.0


class Cluster(Protocol):
    """Cluster with a bookie to kill."""

    def kill(self, bookie_id: str, /) -> None:
        """Send SIGKILL to a bookie and wait until its process has ended."""


class Counted(NamedTuple):
    """Totals of all workers so far: payload bytes copied, metadata operations, and these by caller and operation."""

    size: int
    operations: float
    names: Mapping[str, int] = MappingProxyType({})


class Space:
    """Free space on the disk of the bookies' directory."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = directory

    def check(self, payload_size: float, options: str) -> None:
        """Check that the copies of this payload fit. Raises UsageError that names the options to reduce."""
        disk = shutil.disk_usage(self._directory)
        needed, free = int(payload_size * COPIES), int(disk.free * (1 - SPARE))
        if needed > free:
            raise UsageError(
                f"about {size_text(needed)} would be written, but {self._directory} has {size_text(free)} free: reduce "
                f"{options}, or set BK_BENCH_DIRECTORY to a directory on a larger disk"
            )


class PacedAdds(Struct):
    """Adds at a steady rate. `latencies`: from each due time; `first_error`: message of the first failed add."""

    ledgers: list[LedgerWriter]
    payload: bytes
    latencies: Histogram = field(default_factory=Histogram)
    errors: int = 0
    first_error: str = "none"

    async def measure_rate(self, seconds: float) -> float:
        """Return the entries per second of a closed loop."""
        count, end = 0, time.monotonic() + seconds

        async def lane(ledger: LedgerWriter) -> None:
            nonlocal count
            while time.monotonic() < end:
                await ledger.append(self.payload)
                count += 1

        await asyncio.gather(*(lane(self.ledgers[number % len(self.ledgers)]) for number in range(WINDOW)))
        return count / seconds

    async def run(self, per_s: float) -> None:
        """Add until cancelled, then wait for the adds in flight."""
        pending: set[asyncio.Task[None]] = set()
        begun, sent = time.monotonic(), 0
        try:
            while True:
                await asyncio.sleep(TICK_S)
                while len(pending) < BACKLOG_MAX and (due := begun + sent / per_s) <= time.monotonic():
                    task = asyncio.ensure_future(self._add(self.ledgers[sent % len(self.ledgers)], due))
                    pending.add(task)
                    task.add_done_callback(pending.discard)
                    sent += 1
        finally:
            await asyncio.gather(*pending)

    async def _add(self, ledger: LedgerWriter, due: float) -> None:
        from bookies.errors import BookKeeperError

        try:
            await ledger.append(self.payload)
        except BookKeeperError as error:
            if not self.errors:
                self.first_error = f"{type(error).__name__}: {error}"
            self.errors += 1
        else:
            self.latencies.record(time.monotonic() - due)

    def take(self) -> Histogram:
        """Return the latencies since the last call."""
        taken, self.latencies = self.latencies, Histogram()
        return taken


class Bench:
    """One run on a cluster whose bookies serve. Subclasses may replace `counted`. `space`: of the cluster's disk."""

    def __init__(
        self,
        cluster: Cluster,
        client: Client,
        driver: MetadataDriver,
        arguments: argparse.Namespace,
        space: Space,
    ) -> None:
        self._cluster = cluster
        self._client = client
        self._driver = driver
        self._arguments = arguments
        self._payload = os.urandom(arguments.size)
        self._space = space

    async def run(self) -> dict[str, Any]:
        from bookies.model import BookieId

        arguments = self._arguments
        filled_size = arguments.ledgers * arguments.entries * arguments.size
        self._space.check(filled_size, "--ledgers, --entries or --bytes")
        await self._fill()
        load = PacedAdds([await self._create() for _ in range(LOADED_LEDGERS)], self._payload[:LOAD_SIZE])
        most = await load.measure_rate(min(RATE_S, arguments.seconds))
        per_s = most * arguments.load
        loaded_s = 2 * arguments.seconds + (0 if arguments.quick else REPAIR_S)
        self._space.check(filled_size / BOOKIES + per_s * len(load.payload) * loaded_s, "--load or --seconds")
        adding = asyncio.ensure_future(load.run(per_s)) if per_s else None
        await asyncio.sleep(arguments.seconds)  # until the filled ledgers are checkpointed
        load.take()
        await asyncio.sleep(arguments.seconds)
        before = load.take()
        dead = load.ledgers[0].metadata.last_ensemble[0]
        sealed = [record for record in await self._named(dead) if record.is_closed]
        counted = await self.counted(dead)
        begun = time.monotonic()
        await asyncio.to_thread(self._cluster.kill, dead)
        replaced = [await self._replaced(ledger, dead, begun) for ledger in load.ledgers]
        needed = [self._held(record, BookieId(dead)) for record in [*sealed, *replaced] if record is not None]
        noticed_s = await self._until(self._is_marked, begun)
        during = load.take()
        whole_s = None if noticed_s is None else await self._until(partial(self._is_whole, dead), begun)
        repairing = load.take()
        during.merge(repairing)
        if adding is not None:
            adding.cancel()
            with suppress(asyncio.CancelledError):
                await adding
        for ledger in load.ledgers:
            await ledger.close()
        settled = await self._settled(dead)
        copied = settled.size - counted.size
        operations = round(settled.operations - counted.operations)
        names = {name: (count - counted.names.get(name, 0)) / len(needed) for name, count in settled.names.items()}
        often = sorted((item for item in names.items() if item[1] >= SHOWN_MIN), key=lambda item: (-item[1], item[0]))
        needed_size = sum(size for _, size in needed)
        return {
            "ledgers": arguments.ledgers,
            "ledgers_of_the_dead_bookie": len(needed),
            "entries_needed": sum(entries for entries, _ in needed),
            "noticed_after_s": noticed_s,
            "whole_after_s": whole_s,
            "bytes_needed": needed_size,
            "bytes_copied": copied,
            "copied_over_needed": round(copied / max(1, needed_size), 3),
            "metadata_operations": operations,
            "metadata_operations_per_ledger": round(operations / max(1, len(needed)), 2),
            "of_these": {name: round(count, 2) for name, count in often},
            "most_adds_per_s": round(most),
            "adds_per_s": round(per_s),
            **{f"{name}_before": value for name, value in before.summary().items()},
            **{f"{name}_during": value for name, value in during.summary().items()},
            **{f"{name}_repairing": value for name, value in repairing.summary().items()},
            "p99_during_over_before": round(during.summary()["p99_us"] / max(1, before.summary()["p99_us"]), 2),
            "p99_repairing_over_before": round(repairing.summary()["p99_us"] / max(1, before.summary()["p99_us"]), 2),
            "adds_failed": load.errors,
            "first_error": load.first_error,
        }

    # -- before --------------------------------------------------------------------------------------------------
    async def _create(self) -> LedgerWriter:
        return await self._client.create(ensemble=3, write_quorum=3, ack_quorum=2, labels={"bench": "recovery"})

    async def _fill(self) -> None:
        waiting: Iterator[int] = iter(range(self._arguments.ledgers))
        at_once, entries = max(1, CHUNK_SIZE // max(1, self._arguments.size)), self._arguments.entries
        counts = [min(at_once, entries - first) for first in range(0, entries, at_once)]
        progress, done = Progress("ledgers written", self._arguments.ledgers, quiet=self._arguments.json), 0

        async def lane() -> None:
            nonlocal done
            for _ in waiting:
                async with await self._create() as ledger:
                    for count in counts:
                        await ledger.append_many([self._payload] * count)
                done += 1
                progress.update(done)

        await asyncio.gather(*(lane() for _ in range(FILLED_AT_ONCE)))
        progress.clear()

    # -- during --------------------------------------------------------------------------------------------------
    async def _named(self, bookie: BookieId) -> list[LedgerMetadata]:
        """Return the records that presently name the bookie for entries."""
        from bookies.protocol.pacing import RateLimit
        from bookies.protocol.repair.fragments import is_stored_on
        from bookies.replication.base.replication_records import Coverage, records

        named = []
        async for page in records(self._driver, RateLimit(None), Coverage()):
            named += [record.metadata for record in page if is_stored_on(record.metadata, bookie)]
        return named

    async def _replaced(self, ledger: LedgerWriter, dead: BookieId, begun: float) -> LedgerMetadata | None:
        """Wait until the writer has replaced the dead bookie. Return the ledger's record; None: it never named it."""
        if dead not in ledger.metadata.last_ensemble and not ledger.metadata.names(dead):
            return None
        await self._until(lambda: _later(dead not in ledger.metadata.last_ensemble), begun)
        return ledger.metadata

    def _held(self, record: LedgerMetadata, bookie: BookieId) -> tuple[int, int]:
        """Return the entries and bytes of finished fragments that the bookie must hold."""
        from bookies.protocol.repair.drain import portion_of
        from bookies.protocol.repair.fragments import fragments_to_check

        last = record.last_entry_id if record.is_closed else record.ensembles[-1][0] - 1
        fragments = [fragment for fragment in fragments_to_check(record, last) if fragment.is_finished]
        # An open record is one of the ledgers under load.
        size = self._arguments.size if record.is_closed else min(self._arguments.size, LOAD_SIZE)
        portion = portion_of(record, fragments, bookie, last, (last + 1) * size)
        return portion.entries, portion.size

    async def _is_whole(self, dead: BookieId) -> bool:
        return not await self._is_marked() and not await self._named(dead)

    async def _is_marked(self) -> bool:
        async for ids in self._driver.recovery.marked_ids():
            if ids:
                return True
        return False

    async def _until(self, condition: Callable[[], Awaitable[bool]], begun: float) -> float | None:
        """Wait for a condition. Return the seconds since `begun`; None after `LIMIT_S`."""
        while not await condition():
            if time.monotonic() - begun > LIMIT_S:
                return None
            await asyncio.sleep(POLL_S)
        return round(time.monotonic() - begun, 2)

    # -- afterwards ----------------------------------------------------------------------------------------------
    async def counted(self, dead: BookieId) -> Counted:
        """Return the totals that the bookies' processes report, without the dead bookie's."""
        from bookies.replication.operator.status import read_processes

        workers = [process.worker for process in await read_processes(self._driver) if process.bookie != dead]
        names: dict[str, int] = {}
        for worker in workers:
            for name, count in worker["metadata_operations_by_name"].items():
                names[name] = names.get(name, 0) + count
        return Counted(sum(worker["bytes_copied"] for worker in workers), sum(names.values()), names)

    async def _settled(self, dead: BookieId) -> Counted:
        """Return the totals when no more bytes are copied."""
        deadline = time.monotonic() + 10 * REPORT_MS / 1000
        known = -1
        while True:
            await asyncio.sleep(2 * REPORT_MS / 1000)
            counted = await self.counted(dead)
            if counted.size == known or time.monotonic() > deadline:
                return counted
            known = counted.size


async def _later(value: bool) -> bool:
    return value
