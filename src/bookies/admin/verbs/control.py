"""Verbs of `bk bookie` that talk to a running bookie through its control endpoint: space, gc, undelete and the like."""

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
_LEARNED = ("entry_logs", "entry_log_bytes", "live_bytes")  # None until the bookie has looked at its logs
_ANOTHER = "name another of its ledger directories with --ledger-dir"


def configure(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the verbs."""
    state = verb(verbs, "state", "a running bookie's mode and why, its directories, how it stopped last")
    state.epilog = "example:  bk bookie state --bookie b1"
    read_only = verb(verbs, "read-only", "take no ordinary entries any more, until read-write")
    read_only.description = (
        "Reads, fences and what recoveries write go on. With the setting persist_bookie_status it stays so over "
        "restarts."
    )
    read_only.epilog = "example:  bk bookie read-only --bookie b1"
    read_write = verb(verbs, "read-write", "end what read-only has begun")
    read_write.epilog = "example:  bk bookie read-write --bookie b1"
    disks = verb(verbs, "disks", "how full a bookie's disks are, which have failed, and why it is read-only if it is")
    disks.epilog = "example:  bk bookie disks --bookie b1"
    space = verb(verbs, "space", "what a bookie's entry logs hold, and what keeps space from coming back")
    space.epilog = "example:  bk bookie space --bookie b1"
    collect = verb(verbs, "gc", "collect deleted ledgers and empty entry logs now")
    collect.epilog = "example:  bk bookie gc --wait"
    collect.add_argument(
        "--force", action="store_true", help="also when implausibly many ledgers are gone, and logs that were set aside"
    )
    collect.add_argument(
        "--surplus",
        action="store_true",
        help="copies, too, that no ledger's record names here (they broke off, or moved on), without a quarantine",
    )
    collect.add_argument("--wait", action="store_true", help="until it is done")
    holding = collect.add_mutually_exclusive_group()
    holding.add_argument(
        "--suspend", action="store_true", help="compact nothing until --resume, over restarts too; collects nothing now"
    )
    holding.add_argument("--resume", action="store_true", help="compact again; collects nothing now")
    compact = verb(verbs, "compact", "copy what lives in entry logs that are mostly garbage, and remove them, now")
    compact.epilog = "example:  bk bookie compact --major --wait"
    kinds = compact.add_mutually_exclusive_group()
    kinds.add_argument("--minor", action="store_true", help="logs that are nearly empty (the default)")
    kinds.add_argument("--major", action="store_true", help="all logs that are worth it")
    compact.add_argument("--wait", action="store_true", help="until it is done")
    undelete = verb(verbs, "undelete", "bring a ledger back from quarantine, and keep it whatever the metadata says")
    undelete.epilog = "example:  bk bookie undelete 17"
    undelete.add_argument("ledger", type=int, metavar="LEDGER")
    why = verb(verbs, "why-not-deleted", "why an entry log is still there")
    why.epilog = "example:  bk bookie why-not-deleted bk-data/b1/ledgers/current/1f.log"
    why.add_argument("log", metavar="FILE", help="of an entry log, or its hexadecimal id")


def verb(verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str, text: str) -> argparse.ArgumentParser:
    """A verb with the options that name bookies."""
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=text)
    add_common(parser, metadata=False)
    parser.add_argument("--bookie", metavar="ID", help="of the local cluster (default: all of them)")
    parser.add_argument("--ledger-dir", metavar="DIR", help="the bookie that has this ledger directory")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Ask each bookie that is meant, and print its answer."""
    is_holding = arguments.verb == "gc" and (arguments.suspend or arguments.resume)
    if is_holding and (arguments.wait or arguments.force or arguments.surplus):
        raise UsageError(
            "--suspend and --resume collect nothing: say --wait, --force or --surplus in a call of its own"
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
        return "gc", given | ({"surplus": True} if arguments.surplus else {})  # Older bookies know nothing of it.
    if arguments.verb in ("read-only", "read-write"):
        return "hold", {"read_only": arguments.verb == "read-only"}
    if arguments.verb == "state":
        return "state", {}
    if arguments.verb == "undelete":
        if not 0 <= arguments.ledger <= LEDGER_ID_MAX:
            raise UsageError(f"{arguments.ledger} is no ledger's id: those are from 0 to {LEDGER_ID_MAX}")
        return "undelete", {"ledger": arguments.ledger}
    if arguments.verb == "why-not-deleted":
        return "why", {"log": arguments.log}
    return arguments.verb, {}


def control_files(arguments: argparse.Namespace) -> Iterator[pathlib.Path]:
    """Of the bookies that are meant. Raises `UsageError`."""
    from bookies.storage.disks.directories import CONTROL_FILE  # half of the time a command takes to start

    if arguments.ledger_dir:
        yield pathlib.Path(arguments.ledger_dir) / CONTROL_FILE
        return
    path = getattr(arguments, "log", None)
    if path and os.path.exists(path):  # the file says which bookie is meant
        yield pathlib.Path(path).resolve().parent.parent / CONTROL_FILE
        return
    directory = find_data_directory()
    there = sorted(pathlib.Path(directory).glob(f"*/ledgers/{CONTROL_FILE}")) if directory else []
    found = [each for each in there if arguments.bookie in (None, each.parent.parent.name)]
    if there and not found:
        names = ", ".join(each.parent.parent.name for each in there)
        raise UsageError(f"{directory} has no bookie {arguments.bookie} that runs; it has {names}")
    if len(found) > 1 and arguments.verb in _ONE_AT_A_TIME:
        names = ", ".join(each.parent.parent.name for each in found)
        raise UsageError(f"name the bookie that is meant, of {names}: bk bookie {arguments.verb} --bookie ID")
    if not found:
        raise UsageError("no running bookie here: start one with `bk up`, or name one's directory with --ledger-dir")
    yield from found


class _Unreachable(UsageError):
    """This file leads to no bookie; that of another directory may."""


def ask(path: pathlib.Path, call: str, arguments: Mapping[str, object]) -> tuple[str, Any]:
    """(name of the bookie, its answer). Raises `UsageError` when it does not run, or refuses.

    `path`: of the file in one of its ledger directories; if it does not lead there, those in the others are tried.
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
    """The same file in the other ledger directories, as far as the cookie can be read."""
    from bookies.errors import BookKeeperError
    from bookies.runtime.files import OsDisk
    from bookies.storage.offline import bookie_at

    try:
        ledgers = bookie_at(OsDisk(), str(path.parent)).ledgers
    except (BookKeeperError, OSError):
        return []
    return [other for each in ledgers if (other := pathlib.Path(each) / path.name) != path]


def _ask_by(path: pathlib.Path, call: str, arguments: Mapping[str, object]) -> tuple[str, Any]:
    try:
        facts = json.loads(path.read_bytes())
        bookie, address, token = facts["bookie"], (facts["host"], facts["port"]), facts["token"]
    except FileNotFoundError:
        raise _Unreachable(f"{path} is missing: no bookie has run there with its control endpoint on") from None
    except PermissionError:
        raise _Unreachable(f"{path} can only be read by the user that runs the bookie") from None
    except OSError as error:
        raise _Unreachable(f"{path} cannot be read, {error.strerror}: {_ANOTHER}") from error
    except (ValueError, KeyError, TypeError):
        raise _Unreachable(
            f"{path}, which says how to reach the running bookie, is damaged: start the bookie again, or {_ANOTHER}"
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
        raise _Unreachable(f"bookie {bookie} does not run: another process has its port ({path})") from None
    if problem is not None:
        kind = _Unreachable if problem.startswith("wrong token") else UsageError
        raise kind(f"bookie {bookie}: {problem}")
    return bookie, answer["result"]


def _lines(answer: Any) -> list[str]:
    if answer is None:
        return ["done"]
    if isinstance(answer, list):
        return [str(each) for each in answer]
    lines = []
    for name, value in answer.items():
        if isinstance(value, dict):
            lines += [f"{name} {key}: {text}" for key, text in value.items()]
        elif value is None and name in _LEARNED:
            lines.append(f"{name:22} not known yet: the entry logs are looked at after a start")
        elif value is not None:
            lines.append(f"{name:22} {size_text(value) if name.endswith(('bytes', 'back')) else value}")
    return lines
