"""Verification of entry log records against their digests, about a megabyte at a time, one call per run of entries.

A matching digest *proves* a record. If the digest needs a password, or there is none, only the index can tell whether
the record is the expected one; `Proof.OPEN` leaves that to the caller. If the framing is lost, or a digest fails,
`problem_of` checks a single place that the index names.

Blocks, where it reads; everything else is arithmetic. Source: storage 3.2 to 3.5, wire-protocol 4.4.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from bookies import kernels
from bookies.model import ENTRY_HEADER_SIZE, DigestType
from bookies.runtime.ports import File
from bookies.storage.engine.log_pieces import Piece
from bookies.storage.entry_log import entry_log_format as layout
from bookies.storage.records.record_scan import CHUNK_SIZE, IDS, RECORD_SIZE_MIN, WORD
from bookies.storage.sealing.sealer import Opener

CHECKED = (DigestType.CRC32C, DigestType.CRC32)  # digests that need no password
RUN_STEP = 16  # records that are checked first
READ_SIZE = 4096  # bytes of a first read of a single record

DigestTypes = Mapping[int, DigestType | None]  # by ledger; None: unknown


class Proof(enum.Enum):
    PROVEN = "proven"  # the digest matches
    OPEN = "open"  # the digest cannot be checked here
    FAILED = "failed"  # the digest does not match


class Part(Struct, frozen=True):
    """Whole records that lie back to back from file offset `offset` on, in `pieces`.

    `starts`: as in `kernels.Records`. `ledger_ids`: the ledgers that the records name.
    `after`: file offset to continue at. `problem`: why no record can begin there; empty otherwise.
    """

    offset: int
    data: bytes
    starts: Sequence[int]
    pieces: list[Piece]
    ledger_ids: list[int]
    after: int
    problem: str = ""

    def at(self, index: int) -> int:
        """Return the file offset of record `index`, or of the end."""
        return self.offset + self.starts[index]

    def slots_of(self, log_id: int, piece: Piece) -> bytes:
        """Return the index slots of these entries if they are at their proper place."""
        starts = self.starts[piece.start : piece.stop + 1]
        slots: bytes = kernels.pack_locations(log_id, self.offset + starts[0], starts)
        return slots


class Place(NamedTuple):
    """An entry according to the index. `start`: file offset of its record's length word."""

    start: int
    ledger_id: int
    entry_id: int


def end_of(stop: int) -> Place:
    """Return the place after the last entry of a log that ends at file offset `stop`."""
    return Place(stop, -1, -1)


def read_part(file: File, offset: int, stop: int, record_size_max: int) -> Part:
    """Read about a megabyte of records from `offset` on, none of them beyond `stop`. Raises: OSError."""
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
    """Return (end of the zeros that may end a log, problem)."""
    at = start
    while at < stop:
        data = file.pread(min(CHUNK_SIZE, stop - at), at)
        if not data or data.strip(b"\0"):
            return start, "zeros, yet something follows"
        at += len(data)
    return stop, ""


def _pieces(data: bytes, starts: Sequence[int]) -> tuple[list[Piece], int, str]:
    """Return (runs of consecutive entries, number of credible records, problem of the next one)."""
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
    """Return the number of consecutive entries from `index` on. Checks a few records first, then more at a time."""
    at, step, count = index, RUN_STEP, len(starts) - 1
    if index + 1 < count and not _is_at(data, starts[index + 1], ledger_id, first + 1):
        return 1  # many ledgers are written side by side: faster than a call
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


def check(
    part: Part, digest_types: DigestTypes, opener: Opener | None = None
) -> tuple[list[tuple[Piece, Proof]], dict[int, int]]:
    """Verify the digests of a part; return (pieces with their proof, in the order of the records; bytes by ledger).

    `opener`: of a log with sealed entries, which prove themselves by their tags.

    Adjacent proven records form one piece, even of several ledgers, because no caller inspects them again.
    """
    result: list[tuple[Piece, Proof]] = []
    sizes: dict[int, int] = {}
    starts = part.starts
    for piece in part.pieces:
        digest_type = digest_types.get(piece.ledger_id)
        sizes[piece.ledger_id] = sizes.get(piece.ledger_id, 0) + starts[piece.stop] - starts[piece.start]
        if opener is not None:
            _check_sealed(part, piece, opener, result)
        elif digest_type is None:
            is_proven = any(_good_count(part, piece, candidate) == len(piece.entry_ids) for candidate in CHECKED)
            _add(result, piece, Proof.PROVEN if is_proven else Proof.OPEN)
        elif digest_type in CHECKED:
            _check_piece(part, piece, digest_type, result)
        else:
            _add(result, piece, Proof.OPEN)
    return result, sizes


def _add(result: list[tuple[Piece, Proof]], piece: Piece, proof: Proof) -> None:
    if proof is Proof.PROVEN and result and result[-1][1] is Proof.PROVEN and result[-1][0].stop == piece.start:
        last = result[-1][0]
        result[-1] = Piece(last.ledger_id, last.first, last.start, piece.stop), proof
    else:
        result.append((piece, proof))


def _check_piece(part: Part, piece: Piece, digest_type: DigestType, result: list[tuple[Piece, Proof]]) -> None:
    ledger_id, first, start, stop = piece
    while start < stop:
        good = _good_count(part, Piece(ledger_id, first, start, stop), digest_type)
        if good:
            _add(result, Piece(ledger_id, first, start, start + good), Proof.PROVEN)
        first, start = first + good, start + good
        if start < stop:
            _add(result, Piece(ledger_id, first, start, start + 1), Proof.FAILED)
            first, start = first + 1, start + 1


def _check_sealed(part: Part, piece: Piece, opener: Opener, result: list[tuple[Piece, Proof]]) -> None:
    ledger_id, first, start, stop = piece
    for index in range(start, stop):
        body = part.data[part.starts[index] + 4 : part.starts[index + 1]]
        proof = Proof.FAILED if opener.open_body(body) is None else Proof.PROVEN
        _add(result, Piece(ledger_id, first + index - start, index, index + 1), proof)


def _good_count(part: Part, piece: Piece, digest_type: DigestType) -> int:
    """Return the number of entries at the start of a piece whose digest matches."""
    # A separate copy, because the functions of some digests copy their whole argument.
    data = part.data[part.starts[piece.start] : part.starts[piece.stop]]
    good, _ = kernels.verify_records(
        data, 0, len(data), piece.ledger_id, piece.first, len(piece.entry_ids), digest_type, b""
    )
    return len(good) - 1


def check_places(
    file: File,
    places: Sequence[Place],
    stop: int,
    digest_types: DigestTypes,
    ledger_ids: Collection[int] | None,
    record_size_max: int,
    records_stop: int | None = None,
    opener: Opener | None = None,
) -> tuple[list[tuple[Place, str]], int]:
    """Return (places without the expected entry, ascending, each with its problem; bytes read).

    The last of `places` is not checked, it only ends the one before it: the next entry, or `end_of(stop)`.
    `ledger_ids`: ledgers that can be in the log, deleted ones too; None: any. An unreadable place counts as one without
    the expected entry. `records_stop`: end of the bytes that are records for certain, because a crash tore the rest;
    None: of the file as it is now, which may have become longer than `stop`: the collector adds the map of a log that a
    crash left without. `opener`: of a log with sealed entries.
    """
    wrong: list[tuple[Place, str]] = []
    size = 0
    rest_stop = file.size() if records_stop is None else records_stop
    for place, (limit, _, _) in itertools.pairwise(places):
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
        digest_type = None if opener is not None else digest_types.get(place.ledger_id)
        problem = problem_of(data, place, min(limit, stop), digest_type, record_size_max)
        if not problem and opener is not None:
            problem = "" if opener.open_body(data[4 : 4 + word]) is not None else "it does not authenticate"
        elif not problem and digest_types.get(place.ledger_id) not in CHECKED and place.start + 4 + word != limit:
            problem = _problem_of_rest(next_head, place.start + 4 + word, rest_stop, ledger_ids, record_size_max)
        if problem:
            wrong.append((place, problem))
    return wrong, size


def problem_of(data: bytes, place: Place, limit: int, digest_type: DigestType | None, record_size_max: int) -> str:
    """Return the problem of the record at the start of `data`, empty for none. It must end at file offset `limit`."""
    if len(data) < 4 + RECORD_SIZE_MIN:
        return "the log ends before it"
    size = WORD.unpack_from(data)[0]
    if not RECORD_SIZE_MIN <= size <= record_size_max:
        return f"no record has {size:,} bytes"
    if IDS.unpack_from(data, 4) != (place.ledger_id, place.entry_id):
        return "another record is there"
    if place.start + 4 + size > limit or len(data) < 4 + size:
        return f"its {size:,} bytes overlap the next record"
    if digest_type is None:
        return ""
    if size < ENTRY_HEADER_SIZE + digest_type.size:
        return f"no entry with a {digest_type.name} has {size:,} bytes"
    if digest_type in CHECKED:
        good, _ = kernels.verify_records(data, 0, 4 + size, place.ledger_id, place.entry_id, 1, digest_type, b"")
        return "" if len(good) == 2 else f"its {digest_type.name} does not match"
    return ""


def _problem_of_rest(
    head: bytes, start: int, stop: int, ledger_ids: Collection[int] | None, record_size_max: int
) -> str:
    """Return why the length of a record without a digest is wrong: a record, padding or the end must follow it."""
    if start >= stop or not head.strip(b"\0") or not head.strip(layout.DIRECT_PADDING):
        return ""
    if len(head) == 20 and RECORD_SIZE_MIN <= WORD.unpack_from(head)[0] <= min(record_size_max, stop - start - 4):
        ledger_id, entry_id = IDS.unpack_from(head, 4)
        if ledger_id == layout.MAP_LEDGER_ID:
            return ""
        if ledger_id >= 0 and entry_id >= 0 and (ledger_ids is None or ledger_id in ledger_ids):
            return ""
    return "no record begins where it ends"
