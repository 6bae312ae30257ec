"""`Opening`: the result of `store.create(...)` and similar calls, for `await` or `async with`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar

from bookies.client.base.arguments import TimeLimit, seconds


class Handle(Protocol):
    """An asynchronous context manager that enters itself."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


H = TypeVar("H", bound=Handle)


class Opening(Generic[H]):
    """A handle that is being opened: `await` it, or use it in `async with`, which also closes it.

    No request is sent before that. The `TimeoutError` at the end of `timeout` (seconds) names the operation.
    """

    def __init__(self, make: Callable[[], Awaitable[H]], timeout: float | None, operation: str) -> None:
        self._make = make
        self._timeout = seconds(timeout)
        self._what = operation
        self._handle: H | None = None

    def __await__(self) -> Generator[object, None, H]:
        return self.begin().__await__()

    async def begin(self) -> H:
        """Open the handle. The same as awaiting this object, for callers that need a coroutine."""
        async with TimeLimit(self._timeout, self._what):
            return await self._make()

    async def __aenter__(self) -> H:
        self._handle = handle = await self.begin()
        await handle.__aenter__()
        return handle

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._handle is not None
        await self._handle.__aexit__(error_type, error, traceback)
