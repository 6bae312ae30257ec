"""Handler for kazoo's threads with fewer hand-overs. Imported only if kazoo is installed.

Kazoo's own handler runs completions on one more thread and watches on another, because they might block. Ours only post
to the event loop, so the thread that reads the connection calls them directly. They arrive in the order in which the
server sent them, a watch before data read after the change, and each costs half the processor time.
"""

from __future__ import annotations

import math
import select
import ssl
from collections.abc import Sequence
from typing import Any

from kazoo.handlers.threading import AsyncResult, SequentialThreadingHandler


class Result(AsyncResult):  # type: ignore[misc]
    """A result whose linked callbacks run on the thread that sets it."""

    def _do_callbacks(self) -> None:
        for callback in self._callbacks:
            callback(self)


class Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """Kazoo's handler, see the module. Callbacks linked to a result, and watches, must not block or raise."""

    def async_result(self) -> Result:
        return Result(self)

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

    def select(
        self, readable: Sequence[Any], writable: Sequence[Any], exceptional: Sequence[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait like `select.select`, for any file descriptor, in one system call.

        A TLS socket with decrypted data counts as readable. Kazoo waits for the socket alone, and would otherwise leave
        the second of two answers that arrive together until more data arrives.
        """
        decrypted = [file for file in readable if isinstance(file, ssl.SSLSocket) and file.pending()]
        if decrypted:
            return decrypted, [], []
        wanted: dict[int, int] = {}
        for files, event in ((readable, select.POLLIN), (writable, select.POLLOUT)):
            for file in files:
                wanted[file.fileno()] = wanted.get(file.fileno(), 0) | event
        poll = select.poll()
        for descriptor, events in wanted.items():
            poll.register(descriptor, events)
        ready = dict(poll.poll(None if timeout is None else math.ceil(timeout * 1000)))
        return (
            [file for file in readable if ready.get(file.fileno(), 0) & ~select.POLLOUT],  # an error counts as both
            [file for file in writable if ready.get(file.fileno(), 0) & ~select.POLLIN],
            [],
        )
