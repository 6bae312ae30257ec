"""A test of bookies: write a ledger to them as a client does, read it, delete it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bookies.client.client import Client
from bookies.errors import BookKeeperError
from bookies.model import BookieId
from bookies.protocol.repair.fragments import ReplicaState

PASSWORD = b"sanity"


async def write_and_read(
    client: Client, bookies: Sequence[BookieId], payloads: Sequence[bytes], timeout_s: float
) -> str:
    """Write payloads to all of these bookies, read them, delete the ledger. Return the problem; empty: there is none.

    A bookie that fails during the writes is replaced, which is a problem. A reader asks one bookie for each entry, so
    the replicas of the others are read too. Raises `MetadataError` if the ledger cannot
    be deleted; then its id is in the error.
    """
    ledger_id = None
    try:
        async with asyncio.timeout(timeout_s):
            writer = await client.create(bookies=list(bookies), ack_quorum=len(bookies), password=PASSWORD)
            ledger_id = writer.ledger_id
            async with writer:
                await writer.append_many(payloads)
            async with client.open(ledger_id, password=PASSWORD) as reader:
                read = [entry.payload async for entry in reader.read()]
            if read != list(payloads):
                return f"{len(read):,} entries were read, and they are not the {len(payloads):,} that were written"
            check = await client.administration().check_ledger(ledger_id, percentage=100)
            replaced = [bookie for bookie in bookies if bookie not in check.metadata.last_ensemble]
            if replaced:
                return f"{', '.join(replaced)} failed during the writes and was replaced"
            for replica in (replica for verdict in check.fragments for replica in verdict.replicas):
                if replica.state is not ReplicaState.OK:
                    why = replica.error or "it is no longer registered"
                    return f"{replica.bookie} has acknowledged entries and does not deliver them: {why}"
            return ""
    except BookKeeperError as error:
        return str(error)
    except TimeoutError:
        return f"no end within {timeout_s:g} s"
    finally:
        if ledger_id is not None:
            await client.delete(ledger_id)
