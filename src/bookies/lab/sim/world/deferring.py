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
from typing import Any

from bookies.errors import BookKeeperError
from bookies.storage.journal.journal import Done
from bookies.storage.store import LedgerStore

RESIDENT_READS = ("read_resident", "read_batch_resident")
ASYNC_READS = ("read", "read_batch", "last_add_confirmed", "read_lac", "list_entries")


class Deferring:
    """Queue of adds with deferred sync, between a bookie's request handlers and its storage."""

    def __init__(self, storage: LedgerStore) -> None:
        self._storage = storage
        self._waiting: dict[int, list[Callable[[], None]]] = {}  # ledger -> adds, in order
        self._failures: dict[int, BaseException] = {}  # ledger -> why an acknowledged entry could not be stored
        self._add, self._add_many, self._force = storage.add, storage.add_many, storage.force
        storage.add = self.add  # type: ignore[method-assign]
        storage.add_many = self.add_many  # type: ignore[method-assign]
        storage.force = self.force  # type: ignore[method-assign]
        for name in ("fence", *RESIDENT_READS):
            setattr(storage, name, self._after(getattr(storage, name)))
        for name in ASYNC_READS:
            setattr(storage, name, self._after_async(getattr(storage, name)))

    def add(
        self, ledger_id: int, master_key: bytes, entry_ids: Sequence[int], *rest: Any, done: Done, **flags: Any
    ) -> None:
        """Acknowledge an add with deferred sync, and queue it.

        Other adds, adds that the storage would refuse, and the first entries of a ledger go to the storage at once.
        """
        parts = self._storage._parts
        ledger = parts.index.get(ledger_id) if parts is not None and self._storage.is_writable else None
        is_known = ledger is not None and ledger.header.master_key == master_key and not ledger.header.is_fenced
        if not is_known or not flags["is_deferred_sync"] or flags["is_recovery"]:
            self._store(ledger_id)
            self._add(ledger_id, master_key, entry_ids, *rest, done=done, **flags)
            return

        def stored(error: BaseException | None) -> None:
            if error is not None:
                self._failures[ledger_id] = error

        def store() -> None:
            self._add(ledger_id, master_key, entry_ids, *rest, done=stored, **flags)

        self._waiting.setdefault(ledger_id, []).append(store)
        asyncio.get_running_loop().call_soon(done, None)

    def add_many(self, master_key: bytes, batches: Sequence[Any], **rest: Any) -> list[Any]:
        """Store adds that must all be durable, after the queued ones of their ledgers."""
        for batch in batches:
            self._store(batch.ledger_id)
        return self._add_many(master_key, batches, **rest)

    def force(self, ledger_id: int, done: Done) -> None:
        """Store the ledger's queued adds, then force it."""
        self._store(ledger_id)
        self._force(ledger_id, lambda error: done(error or self._failures.get(ledger_id)))

    def _store(self, ledger_id: int) -> None:
        """Pass the ledger's queued adds to the storage."""
        for store in self._waiting.pop(ledger_id, ()):
            try:
                store()
            except BookKeeperError as error:
                self._failures[ledger_id] = error

    def _after(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(ledger_id: int, *rest: Any) -> Any:
            self._store(ledger_id)
            return call(ledger_id, *rest)

        return called

    def _after_async(self, call: Callable[..., Any]) -> Callable[..., Any]:
        async def called(ledger_id: int, *rest: Any) -> Any:
            self._store(ledger_id)
            return await call(ledger_id, *rest)

        return called
