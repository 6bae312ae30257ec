"""`bk bookie format`: give a bookie up, see `bookie/formatting.py`."""

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
        help="give a stopped bookie up: empty its directories, and let the cluster forget it",
        description="Removes everything in all directories of the bookie, then its cookie in the metadata store. "
        "Refuses while it runs, while ledgers have entries on it, and when a directory is missing or belongs to "
        "another bookie or cluster. What was interrupted is finished by the same command; until then the bookie does "
        "not start.",
        epilog="example:  bk bookie recover b3 && bk bookie format b3 --dry-run",
    )
    add_common(parser)
    parser.add_argument(
        "directory", metavar="DIR", nargs="?", help="one of its directories, or its name in the local cluster"
    )
    parser.add_argument(
        "--bookie-id", metavar="ID", help="let the cluster forget a bookie whose directories are lost, or empty"
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would be removed, and what speaks against it")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument(
        "--force",
        action="store_true",
        help="empty the directories although ledgers have entries on it, or one of them is missing",
    )


def run(arguments: argparse.Namespace) -> int:
    """Exit status: 0 done, or nothing to do; 1 refused."""
    return run_async(lambda: _format(arguments))


async def _format(arguments: argparse.Namespace) -> int:
    from bookies.bookie import formatting
    from bookies.metadata.uri import connect
    from bookies.model import BookieId
    from bookies.runtime import aio

    runtime = aio.runtime()
    path, name = _meant(arguments)
    found = None if path is None else formatting.find(runtime.disk, path)
    if found is None and name is None:
        return _end(
            arguments,
            f"{path} is empty: nothing to do there. To let the cluster forget the bookie: --bookie-id ID",
            {"directories": [], "files": 0},
        )
    if found is not None and arguments.bookie_id not in (None, found.bookie):
        raise UsageError(f"{path} belongs to bookie {found.bookie}, not to {arguments.bookie_id}. Nothing was changed")
    locks = [] if found is None else formatting.lock(runtime.disk, found)
    try:
        driver = connect(metadata_uri(arguments), runtime, may_create=False)
        await driver.open()
        try:
            if found is None:
                found = await formatting.find_stored(driver, BookieId(name or ""))
            looking = Progress("ledgers", None)
            await formatting.look_up(driver, found, looking.update)
            looking.clear()
            texts = formatting.objections(found)
            if arguments.dry_run or (texts and not arguments.force):
                return _tell(arguments, found, texts)
            if not arguments.yes:
                _confirm(found, texts)
            removing = Progress("files", found.file_count)
            await formatting.perform(runtime.disk, driver, found, removing.update)
            removing.clear()
        finally:
            await driver.close()
    finally:
        for each in locks:
            each.release()
    text = f"bookie {found.bookie} is given up: {found.file_count:,} files ({size_text(found.size)}) are removed"
    if found.version is not None and not found.is_forgotten:
        text += (
            f"; its name stays taken while ledgers have entries on it: bk bookie recover {found.bookie}, then "
            f"bk bookie format --bookie-id {found.bookie}"
        )
    return _end(arguments, text, _facts(found, []))


def _meant(arguments: argparse.Namespace) -> tuple[str | None, str | None]:
    """(absolute path of the directory, name of the bookie in case that is empty). Raises UsageError."""
    if arguments.directory is None:
        if arguments.bookie_id is None:
            raise UsageError("name a directory of the bookie, or, if it has none any more, the bookie: --bookie-id ID")
        return None, arguments.bookie_id
    if os.path.isdir(arguments.directory):
        return os.path.abspath(arguments.directory), arguments.bookie_id
    home = find_data_directory()
    if home is not None and os.path.isdir(path := os.path.join(home, arguments.directory, "ledgers")):
        return os.path.abspath(path), arguments.bookie_id or arguments.directory
    raise UsageError(f"{arguments.directory} is neither a directory nor a bookie of a local cluster here")


def _facts(found: formatting.Findings, objections: list[str]) -> dict[str, object]:
    return {
        "bookie": found.bookie,
        "directories": found.directories,
        "missing": found.missing,
        "files": found.file_count,
        "bytes": found.size,
        "cookie": "removed" if found.is_forgotten else "kept, or there is none",
        "ledgers": found.ledgers,
        "objections": objections,
    }


def _tell(arguments: argparse.Namespace, found: formatting.Findings, objections: list[str]) -> int:
    """What would be done, or why it is not."""
    if arguments.json:
        print_json(_facts(found, objections))
    else:
        print(f"bookie {found.bookie}: {found.file_count:,} files ({size_text(found.size)}) would be removed from")
        for directory in found.directories:
            print(f"  {directory}")
        known = "the cluster keeps its name" if found.version is not None else "the cluster does not know it"
        print("and its cookie from the metadata store" if found.is_forgotten else known)
    for text in objections:
        print(f"bk bookie: {text}", file=sys.stderr)
    if objections and not arguments.dry_run:
        print("bk bookie: nothing was changed; --force does it all the same", file=sys.stderr)
    return 1 if objections and not arguments.force else 0


def _confirm(found: formatting.Findings, objections: list[str]) -> None:
    """Raises UsageError unless whoever sits there types the bookie's name."""
    if not sys.stdin or not sys.stdin.isatty():
        raise UsageError(
            "nobody can be asked here: say --yes, after a look at what --dry-run says. Nothing was changed"
        )
    for text in objections:
        print(f"bk bookie: {text}", file=sys.stderr)
    what = f"The cluster forgets bookie {found.bookie}."
    if found.directories:
        what = (
            f"This removes {found.file_count:,} files ({size_text(found.size)}) of bookie {found.bookie} for good from "
            f"{', '.join(found.directories)}."
        )
    print(f"{what}\nType the bookie's name to go on: ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() != found.bookie:
        raise UsageError("that is not its name. Nothing was changed")


def _end(arguments: argparse.Namespace, text: str, facts: dict[str, object]) -> int:
    if arguments.json:
        print_json(facts)
    else:
        print(text)
    return 0
