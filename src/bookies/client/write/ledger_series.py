"""`LedgerSeries`: ledgers that one task of a batch fills one after the other, and lists or deletes in the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from bookies.errors import BookKeeperError
from bookies.protocol.log.log_model import Written

if TYPE_CHECKING:
    from bookies.client.write.writer import LedgerWriter


class LedgerSeries:
    """Ledgers of up to `ledger_size` payload bytes. `create`, `delete`: make and delete one of them.

    `turn`: held for each append, so that appends follow each other also while a ledger is created.
    """

    def __init__(
        self,
        create: Callable[[], Awaitable[LedgerWriter]],
        delete: Callable[[int], Awaitable[object]],
        ledger_size: int,
    ) -> None:
        self.turn = asyncio.Lock()
        self._create = create
        self._delete = delete
        self._ledger_size = ledger_size
        self._ledger: LedgerWriter | None = None
        self._size = 0
        self._written: list[Written] = []

    async def room(self, size: int) -> LedgerWriter:
        """Return the ledger for `size` more bytes."""
        if self._ledger is not None and self._size and self._size + size > self._ledger_size:
            await self._seal()
        if self._ledger is None:
            self._ledger = await self._create()
            self._size = 0
        self._size += size
        return self._ledger

    async def _seal(self) -> None:
        assert self._ledger is not None
        last = await self._ledger.seal()
        self._written.append(Written(self._ledger.ledger_id, last, self._ledger.length))
        ledger, self._ledger = self._ledger, None
        await ledger.close()

    async def finish(self) -> tuple[Written, ...]:
        """Wait until everything is durable, and seal the last ledger. Raises the first failure of an append."""
        if self._ledger is not None:
            await self._seal()
        return tuple(self._written)

    async def discard(self) -> None:
        """Delete the written ledgers. Best effort: one that remains is left to a reaper."""
        ledger_ids = [part.ledger_id for part in self._written]
        if self._ledger is not None:
            ledger_ids.append(self._ledger.ledger_id)
            await self._ledger.close()
            self._ledger = None
        self._written.clear()
        for ledger_id in ledger_ids:
            with contextlib.suppress(BookKeeperError):
                await self._delete(ledger_id)
