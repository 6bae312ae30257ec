"""Helpers of operators' commands: the operator's name, the bookie they name, reports of metadata store outages."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bookies.admin.shared.common import Progress, visible
from bookies.admin.shared.report import Report
from bookies.admin.shared.usage import UsageError

if TYPE_CHECKING:
    from bookies.admin.shared.common import Session
    from bookies.model import BookieId

KNOWN_SHOWN = 20  # bookies that a message names


def operator_name() -> str:
    """Return USER@HOST:PID, the owner that locks and notes of this command show."""
    import socket  # here: importing it takes a tenth of a command's start time

    user = visible(os.environ.get("USER") or str(os.getuid()))
    return f"{user}@{socket.gethostname()}:{os.getpid()}"


async def check_known(session: Session, name: str) -> BookieId:
    """Return the id of a bookie. Raises `UsageError` if it has no cookie, is not registered, and no ledger names it."""
    import difflib

    from bookies.metadata.formats.serde import is_bookie_id
    from bookies.model import BookieId

    known = dict.fromkeys((await session.driver.all_bookies()).bookies) | dict.fromkeys(await session.driver.modes())
    bookie = BookieId(name)
    if bookie in known:
        return bookie
    if is_bookie_id(name) and await session.client.administration().ledgers_on([bookie]):
        return bookie
    near = difflib.get_close_matches(name, known, 3)
    meant = f"; did you mean {' or '.join(near)}?" if near else ""
    more = f" and {len(known) - KNOWN_SHOWN:,} more" if len(known) > KNOWN_SHOWN else ""
    has = ", ".join(sorted(known)[:KNOWN_SHOWN]) or "none"
    raise UsageError(f"there is no bookie {name}, and no ledger names it: the cluster has {has}{more}{meant}")


def is_deletion_confirmed(subject: str, noun: str, name: str) -> bool:
    """Ask the operator to type the name of what is deleted. `noun`: what the name is, such as "id".

    Raises `UsageError` if stdin is not a terminal.
    """
    if not sys.stdin.isatty():
        raise UsageError(f"delete {subject}? This cannot be undone; confirm with --yes")
    print(f"delete {subject} permanently? Type its {noun} to confirm: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() == name:
        return True
    print("nothing was deleted", file=sys.stderr)
    return False


def report_deleted(arguments: argparse.Namespace, name: object, subject: str) -> Report | int:
    """Return the result of a deletion. On a terminal it goes to stderr."""
    if arguments.json:
        return Report({"deleted": name})
    print(f"deleted {subject}", file=sys.stderr)
    return 0


def objection_lines(noun: str, objections: Sequence[str], arguments: argparse.Namespace) -> list[str]:
    """Return lines about the objections to a change, for stderr."""
    lines = [f"bk {noun}: {text}" for text in objections]
    if objections and not arguments.force and not arguments.dry_run:
        lines.append(f"bk {noun}: nothing was changed; --force overrides the objections")
    return lines


def object_to(noun: str, objections: Sequence[str], arguments: argparse.Namespace) -> bool:
    """Print the objections to a change. Report whether they prevent it: unless `--force` overrides them."""
    for line in objection_lines(noun, objections, arguments):
        print(line, file=sys.stderr)
    return bool(objections) and not arguments.force


def store_line(error: object) -> str:
    """Return the line that is printed while a command waits for the metadata store."""
    return f"the metadata store does not answer; retrying: {error}"


def store_reporter(progress: Progress) -> Callable[[str | None], None]:
    """Return a function that is called with the store's error, or None when the store answers.

    It prints one line per outage.
    """
    was_down = False

    def report(error: str | None) -> None:
        nonlocal was_down
        if error is not None and not was_down:
            progress.note(store_line(error))
        was_down = error is not None

    return report
