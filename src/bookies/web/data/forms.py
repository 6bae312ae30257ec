"""Entries in the bodies of requests and answers: one entry as it is, JSON, or entries with a length before each."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import NamedTuple

from bookies.encoding.envelope import Record
from bookies.protocol.log.record_json import parse_object, row_of
from bookies.protocol.log.records import LogRecord
from bookies.web.messages import JSON, Problem, Request, Response

BINARY = "application/octet-stream"
LINES = "application/x-ndjson"  # an object a line
PREFIXED = "application/x-bk-entries"  # of each entry: its length, u32 big-endian, and its bytes
BODIES = f"{BINARY}, {LINES}, {PREFIXED}"
ENTRIES_MAX = 1_000  # of one request
_u32 = struct.Struct(">I")


class Page(NamedTuple):
    """Entries that were read. `following`: the position after them, to continue from; empty: none is known.

    `is_end`: no later entry was there to read.
    """

    rows: Sequence[tuple[str, LogRecord]]
    following: str
    is_end: bool


# -- requests --------------------------------------------------------------------------------------------------------


def parse_entries(request: Request) -> list[Record]:
    """Return the entries of a body. Its type says how it holds several; any other type is one entry. Raises `Problem`.

    `parse_object` documents an entry in JSON.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == LINES:
        count = request.body.count(b"\n")
        if count > ENTRIES_MAX:  # before they are split
            raise Problem(413, f"{count:,} lines: a request has 1 to {ENTRIES_MAX:,}")
        lines = [line for line in request.body.split(b"\n") if line.strip()]
        records = [_parse_line(number, line) for number, line in enumerate(lines, 1)]
    elif kind == PREFIXED:
        records = [Record(value) for value in _parse_prefixed(request.body)]
    else:
        records = [Record(request.body)]
    if not 1 <= len(records) <= ENTRIES_MAX:
        raise Problem(413 if records else 400, f"{len(records):,} entries: a request has 1 to {ENTRIES_MAX:,}")
    return records


def _parse_line(number: int, line: bytes) -> Record:
    try:
        return parse_object(line)
    except ValueError as error:
        raise Problem(400, f"line {number} of the body: {error}") from None


def _parse_prefixed(body: bytes) -> list[bytes]:
    entries: list[bytes] = []
    at = 0
    while at < len(body):
        if at + 4 > len(body) or (end := at + 4 + _u32.unpack_from(body, at)[0]) > len(body):
            raise Problem(400, f"entry {len(entries) + 1} of the body, at byte {at:,}, is cut off")
        entries.append(body[at + 4 : end])
        at = end
        if len(entries) > ENTRIES_MAX:
            break
    return entries


# -- answers ---------------------------------------------------------------------------------------------------------


def page_response(request: Request, page: Page) -> Response:
    """Return a page in the form that the request accepts: JSON, lines of JSON, or with a length before each entry."""
    headers = {"Bk-Next": page.following, "Bk-End": str(page.is_end).lower()}
    accept = request.headers.get("accept", "")
    if PREFIXED in accept or BINARY in accept:
        values = [record.value or b"" for _, record in page.rows]
        body = b"".join(part for value in values for part in (_u32.pack(len(value)), value))
        return Response(200, body, PREFIXED if PREFIXED in accept else BINARY, headers)
    rows = [row_of(position, record) for position, record in page.rows]
    if LINES in accept:
        return Response(200, "".join(f"{json.dumps(row)}\n" for row in rows).encode(), LINES, headers)
    content = {"entries": rows, "next": page.following, "end": page.is_end}
    return Response(200, json.dumps(content).encode() + b"\n", JSON, headers)
