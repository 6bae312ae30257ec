"""Lag of a consumer: what it has not handled yet, from the list of ledgers and the ends of those that are open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from bookies.protocol.log.log_model import LedgerEnd, Manifest, Position


class Lag(NamedTuple):
    """Part of a log that a consumer has not handled yet. None: unknown.

    `rows`: entries; of a compacted ledger that is partly handled an estimate, as if the removed ones were spread
    evenly. `bytes`: their payload; of a ledger that is partly handled an estimate, as if its entries were equally
    large. `seconds`: age of the oldest, by the timestamp in its record.
    """

    rows: int | None
    bytes: int | None
    seconds: float | None

    def without(self, count: int) -> Lag:
        """Return the lag without entries that were handled ahead of others, which are as large as all on average."""
        if not count or self.rows is None or self.bytes is None:
            return self
        rows = max(0, self.rows - count)
        return self._replace(rows=rows, bytes=self.bytes * rows // max(1, self.rows))


def rows_and_bytes(position: Position, manifest: Manifest, ends: Mapping[int, LedgerEnd]) -> tuple[int, int] | None:
    """Return the entries from a position to the end of the log, and the bytes of their payload.

    `ends`: of ledgers that have no end in the list. None: an end is missing, or the position is not in the log.
    """
    target = manifest.find(position)
    if target is None or position.entry_id < target.first:
        return None
    rows = size = 0
    for extent in manifest.extents:
        if extent.seq < target.seq:
            continue
        end = extent.end or ends.get(extent.ledger_id)
        if end is None:
            return None
        first = max(extent.first, position.entry_id) if extent is target else extent.first
        count, total = max(0, end.last_entry_id - first + 1), end.last_entry_id + 1
        rows += count if extent.kept is None else extent.kept * count // max(1, total - extent.first)
        size += end.length * count // max(1, total)
    return rows, size
