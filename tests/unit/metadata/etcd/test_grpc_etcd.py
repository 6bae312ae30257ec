"""The etcd port on gRPC, as far as it goes without a server; with one: tests/etcd."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bookies.errors import ClientClosed, MetadataError
from bookies.metadata.etcd.etcd_port import Get
from bookies.metadata.etcd.grpc_etcd import GrpcEtcd, is_available

pytestmark = pytest.mark.skipif(not is_available(), reason="needs the extra etcd")


@contextlib.asynccontextmanager
async def silent_server() -> AsyncIterator[GrpcEtcd]:
    """A connection to a server that accepts every request and answers none."""
    import grpc

    class Silent(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            return grpc.stream_stream_rpc_method_handler(self.wait)

        async def wait(self, *_: object) -> None:
            await asyncio.Event().wait()

    server = grpc.aio.server(handlers=[Silent()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    etcd = GrpcEtcd([f"127.0.0.1:{port}"], 200)
    await etcd.open()
    try:
        yield etcd
    finally:
        await etcd.close()
        await server.stop(None)


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


@pytest.mark.parametrize("request_of", ["lease", "transaction"])
def test_a_clock_that_is_set_back_holds_no_request_up(monkeypatch: pytest.MonkeyPatch, request_of: str) -> None:
    """gRPC computes a time limit from the wall clock, which is set back by a day before it uses the limit. The server
    accepts everything and answers nothing."""

    async def main() -> None:
        async with silent_server() as etcd:
            now_s = time.time
            monkeypatch.setattr(time, "time", lambda: now_s() + 86_400)
            with pytest.raises(MetadataError, match="was lost before it answered"):
                async with asyncio.timeout(5):
                    await (etcd.keep_lease(7) if request_of == "lease" else etcd.transact((), [Get("x")]))

    asyncio.run(main())


@pytest.mark.parametrize("iterations", range(10))
def test_a_stream_ends_with_its_connection(iterations: int) -> None:
    """Whatever it has come to when another request finds the connection dead, after some iterations of the loop."""

    async def main() -> None:
        async with silent_server() as etcd:
            stream = await etcd._open_watch_stream()

            async def use() -> None:
                await stream.send(b"")
                await stream.receive()

            using = asyncio.ensure_future(use())
            for _ in range(iterations):
                await asyncio.sleep(0)
            etcd._drop(etcd._connection)
            with pytest.raises(MetadataError, match="was lost before it answered"):
                async with asyncio.timeout(5):
                    await using

    asyncio.run(main())


def test_nothing_is_written_to_stderr() -> None:
    """By gRPC, about refused connections."""
    program = (
        "import asyncio\nfrom bookies.errors import MetadataError\n"
        "from bookies.metadata.etcd.grpc_etcd import GrpcEtcd\n"
        "try:\n    asyncio.run(GrpcEtcd(['127.0.0.1:1'], 300).open())\nexcept MetadataError:\n    print('refused')"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("refused\n", "")
