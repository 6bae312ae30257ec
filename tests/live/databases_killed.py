"""A bookie's storage on RocksDB that adds entries and makes checkpoints until it is killed.

Argument: number of the life. It prints a line for each acknowledged entry: ledger and entry.
"""

from __future__ import annotations

import asyncio
import sys

from tests.fakes.adds import add_to

from bookies.config import BookieConfig
from bookies.kernels import Records
from bookies.runtime import aio
from bookies.storage.store import LedgerStore

KEY = b"k" * 20
LEDGERS = 40
CONFIG = BookieConfig(
    journal_directories=("journal",),
    ledger_directories=("ledgers", "ledgers2"),
    ledger_index="rocksdb",
    checkpoint_interval_ms=100,
    gc_interval_ms=0,
)


def body(ledger_id: int, entry_id: int) -> bytes:
    return b"".join(number.to_bytes(8, "big") for number in (ledger_id, entry_id, 0, 5)) + b"hello"


async def add(store: LedgerStore, ledger_id: int, entry_id: int) -> None:
    done: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    records = Records.of([body(ledger_id, entry_id)])
    add_to(
        store, ledger_id, KEY, [entry_id], records, -1, is_recovery=False, is_deferred_sync=False, done=done.set_result
    )
    if (error := await done) is not None:
        raise error
    print(ledger_id, entry_id, flush=True)


async def main(life: int) -> None:
    store = LedgerStore(aio.runtime(), CONFIG, lambda error: sys.exit(f"failed: {error}"))
    await store.start()
    entry_id = life * 1_000_000
    while True:
        await asyncio.gather(*(add(store, ledger_id, entry_id) for ledger_id in range(LEDGERS)))
        entry_id += 1
        await store.checkpoint()


if __name__ == "__main__":
    aio.run(main(int(sys.argv[1])))
