"""Append of the lines of a file, a pipe or a terminal to a ledger or a log: one entry per line, as they arrive."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from bookies.admin.shared.usage import UsageError
from bookies.errors import InvalidArgument

if TYPE_CHECKING:
    from bookies.encoding.envelope import Record

PIECE_SIZE = 256 * 1024  # bytes of lines handed to one append_many
IN_FLIGHT = 8  # pieces appended but not confirmed
LINE_SIZE_MAX = 1 << 30  # bytes; no setting allows larger entries


class Appender(Protocol):
    """Writer of a ledger or of a log."""

    async def append_many(self, payloads: list[Any], /) -> object: ...


class WrongLine(UsageError):
    """A line that is no entry. The lines before it were appended, and no later one."""


Parse = Callable[[list[bytes]], tuple[Sequence["bytes | Record"], WrongLine | None]]


def as_they_are(lines: list[bytes]) -> tuple[Sequence[bytes | Record], WrongLine | None]:
    """Return the lines as payloads."""
    return lines, None


async def append_lines(
    writer: Appender,
    pieces: AsyncIterator[list[bytes]],
    confirmed: Callable[[int], None],
    parse: Parse = as_they_are,
) -> int:
    """Append every line up to the end of the input. Return the number of entries.

    `pieces`: the input, from `read_lines`. `confirmed`: called with the number of entries confirmed so far. `parse`:
    makes payloads of the next lines, up to one that is wrong. Raises the exceptions of the writer's `append_many`, also
    while the input is silent, and `WrongLine`.
    """
    reading: asyncio.Future[list[bytes] | None] = asyncio.ensure_future(anext(pieces, None))
    in_flight: deque[asyncio.Future[int]] = deque()  # the result is the number of lines
    count, is_ended = 0, False
    wrong: WrongLine | None = None
    try:
        while in_flight or not is_ended:
            may_read = not is_ended and len(in_flight) < IN_FLIGHT
            waited: list[asyncio.Future[Any]] = [reading] if may_read else []
            waited += [*in_flight][:1]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            while in_flight and in_flight[0].done():
                count += in_flight.popleft().result()
                confirmed(count)
            if may_read and reading.done():
                lines = reading.result()
                is_ended = lines is None
                if lines is not None:
                    payloads, wrong = parse(lines)
                    is_ended = wrong is not None
                    if payloads:
                        in_flight.append(asyncio.ensure_future(_append(writer, [*payloads])))
                    reading = asyncio.ensure_future(anext(pieces, None))
    finally:
        unfinished: list[asyncio.Future[Any]] = [reading, *in_flight]
        for task in unfinished:
            task.cancel()
        await asyncio.gather(*unfinished, return_exceptions=True)
    if wrong is not None:
        raise wrong
    return count


async def _append(writer: Appender, payloads: list[bytes | Record]) -> int:
    await writer.append_many(payloads)
    return len(payloads)


async def preceded(first: list[bytes], others: AsyncIterator[list[bytes]]) -> AsyncIterator[list[bytes]]:
    """Yield lines that were read before, then the others."""
    yield first
    async for lines in others:
        yield lines


async def read_lines(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Yield lines without line ends, in lists of up to about `PIECE_SIZE` bytes. The last line needs no line end.

    A pipe or a terminal is awaited on the event loop, so other tasks run while it is silent.
    """
    partial: list[bytes] = []  # pieces of a line whose end has not arrived yet
    rest_size = 0
    while piece := await _read(descriptor):
        first, *others = piece.split(b"\n")
        partial.append(first)
        rest_size += len(first)
        if rest_size > LINE_SIZE_MAX:
            raise InvalidArgument(f"a line of more than {LINE_SIZE_MAX:,} bytes cannot be an entry")
        if others:
            last = others.pop()
            yield [b"".join(partial), *others]
            partial, rest_size = [last], len(last)
    if rest_size:
        yield [b"".join(partial)]


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _read(descriptor: int) -> bytes:
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    try:
        loop.add_reader(descriptor, _resolve, readable)
    except PermissionError:  # epoll refuses files and /dev/null: reading them does not block.
        await asyncio.sleep(0)
        return os.read(descriptor, PIECE_SIZE)
    try:
        await readable
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, PIECE_SIZE)
