"""The Workers port on threads: one thread per worker, completions handed to the event loop many at a time.

The path of a call: the loop puts it into the worker's queue; the thread takes it, runs it (system calls release the
interpreter lock), appends the outcome to `_Outcomes`, and wakes the loop unless a wake-up is already pending; the
loop then resolves all outcomes. So a burst of calls costs one wake-up, which is the expensive part.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar, cast

from bookies.runtime.ports import Buffer, Ended, File, ReadEnded

if TYPE_CHECKING:
    from bookies.runtime.linux.direct import DirectWrites
    from bookies.runtime.linux.ring import RingReads

T = TypeVar("T")
_Call = tuple["asyncio.Future[Any]", Callable[..., Any], tuple[object, ...]]


class _Outcomes:
    """Outcomes that threads have produced and the loop has not resolved yet.

    `_is_waking` is read and written without a lock: the thread appends before it checks, and the loop clears before
    it takes, so an outcome is either taken or wakes the loop (now and then twice, which is harmless).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._finished: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._is_waking = False

    def post(self, future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
        """Add an outcome. Called on a worker's thread."""
        self._finished.append((future, result, error))
        if not self._is_waking:
            self._is_waking = True
            with contextlib.suppress(RuntimeError):  # The loop is closed: no caller waits any more.
                self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_waking = False
        finished = self._finished
        while finished:
            future, result, error = finished.popleft()
            if not future.done():  # not cancelled
                _resolve(future, result, error)


def _resolve(future: asyncio.Future[T], result: T, error: BaseException | None) -> None:
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


class ThreadWorker:
    """One thread, which starts with the first call. See `ports.Worker`."""

    def __init__(self, name: str, outcomes: _Outcomes) -> None:
        self._outcomes = outcomes
        self._name = name
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._direct: DirectWrites | None = None
        self._has_looked = False  # for `_direct`
        self._ring: RingReads | None = None
        self._has_looked_for_ring = False

    def run(self, call: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._outcomes.loop.create_future()
        if self._is_closed:
            future.set_exception(RuntimeError(f"worker {self._name} is closed"))
            return future
        self._calls.put((future, call, arguments))
        if self._thread is None:
            # A daemon thread, so that a process that fails before it closes its workers still ends.
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        return future

    def write_durably(self, file: File, buffers: Sequence[Buffer], offset: int, done: Ended) -> None:
        """Use `direct.DirectWrites`, where the system has it and the file can use it. See `ports.Worker`."""
        if not self._has_looked and not self._is_closed:
            self._has_looked = True
            self._direct = _direct_writes(self._outcomes.loop)

        def written(outcome: bool | Exception) -> None:
            if outcome is True:
                done(None)
            elif outcome is False:
                self.run(file.write_durably, buffers, offset).add_done_callback(lambda future: done(future.exception()))
            else:
                done(outcome)

        if self._direct is None or not file.begin_durable(self._direct.submit, buffers, offset, written):
            written(False)

    def begin_read(self, file: File, size: int, offset: int, ended: ReadEnded) -> bool:
        """Use `ring.RingReads`, where the system has it. See `ports.Worker`."""
        if not self._has_looked_for_ring and not self._is_closed:
            self._has_looked_for_ring = True
            self._ring = _ring_reads(self._outcomes.loop)
        return self._ring is not None and file.begin_read(self._ring.submit, size, offset, ended)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._calls.put(None)
        if self._thread is not None:
            self._thread.join()
        if self._direct is not None:
            self._direct.close()
            self._direct = None
        if self._ring is not None:
            self._ring.close()
            self._ring = None

    def _run(self) -> None:
        take, post = self._calls.get, self._outcomes.post
        while (item := take()) is not None:
            future, call, arguments = item
            try:
                result = call(*arguments)
            except BaseException as error:  # noqa: BLE001  (it becomes the future's exception)
                post(future, None, error)
            else:
                post(future, result, None)
            # Drop references to the last call before waiting for the next.
            item = future = call = arguments = result = None  # type: ignore[assignment]


def _direct_writes(loop: asyncio.AbstractEventLoop) -> DirectWrites | None:
    """Return the loop's direct writes; None: the system or the interpreter has none, or none is left."""
    try:
        from bookies.runtime.linux.direct import DirectWrites

        return DirectWrites.begin(loop)
    except (ImportError, AttributeError, OSError, RuntimeError, NotImplementedError):
        return None


def _ring_reads(loop: asyncio.AbstractEventLoop) -> RingReads | None:
    """Return the loop's reads without threads; None: as for `_direct_writes`."""
    try:
        from bookies.runtime.linux.ring import RingReads

        return RingReads.begin(loop)
    except (ImportError, AttributeError, OSError, RuntimeError, NotImplementedError):
        return None


class ThreadWorkers:
    """Starts workers for the running loop. See `ports.Workers`."""

    def __init__(self) -> None:
        self._outcomes: _Outcomes | None = None

    def start(self, name: str) -> ThreadWorker:
        loop = asyncio.get_running_loop()
        if self._outcomes is None or self._outcomes.loop is not loop:
            self._outcomes = _Outcomes(loop)
        return ThreadWorker(name, self._outcomes)


class SlowCalls:
    """Calls that may block for minutes, one at a time for each key, so that repeated ones do not pile up.

    Each has a daemon thread. The loop's own executor would keep the process from its end, and look-ups of hosts from
    theirs.
    """

    def __init__(self) -> None:
        self._begun: dict[Hashable, Future[Any]] = {}

    async def run(self, key: Hashable, call: Callable[[], T]) -> T:
        """Return the call's result. Cancelling ends the wait, and the call continues."""
        while (earlier := self._begun.get(key)) is not None:
            await asyncio.wrap_future(earlier)
        begun: Future[Any] = Future()
        begun.set_running_or_notify_cancel()  # From here on nothing cancels it.
        self._begun[key] = begun

        def run() -> None:
            result: T | None = None
            error: BaseException | None = None
            try:
                result = call()
            except BaseException as raised:  # noqa: BLE001  (the caller gets it)
                error = raised
            self._begun.pop(key, None)
            begun.set_result((result, error))

        threading.Thread(target=run, name=f"slow call for {key}", daemon=True).start()
        result, error = await asyncio.wrap_future(begun)
        if error is not None:
            raise error
        return cast(T, result)
