"""What the index still names of entry logs: the last word before one is removed, or declared to be without something.

Source: storage 7.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bookies.errors import LedgerUnknownToBookie
from bookies.storage.index import slot_scans
from bookies.storage.index.index import LedgerIndex


async def greatest_offsets(
    index: LedgerIndex, log_ids: Sequence[int], ledger_ids: Iterable[int] | None = None
) -> dict[int, int]:
    """The greatest offset in each of these entry logs that a slot of these ledgers names; None: of all there are.

    Raises: ReadFailed when a part of the index cannot be read, for then nobody knows.
    """
    found: dict[int, int] = {}
    for ledger_id in sorted(index.ledger_ids()) if ledger_ids is None else ledger_ids:
        try:
            ledger = await index.load(ledger_id)
            offsets = await index.scan_slots(ledger, slot_scans.greatest_offsets, log_ids)
        except LedgerUnknownToBookie:
            continue  # It was deleted meanwhile.
        for log_id, offset in offsets.items():
            found[log_id] = max(found.get(log_id, 0), offset)
    return found
