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
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from functools import partial
from types import TracebackType
from typing import Any, Protocol, TypeVar, Unpack

from bookies.client import client as asynchronous
from bookies.client import connect as connecting
from bookies.client.base.opening import Handle
from bookies.client.blocking.blocking_administration import Administration
from bookies.client.blocking.blocking_iteration import run
from bookies.client.blocking.blocking_lease import Election, Lease
from bookies.client.blocking.blocking_ledger import LedgerReader as LedgerReader
from bookies.client.blocking.blocking_ledger import LedgerWriter as LedgerWriter
from bookies.client.blocking.blocking_log import Log
from bookies.client.blocking.delegation import BlockingHandle, delegates, iterates, opens, runs, waits
from bookies.config import ClientConfig
from bookies.errors import ClientClosed, InvalidArgument
from bookies.model import DigestType

T = TypeVar("T")
B = TypeVar("B")


class Closable(Handle, Protocol):
    """A handle that can be closed."""

    async def close(self) -> None: ...


S = TypeVar("S", bound=Closable)


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


class Session(BlockingHandle[S]):
    """A handle whose thread ends with it."""

    def __init__(self, thread: LoopThread, inner: S) -> None:
        super().__init__(thread, inner)
        self._stop = thread.stop
        thread.before_stop(inner.close)

    def close(self) -> None:
        """Close connections and session; open writers are not sealed. Idempotent."""
        self._stop()

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def begun(session: Callable[[LoopThread, S], B], begin: Callable[[], Coroutine[Any, Any, S]]) -> B:
    """Return the session that `begin` opens on a thread of its own."""
    thread = LoopThread()
    try:
        return session(thread, thread.call(begin()))
    except BaseException:
        thread.stop()
        raise


class Client(Session[asynchronous.Client]):
    """The ledgers of one cluster. See `bookies.client.client.Client`."""

    create = opens(asynchronous.Client.create, LedgerWriter, "Create a ledger and return its writer.")
    open = opens(asynchronous.Client.open, LedgerReader)
    recover = opens(asynchronous.Client.recover, LedgerReader)
    delete = waits(asynchronous.Client.delete)
    metadata = waits(asynchronous.Client.metadata)
    is_sealed = waits(asynchronous.Client.is_sealed)
    ledgers = iterates(asynchronous.Client.ledgers)
    placement = waits(asynchronous.Client.placement)
    bookies = waits(asynchronous.Client.bookies)
    bookie_space = waits(asynchronous.Client.bookie_space)
    list_entries = waits(asynchronous.Client.list_entries)
    allow_ensemble_changes = runs(asynchronous.Client.allow_ensemble_changes)
    log = delegates(asynchronous.Client.log, Log, Log)
    logs = waits(asynchronous.Client.logs)
    lock = opens(asynchronous.Client.lock, Lease)
    election = delegates(asynchronous.Client.election, Election, Election)
    usage = runs(asynchronous.Client.usage)
    slow_report = runs(asynchronous.Client.slow_report)

    def administration(
        self, *, password: bytes = b"", digest: str | DigestType = "crc32", owner: str = ""
    ) -> Administration:
        """Return the tools for operators: check ledgers, copy a lost bookie's entries to others."""
        making = partial(self._inner.administration, password=password, digest=digest, owner=owner)
        return Administration(self._thread, self._thread.call(run(making)))


@connecting.lists_settings
def connect(
    uri: str,
    *,
    config: ClientConfig | None = None,
    timeout: float | None = None,
    **settings: Unpack[connecting.ClientSettings],
) -> Client:
    """Connect to a cluster: `with bookies.blocking.connect(uri) as store`. See `bookies.connect`."""

    async def connected() -> asynchronous.Client:
        return await connecting.connect(uri, config=config, timeout=timeout, **settings)

    return begun(Client, connected)
