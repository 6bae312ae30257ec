"""Verbs of `bk bookie` that call a running bookie's control endpoint: state, disks, space, gc, compact, undelete ..."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bookies.admin.shared import UsageError
from bookies.admin.shared.common import add_common, find_data_directory, print_json, size_text

if TYPE_CHECKING:
    from collections.abc import Iterator

VERBS = ("state", "disks", "read-only", "read-write", "space", "gc", "compact", "undelete", "why-not-deleted")
_ONE_AT_A_TIME = ("read-only", "read-write")
CONNECT_S = 5.0
LEDGER_ID_MAX = (1 << 63) - 1
_SCANNED = ("entry_logs", "entry_log_bytes", "live_bytes")  # None until the bookie has scanned its entry logs
_ANOTHER = "name another of its ledger directories with --ledger-dir"


def configure(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verbs."""
    state = verb(verbs, "state", "show a running bookie's mode, the reason for it, its directories and its last stop")
    state.epilog = "example:  bk bookie state --bookie b1"
    read_only = verb(verbs, "read-only", "refuse ordinary adds until read-write")
    read_only.description = (
        "The bookie continues to accept reads, fences and recovery adds. With the setting persist_bookie_status it "
        "stays read-only across restarts."
    )
    read_only.epilog = "example:  bk bookie read-only --bookie b1"
    read_write = verb(verbs, "read-write", "end read-only: accept ordinary adds again")
    read_write.epilog = "example:  bk bookie read-write --bookie b1"
    disks = verb(verbs, "disks", "show the usage of a bookie's disks, failed disks, and why it is read-only")
    disks.epilog = "example:  bk bookie disks --bookie b1"
    space = verb(verbs, "space", "show the contents of a bookie's entry logs, and what prevents space from being freed")
    space.epilog = "example:  bk bookie space --bookie b1"
    collect = verb(verbs, "gc", "collect garbage now: the data of deleted ledgers, and entry logs without live entries")
    collect.epilog = "example:  bk bookie gc --wait"
    collect.add_argument(
        "--force",
        action="store_true",
        help="collect even if the metadata lacks implausibly many ledgers; check damaged entry logs again",
    )
    collect.add_argument(
        "--surplus",
        action="store_true",
        help="also delete replicas that the metadata does not place on this bookie (left by a move or an interrupted "
        "copy), without quarantine",
    )
    collect.add_argument("--wait", action="store_true", help="wait until the collection has ended")
    holding = collect.add_mutually_exclusive_group()
    holding.add_argument(
        "--suspend", action="store_true", help="suspend compaction until --resume, across restarts; collect nothing now"
    )
    holding.add_argument("--resume", action="store_true", help="resume compaction; collect nothing now")
    compact = verb(
        verbs, "compact", "copy the live entries of mostly empty entry logs to a new log, delete the old ones"
    )
    compact.epilog = "example:  bk bookie compact --major --wait"
    scope = compact.add_mutually_exclusive_group()
    scope.add_argument("--minor", action="store_true", help="compact nearly empty logs (the default)")
    scope.add_argument("--major", action="store_true", help="compact logs below major_compaction_threshold")
    compact.add_argument("--wait", action="store_true", help="wait until the compaction has ended")
    undelete = verb(verbs, "undelete", "restore a ledger from quarantine, and keep it even if the metadata lacks it")
    undelete.epilog = "example:  bk bookie undelete 17"
    undelete.add_argument("ledger", type=int, metavar="LEDGER", help="ledger id")
    why = verb(verbs, "why-not-deleted", "explain why an entry log still exists")
    why.epilog = "example:  bk bookie why-not-deleted bk-data/b1/ledgers/current/1f.log"
    why.add_argument("log", metavar="FILE", help="path of an entry log, or its hexadecimal id")


def verb(verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str) -> argparse.ArgumentParser:
    """Add a verb with the options that name bookies."""
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=text)
    add_common(parser, metadata=False)
    parser.add_argument("--bookie", metavar="ID", help="id of a bookie of the local cluster (default: all)")
    parser.add_argument("--ledger-dir", metavar="DIR", help="a ledger directory of the bookie")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Call each named bookie, and print its answer."""
    is_holding = arguments.verb == "gc" and (arguments.suspend or arguments.resume)
    if is_holding and (arguments.wait or arguments.force or arguments.surplus):
        raise UsageError(
            "--suspend and --resume start no collection: use --wait, --force or --surplus in a separate call"
        )
    call, given = _call_of(arguments)
    answers: dict[str, Any] = {}
    for path in control_files(arguments):
        name, answers_one = ask(path, call, given)
        answers[name] = answers_one
    if arguments.json:
        print_json(answers)
        return 0
    for name, answer in answers.items():
        for line in _lines(answer):
            print(f"{name}: {line}")
    return 0


def _call_of(arguments: argparse.Namespace) -> tuple[str, dict[str, object]]:
    if arguments.verb == "gc" and (arguments.suspend or arguments.resume):
        return "suspend", {"suspended": not arguments.resume}
    if arguments.verb == "compact":
        return "compact", {"kind": "major" if arguments.major else "minor", "wait": arguments.wait}
    if arguments.verb == "gc":
        given = {"force": arguments.force, "wait": arguments.wait}
        return "gc", given | ({"surplus": True} if arguments.surplus else {})  # Older bookies refuse the argument.
    if arguments.verb in ("read-only", "read-write"):
        return "hold", {"read_only": arguments.verb == "read-only"}
    if arguments.verb == "state":
        return "state", {}
    if arguments.verb == "undelete":
        if not 0 <= arguments.ledger <= LEDGER_ID_MAX:
            raise UsageError(f"{arguments.ledger} is not a ledger id: the range is 0 to {LEDGER_ID_MAX}")
        return "undelete", {"ledger": arguments.ledger}
    if arguments.verb == "why-not-deleted":
        return "why", {"log": arguments.log}
    return arguments.verb, {}


def control_files(arguments: argparse.Namespace) -> Iterator[pathlib.Path]:
    """Yield the control files of the named bookies. Raises `UsageError`."""
    from bookies.storage.disks.directories import (
        CONTROL_FILE,  # here: importing it takes half of a command's start time
    )

    if arguments.ledger_dir:
        yield pathlib.Path(arguments.ledger_dir) / CONTROL_FILE
        return
    path = getattr(arguments, "log", None)
    if path and os.path.exists(path):  # the log's directory names the bookie
        yield pathlib.Path(path).resolve().parent.parent / CONTROL_FILE
        return
    directory = find_data_directory()
    files = sorted(pathlib.Path(directory).glob(f"*/ledgers/{CONTROL_FILE}")) if directory else []
    chosen = [file for file in files if arguments.bookie in (None, file.parent.parent.name)]
    if files and not chosen:
        names = ", ".join(file.parent.parent.name for file in files)
        raise UsageError(f"{directory} has no running bookie {arguments.bookie}; it has {names}")
    if len(chosen) > 1 and arguments.verb in _ONE_AT_A_TIME:
        names = ", ".join(file.parent.parent.name for file in chosen)
        raise UsageError(f"name one of the bookies {names}: bk bookie {arguments.verb} --bookie ID")
    if not chosen:
        raise UsageError(
            "no running bookie here: start one with `bk up`, or name a bookie's ledger directory with --ledger-dir"
        )
    yield from chosen


class _Unreachable(UsageError):
    """Failure to reach the bookie through this control file. That of another directory may work."""


def ask(path: pathlib.Path, call: str, arguments: Mapping[str, object]) -> tuple[str, Any]:
    """Call a bookie. Return (name of the bookie, its answer).

    `path`: the control file in one of its ledger directories. If it does not lead to the bookie, the files in its other
    directories are tried. Raises `UsageError` if the bookie does not run, or refuses.
    """
    try:
        return _ask_by(path, call, arguments)
    except _Unreachable:
        for other in _others(path):
            try:
                return _ask_by(other, call, arguments)
            except _Unreachable:
                continue
        raise


def _others(path: pathlib.Path) -> list[pathlib.Path]:
    """Return the control files in the other ledger directories; [] if the cookie cannot be read."""
    from bookies.errors import BookKeeperError
    from bookies.runtime.files import OsDisk
    from bookies.storage.offline import bookie_at

    try:
        ledgers = bookie_at(OsDisk(), str(path.parent)).ledgers
    except (BookKeeperError, OSError):
        return []
    return [other for directory in ledgers if (other := pathlib.Path(directory) / path.name) != path]


def _ask_by(path: pathlib.Path, call: str, arguments: Mapping[str, object]) -> tuple[str, Any]:
    try:
        facts = json.loads(path.read_bytes())
        bookie, address, token = facts["bookie"], (facts["host"], facts["port"]), facts["token"]
    except FileNotFoundError:
        raise _Unreachable(f"{path} is missing: no bookie has run there with its control endpoint enabled") from None
    except PermissionError:
        raise _Unreachable(f"{path} can only be read by the user that runs the bookie") from None
    except OSError as error:
        raise _Unreachable(f"{path} cannot be read, {error.strerror}: {_ANOTHER}") from error
    except (ValueError, KeyError, TypeError):
        raise _Unreachable(
            f"{path}, which holds the address of the running bookie, is damaged: restart the bookie, or {_ANOTHER}"
        ) from None
    request = {"token": token, "call": call, "arguments": dict(arguments)}
    try:
        with socket.create_connection(address, timeout=CONNECT_S) as connection:
            connection.settimeout(None)
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as lines:
                line = lines.readline()
    except OSError as error:
        raise _Unreachable(f"bookie {bookie} does not run: {error.strerror or error} ({path})") from error
    if not line:
        raise UsageError(f"bookie {bookie} stopped before it answered")
    try:
        answer = json.loads(line)
        problem = answer.get("error")
    except (ValueError, AttributeError):
        raise _Unreachable(f"bookie {bookie} does not run: another process uses its port ({path})") from None
    if problem is not None:
        error_type = _Unreachable if problem.startswith("wrong token") else UsageError
        raise error_type(f"bookie {bookie}: {problem}")
    return bookie, answer["result"]


def _lines(answer: Any) -> list[str]:
    if answer is None:
        return ["done"]
    if isinstance(answer, list):
        return [str(line) for line in answer]
    lines = []
    for name, value in answer.items():
        if isinstance(value, dict):
            lines += [f"{name} {key}: {text}" for key, text in value.items()]
        elif value is None and name in _SCANNED:
            lines.append(f"{name:22} not known yet: the bookie scans its entry logs after a start")
        elif value is not None:
            lines.append(f"{name:22} {size_text(value) if name.endswith(('bytes', 'back')) else value}")
    return lines
