"""Checks of records, and of appends that are numbered or depend on the last entry, at the end of a run.

    record     a record comes back with the value, key, headers and time with which it was appended
    numbers    the log holds each number of a producer once, in order and without gaps; an acknowledged one is at the
               position that was returned, unless it was truncated
    condition  a conditional append that succeeded is right behind the entry that it expected; one that was refused is
               not in the log, and reports an entry that is not in front of one acknowledged before

The value of an entry determines the rest of its record. A value such as `p1#17` is number 17 of producer p1.
Source: docs/explanation/logs.md, "Numbered entries" and "Conditional appends".
"""

from __future__ import annotations

import zlib

from bookies.client.log.log_writer import NO_ENTRY
from bookies.encoding.envelope import Header, Record, parse_record
from bookies.errors import MetadataCorrupt
from bookies.lab.sim.checkers.log_history import LogCheck
from bookies.protocol.log import Position
from bookies.protocol.log.sequences import HEADER


def record_for(value: bytes) -> Record:
    """Return the record with which a value is appended. Without a time it has that of its append."""
    number = zlib.crc32(value)
    headers: list[Header] = [("source", b"%d" % number), ("nothing", None)]
    return Record(
        value,
        b"key %d" % (number % 7) if number % 3 else None,
        headers if number % 4 else None,
        number % 1_000 * 1_000_000 if number % 5 else None,
    )


def value_in(entry: bytes) -> tuple[bytes, str]:
    """Return the value of an entry, and what is wrong with its record; "": it is right."""
    try:
        record = parse_record(entry)
    except MetadataCorrupt as error:
        return entry, str(error)
    value = record.value or b""
    wanted = record_for(value)
    if b"#" in value:
        number: Header = (HEADER, value.replace(b"#", b":"))
        wanted = wanted._replace(headers=[*(wanted.headers or ()), number])
    if wanted.timestamp_us is None and record.timestamp_us is not None:
        wanted = wanted._replace(timestamp_us=record.timestamp_us)
    return value, "" if record == wanted else f"{record} was appended as {wanted}"


def check_numbers(check: LogCheck) -> None:
    """Check "numbers", in every reading and in the final one."""
    history, at = check.history, check.positions()
    final = {payload for _, payload in history.final}
    beginning = check.key(history.final[0][0]) if history.final else (1 << 60, 0)
    for append in history.numbered:
        payload = append.payloads[-1]
        if append.last != NO_ENTRY and at.get(payload, append.last) != append.last:
            check.report(
                "numbers", f"{append.process} was told {append.last} of {payload!r}, which is at {at[payload]}"
            )
        for payload in append.payloads:
            is_gone = payload in at and check.key(at[payload]) < beginning
            if payload not in final and not is_gone and check.truncations:
                continue  # It may have been truncated without being read.
            if payload not in final and not is_gone:
                check.report("numbers", f"{payload!r} was acknowledged to {append.process} and is not there")
    for entries in (*(reading.entries for reading in history.readings), history.final):
        last: dict[bytes, int] = {}
        for position, payload in entries:
            producer, is_numbered, digits = payload.partition(b"#")
            if not is_numbered:
                continue
            number = int(digits)
            if producer in last and number != last[producer] + 1:
                check.report("numbers", f"{payload!r} at {position} is behind number {last[producer]}")
            last[producer] = number


def check_conditions(check: LogCheck) -> None:
    """Check "condition"."""
    history, at = check.history, check.positions()
    for append in history.conditionals:
        name = f"{append.payload!r}, which {append.process} appended behind {append.expected},"
        if append.position is not None and not _is_behind(check, append.expected, append.position):
            check.report("condition", f"{name} is at {append.position}")
        if append.refused is None:
            continue
        if append.payload in at:
            check.report("condition", f"{name} was refused, and is at {at[append.payload]}")
        for ack in history.acks:
            is_before = ack.position is not None and ack.at_s < append.began_s and not append.is_stale
            if is_before and ack.position is not None and check.key(ack.position) > check.key(append.refused):
                text = f"was refused because of {append.refused}; {ack.position} was acknowledged before"
                check.report("condition", f"{name} {text}")
                break


def _is_behind(check: LogCheck, expected: Position, position: Position) -> bool:
    """Report whether no entry is between the two."""
    if expected != NO_ENTRY:
        return position == expected.next or check.follows(expected, position, expected.entry_id)
    before = check.order[: check.order.index(position.ledger_id)]
    return position.entry_id == 0 and all(check.end_of(ledger_id) == -1 for ledger_id in before)
