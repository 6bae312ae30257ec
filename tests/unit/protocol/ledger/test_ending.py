"""What a record says about an add that no fence may refuse any more."""

from __future__ import annotations

import pytest

from bookies.errors import BookKeeperError, DataUnknown, LedgerFenced, LedgerNotFound, MetadataCorrupt
from bookies.model import BookieId, LedgerMetadata, LedgerState
from bookies.protocol.ledger.ending import Record, end_of, refusal

B1, B2, B3 = BookieId("b1"), BookieId("b2"), BookieId("b3")
OPEN = LedgerMetadata(7, 2, 2, 2, ((0, (B1, B2)), (10, (B1, B3))))
RECOVERING = OPEN.replace(state=LedgerState.IN_RECOVERY)
CLOSED = OPEN.replace(state=LedgerState.CLOSED, last_entry_id=12, length=100)
UNREADABLE = MetadataCorrupt("nonsense", ledger_id=7)


@pytest.mark.parametrize(
    ("record", "error"),
    [(OPEN, None), (RECOVERING, LedgerFenced), (CLOSED, LedgerFenced), (None, LedgerNotFound)],
)
def test_a_writer_goes_on_only_in_an_open_ledger(record: Record, error: type[BookKeeperError] | None) -> None:
    assert type(end_of(7, record)) is (error or type(None))


def test_a_writer_is_told_of_a_record_that_cannot_be_read() -> None:
    assert end_of(7, UNREADABLE) is UNREADABLE


@pytest.mark.parametrize(
    ("record", "entry_id", "bookie", "error"),
    [
        (OPEN, 9, B2, None),
        (OPEN, 10, B3, None),
        (OPEN, 10, B2, DataUnknown),  # replaced: the writer uses another one
        (OPEN, 9, B3, DataUnknown),
        (RECOVERING, 10, B1, LedgerFenced),
        (CLOSED, 10, B1, LedgerFenced),  # also an entry before the end: only recovery may add it
        (None, 10, B1, LedgerFenced),
        (UNREADABLE, 10, B1, DataUnknown),
    ],
)
def test_a_bookie_stores_only_what_an_open_record_gives_it(
    record: Record, entry_id: int, bookie: BookieId, error: type[BookKeeperError] | None
) -> None:
    assert type(refusal(7, entry_id, record, bookie)) is (error or type(None))
