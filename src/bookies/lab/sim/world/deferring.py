"""A bookie that uses deferred sync: it acknowledges such an add while the entry is only in memory.

The bookies of this project sync before they acknowledge any add. This is allowed, but does not test their clients. Here
adds with deferred sync wait before the storage until the next request for the ledger: a force, a fence, a read, or an
add that must be durable. Then the waiting adds are stored, and the request is served. A crash loses the waiting adds.
So a restarted bookie has lost entries that it had acknowledged; it reports so, or syncs the rest.

Source: client-protocol 2.18, B-1; X-53.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from bookies.errors import BookKeeperError
from bookies.kernels import Records
from bookies.lab.sim.world.storage_wrapper import StorageWrapper
from bookies.storage.cache.write_cache import AddRun
from bookies.storage.engine.store_writes import B
from bookies.storage.journal.journal import Done
from bookies.storage.store import LedgerStore


class Deferring(StorageWrapper):
    """Queue of adds with deferred sync, between a bookie's request handlers and its storage."""

    def __init__(self, store: LedgerStore) -> None:
        super().__init__(store)
        self._ledgers = store
        self._waiting: dict[int, list[Callable[[], None]]] = {}  # ledger -> adds, in order
        self._failures: dict[int, BaseException] = {}  # ledger -> why an acknowledged entry could not be stored

    def add(
        self,
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        records: Records,
        last_add_confirmed: int,
        *,
        is_recovery: bool,
        is_deferred_sync: bool,
        done: Done,
    ) -> None:
        """Acknowledge an add with deferred sync, and queue it.

        Other adds, adds that the storage would refuse, and the first entries of a ledger go to the storage at once.
        """

        def store(done: Done) -> None:
            self.inner.add(
                ledger_id,
                master_key,
                entry_ids,
                records,
                last_add_confirmed,
                is_recovery=is_recovery,
                is_deferred_sync=is_deferred_sync,
                done=done,
            )

        header = self._ledgers.resident_header(ledger_id) if self._ledgers.is_writable else None
        is_known = header is not None and header.master_key == master_key and not header.is_fenced
        if not is_known or not is_deferred_sync or is_recovery:
            self.prepare(ledger_id)
            store(done)
            return

        def stored(error: BaseException | None) -> None:
            if error is not None:
                self._failures[ledger_id] = error

        self._waiting.setdefault(ledger_id, []).append(lambda: store(stored))
        asyncio.get_running_loop().call_soon(done, None)

    def add_many(
        self,
        master_key: bytes,
        batches: Sequence[B],
        *,
        is_recovery: bool,
        accepted: Callable[[int], None],
        done: Callable[[Sequence[B], int, BaseException | None], None],
    ) -> list[B]:
        """Store adds that must all be durable, after the queued ones of their ledgers."""
        for batch in batches:
            self.prepare(batch.ledger_id)
        return self.inner.add_many(master_key, batches, is_recovery=is_recovery, accepted=accepted, done=done)

    def add_mixed(
        self,
        master_key: bytes,
        mixed: AddRun,
        lacs: Sequence[int],
        *,
        is_recovery: bool,
        accepted: Callable[[int], None],
        done: Callable[[AddRun, BaseException | None], None],
    ) -> list[int]:
        """Store adds that must all be durable, after the queued ones of their ledgers."""
        for ledger_id in mixed.ledger_ids:
            self.prepare(ledger_id)
        return self.inner.add_mixed(master_key, mixed, lacs, is_recovery=is_recovery, accepted=accepted, done=done)

    def fence(self, ledger_id: int, master_key: bytes, done: Done) -> None:
        self.prepare(ledger_id)
        self.inner.fence(ledger_id, master_key, done)

    def write_lac(self, ledger_id: int, master_key: bytes, last_add_confirmed: int, body: bytes, done: Done) -> None:
        self.inner.write_lac(ledger_id, master_key, last_add_confirmed, body, done)

    def force(self, ledger_id: int, done: Done) -> None:
        """Store the ledger's queued adds, then force it."""
        self.prepare(ledger_id)
        self.inner.force(ledger_id, lambda error: done(error or self._failures.get(ledger_id)))

    def prepare(self, ledger_id: int) -> None:
        """Pass the ledger's queued adds to the storage."""
        for store in self._waiting.pop(ledger_id, ()):
            try:
                store()
            except BookKeeperError as error:
                self._failures[ledger_id] = error
