"""The open record set of a writer: when it closes, and how its outcome reaches those who wait.

A set closes when it has its size, after the linger, or as soon as no earlier set is in flight. So a lone record does
not wait, and under load a set has as many records as arrive while the sets before it are written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from bookies.encoding.envelope import pack_headers
from bookies.encoding.record_sets import HEADER_SIZE, SET_SIZE, pack_set
from bookies.errors import BookieBusy, BookKeeperError, LogError
from bookies.kernels import SetBuilder
from bookies.protocol.log import Position

LINGER_S = 0.005
IN_FLIGHT_MAX = 4 << 20  # bytes of sets, as they are sent
OVERHEAD = 1024  # bytes that an entry takes beside its columns, at most

Send = Callable[[bytes], Coroutine[Any, Any, Position]]


class SetAppend:
    """Outcome of the records of one set: await it for the position of their entry, or the error of `append`.

    Several tasks may await it; the cancellation of one leaves the others alone. It need not be awaited: `flush` raises
    the first failure.
    """

    __slots__ = ("_future",)

    def __init__(self) -> None:
        self._future: asyncio.Future[Position] = asyncio.get_running_loop().create_future()

    def __await__(self) -> Generator[Any, None, Position]:
        return asyncio.shield(self._future).__await__()

    def done(self) -> bool:
        """Report whether the outcome is known."""
        return self._future.done()

    def add_done_callback(self, callback: Callable[[asyncio.Future[Position]], object]) -> None:
        """Call back once the outcome is known, before a `flush` that waits for it returns."""
        self._future.add_done_callback(callback)

    def settle(self, outcome: Position | BookKeeperError) -> None:
        """End the wait. Idempotent."""
        if self._future.done():
            return
        if isinstance(outcome, BookKeeperError):
            self._future.set_exception(outcome)
            self._future.exception()  # asyncio does not report it as never retrieved.
        else:
            self._future.set_result(outcome)


class OpenSets:
    """The sets of one writer that are open or in flight.

    `codec`, `linger_s`: of its sets. `send`: appends an entry and returns its position. `start`: runs a task, in the
    order of the calls. `begin_us`: returns the time of a set that begins, in microseconds since 1970, or raises the
    error of a writer that has ended.
    """

    def __init__(
        self,
        codec: int,
        linger_s: float,
        entry_size_max: int,
        send: Send,
        start: Callable[[Coroutine[Any, Any, None], str], object],
        begin_us: Callable[[], int],
    ) -> None:
        self._builder = SetBuilder(min(SET_SIZE, entry_size_max - OVERHEAD - HEADER_SIZE))
        self.add_plain = self._builder.add_plain  # a call less for each record
        self._codec = codec
        self._linger_s = linger_s
        self._ports = send, start, begin_us
        self._open: SetAppend | None = None
        self._closing: asyncio.Handle | None = None  # of the open set
        self._in_flight: dict[SetAppend, int] = {}  # bytes of each set
        self._size = 0  # of all of them
        self._has_room = asyncio.Event()
        self._has_room.set()
        self._failure: BookKeeperError | None = None  # the first one since the last `flush`

    def add(self, value: bytes | None, key: bytes | None, headers: Any, time_us: int | None) -> SetAppend:
        """Add a record. `time_us`: None: that of the set. Raises `BookieBusy`, and the error that ended the writer."""
        blob = None if headers is None else pack_headers(headers)
        builder = self._builder
        token = builder.add(value, key, blob, builder.time_us if time_us is None else time_us)
        if token is None:
            self.close_set()
            self._begin()
            token = builder.add(value, key, blob, builder.time_us if time_us is None else time_us)
        assert isinstance(token, SetAppend)
        return token

    def _begin(self) -> None:
        _, _, begin_us = self._ports
        now_us = begin_us()
        if not self._has_room.is_set():
            raise BookieBusy(
                f"record sets of {self._size:,} bytes are in flight: await wait_writable(), or use append()"
            )
        self._open = SetAppend()
        self._builder.begin(self._open, now_us)
        loop = asyncio.get_running_loop()
        if self._in_flight and self._linger_s:
            self._closing = loop.call_later(self._linger_s, self.close_set)
        else:
            self._closing = loop.call_soon(self.close_set)

    def close_set(self) -> None:
        """Send the open set, if there is one."""
        append, self._open = self._open, None
        if append is None:
            return
        assert self._closing is not None
        self._closing.cancel()
        try:
            entry = pack_set(self._builder.take(), self._codec)
        except BookKeeperError as error:
            self._settle(append, error)
            return
        except Exception as error:  # noqa: BLE001 - such as a codec's: no append may wait for it
            self._settle(append, LogError(f"a record set could not be packed: {error!r}"))
            return
        self._in_flight[append] = len(entry)
        self._size += len(entry)
        if self._size >= IN_FLIGHT_MAX:
            self._has_room.clear()
        send, start, _ = self._ports
        start(self._sent(send, entry, append), "send a record set")

    async def _sent(self, send: Send, entry: bytes, append: SetAppend) -> None:
        try:
            self._settle(append, await send(entry))
        except BookKeeperError as error:
            self._settle(append, error)
        if not self._in_flight:
            self.close_set()

    def _settle(self, append: SetAppend, outcome: Position | BookKeeperError) -> None:
        self._size -= self._in_flight.pop(append, 0)
        if self._size < IN_FLIGHT_MAX:
            self._has_room.set()
        if isinstance(outcome, BookKeeperError) and self._failure is None:
            self._failure = outcome
        append.settle(outcome)

    async def wait_writable(self) -> None:
        """Wait until a set may begin."""
        await self._has_room.wait()

    async def drain(self) -> None:
        """Send the open set, and wait for all."""
        self.close_set()
        for append in list(self._in_flight):
            try:
                await append
            except BookKeeperError:
                pass  # `check` raises it.

    def check(self) -> None:
        """Raise the first failure since the last call."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def forget(self, error: BookKeeperError) -> None:
        """Keep a failure from `check`: its caller has raised it."""
        if self._failure is error:
            self._failure = None

    def lose(self) -> None:
        """End the wait for sets whose tasks were cancelled."""
        for append in list(self._in_flight):
            self._settle(append, LogError("the writer was released: the records may or may not be in the log"))

    def end(self, error: BookKeeperError) -> None:
        """Refuse the records that were not sent."""
        append, self._open = self._open, None
        if append is not None:
            assert self._closing is not None
            self._closing.cancel()
            self._builder.take()
            self._settle(append, error)
