"""End of a ledger by its record, for a writer and a bookie that cannot rely on fences.

A fence is on the disks of a bookie. A bookie that is emptied, and returns under its id, has lost it. The record
remembers: it is IN_RECOVERY before the first fence of a recovery, and never OPEN again. So if the record was OPEN when
these disks were in use already, every fence of the ledger reaches them, and an add that they accept is safe (I-33).

Source: client-protocol 2.21, storage 9.7 (F-44).
"""

from __future__ import annotations

from bookies.errors import BookKeeperError, DataUnknown, LedgerFenced, LedgerNotFound
from bookies.model import BookieId, LedgerMetadata, LedgerState

Record = LedgerMetadata | BookKeeperError | None  # the error: it cannot be parsed; None: there is none


def end_of(ledger_id: int, record: Record) -> BookKeeperError | None:
    """Return the error of the adds that a writer has not sent yet; None: the ledger is OPEN."""
    if record is None:
        return LedgerNotFound("the ledger was deleted", ledger_id=ledger_id)
    if isinstance(record, BookKeeperError):
        return record
    if record.state is LedgerState.OPEN:
        return None
    return LedgerFenced(f"the ledger's record is {record.state.name}", ledger_id=ledger_id)


def refusal(ledger_id: int, entry_id: int, record: Record, bookie: BookieId) -> BookKeeperError | None:
    """Return a bookie's reason to refuse an ordinary add; None: the ledger is OPEN and this bookie stores the entry.

    `LedgerFenced` ends the writer. `DataUnknown` makes it replace the bookie.
    """
    end = end_of(ledger_id, record)
    if isinstance(end, LedgerNotFound):
        return LedgerFenced(end.message, ledger_id=ledger_id, entry_id=entry_id)
    if isinstance(end, LedgerFenced):
        return end
    if end is not None:
        return DataUnknown(f"the ledger may have ended: {end.message}", ledger_id=ledger_id, entry_id=entry_id)
    assert isinstance(record, LedgerMetadata)
    if bookie not in record.ensemble_at(entry_id):
        return DataUnknown("the record names other bookies for this entry", ledger_id=ledger_id, entry_id=entry_id)
    return None
