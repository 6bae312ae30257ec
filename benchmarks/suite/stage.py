"""Where cases run: clusters that are started when one is needed, drivers, and what their runs cost."""

from __future__ import annotations

import contextlib
import json
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.suite import processes
from benchmarks.suite.guard import DriveFailed, Guard
from benchmarks.suite.java import java
from benchmarks.suite.limits import Limits
from benchmarks.suite.servers import SETTINGS, ApacheCluster, Cluster, OurCluster, environment_of

DRIVE = pathlib.Path(__file__).with_name("drive.py")
PATIENCE_S = 240.0  # of a driver, beyond what it was told to take


@dataclass(frozen=True, slots=True)
class Contestant:
    """A cluster and a client for it. `servers`: "Apache: SETTING", "ours", or a revision; `client`: "Java", or ours of
    this revision ("ours") or another. `words`: of the driver, beside those of the case."""

    name: str
    servers: str
    client: str
    words: tuple[str, ...] = ()
    is_asked: bool = True


@dataclass(frozen=True, slots=True)
class RateLimit:
    """How long things take: seconds that are measured, that ours and Java's clients warm up before, that a bookie is
    left alone before its memory counts; `scale`: of the numbers of entries and ledgers."""

    seconds: float = 8
    warmup: float = 3
    java_warmup: float = 25
    rest: float = 5
    scale: float = 1

    def count(self, number: int) -> int:
        """A number of entries or ledgers, scaled."""
        return max(1, int(number * self.scale))


QUICK = RateLimit(2, 1, 4, 1, 0.1)
BEFORE, NOW = "before", "now"  # the servers of two revisions


class Stage:
    """`packages`: where each revision is installed, by name, when revisions are compared. `settings`: of the bookies of
    this checkout. Use as a context manager.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        pace: RateLimit,
        limits: Limits,
        *,
        free_gb_min: float,
        packages: Mapping[str, pathlib.Path] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.pace, self.limits = pace, limits
        self._directory, self._free_gb_min = directory, free_gb_min
        self._packages, self._settings = dict(packages or {}), dict(settings or {})
        self._clusters: dict[str, Cluster] = {}
        self._ledgers: dict[tuple[str, int], int] = {}

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- clusters ------------------------------------------------------------------------------------------------
    def cluster(self, contestant: Contestant) -> Cluster:
        """The contestant's, which runs and is warm."""
        cluster = self._clusters.get(contestant.servers)
        if cluster is None:
            cluster = self._new(contestant.servers, 3)
            cluster.start()
            self._clusters[contestant.servers] = cluster
            client = "Java" if contestant.servers.startswith("Apache") else contestant.servers
            warm = Contestant("warm-up", contestant.servers, client)
            self.drive(warm, "add", "--window", "1000", seconds=0.5)
        return cluster

    def make_room(self) -> None:
        """Throw everything away that clusters have stored, when the disk has become too full for another run."""
        if shutil.disk_usage(self._directory).free < self._free_gb_min * 1e9:
            self.stop()

    def stop(self, servers: str | None = None) -> None:
        """Stop that cluster, or all; one that is needed again starts empty."""
        for name in [servers] if servers is not None else list(self._clusters):
            cluster = self._clusters.pop(name, None)
            if cluster is not None:
                cluster.stop()
            self._ledgers = {key: ledger for key, ledger in self._ledgers.items() if key[0] != name}

    def stop_broken(self) -> None:
        """Stop clusters of which a process has ended."""
        for name, cluster in list(self._clusters.items()):
            if not cluster.is_whole():
                self.stop(name)

    @contextlib.contextmanager
    def single(
        self, contestant: Contestant, our_settings: Mapping[str, object] | None = None
    ) -> Iterator[ApacheCluster | OurCluster]:
        """A cluster of one bookie, prepared and not started, for this case alone. `our_settings`: of ours."""
        cluster = self._new(contestant.servers, 1, our_settings)
        try:
            cluster.prepare()
            yield cluster
        finally:
            cluster.stop()

    def _new(
        self, servers: str, bookies: int, our_settings: Mapping[str, object] | None = None
    ) -> ApacheCluster | OurCluster:
        directory = self._directory / f"{servers.replace(': ', '-').replace(' ', '-').lower()}-{bookies}"
        if servers.startswith("Apache"):
            return ApacheCluster(directory, bookies, SETTINGS[servers.partition(": ")[2]])
        packages = self._packages.get(servers)
        settings = dict(our_settings or {})
        if servers != BEFORE:
            settings |= self._settings
        return OurCluster(directory, bookies, packages=packages, zookeeper=not self._packages, settings=settings)

    # -- drivers -------------------------------------------------------------------------------------------------
    def ledger(self, contestant: Contestant, size: int, entries: int) -> int:
        """A closed ledger of the contestant's cluster with so many entries of `size` bytes."""
        self.cluster(contestant)
        key = contestant.servers, size
        if key not in self._ledgers:
            result = self.drive(contestant, "fill", "--size", str(size), "--entries", str(entries))
            self._ledgers[key] = int(result["ledger"])
        return self._ledgers[key]

    def drive(
        self,
        contestant: Contestant,
        mode: str,
        *words: str,
        cluster: Cluster | None = None,
        seconds: float | None = None,
        is_warm: bool = False,
    ) -> dict[str, float]:
        """One run of a driver on the contestant's cluster (or `cluster`). Raises `DriveFailed`.

        `is_warm`: ours warms up as long as Java's, for what is warm only when its pages have just been used; systems
        take back memory that was idle while the other contestant ran.

        Of what it measured: entries_per_s, p50_us, p99_us; client_cpu_us, bookies_cpu_us and their sum cpu_us, for
        each entry; written_per_payload (bytes that reached the device for each of payload), disk_mb_s, both only where
        the device counts; client_mb and bookie_mb (the largest), at the end; ledger.
        """
        cluster = cluster or self.cluster(contestant)
        is_long = is_warm or contestant.client == "Java"
        warmup = self.pace.java_warmup if is_long else self.pace.warmup
        seconds = seconds or self.pace.seconds
        words = (mode, "--metadata", cluster.metadata_uri, *words, *contestant.words)
        words += ("--warmup", str(warmup), "--seconds", str(seconds))
        environment = None
        if contestant.client == "Java":
            command = java("Drive", *words, heap=("1g", "1g"))
        else:
            command = [sys.executable, "-P", str(DRIVE), *words]
            environment = environment_of(self._packages.get(contestant.client))
        log = self._directory / "drive.log"
        log.unlink(missing_ok=True)
        process = processes.spawn(command, log=log, environment=environment, pipes=True)
        watched = Watched(process, cluster)
        try:
            with Guard(cluster, process.kill, PATIENCE_S + warmup + seconds):
                result = watched.result()
        finally:
            processes.stop(process)
        if result is None or result["errors"]:
            said = log.read_text(errors="replace").strip()
            raise DriveFailed(said[-600:] or "the driver ended without a word")
        return figures_of(result, watched.costs, is_timed=mode != "fill")


@dataclass(frozen=True, slots=True)
class Costs:
    """Between "begin" and "end": CPU seconds of the client and of all bookies, bytes written to the bookies' device
    (None: it does not count them); then the memory of the client and of the largest bookie, MB."""

    client_cpu_s: float = 0.0
    bookies_cpu_s: float = 0.0
    written_bytes: int | None = None
    client_mb: float = 0.0
    bookie_mb: float = 0.0


class Watched:
    """A driver's lines, and what its process and the bookies cost between "begin" and "end"."""

    def __init__(self, process: subprocess.Popen[str], cluster: Cluster) -> None:
        self._process, self._cluster = process, cluster
        self.costs = Costs()

    def result(self) -> dict[str, Any] | None:
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        before, written = list[processes.Usage](), None
        directory = self._cluster.directory
        result: dict[str, Any] | None = None
        for line in self._process.stdout:
            if not line.startswith("{"):
                continue
            try:
                fact = json.loads(line)
            except ValueError:
                raise DriveFailed(f"the driver ended in the middle of a line: {line!r}") from None
            if fact["event"] == "ready":
                processes.drop_pages([directory])
                self._process.stdin.write("\n")
                self._process.stdin.flush()
            elif fact["event"] == "begin":
                before, written = self._usage(), processes.device_written(directory)
            elif fact["event"] == "end":
                written = processes.written_between(written, processes.device_written(directory))
                self.costs = _between(before, self._usage(), written)
            else:
                result = fact
        return result

    def _usage(self) -> list[processes.Usage]:
        return [processes.usage(pid) for pid in (self._process.pid, *self._cluster.pids())]


def _between(before: Sequence[processes.Usage], after: Sequence[processes.Usage], written: int | None) -> Costs:
    """The client comes first."""
    cpu = [b.cpu_s - a.cpu_s for a, b in zip(before, after, strict=True)]
    return Costs(cpu[0], sum(cpu[1:]), written, after[0].resident_mb, max(each.resident_mb for each in after[1:]))


def figures_of(result: Mapping[str, float], costs: Costs, *, is_timed: bool = True) -> dict[str, float]:
    """What a run comes to. See `Stage.drive`."""
    entries, elapsed, size = result["entries"], result["elapsed_s"], result["bytes"]
    found: dict[str, float] = {"ledger": result["ledger"], "client_mb": costs.client_mb, "bookie_mb": costs.bookie_mb}
    if not entries or not elapsed:
        if is_timed:
            raise DriveFailed("nothing was done in the time that was measured")
        return found
    found |= {name: result[name] for name in ("p50_us", "p99_us")}
    found["entries_per_s"] = entries / elapsed
    found["client_cpu_us"] = costs.client_cpu_s * 1e6 / entries
    found["bookies_cpu_us"] = costs.bookies_cpu_s * 1e6 / entries
    found["cpu_us"] = found["client_cpu_us"] + found["bookies_cpu_us"]
    if costs.written_bytes is None:
        return found
    found["disk_mb_s"] = costs.written_bytes / 1e6 / elapsed
    if size:
        found["written_per_payload"] = costs.written_bytes / size
    return found
