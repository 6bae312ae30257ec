"""Unknown ledgers after the loss of a part of a journal: the metadata tells which ledgers this bookie may have had.

Until then the bookie reports no ledger as missing, and refuses ordinary adds to ledgers it does not know: one of them
may have been fenced here. Afterwards only ledgers that name the bookie in an ensemble, and that it does not know,
stay uncertain. The others may have been fenced here and have moved since, so all become former ledgers (F-44).

Source: storage 10.2.
"""

from __future__ import annotations

import asyncio

from bookies.bookie.former_ledgers import former_in
from bookies.errors import LedgerNotFound, MetadataCorrupt, MetadataError, StorageError
from bookies.metadata.interface import MetadataDriver
from bookies.model import BookieId
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
    """Return the ledgers that have, or may have, the bookie in an ensemble. Raises: MetadataError."""
    candidates = []
    async for ledger_ids in driver.ledger_ids():
        for ledger_id in ledger_ids:
            try:
                metadata = (await driver.read_ledger(ledger_id)).metadata
            except LedgerNotFound:
                continue
            except MetadataCorrupt:
                candidates.append(ledger_id)  # It may name the bookie, and must not keep all others uncertain.
                continue
            if metadata.names(bookie_id):
                candidates.append(ledger_id)
    return candidates
