"""A ledger's writer and reader for callers without asyncio: the same methods, without await."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Self

from bookies.client.base import Entry, EntryBatch
from bookies.client.base.entries import LastConfirmedAndEntry
from bookies.client.base.iteration import Batches
from bookies.client.blocking.blocking_iteration import BlockingBatches, BlockingEntries, Caller, run
from bookies.client.read import LedgerReader as AsyncLedgerReader
from bookies.client.write import LedgerWriter as AsyncLedgerWriter
from bookies.client.write.writer import Payload
from bookies.model import LedgerMetadata

if TYPE_CHECKING:
    import pyarrow


class LedgerWriter:
    """The one writer of a ledger. See `bookies.client.write.writer.LedgerWriter`."""

    def __init__(self, thread: Caller, writer: AsyncLedgerWriter) -> None:
        self._thread = thread
        self._writer = writer

    @property
    def ledger_id(self) -> int:
        return self._writer.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._writer.metadata

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that is durable, as all before it are; -1 when there is none."""
        return self._writer.last_add_confirmed

    @property
    def length(self) -> int:
        """Payload bytes of the confirmed entries."""
        return self._writer.length

    @property
    def pending_count(self) -> int:
        """Entries appended but neither confirmed nor failed."""
        return self._writer.pending_count

    def __repr__(self) -> str:
        return repr(self._writer)

    def append(self, payload: Payload, *, timeout: float | None = None) -> int:
        """Append one entry and return its id, once it is durable on the ack quorum. For small ones: `append_many`."""
        return self._thread.call(self._writer.append(payload, timeout=timeout))

    def append_nowait(self, payload: Payload) -> Future[int]:
        """Append one entry without waiting until it is durable. The future becomes its id, or raises like `append`.

        It may be awaited from any thread. Raises `BookieBusy` when the memory limit is reached: call `wait_writable`,
        then repeat.
        """

        async def start() -> asyncio.Future[int]:
            return self._writer.append_nowait(payload)

        return self._thread.call(_followed(start))

    def append_many(self, payloads: Iterable[Payload], *, timeout: float | None = None) -> int:
        """Append entries with consecutive ids and return the last id, once all are durable."""
        return self._thread.call(self._writer.append_many(list(payloads), timeout=timeout))

    def push_many(self, payloads: Iterable[Payload]) -> Future[int]:
        """Append entries like `append_many`, waiting only for memory. The future becomes the last id."""
        batch = list(payloads)
        return self._thread.call(_followed(lambda: self._writer.push_many(batch)))

    def wait_writable(self, *, timeout: float | None = None) -> None:
        """Wait until an entry of the largest size could be appended."""
        self._thread.call(self._writer.wait_writable(timeout=timeout))

    def allow_ensemble_changes(self, allowed: bool) -> None:
        """Switch the replacement of failed bookies on or off."""
        self._thread.call(run(lambda: self._writer.allow_ensemble_changes(allowed)))

    def write(self, entry_id: int, payload: Payload, *, timeout: float | None = None) -> int:
        """Append one entry under a given id: on ledgers created with `advanced=True`.

        It returns when the entry and all before it are durable: write smaller ids first, or from several threads.
        """
        return self._thread.call(self._writer.write(entry_id, payload, timeout=timeout))

    def force(self, *, timeout: float | None = None) -> int:
        """Make acknowledged entries durable (`deferred_sync`) and return the last add confirmed."""
        return self._thread.call(self._writer.force(timeout=timeout))

    def seal(self, *, force: bool = True, timeout: float | None = None) -> int:
        """End the ledger for ever and return its last entry id. See `bookies.client.write.writer.LedgerWriter.seal`."""
        return self._thread.call(self._writer.seal(force=force, timeout=timeout))

    def close(self) -> None:
        """Release the handle without ending the ledger."""
        self._thread.call(self._writer.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.call(self._writer.__aexit__(error_type, error, traceback))


class LedgerReader:
    """A ledger open for reading. See `bookies.client.read.reader.LedgerReader`."""

    def __init__(self, thread: Caller, reader: AsyncLedgerReader) -> None:
        self._thread = thread
        self._reader = reader

    @property
    def ledger_id(self) -> int:
        return self._reader.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        return self._reader.metadata

    @property
    def is_sealed(self) -> bool:
        return self._reader.is_sealed

    @property
    def last_add_confirmed(self) -> int:
        """The last entry known to be readable; of a sealed ledger its end. -1: none."""
        return self._reader.last_add_confirmed

    @property
    def labels(self) -> dict[str, str]:
        return self._reader.labels

    def __repr__(self) -> str:
        return repr(self._reader)

    @property
    def length(self) -> int:
        """Payload bytes of the ledger; of one that is not sealed a hint."""
        return self._reader.length

    def read(self, first: int = 0, last: int | None = None, *, timeout: float | None = None) -> BlockingEntries:
        """Iterate over the entries first..last in order; `last` None: up to the last add confirmed. `.batches()`: in
        batches."""
        return BlockingEntries(self.read_batches(first, last, timeout=timeout))

    def read_batches(self, first: int = 0, last: int | None = None, *, timeout: float | None = None) -> BlockingBatches:
        """Read entries like `read`, in verified batches."""
        return self._batches(self._reader.read_batches(first, last, timeout=timeout))

    def read_arrow(self, first: int = 0, last: int | None = None, *, timeout: float | None = None) -> pyarrow.Table:
        """Read entries like `read`, as a pyarrow.Table: ledger_id, entry_id, value."""
        return self._thread.call(self._reader.read_arrow(first, last, timeout=timeout))

    def read_entry(self, entry_id: int, *, parallel: bool = False, timeout: float | None = None) -> Entry:
        """Return one entry. `parallel`: ask all its replicas at once."""
        return self._thread.call(self._reader.read_entry(entry_id, parallel=parallel, timeout=timeout))

    def read_batch(
        self,
        first: int,
        *,
        count_max: int = 0,
        size_max: int = 0,
        unconfirmed: bool = False,
        timeout: float | None = None,
    ) -> EntryBatch:
        """Return consecutive entries from `first` on: at least one, perhaps fewer than there are."""
        return self._thread.call(
            self._reader.read_batch(
                first, count_max=count_max, size_max=size_max, unconfirmed=unconfirmed, timeout=timeout
            )
        )

    def read_unconfirmed(self, first: int, last: int, *, timeout: float | None = None) -> BlockingEntries:
        """Return the entries first..last, also those that may turn out not to be in the ledger."""
        return BlockingEntries(self._batches(self._reader.read_unconfirmed(first, last, timeout=timeout).batches()))

    def read_last(self, *, timeout: float | None = None) -> Entry:
        """Return the entry at the last add confirmed, which is refreshed first."""
        return self._thread.call(self._reader.read_last(timeout=timeout))

    def read_last_add_confirmed(self, *, timeout: float | None = None) -> int:
        """Ask the bookies for the last entry that may be read; -1: none."""
        return self._thread.call(self._reader.read_last_add_confirmed(timeout=timeout))

    def try_read_last_add_confirmed(self, *, timeout: float | None = None) -> int:
        """Ask the bookies like `read_last_add_confirmed`; stop at the first that has a higher one, or at any answer at
        all."""
        return self._thread.call(self._reader.try_read_last_add_confirmed(timeout=timeout))

    def read_last_add_confirmed_and_entry(
        self, entry_id: int, *, wait: float = 2.0, parallel: bool = False, timeout: float | None = None
    ) -> LastConfirmedAndEntry:
        """Wait until the entry is confirmed, at most about `wait` seconds; the entry is None when it is not by then."""
        return self._thread.call(
            self._reader.read_last_add_confirmed_and_entry(entry_id, wait=wait, parallel=parallel, timeout=timeout)
        )

    def tail(self, first: int | None = None, *, timeout: float | None = None) -> BlockingEntries:
        """Iterate over entries from `first` on (None: new ones only), waiting until the ledger is sealed."""
        return BlockingEntries(self._batches(self._reader.tail(first, timeout=timeout).batches()))

    def close(self) -> None:
        """Release the handle; the ledger does not change."""
        self._thread.call(self._reader.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _batches(self, batches: Batches) -> BlockingBatches:
        return BlockingBatches(self._thread, batches)


async def _followed(append: Callable[[], Awaitable[asyncio.Future[int]]]) -> Future[int]:
    """Append, and let a future for other threads follow the result."""
    followed: Future[int] = Future()
    followed.set_running_or_notify_cancel()  # A sent entry cannot be cancelled.

    def tell(appended: asyncio.Future[int]) -> None:
        error = appended.exception()
        if error is None:
            followed.set_result(appended.result())
        else:
            followed.set_exception(error)

    (await append()).add_done_callback(tell)
    return followed
