"""Histories of the clients of `bk chaos`: one file per client, one JSON object per line.

    {"e": "begin", "op": N, "kind": K, "bound_s": B, "t": T, ...}   an operation begins; it must end within B seconds
    {"e": "end", "op": N, "kind": K, "outcome": "ok" or an error's name, "s": seconds, "t": T}
    {"e": "started", "ledger": L, "last": E}                   entries up to E are about to be appended
    {"e": "acked", "ledger": L, "first": E, "last": E}         these entries were acknowledged as durable
    {"e": "seen", "ledger": L, "last": E}                      a read returned the entries up to E, all as written
    {"e": "end_of", "ledger": L, "last": E, "length": bytes}   the client received this end of the ledger
    {"e": "wrong", "text": ...}                                a fault that the client itself detected

`t` is the system's monotonic clock, which all processes share. A line is written with one system call before the client
acts on it, so killing the process loses no relevant line. An entry's content is a function of its ledger and its id, so
every reader can check it.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
import traceback
import zlib
from collections.abc import Awaitable, Iterator
from typing import Any, TypeVar

from bookies.errors import BookKeeperError

T = TypeVar("T")


def payload_of(ledger_id: int, entry_id: int) -> bytes:
    """Return the content of an entry. Mostly below 300 bytes, sometimes empty, occasionally up to 200,000 bytes."""
    number = zlib.crc32(b"%d %d" % (ledger_id, entry_id))
    if number % 997 == 0:
        size = 100_000 + number % 100_000
    elif number % 61 == 0:
        size = 4_000 + number % 5_000
    else:
        size = number % 300
    word = b"%d.%d " % (ledger_id, entry_id)
    return (word * (size // len(word) + 1))[:size]


class History:
    """Writer of one client's history."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._operations = 0

    def write(self, event: str, **facts: object) -> None:
        """Append one line. Raises OSError."""
        line = json.dumps({"e": event, **facts}).encode() + b"\n"
        written = os.write(self._descriptor, line)
        if written != len(line):
            raise OSError(f"only {written} of {len(line)} bytes were written to the history")

    def wrong(self, text: str) -> None:
        self.write("wrong", text=text)

    async def attempt(self, operation: str, bound_s: float, work: Awaitable[T]) -> T | None:
        """Run one operation. Return None if it fails with a documented error. `bound_s`: seconds until it must end."""
        self._operations += 1
        number = self._operations
        begin = time.monotonic()
        self.write("begin", op=number, kind=operation, bound_s=bound_s, t=begin)
        outcome = "cancelled"
        try:
            result = await work
            outcome = "ok"
            return result
        except (BookKeeperError, TimeoutError) as error:
            outcome = type(error).__name__
            return None
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001  (every other exception is undocumented)
            outcome = "undocumented"
            trace = "".join(traceback.format_exception(error)).rstrip()
            self.wrong(f"{operation} raised an error that it must not raise: {trace}")
            return None
        finally:
            now = time.monotonic()
            self.write("end", op=number, kind=operation, outcome=outcome, s=round(now - begin, 6), t=now)


class HistoryReader:
    """Reader of one client's history while it grows. An incomplete last line is read later."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
        self._rest = b""

    def read_new(self) -> Iterator[dict[str, Any]]:
        """Yield the lines that were added since the last call."""
        while piece := os.read(self._descriptor, 1 << 20):
            *lines, self._rest = (self._rest + piece).split(b"\n")
            yield from map(json.loads, lines)

    def close(self) -> None:
        os.close(self._descriptor)
