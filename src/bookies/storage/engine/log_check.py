"""Records of an entry log against their digests, about a megabyte at a time and with one call a run of entries.

A record is *proven* by its digest, whoever needs it. Where the digest needs a password, or there is none, only the
index can tell whether a record is the one that should be there; `Proof.OPEN` leaves that to the caller. And where the
framing is lost, or a digest fails, `problem_of` looks at a place that the index names, by itself.

Blocks, where it reads; everything else is arithmetic. Source: storage 3.2 to 3.5, wire-protocol 4.4.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from bookies import kernels
from bookies.model import ENTRY_HEADER_SIZE, DigestType
from bookies.runtime.ports import File
from bookies.storage.engine.log_pieces import Piece
from bookies.storage.entry_log import entry_log_format as layout
from bookies.storage.records.record_scan import CHUNK_SIZE, IDS, RECORD_SIZE_MIN, WORD

CHECKED = (DigestType.CRC32C, DigestType.CRC32)  # anybody can compute them
RUN_STEP = 16  # records that are looked at first
READ_SIZE = 4096  # bytes of a first read of a single record

Kinds = Mapping[int, DigestType | None]  # by ledger; None: nobody knows


class Proof(enum.Enum):
    PROVEN = "proven"  # its digest is right
    OPEN = "open"  # its digest cannot be checked here
    FAILED = "failed"  # its digest is wrong


@dataclass(frozen=True, slots=True)
class Part:
    """Whole records that lie back to back from file offset `offset` on, in `pieces`.

    `starts`: as of `kernels.Records`. `ledger_ids`: whose they are, or seem to be. `after`: where to go on.
    `problem`: why no record can be there; empty otherwise.
    """

    offset: int
    data: bytes
    starts: Sequence[int]
    pieces: list[Piece]
    ledger_ids: list[int]
    after: int
    problem: str = ""

    def at(self, index: int) -> int:
        """File offset of record `index`, or of the end."""
        return self.offset + self.starts[index]

    def slots_of(self, log_id: int, piece: Piece) -> bytes:
        """What the index has of these entries if they are where they should be."""
        starts = self.starts[piece.start : piece.stop + 1]
        slots: bytes = kernels.pack_locations(log_id, self.offset + starts[0], starts)
        return slots


class Place(NamedTuple):
    """An entry as the index has it: `start` is the file offset of its record's length word."""

    start: int
    ledger_id: int
    entry_id: int


def read_part(file: File, offset: int, stop: int, record_size_max: int) -> Part:
    """The records from `offset` on, about a megabyte of them; nothing behind `stop`. Raises: OSError."""
    data = file.pread(min(CHUNK_SIZE, stop - offset), offset)
    if not data:
        return Part(offset, data, [0], [], [], offset, "the log ends here")
    starts, reason = kernels.scan_records(data, 0, len(data), record_size_max)
    if len(starts) == 1 and reason == "short" and len(data) >= 4:
        data = file.pread(min(4 + WORD.unpack_from(data)[0], stop - offset), offset)
        starts, reason = kernels.scan_records(data, 0, len(data), record_size_max)
    pieces, count, problem = _pieces(data, starts)
    ledger_ids = list(dict.fromkeys(piece.ledger_id for piece in pieces))
    end = offset + starts[count]
    if problem:
        return Part(offset, data, starts[: count + 1], pieces, ledger_ids, end, problem)
    rest = data[starts[-1] :]
    after = end
    if reason == "zero":
        after, problem = _skip_zeros(file, end, stop)
    elif reason == "negative":
        block_end = min(stop, end - end % layout.DIRECT_BLOCK + layout.DIRECT_BLOCK)
        after = block_end
        if file.pread(block_end - end, end).strip(layout.DIRECT_PADDING):
            problem = f"no record can begin with {WORD.unpack_from(rest)[0]:#010x}"
    elif reason == "large":
        problem = f"no record has {WORD.unpack_from(rest)[0]:,} bytes"
    elif reason == "short" and (offset + len(data) >= stop or len(starts) == 1):
        after = stop
        if rest.strip(layout.DIRECT_PADDING):
            problem = "a record is cut off by the end of the file"
    return Part(offset, data, starts, pieces, ledger_ids, end if problem else after, problem)


def _skip_zeros(file: File, start: int, stop: int) -> tuple[int, str]:
    """(where zeros that may end a log end, what is wrong with them)"""
    at = start
    while at < stop:
        data = file.pread(min(CHUNK_SIZE, stop - at), at)
        if not data or data.strip(b"\0"):
            return start, "zeros, yet something follows"
        at += len(data)
    return stop, ""


def _pieces(data: bytes, starts: Sequence[int]) -> tuple[list[Piece], int, str]:
    """(runs of consecutive entries, how many records are credible, why the next one is not)"""
    pieces: list[Piece] = []
    index, count = 0, len(starts) - 1
    while index < count:
        at = starts[index]
        size = starts[index + 1] - at - 4
        ledger_id, entry_id = IDS.unpack_from(data, at + 4) if size >= RECORD_SIZE_MIN else (-1, -3)
        if ledger_id >= 0 and entry_id >= 0:
            stop = index + max(1, _run_count(data, starts, index, ledger_id, entry_id))
            pieces.append(Piece(ledger_id, entry_id, index, stop))
            index = stop
        elif ledger_id == layout.MAP_LEDGER_ID and entry_id >= layout.MAP_ENTRY_ID:
            index += 1
        else:
            return pieces, index, f"no record has {size:,} bytes for entry {entry_id} of ledger {ledger_id}"
    return pieces, count, ""


def _run_count(data: bytes, starts: Sequence[int], index: int, ledger_id: int, first: int) -> int:
    """How many records from `index` on are consecutive entries. A few are looked at before many are."""
    at, step, count = index, RUN_STEP, len(starts) - 1
    if index + 1 < count and not _is_at(data, starts[index + 1], ledger_id, first + 1):
        return 1  # Of many ledgers that are written side by side: quicker than a call.
    while True:
        limit = min(count, at + step)
        run, _ = kernels.verify_records(
            data, starts[at], starts[limit], ledger_id, first + at - index, limit - at, DigestType.DUMMY, b""
        )
        at += len(run) - 1
        if at < limit or at == count:
            return at - index
        step *= 8


def _is_at(data: bytes, at: int, ledger_id: int, entry_id: int) -> bool:
    return len(data) - at >= 4 + RECORD_SIZE_MIN and IDS.unpack_from(data, at + 4) == (ledger_id, entry_id)


def check(part: Part, kinds: Kinds) -> tuple[list[tuple[Piece, Proof]], dict[int, int]]:
    """(what the digests say of the part, in the order of its records; bytes by ledger).

    Neighbours that are proven are one piece, of whatever ledgers: nobody needs to look at them again.
    """
    result: list[tuple[Piece, Proof]] = []
    sizes: dict[int, int] = {}
    starts = part.starts
    for piece in part.pieces:
        kind = kinds.get(piece.ledger_id)
        sizes[piece.ledger_id] = sizes.get(piece.ledger_id, 0) + starts[piece.stop] - starts[piece.start]
        if kind is None:
            is_proven = any(_good_count(part, piece, guess) == len(piece.entry_ids) for guess in CHECKED)
            _add(result, piece, Proof.PROVEN if is_proven else Proof.OPEN)
        elif kind in CHECKED:
            _check_piece(part, piece, kind, result)
        else:
            _add(result, piece, Proof.OPEN)
    return result, sizes


def _add(result: list[tuple[Piece, Proof]], piece: Piece, proof: Proof) -> None:
    if proof is Proof.PROVEN and result and result[-1][1] is Proof.PROVEN and result[-1][0].stop == piece.start:
        last = result[-1][0]
        result[-1] = Piece(last.ledger_id, last.first, last.start, piece.stop), proof
    else:
        result.append((piece, proof))


def _check_piece(part: Part, piece: Piece, kind: DigestType, result: list[tuple[Piece, Proof]]) -> None:
    ledger_id, first, start, stop = piece
    while start < stop:
        good = _good_count(part, Piece(ledger_id, first, start, stop), kind)
        if good:
            _add(result, Piece(ledger_id, first, start, start + good), Proof.PROVEN)
        first, start = first + good, start + good
        if start < stop:
            _add(result, Piece(ledger_id, first, start, start + 1), Proof.FAILED)
            first, start = first + 1, start + 1


def _good_count(part: Part, piece: Piece, kind: DigestType) -> int:
    """How many of a piece's first entries have the digest that they should have."""
    # A copy of its own, as some digests are computed by a function that copies what it is given.
    data = part.data[part.starts[piece.start] : part.starts[piece.stop]]
    good, _ = kernels.verify_records(data, 0, len(data), piece.ledger_id, piece.first, len(piece.entry_ids), kind, b"")
    return len(good) - 1


def check_places(
    file: File,
    places: Sequence[Place],
    following: int,
    stop: int,
    kinds: Kinds,
    ledger_ids: Collection[int] | None,
    record_size_max: int,
) -> tuple[list[tuple[Place, str]], int]:
    """(those places, ascending, at which there is not the entry that should be, and what is wrong; bytes read).

    `following`: where the next entry after the last of them begins, `stop` if there is none. `ledger_ids`: of ledgers
    that can be in the log, deleted ones too; None: any. A place that cannot be read is one of them.
    """
    wrong: list[tuple[Place, str]] = []
    size = 0
    for index, place in enumerate(places):
        limit = places[index + 1].start if index + 1 < len(places) else following
        try:
            data = file.pread(READ_SIZE, place.start)
            word = WORD.unpack_from(data)[0] if len(data) >= 4 else 0
            if len(data) < word + 4 <= record_size_max:
                data = file.pread(word + 4, place.start)
            next_head = file.pread(20, place.start + 4 + word) if word <= record_size_max else b""
        except OSError as error:
            wrong.append((place, f"it cannot be read: {error.strerror or error}"))
            continue
        size += len(data)
        problem = problem_of(data, place, min(limit, stop), kinds.get(place.ledger_id), record_size_max)
        if not problem and kinds.get(place.ledger_id) not in CHECKED and place.start + 4 + word != limit:
            problem = _problem_of_rest(next_head, place.start + 4 + word, stop, ledger_ids, record_size_max)
        if problem:
            wrong.append((place, problem))
    return wrong, size


def problem_of(data: bytes, place: Place, limit: int, kind: DigestType | None, record_size_max: int) -> str:
    """What is wrong with the record at the beginning of `data`, which ends at file offset `limit` at most."""
    if len(data) < 4 + RECORD_SIZE_MIN:
        return "the log ends before it"
    size = WORD.unpack_from(data)[0]
    if not RECORD_SIZE_MIN <= size <= record_size_max:
        return f"no record has {size:,} bytes"
    if IDS.unpack_from(data, 4) != (place.ledger_id, place.entry_id):
        return "another record is there"
    if place.start + 4 + size > limit or len(data) < 4 + size:
        return f"its {size:,} bytes reach into what follows"
    if kind is None:
        return ""
    if size < ENTRY_HEADER_SIZE + kind.size:
        return f"no entry with a {kind.name} has {size:,} bytes"
    if kind in CHECKED:
        good, _ = kernels.verify_records(data, 0, 4 + size, place.ledger_id, place.entry_id, 1, kind, b"")
        return "" if len(good) == 2 else f"its {kind.name} does not match"
    return ""


def _problem_of_rest(
    head: bytes, start: int, stop: int, ledger_ids: Collection[int] | None, record_size_max: int
) -> str:
    """Whether a record without a digest has the right length: then another one begins behind it, or nothing."""
    if start >= stop or not head.strip(b"\0") or not head.strip(layout.DIRECT_PADDING):
        return ""
    if len(head) == 20 and RECORD_SIZE_MIN <= WORD.unpack_from(head)[0] <= min(record_size_max, stop - start - 4):
        ledger_id, entry_id = IDS.unpack_from(head, 4)
        if ledger_id == layout.MAP_LEDGER_ID:
            return ""
        if ledger_id >= 0 and entry_id >= 0 and (ledger_ids is None or ledger_id in ledger_ids):
            return ""
    return "no record begins where it ends"
