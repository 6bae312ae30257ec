"""A process that appends entries until it is killed, and says on stdout what was confirmed to it.

Lines: `ledger ID`, then `confirmed LAST` after every confirmation. What an entry holds follows from its place alone, so
that whoever reads it later can tell.
"""

from __future__ import annotations

import asyncio
import sys

import bookies as bk

BATCH = 20
IN_FLIGHT = 8


def payload_of(ledger_id: int, entry_id: int) -> bytes:
    """Mostly a few hundred bytes, now and then none at all or some ten thousands."""
    text = b"ledger %d entry %d. " % (ledger_id, entry_id)
    if entry_id % 101 == 50:
        return b""
    return text * (2000 if entry_id % 211 == 100 else 1 + (entry_id * 7919 + ledger_id) % 30)


async def append(uri: str, ensemble: int, write_quorum: int, ack_quorum: int) -> None:
    async with bk.connect(uri) as store:
        ledger = await store.create(ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum)
        print("ledger", ledger.ledger_id, flush=True)
        in_flight: list[asyncio.Task[int]] = []
        start = 0
        while True:
            batch = [payload_of(ledger.ledger_id, entry_id) for entry_id in range(start, start + BATCH)]
            in_flight.append(asyncio.create_task(ledger.append_many(batch)))
            start += BATCH
            if len(in_flight) == IN_FLIGHT:
                print("confirmed", await in_flight.pop(0), flush=True)
            else:
                await asyncio.sleep(0)


if __name__ == "__main__":
    asyncio.run(append(sys.argv[1], *map(int, sys.argv[2:])))
