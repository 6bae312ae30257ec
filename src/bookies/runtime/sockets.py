"""Facts about a connection that the system has and asyncio's transports do not report."""

from __future__ import annotations

import array
import asyncio
import fcntl
import termios


def unacknowledged(transport: asyncio.BaseTransport) -> int:
    """Return the bytes that the peer's system has not acknowledged yet; 0 if unknown (in simulations, or on a closed
    connection).

    A transport reports room only when a large part of its output is sent, which takes long with a slow peer; this
    counts every packet.
    """
    connection = transport.get_extra_info("socket")
    if connection is None:
        return 0
    count = array.array("i", [0])
    try:
        fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, count)
    except (OSError, ValueError):  # The latter reports that it is closed.
        return 0
    return count[0]
