"""The client for callers without asyncio: the same methods, without await. Safe in notebooks and in several threads.

Each client runs an event loop in a thread of its own, so the calling thread may or may not have one. Ctrl-C while a
call waits cancels the call there and raises here; an append cancelled so may or may not be stored. Iterators fetch
batches: one context switch per batch, not per entry.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from types import TracebackType
from typing import Any, Self, TypeVar

from bookies.client import client as asynchronous
from bookies.client import connect as connecting
from bookies.client.base.fragment_placement import FragmentPlacement
from bookies.client.blocking.blocking_administration import Administration
from bookies.client.blocking.blocking_iteration import next_or_none, run
from bookies.client.blocking.blocking_ledger import LedgerReader as LedgerReader
from bookies.client.blocking.blocking_ledger import LedgerWriter as LedgerWriter
from bookies.client.blocking.blocking_log import Log
from bookies.client.repair import administration as asynchronous_administration
from bookies.client.transport import BookieStatus
from bookies.config import ClientConfig
from bookies.errors import ClientClosed, InvalidArgument, MetadataCorrupt
from bookies.model import BookieId, DigestType, LedgerMetadata

T = TypeVar("T")


class LoopThread:
    """A thread that runs an event loop; callers send coroutines to it and wait for them.

    It ends with `stop`, when the last reference to it is dropped, or with the interpreter, where a daemon thread
    inside a loop would be cut off; in each case it first runs the registered clean-up. A forked process has the
    object but not the thread: there it cannot be used, and is not cleaned up.
    """

    def __init__(self) -> None:
        from bookies.runtime import aio

        self._loop = aio.new_event_loop()
        self._cleanups: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self._gate = threading.Lock()  # held while a coroutine is sent, so that none comes after the end
        self._process = os.getpid()
        self._thread = threading.Thread(target=_run, args=(self._loop,), name="bookies client", daemon=True)
        self._finalizer = weakref.finalize(
            self, _stop, self._loop, self._thread, self._gate, self._process, self._cleanups
        )
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the thread and wait here. An interruption cancels it.

        Raises `ClientClosed` after `stop`, also when it stops meanwhile, and in a forked process.
        """
        try:
            future = self._send(coroutine)
        except BaseException:
            coroutine.close()
            raise
        try:
            return future.result()
        except CancelledError:
            if self._finalizer.alive:
                raise
            raise ClientClosed(
                "the client was closed while this call waited; the call may or may not have taken effect"
            ) from None
        except BaseException:
            future.cancel()
            raise

    def _send(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        if os.getpid() != self._process:
            raise ClientClosed(
                "the client was made before this process was forked, and stayed with its parent: connect again here"
            )
        if threading.current_thread() is self._thread:
            raise InvalidArgument(
                "called from a callback on the client's own thread, which cannot wait for itself: hand it to another"
            )
        with self._gate:
            if not self._finalizer.alive:
                raise ClientClosed("the client is closed: connect again")
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def before_stop(self, cleanup: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a clean-up on the loop before it ends. It must not refer to this object."""
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
    gate: threading.Lock,
    process: int,
    cleanups: list[Callable[[], Coroutine[Any, Any, None]]],
) -> None:
    if os.getpid() != process:
        return  # The loop's descriptors are shared with the parent, whose client goes on.
    with gate:
        pass  # Coroutines sent before this are in the queue; later callers see that the end has begun.
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
        """Create a ledger and return its writer. Leaving its `with` block seals it; leaving it by an exception only
        releases it."""
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
        tier: str = "auto",
        timeout: float | None = None,
    ) -> LedgerReader:
        """Open a ledger for reading and tailing; never disturbs its writer."""
        opening = self._client.open(ledger_id, password=password, digest=digest, tier=tier, timeout=timeout)
        return LedgerReader(self._thread, self._thread.call(opening.begin()))

    def recover(
        self,
        ledger_id: int,
        *,
        password: bytes = b"",
        digest: str | DigestType | None = None,
        timeout: float | None = None,
    ) -> LedgerReader:
        """Recover a ledger whose writer has failed: fence it, find its last entry, seal it."""
        opening = self._client.recover(ledger_id, password=password, digest=digest, timeout=timeout)
        return LedgerReader(self._thread, self._thread.call(opening.begin()))

    def delete(self, ledger_id: int, *, timeout: float | None = None) -> None:
        """Delete a ledger for ever. One that does not exist counts as deleted."""
        self._thread.call(self._client.delete(ledger_id, timeout=timeout))

    def metadata(self, ledger_id: int, *, timeout: float | None = None) -> LedgerMetadata:
        """Return the metadata store's record of a ledger."""
        return self._thread.call(self._client.metadata(ledger_id, timeout=timeout))

    def is_sealed(self, ledger_id: int, *, timeout: float | None = None) -> bool:
        """Report whether a ledger has ended. Only the metadata store is asked."""
        return self._thread.call(self._client.is_sealed(ledger_id, timeout=timeout))

    def ledgers(
        self, label: tuple[str, str | bytes] | None = None, *, unreadable: list[MetadataCorrupt] | None = None
    ) -> Iterator[LedgerMetadata]:
        """Iterate over the records of all ledgers, by ascending id; with `label` (name, value) only of those that carry
        it.

        `unreadable`: collects the errors of records that cannot be read; without it the first is raised.
        """
        records = self._client.ledgers(label, unreadable=unreadable)
        while (record := self._thread.call(next_or_none(records))) is not None:
            yield record

    def placement(self, ledger_id: int, *, timeout: float | None = None) -> list[FragmentPlacement]:
        """Return the places of each fragment's replicas, and whether they meet this client's settings."""
        return self._thread.call(self._client.placement(ledger_id, timeout=timeout))

    def bookies(self, *, timeout: float | None = None) -> list[BookieStatus]:
        """Return every bookie of the cluster, sorted by id, with its mode ("writable", "read-only" or "down") and
        location."""
        return self._thread.call(self._client.bookies(timeout=timeout))

    def bookie_space(self, bookie: BookieId) -> tuple[int, int]:
        """Return (total, free) bytes of a bookie's disks."""
        return self._thread.call(self._client.bookie_space(bookie))

    def list_entries(self, bookie: BookieId, ledger_id: int) -> list[range]:
        """Return the entries of a ledger that a bookie holds, as ranges."""
        return self._thread.call(self._client.list_entries(bookie, ledger_id))

    def allow_ensemble_changes(self, allowed: bool) -> None:
        """Switch the replacement of failed bookies on or off, for every writer of this client."""
        self._thread.call(run(lambda: self._client.allow_ensemble_changes(allowed)))

    def log(self, name: str, *, password: bytes = b"") -> Log:
        """Return the log of that name, a list of ledgers without an end; no request is sent yet."""
        return Log(self._thread, self._client.log(name, password=password))

    def logs(self, prefix: str = "", *, timeout: float | None = None) -> list[str]:
        """Return the names of all logs that begin with `prefix`, sorted."""
        return self._thread.call(self._client.logs(prefix, timeout=timeout))

    def administration(
        self, *, password: bytes = b"", digest: str | DigestType = "crc32", owner: str = ""
    ) -> Administration:
        """Return the tools for operators: check ledgers, copy a lost bookie's entries to others."""

        def making() -> asynchronous_administration.Administration:
            return self._client.administration(password=password, digest=digest, owner=owner)

        return Administration(self._thread, self._thread.call(run(making)))

    def close(self) -> None:
        """Close connections and session; open writers are not sealed. Idempotent."""
        self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


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
    placement: str | None = None,
    placement_rule: bool | None = None,
    racks_min: int | None = None,
    regions_min: int | None = None,
    zones_min: int | None = None,
    zones_desired: int | None = None,
    fault_domains: str | None = None,
    fault_domains_min: int | None = None,
    locations_file: str | None = None,
    locations_script: str | None = None,
    locations_script_names_max: int | None = None,
    locations_script_timeout_ms: int | None = None,
    locations_interval_ms: int | None = None,
    disk_weights: bool | None = None,
    disk_weight_max: int | None = None,
    disk_weight_interval_ms: int | None = None,
    location: str | None = None,
    tls: bool | None = None,
    tls_authority: str | None = None,
    tls_certificate: str | None = None,
    tls_key: str | None = None,
    tls_key_password_file: str | None = None,
    tls_check_host_name: bool | None = None,
    tls_port: int | None = None,
    tls_version_min: str | None = None,
    tls_ciphers: str | None = None,
    tls_reload_interval_ms: int | None = None,
    sasl_file: str | None = None,
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
