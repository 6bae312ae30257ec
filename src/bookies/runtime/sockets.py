"""What the system knows of a connection and asyncio's transports do not tell."""

from __future__ import annotations

import array
import asyncio
import fcntl
import termios


def unacknowledged(transport: asyncio.BaseTransport) -> int:
    """Bytes in the system's hands that the peer's system has not taken yet; 0 where nobody can say (in simulations, or
    when the connection is gone).

    A transport hears of room only when a good part of what it left to the system is gone, which with a slow peer takes
    long; here every packet shows.
    """
    connection = transport.get_extra_info("socket")
    if connection is None:
        return 0
    count = array.array("i", [0])
    try:
        fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, count)
    except (OSError, ValueError):  # The latter says that it is closed.
        return 0
    return count[0]
