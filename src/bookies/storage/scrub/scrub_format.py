"""The file in which the scrub keeps its progress and findings across restarts.

A head, a JSON object and a checksum. Every ledger directory has a copy; the one with the greatest sequence number
counts. Without a good copy the scrub starts over. Ours: Apache's bookies ignore it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

from msgspec import Struct, field, to_builtins

from bookies.encoding.documents import parse_json
from bookies.errors import CorruptRecord
from bookies.kernels import crc32c

FILE_NAME = "scrub.progress"
MAGIC = b"BKSC"
VERSION = 1

_HEAD = struct.Struct(">4sIQI")
_DIGEST = struct.Struct(">I")


class Finding(Struct, frozen=True):
    """Damage: entries `first` to `last` of a ledger, in an entry log, are wrong or cannot be read.

    `offset`: of the first one's record. `ledger_id` -1: the damage is in the log's header or ledgers map, not in
    entries. `found_ms`: wall clock.
    """

    log_id: int
    offset: int
    ledger_id: int
    first: int
    last: int
    problem: str
    found_ms: int

    @property
    def entry_count(self) -> int:
        return self.last - self.first + 1 if self.ledger_id >= 0 else 0


class LogProgress(Struct):
    """Progress of one entry log in the present pass. Wall clock in ms, offsets in bytes.

    `good_ms`: when the last complete check began, or when the log was first seen. `began_ms`: when the check in
    progress began; 0: none. `position`: the offset that it has reached. `is_done`: in this pass.
    """

    good_ms: int
    began_ms: int = 0
    position: int = 0
    is_done: bool = False


class Counts(Struct):
    """Counts of the present pass, in bytes unless stated otherwise.

    `unchecked_entries`, `unchecked`: framing and ids were checked, but the digest needs a password, or the ledger has
    no digest, or its type is unknown. `dead_damaged`: number of damaged records that no slot names.
    """

    read: int = 0
    verified: int = 0
    unchecked: int = 0
    unchecked_entries: int = 0
    dead_damaged: int = 0
    index_read: int = 0
    indexes_damaged: int = 0
    journal_read: int = 0
    journals_damaged: int = 0


class Progress(Struct):
    """The complete progress. `number`: of the present pass, from 1 on; `ended_ms` 0: it is running.

    `index_cursor`: ledgers up to this one are done; None: all are. `dropped_count`: entries of findings beyond the
    limit.
    """

    number: int = 0
    began_ms: int = 0
    ended_ms: int = 0
    is_suspended: bool = False
    index_good_ms: int = 0
    index_cursor: int | None = None
    are_journals_done: bool = True
    dropped_count: int = 0
    counts: Counts = field(default_factory=Counts)
    logs: dict[int, LogProgress] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


def pack(sequence: int, progress: Progress) -> bytes:
    """Return the whole file."""
    facts: dict[str, Any] = {
        "pass": [progress.number, progress.began_ms, progress.ended_ms],
        "suspended": progress.is_suspended,
        "index": [progress.index_good_ms, progress.index_cursor],
        "journals": progress.are_journals_done,
        "dropped": progress.dropped_count,
        "counts": to_builtins(progress.counts),
        "logs": [
            [log_id, log.good_ms, log.began_ms, log.position, log.is_done] for log_id, log in progress.logs.items()
        ],
        "damage": [
            [item.log_id, item.offset, item.ledger_id, item.first, item.last, item.problem, item.found_ms]
            for item in progress.findings
        ],
    }
    body = json.dumps(facts, separators=(",", ":")).encode()
    data = _HEAD.pack(MAGIC, VERSION, sequence, len(body)) + body
    return data + _DIGEST.pack(crc32c(data))


def parse(data: bytes, *, path: str = FILE_NAME) -> tuple[int, Progress]:
    """Return (sequence number, progress). Raises CorruptRecord."""
    if len(data) < _HEAD.size + _DIGEST.size:
        raise CorruptRecord(f"the file is cut off: {len(data)} bytes", path=path, offset=len(data))
    magic, version, sequence, size = _HEAD.unpack_from(data)
    end = _HEAD.size + size
    if magic != MAGIC or version != VERSION or end + _DIGEST.size != len(data):
        raise CorruptRecord("not a scrub progress file, or cut off", path=path, offset=0)
    if _DIGEST.unpack_from(data, end)[0] != crc32c(data[:end]):
        raise CorruptRecord("the checksum does not match", path=path, offset=end)
    try:
        return sequence, _parse_progress(data[_HEAD.size : end])
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptRecord(f"it is not what the scrub writes: {error!r}", path=path, offset=_HEAD.size) from error


def _parse_progress(body: bytes) -> Progress:
    facts = parse_json(body)
    number, began_ms, ended_ms = facts["pass"]
    index_good_ms, index_cursor = facts["index"]
    return Progress(
        number,
        began_ms,
        ended_ms,
        facts["suspended"],
        index_good_ms,
        index_cursor,
        facts["journals"],
        facts["dropped"],
        Counts(**facts["counts"]),
        {log_id: LogProgress(*rest) for log_id, *rest in facts["logs"]},
        [Finding(*fields) for fields in facts["damage"]],
    )


def newest(copies: Sequence[tuple[str, bytes]]) -> tuple[int, Progress | None, list[CorruptRecord]]:
    """Return (sequence number, progress, damaged copies): the newest good one of (path, content) copies."""
    best, sequence, damaged = None, 0, []
    for path, data in copies:
        try:
            number, progress = parse(data, path=path)
        except CorruptRecord as error:
            damaged.append(error)
            continue
        if number > sequence:
            best, sequence = progress, number
    return sequence, best, damaged
