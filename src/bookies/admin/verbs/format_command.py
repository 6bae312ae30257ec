"""`bk bookie format`: decommission a bookie. The work is in `bookie/formatting.py`."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from bookies.admin.shared import Progress, UsageError
from bookies.admin.shared.command_line import Option, verb
from bookies.admin.shared.common import find_data_directory, metadata_uri, run_async, size_text
from bookies.admin.shared.operators import objection_lines
from bookies.admin.shared.report import Report

if TYPE_CHECKING:
    from bookies.bookie import formatting


async def _format(arguments: argparse.Namespace) -> Report:
    from bookies.bookie import formatting
    from bookies.metadata.uri import connect
    from bookies.model import BookieId
    from bookies.runtime import aio

    runtime = aio.runtime()
    path, name = _meant(arguments)
    findings = None if path is None else formatting.find(runtime.disk, path)
    if findings is None and name is None:
        text = f"{path} is empty already. To delete the bookie's cookie too, name it: --bookie-id ID"
        return Report({"directories": [], "files": 0}, [text])
    if findings is not None and arguments.bookie_id not in (None, findings.bookie):
        raise UsageError(
            f"{path} belongs to bookie {findings.bookie}, not to {arguments.bookie_id}. Nothing was changed"
        )
    locks = [] if findings is None else formatting.lock(runtime.disk, findings)
    try:
        driver = connect(metadata_uri(arguments), runtime, may_create=False)
        await driver.open()
        try:
            if findings is None:
                findings = await formatting.find_stored(driver, BookieId(name or ""))
            ledgers = Progress("ledgers", None)
            await formatting.look_up(driver, findings, ledgers.update)
            ledgers.clear()
            texts = formatting.objections(findings)
            if arguments.dry_run or (texts and not arguments.force):
                return _planned(arguments, findings, texts)
            if not arguments.yes:
                _confirm(findings, texts)
            removing = Progress("files", findings.file_count)
            await formatting.perform(runtime.disk, driver, findings, removing.update)
            removing.clear()
        finally:
            await driver.close()
    finally:
        for lock in locks:
            lock.release()
    size = size_text(findings.size)
    text = f"bookie {findings.bookie} is decommissioned: {findings.file_count:,} files ({size}) are removed"
    if findings.version is not None and not findings.is_forgotten:
        text += (
            f"; its cookie is kept because ledgers have entries on it: bk bookie recover {findings.bookie}, then "
            f"bk bookie format --bookie-id {findings.bookie}"
        )
    return Report(_facts(findings, []), [text])


def _meant(arguments: argparse.Namespace) -> tuple[str | None, str | None]:
    """Return (absolute path of the directory, id of the bookie if the directory is empty). Raises UsageError."""
    if arguments.directory is None:
        if arguments.bookie_id is None:
            raise UsageError("name a directory of the bookie, or, if all are lost, the bookie: --bookie-id ID")
        return None, arguments.bookie_id
    if os.path.isdir(arguments.directory):
        return os.path.abspath(arguments.directory), arguments.bookie_id
    home = find_data_directory()
    if home is not None and os.path.isdir(path := os.path.join(home, arguments.directory, "ledgers")):
        return os.path.abspath(path), arguments.bookie_id or arguments.directory
    raise UsageError(f"{arguments.directory} is neither a directory nor a bookie of a local cluster here")


def _facts(findings: formatting.Findings, objections: list[str]) -> dict[str, object]:
    return {
        "bookie": findings.bookie,
        "directories": findings.directories,
        "missing": findings.missing,
        "files": findings.file_count,
        "bytes": findings.size,
        "cookie": "removed" if findings.is_forgotten else "kept, or there is none",
        "ledgers": findings.ledgers,
        "objections": objections,
    }


def _planned(arguments: argparse.Namespace, findings: formatting.Findings, objections: list[str]) -> Report:
    """Return what would be removed, and the objections."""
    kept = "its cookie is kept" if findings.version is not None else "the cluster has no cookie of it"
    text = [
        f"bookie {findings.bookie}: {findings.file_count:,} files ({size_text(findings.size)}) would be removed from",
        *(f"  {directory}" for directory in findings.directories),
        "and its cookie from the metadata store" if findings.is_forgotten else kept,
    ]
    status = 1 if objections and not arguments.force else 0
    return Report(_facts(findings, objections), text, status, objection_lines("bookie", objections, arguments))


def _confirm(findings: formatting.Findings, objections: list[str]) -> None:
    """Ask the operator to type the bookie's id. Raises UsageError for another answer, or without a terminal."""
    if not sys.stdin or not sys.stdin.isatty():
        raise UsageError(
            "stdin is not a terminal, so no confirmation is possible: check with --dry-run, then confirm with --yes. "
            "Nothing was changed"
        )
    for text in objections:
        print(f"bk bookie: {text}", file=sys.stderr)
    warning = f"This deletes the cookie of bookie {findings.bookie}: the cluster forgets it."
    if findings.directories:
        warning = (
            f"This permanently removes {findings.file_count:,} files ({size_text(findings.size)}) of bookie "
            f"{findings.bookie} from {', '.join(findings.directories)}."
        )
    print(f"{warning}\nType the bookie's id to confirm: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != findings.bookie:
        raise UsageError("the answer is not the bookie's id. Nothing was changed")


VERBS = (
    verb(
        "bookie format",
        "decommission a stopped bookie: empty its directories and delete its cookie",
        "bk bookie recover b3 && bk bookie format b3 --dry-run",
        lambda arguments: run_async(lambda: _format(arguments)),
        Option("directory DIR", "one of the bookie's directories, or its name in the local cluster", values="?"),
        Option("--bookie-id ID", "delete the cookie of this bookie, whose directories are lost or empty"),
        Option("--dry-run", "report what would be removed, and the objections", bool),
        Option("--yes", "remove without confirmation", bool),
        Option(
            "--force",
            "empty the directories even if ledgers have entries on the bookie, or a directory is missing",
            bool,
        ),
        description="Removes all files in all directories of the bookie, then its cookie in the metadata store. "
        "Refuses while it runs, while ledgers have entries on it, and if a directory is missing or belongs to "
        "another bookie or cluster. Repeat the command after an interruption; until then the bookie does not start.",
    ),
)
