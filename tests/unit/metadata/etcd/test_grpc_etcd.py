"""The etcd port on gRPC, as far as it goes without a server; with one: tests/etcd."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys

import pytest

from bookies.errors import ClientClosed, MetadataError
from bookies.metadata.etcd.etcd_port import Get
from bookies.metadata.etcd.grpc_etcd import GrpcEtcd, is_available

pytestmark = pytest.mark.skipif(not is_available(), reason="needs the extra etcd")


def test_nobody_there() -> None:
    """A port that nobody listens at, and one that never answers: an error in time."""

    async def main(*ports: int) -> None:
        etcd = GrpcEtcd([f"127.0.0.1:{port}" for port in ports], 500)
        with pytest.raises(MetadataError, match=r"no etcd server at 127.0.0.1:\d+,127.* has answered for 0.5 s"):
            await etcd.open()
        with pytest.raises(ClientClosed):
            await etcd.transact((), [Get("x")])
        etcd.watch("x", None, 1, lambda: pytest.fail("it is closed"))
        await etcd.close()

    with socket.socket() as taken, socket.socket() as silent:  # one is bound, and not listening
        for each in (taken, silent):
            each.bind(("127.0.0.1", 0))
        silent.listen()
        asyncio.run(main(taken.getsockname()[1], silent.getsockname()[1]))


def test_opening_can_be_cancelled() -> None:
    async def main(port: int) -> None:
        etcd = GrpcEtcd([f"127.0.0.1:{port}"], 5000)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await etcd.open()

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        asyncio.run(main(silent.getsockname()[1]))


def test_nothing_is_written_to_stderr() -> None:
    """By gRPC, about refused connections."""
    program = (
        "import asyncio\nfrom bookies.errors import MetadataError\n"
        "from bookies.metadata.etcd.grpc_etcd import GrpcEtcd\n"
        "try:\n    asyncio.run(GrpcEtcd(['127.0.0.1:1'], 300).open())\nexcept MetadataError:\n    print('refused')"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("refused\n", "")
