"""`bk sim`: run the whole cluster on virtual time, from seeds with faults or by the schedule of a scenario file; say
what broke, or that nothing did."""

from __future__ import annotations

import argparse
import pathlib
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING

from bookies.admin.common import Progress, print_json
from bookies.admin.usage import UsageError

if TYPE_CHECKING:
    from bookies.sim.run import Result
    from bookies.sim.scenario import ScenarioResult


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "example:  bk sim --seed 7 --trace        bk sim --seeds 1-500 --jobs 2        bk sim --scenario FILE"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="run this seed (default 1)")
    parser.add_argument("--seeds", metavar="A-B", help="run all seeds from A to B")
    parser.add_argument("--minutes", type=float, metavar="M", help="run seeds from --seed on for so long")
    parser.add_argument("--profile", default="mixed", metavar="NAME", help="what goes wrong; --profile list names them")
    parser.add_argument(
        "--scenario", action="append", metavar="FILE", help="run this schedule instead of seeds; may be repeated"
    )
    parser.add_argument("--trace", action="store_true", help="print every line of the trace, not only a failure's last")
    parser.add_argument("--jobs", type=int, default=1, metavar="J", help="processes (default 1)")
    parser.add_argument("--json", action="store_true", help="one JSON document per run on stdout")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")


def run(arguments: argparse.Namespace) -> int:
    from bookies.sim.run import PROFILES

    if arguments.scenario:
        return _run_scenarios(arguments)
    if arguments.jobs < 1:
        raise UsageError(f"--jobs {arguments.jobs}: at least one is needed")
    if arguments.profile not in PROFILES:
        print("profiles:", ", ".join(PROFILES), file=sys.stderr)
        return 0 if arguments.profile == "list" else 2
    seeds, is_endless = _seeds(arguments)
    deadline = time.monotonic() + 60 * arguments.minutes if arguments.minutes else None
    progress = Progress("seeds", None if is_endless else len(seeds), quiet=arguments.json or arguments.trace)
    done = failed = 0
    for result in _results(seeds, arguments, deadline):
        done += 1
        failed += bool(result.violations)
        progress.update(done, f"{failed} failed")
        _show(result, arguments, progress)
    progress.clear()
    if not arguments.json:
        print(f"{done} {'seed' if done == 1 else 'seeds'}, {failed} failed")
    return 1 if failed else 0


def _run_scenarios(arguments: argparse.Namespace) -> int:
    from bookies.sim.scenario import ScenarioError, read_scenario, run_scenario

    failed = 0
    for name in arguments.scenario:
        try:
            scenario = read_scenario(pathlib.Path(name))
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
            raise UsageError(f"--seeds {arguments.seeds}: expected two numbers, as in 1-500")
        return range(int(first), int(last) + 1), False
    first_seed = 1 if arguments.seed is None else arguments.seed
    return (range(first_seed, sys.maxsize), True) if arguments.minutes else (range(first_seed, first_seed + 1), False)


def _simulate(seed: int, profile: str) -> Result:
    from bookies.sim.run import simulate

    return simulate(seed, profile)


def _results(seeds: range, arguments: argparse.Namespace, deadline: float | None) -> Iterator[Result]:
    def in_time() -> bool:
        return deadline is None or time.monotonic() < deadline

    if arguments.jobs == 1:
        for seed in seeds:
            if not in_time():
                return
            yield _simulate(seed, arguments.profile)
        return
    with ProcessPoolExecutor(arguments.jobs) as pool:
        ahead = []
        for seed in seeds:
            if not in_time():
                break
            ahead.append(pool.submit(_simulate, seed, arguments.profile))
            if len(ahead) >= 2 * arguments.jobs:
                yield ahead.pop(0).result()
        for future in ahead:
            yield future.result()


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
    elif arguments.trace or arguments.seed is not None:
        print("  ".join(f"{name}={value:g}" for name, value in result.statistics.items()))
        print(f"trace {result.digest}")
