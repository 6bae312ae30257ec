"""`bk why slow`: why requests were slow, from what running bookies and clients have recorded."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from bookies.admin.shared import UsageError
from bookies.admin.shared.command_line import Option, verb
from bookies.admin.shared.common import OnBookie
from bookies.admin.shared.report import Report
from bookies.admin.shared.slow_report import explained, since_s_of
from bookies.admin.verbs.control import CONTROLLED, Unreachable, ask, control_files

if TYPE_CHECKING:
    from bookies.protocol.latency import Report as ProcessReport

ANSWER_S = 5.0  # a bookie that has not answered by then has stopped


def _slow(arguments: argparse.Namespace) -> Report:
    remarks: list[str] = []
    return explained(arguments, list(_bookies(arguments, since_s_of(arguments), remarks)), remarks)


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
