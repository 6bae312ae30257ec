"""Logs and ledgers as numbered rows: the extents that can be read now, and positions in them. Pure functions.

A log's extents follow each other; the readable part ends in the first ledger that is not closed. A row's number is the
count of rows before it since the log was created, so truncation does not change it. Source: spark 3.2 and 3.6;
client-protocol 5.5.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

from msgspec import MsgspecError, Struct, to_builtins
from msgspec.json import decode
from msgspec.structs import replace

from bookies.errors import InvalidArgument, LogTruncated
from bookies.protocol.log import Position
from bookies.protocol.log.log_model import Extent
from bookies.spark.base.offsets import At, Key


class Stored(Struct, frozen=True):
    """Ledger that holds the entries of an extent since a compaction or a roll-up.

    These are `kept` entries (None: all), with `size` bytes of payload, of as many as `ids`. Their ids are assumed to be
    even. `shift`: entries of other extents before them.
    """

    ledger_id: int
    kept: int | None
    size: int
    ids: int
    shift: int = 0

    def size_of(self, count: int) -> int:
        """Return the estimated payload bytes of `count` ids."""
        return self.size * count // max(1, self.ids)

    def kept_of(self, count: int) -> int:
        """Return the estimated entries of `count` ids."""
        return count if self.kept is None else self.kept * count // max(1, self.ids)


def stored_of(extent: Extent) -> Stored | None:
    """Return the ledger that holds an extent since a compaction or a roll-up; None: its own."""
    if extent.stored is None or extent.last is None:
        return None
    ids = extent.last + 1 if extent.kept is None else extent.last - extent.first + 1
    return Stored(extent.stored, extent.kept, extent.bytes or 0, ids, extent.shift or 0)


class Piece(Struct, frozen=True):
    """Entries first..last of a ledger (`last` may be `first` - 1). `row`: number of the first entry's row.

    `is_complete`: no entry will follow in this ledger. `size`: payload bytes of entries 0..last, None: unknown.
    `stored`: of an extent that was compacted, which has only some of these entries, or rolled up. Numbers and positions
    do not change.
    """

    seq: int
    ledger_id: int
    first: int
    last: int
    row: int
    is_complete: bool
    size: int | None = None
    stored: Stored | None = None

    @property
    def count(self) -> int:
        return self.last - self.first + 1

    @property
    def storage(self) -> int:
        """Return the ledger that holds the entries."""
        return self.ledger_id if self.stored is None else self.stored.ledger_id

    def part(self, first: int, last: int) -> Piece:
        """Return entries first..last; `last` may be past the last entry of an open ledger."""
        size = self.size if last == self.last else None
        return replace(self, first=first, last=last, row=self.row + first - self.first, size=size)


class Missing(Struct, frozen=True):
    """Rows that no longer exist: from `start` up to, not including, `until`. `rows`: their count, None: unknown."""

    start: At
    until: At
    rows: int | None


class Snapshot(Struct, frozen=True):
    """Rows `start` up to, not including, `end` of the log with a token. `compaction`: what compactions had removed."""

    token: str
    start: int
    end: int
    compaction: str = ""


def pack_snapshots(noted: Mapping[str, Snapshot]) -> str:
    """Return the text of snapshots, by log."""
    return json.dumps({log: to_builtins(one) for log, one in sorted(noted.items())}, sort_keys=True)


def parse_snapshots(text: str) -> dict[str, Snapshot]:
    """Return snapshots, by log. Raises `ValueError`."""
    try:
        noted = decode(text.encode(), type=dict[str, Snapshot])
    except MsgspecError as error:
        raise ValueError(f"expected the text that snapshot_logs returns: {error}") from error
    for one in noted.values():
        if not 0 <= one.start <= one.end:
            raise ValueError(f"expected the text that snapshot_logs returns: rows {one.start} to {one.end}")
    return noted


class Extents(Struct, frozen=True):
    """The readable part of the log or ledger `key`. `next_seq`: the number that the next extent will get.

    `token`: identifies a log among earlier and later logs of its name; None for a ledger. `has_numbers`: the numbers of
    rows count from the beginning of the log, not from what is left of it.
    """

    key: Key
    pieces: Sequence[Piece]
    next_seq: int
    rows_truncated: int = 0
    is_envelope: bool = False
    token: str | None = None
    is_sets: bool = False
    has_numbers: bool = True

    @property
    def is_log(self) -> bool:
        return isinstance(self.key, str)

    def __str__(self) -> str:
        return f"log {self.key}" if self.is_log else f"ledger {self.key}"

    @property
    def beginning(self) -> At:
        """Position of the first row, or where it will be."""
        for piece in self.pieces:
            if piece.count > 0 or not piece.is_complete:
                return piece.seq, piece.first
        return self.end

    @property
    def end(self) -> At:
        """Position after the last row that can be read."""
        if not self.pieces:
            return self.next_seq, 0
        return self.normal((self.pieces[-1].seq, self.pieces[-1].last + 1))

    @property
    def rows(self) -> int:
        """Number that the next row will get."""
        return self.pieces[-1].row + self.pieces[-1].count if self.pieces else self.rows_truncated

    def normal(self, at: At) -> At:
        """Return the canonical form of a position: after a complete extent it is the beginning of the next one."""
        if not self.is_log:
            return at
        for piece in self.pieces:
            if piece.seq == at[0] and piece.is_complete and at[1] > piece.last:
                at = piece.seq + 1, 0
        return at

    def placed(self, at: At) -> At:
        """Return the canonical form of a position that a user named. Raises `InvalidArgument` if it is past the end."""
        for piece in self.pieces:
            if piece.seq == at[0] and at[1] > piece.last + 1:
                extent = f"extent {piece.seq} of {self}" if self.is_log else str(self)
                so_far = "" if piece.is_complete else " so far"
                raise InvalidArgument(
                    f"{extent} has entries up to {piece.last}{so_far}: there is no entry {at[1]} to begin or end with"
                )
        if (position := self.normal(at)) > self.end:
            raise InvalidArgument(f"{self} ends at {list(self.end)}: there is no {list(at)} to begin or end with")
        return position

    def row_of(self, at: At) -> int:
        """Return the number of the row at a position, or of the first row after it."""
        for piece in self.pieces:
            if piece.seq > at[0]:
                return piece.row
            if piece.seq == at[0]:
                return piece.row + min(max(0, at[1] - piece.first), max(0, piece.count))
        return self.rows

    def at_row(self, row: int) -> At:
        """Return the position of a row, or the very first position for a truncated row.

        Raises `InvalidArgument` if the row is after the end.
        """
        if row > self.rows:
            raise InvalidArgument(f"{self} has {self.rows:,} rows so far: there is no row {row:,} to begin or end with")
        if row < self.rows_truncated:
            return 0, 0
        if not self.pieces:
            return self.end
        piece = self.pieces[bisect_right(self.pieces, row, key=lambda piece: piece.row) - 1]
        return self.normal((piece.seq, piece.first + row - piece.row))

    def position(self, at: At) -> Position | None:
        """Return the log's own form of a position; None if the log lists no extents."""
        for index, piece in enumerate(self.pieces):
            if piece.seq == at[0]:
                return Position(piece.ledger_id, max(piece.first, at[1]))
            if piece.seq > at[0]:
                before = self.pieces[index - 1] if index else None
                return Position(piece.ledger_id, piece.first) if before is None else _after_last(before)
        return _after_last(self.pieces[-1]) if self.pieces else None

    def at_position(self, position: Position) -> At:
        """Convert the log's own form of a position. Raises `InvalidArgument` if the log does not list its ledger."""
        for piece in self.pieces:
            if piece.ledger_id == position.ledger_id:
                return self.placed((piece.seq, position.entry_id))
        raise InvalidArgument(
            f"position {position} is not in {self}: it was truncated, or is of another log; choose one that the log has"
        )

    def known(self, position: Position | None) -> At:
        """Convert a position that the log names now: the end if these extents do not reach it. None: no ledger yet."""
        for piece in self.pieces:
            if position is not None and piece.ledger_id == position.ledger_id:
                return min(self.normal((piece.seq, position.entry_id)), self.end)
        return self.end

    def is_behind(self, at: At, position: Position) -> bool:
        """Report whether `at` is before `position`. True as well if the log does not list that position's ledger."""
        seq = next((piece.seq for piece in self.pieces if piece.ledger_id == position.ledger_id), None)
        return seq is None or at < self.normal((seq, position.entry_id))

    def snapshot(self) -> Snapshot:
        """Return the note of the rows that can be read now. Raises `InvalidArgument` if they have no numbers."""
        if not (self.is_log and self.has_numbers):
            raise InvalidArgument(f"{self}: a snapshot is of logs whose rows are numbered")
        start, end = self.row_of(self.beginning), self.rows
        return Snapshot(self.token or "", start, end, self._compaction_of(start, end))

    def within(self, noted: Snapshot) -> tuple[At, At]:
        """Return the first and the end position of the rows of a snapshot.

        Raises `LogTruncated` if the log does not have exactly these rows.
        """
        again = "take a new snapshot, or read what is left without option snapshot"
        if noted.token != self.token:
            raise LogTruncated(f"{self} was deleted and created again since the snapshot: {again}")
        if (first := self.row_of(self.beginning)) > noted.start and noted.start < noted.end:
            raise LogTruncated(
                f"{self}: rows {noted.start:,} to {min(first, noted.end) - 1:,} of the snapshot were truncated; the "
                f"log now begins at row {first:,}: {again}"
            )
        if self._compaction_of(noted.start, noted.end) != noted.compaction:
            raise LogTruncated(
                f"{self}: a compaction has removed rows between {noted.start:,} and {noted.end - 1:,} since the "
                f"snapshot: {again}"
            )
        start, end = max(noted.start, first), max(noted.end, first)
        return self.at_row(start), self.at_row(end)

    def _compaction_of(self, start: int, end: int) -> str:
        """Return a text that changes if a compaction removes any of these rows; empty before the first one."""
        stored = [
            (piece.seq, piece.stored.kept)
            for piece in self.pieces
            if piece.stored is not None
            and piece.stored.kept is not None
            and piece.row < end
            and piece.row + piece.count > start
        ]
        return hashlib.sha256(repr(stored).encode()).hexdigest()[:16] if stored else ""

    def runs(self, start: At, end: At) -> Iterator[Piece]:
        """Yield the rows from `start` up to, not including, `end`. Trusts an `end` in an extent that is still open."""
        for piece in self.pieces:
            if piece.seq > end[0]:
                return
            first = max(piece.first, start[1]) if piece.seq == start[0] else piece.first
            last = piece.last
            if piece.seq == end[0]:
                last = min(last, end[1] - 1) if piece.is_complete else end[1] - 1
            if piece.seq >= start[0] and first <= last:
                yield piece.part(first, last)

    def count(self, start: At, end: At) -> int:
        """Count the rows from `start` up to, not including, `end`."""
        return sum(run.count for run in self.runs(start, end))

    def after(self, start: At, count: int) -> At:
        """Return the position `count` rows after `start`, or the end."""
        for run in self.runs(start, self.end):
            if count <= run.count:
                return self.normal((run.seq, run.first + count))
            count -= run.count
        return self.end

    def missing(self, start: At, end: At) -> Missing | None:
        """Return the rows from `start` up to `end` that no longer exist.

        Raises `InvalidArgument` for positions of another log.
        """
        if start[0] > self.next_seq or end[0] > self.next_seq:
            raise InvalidArgument(
                f"{self} has no extent {max(start[0], end[0])} yet: the checkpoint is of an earlier log of this name"
            )
        following = next((piece for piece in self.pieces if piece.seq >= start[0]), None)
        if following is None:
            is_gone = not self.pieces and start[0] < self.next_seq
            until: At = (self.next_seq, 0)
        else:
            is_gone = start < (following.seq, following.first)
            until = following.seq, following.first
        if not is_gone or start >= end:
            return None
        until = min(until, end)
        return Missing(start, until, until[1] - start[1] if until[0] == start[0] else None)


def _after_last(piece: Piece) -> Position:
    return Position(piece.ledger_id, piece.last + 1)
