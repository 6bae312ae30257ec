"""The table from which the client without asyncio is made: one line for each method of the client with asyncio.

`append = waits(AsyncLedgerWriter.append)` is a method with the same parameters and documentation. It calls `append` of
the handle with asyncio, on the client's own thread, and waits for the result. mypy checks each call of it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from functools import partial, update_wrapper
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from bookies.client.base.iteration import Entries
from bookies.client.base.opening import Handle, Opening
from bookies.client.blocking.blocking_iteration import BlockingBatches, BlockingEntries, Caller, next_or_none, run

A = TypeVar("A")
B = TypeVar("B")
H = TypeVar("H", bound=Handle)
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Blocking(Generic[A]):
    """An object of the client with asyncio, and the thread that runs its methods.

    Callbacks run on that thread as well: they must be quick, and must not call the client.
    """

    def __init__(self, thread: Caller, inner: A) -> None:
        self._thread = thread
        self._inner = inner

    def __repr__(self) -> str:
        return repr(self._inner)


class BlockingHandle(Blocking[H]):
    """A handle for `with`, which ends as its twin's `async with` does."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.call(self._inner.__aexit__(error_type, error, traceback))


def waits(method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]]) -> Callable[Concatenate[Blocking[A], P], R]:
    """Return the method that waits for the result of a coroutine."""

    def wait(thread: Caller, coroutine: Coroutine[Any, Any, R]) -> R:
        return thread.call(coroutine)

    return delegates(method, wait)


def opens(
    method: Callable[Concatenate[A, P], Opening[H]], handle: Callable[[Caller, H], B], summary: str = ""
) -> Callable[Concatenate[Blocking[A], P], B]:
    """Return the method that opens a handle. `summary` replaces a first paragraph that is about `await`."""

    def open_it(thread: Caller, opening: Opening[H]) -> B:
        return handle(thread, thread.call(opening.begin()))

    return delegates(method, open_it, handle, summary)


def iterates(
    method: Callable[Concatenate[A, P], AsyncIterator[R]],
) -> Callable[Concatenate[Blocking[A], P], Iterator[R]]:
    """Return the method that iterates, with a call for each step."""

    def iterate(thread: Caller, items: AsyncIterator[R]) -> Iterator[R]:
        while (item := thread.call(next_or_none(items))) is not None:
            yield item

    return delegates(method, iterate)


def reads(method: Callable[Concatenate[A, P], Entries]) -> Callable[Concatenate[Blocking[A], P], BlockingEntries]:
    """Return the method that iterates over entries, with a call for each batch."""

    def iterate(thread: Caller, entries: Entries) -> BlockingEntries:
        return BlockingEntries(BlockingBatches(thread, entries.batches()))

    return delegates(method, iterate, BlockingEntries)


def runs(method: Callable[Concatenate[A, P], R]) -> Callable[Concatenate[Blocking[A], P], R]:
    """Return the method that runs on the loop's own thread a function that never waits."""

    def call(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._thread.call(run(partial(_twin(self, method), *args, **kwargs)))

    return _like(call, method)


def delegates(
    method: Callable[Concatenate[A, P], T],
    finish: Callable[[Caller, T], R],
    returns: Callable[..., R] | None = None,
    summary: str = "",
) -> Callable[Concatenate[Blocking[A], P], R]:
    """Return the method that passes the thread and the result of `method` to `finish`.

    `returns`: the class of the result, if it is not the twin's; `summary`: as in `opens`.
    """

    def call(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return finish(self._thread, _twin(self, method)(*args, **kwargs))

    return _like(call, method, returns, summary)


class Outcome(Protocol[T]):
    """Outcome of an append, as `followed` needs it."""

    def add_done_callback(self, callback: Callable[[asyncio.Future[T]], object], /) -> object:
        """Call back once the outcome is known."""


async def followed(append: Callable[[], Awaitable[Outcome[T]]]) -> Future[T]:
    """Append, and return a future for other threads, which follows the result.

    The future has the result before a later call (`flush`, `close`) that waited for it returns.
    """
    follower: Future[T] = Future()
    follower.set_running_or_notify_cancel()  # A sent entry cannot be cancelled.

    def tell(appended: asyncio.Future[T]) -> None:
        error = appended.exception()
        if error is None:
            follower.set_result(appended.result())
        else:
            follower.set_exception(error)

    (await append()).add_done_callback(tell)
    return follower


def _twin(handle: Blocking[A], method: Callable[Concatenate[A, P], T]) -> Callable[P, T]:
    """Return the bound method of the handle with asyncio, which may be of a subclass that overrides it."""
    bound: Callable[P, T] = getattr(handle._inner, method.__name__)
    return bound


def _like(
    call: Callable[Concatenate[Blocking[A], P], R],
    method: Callable[Concatenate[A, P], object],
    returns: Callable[..., object] | None = None,
    summary: str = "",
) -> Callable[Concatenate[Blocking[A], P], R]:
    """Return `call` with the name, signature and documentation of `method`, without asyncio's words."""
    signature = inspect.signature(method)
    annotation = returns.__name__ if returns else str(signature.return_annotation).removeprefix("Async")
    _, blank, details = (method.__doc__ or "").partition("\n\n")
    text = summary + blank + details if summary else method.__doc__ or ""
    update_wrapper(call, method)
    call.__doc__ = text.replace("async with", "with")
    call.__signature__ = signature.replace(return_annotation=annotation)  # type: ignore[attr-defined]
    return call
