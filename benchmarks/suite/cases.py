"""What is measured: every case knows how to run itself for a contestant, and what its figures have to reach.

E3/Qw3/Qa2, CRC32C, entries synced before they are acknowledged, unless a case says otherwise.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks.suite import limits, processes, replays
from benchmarks.suite.figures import Figure
from benchmarks.suite.servers import ApacheCluster
from benchmarks.suite.stage import Contestant, Stage

LEASE_S = 14.0  # after which the registration of a bookie that was killed has lapsed
JOURNAL_ENTRIES, JOURNAL_ENTRY_SIZE = 570_000, 1024  # bytes
# Ours would make a checkpoint when 512 MiB are in the journal. Apache's bookie makes one when its memory table is
# flushed for the first time, at 64 MiB, which are added to it before; and then none before an entry log is full, 1 GB.
NO_CHECKPOINT = {"checkpoint_journal_size": 1 << 40, "checkpoint_interval_ms": 3_600_000}
FIRST_FLUSH_ENTRIES = 70_000
Values = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Setting:
    """What Apache runs with: `servers`, of `servers.SETTINGS`, and words for its driver. `name`: in the table."""

    servers: str = "default"
    words: tuple[str, ...] = ()
    name: str = ""

    def __str__(self) -> str:
        return f"{self.servers}, {self.name}" if self.name else self.servers


@dataclass(frozen=True, slots=True)
class Way:
    """A part of our client's API: its name, and the words that have the driver use it."""

    name: str
    words: tuple[str, ...] = ()


DEFAULT, LOW_LATENCY, ROCKSDB = Setting(), Setting("low latency"), Setting("RocksDB")
PLAIN = (Way(""),)
APPEND = (Way("append_nowait", ("--api", "single")), Way("append_many", ("--api", "many")))
READ = (Way("read()", ("--api", "entries")), Way("read_batches()", ("--api", "batches")))


@dataclass(frozen=True, slots=True)
class Case:
    """One case. What its figures have to reach holds for the first of the `ways`, with `is_crossed` for each row.

    `settings`: what Apache is tried with; its best counts. `has_own_cluster`: it needs none that runs already.
    `is_crossed`: our bookies under Apache's client and our client on Apache's bookies, instead of ours alone.
    """

    name: str
    figures: tuple[Figure, ...]
    run: Callable[[Stage, Contestant], Values]
    settings: tuple[Setting, ...] = (DEFAULT,)
    ways: tuple[Way, ...] = PLAIN
    has_own_cluster: bool = False
    is_crossed: bool = False


def driven(mode: str, *words: str) -> Callable[[Stage, Contestant], Values]:
    """One run of a driver."""
    return lambda stage, contestant: stage.drive(contestant, mode, *words)


def sizes(count: int, seed: int) -> list[int]:
    """Payload sizes as logs of events have them: half below 400 bytes, a few of many KiB."""
    chance = random.Random(seed)
    return [min(16_000, max(20, int(chance.lognormvariate(6, 1.2)))) for _ in range(count)]


# -- how cases run -----------------------------------------------------------------------------------------------------


def add_large(stage: Stage, contestant: Contestant) -> Values:
    """With the share of what the disk takes that was used, where the device counts what is written to it."""
    found = dict(stage.drive(contestant, "add", "--size", "16384", "--window", "1000"))
    if "disk_mb_s" not in found:
        return found
    return found | {"disk_share": 100 * found["disk_mb_s"] / stage.limits.disk_mb_s}


def add_to_many(stage: Stage, contestant: Contestant) -> Values:
    """Ten ledgers, and many; `share`: percent of the throughput that is left."""
    few = stage.drive(contestant, "add", "--window", "10000", "--ledgers", "10")
    many = stage.drive(contestant, "add", "--window", "10000", "--ledgers", str(stage.pace.count(10_000)))
    return {**many, "share": 100 * many["entries_per_s"] / few["entries_per_s"]}


def reading(
    mode: str, size: int, *words: str, is_cold: bool = False, is_warm: bool = False
) -> Callable[[Stage, Contestant], Values]:
    """Of a ledger that was written before. Cold: its first half, after the second and with no page of it in memory.
    Warm: after as long a time of the same, whoever reads."""

    def run(stage: Stage, contestant: Contestant) -> Values:
        entries = stage.pace.count(500_000)
        ledger = stage.ledger(contestant, size, entries)
        cold = ("--cold", "yes", "--last", str(entries // 2)) if is_cold else ()
        return stage.drive(contestant, mode, "--ledger", str(ledger), *cold, *words, is_warm=is_warm)

    return run


def recovery(window: int, entries: int, warm: int, ledgers: int) -> Callable[[Stage, Contestant], Values]:
    """Of ledgers whose writer is gone, one after the other."""

    def run(stage: Stage, contestant: Contestant) -> Values:
        counts = {"warm-ledgers": stage.pace.count(warm), "ledgers": stage.pace.count(ledgers)}
        words = [word for name, count in counts.items() for word in (f"--{name}", str(count))]
        return stage.drive(contestant, "recover", "--window", str(window), "--entries", str(entries), *words)

    return run


def cold_start(stage: Stage, contestant: Contestant) -> Values:
    """A new bookie: until it has stored an entry, and its memory a little later."""
    with stage.single(contestant) as cluster:
        (bookie,) = cluster.bookies
        began = time.perf_counter()
        bookie.start()
        bookie.wait_writable()
        elapsed = time.perf_counter() - began
        time.sleep(stage.pace.rest)
        return {"start_ms": 1000 * elapsed, "rest_mb": processes.usage(bookie.pid).resident_mb}


def restart(stage: Stage, contestant: Contestant) -> Values:
    """A bookie that was killed right after 570 MB were added, once its registration has lapsed; it replays them all.

    Raises `RuntimeError` when it has replayed less than nine tenths of them.
    """
    entries = stage.pace.count(JOURNAL_ENTRIES)
    with stage.single(contestant, NO_CHECKPOINT) as cluster:
        is_apache = isinstance(cluster, ApacheCluster)
        (bookie,) = cluster.bookies
        bookie.start()
        bookie.wait_writable()
        before = FIRST_FLUSH_ENTRIES if is_apache and entries > FIRST_FLUSH_ENTRIES else 0
        for count in filter(None, (before, entries)):
            words = "--quorums", "1,1,1", "--size", str(JOURNAL_ENTRY_SIZE), "--entries", str(count), "--close", "no"
            stage.drive(contestant, "fill", *words, cluster=cluster)
        bookie.kill()
        replay = replays.ApachesReplay(bookie) if is_apache else replays.OurReplay(bookie)
        time.sleep(LEASE_S)
        began = time.perf_counter()
        bookie.start()
        bookie.wait_writable()
        elapsed = time.perf_counter() - began
        replayed = replays.checked(replay.size(), entries * (JOURNAL_ENTRY_SIZE + replays.RECORD_OVERHEAD))
        return {"start_ms": 1000 * elapsed, "replayed_mb": replayed / 1e6}


# -- the cases ---------------------------------------------------------------------------------------------------------


def rate(ratio_min: float | None, limit: Callable[[limits.Limits], limits.Limit] | None = None) -> Figure:
    return Figure("entries_per_s", "entries/s", ratio_min=ratio_min, limit=limit)


def latency(key: str, ratio_min: float | None, limit: Callable[[limits.Limits], limits.Limit] | None = None) -> Figure:
    return Figure(key, "us", more_is_better=False, ratio_min=ratio_min, limit=limit)


def less(key: str, unit: str, *, ratio_min: float | None = None, bound: float | None = None) -> Figure:
    return Figure(key, unit, more_is_better=False, ratio_min=ratio_min, bound=bound)


TEN_LEDGERS = ("--ledgers", "10", "--window", "5000")
ONE = ("--size", "1024", "--window", "1")
P50, P99 = limits.sync(0.5), limits.sync(0.99)
SPREAD_OUT = ",".join(map(str, sizes(512, 7)))
BATCHES = Setting(words=("--api", "batches"), name="batches")
ROCKSDB_BATCHES = Setting("RocksDB", BATCHES.words, BATCHES.name)
POLL = ("--api", "poll", "--wire", "v2")
LONG_POLL = ("--api", "longpoll", "--wire", "v3")

CASES: tuple[Case, ...] = (
    Case(
        "start of a new bookie",
        (less("start_ms", "ms", ratio_min=8), less("rest_mb", "MB", bound=60)),
        cold_start,
        has_own_cluster=True,
    ),
    Case(
        "restart with 570 MB of journal",
        (less("start_ms", "ms", ratio_min=4),),
        restart,
        has_own_cluster=True,
    ),
    Case(
        "add 100 B, ten ledgers, 5,000 in flight",
        (rate(3.5, limits.adds(100)), less("bookie_mb", "MB", bound=200)),
        driven("add", "--size", "100", *TEN_LEDGERS),
        (DEFAULT, ROCKSDB),
        APPEND,
    ),
    Case(
        "add 1 KiB, 1,000 in flight",
        (rate(2, limits.adds(1024)), less("cpu_us", "us", ratio_min=2.5), less("bookie_mb", "MB", bound=200)),
        driven("add", "--size", "1024", "--window", "1000"),
        (DEFAULT, ROCKSDB),
        APPEND,
    ),
    Case(
        "add 16 KiB, 1,000 in flight",
        (
            rate(1.3, limits.adds(16384)),
            Figure("disk_share", "%", bound=80),
            less("written_per_payload", "B/B"),
            less("bookie_mb", "MB", bound=200),
        ),
        add_large,
        (DEFAULT, ROCKSDB),
        APPEND,
    ),
    Case(
        "add 1 KiB, ten ledgers, 5,000 in flight",
        (rate(2, limits.adds(1024)), latency("p99_us", 4, P99)),
        driven("add", "--size", "1024", *TEN_LEDGERS),
        ways=APPEND,
    ),
    Case(
        "add 1 KiB, one in flight",
        (latency("p50_us", 7, P50), latency("p99_us", 7, P99)),
        driven("add", *ONE),
    ),
    Case(
        "add 1 KiB, one in flight, Apache at low latency",
        (latency("p50_us", 1.67, P50), latency("p99_us", 1.67, P99)),
        driven("add", *ONE),
        (LOW_LATENCY,),
    ),
    *(
        Case(
            f"read {name} in order",
            (rate(4, limits.reads(size)), less("cpu_us", "us")),
            reading("read", size),
            (Setting(words=("--api", "entries"), name="entries"), BATCHES, ROCKSDB_BATCHES),
            READ,
        )
        for name, size in (("100 B", 100), ("1 KiB", 1024))
    ),
    Case(
        "tail, 1 KiB, 1,000 entries/s",
        (latency("p50_us", 5, P50), latency("p99_us", 5, P99)),
        driven("tail", "--rate", "1000"),
        (
            Setting(words=LONG_POLL, name="long poll"),
            Setting(words=POLL, name="poll"),
            Setting("low latency", LONG_POLL, "long poll"),
            Setting("low latency", POLL, "poll"),
        ),
    ),
    Case(
        "recovery, idle writer",
        (latency("p50_us", 3),),
        recovery(window=1, entries=10, warm=1000, ledgers=200),
    ),
    Case(
        "recovery, 1,000 entries in flight",
        (latency("p50_us", 5),),
        recovery(window=1000, entries=1000, warm=60, ledgers=40),
    ),
    *(
        Case(
            f"create and close ledgers, {count} at a time",
            (Figure("entries_per_s", "ledgers/s", ratio_min=1.5, limit=limits.syncs_per_second(2)),)
            if count == 1
            else (Figure("entries_per_s", "ledgers/s", ratio_min=1.5),),
            driven("create", "--window", str(count)),
        )
        for count in (1, 16)
    ),
    Case(
        "clients and bookies crossed, add 1 KiB, 1,000 in flight",
        (rate(1.5, limits.adds(1024)), less("client_cpu_us", "us"), less("bookies_cpu_us", "us")),
        driven("add", "--size", "1024", "--window", "1000"),
        is_crossed=True,
    ),
    Case(
        "add mixed sizes, ten ledgers, 1,000 in flight",
        (rate(None), less("cpu_us", "us")),
        driven("add", "--sizes", SPREAD_OUT, "--ledgers", "10", "--window", "1000"),
        (DEFAULT, ROCKSDB),
        APPEND,
    ),
    Case(
        "read 1 KiB at random, warm, 16 in flight",
        (rate(None, limits.reads(1024)), latency("p50_us", None), latency("p99_us", None)),
        reading("random", 1024, "--window", "16", is_warm=True),
        (DEFAULT, ROCKSDB),
    ),
    Case(
        "read 1 KiB at random, cold, 16 in flight",
        (rate(None), latency("p50_us", None), latency("p99_us", None)),
        reading("random", 1024, "--window", "16", is_cold=True),
        (DEFAULT, ROCKSDB),
    ),
    Case(
        "read 1 KiB in order, cold",
        (rate(None, limits.reads(1024)),),
        reading("read", 1024, is_cold=True),
        (BATCHES,),
        READ,
    ),
    Case(
        "add 1 KiB, 10,000 ledgers, 10,000 in flight",
        (rate(None, limits.adds(1024)), Figure("share", "% of ten ledgers", bound=75)),
        add_to_many,
    ),
)

# What `make bench` takes, which is there to look at often.
BRIEF = (
    "add 100 B, ten ledgers, 5,000 in flight",
    "add 1 KiB, 1,000 in flight",
    "add 16 KiB, 1,000 in flight",
    "add 1 KiB, one in flight",
    "read 1 KiB in order",
)
