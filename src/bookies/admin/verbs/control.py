"""Verbs of `bk bookie` that call a running bookie's control endpoint: state, disks, owed, space, gc, undelete ..."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from bookies.admin.shared import UsageError
from bookies.admin.shared.command_line import MACHINE, OneOf, Option, Run, Verb, verb
from bookies.admin.shared.common import OnBookie, find_data_directory, size_text
from bookies.admin.shared.report import Report
from bookies.units import duration_text

if TYPE_CHECKING:
    from collections.abc import Iterator

_ONE_AT_A_TIME = ("read-only", "read-write", "settings")
CONNECT_S = 5.0
LEDGER_ID_MAX = (1 << 63) - 1
_SCANNED = ("entry_logs", "entry_log_bytes", "live_bytes")  # None until the bookie has scanned its entry logs
_ORPHANS = {
    "found": "no record; the next garbage collection puts it into quarantine",
    "quarantined": "no record, in quarantine",
    "surplus": "its record does not name this bookie, in quarantine",
    "pinned": "no record, pinned by an operator: it is kept",
}
_ANOTHER = "name another of its ledger directories with --ledger-dir"


def _orphans(arguments: argparse.Namespace) -> Report:
    return _ask_all(arguments, "orphans", {}, _orphan_lines)


def _orphan_lines(answer: Any) -> list[str]:
    lines = []
    for row in answer:
        left_ms = row["left_ms"]
        left = "" if left_ms is None else f", deleted in {duration_text(left_ms / 1000)} unless its record is back"
        lines.append(f"ledger {row['ledger']}: {_ORPHANS.get(row['state'], row['state'])}{left}")
    return lines or ["every ledger has a record"]


def _call(call: str, given: Callable[[argparse.Namespace], dict[str, object]] = lambda arguments: {}) -> OnBookie:
    """Return the function of a verb that is one call of each named bookie. `given`: the call's arguments."""
    return _calls(lambda arguments: (call, given(arguments)))


def _calls(choose: Callable[[argparse.Namespace], tuple[str, dict[str, object]]]) -> OnBookie:
    return OnBookie(
        lambda arguments: _ask_all(arguments, *choose(arguments)), lambda arguments: [choose(arguments)], _lines
    )


def _ask_all(
    arguments: argparse.Namespace,
    call: str,
    given: dict[str, object],
    lines_of: Callable[[Any], list[str]] | None = None,
) -> Report:
    """Call each bookie. The status is 1 if one has failed."""
    answers, failed = ask_each(arguments.verb, control_files(arguments), lambda path: ask(path, call, given))
    lines = (f"{name}: {line}" for name, answer in answers.items() for line in (lines_of or _lines)(answer))
    return Report(answers, lines, int(bool(failed)))


def ask_each(
    verb: str, paths: Iterable[pathlib.Path], call: Callable[[pathlib.Path], tuple[str, Any]]
) -> tuple[dict[str, Any], list[pathlib.Path]]:
    """Call each bookie; one that does not answer or refuses is named, and keeps no other from being called.

    Return the answers by bookie, and the paths of those that failed. Raises the first failure if all have failed.
    """
    answers: dict[str, Any] = {}
    failures: dict[pathlib.Path, UsageError] = {}
    for path in paths:
        try:
            answers |= [call(path)]
        except UsageError as error:
            failures[path] = error
    if failures and not answers:
        raise next(iter(failures.values()))
    for problem in failures.values():
        print(f"bk bookie {verb}: {problem}", file=sys.stderr)
    return answers, list(failures)


def _collection(arguments: argparse.Namespace) -> tuple[str, dict[str, object]]:
    if not (arguments.suspend or arguments.resume):
        given = {"force": arguments.force, "wait": arguments.wait}
        # Older bookies refuse the argument `surplus`.
        return "gc", given | ({"surplus": True} if arguments.surplus else {})
    if arguments.wait or arguments.force or arguments.surplus:
        raise UsageError(
            "--suspend and --resume start no collection: use --wait, --force or --surplus in a separate call"
        )
    return "suspend", {"suspended": not arguments.resume}


def _settings(arguments: argparse.Namespace) -> tuple[str, dict[str, object]]:
    if not arguments.set:
        return "settings", {}
    values = dict(text.partition("=")[::2] for text in arguments.set)
    return "set", {"values": values, "dry_run": arguments.dry_run}


def _restored(arguments: argparse.Namespace) -> dict[str, object]:
    if not 0 <= arguments.ledger <= LEDGER_ID_MAX:
        raise UsageError(f"{arguments.ledger} is not a ledger id: the range is 0 to {LEDGER_ID_MAX}")
    return {"ledger": arguments.ledger}


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


class Unreachable(UsageError):
    """Failure to reach the bookie through this control file. That of another directory may work."""


def ask(
    path: pathlib.Path, call: str, arguments: Mapping[str, object], timeout_s: float | None = None
) -> tuple[str, Any]:
    """Call a bookie. Return (name of the bookie, its answer).

    `timeout_s`: for the answer; None: no limit. `path`: the control file in one of its ledger directories. If it does
    not lead to the bookie, the files in its other directories are tried.

    Raises `UsageError` if the bookie does not run, or refuses.
    """
    try:
        return _ask_by(path, call, arguments, timeout_s)
    except Unreachable:
        for other in _others(path):
            try:
                return _ask_by(other, call, arguments, timeout_s)
            except Unreachable:
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


def _ask_by(path: pathlib.Path, call: str, arguments: Mapping[str, object], timeout_s: float | None) -> tuple[str, Any]:
    try:
        facts = json.loads(path.read_bytes())
        bookie, address, token = facts["bookie"], (facts["host"], facts["port"]), facts["token"]
    except FileNotFoundError:
        raise Unreachable(f"{path} is missing: no bookie has run there with its control endpoint enabled") from None
    except PermissionError:
        raise Unreachable(f"{path} can only be read by the user that runs the bookie") from None
    except OSError as error:
        raise Unreachable(f"{path} cannot be read, {error.strerror}: {_ANOTHER}") from error
    except (ValueError, KeyError, TypeError):
        raise Unreachable(
            f"{path}, which holds the address of the running bookie, is damaged: restart the bookie, or {_ANOTHER}"
        ) from None
    request = {"token": token, "call": call, "arguments": dict(arguments)}
    try:
        with socket.create_connection(address, timeout=CONNECT_S) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(json.dumps(request).encode() + b"\n")
            with connection.makefile("rb") as lines:
                line = lines.readline()
    except TimeoutError as error:
        raise Unreachable(f"bookie {bookie} does not answer ({path})") from error
    except OSError as error:
        raise Unreachable(f"bookie {bookie} does not run: {error.strerror or error} ({path})") from error
    if not line:
        raise UsageError(f"bookie {bookie} stopped before it answered")
    try:
        answer = json.loads(line)
        problem = answer.get("error")
    except (ValueError, AttributeError):
        raise Unreachable(f"bookie {bookie} does not run: another process uses its port ({path})") from None
    if problem is not None:
        error_type = Unreachable if problem.startswith("wrong token") else UsageError
        raise error_type(f"bookie {bookie}: {problem}")
    return bookie, answer["result"]


def _lines(answer: Any) -> list[str]:
    if answer is None:
        return ["done"]
    if isinstance(answer, list):
        return [_setting(line) if isinstance(line, dict) else str(line) for line in answer]
    lines = []
    for name, value in answer.items():
        if isinstance(value, dict):
            lines += [f"{name} {key}: {_text(name, part)}" for key, part in value.items()]
        elif value is None and name in _SCANNED:
            lines.append(f"{name:22} not known yet: the bookie scans its entry logs after a start")
        elif value is not None:
            lines.append(f"{name:22} {_text(name, value)}")
    return lines


def _text(name: str, value: Any) -> str:
    return size_text(value) if name.startswith("bytes") or name.endswith("bytes") else str(value)


def _setting(row: dict[str, Any]) -> str:
    value = ",".join(row["value"]) if isinstance(row["value"], list | tuple) else row["value"]
    place = row["where"] or row["source"]
    return f"{row['name']} = {value} ({place}{', may change while it runs' * row['changeable']})"


CONTROLLED = (  # options of verbs that call running bookies
    *MACHINE,
    Option("--bookie ID", "id of a bookie of the local cluster (default: all)"),
    Option("--ledger-dir DIR", "a ledger directory of the bookie"),
)


def _row(
    name: str,
    text: str,
    run: Run,
    *options: Option | OneOf,
    example: str = "--bookie b1",
    description: str | None = None,
) -> Verb:
    words = f"bookie {name}"
    return verb(words, text, f"bk {words} {example}", run, *options, description=description, shared=CONTROLLED)


VERBS = (
    _row("state", "show a running bookie's mode, the reason for it, its directories and its last stop", _call("state")),
    _row(
        "read-only",
        "refuse ordinary adds until read-write",
        _call("hold", lambda arguments: {"read_only": True}),
        description="The bookie continues to accept reads, fences and recovery adds. With the setting "
        "persist_bookie_status it stays read-only across restarts.",
    ),
    _row(
        "read-write",
        "end read-only: accept ordinary adds again",
        _call("hold", lambda arguments: {"read_only": False}),
    ),
    _row(
        "settings",
        "show a running bookie's settings and where they come from, or change some until it stops",
        _calls(_settings),
        Option("--set NAME=VALUE", "change a setting that may change while the bookie runs", may_repeat=True),
        Option("--dry-run", "check the changes of --set, and make none", bool),
        example="--bookie b1 --set gc_interval_ms=60000",
    ),
    _row("disks", "show the usage of a bookie's disks, failed disks, and why it is read-only", _call("disks")),
    _row(
        "owed",
        "show which entries a bookie has lost, for example with a disk, and how far it has fetched them",
        _call("owed"),
    ),
    _row(
        "space",
        "show the contents of a bookie's entry logs, and what prevents space from being freed",
        _call("space"),
    ),
    _row(
        "gc",
        "collect garbage now: the data of deleted ledgers, and entry logs without live entries",
        _calls(_collection),
        Option(
            "--force",
            "collect even if the metadata lacks implausibly many ledgers; check damaged entry logs again",
            bool,
        ),
        Option(
            "--surplus",
            "also delete replicas that the metadata does not place on this bookie (left by a move or an interrupted "
            "copy), without quarantine",
            bool,
        ),
        Option("--wait", "wait until the collection has ended", bool),
        OneOf(
            Option("--suspend", "suspend compaction until --resume, across restarts; collect nothing now", bool),
            Option("--resume", "resume compaction; collect nothing now", bool),
        ),
        example="--wait",
    ),
    _row(
        "compact",
        "copy the live entries of mostly empty entry logs to a new log, delete the old ones",
        _call("compact", lambda arguments: {"kind": "major" if arguments.major else "minor", "wait": arguments.wait}),
        OneOf(
            Option("--minor", "compact nearly empty logs (the default)", bool),
            Option("--major", "compact logs below major_compaction_threshold", bool),
        ),
        Option("--wait", "wait until the compaction has ended", bool),
        example="--major --wait",
    ),
    _row(
        "encryption",
        "show how many bytes of entry logs are under which key, or re-encrypt those under a former one",
        _call("encryption", lambda arguments: {"renew": arguments.re_encrypt, "wait": arguments.wait}),
        Option("--re-encrypt", "copy what is under a former key, or under none, with the key in use", bool),
        Option("--wait", "wait until the re-encryption has ended", bool),
        example="--bookie b1 --re-encrypt --wait",
        description="With `plain` as the first line of encryption_keys_file, --re-encrypt decrypts the entry logs. A "
        "key may leave the file when no bytes are under it.",
    ),
    _row(
        "orphans",
        "list ledgers with entries here and without a record, and when they are deleted",
        OnBookie(_orphans, lambda arguments: [("orphans", {})], _orphan_lines),
        description="Garbage collection puts them into quarantine, and deletes them after gc_quarantine_ms. bk bookie "
        "undelete keeps a ledger. Records without entries: bk metadata orphans.",
    ),
    _row(
        "undelete",
        "restore a ledger from quarantine, and keep it even if the metadata lacks it",
        _call("undelete", _restored),
        Option("ledger LEDGER", "ledger id", int),
        example="17",
    ),
    _row(
        "why-not-deleted",
        "explain why an entry log still exists",
        _call("why", lambda arguments: {"log": arguments.log}),
        Option("log FILE", "path of an entry log, or its hexadecimal id"),
        example="bk-data/b1/ledgers/current/1f.log",
    ),
)
