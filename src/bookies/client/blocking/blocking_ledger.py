"""A ledger's writer and reader for callers without asyncio: the same methods, without await."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import Future

from bookies.client.blocking.blocking_iteration import BlockingBatches
from bookies.client.blocking.delegation import BlockingHandle, delegates, followed, reads, runs, waits
from bookies.client.read import LedgerReader as AsyncLedgerReader
from bookies.client.write import LedgerWriter as AsyncLedgerWriter
from bookies.client.write.writer import Payload
from bookies.model import LedgerMetadata


class LedgerWriter(BlockingHandle[AsyncLedgerWriter]):
    """The one writer of a ledger. See `bookies.client.write.writer.LedgerWriter`."""

    @property
    def ledger_id(self) -> int:
        return self._inner.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._inner.metadata

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that is durable, as all before it are; -1 when there is none."""
        return self._inner.last_add_confirmed

    @property
    def length(self) -> int:
        """Payload bytes of the confirmed entries."""
        return self._inner.length

    @property
    def pending_count(self) -> int:
        """Entries appended but neither confirmed nor failed."""
        return self._inner.pending_count

    append = waits(AsyncLedgerWriter.append)
    write = waits(AsyncLedgerWriter.write)
    wait_writable = waits(AsyncLedgerWriter.wait_writable)
    allow_ensemble_changes = runs(AsyncLedgerWriter.allow_ensemble_changes)
    force = waits(AsyncLedgerWriter.force)
    seal = waits(AsyncLedgerWriter.seal)
    close = waits(AsyncLedgerWriter.close)

    def append_nowait(self, payload: Payload) -> Future[int]:
        """Append one entry without waiting until it is durable. The future becomes its id, or raises like `append`.

        It may be awaited from any thread. Raises `BookieBusy` when the memory limit is reached: call `wait_writable`,
        then repeat.
        """

        async def start() -> asyncio.Future[int]:
            return self._inner.append_nowait(payload)

        return self._thread.call(followed(start))

    def append_many(self, payloads: Iterable[Payload], *, timeout: float | None = None) -> int:
        """Append entries with consecutive ids and return the last id, once all are durable."""
        return self._thread.call(self._inner.append_many(list(payloads), timeout=timeout))

    def push_many(self, payloads: Iterable[Payload]) -> Future[int]:
        """Append entries like `append_many`, waiting only for memory. The future becomes the last id."""
        batch = list(payloads)
        return self._thread.call(followed(lambda: self._inner.push_many(batch)))


class LedgerReader(BlockingHandle[AsyncLedgerReader]):
    """A ledger open for reading. See `bookies.client.read.reader.LedgerReader`."""

    @property
    def ledger_id(self) -> int:
        return self._inner.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._inner.metadata

    @property
    def is_sealed(self) -> bool:
        return self._inner.is_sealed

    @property
    def last_add_confirmed(self) -> int:
        """The last entry known to be readable; of a sealed ledger its end. -1: none."""
        return self._inner.last_add_confirmed

    @property
    def labels(self) -> dict[str, str]:
        return self._inner.labels

    @property
    def length(self) -> int:
        """Payload bytes of the ledger; of one that is not sealed a hint."""
        return self._inner.length

    read = reads(AsyncLedgerReader.read)
    read_batches = delegates(AsyncLedgerReader.read_batches, BlockingBatches, BlockingBatches)
    read_arrow = waits(AsyncLedgerReader.read_arrow)
    read_entry = waits(AsyncLedgerReader.read_entry)
    read_batch = waits(AsyncLedgerReader.read_batch)
    read_unconfirmed = reads(AsyncLedgerReader.read_unconfirmed)
    read_last = waits(AsyncLedgerReader.read_last)
    read_last_add_confirmed = waits(AsyncLedgerReader.read_last_add_confirmed)
    try_read_last_add_confirmed = waits(AsyncLedgerReader.try_read_last_add_confirmed)
    read_last_add_confirmed_and_entry = waits(AsyncLedgerReader.read_last_add_confirmed_and_entry)
    tail = reads(AsyncLedgerReader.tail)
    close = waits(AsyncLedgerReader.close)
