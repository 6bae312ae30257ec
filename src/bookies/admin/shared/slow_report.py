"""Reports of slow requests, explained: for `bk why slow`, beside a cluster and by its HTTP servers."""

from __future__ import annotations

import argparse
import json
import pathlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import to_builtins

from bookies.admin.shared.report import Report
from bookies.admin.shared.usage import UsageError
from bookies.units import duration_text, parse_duration

if TYPE_CHECKING:
    from bookies.protocol.latency import Cause
    from bookies.protocol.latency import Report as ProcessReport

SHOWN_MAX = 10  # causes
SHOWN_SHARE = 0.01  # of the seconds, from which a cause is shown


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
            to_builtins(cause) | dict(zip(("finding", "next"), cause.sentences(total_s), strict=True))
            for cause in causes
        ],
    }
    return Report(facts, _text(reports, causes, since_s), remarks=remarks)


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
