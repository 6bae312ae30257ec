"""A bookie that uses deferred sync: it acknowledges such an add while the entry is only in memory.

The bookies of this project sync before they acknowledge any add. This is allowed, but does not test their clients. Here
adds with deferred sync wait before the storage until the next request for the ledger: a force, a fence, a read, or an
add that must be durable. Then the waiting adds are stored, and the request is served. A crash loses the waiting adds.
So a restarted bookie has lost entries that it had acknowledged; it reports so, or syncs the rest.

Source: client-protocol 2.18, B-1; X-53.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from bookies.kernels import Adds
from bookies.lab.sim.world.storage_wrapper import StorageWrapper
from bookies.storage.engine.store_writes import AddsDone, RefusedAdds
from bookies.storage.journal.journal import Done
from bookies.storage.store import LedgerStore


class Deferring(StorageWrapper):
    """Queue of adds with deferred sync, between a bookie's request handlers and its storage."""

    def __init__(self, store: LedgerStore) -> None:
        super().__init__(store)
        self._ledgers = store
        self._waiting: dict[int, list[Callable[[], list[RefusedAdds]]]] = {}  # ledger -> adds, in order
        self._failures: dict[int, BaseException] = {}  # ledger -> why an acknowledged entry could not be stored

    def add(
        self,
        adds: Adds,
        master_key: bytes,
        *,
        is_recovery: bool,
        is_deferred_sync: bool,
        accepted: Callable[[int], None],
        done: AddsDone,
    ) -> list[RefusedAdds]:
        """Acknowledge stretches with deferred sync, and queue them.

        Other adds, adds that the storage would refuse, and the first entries of a ledger go to the storage at once.
        """
        if is_deferred_sync and not is_recovery:
            return [
                refused for part in adds.parts() for refused in self._add_deferred(part, master_key, accepted, done)
            ]
        for ledger_id in adds.ledger_ids:
            self.prepare(ledger_id)
        return self.inner.add(
            adds,
            master_key,
            is_recovery=is_recovery,
            is_deferred_sync=is_deferred_sync,
            accepted=accepted,
            done=done,
        )

    def _add_deferred(
        self, part: Adds, master_key: bytes, accepted: Callable[[int], None], done: AddsDone
    ) -> list[RefusedAdds]:
        ledger_id = part.first_ledger_id
        store = partial(self.inner.add, part, master_key, is_recovery=False, is_deferred_sync=True)
        header = self._ledgers.resident_header(ledger_id) if self._ledgers.is_writable else None
        if header is None or header.master_key != master_key or header.is_fenced:
            self.prepare(ledger_id)
            return store(accepted=accepted, done=done)

        def stored(part: Adds, error: BaseException | None) -> None:
            if error is not None:
                self._failures[ledger_id] = error

        accepted(part.records.size)
        self._waiting.setdefault(ledger_id, []).append(lambda: store(accepted=_ignore_size, done=stored))
        asyncio.get_running_loop().call_soon(done, part, None)
        return []

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
            for _, error in store():
                self._failures[ledger_id] = error


def _ignore_size(size: int) -> None:
    """Ignore the size of an add that was counted when it was queued."""
