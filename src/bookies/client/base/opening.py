"""`Opening`: what `store.create(...)` and its like return, to be awaited or to be used in `async with`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from bookies.client.base.arguments import TimeLimit, seconds


class Handle(Protocol):
    """An asynchronous context manager; what it enters is itself."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


H = TypeVar("H", bound=Handle)


class Opening(Generic[H]):
    """A handle that is being made: `await` it, or use it in `async with`, which also lets go of it.

    Nothing happens before that. `what`: what is not done when `timeout` is over, for the message.
    """

    def __init__(self, make: Callable[[], Awaitable[H]], timeout: float | None, what: str) -> None:
        self._make = make
        self._timeout = seconds(timeout)
        self._what = what
        self._handle: H | None = None

    def __await__(self) -> Generator[object, None, H]:
        return self.begin().__await__()

    async def begin(self) -> H:
        """The handle. As awaiting this object, for those who need a coroutine."""
        async with TimeLimit(self._timeout, self._what):
            return await self._make()

    async def __aenter__(self) -> H:
        self._handle = handle = await self.begin()
        await handle.__aenter__()
        return handle

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._handle is not None
        await self._handle.__aexit__(kind, error, traceback)
