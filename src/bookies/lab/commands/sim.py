"""`bk sim`: simulation of a whole cluster on virtual time, with faults from seeds or from a scenario file.

Reports broken promises. A run that breaks one is reduced to as few faults as possible and kept in a file.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import pathlib
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING

from msgspec import Struct

from bookies.admin.shared import Progress, UsageError
from bookies.admin.shared.command_line import DEBUG, Option, verb
from bookies.admin.shared.common import print_json, print_table

if TYPE_CHECKING:
    from bookies.admin.shared.report import Report
    from bookies.lab.sim.run import Result
    from bookies.lab.sim.scenario.scenario import ScenarioResult

COUNT_INTERVAL_S = 15.0  # between progress lines of a sweep where no progress bar is shown
SHRUNK_COUNT_MAX = 3  # failing runs that are reduced; the others are only reported


class _Row(Struct):
    """Totals of all runs of one profile."""

    histories: int = 0
    ledgers: int = 0
    steps: int = 0
    faults: int = 0
    violations: int = 0
    cpu_s: float = 0.0

    def add(self, result: Result) -> None:
        self.histories += 1
        self.ledgers += int(result.statistics.get("ledgers", 0))
        self.steps += int(result.statistics["callbacks"])
        self.faults += len(result.faults)
        self.violations += len(result.violations)
        self.cpu_s += result.cpu_s

    def cells(self) -> tuple[str, ...]:
        rate = 60 * self.histories / self.cpu_s if self.cpu_s else 0.0
        numbers = (self.histories, self.ledgers, self.steps, self.faults, self.violations, round(rate))
        return tuple(f"{number:,}" for number in numbers)


def _run(arguments: argparse.Namespace) -> Report | int:
    from bookies.lab.sim.faults.profiles import PROFILE_NAMES

    _check(arguments)
    if arguments.damage is not None:
        from bookies.lab.commands.damage_run import run_damage

        return run_damage(arguments.damage, first=arguments.seed or 0, is_quiet=arguments.json)
    if arguments.scenario:
        return _run_scenarios(arguments)
    if arguments.replay:
        return _replay(arguments)
    if arguments.profile not in PROFILE_NAMES:
        print("profiles:", ", ".join(PROFILE_NAMES), file=sys.stderr)
        return 0 if arguments.profile == "list" else 2
    seeds, is_endless = _seeds(arguments)
    deadline = time.monotonic() + 60 * arguments.minutes if arguments.minutes else None
    progress = Progress("histories", None if is_endless else len(seeds), quiet=arguments.json or arguments.trace)
    rows: dict[str, _Row] = {}
    done = failed = 0
    is_interrupted = False
    counted = time.monotonic()
    try:
        for result in _results(seeds, arguments, deadline):
            done += 1
            failed += bool(result.violations)
            rows.setdefault(result.profile, _Row()).add(result)
            progress.update(done, f"{failed} failed")
            if not sys.stderr.isatty() and time.monotonic() - counted > COUNT_INTERVAL_S:
                counted = time.monotonic()
                print(f"{done:,} histories, {failed} failed", file=sys.stderr, flush=True)
            _show(result, arguments, progress)
            if result.violations and not arguments.json and failed <= SHRUNK_COUNT_MAX:
                _keep(result, pathlib.Path(arguments.keep_in), progress)
    except KeyboardInterrupt:
        is_interrupted = True
    progress.clear()
    with contextlib.redirect_stdout(sys.stderr if arguments.json else sys.stdout):
        if done > 1:
            titles = ("profile", "histories", "ledgers", "steps", "faults", "violations", "histories/min/core")
            print_table([(name, *row.cells()) for name, row in sorted(rows.items())], titles, right=range(1, 7))
        print(f"{done} {'seed' if done == 1 else 'seeds'}, {failed} failed{', interrupted' if is_interrupted else ''}")
    return 130 if is_interrupted and not failed else 1 if failed else 0


def _check(arguments: argparse.Namespace) -> None:
    """Check the options. Raises `UsageError` for values out of range and for contradictions."""
    if arguments.jobs < 1:
        raise UsageError(f"--jobs {arguments.jobs}: must be 1 or more")
    if arguments.minutes is not None and not 0 < arguments.minutes < float("inf"):
        raise UsageError(f"--minutes {arguments.minutes:g}: must be more than 0")
    if arguments.seed is not None and arguments.seed < 0:
        raise UsageError(f"--seed {arguments.seed}: must be 0 or more")
    names = {"--scenario": arguments.scenario, "--replay": arguments.replay, "--seeds": arguments.seeds}
    given = [name for name, value in names.items() if value]
    if arguments.seed is not None:
        given.append("--seed")
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)}: use only one of these options")


def _keep(result: Result, directory: pathlib.Path, progress: Progress) -> None:
    """Reduce a failing run to the necessary faults and write it to a file for `--replay`."""
    from bookies.lab.sim.shrink import shrink

    recording = shrink(result, on_run=lambda runs, count: progress.update(runs, f"simplifying: {count} faults left"))
    progress.clear()
    path = directory / f"sim-{recording.profile}-{recording.seed}.json"
    path.write_text(recording.pack())
    print(f"{len(recording.faults)} of {len(result.faults)} faults suffice; repeat it with: bk sim --replay {path}")
    for name, fault in recording.faults.items():
        print(f"  {name}: {fault}")


def _replay(arguments: argparse.Namespace) -> int:
    from bookies.lab.sim.shrink import Recording, UnusableRecording

    try:
        recording = Recording.parse(pathlib.Path(arguments.replay).read_text())
    except UnicodeDecodeError as error:
        raise UsageError(f"--replay {arguments.replay}: not a text file, see byte {error.start}") from None
    except (UnusableRecording, OSError) as error:
        raise UsageError(f"--replay {arguments.replay}: {error}") from None
    result = recording.replay()
    _show(result, arguments, Progress("histories", None, quiet=True))
    if not arguments.json:
        if result.digest != recording.digest:
            print("the run differs from the recorded one: the code has changed since", file=sys.stderr)
        print(f"{len(result.faults)} faults, {len(result.violations)} violations")
    return 1 if result.violations else 0


def _run_scenarios(arguments: argparse.Namespace) -> int:
    from bookies.lab.sim.scenario import read_scenario, run_scenario
    from bookies.lab.sim.scenario.scenario import ScenarioError

    failed = 0
    for name in arguments.scenario:
        try:
            scenario = read_scenario(pathlib.Path(name))
        except UnicodeDecodeError as error:
            raise UsageError(f"--scenario {name}: not a text file, see byte {error.start}") from None
        except (ScenarioError, OSError) as error:
            raise UsageError(f"--scenario {name}: {error}") from None
        for variant in scenario.variants:
            result = run_scenario(scenario, variant)
            failed += bool(result.failures)
            _show_scenario(result, variant.title, arguments)
    return 1 if failed else 0


def _show_scenario(result: ScenarioResult, title: str, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print_json({"scenario": result.name, "title": title, "failures": list(result.failures)})
        return
    if arguments.trace:
        print("\n".join(result.lines))
    if result.failures:
        print(result.report(0 if arguments.trace else 60))
    else:
        print(f"{result.name}: ok  {title}")


def _seeds(arguments: argparse.Namespace) -> tuple[range, bool]:
    if arguments.seeds:
        first, dash, last = arguments.seeds.partition("-")
        if not (dash and first.isdigit() and last.isdigit() and int(first) <= int(last)):
            raise UsageError(f"--seeds {arguments.seeds}: expected two numbers in ascending order, such as 1-500")
        return range(int(first), int(last) + 1), False
    first_seed = 1 if arguments.seed is None else arguments.seed
    return (range(first_seed, sys.maxsize), True) if arguments.minutes else (range(first_seed, first_seed + 1), False)


def _simulate(seed: int, profile: str) -> Result:
    from bookies.lab.sim.run import simulate

    return simulate(seed, profile)


def _begin_worker() -> None:
    """Leave Ctrl-C to the parent, and exempt the loaded modules from garbage collection."""
    import bookies.lab.sim.run  # noqa: F401

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()


def _results(seeds: range, arguments: argparse.Namespace, deadline: float | None) -> Iterator[Result]:
    def in_time() -> bool:
        return deadline is None or time.monotonic() < deadline

    if arguments.jobs == 1:
        gc.collect()
        gc.freeze()
        for seed in seeds:
            if not in_time():
                return
            yield _simulate(seed, arguments.profile)
        return
    pool = ProcessPoolExecutor(arguments.jobs, initializer=_begin_worker)
    try:
        ahead = []
        for seed in seeds:
            if not in_time():
                break
            ahead.append(pool.submit(_simulate, seed, arguments.profile))
            if len(ahead) >= 4 * arguments.jobs:
                yield ahead.pop(0).result()
        for future in ahead:
            yield future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _show(result: Result, arguments: argparse.Namespace, progress: Progress) -> None:
    if arguments.json:
        print_json(
            {
                "seed": result.seed,
                "profile": result.profile,
                "digest": result.digest,
                "violations": result.violations,
                "statistics": result.statistics,
            }
        )
        return
    if arguments.trace:
        print("\n".join(result.lines))
    if result.violations:
        progress.clear()
        print(result.report(0 if arguments.trace else 60))
    elif arguments.trace or (arguments.seed is not None and not arguments.minutes):
        print("  ".join(f"{name}={value:g}" for name, value in result.statistics.items()))
        print(f"trace {result.digest}")


VERBS = (
    verb(
        "sim",
        "simulate a cluster on virtual time with faults",
        "example:  bk sim --seed 7 --trace        bk sim --profile small --minutes 10 --jobs 2\n"
        "          bk sim --replay FILE           bk sim --scenario FILE",
        _run,
        Option("--seed N", "seed to run, or the first one (default 1)", int),
        Option("--seeds A-B", "run all seeds from A to B"),
        Option("--minutes M", "run consecutive seeds, from --seed, for M minutes", float),
        Option("--profile NAME", "faults to inject; --profile list prints the names", default="mixed"),
        Option("--scenario FILE", "run this schedule instead of seeds; may be repeated", may_repeat=True),
        Option("--damage N", "check N random mutations of a bookie's files, from --seed", int),
        Option("--replay FILE", "repeat a recorded run that broke a promise"),
        Option("--keep-in DIR", "directory for runs that break a promise (default: current)", default="."),
        Option("--trace", "print the whole trace, not only a failure's last lines", bool),
        Option("--jobs J", "number of processes (default 1)", int, default=1),
        Option("--json", "print one JSON document per run on stdout", bool),
        DEBUG,
        shared=(),
    ),
)
