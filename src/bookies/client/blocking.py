"""The client for callers without asyncio: the same words, without await. Safe in notebooks and in several threads.

Each client runs an event loop in a thread of its own, so it does not matter whether the calling thread has one.
Ctrl-C while a call waits cancels the call there and raises here; an append cancelled so may or may not be stored.
Iterators fetch batches: one switch of threads per batch, not per entry.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from bookies.client import administration as asynchronous_administration
from bookies.client import client as asynchronous
from bookies.client import connect as connecting
from bookies.client.blocking_administration import Administration
from bookies.client.blocking_iteration import BlockingBatches, BlockingEntries, next_or_none
from bookies.client.blocking_log import Log
from bookies.client.entries import Entry, EntryBatch, LastConfirmedAndEntry
from bookies.client.iteration import Batches
from bookies.client.reader import LedgerReader as AsyncLedgerReader
from bookies.client.watcher import BookieStatus
from bookies.client.writer import LedgerWriter as AsyncLedgerWriter
from bookies.config import ClientConfig
from bookies.errors import ClientClosed
from bookies.model import BookieId, DigestType, LedgerMetadata

if TYPE_CHECKING:
    import pyarrow

T = TypeVar("T")
Payload = bytes | bytearray | memoryview


class LoopThread:
    """A thread that runs an event loop; coroutines are sent to it and waited for.

    It ends with `stop`, when nobody refers to it any more, or with the interpreter, where a daemon thread inside a
    loop would be cut off; in each case it first runs the clean-up that was asked for.
    """

    def __init__(self) -> None:
        from bookies.runtime import aio

        self._loop = aio.new_event_loop()
        self._cleanups: list[Callable[[], Coroutine[Any, Any, None]]] = []
        thread = threading.Thread(target=_run, args=(self._loop,), name="bookies client", daemon=True)
        self._finalizer = weakref.finalize(self, _stop, self._loop, thread, self._cleanups)
        thread.start()

    @property
    def is_running(self) -> bool:
        return self._finalizer.alive

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run it there, wait here. An interruption cancels it. Raises `ClientClosed` after `stop`."""
        if not self.is_running:
            coroutine.close()
            raise ClientClosed("the client is closed: connect again")
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def before_stop(self, cleanup: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run this on the loop before it ends. It must not refer to this object."""
        self._cleanups.append(cleanup)

    def stop(self) -> None:
        """End the loop and its thread. Idempotent."""
        self._finalizer()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


def _stop(
    loop: asyncio.AbstractEventLoop,
    thread: threading.Thread,
    cleanups: list[Callable[[], Coroutine[Any, Any, None]]],
) -> None:
    ending = asyncio.run_coroutine_threadsafe(_end(loop, cleanups), loop)
    ending.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))
    # The garbage collector may find the last reference on the loop's own thread, which cannot wait for itself.
    if threading.current_thread() is not thread:
        thread.join()
        ending.result()


async def _end(loop: asyncio.AbstractEventLoop, cleanups: list[Callable[[], Coroutine[Any, Any, None]]]) -> None:
    try:
        for cleanup in cleanups:
            await cleanup()
    finally:
        current = asyncio.current_task()
        tasks = [task for task in asyncio.all_tasks() if task is not current]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await loop.shutdown_asyncgens()


class LedgerWriter:
    """The one writer of a ledger. See `bookies.client.writer.LedgerWriter`."""

    def __init__(self, thread: LoopThread, writer: AsyncLedgerWriter) -> None:
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

    def __repr__(self) -> str:
        return repr(self._writer)

    def append(self, payload: Payload, *, timeout: float | None = None) -> int:
        """Append one entry; its id, once it is durable on the ack quorum. Many small ones: `append_many`."""
        return self._thread.call(self._writer.append(payload, timeout=timeout))

    def append_many(self, payloads: Iterable[Payload], *, timeout: float | None = None) -> int:
        """Append entries with consecutive ids; the last id, once all are durable."""
        return self._thread.call(self._writer.append_many(list(payloads), timeout=timeout))

    def write(self, entry_id: int, payload: Payload, *, timeout: float | None = None) -> int:
        """Append one entry under an id of one's own: on ledgers created with `advanced=True`.

        It returns when the entry and all before it are durable: write smaller ids first, or from several threads.
        """
        return self._thread.call(self._writer.write(entry_id, payload, timeout=timeout))

    def force(self, *, timeout: float | None = None) -> int:
        """Make durable what was acknowledged before (`deferred_sync`); the last add confirmed."""
        return self._thread.call(self._writer.force(timeout=timeout))

    def seal(self, *, force: bool = True, timeout: float | None = None) -> int:
        """End the ledger for ever; its last entry id. See `bookies.client.writer.LedgerWriter.seal`."""
        return self._thread.call(self._writer.seal(force=force, timeout=timeout))

    def close(self) -> None:
        """Let go of the handle without ending the ledger."""
        self._thread.call(self._writer.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.call(self._writer.__aexit__(kind, error, traceback))


class LedgerReader:
    """A ledger open for reading. See `bookies.client.reader.LedgerReader`."""

    def __init__(self, thread: LoopThread, reader: AsyncLedgerReader) -> None:
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

    def read(self, first: int = 0, last: int | None = None, *, timeout: float | None = None) -> Iterator[Entry]:
        """The entries first..last in order; `last` None: up to the last add confirmed."""
        return BlockingEntries(self.read_batches(first, last, timeout=timeout))

    def read_batches(
        self, first: int = 0, last: int | None = None, *, timeout: float | None = None
    ) -> Iterator[EntryBatch]:
        """As `read`, in verified batches."""
        return self._batches(self._reader.read_batches(first, last, timeout=timeout))

    def read_arrow(self, first: int = 0, last: int | None = None, *, timeout: float | None = None) -> pyarrow.Table:
        """As `read`, as a pyarrow.Table: ledger_id, entry_id, value."""
        return self._thread.call(self._reader.read_arrow(first, last, timeout=timeout))

    def read_entry(self, entry_id: int, *, parallel: bool = False, timeout: float | None = None) -> Entry:
        """One entry. `parallel`: ask all its replicas at once."""
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
        """Consecutive entries from `first` on: at least one, perhaps fewer than there are."""
        return self._thread.call(
            self._reader.read_batch(
                first, count_max=count_max, size_max=size_max, unconfirmed=unconfirmed, timeout=timeout
            )
        )

    def read_unconfirmed(self, first: int, last: int, *, timeout: float | None = None) -> Iterator[Entry]:
        """The entries first..last, also those that may turn out not to be in the ledger."""
        return BlockingEntries(self._batches(self._reader.read_unconfirmed(first, last, timeout=timeout).batches()))

    def read_last(self, *, timeout: float | None = None) -> Entry:
        """The entry at the last add confirmed, which is refreshed first."""
        return self._thread.call(self._reader.read_last(timeout=timeout))

    def read_last_add_confirmed(self, *, timeout: float | None = None) -> int:
        """Ask the bookies for the last entry that may be read; -1: none."""
        return self._thread.call(self._reader.read_last_add_confirmed(timeout=timeout))

    def try_read_last_add_confirmed(self, *, timeout: float | None = None) -> int:
        """As `read_last_add_confirmed`, content with the first bookie that knows more, or with any answer at all."""
        return self._thread.call(self._reader.try_read_last_add_confirmed(timeout=timeout))

    def read_last_add_confirmed_and_entry(
        self, entry_id: int, *, wait: float = 2.0, parallel: bool = False, timeout: float | None = None
    ) -> LastConfirmedAndEntry:
        """Wait until the entry is confirmed, at most about `wait` seconds; the entry is None when it is not by then."""
        return self._thread.call(
            self._reader.read_last_add_confirmed_and_entry(entry_id, wait=wait, parallel=parallel, timeout=timeout)
        )

    def tail(self, first: int | None = None, *, timeout: float | None = None) -> Iterator[Entry]:
        """Entries from `first` on (None: new ones only), waiting until the ledger is sealed."""
        return BlockingEntries(self._batches(self._reader.tail(first, timeout=timeout).batches()))

    def close(self) -> None:
        """Let go of the handle; nothing happens to the ledger."""
        self._thread.call(self._reader.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _batches(self, batches: Batches) -> Iterator[EntryBatch]:
        return BlockingBatches(self._thread, batches)


class Client:
    """The ledgers of one cluster. See `bookies.client.client.Client`."""

    def __init__(self, thread: LoopThread, client: asynchronous.Client) -> None:
        self._thread = thread
        self._client = client
        thread.before_stop(client.close)

    def __repr__(self) -> str:
        return repr(self._client)

    def create(
        self,
        *,
        ensemble: int = 3,
        write_quorum: int | None = None,
        ack_quorum: int | None = None,
        digest: str | DigestType = "crc32c",
        password: bytes = b"",
        labels: Mapping[str, str | bytes] | None = None,
        ledger_id: int | None = None,
        advanced: bool = False,
        deferred_sync: bool = False,
        timeout: float | None = None,
    ) -> LedgerWriter:
        """Create a ledger and return its writer. Leaving its `with` block seals it; by an exception only lets go."""
        opening = self._client.create(
            ensemble=ensemble,
            write_quorum=write_quorum,
            ack_quorum=ack_quorum,
            digest=digest,
            password=password,
            labels=labels,
            ledger_id=ledger_id,
            advanced=advanced,
            deferred_sync=deferred_sync,
            timeout=timeout,
        )
        return LedgerWriter(self._thread, self._thread.call(opening.begin()))

    def open(
        self,
        ledger_id: int,
        *,
        password: bytes = b"",
        digest: str | DigestType | None = None,
        timeout: float | None = None,
    ) -> LedgerReader:
        """Open a ledger for reading and tailing; never disturbs its writer."""
        opening = self._client.open(ledger_id, password=password, digest=digest, timeout=timeout)
        return LedgerReader(self._thread, self._thread.call(opening.begin()))

    def recover(
        self,
        ledger_id: int,
        *,
        password: bytes = b"",
        digest: str | DigestType | None = None,
        timeout: float | None = None,
    ) -> LedgerReader:
        """End a ledger whose writer is gone: fence it, find its last entry, seal it."""
        opening = self._client.recover(ledger_id, password=password, digest=digest, timeout=timeout)
        return LedgerReader(self._thread, self._thread.call(opening.begin()))

    def delete(self, ledger_id: int, *, timeout: float | None = None) -> None:
        """Delete a ledger for ever; one that does not exist counts as deleted."""
        self._thread.call(self._client.delete(ledger_id, timeout=timeout))

    def metadata(self, ledger_id: int, *, timeout: float | None = None) -> LedgerMetadata:
        """What the metadata store knows of a ledger."""
        return self._thread.call(self._client.metadata(ledger_id, timeout=timeout))

    def is_sealed(self, ledger_id: int, *, timeout: float | None = None) -> bool:
        """Whether a ledger has ended; only the metadata store is asked."""
        return self._thread.call(self._client.is_sealed(ledger_id, timeout=timeout))

    def ledgers(self, label: tuple[str, str | bytes] | None = None) -> Iterator[LedgerMetadata]:
        """The records of all ledgers, by ascending id; with `label` (name, value) only of those that carry it."""
        found = self._client.ledgers(label)
        while (record := self._thread.call(next_or_none(found))) is not None:
            yield record

    def bookies(self, *, timeout: float | None = None) -> list[BookieStatus]:
        """Every bookie of the cluster, sorted by id, with its mode: "writable", "read-only" or "down"."""
        return self._thread.call(self._client.bookies(timeout=timeout))

    def bookie_space(self, bookie: BookieId) -> tuple[int, int]:
        """(total, free) bytes of a bookie's disks."""
        return self._thread.call(self._client.bookie_space(bookie))

    def list_entries(self, bookie: BookieId, ledger_id: int) -> list[range]:
        """Which entries of a ledger a bookie holds, as ranges."""
        return self._thread.call(self._client.list_entries(bookie, ledger_id))

    def log(self, name: str, *, password: bytes = b"") -> Log:
        """The log of that name, a list of ledgers that goes on for ever; nobody is asked yet."""
        return Log(self._thread, self._client.log(name, password=password))

    def logs(self, prefix: str = "", *, timeout: float | None = None) -> list[str]:
        """The names of all logs that begin with `prefix`, sorted."""
        return self._thread.call(self._client.logs(prefix, timeout=timeout))

    def administration(self, *, password: bytes = b"", digest: str | DigestType = "crc32") -> Administration:
        """Tools for whoever looks after the cluster: check ledgers, copy what a lost bookie held to others."""
        return Administration(self._thread, self._thread.call(_made(self._client, password, digest)))

    def close(self) -> None:
        """Drop connections and session; open writers are not sealed. Idempotent."""
        self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


async def _made(
    client: asynchronous.Client, password: bytes, digest: str | DigestType
) -> asynchronous_administration.Administration:
    return client.administration(password=password, digest=digest)


async def _connected(uri: str, config: ClientConfig | None, settings: Mapping[str, Any]) -> asynchronous.Client:
    return await connecting.connect(uri, config=config, **settings)


def connect(
    uri: str,
    *,
    config: ClientConfig | None = None,
    memory_limit: int | None = None,
    add_timeout_ms: int | None = None,
    read_timeout_ms: int | None = None,
    connect_timeout_ms: int | None = None,
    frame_size_max: int | None = None,
    wire: str | None = None,
    read_ahead_size: int | None = None,
    hedge_delay_min_ms: int | None = None,
    hedge_delay_max_ms: int | None = None,
    hedged_reads: bool | None = None,
    sticky_reads: bool | None = None,
    digest_autodetection: bool | None = None,
    explicit_lac_interval_ms: int | None = None,
    ensemble_changes_max: int | None = None,
    ensemble_changes_allowed: bool | None = None,
    delay_ensemble_change: bool | None = None,
    add_quorum_timeout_ms: int | None = None,
    opportunistic_striping: bool | None = None,
    fault_domains: str | None = None,
    fault_domains_min: int | None = None,
    timeout: float | None = None,
) -> Client:
    """Connect to a cluster: `with bookies.blocking.connect(uri) as store`. See `bookies.connect`."""
    settings = {name: value for name, value in locals().items() if name not in ("uri", "config") and value is not None}
    thread = LoopThread()
    try:
        return Client(thread, thread.call(_connected(uri, config, settings)))
    except BaseException:
        thread.stop()
        raise
