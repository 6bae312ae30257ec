"""`bk bookie scrub`: progress and findings of a running bookie's scrub; start a pass, suspend and resume it."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from bookies.admin.shared.command_line import OneOf, Option, verb
from bookies.admin.shared.common import OnBookie, size_text
from bookies.admin.shared.report import Report
from bookies.admin.verbs.control import CONTROLLED, ask, ask_each, control_files
from bookies.units import duration_text

POLL_S = 0.5
SHOWN_MAX = 20  # findings that are printed; --json prints all

_SIZES = {
    "read": "read_bytes",
    "still to read": "left_bytes",
    "verified": "verified_bytes",
    "not checkable": "not_checkable_bytes",
}
_COUNTS = {
    "index files damaged, rebuilt": "index_files_damaged",
    "journals damaged, no longer needed": "journals_damaged",
    "damaged records that no index refers to": "damaged_records_of_no_use",
    "ledgers whose digest type is unknown, because the metadata store did not answer": "metadata_unavailable",
    "parts that could not be read": "parts_failed",
}


def _run(arguments: argparse.Namespace) -> Report | int:
    """Call each named bookie, wait with --wait, and return the answers."""
    paths = list(control_files(arguments))
    answers, failed = ask_each(arguments.verb, paths, lambda path: _begin(arguments, path))
    if arguments.wait:
        try:
            waited, lost = ask_each(arguments.verb, [path for path in paths if path not in failed], _wait)
            answers |= waited
            failed += lost
        except KeyboardInterrupt:
            print("\nthe scrub continues in the bookie; show its progress with: bk bookie scrub", file=sys.stderr)
            return 130
    held = [name for name, answer in answers.items() if arguments.wait and _is_held_up(answer, arguments.now)]
    why = "did not wait, because the scrub is suspended; resume it with: bk bookie scrub --resume"
    return Report(
        answers,
        (f"{name}: {line}" for name, answer in answers.items() for line in lines_of(answer)),
        1 if held or failed or any(answer["damaged_entries"] for answer in answers.values()) else 0,
        [f"{name}: {why}" for name in held],
    )


def _calls(arguments: argparse.Namespace) -> list[tuple[str, dict[str, object]]]:
    calls: list[tuple[str, dict[str, object]]] = []
    if arguments.suspend or arguments.resume:
        calls.append(("suspend_scrub", {"suspended": arguments.suspend}))
    if arguments.now or not calls:
        calls.append(("scrub", {"now": arguments.now}))
    return calls


def _begin(arguments: argparse.Namespace, path: Any) -> tuple[str, Any]:
    """Make the calls of one bookie. Return its name and the last answer."""
    return [ask(path, call, given) for call, given in _calls(arguments)][-1]


def _is_held_up(answer: Any, is_wanted: bool) -> bool:
    """Report whether the scrub is suspended during a pass, or although one was requested."""
    return bool(answer["is_suspended"] and (answer["is_running"] or is_wanted))


def _wait(path: Any) -> tuple[str, Any]:
    """Wait until no pass runs, with a progress line on a terminal. Return the bookie's name and its answer."""
    is_shown = sys.stderr.isatty()
    while True:
        name, answer = ask(path, "scrub", {})
        if not answer["is_running"] or answer["is_suspended"]:
            if is_shown:
                print(file=sys.stderr)
            return name, answer
        if is_shown:
            read, left = answer["read_bytes"], answer["left_bytes"]
            text = f"{name}: pass {answer['pass']}, {size_text(read)} read, {size_text(left)} left"
            print(f"\r{text:79}", end="", file=sys.stderr, flush=True)
        time.sleep(POLL_S)


def lines_of(answer: Any) -> list[str]:
    """Return the lines to print: progress, verified bytes, findings."""
    state = "suspended" if answer["is_suspended"] else "running" if answer["is_running"] else "ended"
    lines = (
        [f"pass {answer['pass']} {state}"]
        if answer["pass"]
        else [f"no pass yet{', suspended' * answer['is_suspended']}"]
    )
    if answer["next_pass_s"] is not None and answer["pass"]:
        lines.append(f"next pass in {duration_text(answer['next_pass_s'])}")
    lines.append(f"oldest byte that is not verified: {duration_text(answer['oldest_unverified_s'])}")
    lines += [f"{text}: {size_text(answer[name])}" for text, name in _SIZES.items()]
    if answer["not_checkable_entries"]:
        lines.append(
            f"entries without a digest that a bookie can check: {answer['not_checkable_entries']:,}; their length and "
            "ids were checked"
        )
    lines += [f"{text}: {answer[name]:,}" for text, name in _COUNTS.items() if answer[name]]
    lines.append(f"damaged entries: {answer['damaged_entries']:,}")
    for row in answer["damage"][:SHOWN_MAX]:
        ids = f"{row['first']}" if row["first"] == row["last"] else f"{row['first']} to {row['last']}"
        entries = f"ledger {row['ledger']} entry {ids}: " if row["ledger"] is not None else ""
        lines.append(f"{row['log']} at byte {row['offset']:,}: {entries}{row['problem']}")
    if len(answer["damage"]) > SHOWN_MAX:
        lines.append(f"and {len(answer['damage']) - SHOWN_MAX:,} more: --json prints all")
    if answer["damaged_entries"]:
        ledgers = dict.fromkeys(str(row["ledger"]) for row in answer["damage"] if row["ledger"] is not None)
        named = " ".join(list(ledgers)[:SHOWN_MAX]) or "LEDGER"
        lines.append(
            f"copy them from other replicas: bk ledger repair {named}; many ledgers: bk spark scrub, bk spark repair"
        )
    return lines


VERBS = (
    verb(
        "bookie scrub",
        "show the progress and findings of the background check of all stored data",
        "bk bookie scrub --now --wait",
        OnBookie(_run, _calls, lines_of),
        Option("--now", "start a pass now, at the highest allowed rate", bool),
        Option("--wait", "wait until the current pass has ended", bool),
        OneOf(
            Option("--suspend", "suspend the scrub until --resume, across restarts", bool),
            Option("--resume", "resume the scrub", bool),
        ),
        description="Shows the progress and findings of the scrub. Exit status 1 if a bookie has damaged entries, or "
        "if --wait ends because the scrub is suspended. The bookie continues a started pass after this command has "
        "ended.",
        shared=CONTROLLED,
    ),
)
