"""Records of ledgers that are in files, as the jobs `offload` and `restore` write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bookies.model import LedgerMetadata
from bookies.protocol.ledger.offload import Offload, given_up, offloaded, restoring

URI = "s3://archive/ledger"


def named(record: LedgerMetadata) -> LedgerMetadata:
    """There is a copy, and bookies keep theirs."""
    found = offloaded(record, Offload("one", URI, "parquet", record.last_entry_id + 1, record.length, 7, 9, 1000))
    assert found is not None
    return found


def forgotten(record: LedgerMetadata) -> LedgerMetadata:
    """Bookies need not keep theirs."""
    found = given_up(named(record), "one", 5)
    assert found is not None
    return found


def coming_back(record: LedgerMetadata) -> LedgerMetadata:
    """Entries are being written to bookies again."""
    found = restoring(forgotten(record))
    assert found is not None
    return found


GIVEN_UP: tuple[Callable[[LedgerMetadata], LedgerMetadata], ...] = (forgotten, coming_back)


async def give_up(
    administration: Any, ledger_id: int, state: Callable[[LedgerMetadata], LedgerMetadata] = forgotten
) -> LedgerMetadata:
    """Change the record of a ledger so; the record."""
    changed = await administration.change_record(
        ledger_id, lambda record: None if record.custom_metadata else state(record)
    )
    assert isinstance(changed, LedgerMetadata)
    return changed
