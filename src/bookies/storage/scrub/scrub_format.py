"""The file in which the scrub keeps how far it has come and what it has found, so that a restart loses neither.

A head, a JSON object and a checksum; a copy in every ledger directory, of which the one with the greatest sequence
number counts. Without a good copy the scrub begins anew. Ours: Apache's bookie does not look at it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bookies.errors import CorruptRecord
from bookies.kernels import crc32c

FILE_NAME = "scrub.progress"
MAGIC = b"BKSC"
VERSION = 1

_HEAD = struct.Struct(">4sIQI")
_DIGEST = struct.Struct(">I")


@dataclass(frozen=True, slots=True)
class Finding:
    """Damage that was found: entries `first` to `last` of a ledger, in an entry log, cannot be believed or read.

    `offset`: of the first one's record. `ledger_id` -1: no entry is concerned, but the log's header or ledgers map.
    `found_ms`: wall clock.
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


@dataclass(slots=True)
class LogProgress:
    """One entry log in the present pass. Wall clock in ms, offsets in bytes.

    `good_ms`: when the check that last came to its end began, or when the log was first seen. `began_ms`: the same of
    the check under way; 0: there is none. `position`: what that one has reached. `is_done`: in this pass.
    """

    good_ms: int
    began_ms: int = 0
    position: int = 0
    is_done: bool = False


@dataclass(slots=True)
class Counts:
    """What the present pass has met. Bytes unless said otherwise.

    `unchecked_entries`, `unchecked`: framing and ids were checked, but the digest needs a password, or the ledger has
    none, or its kind is not known. `dead_damaged`: damaged records that nothing points to, a number.
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


@dataclass(slots=True)
class Progress:
    """All of it. `number`: of the present pass, the first being 1; `ended_ms` 0: it is under way.

    `index_cursor`: ledgers up to this one are done; None: all are. `dropped_count`: findings for which there was no
    room.
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
    """The whole file."""
    facts: dict[str, Any] = {
        "pass": [progress.number, progress.began_ms, progress.ended_ms],
        "suspended": progress.is_suspended,
        "index": [progress.index_good_ms, progress.index_cursor],
        "journals": progress.are_journals_done,
        "dropped": progress.dropped_count,
        "counts": asdict(progress.counts),
        "logs": [
            [log_id, each.good_ms, each.began_ms, each.position, each.is_done] for log_id, each in progress.logs.items()
        ],
        "damage": [
            [each.log_id, each.offset, each.ledger_id, each.first, each.last, each.problem, each.found_ms]
            for each in progress.findings
        ],
    }
    body = json.dumps(facts, separators=(",", ":")).encode()
    data = _HEAD.pack(MAGIC, VERSION, sequence, len(body)) + body
    return data + _DIGEST.pack(crc32c(data))


def parse(data: bytes, *, path: str = FILE_NAME) -> tuple[int, Progress]:
    """(sequence number, progress). Raises CorruptRecord."""
    if len(data) < _HEAD.size + _DIGEST.size:
        raise CorruptRecord(f"{len(data)} bytes are less than an empty one", path=path, offset=len(data))
    magic, version, sequence, size = _HEAD.unpack_from(data)
    end = _HEAD.size + size
    if magic != MAGIC or version != VERSION or end + _DIGEST.size != len(data):
        raise CorruptRecord("not the progress of a scrub, or not all of it", path=path, offset=0)
    if _DIGEST.unpack_from(data, end)[0] != crc32c(data[:end]):
        raise CorruptRecord("the checksum does not match", path=path, offset=end)
    facts = json.loads(data[_HEAD.size : end])
    number, began_ms, ended_ms = facts["pass"]
    index_good_ms, index_cursor = facts["index"]
    return sequence, Progress(
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
        [Finding(*each) for each in facts["damage"]],
    )


def newest(copies: Sequence[tuple[str, bytes]]) -> tuple[int, Progress | None, list[CorruptRecord]]:
    """Of (path, content) of all copies: the sequence number of the best one, what it says, and what is damaged."""
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
