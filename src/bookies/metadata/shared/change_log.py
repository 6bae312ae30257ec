"""The log of operators' changes of ledgers' records: who changed what, when, and why.

It is one named record, so it moves with the cluster and is part of every dump. It holds the last `LINES_MAX` changes.
A line is written before its change. So no change lacks its line, and a line may be one of a change that was refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from bookies.encoding.documents import parse_json
from bookies.errors import InvalidArgument, RecordExists, RecordNotFound, VersionConflict
from bookies.metadata.interface import MetadataDriver

NAME = "operator-changes"  # the record
FORMAT = 1
LINES_MAX = 200
FIELDS_MAX = 50  # differences in one line
REASON_LENGTH_MAX = 500  # characters


async def note_change(
    driver: MetadataDriver, at_ms: int, by: str, reason: str, what: str, differences: Sequence[Mapping[str, str]]
) -> None:
    """Append a line. `at_ms`: wall clock. `what`: the subject, such as `ledger 17`. Raises `MetadataError`,
    `InvalidArgument` (a reason that is empty, too long, or not one line of text).
    """
    check_reason(reason)
    line: dict[str, Any] = {"at_ms": at_ms, "by": by, "reason": reason, "what": what}
    line["differences"] = [dict(difference) for difference in differences[:FIELDS_MAX]]
    line["omitted"] = max(0, len(differences) - FIELDS_MAX)
    while True:
        lines, version = await _read(driver)
        document = {"format": FORMAT, "changes": [*lines, line][-LINES_MAX:]}
        data = json.dumps(document, ensure_ascii=False).encode("utf-8")
        try:
            if version:
                await driver.write_record(NAME, data, version)
            else:
                await driver.create_record(NAME, data)
        except (VersionConflict, RecordExists, RecordNotFound):
            continue
        return


def check_reason(reason: str) -> None:
    """Check an operator's reason. Raises `InvalidArgument`."""
    if not reason.strip() or len(reason) > REASON_LENGTH_MAX or not reason.isprintable():
        raise InvalidArgument(f"reason={reason[:60]!r}: write one line of text, of 1 to {REASON_LENGTH_MAX} characters")


async def read_changes(driver: MetadataDriver) -> list[dict[str, Any]]:
    """Return the lines, the oldest first; none if the record cannot be parsed. Raises `MetadataError`."""
    return (await _read(driver))[0]


async def _read(driver: MetadataDriver) -> tuple[list[dict[str, Any]], int]:
    """Return (lines, version of the record; 0: there is none)."""
    try:
        data, version = await driver.read_record(NAME)
    except RecordNotFound:
        return [], 0
    try:
        document = parse_json(data)
        lines = document["changes"] if document["format"] == FORMAT else []
        return [line for line in lines if isinstance(line, dict)], version
    except (ValueError, KeyError, TypeError):
        return [], version
