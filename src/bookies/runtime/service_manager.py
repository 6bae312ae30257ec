"""Reports of a process to the service manager that started it: ready, alive, stopping.

The protocol is systemd's sd_notify: datagrams with lines `NAME=VALUE` to the socket that `NOTIFY_SOCKET` names. A loop
that hangs sends none, so systemd restarts the process after `WATCHDOG_USEC`. A start may take any time, as long as the
loop runs: a bookie may have a long journal to replay.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

START_S = 120.0  # between reports of a process that starts; `bk service install` writes the same limit
Send = Callable[[str], None]


class ServiceManager:
    """The service manager of this process. `send`: sends lines to it; None: there is none.

    `watchdog_s`: longest time between two reports of a process that is ready; 0: no limit.
    """

    def __init__(self, send: Send | None, watchdog_s: float = 0.0) -> None:
        self._send = send
        self._watchdog_s = watchdog_s
        self._is_starting = True

    @contextlib.asynccontextmanager
    async def alive(self) -> AsyncIterator[None]:
        """Report regularly during the block that the event loop runs."""
        if self._send is None:
            yield
            return
        task = asyncio.ensure_future(self._report(self._send))
        try:
            yield
        finally:
            task.cancel()

    @contextlib.contextmanager
    def serving(self, status: str) -> Iterator[None]:
        """Report that the process is ready, and at the end of the block that it stops. `status`: one line."""
        self._is_starting = False
        if self._send is not None:
            self._send(f"READY=1\nSTATUS={status}")
        try:
            yield
        finally:
            if self._send is not None:
                self._send("STOPPING=1\nSTATUS=stopping")

    async def _report(self, send: Send) -> None:
        while True:
            if self._is_starting:
                send(f"EXTEND_TIMEOUT_USEC={int(START_S * 1e6)}")
            if self._watchdog_s:
                send("WATCHDOG=1")
            await asyncio.sleep(min(START_S, self._watchdog_s or START_S) / 3)


def service_manager(environment: Mapping[str, str]) -> ServiceManager:
    """Return the service manager that the environment names. Failures to reach it are ignored."""
    path = environment.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return ServiceManager(None)
    address = f"\0{path[1:]}" if path[0] == "@" else path

    def send(text: str) -> None:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.setblocking(False)
            connection.sendto(text.encode(), address)

    is_own = environment.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    microseconds = environment.get("WATCHDOG_USEC", "0")
    return ServiceManager(send, int(microseconds) / 1e6 if is_own and microseconds.isdigit() else 0.0)
