"""Apache BookKeeper and ours, or two revisions of ours, side by side on this machine.

    python -m benchmarks.suite                          everything against Apache: hours (make bench-apache)
    python -m benchmarks.suite --quick --case "add 1 KiB"
    python -m benchmarks.suite --against HEAD~20        this checkout and an earlier one (make bench-compare)
    python -m benchmarks.suite --against HEAD --set http_port=0     what a setting costs

Prints what the machine allows, one table of medians, spreads and ratios, and one of processor time and memory.
docs/internals/benchmarks.md says more.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import sys
import tempfile

from benchmarks.suite import ending, java, limits, revisions, runner, table
from benchmarks.suite.cases import BRIEF, CASES, Case
from benchmarks.suite.figures import Run
from benchmarks.suite.stage import QUICK, RateLimit, Stage


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks.suite", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--against", default="apache", metavar="REVISION", help="of this repository (default: apache)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="setting of the bookies of this checkout"
    )
    parser.add_argument("--case", action="append", metavar="TEXT", help="only those named so, or that contain it")
    parser.add_argument("--brief", action="store_true", help="only five cases")
    parser.add_argument("--pairs", type=int, default=5, help="runs of each contestant in each case (default 5)")
    parser.add_argument("--quick", action="store_true", help="short runs of little, to see whether all works")
    parser.add_argument("--seconds", type=float, help="measured in each run (default 8)")
    parser.add_argument("--json", metavar="FILE", help="everything, one document")
    parser.add_argument("--directory", type=pathlib.Path, help="for the data of all (default: temporary)")
    parser.add_argument("--free-gb-min", type=float, default=25, help="below, clusters begin anew (default 25)")
    parser.add_argument("--list", action="store_true", help="name the cases and end")
    arguments = parser.parse_args()
    if arguments.pairs < 1 or (arguments.seconds is not None and arguments.seconds <= 0):
        parser.error("--pairs must be 1 or more and --seconds above 0")
    if any("=" not in text for text in arguments.set):
        parser.error("--set needs NAME=VALUE, for example http_port=0")
    cases = select(CASES, arguments.case, is_brief=arguments.brief)
    if not cases:
        parser.error(f"no case is named so: {', '.join(arguments.case)}; --list names them")
    if arguments.list:
        print("\n".join(case.name for case in cases))
        return 0
    return ending.orderly(lambda: measure(cases, arguments))


def select(cases: tuple[Case, ...], texts: list[str] | None, *, is_brief: bool = False) -> list[Case]:
    """Those of one of these names; of a text that is no name those that contain it; without texts all."""
    names = {case.name for case in cases}
    return [
        case
        for case in cases
        if (not texts or any(text == case.name or (text not in names and text in case.name) for text in texts))
        and (not is_brief or case.name in BRIEF)
    ]


def measure(cases: list[Case], arguments: argparse.Namespace) -> int:
    """Exit status 0; failed runs are in the tables."""
    is_apache = arguments.against == "apache"
    pace = QUICK if arguments.quick else RateLimit()
    if arguments.seconds is not None:
        pace = RateLimit(arguments.seconds, pace.warmup, pace.java_warmup, pace.rest, pace.scale)
    planned = runner.contests(cases, is_apache=is_apache)
    if arguments.directory is not None:
        arguments.directory.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="bk-bench-", dir=arguments.directory, ignore_cleanup_errors=True)
        directory = pathlib.Path(stack.enter_context(temporary))
        packages = {}
        if is_apache:
            java.prepare()
        else:
            packages[runner.BEFORE] = revisions.install(arguments.against, directory / "before-packages")
            packages[runner.NOW] = revisions.install(None, directory / "now-packages")
        allowed = limits.measure(directory, 1.0 if arguments.quick else 5.0)
        print(allowed.describe(), flush=True)
        stage = stack.enter_context(
            Stage(
                directory,
                pace,
                allowed,
                free_gb_min=arguments.free_gb_min,
                packages=packages,
                settings=dict(text.split("=", 1) for text in arguments.set),
            )
        )
        runs: list[Run] = []
        try:
            runner.run(stage, planned, arguments.pairs, runs)
        finally:  # What was measured before an interrupt is not lost.
            report(planned, runs, allowed, arguments)
    return 0


def report(
    planned: list[runner.Contest], runs: list[Run], allowed: limits.Limits, arguments: argparse.Namespace
) -> None:
    """Print the tables, and write the document."""
    rows = runner.rows(planned, runs, allowed, is_quick=arguments.quick)
    names = ("Apache 4.17.3", "ours") if arguments.against == "apache" else (arguments.against, "this checkout")
    print(f"\n{table.markdown(rows, *names)}\n\n{table.costs(runs)}", flush=True)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(table.document(rows, runs, allowed), indent=1))


if __name__ == "__main__":
    sys.exit(main())
