"""Facts that the system has and asyncio does not report: of a connection, and the names of this machine."""

from __future__ import annotations

import array
import asyncio
import fcntl
import socket
import struct
import termios

_SIOCGIFADDR = 0x8915
_ADDRESS = slice(20, 24)  # in an `ifreq` with an IPv4 address


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


def host_names() -> tuple[str, ...]:
    """Return the IPv4 addresses of this machine, loopback last, and its name. Asks no name server."""
    addresses = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, interface in socket.if_nameindex():
            request = struct.pack("256s", interface.encode()[:15])
            try:
                reply = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:  # It has no IPv4 address.
                continue
            addresses.append(socket.inet_ntoa(reply[_ADDRESS]))
    addresses.sort(key=lambda address: address.startswith("127."))
    return (*addresses, "localhost", socket.gethostname())
