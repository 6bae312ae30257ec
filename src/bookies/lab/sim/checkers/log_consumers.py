"""Checks of a log's transactions, cursors and consumers at the end of a run.

    transaction  its entries are in the log once, all of them or none, in order, with no others in between: all if its
                 commit succeeded, none if it was given up before any commit; a truncation may cut off the first
    cursor       a cursor is where its consumer has moved it; other clients move it only over positions without entries,
                 no truncation passes it, and its consumer can continue there
    consumer     the cursor of a consumer with a lease never goes back; only the last one that has claimed it moves it,
                 and only over entries that were handled; an entry whose commit succeeded is not delivered again

Source: spark 4.2, 4.3; pains H 67, 71; docs/explanation/logs.md, "Consumers".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from bookies.encoding.documents import parse_json
from bookies.lab.sim.checkers.log_history import Found, LogCheck, Session, Txn
from bookies.lab.sim.checkers.log_times import TimeCheck
from bookies.lab.sim.world.sim_metadata import SimStore
from bookies.protocol.log import Position
from bookies.protocol.log.sequences import CURSOR as NUMBERS
from bookies.protocol.log.transaction import label

Place = tuple[Position, int]  # of a cursor, and the token of its consumer


def check_transactions(check: LogCheck) -> None:
    """Check "transaction", in every reading and in the final one."""
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
                check.report("transaction", f"{txn.name} is committed and not in the log; the lists named {listed}")


def _check_whole(check: LogCheck, txn: Txn, entries: Sequence[Found], at: Sequence[int]) -> None:
    payloads = [entries[index][1] for index in at]
    text = f"of {txn.name} a reader got {payloads[:3]} and so on, {len(payloads)} of {len(txn.payloads)} entries"
    if txn.is_given_up:
        check.report("transaction", f"{text}; it was given up before any commit")
        return
    first = txn.payloads.index(payloads[0])
    if payloads != txn.payloads[first : first + len(payloads)] or at[-1] - at[0] + 1 != len(at):
        check.report("transaction", f"{text}, not in one order without others in between")
    elif (first and at[0]) or (first + len(payloads) < len(txn.payloads) and at[-1] != len(entries) - 1):
        check.report("transaction", f"{text}, though it continued to read")


def _label_of(check: LogCheck, ledger_id: int) -> tuple[str, int] | None:
    """Return the transaction that a ledger was written for, by its first record."""
    commits = check.store.commits.get(ledger_id, ())
    record = commits[0].after if commits else None
    version = label(record, "version") if record is not None else ""
    return (label(record, "app"), int(version)) if record is not None and version else None


def check_cursors(check: LogCheck, name: str, times: TimeCheck) -> None:
    """Check "cursor" in the order of the commits of the list and of the cursors' record."""
    versions = _versions(check, name)
    movers = {(session.consumer, session.process) for session in check.history.sessions}
    movers |= {(cursor, process) for process, cursor, _ in check.history.resets}
    moved_s: dict[str, list[float]] = {}  # cursor -> times of its moves
    for (_, _, before), (at_s, author, after) in pairwise([(0.0, "", {}), *versions]):
        for cursor in after:
            is_own = author.partition(".")[0] == cursor or (cursor, author) in movers  # not carried by a truncation
            if is_own and after[cursor] != before.get(cursor):
                moved_s.setdefault(cursor, []).append(at_s)
        for cursor, (position, _) in before.items():
            now = after[cursor][0] if cursor in after else None
            if now == position or author.partition(".")[0] == cursor or cursor == NUMBERS:
                continue
            if (cursor, author) in movers:
                continue  # See `check_sessions`.
            if now is None or check.key(now) < check.key(position) or _has_entries(check, position, now):
                check.report("cursor", f"{author} moved {cursor} from {position} to {now} at {at_s:.3f}")
    for cursor, moves in check.history.moves.items():
        for done_s, position in moves:
            if not any(at_s <= done_s and cursor in at and at[cursor][0] == position for at_s, _, at in versions):
                check.report("cursor", f"cursor {cursor} was moved to {position}, and never was there")
    passed: set[str] = set()  # cursors that hold nothing back
    for commit in check.commits:
        current: Mapping[str, Place] = {}
        for at_s, _, cursors in versions:
            # Of two commits at the same instant the order is unknown: only what both orders forbid is reported.
            current = cursors if at_s < commit.at_s else current
        beginning = commit.manifest.extents[0] if commit.manifest is not None and commit.manifest.extents else None
        for cursor, (position, _) in current.items() if beginning is not None else ():
            assert beginning is not None
            is_passed = _has_entries(check, position, Position(beginning.ledger_id, beginning.first))
            since_s = max((at_s for at_s in moved_s.get(cursor, ()) if at_s < commit.at_s), default=0.0)
            if is_passed and cursor in passed:
                continue
            if is_passed and times.may_pass(commit, cursor, since_s):
                passed.add(cursor)
            elif is_passed:
                check.report(
                    "cursor", f"{commit.author} truncated the log at {commit.at_s:.3f} past {cursor} {position}"
                )


def cursors_of(data: bytes | None) -> dict[str, Place]:
    """Return the positions and tokens in a record of cursors, by name."""
    if data is None:
        return {}
    rows = parse_json(data)["cursors"]
    return {name: (Position(row["ledger"], row["entry"]), row.get("token", 0)) for name, row in rows.items()}


def _versions(check: LogCheck, name: str) -> list[tuple[float, str, dict[str, Place]]]:
    commits = check.store.record_commits.get(f"cursors/{name}", [])
    return [(commit.at_s, commit.author, cursors_of(commit.after)) for commit in commits]


def claimed_at(store: SimStore, name: str, session: Session) -> Position | None:
    """Return where a consumer found the cursor that it has claimed; None: there was no cursor."""
    for commit in store.record_commits.get(f"cursors/{name}", []):
        place = cursors_of(commit.after).get(session.consumer)
        if commit.author == session.process and place is not None and place[1] == session.token:
            return place[0]
    return None


def check_sessions(check: LogCheck, name: str) -> None:
    """Check "consumer"."""
    sessions = {(session.consumer, session.token): session for session in check.history.sessions}
    consumers = dict.fromkeys(session.consumer for session in check.history.sessions)
    for (_, _, before), (at_s, author, after) in pairwise([(0.0, "", {}), *_versions(check, name)]):
        for cursor in consumers.keys() & after.keys():
            now, token = after[cursor]
            if after[cursor] == before.get(cursor):
                continue
            was, last_token = before.get(cursor, (now, 0))
            text = f"{author} moved {cursor} from {was} to {now} at {at_s:.3f}"
            if check.key(now) < check.key(was):
                check.report("consumer", f"{text}, back")
            if token < last_token:
                check.report("consumer", f"{text} with token {token}, after {last_token}")
            session = sessions.get((cursor, token))
            is_reset = (author, cursor, now) in check.history.resets
            if session is None or session.process != author or token != last_token or is_reset:
                continue  # A claim, a truncation that carries the cursor, or a reset.
            handled = [was, *(position for done_s, position in session.handled if done_s <= at_s)][-1]
            if _has_entries(check, handled, now):
                check.report("consumer", f"{text}, and had handled up to {handled}")
    _check_repeats(check)


def _check_repeats(check: LogCheck) -> None:
    for session in check.history.sessions:
        for entry in session.reading.entries[:1]:
            for other in check.history.sessions:
                done = [place for done_s, place in other.committed if done_s < session.reading.began_s]
                if other.consumer == session.consumer and done and check.key(entry[0]) < check.key(done[-1]):
                    text = f"{session.process} got {entry[0]} as {session.consumer}"
                    check.report("consumer", f"{text}, after {other.process} had committed {done[-1]}")


def _has_entries(check: LogCheck, start: Position, end: Position) -> bool:
    """Report whether the log had entries from a position on, before another one."""
    if check.key(start) >= check.key(end):
        return False
    if start.ledger_id == end.ledger_id:
        return True
    between = check.order[check.order.index(start.ledger_id) : check.order.index(end.ledger_id)]
    lasts = [(ledger_id, check.end_of(ledger_id)) for ledger_id in between]
    return end.entry_id > 0 or any(
        last is not None and last >= (start.entry_id if ledger_id == start.ledger_id else 0)
        for ledger_id, last in lasts
    )
