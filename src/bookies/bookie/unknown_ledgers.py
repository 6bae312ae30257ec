"""Unknown ledgers after the loss of a part of a journal: the metadata tells which ledgers this bookie may have had.

Until then the bookie reports no ledger as missing, and refuses ordinary adds to ledgers it does not know: one of them
may have been fenced here. Afterwards only ledgers that name the bookie in an ensemble, or may soon, and that it does
not know, stay uncertain. The others may have been fenced here and have moved since, so all become former ledgers
(F-44).

Source: storage 10.2.
"""

from __future__ import annotations

import asyncio

from bookies.bookie.former_ledgers import former_in
from bookies.errors import MetadataCorrupt, MetadataError, StorageError
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.driver import READ_AT_ONCE, Versioned
from bookies.model import BookieId, LedgerState
from bookies.runtime.events import Events
from bookies.storage.store import LedgerStore

RETRY_S = 10.0  # between attempts when the metadata store does not answer


async def settle_unknown_ledgers(
    store: LedgerStore, driver: MetadataDriver, bookie_id: BookieId, events: Events
) -> None:
    """Return when every ledger that may have been here is known; at once if nothing was lost."""
    while store.has_unknown_ledgers:
        try:
            former = await former_in(driver)
            await store.note_former([(0, former.bound), *former.runs])
            ledger_ids = await _ledgers_of(driver, bookie_id)
            count = await store.settle_unknown_ledgers(ledger_ids)
        except (MetadataError, StorageError, OSError) as error:
            events.warning("bookie.settling_failed", bookie=bookie_id, error=error, retry_s=RETRY_S)
            await asyncio.sleep(RETRY_S)
        else:
            events.info("bookie.settled", bookie=bookie_id, ledgers=len(ledger_ids), unknown=count)


async def _ledgers_of(driver: MetadataDriver, bookie_id: BookieId) -> list[int]:
    """Return the ledgers that may have entries of the bookie's by their records. Raises: MetadataError.

    A recovery and a repair write entries to bookies that they name only at their end: in a record that is in recovery,
    or whose lock they hold. The locks are read first: a repair that has ended since has changed the record.
    """
    copied = frozenset(await driver.recovery.locked_ids())
    candidates = []
    async for listed in driver.ledger_ids():
        for at in range(0, len(listed), READ_AT_ONCE):
            ledger_ids = listed[at : at + READ_AT_ONCE]
            # A server that lags behind may not know yet that a record names the bookie.
            for ledger_id, record in zip(ledger_ids, await driver.current_ledgers(ledger_ids), strict=True):
                if record is not None and (ledger_id in copied or _may_name(record, bookie_id)):
                    candidates.append(ledger_id)
    return candidates


def _may_name(record: Versioned | MetadataCorrupt, bookie_id: BookieId) -> bool:
    """Report whether the record names the bookie, or may soon. One that cannot be read may; it holds up no other."""
    if isinstance(record, MetadataCorrupt):
        return True
    return record.metadata.names(bookie_id) or record.metadata.state is LedgerState.IN_RECOVERY
