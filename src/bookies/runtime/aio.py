"""The ports on asyncio and the operating system, and the start of a process's main coroutine.

uvloop is used when it is installed, because it halves the cost of a socket read; `BK_UVLOOP=0` turns it off.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from bookies.runtime.files import OsDisk
from bookies.runtime.memory import collect_rarely, keep_freed_memory
from bookies.runtime.ports import Encryption, Kerberos, Runtime, TlsFiles
from bookies.runtime.programs import output_of, start_program
from bookies.runtime.sockets import host_names
from bookies.runtime.threads import ThreadWorkers

T = TypeVar("T")

BACKLOG = 1024  # connections that the system accepts before the process does
NOT_SENT_MAX = 512 * 1024
# Seconds that a thread returning from the device waits at most for a busy loop to yield the interpreter.
SWITCH_INTERVAL = 0.00005


class SystemClock:
    """See `ports.Clock`."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    monotonic = staticmethod(time.monotonic)
    # Where there is no such clock, the monotonic one of the system does not stand still.
    with_sleep = staticmethod(
        functools.partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
    )


class AsyncioListener:
    """See `ports.Listener`."""

    def __init__(self, server: asyncio.Server, address: tuple[str, int]) -> None:
        self._server = server
        self.address = address

    def close(self) -> None:
        self._server.close()

    async def wait_closed(self) -> None:
        # Closing takes effect in the loop's next iteration. `Server.wait_closed` would wait for the accepted
        # connections too (since Python 3.12), which their owner closes.
        await asyncio.sleep(0)


class AsyncioNetwork:
    """TCP without Nagle's delay and with keep-alive. The system tunes the buffer sizes.

    Accepted connections leave at most `NOT_SENT_MAX` unsent bytes to the system, so that a peer that consumes nothing
    is noticed at once and not after megabytes.
    """

    async def connect(
        self, host: str, port: int, protocol_factory: Callable[[], asyncio.BaseProtocol]
    ) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        try:
            transport, protocol = await asyncio.get_running_loop().create_connection(protocol_factory, host, port)
        except (UnicodeError, OverflowError) as error:  # A bookie may publish any address.
            raise OSError(f"{host!r}, port {port}, is no address: {error}") from error
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return transport, protocol

    async def listen(
        self, host: str, port: int, protocol_factory: Callable[[], asyncio.BaseProtocol]
    ) -> AsyncioListener:
        loop = asyncio.get_running_loop()
        addresses = await loop.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, socket_type, protocol, _, address = addresses[0]
        listening = socket.socket(family, socket_type, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Accepted sockets inherit the following options.
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with contextlib.suppress(AttributeError, OSError):  # Not every system supports it.
                listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, NOT_SENT_MAX)
            listening.setblocking(False)
            listening.bind(address)
            bound = listening.getsockname()
            server = await loop.create_server(protocol_factory, sock=listening, backlog=BACKLOG)
        except BaseException:
            listening.close()
            raise
        return AsyncioListener(server, (bound[0], bound[1]))


def runtime(seed: int | None = None) -> Runtime:
    """Return the ports of the real world. `seed`: of the random numbers, for repeatable choices; None:
    unpredictable."""
    chosen = random.Random(seed) if seed is not None else random.SystemRandom()
    clock = SystemClock()

    def tls(files: TlsFiles, is_server: bool) -> Encryption:
        # imported here, because loading OpenSSL takes longer than most commands
        from bookies.runtime.tls import TlsSide

        return TlsSide(files, is_server, clock)

    @functools.cache  # It remembers the calls in progress.
    def kerberos() -> Kerberos:
        from bookies.runtime.kerberos import SystemKerberos

        return SystemKerberos()

    ports = clock, AsyncioNetwork(), OsDisk(), ThreadWorkers(), chosen
    return Runtime(*ports, tls, output_of, host_names(), kerberos, start_program)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop: uvloop's when it is installed, unless `BK_UVLOOP=0`."""
    if os.environ.get("BK_UVLOOP", "1") != "0":
        try:
            import uvloop
        except ImportError:
            pass
        else:
            loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
            return loop
    return asyncio.new_event_loop()


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run the main coroutine of a process to its end and return its result, like `asyncio.run`, but faster.

    For a process that is mostly client or bookie: it uses uvloop where that is installed (`BK_UVLOOP=0`: not),
    collects cycles of garbage every 20,000 objects, keeps freed buffers of up to 32 MiB, and lets threads wait for
    the interpreter 50 us at most. These settings stay after the end. `PYTHONASYNCIODEBUG=1` turns on asyncio's
    checks.
    """
    sys.setswitchinterval(SWITCH_INTERVAL)
    keep_freed_memory()
    collect_rarely()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
