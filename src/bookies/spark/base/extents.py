"""A log, or a ledger, as rows with numbers: what can be read of it now, and where positions are in it. Pure.

A log's extents follow each other; what is readable ends in the first ledger that is not closed. The number of a row is
that of the rows before it since the log was made, so it does not change when the log is truncated. Source: spark 3.2
and 3.6; client-protocol 5.5.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bookies.errors import InvalidArgument
from bookies.protocol.log import Position
from bookies.spark.base.offsets import At, Key


@dataclass(frozen=True, slots=True)
class Piece:
    """Entries first..last (`last` may be `first` - 1) of a ledger, and the number of the first one's row.

    `is_complete`: nothing will follow in it. `size`: payload bytes of entries 0..last, None: not known.
    """

    seq: int
    ledger_id: int
    first: int
    last: int
    row: int
    is_complete: bool
    size: int | None = None

    @property
    def count(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Run:
    """Entries first..last of a piece."""

    piece: Piece
    first: int
    last: int

    @property
    def count(self) -> int:
        return self.last - self.first + 1

    @property
    def row(self) -> int:
        """Number of the first one's row."""
        return self.piece.row + self.first - self.piece.first


@dataclass(frozen=True, slots=True)
class Missing:
    """Rows that are gone: from `start` up to, not including, `until`. `rows`: how many, None: not known."""

    start: At
    until: At
    rows: int | None


@dataclass(frozen=True)
class Extents:
    """What can be read of the log or ledger `key`. `next_seq`: the number that the next extent will get.

    `token`: tells a log from others that had its name, or will have it; None for a ledger.
    """

    key: Key
    pieces: Sequence[Piece]
    next_seq: int
    rows_truncated: int = 0
    is_envelope: bool = False
    token: str | None = None

    @property
    def is_log(self) -> bool:
        return isinstance(self.key, str)

    def __str__(self) -> str:
        return f"log {self.key}" if self.is_log else f"ledger {self.key}"

    @property
    def beginning(self) -> At:
        """Of its first row, or where that will be."""
        for piece in self.pieces:
            if piece.count > 0 or not piece.is_complete:
                return piece.seq, piece.first
        return self.end

    @property
    def end(self) -> At:
        """Behind the last row that can be read."""
        if not self.pieces:
            return self.next_seq, 0
        return self.normal((self.pieces[-1].seq, self.pieces[-1].last + 1))

    @property
    def rows(self) -> int:
        """The number that the next row will get."""
        return self.pieces[-1].row + self.pieces[-1].count if self.pieces else self.rows_truncated

    def normal(self, at: At) -> At:
        """The one spelling of a position: behind what is complete is the beginning of the next extent."""
        if not self.is_log:
            return at
        for piece in self.pieces:
            if piece.seq == at[0] and piece.is_complete and at[1] > piece.last:
                at = piece.seq + 1, 0
        return at

    def placed(self, at: At) -> At:
        """The one spelling of a position that somebody names. Raises `InvalidArgument`: it is behind what is there."""
        for piece in self.pieces:
            if piece.seq == at[0] and at[1] > piece.last + 1:
                extent = f"extent {piece.seq} of {self}" if self.is_log else str(self)
                so_far = "" if piece.is_complete else " so far"
                raise InvalidArgument(
                    f"{extent} has entries up to {piece.last}{so_far}: there is no entry {at[1]} to begin or end with"
                )
        if (found := self.normal(at)) > self.end:
            raise InvalidArgument(f"{self} ends at {list(self.end)}: there is no {list(at)} to begin or end with")
        return found

    def row_of(self, at: At) -> int:
        """The number of the row at a position, or of the first one behind it."""
        for piece in self.pieces:
            if piece.seq > at[0]:
                return piece.row
            if piece.seq == at[0]:
                return piece.row + min(max(0, at[1] - piece.first), max(0, piece.count))
        return self.rows

    def at_row(self, row: int) -> At:
        """The position of the row of this number; of one that was truncated, the very first position.

        Raises `InvalidArgument` when it is behind the end.
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
        """The same in the log's own words; None when nothing of the log is listed."""
        for index, piece in enumerate(self.pieces):
            if piece.seq == at[0]:
                return Position(piece.ledger_id, max(piece.first, at[1]))
            if piece.seq > at[0]:
                before = self.pieces[index - 1] if index else None
                return Position(piece.ledger_id, piece.first) if before is None else _behind(before)
        return _behind(self.pieces[-1]) if self.pieces else None

    def at_position(self, position: Position) -> At:
        """Raises `InvalidArgument`."""
        for piece in self.pieces:
            if piece.ledger_id == position.ledger_id:
                return self.placed((piece.seq, position.entry_id))
        raise InvalidArgument(f"position {position} is not in {self}: it was truncated, or is of another log")

    def is_behind(self, at: At, position: Position) -> bool:
        """Whether `at` is before a position in the log's own words, or that is in nothing that is listed."""
        seq = next((piece.seq for piece in self.pieces if piece.ledger_id == position.ledger_id), None)
        return seq is None or at < self.normal((seq, position.entry_id))

    def runs(self, start: At, end: At) -> Iterator[Run]:
        """The rows from `start` up to, not including, `end`. An end that was readable once is taken at its word."""
        for piece in self.pieces:
            if piece.seq > end[0]:
                return
            first = max(piece.first, start[1]) if piece.seq == start[0] else piece.first
            last = piece.last
            if piece.seq == end[0]:
                last = min(last, end[1] - 1) if piece.is_complete else end[1] - 1
            if piece.seq >= start[0] and first <= last:
                yield Run(piece, first, last)

    def count(self, start: At, end: At) -> int:
        """Rows from `start` up to, not including, `end`."""
        return sum(run.count for run in self.runs(start, end))

    def after(self, start: At, count: int) -> At:
        """The position `count` rows behind `start`, or the end."""
        for run in self.runs(start, self.end):
            if count <= run.count:
                return self.normal((run.piece.seq, run.first + count))
            count -= run.count
        return self.end

    def missing(self, start: At, end: At) -> Missing | None:
        """What is gone of the rows from `start` up to `end`. Raises `InvalidArgument`: positions of another log."""
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


def _behind(piece: Piece) -> Position:
    return Position(piece.ledger_id, piece.last + 1)
