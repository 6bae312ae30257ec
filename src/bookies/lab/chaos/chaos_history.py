"""What the clients of `bk chaos` write down, one JSON object a line, each in a file of its own.

    {"e": "begin", "op": N, "kind": K, "bound_s": B, "t": T, ...}   an operation begins; it has to end within B seconds
    {"e": "end", "op": N, "kind": K, "outcome": "ok" or an error's name, "s": seconds, "t": T}
    {"e": "started", "ledger": L, "last": E}                   entries up to E are about to be appended
    {"e": "acked", "ledger": L, "first": E, "last": E}         the client was told that they are durable
    {"e": "seen", "ledger": L, "last": E}                      a read returned the entries up to E, all as written
    {"e": "end_of", "ledger": L, "last": E, "length": bytes}   the client was told that the ledger ends there
    {"e": "wrong", "text": ...}                                what the client itself found broken

`t` is the system's monotonic clock, which all processes share. A line is handed to the system, whole, before anything
follows from it, so killing the process loses no line that counts. The content of an entry follows from its ledger and
its id: whoever reads it knows what it has to be.
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
    """The bytes that entry has, if it exists. Mostly below 300 bytes, sometimes none, now and then large."""
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
    """One client's file, for the client itself."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._operations = 0

    def say(self, event: str, **facts: object) -> None:
        line = json.dumps({"e": event, **facts}).encode() + b"\n"
        written = os.write(self._descriptor, line)
        if written != len(line):
            raise OSError(f"the history took {written} of {len(line)} bytes")

    def wrong(self, text: str) -> None:
        self.say("wrong", text=text)

    async def attempt(self, kind: str, bound_s: float, work: Awaitable[T]) -> T | None:
        """Do one operation; None when it fails as operations may. `bound_s`: seconds in which it has to end."""
        self._operations += 1
        number = self._operations
        begin = time.monotonic()
        self.say("begin", op=number, kind=kind, bound_s=bound_s, t=begin)
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
        except Exception as error:  # noqa: BLE001  (whatever it is: it is none that the documentation names)
            outcome = "undocumented"
            self.wrong(f"{kind} raised what it must not: {''.join(traceback.format_exception(error)).rstrip()}")
            return None
        finally:
            now = time.monotonic()
            self.say("end", op=number, kind=kind, outcome=outcome, s=round(now - begin, 6), t=now)


class HistoryReader:
    """One client's file, for whoever checks it while it grows. Lines without an end are left for later."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CREAT, 0o644)
        self._rest = b""

    def read_new(self) -> Iterator[dict[str, Any]]:
        """The facts that were added since the last call."""
        while piece := os.read(self._descriptor, 1 << 20):
            *lines, self._rest = (self._rest + piece).split(b"\n")
            yield from map(json.loads, lines)

    def close(self) -> None:
        os.close(self._descriptor)
