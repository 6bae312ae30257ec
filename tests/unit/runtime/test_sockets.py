"""What the system has of a connection, and the names of this machine."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

from bookies.runtime.sockets import host_names, unacknowledged


class Transport(asyncio.BaseTransport):
    """Of a socket, or of none."""

    def __init__(self, connection: socket.socket | None) -> None:
        super().__init__({} if connection is None else {"socket": connection})


def test_what_a_peer_has_not_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        peer: Any = socket.create_connection(listening.getsockname())
        ours, _ = listening.accept()
        transport = Transport(ours)
        assert unacknowledged(transport) == 0
        ours.setblocking(False)
        sent = 0
        try:
            while True:
                sent += ours.send(bytes(1 << 20))
        except BlockingIOError:
            pass
        assert 0 < unacknowledged(transport) < sent, "its system has taken the rest"
        ours.close()
        peer.close()
        assert unacknowledged(transport) == 0
        assert unacknowledged(Transport(None)) == 0


def test_the_names_of_this_machine() -> None:
    names = host_names()
    assert {"127.0.0.1", "localhost", socket.gethostname()} <= set(names)
    addresses = names[: names.index("localhost")]
    assert [socket.inet_ntoa(socket.inet_aton(address)) for address in addresses] == list(addresses)
    loopback = [address.startswith("127.") for address in addresses]
    assert loopback == sorted(loopback), "loopback is last"
