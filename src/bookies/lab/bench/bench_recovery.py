"""`bk bench recovery`: one of five bookies is killed under load; how long, and at what price, until all is replicated.

A cluster of its own, whose bookies take part in auto-recovery. First it is filled with small sealed ledgers, and the
rate is measured that it takes adds at; from then on entries are added at a share of that rate, each at its time, and an
add's latency counts from when it was due. For as long as *before* lasts, adds go on unmeasured first, so that what was
filled in has been checkpointed. Then one bookie is killed. *Noticed* is when the first ledger was marked, *whole* when
nothing is marked any more and no record names the dead bookie for an entry; both since the kill.

*Bytes copied over bytes needed*: what the workers say they have copied, over what the dead bookie held by the records
when it was killed, and of the ledgers under load when their writers had replaced it. *Metadata operations per ledger*:
of all processes that take part, the auditor's passes over all ledgers and the coming and going of their own sessions
included, over the ledgers of the dead bookie; and by who asked for what, of those that are not next to nothing.

Latencies *during* count from the kill, so that its own effect on writers is in them; *repairing*, from the first mark.
`--bytes` makes the ledgers few and large instead of many and small. What is added meanwhile is small in any case.
Whether the disk holds all of it is looked at first, and again when the rate is known: it never fills.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from bookies.admin.shared import Progress, UsageError
from bookies.admin.shared.common import print_json, print_table, run_async, size_text
from bookies.admin.shared.histogram import Histogram
from bookies.lab.bench.bench_drive import memory_kib

if TYPE_CHECKING:
    from bookies.admin.cluster import LocalCluster
    from bookies.client.client import Client
    from bookies.client.write import LedgerWriter
    from bookies.metadata.interface import MetadataDriver
    from bookies.model import BookieId, LedgerMetadata

BOOKIES = 5
LOADED_LEDGERS = 4  # written to all the time
FILLED_AT_ONCE = 32
CHUNK_SIZE = 1 << 20  # bytes that a ledger is filled by at a time
LARGE_LEDGERS, LARGE_SIZE = 100, 16_384  # with --bytes: how many ledgers, and of which entries
LOAD_SIZE = 1024  # of an entry that is added meanwhile, at most
COPIES = 3
REPAIR_S = 300.0  # that the load is taken to go on for while it is repaired
SPARE = 0.1  # of what is free: stays so
SHOWN_MIN = 0.01  # operations a ledger
WINDOW = 64  # adds in flight while the rate is measured
RATE_S = 15.0  # that the rate is measured for: the first seconds are faster than what lasts
TICK_S = 0.005  # between two bursts of paced adds
BACKLOG_MAX = 5_000  # adds under way; those that are due beyond that wait their turn, which is part of their latency
LOOK_S = 0.2
LEASE_MS, DELAY_S, REPORT_MS = 3_000, 2, 1_000
LIMIT_S = 1_800.0
BEFORE_S = 65


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="300 ledgers, within a minute")
    parser.add_argument(
        "--ledgers", type=int, default=None, help="sealed ones to begin with (default 10000, with --bytes 100)"
    )
    parser.add_argument("--entries", type=int, default=10, help="of each of them (default 10)")
    parser.add_argument("--size", type=int, default=None, help="payload, bytes (default 1024, with --bytes 16384)")
    parser.add_argument(
        "--bytes", type=float, default=None, help="payload of all of them, which is stored three times, for --entries"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=BEFORE_S,
        help=f"that adds are measured before (default {BEFORE_S}: checkpoints, which are felt, come once a minute)",
    )
    parser.add_argument(
        "--load",
        type=float,
        default=0.5,
        help="adds during it, of 1 KiB or less, as a share of what the cluster takes (default 0.5)",
    )


def limit(arguments: argparse.Namespace) -> None:
    """Check the options, and cut down what is to be quick. Raises UsageError."""
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
        raise UsageError(f"--load {arguments.load:g}: a share, from 0 to below 1")
    if arguments.quick:
        arguments.ledgers, arguments.seconds = min(arguments.ledgers, 300), min(arguments.seconds, 4)


def run(arguments: argparse.Namespace) -> int:
    """Measure and print. 1: it was not whole again in time."""
    from bookies.admin.cluster import LocalCluster

    limit(arguments)
    settings = {
        "auto_recovery": True,
        "lost_bookie_delay_s": DELAY_S,
        "recovery_report_interval_ms": REPORT_MS,
    }
    directory = tempfile.mkdtemp(prefix="bk-bench-", dir=os.environ.get("BK_BENCH_DIRECTORY"))
    cluster = LocalCluster(os.path.join(directory, "bk-data"), BOOKIES, lease_ms=LEASE_MS, settings=settings)
    try:
        cluster.start()
        result = run_async(partial(_measure, cluster, directory, arguments))
    finally:
        cluster.stop()
        shutil.rmtree(directory, ignore_errors=True)
    if arguments.json:
        print_json(result)
    else:
        rows = [(name.replace("_", " "), _text(value)) for name, value in _flat(result)]
        print_table(rows, ("figure", "value"), right=(1,))
    return int(result["whole_after_s"] is None)


def _flat(result: dict[str, Any]) -> Iterator[tuple[str, object]]:
    for name, value in result.items():
        if isinstance(value, dict):
            yield from ((f"  {inner}", each) for inner, each in value.items())
        else:
            yield name, value


def _text(value: object) -> str:
    return f"{value:,.2f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


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
    """The most that a process has had, MiB."""
    with suppress(OSError):
        return round(memory_kib(pid, "VmHWM") / 1024, 1)
    return 0.0


class Cluster(Protocol):
    """What a bookie is killed in."""

    def kill(self, bookie_id: str, /) -> None:
        """SIGKILL; returns when it is gone."""


class Counted(NamedTuple):
    """By all who repair, so far: payload bytes copied, operations of the metadata store, and these by who asked for
    what."""

    size: int
    operations: float
    names: Mapping[str, int] = MappingProxyType({})


class Space:
    """What is free on the disk of this directory, where the bookies keep their data."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = directory

    def check(self, payload_size: float, options: str) -> None:
        """Raises UsageError when the copies of so many bytes leave too little."""
        disk = shutil.disk_usage(self._directory)
        needed, free = int(payload_size * COPIES), int(disk.free * (1 - SPARE))
        if needed > free:
            raise UsageError(
                f"some {size_text(needed)} would be written, and {size_text(free)} are free in {self._directory}: "
                f"give less ({options}), or set BK_BENCH_DIRECTORY to a place on a larger disk"
            )


@dataclass
class _Load:
    """Adds at a steady rate. `latencies`: since each was due; `first_error`: of those that failed."""

    ledgers: list[LedgerWriter]
    payload: bytes
    latencies: Histogram = field(default_factory=Histogram)
    errors: int = 0
    first_error: str = "none"

    async def measure_rate(self, seconds: float) -> float:
        """Entries a second with a closed loop."""
        count, end = 0, time.monotonic() + seconds

        async def lane(ledger: LedgerWriter) -> None:
            nonlocal count
            while time.monotonic() < end:
                await ledger.append(self.payload)
                count += 1

        await asyncio.gather(*(lane(self.ledgers[number % len(self.ledgers)]) for number in range(WINDOW)))
        return count / seconds

    async def run(self, per_s: float) -> None:
        """Until cancelled; those under way are waited for."""
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
        """What was counted since the last time."""
        taken, self.latencies = self.latencies, Histogram()
        return taken


class Bench:
    """One run on a cluster whose bookies serve. `counted` may be put in another way. `space`: of its disk."""

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
        load = _Load([await self._create() for _ in range(LOADED_LEDGERS)], self._payload[:LOAD_SIZE])
        most = await load.measure_rate(min(RATE_S, arguments.seconds))
        per_s = most * arguments.load
        loaded_s = 2 * arguments.seconds + (0 if arguments.quick else REPAIR_S)
        self._space.check(filled_size / BOOKIES + per_s * len(load.payload) * loaded_s, "--load or --seconds")
        adding = asyncio.ensure_future(load.run(per_s)) if per_s else None
        await asyncio.sleep(arguments.seconds)  # until what was filled in has been checkpointed too
        load.take()
        await asyncio.sleep(arguments.seconds)
        before = load.take()
        dead = load.ledgers[0].metadata.last_ensemble[0]
        sealed = [each for each in await self._named(dead) if each.is_closed]
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
        often = sorted((each for each in names.items() if each[1] >= SHOWN_MIN), key=lambda each: (-each[1], each[0]))
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
        """Records that name it for entries, now."""
        from bookies.protocol.repair import RateLimit
        from bookies.protocol.repair.fragments import is_stored_on
        from bookies.replication.base.replication_records import Coverage, records

        found = []
        async for page in records(self._driver, RateLimit(None), Coverage()):
            found += [each.metadata for each in page if is_stored_on(each.metadata, bookie)]
        return found

    async def _replaced(self, ledger: LedgerWriter, dead: BookieId, begun: float) -> LedgerMetadata | None:
        """The ledger's record when its writer has gone on without the dead bookie; None: it was never there."""
        if dead not in ledger.metadata.last_ensemble and not ledger.metadata.names(dead):
            return None
        await self._until(lambda: _later(dead not in ledger.metadata.last_ensemble), begun)
        return ledger.metadata

    def _held(self, record: LedgerMetadata, bookie: BookieId) -> tuple[int, int]:
        """Entries and bytes that the bookie must hold of fragments that are finished."""
        from bookies.protocol.repair.drain import portion_of
        from bookies.protocol.repair.fragments import fragments_to_check

        last = record.last_entry_id if record.is_closed else record.ensembles[-1][0] - 1
        fragments = [each for each in fragments_to_check(record, last) if each.is_finished]
        # What is written to all the time is open still.
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
        """Seconds since then; None: the time is up."""
        while not await condition():
            if time.monotonic() - begun > LIMIT_S:
                return None
            await asyncio.sleep(LOOK_S)
        return round(time.monotonic() - begun, 2)

    # -- afterwards ----------------------------------------------------------------------------------------------
    async def counted(self, dead: BookieId) -> Counted:
        """What the processes of bookies say, without the dead one's."""
        from bookies.replication.operator.status import read_processes

        workers = [each.worker for each in await read_processes(self._driver) if each.bookie != dead]
        names: dict[str, int] = {}
        for worker in workers:
            for name, count in worker["metadata_operations_by_name"].items():
                names[name] = names.get(name, 0) + count
        return Counted(sum(worker["bytes_copied"] for worker in workers), sum(names.values()), names)

    async def _settled(self, dead: BookieId) -> Counted:
        """What is counted when nothing is copied any more."""
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
