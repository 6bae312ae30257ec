"""`bk chaos`: real processes, real disks, real signals, for a given time; says what broke, or that nothing did."""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from bookies.admin.shared import UsageError
from bookies.admin.shared.common import interruptible, print_json, print_table

if TYPE_CHECKING:
    from bookies.lab.chaos.chaos_run import Report

BOOKIES_MIN, BOOKIES_MAX = 2, 20
BOOKIES_MIN_HOSTILE = 3  # without it there has to be an ack quorum of two
SHOWN_MAX = 50  # violations that the table shows


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "example:  bk chaos --minutes 5 --seed 7        bk chaos --minutes 60 --directory /srv/chaos --json"
    parser.add_argument("--minutes", type=float, default=1.0, metavar="M", help="break things for so long (default 1)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the plan of faults (default 1)")
    parser.add_argument("--bookies", type=int, default=5, metavar="N", help="how many (default 5)")
    parser.add_argument("--hostile", action="store_true", help="and one bookie more whose answers are garbled")
    parser.add_argument(
        "--no-recovery", action="store_true", help="without auto-recovery (so it is with --hostile anyway)"
    )
    parser.add_argument("--directory", metavar="DIR", help="of the data; new or empty, and kept (default: temporary)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--debug", action="store_true", help="show tracebacks")


def run(arguments: argparse.Namespace) -> int:
    from bookies.lab.chaos import Chaos

    if not arguments.minutes > 0:
        raise UsageError(f"--minutes {arguments.minutes:g}: must be more than 0")
    if arguments.bookies == 1:
        raise UsageError("--bookies 1: with one bookie nothing is stored twice, so nothing could be proved: start more")
    bookies_min = BOOKIES_MIN_HOSTILE if arguments.hostile else BOOKIES_MIN
    if not bookies_min <= arguments.bookies <= BOOKIES_MAX:
        raise UsageError(f"--bookies {arguments.bookies}: must be {bookies_min} to {BOOKIES_MAX}")
    with _directory(arguments.directory) as (directory, keep), interruptible():
        seconds = 60 * arguments.minutes
        heals = not arguments.hostile and not arguments.no_recovery
        _say(f"{arguments.bookies} bookies, {seconds:g} s, seed {arguments.seed}; data and logs in {directory}")
        chaos = Chaos(directory, arguments.seed, arguments.bookies, seconds, _say, arguments.hostile, heals)
        try:
            report = chaos.run()
        except BaseException:
            if chaos.checker.violations:
                keep()
                for violation in chaos.checker.violations[:SHOWN_MAX]:
                    _say(f"VIOLATION {violation}")
                _say(f"data and logs are kept in {directory}")
            raise
        if report.violations:
            keep()
    if arguments.json:
        kept = str(directory) if directory.exists() else None
        print_json({"seed": arguments.seed, "bookies": arguments.bookies, "directory": kept, **vars(report)})
    else:
        _print_report(report)
    if report.violations:
        _say(f"data and logs are kept in {directory}")
    return 1 if report.violations else 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _directory(given: str | None) -> Iterator[tuple[pathlib.Path, Callable[[], object]]]:
    """Where the data goes, and what keeps it if it is temporary."""
    if given:
        directory = pathlib.Path(os.path.abspath(given))
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise UsageError(f"--directory {directory}: must be a new or an empty directory; nothing was touched")
        directory.mkdir(parents=True, exist_ok=True)
        yield directory, lambda: None
        return
    directory = pathlib.Path(tempfile.mkdtemp(prefix="bk-chaos-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        yield directory, stack.pop_all


def _print_report(report: Report) -> None:
    rows = []
    for kind, found in sorted(report.operations.items()):
        outcomes = dict(found["outcomes"])
        succeeded = outcomes.pop("ok", 0)
        times = [f"{found[name] / 1000:,.1f}" if name in found else "-" for name in ("p50_us", "p99_us", "max_us")]
        others = ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.items())
        rows.append((kind, f"{succeeded:,}", f"{sum(outcomes.values()):,}", *times, others))
    headers = ("operation", "ok", "other", "p50 ms", "p99 ms", "max ms", "of the others")
    print_table(rows, headers, right=(1, 2, 3, 4, 5))
    print()
    print_table([(what, f"{count:,}") for what, count in report.counts.items()], ("event", "count"), right=(1,))
    print()
    for violation in report.violations[:SHOWN_MAX]:
        print(f"VIOLATION {violation}")
    verdict = f"{len(report.violations)} violations" if report.violations else "every promise held"
    print(f"{report.seconds:.0f} s: {verdict}")
