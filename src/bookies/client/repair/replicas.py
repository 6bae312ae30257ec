"""Replicas of one ledger's entries, bookie by bookie: read them as they are stored, check them, write copies of them.

Entries are verified after reading and passed on byte by byte. A bookie that supports batch reads and holds consecutive
entries is asked for batches, any other for a window of single entries. Source: client-protocol 7.1 to 7.3.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from itertools import pairwise

from bookies.client.base import EntryBatch
from bookies.client.base.keys import Keys
from bookies.client.transport import BookiePool
from bookies.errors import BookieTimeout, BookieUnreachable, BookKeeperError, ClientClosed
from bookies.kernels import Records
from bookies.model import BookieId
from bookies.protocol.ledger.read import ErrorChoice
from bookies.runtime.tasks import all_of
from bookies.wire.digest import master_key
from bookies.wire.v2 import add_head

BATCH_SIZE = 1 << 20  # bytes per batch read
WINDOW = 64  # single reads in flight
_U32 = struct.Struct(">I")


class CopyRefused(Exception):
    """A bookie did not store a copy. `error`: the reason."""

    def __init__(self, bookie: BookieId, error: BookKeeperError) -> None:
        super().__init__(f"bookie {bookie}: {error}")
        self.bookie = bookie
        self.error = error


class LedgerReplicas:
    """The replicas of one ledger. Holds no resources to release."""

    def __init__(self, pool: BookiePool, keys: Keys, password: bytes) -> None:
        self._pool = pool
        self._keys = keys
        self._head = add_head(master_key(password), is_recovery=True)

    async def list_entries(self, bookie: BookieId) -> list[range]:
        """Return the entries that the bookie lists as held. Raises `LedgerUnknownToBookie`, `BookieUnreachable`."""
        return await self._pool.list_entries(bookie, self._keys.ledger_id)

    async def read(self, bookie: BookieId, ids: Sequence[int]) -> list[bytes]:
        """Return the bodies of the first of these consecutive ids: at least one, verified. Raises if there is none."""
        batch = await self.read_batch(bookie, ids)
        return [batch.data[start + 4 : stop] for start, stop in pairwise(batch.starts)]

    async def read_batch(self, bookie: BookieId, ids: Sequence[int]) -> EntryBatch:
        """Read as `read` does, and return the buffer in which the entries arrived."""
        first, ledger_id = ids[0], self._keys.ledger_id
        if len(ids) > 1 and self._batches(bookie):
            try:
                data = await self._pool.read_batch(bookie, ledger_id, first, len(ids), BATCH_SIZE)
            except (BookieTimeout, ClientClosed):
                raise
            except BookieUnreachable:
                self._pool.batch_support.dropped(bookie)  # The bookie may not support batch reads.
            else:
                self._pool.batch_support.answered_batch(bookie)
                return self._keys.verified(bookie, data, first, ids[-1])
        response = await self._pool.read_entry(bookie, ledger_id, first)
        self._pool.batch_support.answered_single(bookie)
        body = bytes(response.body or b"")
        return self._keys.verified(bookie, Records.of([body]).data, first, first)

    async def read_from_any(self, bookies: Sequence[BookieId], ids: Sequence[int]) -> list[bytes]:
        """Read as `read` does, from the first bookie that succeeds.

        Raises the most specific error, which names every bookie's answer.
        """
        errors = ErrorChoice()
        for bookie in bookies:
            try:
                return await self.read(bookie, ids)
            except ClientClosed:
                raise
            except BookKeeperError as error:
                errors.note(bookie, error)
        assert errors.error is not None
        answers = "; ".join(f"{bookie}: {error.message}" for bookie, error in errors.causes.items())
        raise type(errors.error)(
            f"no replica can be read: {answers}", ledger_id=self._keys.ledger_id, entry_id=ids[0]
        ) from errors.error

    async def read_each(self, asks: Sequence[tuple[Sequence[BookieId], int]]) -> list[bytes]:
        """Return the bodies of entries of a striped ledger, requested all at once: (bookies to ask, id) of each."""
        return await all_of([self._read_one(bookies, entry_id) for bookies, entry_id in asks])

    async def _read_one(self, bookies: Sequence[BookieId], entry_id: int) -> bytes:
        return (await self.read_from_any(bookies, [entry_id]))[0]

    async def first_bad(self, bookie: BookieId, ids: Sequence[int]) -> tuple[int, BookKeeperError] | None:
        """Read all of these ascending ids; return the first that is missing or does not verify, and why.

        None: all are good.
        """
        at = 0
        while at < len(ids):
            if isinstance(ids, range) and len(ids) - at > 1 and self._batches(bookie):
                try:
                    at += len(await self.read(bookie, ids[at:]))
                except ClientClosed:
                    raise
                except BookKeeperError as error:
                    return ids[at], error
                continue
            window = ids[at : at + WINDOW]
            problems = await all_of([self._error_of(bookie, entry_id) for entry_id in window])
            for entry_id, problem in zip(window, problems, strict=True):
                if problem is not None:
                    return entry_id, problem
            at += len(window)
        return None

    async def _error_of(self, bookie: BookieId, entry_id: int) -> BookKeeperError | None:
        try:
            await self.read(bookie, [entry_id])
        except ClientClosed:
            raise
        except BookKeeperError as error:
            return error
        return None

    async def write(
        self, shares: Sequence[tuple[BookieId, Sequence[int]]], ids: Sequence[int], bodies: Sequence[bytes]
    ) -> None:
        """Store copies durably. `shares`: the ids that go to each bookie; `bodies`: of `ids`. Raises `CopyRefused`."""
        frames = [_U32.pack(len(self._head) + len(body)) + self._head + body for body in bodies]
        by_id = dict(zip(ids, frames, strict=True))
        loop = asyncio.get_running_loop()
        copies = [_Copy(loop, len(share)) for _, share in shares]
        for (bookie, share), copy in zip(shares, copies, strict=True):
            data = b"".join(by_id[entry_id] for entry_id in share)
            self._pool.send_adds(bookie, self._keys.ledger_id, share, data, copy)
        await asyncio.gather(*(copy.stored for copy in copies))

    def _batches(self, bookie: BookieId) -> bool:
        return self._pool.has_batch_reads and self._pool.batch_support.knows(bookie)


class _Copy:
    """Adds in flight to one bookie: an `AddSink`. `stored`: done when all are durable there."""

    def __init__(self, loop: asyncio.AbstractEventLoop, count: int) -> None:
        self.stored: asyncio.Future[None] = loop.create_future()
        self._left = count

    def on_acknowledged(self, bookie: BookieId, entry_ids: Sequence[int]) -> None:
        self._left -= len(entry_ids)
        if self._left == 0 and not self.stored.done():
            self.stored.set_result(None)

    def on_failed(self, bookie: BookieId, entry_ids: Sequence[int], error: BookKeeperError) -> None:
        if not self.stored.done():
            self.stored.set_exception(CopyRefused(bookie, error))
