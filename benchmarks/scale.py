"""How far one machine goes: 1 to 4 of our bookies under 1 to 4 client processes, every mixture of them.

    python -m benchmarks.scale                          half an hour (make bench-scale)
    python -m benchmarks.scale --quick                  within two minutes: whether all works, no figures to believe
    python -m benchmarks.scale --json FILE && python -m benchmarks.model FILE

Ours alone, metadata in the embedded store. Ledgers have E=Qw=min(3, bookies) and Qa=min(2, bookies). Each client
process has four ledgers of its own for adds and one for reads; all processes begin to count at one moment and count for
the same time. docs/internals/performance.md says what the figures are for.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import Any

from benchmarks.suite import ending, limits, processes
from benchmarks.suite.figures import spread
from benchmarks.suite.guard import DriveFailed, Guard
from benchmarks.suite.servers import OurCluster, environment_of
from benchmarks.suite.stage import DRIVE, PATIENCE_S, Costs, figures_of
from benchmarks.suite.table import NOTHING, number

CORES = os.cpu_count() or 1
START_S = 0.05  # between telling the drivers when to begin, and then
KEPT_FREE = 5e9  # bytes of the disk that no cell may take
READ_SIZE = 1024  # bytes of an entry that is read


@dataclass(frozen=True, slots=True)
class Case:
    """What the clients of a cell do: words for their driver. `size`: of an entry, bytes."""

    name: str
    size: int
    words: tuple[str, ...]
    is_read: bool = False


@dataclass(frozen=True, slots=True)
class Cell:
    case: str
    bookies: int
    clients: int


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a cell. `values`: see `Team.measure`; empty when it failed."""

    cell: Cell
    values: dict[str, float]
    failure: str = ""


def adding(size: int, window: int, ledgers: int = 4) -> tuple[str, ...]:
    return "add", "--size", str(size), "--window", str(window), "--ledgers", str(ledgers), "--together", "yes"


GRID = (
    Case("add 100 B", 100, adding(100, 2000)),
    Case("add 1 KiB", 1024, adding(1024, 2000)),
    # Four clients together stay below what a bookie takes in while its write cache is being flushed.
    Case("add 16 KiB", 16384, adding(16384, 100)),
    Case("read 1 KiB", READ_SIZE, ("read", "--api", "batches", "--together", "yes"), is_read=True),
)
# By one process on three bookies, for the model: what a batch costs that has one entry, a sync, a ledger.
SINGLES = (
    Case("one in flight", 1024, adding(1024, 1, 1)),
    Case("a ledger an entry", 100, adding(100, 1000, 1000)),
    Case("create and seal", 0, ("create", "--window", "16", "--together", "yes")),
)
CASES = {case.name: case for case in (*GRID, *SINGLES)}


@dataclass(frozen=True, slots=True)
class RateLimit:
    """`seconds` are counted after `warmup`; `entries` of each ledger that is read; the grid: bookies, clients."""

    seconds: float = 4.0
    warmup: float = 2.0
    entries: int = 50_000
    bookies: tuple[int, ...] = (1, 2, 3, 4)
    clients: tuple[int, ...] = (1, 2, 3, 4)


QUICK = RateLimit(0.7, 0.4, 5_000, (1, 3), (1, 2, 4))


def quorums(bookies: int) -> tuple[int, int, int]:
    """E, Qw and Qa on so many bookies."""
    return min(3, bookies), min(3, bookies), min(2, bookies)


def cells(pace: RateLimit) -> list[Cell]:
    """All of one round, those of a cluster together."""
    found = []
    for bookies in pace.bookies:
        found += [Cell(case.name, bookies, clients) for case in GRID for clients in pace.clients]
        if bookies == 3:
            found += [Cell(case.name, bookies, 1) for case in SINGLES]
    return found


class Team:
    """Several drivers on one cluster, each a process and told its `words`. Use as a context manager."""

    def __init__(self, cluster: OurCluster, words: Sequence[Sequence[str]]) -> None:
        self._cluster = cluster
        self._log = cluster.directory / "drive.log"
        self._log.unlink(missing_ok=True)
        self._words = words
        self._team: list[subprocess.Popen[str]] = []
        self._guard = Guard(cluster, self._give_up, PATIENCE_S)

    def __enter__(self) -> Team:
        for words in self._words:
            command = [sys.executable, "-P", str(DRIVE), *words]
            environment = environment_of(None)
            self._team.append(processes.spawn(command, log=self._log, environment=environment, pipes=True))
        self._guard.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        try:
            self._guard.__exit__(*raised)
        finally:
            for process in self._team:
                processes.stop(process)

    def _give_up(self) -> None:
        """End those that take far too long: whoever reads from them gets to know."""
        for process in self._team:
            process.kill()

    def results(self) -> list[dict[str, float]]:
        """Of each driver, when all have ended. Raises `DriveFailed`."""
        found = [self._wait(process, "result") for process in self._team]
        if any(each["errors"] for each in found):
            raise self._failed()
        return found

    def measure(self, seconds: float) -> dict[str, float]:
        """Have all begin at one moment, and watch them and the bookies. Raises `DriveFailed`.

        As `Stage.drive`; and for everybody together: `used` and `busy` (processors that this cluster and its clients,
        and that anybody used), `client_cores`, `bookie_cores` (of the one that used most), `journal_per_payload`,
        `log_per_payload`, `filed_per_payload` (bytes to files), `loopback_per_entry` (bytes of anybody's).
        """
        for process in self._team:
            self._wait(process, "ready")
        begin = time.perf_counter() + START_S
        for process in self._team:
            assert process.stdin is not None
            process.stdin.write(f"{begin}\n")
            process.stdin.flush()
        time.sleep(max(0.0, begin - time.perf_counter()))
        before = self._look()
        time.sleep(max(0.0, begin + seconds - time.perf_counter()))
        after = self._look()
        return self._values(before, after, self.results())

    def _wait(self, process: subprocess.Popen[str], event: str) -> dict[str, Any]:
        assert process.stdout is not None
        for line in process.stdout:
            with contextlib.suppress(ValueError):
                fact: dict[str, Any] = json.loads(line)
                if fact["event"] == event:
                    return fact
        raise self._failed()

    def _failed(self) -> DriveFailed:
        said = self._log.read_text(errors="replace").strip()
        return DriveFailed(said[-600:] or "a driver ended without a word")

    def _look(self) -> Look:
        own = [processes.usage(process.pid) for process in self._team]
        pids = self._cluster.pids()
        bookies = [processes.usage(pid) for pid in pids]
        homes = [bookie.home for bookie in self._cluster.bookies]
        return Look(
            time.perf_counter(),
            own,
            bookies,
            processes.device_written(self._cluster.directory),
            sum(map(processes.filed_bytes, pids)),
            sum(map(logged, homes)),
            busy_s(),
            loopback(),
        )

    def _values(self, before: Look, after: Look, results: Sequence[Mapping[str, float]]) -> dict[str, float]:
        elapsed = after.at - before.at
        clients = [b.cpu_s - a.cpu_s for a, b in zip(before.clients, after.clients, strict=True)]
        bookies = [b.cpu_s - a.cpu_s for a, b in zip(before.bookies, after.bookies, strict=True)]
        costs = Costs(
            sum(clients),
            sum(bookies),
            processes.written_between(before.written, after.written),
            max(each.resident_mb for each in after.clients),
            max(each.resident_mb for each in after.bookies),
        )
        whole: dict[str, float] = {
            "entries": sum(each["entries"] for each in results),
            "bytes": sum(each["bytes"] for each in results),
            "elapsed_s": statistics.mean(each["elapsed_s"] for each in results),
            "p50_us": statistics.median(each["p50_us"] for each in results),
            "p99_us": max(each["p99_us"] for each in results),
            "ledger": -1,
        }
        found = figures_of(whole, costs) | {
            "used": (sum(clients) + sum(bookies)) / elapsed,
            "busy": (after.busy_s - before.busy_s) / elapsed,
            "client_cores": max(clients) / elapsed,
            "bookie_cores": max(bookies) / elapsed,
            "loopback_per_entry": (after.loopback - before.loopback) / whole["entries"],
        }
        if whole["bytes"]:
            # What files were given, not what had reached the device by then: most of a log follows half a minute later.
            found["log_per_payload"] = (after.logged - before.logged) / whole["bytes"]
            found["filed_per_payload"] = (after.filed - before.filed) / whole["bytes"]
            found["journal_per_payload"] = found["filed_per_payload"] - found["log_per_payload"]
        return found


@dataclass(frozen=True, slots=True)
class Look:
    """At one moment. `written`: bytes to the device, None: it has no counter; `filed`: bytes that bookies gave the
    kernel for files, `logged`: those in entry logs and indexes; `busy_s`: of all processors; `loopback`: bytes."""

    at: float
    clients: list[processes.Usage]
    bookies: list[processes.Usage]
    written: int | None
    filed: int
    logged: int
    busy_s: float
    loopback: int


def logged(home: pathlib.Path) -> int:
    """Bytes on the disk in a bookie's ledger directory."""
    total = 0
    for path in (home / "ledgers").rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            total += path.stat().st_blocks * 512
    return total


def busy_s() -> float:
    """Seconds that all processors have worked since the machine's start."""
    fields = [int(each) for each in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / processes.TICKS


def loopback() -> int:
    """Bytes that have gone through the loopback interface."""
    for line in pathlib.Path("/proc/net/dev").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name.strip() == "lo":
            return int(rest.split()[0])
    return 0


class Bench:
    """Clusters, one after the other. Use as a context manager, which leaves no process and no file."""

    def __init__(self, directory: pathlib.Path, pace: RateLimit, disk_mb_s: float) -> None:
        self._directory, self._pace, self._disk_mb_s = directory, pace, disk_mb_s
        self._cluster: OurCluster | None = None
        self._bookies = 0
        self._ledgers: list[int] = []  # one for each process that reads

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.stop()
        self._cluster, self._ledgers = None, []

    def run(self, cell: Cell) -> dict[str, float]:
        """One cell. Raises `DriveFailed`, or `SystemExit` when the disk has no room for it."""
        cluster = self._started(cell.bookies)
        case, pace = CASES[cell.case], self._pace
        times = ("--warmup", str(pace.warmup), "--seconds", str(pace.seconds))
        words = [[*case.words, *self._common(cluster), *times] for _ in range(cell.clients)]
        if case.is_read:
            words = [[*each, "--ledger", str(ledger)] for each, ledger in zip(words, self._ledgers, strict=False)]
        os.sync()  # What the one before has written is not this one's to wait for.
        with Team(cluster, words) as team:
            return team.measure(pace.seconds)

    def _fill(self, cluster: OurCluster) -> None:
        """With the ledgers that are read later; bookies are warm then."""
        entries = str(self._pace.entries)
        words = ["fill", "--size", str(READ_SIZE), "--entries", entries, *self._common(cluster)]
        with Team(cluster, [words] * max(self._pace.clients)) as team:
            self._ledgers = [int(each["ledger"]) for each in team.results()]

    def _common(self, cluster: OurCluster) -> tuple[str, ...]:
        """Words that every driver is told."""
        return "--quorums", ",".join(map(str, quorums(self._bookies))), "--metadata", cluster.metadata_uri

    def _started(self, bookies: int) -> OurCluster:
        """A cluster of so many, with room on the disk for what a cell writes."""
        if self._cluster is not None and (self._bookies != bookies or not self._cluster.is_whole()):
            self.stop()
        if self._cluster is not None and not self._has_room():
            self.stop()
        if self._cluster is None:
            if not self._has_room():
                raise SystemExit(f"a run needs {self._needed() / 1e9:.0f} GB of free space; --directory says where")
            self._bookies = bookies
            self._cluster = OurCluster(self._directory / f"{bookies}-bookies", bookies, zookeeper=False)
            self._cluster.start()
            self._fill(self._cluster)
        return self._cluster

    def _needed(self) -> float:
        """Bytes: all that the disk takes in a cell, which lasts a little longer than what is counted."""
        return KEPT_FREE + (self._pace.warmup + self._pace.seconds + 5) * 1.2 * self._disk_mb_s * 1e6

    def _has_room(self) -> bool:
        return shutil.disk_usage(self._directory).free > self._needed()


def measure(bench: Bench, pace: RateLimit, count: int, runs: list[Run]) -> None:
    """`count` rounds, each run added to `runs`; every other one in the opposite order."""
    planned = cells(pace)
    total = count * len(planned)
    for round_ in range(count):
        for cell in planned if round_ % 2 == 0 else reversed(planned):
            try:
                runs.append(Run(cell, bench.run(cell)))
            except (DriveFailed, RuntimeError, OSError) as error:
                bench.stop()
                runs.append(Run(cell, {}, f"{type(error).__name__}: {error}"))
            _say(runs[-1], len(runs), total)


def _say(run: Run, done: int, total: int) -> None:
    cell = f"{run.cell.case}, {run.cell.bookies} bookies, {run.cell.clients} clients"
    shown = run.failure or (
        f"{run.values['entries_per_s']:,.0f}/s, {run.values['client_cpu_us']:.1f} + "
        f"{run.values['bookies_cpu_us']:.1f} us, {run.values['used']:.2f} of {run.values['busy']:.2f} busy processors"
    )
    print(f"{time.strftime('%H:%M:%S')} {done}/{total}  {cell}: {shown}", file=sys.stderr, flush=True)


def document(runs: Sequence[Run], allowed: limits.Limits) -> dict[str, Any]:
    """Everything that counts, for `benchmarks.model`: of each cell the medians, and entries/s of each run."""
    found = []
    for cell in sorted({run.cell for run in runs}, key=lambda each: (list(CASES).index(each.case), *astuple(each)[1:])):
        mine = [run for run in runs if run.cell == cell]
        values = [run.values for run in mine if run.values]
        middle = {name: significant(statistics.median(each[name] for each in values)) for name in (values or [{}])[0]}
        rates = [significant(each["entries_per_s"]) for each in values]
        facts = {"size": CASES[cell.case].size, "failed": len(mine) - len(values), "rates": rates}
        found.append({**asdict(cell), **facts, **middle})
    return {"cores": CORES, "limits": asdict(allowed), "cells": found}


def significant(value: float) -> float:
    """Five digits of it."""
    return float(f"{value:.5g}")


def text_of(measured: Mapping[str, Any]) -> str:
    """As JSON, a line a cell."""
    lines = ",\n".join(f"  {json.dumps(cell)}" for cell in measured["cells"])
    head = json.dumps({name: value for name, value in measured.items() if name != "cells"})
    return f'{head[:-1]}, "cells": [\n{lines}\n]}}\n'


def rates(measured: Mapping[str, Any]) -> str:
    """Markdown: entries a second of all clients, by bookies and clients."""
    counts = sorted({cell["clients"] for cell in measured["cells"]})
    heads = " | ".join(f"{each} client{'s' * (each > 1)}" for each in counts)
    lines = [f"| entries/s | bookies | {heads} |", f"|---|---:|{'---:|' * len(counts)}"]
    by_row: dict[tuple[str, int], dict[int, Mapping[str, Any]]] = {}
    for cell in measured["cells"]:
        if cell["case"] in {case.name for case in GRID}:
            by_row.setdefault((cell["case"], cell["bookies"]), {})[cell["clients"]] = cell
    for (case, bookies), row in by_row.items():
        texts = [_spread(row[each]["rates"]) if each in row else NOTHING for each in counts]
        lines.append(f"| {case} | {bookies} | {' | '.join(texts)} |")
    return "\n".join(lines)


def _spread(values: Sequence[float]) -> str:
    found = spread(values)
    if found is None:
        return NOTHING
    if found.low == found.high:
        return f"{found.median:,.0f}"
    return f"{found.median:,.0f} ({found.low:,.0f} to {found.high:,.0f})"


def costs(measured: Mapping[str, Any]) -> str:
    """Markdown: what each cell cost."""
    cores = measured["cores"]
    head = "| case | bookies | clients | entries/s | clients, CPU s for 1,000,000 entries | bookies, the same |"
    head += " processors, % | in all, % | B to files for each of payload | p50, ms |"
    lines = [head, f"|---|{'---:|' * 9}"]
    for cell in (each for each in measured["cells"] if each["rates"]):
        columns = (
            f"{cell['bookies']} | {cell['clients']} | {cell['entries_per_s']:,.0f}",
            number(cell["client_cpu_us"]),
            number(cell["bookies_cpu_us"]),
            f"{100 * cell['used'] / cores:.0f} | {100 * cell['busy'] / cores:.0f}",
            number(cell["filed_per_payload"]) if "filed_per_payload" in cell else NOTHING,
            number(cell["p50_us"] / 1000) if cell["p50_us"] else NOTHING,
        )
        lines.append(f"| {cell['case']} | {' | '.join(columns)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="short runs of a part of the grid")
    parser.add_argument("--runs", type=int, help="of each cell (default 3, with --quick 1)")
    parser.add_argument("--seconds", type=float, help="counted in each run (default 4)")
    parser.add_argument("--json", metavar="FILE", help="everything, one document, for `python -m benchmarks.model`")
    parser.add_argument("--directory", type=pathlib.Path, help="for the data of all (default: temporary)")
    arguments = parser.parse_args()
    count = arguments.runs if arguments.runs is not None else 1 if arguments.quick else 3
    if count < 1 or (arguments.seconds is not None and arguments.seconds <= 0):
        parser.error("--runs must be 1 or more and --seconds above 0")
    pace = QUICK if arguments.quick else RateLimit()
    if arguments.seconds is not None:
        pace = RateLimit(arguments.seconds, pace.warmup, pace.entries, pace.bookies, pace.clients)
    if arguments.directory is not None:
        arguments.directory.mkdir(parents=True, exist_ok=True)
    return ending.orderly(lambda: _measure(arguments, pace, count))


def _measure(arguments: argparse.Namespace, pace: RateLimit, count: int) -> int:
    """Exit status: 1 when a run has failed."""
    runs: list[Run] = []
    prefix = "bk-scale-"
    with tempfile.TemporaryDirectory(prefix=prefix, dir=arguments.directory, ignore_cleanup_errors=True) as name:
        directory = pathlib.Path(name)
        allowed = limits.measure(directory, 0.5 if arguments.quick else 5.0)
        print(allowed.describe(), flush=True)
        try:
            with Bench(directory, pace, allowed.disk_mb_s) as bench:
                measure(bench, pace, count, runs)
        finally:  # What was measured before an interrupt is not lost.
            found = document(runs, allowed)
            print(f"\n{rates(found)}\n\n{costs(found)}", flush=True)
            if arguments.json:
                pathlib.Path(arguments.json).write_text(text_of(found))
    return int(any(run.failure for run in runs))


if __name__ == "__main__":
    sys.exit(main())
