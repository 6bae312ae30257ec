"""Shares of a log: which process handles which entries, when the processes of one consumer divide a log among them.

The entries before `position` are handled. Those from `next` on belong to no process yet. In between, in the log's order
and without gaps, are ranges of entries of one ledger each. A range is handled, or it is claimed by the token of a
process. If the token's owner is not in the queue of the lease any more, the range is free, and the next process that
asks claims it. So each entry is handled at least once:

* A process claims a range before it handles an entry of it, by compare-and-swap of the record.
* Only the owner of the token commits entries of the range. It must be in the queue in the same version of the record,
  so a process that others took for dead commits nothing.
* `position` passes a range only when it is handled, so it never goes back and skips nothing.

`cursor` is where the consumer's cursor was moved to last. The cursor follows `position` in a transaction with this
record, but not with each change of it. While processes share, only a truncation puts it at another place: after the
handled entries that it removes, so the ranges stay. Otherwise it was moved by hand, or by a consumer that had the log
alone: then the ranges do not count.

Source: docs/explanation/logs.md, "Shared consumers".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from bookies.protocol.log.log_model import Position

RANGES_MAX = 256  # in the record; then only free ranges can be claimed until the first one is handled
HANDLED = 0  # stands for a token


class Range(NamedTuple):
    """Entries `first` to `last` of a ledger. `token`: of the process that claimed them; 0: they are handled."""

    ledger_id: int
    first: int
    last: int
    token: int

    @property
    def positions(self) -> tuple[Position, Position]:
        """Return the positions of the first and the last entry."""
        return Position(self.ledger_id, self.first), Position(self.ledger_id, self.last)

    def has_end(self, position: Position) -> bool:
        """Report whether a position is one of its entries, or follows its last one."""
        return position.ledger_id == self.ledger_id and self.first <= position.entry_id <= self.last + 1


class Offer(NamedTuple):
    """Entries that a process has read: `first` to `last` of a ledger are the next ones from `start` on.

    `start` None: the beginning of a log that had no ledger.
    """

    start: Position | None
    ledger_id: int
    first: int
    last: int

    def first_from(self, position: Position | None) -> int | None:
        """Return the first entry from a position on; None: that is unknown."""
        if position == self.start:
            return self.first
        if position is None or position.ledger_id != self.ledger_id or not self.first <= position.entry_id <= self.last:
            return None
        return position.entry_id


class Shares(Struct, frozen=True):
    """Entries that the processes of a consumer have divided. None: the beginning of a log that had no ledger."""

    cursor: Position | None = None
    next: Position | None = None
    ranges: tuple[Range, ...] = ()

    @property
    def position(self) -> Position | None:
        """Return the position of the first entry that is not handled, or of the next one."""
        return Position(*self.ranges[0][:2]) if self.ranges else self.next

    @property
    def handled_count(self) -> int:
        """Return the number of handled entries after `position`."""
        return sum(row.last - row.first + 1 for row in self.ranges if row.token == HANDLED)

    def claim_of(self, token: int) -> Range | None:
        """Return the range that a process has claimed."""
        return next((row for row in self.ranges if row.token == token), None)

    def has_free(self, live: Collection[int]) -> bool:
        """Report whether a range is free. `live`: tokens of the processes in the queue."""
        return any(row.token != HANDLED and row.token not in live for row in self.ranges)

    def committed(self, token: int, before: Position) -> Shares:
        """Return the shares after a process has handled its entries before a position.

        A position outside of its range changes nothing: it belongs to a range that was committed before.
        """
        rows: list[Range] = []
        for row in self.ranges:
            if row.token == token and row.has_end(before):
                rows.append(row._replace(last=before.entry_id - 1, token=HANDLED))
                row = row._replace(first=before.entry_id)
            rows.append(row)
        return replace(self, ranges=_joined(rows))

    def claimed(self, token: int, live: Collection[int], offer: Offer | None, size: int) -> Shares:
        """Return the shares after a process has claimed up to `size` entries: free ones if there are, or offered ones.

        They are as before if there is no free range, and the offer is None or out of date.
        """
        for index, row in enumerate(self.ranges):
            if row.token != HANDLED and row.token not in live:
                last = min(row.last, row.first + size - 1)
                parts = row._replace(last=last, token=token), row._replace(first=last + 1)
                return replace(self, ranges=_joined((*self.ranges[:index], *parts, *self.ranges[index + 1 :])))
        first = None if offer is None else offer.first_from(self.next)
        if offer is None or first is None or len(self.ranges) >= RANGES_MAX:
            return self
        claim = Range(offer.ledger_id, first, min(offer.last, first + size - 1), token)
        return replace(self, next=Position(claim.ledger_id, claim.last + 1), ranges=(*self.ranges, claim))


def _joined(rows: Sequence[Range]) -> tuple[Range, ...]:
    """Return the ranges without empty ones and without handled ones at the front; adjacent handled ones become one."""
    joined: list[Range] = []
    for row in rows:
        if row.last < row.first or (row.token == HANDLED and not joined):
            continue
        before = joined[-1] if joined else None
        if before is not None and (before.ledger_id, before.last + 1, before.token, row.token) == (
            row.ledger_id,
            row.first,
            HANDLED,
            HANDLED,
        ):
            joined[-1] = before._replace(last=row.last)
        else:
            joined.append(row)
    return tuple(joined)


def begun(
    shares: Shares | None,
    cursor: Position | None,
    start: Position | None,
    *,
    is_alone: bool,
    is_truncated: bool = False,
) -> Shares:
    """Return the shares when a process begins to take part.

    cursor: where the consumer's cursor is; None: there is none.
    start: where to begin without one; None: the log has no ledger.
    is_alone: no other process takes part.
    is_truncated: the log has lost the position of the shares.
    """
    at = start if cursor is None else cursor
    if shares is None or (cursor is None and (is_alone or shares.cursor is not None)):
        return Shares(at, at)
    if cursor is None:
        return replace(shares, cursor=shares.position)
    if shares.cursor == cursor:
        return shares
    is_reset = is_alone or (is_truncated and not shares.ranges)
    return Shares(at, at) if is_reset else replace(shares, cursor=cursor)


# -- the record ------------------------------------------------------------------------------------------------------


def pack_shares(shares: Shares) -> dict[str, Any]:
    """Return the part of the lease's record."""
    return {"cursor": shares.cursor, "next": shares.next, "ranges": shares.ranges}


def parse_shares(content: Mapping[str, Any]) -> Shares:
    """Parse that part. Raises `ValueError`, `TypeError`, `KeyError`."""
    cursor, following = (None if at is None else Position(*map(int, at)) for at in (content["cursor"], content["next"]))
    return Shares(cursor, following, tuple(Range(*map(int, row)) for row in content["ranges"]))
