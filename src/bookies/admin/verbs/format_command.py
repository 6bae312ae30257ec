"""`bk bookie format`: decommission a bookie. The work is in `bookie/formatting.py`."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from bookies.admin.shared import Progress, UsageError
from bookies.admin.shared.common import add_common, find_data_directory, metadata_uri, print_json, run_async, size_text

if TYPE_CHECKING:
    from bookies.bookie import formatting


def configure(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verb."""
    parser: argparse.ArgumentParser = verbs.add_parser(
        "format",
        help="decommission a stopped bookie: empty its directories and delete its cookie",
        description="Removes all files in all directories of the bookie, then its cookie in the metadata store. "
        "Refuses while it runs, while ledgers have entries on it, and if a directory is missing or belongs to another "
        "bookie or cluster. Repeat the command after an interruption; until then the bookie does not start.",
        epilog="example:  bk bookie recover b3 && bk bookie format b3 --dry-run",
    )
    add_common(parser)
    parser.add_argument(
        "directory", metavar="DIR", nargs="?", help="one of the bookie's directories, or its name in the local cluster"
    )
    parser.add_argument(
        "--bookie-id", metavar="ID", help="delete the cookie of this bookie, whose directories are lost or empty"
    )
    parser.add_argument("--dry-run", action="store_true", help="report what would be removed, and the objections")
    parser.add_argument("--yes", action="store_true", help="remove without confirmation")
    parser.add_argument(
        "--force",
        action="store_true",
        help="empty the directories even if ledgers have entries on the bookie, or a directory is missing",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the verb. Return the exit status: 0 done, or already empty; 1 refused."""
    return run_async(lambda: _format(arguments))


async def _format(arguments: argparse.Namespace) -> int:
    from bookies.bookie import formatting
    from bookies.metadata.uri import connect
    from bookies.model import BookieId
    from bookies.runtime import aio

    runtime = aio.runtime()
    path, name = _meant(arguments)
    findings = None if path is None else formatting.find(runtime.disk, path)
    if findings is None and name is None:
        return _end(
            arguments,
            f"{path} is empty already. To delete the bookie's cookie too, name it: --bookie-id ID",
            {"directories": [], "files": 0},
        )
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
                return _tell(arguments, findings, texts)
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
    return _end(arguments, text, _facts(findings, []))


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


def _tell(arguments: argparse.Namespace, findings: formatting.Findings, objections: list[str]) -> int:
    """Print what would be removed, and the objections. Return the exit status."""
    if arguments.json:
        print_json(_facts(findings, objections))
    else:
        size = size_text(findings.size)
        print(f"bookie {findings.bookie}: {findings.file_count:,} files ({size}) would be removed from")
        for directory in findings.directories:
            print(f"  {directory}")
        known = "its cookie is kept" if findings.version is not None else "the cluster has no cookie of it"
        print("and its cookie from the metadata store" if findings.is_forgotten else known)
    for text in objections:
        print(f"bk bookie: {text}", file=sys.stderr)
    if objections and not arguments.dry_run:
        print("bk bookie: nothing was changed; --force overrides the objections", file=sys.stderr)
    return 1 if objections and not arguments.force else 0


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


def _end(arguments: argparse.Namespace, text: str, facts: dict[str, object]) -> int:
    if arguments.json:
        print_json(facts)
    else:
        print(text)
    return 0
