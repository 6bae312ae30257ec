"""Checks of a log's transactions and cursors at the end of a run.

    I-34   the entries of a transaction are in the log once, all of them or none, in order, with no others in between:
           all if its commit succeeded, none if it was given up before any commit; a truncation may cut off the first
    I-35   a cursor is never before a position to which its consumer has moved it; no truncation passes a cursor, and
           no consumer misses entries at its cursor

Source: spark 4.2, 4.3; pains H 67, 71.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bookies.encoding.documents import parse_json
from bookies.protocol.log import Position
from bookies.protocol.log.transaction import label

if TYPE_CHECKING:
    from bookies.lab.sim.checkers.log_history import Found, ListCommit, LogCheck, Txn


def check_transactions(check: LogCheck) -> None:
    """Check I-34, in every reading and in the final one."""
    history = check.history
    owner = {payload: key for key, txn in history.transactions.items() for payload in txn.payloads}
    for entries in (*(reading.entries for reading in history.readings), history.final):
        indexes: dict[tuple[str, int], list[int]] = {}
        for index, (_, payload) in enumerate(entries):
            if payload in owner:
                indexes.setdefault(owner[payload], []).append(index)
        for key, at in indexes.items():
            _check_whole(check, history.transactions[key], entries, at)
    if not history.final:
        return
    final = {payload for _, payload in history.final}
    beginning = check.key(history.final[0][0])
    for key, txn in history.transactions.items():
        if txn.is_committed and not final.intersection(txn.payloads):
            listed = [ledger_id for ledger_id in check.order if _label_of(check, ledger_id) == key]
            if not listed or any(check.key(Position(ledger_id, 0)) > beginning for ledger_id in listed):
                check.report("I-34", f"{txn.name} is committed and not in the log; the lists named {listed}")


def _check_whole(check: LogCheck, txn: Txn, entries: Sequence[Found], at: Sequence[int]) -> None:
    payloads = [entries[index][1] for index in at]
    text = f"of {txn.name} a reader got {payloads[:3]} and so on, {len(payloads)} of {len(txn.payloads)} entries"
    if txn.is_given_up:
        check.report("I-34", f"{text}; it was given up before any commit")
        return
    first = txn.payloads.index(payloads[0])
    if payloads != txn.payloads[first : first + len(payloads)] or at[-1] - at[0] + 1 != len(at):
        check.report("I-34", f"{text}, not in one order without others in between")
    elif (first and at[0]) or (first + len(payloads) < len(txn.payloads) and at[-1] != len(entries) - 1):
        check.report("I-34", f"{text}, though it continued to read")


def _label_of(check: LogCheck, ledger_id: int) -> tuple[str, int] | None:
    """Return the transaction that a ledger was written for, by its first record."""
    commits = check.store.commits.get(ledger_id, ())
    record = commits[0].after if commits else None
    version = label(record, "version") if record is not None else ""
    return (label(record, "app"), int(version)) if record is not None and version else None


def check_cursors(check: LogCheck, name: str) -> None:
    """Check I-35 in the order of the commits of the list and of the cursors' record."""
    versions = [
        (commit.at_s, _cursors_of(commit.after)) for commit in check.store.record_commits.get(f"cursors/{name}", [])
    ]
    for at_s, cursors in versions:
        for cursor, moved in check.history.moves.items():
            known = [position for done_s, position in moved if done_s < at_s]
            if known and check.key(cursors.get(cursor, Position(-1, 0))) < max(map(check.key, known)):
                best = max(known, key=check.key)
                check.report("I-35", f"cursor {cursor} is at {cursors.get(cursor)}, after its consumer moved to {best}")
    for commit in check.commits:
        current: Mapping[str, Position] = {}
        for at_s, cursors in versions:
            # Of two commits at the same instant the order is unknown: only what both orders forbid is reported.
            current = cursors if at_s < commit.at_s else current
        for cursor, position in current.items():
            if _is_passed(check, commit, position):
                check.report("I-35", f"{commit.author} truncated the log at {commit.at_s:.3f} past {cursor} {position}")


def _cursors_of(data: bytes | None) -> dict[str, Position]:
    if data is None:
        return {}
    rows = parse_json(data)["cursors"]
    return {name: Position(row["ledger"], row["entry"]) for name, row in rows.items()}


def _is_passed(check: LogCheck, commit: ListCommit, at: Position) -> bool:
    """Report whether a list lacks entries from a position on that were in the log."""
    if commit.manifest is None or not commit.manifest.extents:
        return False
    beginning = commit.manifest.extents[0]
    if check.key(at) >= (beginning.seq, beginning.first):
        return False
    between = check.order[check.order.index(at.ledger_id) : check.order.index(beginning.ledger_id)]
    ends = [(ledger_id, check.end_of(ledger_id)) for ledger_id in between]
    has_entries = any(
        end is not None and end >= (at.entry_id if ledger_id == at.ledger_id else 0) for ledger_id, end in ends
    )
    return has_entries or beginning.first > (at.entry_id if beginning.ledger_id == at.ledger_id else 0)
