"""`bk chaos`: faults on real processes, disks and connections for a given time, and a report of broken promises."""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import to_builtins

from bookies.admin.shared import UsageError
from bookies.admin.shared.command_line import DEBUG, Option, verb
from bookies.admin.shared.common import interruptible
from bookies.admin.shared.report import Report, Table

if TYPE_CHECKING:
    from bookies.lab.chaos.chaos_run import Report as ChaosReport

BOOKIES_MIN, BOOKIES_MAX = 2, 20
BOOKIES_MIN_HOSTILE = 3  # without the hostile bookie; ledgers need an ack quorum of two
BOOKIES_MIN_SOAK = 4  # one is restarted or replaced, ledgers need three
SHOWN_MAX = 50  # violations that the table shows


def _run(arguments: argparse.Namespace) -> Report:
    if arguments.soak is not None:
        return _soak(arguments)
    if arguments.spark:
        raise UsageError("--spark needs --soak: without it no logs are written")
    from bookies.lab.chaos import Chaos, Proxied, chaos_namespaces
    from bookies.lab.chaos.chaos_recovery import HEALERS
    from bookies.lab.chaos.chaos_run import APACHE_ROLES, CLIENTS

    if not arguments.minutes > 0:
        raise UsageError(f"--minutes {arguments.minutes:g}: must be more than 0")
    if arguments.bookies == 1:
        raise UsageError("--bookies 1: one bookie has no replicas to check; start at least two")
    bookies_min = BOOKIES_MIN_HOSTILE if arguments.hostile else BOOKIES_MIN
    if not bookies_min <= arguments.bookies <= BOOKIES_MAX:
        raise UsageError(f"--bookies {arguments.bookies}: must be {bookies_min} to {BOOKIES_MAX}")
    if (arguments.apache or arguments.apache_clients) and not arguments.jars:
        option = "--apache" if arguments.apache else "--apache-clients"
        raise UsageError(f"{option} needs --jars: name the folder with Apache's jars, of the bookie and of ZooKeeper")
    if arguments.apache_clients and shutil.which("javac") is None:
        raise UsageError("--apache-clients needs javac: install a JDK (Debian: openjdk-17-jdk-headless)")
    if arguments.jars and not arguments.namespaces:
        raise UsageError("--jars needs --namespaces; without it the run has its own embedded metadata store")
    if arguments.namespaces:
        if arguments.hostile:
            raise UsageError("--namespaces and --hostile exclude each other; choose one")
        chaos_namespaces.enter()
    with _directory(arguments.directory) as (directory, keep), interruptible():
        seconds = 60 * arguments.minutes
        heals = not arguments.hostile and not arguments.no_recovery
        _show(f"{arguments.bookies} bookies, {seconds:g} s, seed {arguments.seed}; data and logs in {directory}")
        roles = APACHE_ROLES if arguments.apache_clients else ()
        nodes = (*CLIENTS, *HEALERS, *(f"{role}1" for role in roles))
        surroundings: Proxied | chaos_namespaces.Namespaces = Proxied(directory)
        if arguments.namespaces:
            surroundings = chaos_namespaces.Namespaces(
                directory, arguments.seed, arguments.bookies, nodes, arguments.jars, arguments.apache
            )
        chaos = Chaos(
            directory, arguments.seed, arguments.bookies, seconds, _show, surroundings, arguments.hostile, heals
        )
        chaos.apache_roles = roles
        try:
            report = chaos.run()
        except BaseException:
            chaos.show("ended early")
            if chaos.checker.violations:
                keep()
                for violation in chaos.checker.violations[:SHOWN_MAX]:
                    _show(f"VIOLATION {violation}")
                _show(f"data and logs are kept in {directory}")
            raise
        if report.violations:
            keep()
    kept = str(directory) if directory.exists() else None
    facts = {"seed": arguments.seed, "bookies": arguments.bookies, "directory": kept, **to_builtins(report)}
    remarks = [f"data and logs are kept in {directory}"] if report.violations else []
    return Report(facts, _text(report), 1 if report.violations else 0, remarks)


def _soak(arguments: argparse.Namespace) -> Report:
    from bookies.admin.shared.common import run_async
    from bookies.lab.chaos.soak.soak import Soak
    from bookies.lab.chaos.soak.soak_stream import require_spark

    if not arguments.soak > 0:
        raise UsageError(f"--soak {arguments.soak:g}: must be more than 0")
    if arguments.namespaces or arguments.hostile or arguments.no_recovery:
        raise UsageError("--soak injects no faults: run --namespaces, --hostile or --no-recovery without it")
    if arguments.spark:
        require_spark()
    if not BOOKIES_MIN_SOAK <= arguments.bookies <= BOOKIES_MAX:
        raise UsageError(f"--bookies {arguments.bookies}: must be {BOOKIES_MIN_SOAK} to {BOOKIES_MAX}")
    with _directory(arguments.directory) as (directory, keep):
        _show(
            f"{arguments.bookies} bookies, {arguments.soak:g} min, seed {arguments.seed}; data and logs in {directory}"
        )
        seconds = 60 * arguments.soak
        soak = Soak(directory, arguments.seed, arguments.bookies, seconds, _show, streams=arguments.spark)
        try:
            run_async(soak.run)
        except BaseException:
            soak.show("ended early")
            raise
        violations = soak.checker.violations
        if violations:
            keep()
    rows, samples = [], {}
    for name, first, last, slope, bars in soak.samples.summary():
        rows.append((name, f"{first:,.0f}", f"{last:,.0f}", f"{slope:+,.2f}", bars))
        samples[name] = {"first": first, "last": last, "per_minute": slope}
    counts = dict(sorted(soak.counts.items()))
    facts = {"seed": arguments.seed, "seconds": soak.took_s, "violations": violations, "counts": counts}
    text = [
        Table(("sample", "first", "last", "per minute, 2nd half", ""), rows, (1, 2, 3)),
        "",
        *_verdict(counts, violations, soak.took_s),
    ]
    return Report(
        facts | {"samples": samples},
        text,
        1 if violations else 0,
        [f"data and logs are kept in {directory}"] if violations else [],
    )


def _show(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def _directory(given: str | None) -> Iterator[tuple[pathlib.Path, Callable[[], object]]]:
    """Yield the data's directory, and a function that keeps it if it is temporary."""
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


def _text(report: ChaosReport) -> Iterator[str | Table]:
    rows = []
    for operation, row in sorted(report.operations.items()):
        outcomes = dict(row["outcomes"])
        succeeded = outcomes.pop("ok", 0)
        times = [f"{row[name] / 1000:,.1f}" if name in row else "-" for name in ("p50_us", "p99_us", "max_us")]
        others = ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.items())
        rows.append((operation, f"{succeeded:,}", f"{sum(outcomes.values()):,}", *times, others))
    headers = ("operation", "ok", "other", "p50 ms", "p99 ms", "max ms", "of the others")
    yield Table(headers, rows, (1, 2, 3, 4, 5))
    yield ""
    yield from _verdict(report.counts, report.violations, report.seconds)


def _verdict(counts: Mapping[str, int], violations: Sequence[str], seconds: float) -> Iterator[str | Table]:
    yield Table(("event", "count"), [(event, f"{count:,}") for event, count in counts.items()], (1,))
    yield ""
    yield from (f"VIOLATION {violation}" for violation in violations[:SHOWN_MAX])
    yield f"{seconds:.0f} s: {f'{len(violations)} violations' if violations else 'every promise held'}"


VERBS = (
    verb(
        "chaos",
        "test a cluster of real processes under faults",
        "bk chaos --minutes 5 --seed 7        bk chaos --minutes 60 --directory /srv/chaos --json        "
        "bk chaos --namespaces --minutes 15",
        _run,
        Option("--minutes M", "time of fault injection, in minutes (default 1)", float, default=1.0),
        Option("--seed N", "seed of the fault plan (default 1)", int, default=1),
        Option("--bookies N", "number of bookies (default 5)", int, default=5),
        Option("--hostile", "add one bookie that sends garbled responses", bool),
        Option("--soak MINUTES", "no faults, but a long life at half load; print what grew", float),
        Option("--spark", "with --soak: a Spark stream follows the logs, and is killed now and then", bool),
        Option("--namespaces", "give every process a network namespace and disks of its own; needs root", bool),
        Option("--jars DIR", "with --namespaces: Apache's jars, for ZooKeeper as metadata store (default: etcd)"),
        Option("--apache N", "number of Apache's bookies to add (needs --jars; default 0)", int, default=0),
        Option("--apache-clients", "add a writer, a reader and a recoverer of Apache's (needs --jars)", bool),
        Option("--no-recovery", "run without auto-recovery; implied by --hostile", bool),
        Option("--directory DIR", "new or empty directory for the data, which is kept (default: temporary)"),
        Option("--json", "print one JSON document on stdout", bool),
        DEBUG,
        shared=(),
    ),
)
