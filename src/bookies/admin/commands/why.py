"""`bk why slow`: why requests were slow, from what running bookies and clients have recorded."""

from __future__ import annotations

import argparse
import json
import pathlib
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from bookies.admin.shared import UsageError
from bookies.admin.shared.command_line import Option, verb
from bookies.admin.shared.common import OnBookie
from bookies.admin.shared.report import Report
from bookies.admin.verbs.control import CONTROLLED, Unreachable, ask, control_files
from bookies.units import duration_text, parse_duration

if TYPE_CHECKING:
    from bookies.protocol.latency import Cause
    from bookies.protocol.latency import Report as ProcessReport

ANSWER_S = 5.0  # a bookie that has not answered by then has stopped
SHOWN_MAX = 10  # causes
SHOWN_SHARE = 0.01  # of the seconds, from which a cause is shown


def _slow(arguments: argparse.Namespace) -> Report:
    remarks: list[str] = []
    return explained(arguments, list(_bookies(arguments, since_s_of(arguments), remarks)), remarks)


def since_s_of(arguments: argparse.Namespace) -> float:
    """Return how many seconds to look back. Raises `UsageError`."""
    since_s = parse_duration(arguments.since)
    if not since_s:
        raise UsageError(f"--since {arguments.since}: must be a duration such as 30s, 10m or 2h")
    return since_s


def explained(arguments: argparse.Namespace, reports: list[ProcessReport], remarks: list[str]) -> Report:
    """Return the causes in the reports of bookies, and in those of clients that the options name."""
    from bookies.protocol.latency import rank_causes

    since_s = since_s_of(arguments)
    reports = [*reports, *_clients(arguments.client or [])]
    causes = rank_causes(reports)
    total_s = sum(cause.seconds for cause in causes)
    facts = {
        "slow_seconds": round(total_s, 3),
        "processes": [report.process for report in reports],
        "causes": [
            asdict(cause) | dict(zip(("finding", "next"), cause.sentences(total_s), strict=True)) for cause in causes
        ],
    }
    return Report(facts, _text(reports, causes, since_s), remarks=remarks)


def _bookies(arguments: argparse.Namespace, since_s: float, remarks: list[str]) -> Iterator[ProcessReport]:
    """Yield the reports of the named bookies; note in `remarks` which ones have none."""
    from bookies.protocol.latency import Report as ProcessReport

    try:
        paths = list(control_files(arguments))
    except UsageError as error:
        if not arguments.client:
            raise
        paths = []
        remarks.append(f"{error}; only the reports of clients are used")
    for path in paths:
        name = path.parent.parent.name
        try:
            name, answer = ask(path, "slow", {"since_s": since_s}, ANSWER_S)
            yield ProcessReport.of_facts(answer)
        except Unreachable as error:
            remarks.append(str(error))
            yield ProcessReport(name, is_reachable=False)
        except UsageError as error:
            remarks.append(f"{error}; with --set slow_request_ms=100 it keeps requests slower than 0.1 s")


def _clients(paths: list[str]) -> Iterator[ProcessReport]:
    """Yield the reports that clients have written."""
    from bookies.protocol.latency import Report as ProcessReport

    for path in paths:
        try:
            facts = json.loads(pathlib.Path(path).read_bytes())
            yield ProcessReport.of_facts(facts | {"process": f"client {pathlib.Path(path).stem}"})
        except OSError as error:
            raise UsageError(f"--client {path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError(
                f"--client {path}: not a report; write one with json.dump(client.slow_report(), file)"
            ) from error


def _text(reports: list[ProcessReport], causes: list[Cause], since_s: float) -> Iterator[str]:
    total_s = sum(cause.seconds for cause in causes)
    if not causes:
        bounds = ", ".join(f"{report.process}: {report.bound_s:g} s" for report in reports if report.is_reachable)
        yield f"no slow requests in the last {duration_text(since_s)}" + (f" (slower than {bounds})" if bounds else "")
        return
    shown = [cause for cause in causes[:SHOWN_MAX] if cause.seconds >= SHOWN_SHARE * total_s]
    for number, cause in enumerate(shown, 1):
        finding, step = cause.sentences(total_s)
        yield f"{number}. {finding}"
        yield f"   -> {step}"


VERBS = (
    verb(
        "why slow",
        "explain why requests were slow: the most likely cause first, with its figure and the next step",
        "bk why slow --since 10m",
        OnBookie(
            _slow,
            lambda arguments: [("slow", {"since_s": since_s_of(arguments)})],
            lambda answer: [f"{len(answer['requests'])} slow requests"],
        ),
        Option("--since DURATION", "how far to look back (default 10m)", default="10m"),
        Option("--client FILE", "report of a client, from Client.slow_report; may be repeated", may_repeat=True),
        description="Asks running bookies for the slow requests that they have kept, which needs the setting "
        "slow_request_ms or http_port. With --server it asks all bookies of the cluster that have an HTTP server, each "
        "at its own address.",
        shared=CONTROLLED,
    ),
)
