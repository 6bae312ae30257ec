"""Ask an ensemble for the last add confirmed of a ledger. Source: client-protocol 3.5."""

from __future__ import annotations

import asyncio

from bookies.client.keys import Keys
from bookies.client.pool import BookiePool
from bookies.errors import BookKeeperError, ClientClosed, RemoteProtocolError
from bookies.model import LedgerMetadata
from bookies.protocol.read import LacRead
from bookies.wire import digest
from bookies.wire.messages import ReadLacResponse


async def read_last_add_confirmed(pool: BookiePool, keys: Keys, record: LedgerMetadata) -> LacRead:
    """Ask all bookies of the last fragment until the answers cover the ensemble; the result is in the `LacRead`.

    Raises the last error when all have answered without coverage; `Unauthorized` at once.
    """
    core = LacRead(record)
    waiting = {
        position: pool.start_read_lac(bookie, record.ledger_id) for position, bookie in enumerate(record.last_ensemble)
    }
    try:
        while not core.is_done:
            await asyncio.wait(waiting.values(), return_when=asyncio.FIRST_COMPLETED)
            for position in [position for position, future in waiting.items() if future.done()]:
                bookie = record.last_ensemble[position]
                try:
                    response = pool.check_lac(bookie, waiting.pop(position).result(), record.ledger_id)
                    core.answered(position, *_verified(keys, response))
                except ClientClosed:
                    raise
                except BookKeeperError as error:
                    core.failed(position, error)
    finally:
        for future in waiting.values():
            future.cancel()
    if not core.is_covered:
        raise core.failure()
    return core


def _verified(keys: Keys, response: ReadLacResponse) -> tuple[int, int]:
    """(last add confirmed, ledger length so far) of one answer; -1 and 0 when it says nothing."""
    found, length = -1, 0
    if response.ledger_id != keys.ledger_id:
        raise RemoteProtocolError(f"answer about ledger {response.ledger_id}", ledger_id=keys.ledger_id)
    if response.lac_body:
        found = digest.verify_lac(keys.digest_type, keys.mac_key, response.lac_body, keys.ledger_id)
    if response.last_entry_body:
        body = bytes(response.last_entry_body)
        header = digest.verify_entry(keys.digest_type, keys.mac_key, body, keys.ledger_id, None)
        found, length = max(found, header.last_add_confirmed), header.length
    return found, length
