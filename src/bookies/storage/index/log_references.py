"""The offsets in entry logs that the index still names, checked before a log is removed or its end is accepted.

Source: storage 7.4.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bookies.errors import DataUnknown, LedgerUnknownToBookie
from bookies.storage.index import slot_scans
from bookies.storage.index.index import LedgerIndex


async def greatest_offsets(
    index: LedgerIndex, log_ids: Sequence[int], ledger_ids: Iterable[int] | None = None
) -> dict[int, int]:
    """Return the greatest offset in each of these entry logs that a slot names. A log without any is left out.

    `ledger_ids`: the ledgers to scan; None: all. Raises: ReadFailed when a part of the index cannot be read.
    """
    greatest: dict[int, int] = {}
    for ledger_id in sorted(index.ledger_ids()) if ledger_ids is None else ledger_ids:
        try:
            ledger = await index.load(ledger_id)
            with ledger:
                offsets = await index.scan_slots(ledger, slot_scans.greatest_offsets, log_ids)
        except (LedgerUnknownToBookie, DataUnknown):
            continue  # It has been deleted. While a part of the journal is lost, `load` does not say so.
        for log_id, offset in offsets.items():
            greatest[log_id] = max(greatest.get(log_id, 0), offset)
    return greatest
