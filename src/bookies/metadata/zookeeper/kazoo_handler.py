"""The threads that kazoo works on, with fewer hand-overs. Imported only where kazoo is.

Kazoo's own handler gives completions to one more thread and watches to another, because they might block. Ours only
post to the event loop, so the thread that reads the connection calls them itself: they come in the order in which the
server sent them, a watch before what was read after the change, and each costs half the processor time.
"""

from __future__ import annotations

import math
import select
import ssl
from collections.abc import Sequence
from typing import Any

from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler


class Result(AsyncResult):  # type: ignore[misc]
    """Whoever is linked is called by the thread that sets it."""

    def _do_callbacks(self) -> None:
        for callback in self._callbacks:
            callback(self)


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """See the module. What is linked to a result, and watches, must not block or raise."""

    def async_result(self) -> Result:
        return Result(self)

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

    def select(
        self, readable: Sequence[Any], writable: Sequence[Any], exceptional: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """As `select.select`, for any file descriptor, in one call of the system.

        What TLS has decrypted already counts as readable: kazoo waits for the socket alone, and so would leave the
        second of two answers that come together until something else arrives.
        """
        decrypted = [each for each in readable if isinstance(each, ssl.SSLSocket) and each.pending()]
        if decrypted:
            return decrypted, [], []
        wanted: dict[int, int] = {}
        for files, event in ((readable, select.POLLIN), (writable, select.POLLOUT)):
            for each in files:
                wanted[each.fileno()] = wanted.get(each.fileno(), 0) | event
        poll = select.poll()
        for descriptor, events in wanted.items():
            poll.register(descriptor, events)
        ready = dict(poll.poll(None if timeout is None else math.ceil(timeout * 1000)))
        return (
            [each for each in readable if ready.get(each.fileno(), 0) & ~select.POLLOUT],  # an error counts as both
            [each for each in writable if ready.get(each.fileno(), 0) & ~select.POLLIN],
            [],
        )
