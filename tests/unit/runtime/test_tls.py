"""TLS where it does not come to a handshake, and the versions that are spoken."""

from __future__ import annotations

import asyncio
import pathlib
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.fakes.certificates import Authority

from bookies.errors import TlsFailed
from bookies.runtime import aio
from bookies.runtime.ports import Encryption, TlsFiles

LOOPS = [asyncio.new_event_loop, aio.new_event_loop]


def server_side(folder: pathlib.Path, **changes: Any) -> Encryption:
    files = Authority(folder).issue("b1")
    settings: dict[str, Any] = {
        "certificate": files.certificate,
        "key": files.key,
        "key_password_file": "",
        "authority": "",
        "checks_peer": False,
        "checks_host_name": False,
        "version_min": "1.2",
        "ciphers": "",
        "reload_interval_s": 1.0,
    }
    make = aio.runtime().tls
    assert make is not None
    return make(TlsFiles(**(settings | changes)), True)


class Accepted(asyncio.Protocol):
    """The bookie's side of a connection; `made` has its transport."""

    def __init__(self, made: asyncio.Future[asyncio.Transport]) -> None:
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._made.set_result(transport)  # type: ignore[arg-type]


def with_connection(
    loop: Callable[[], asyncio.AbstractEventLoop],
    body: Callable[[asyncio.Transport, asyncio.StreamWriter], Coroutine[Any, Any, None]],
) -> None:
    async def main() -> None:
        made: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()
        server = await asyncio.get_running_loop().create_server(lambda: Accepted(made), "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        transport = await made
        try:
            await asyncio.wait_for(body(transport, writer), 30)
        finally:
            writer.transport.abort()
            transport.abort()
            server.close()
            await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "fastest"])
@pytest.mark.parametrize("received", [b"", b"\x16\x03\x01"])
def test_a_connection_that_is_gone(
    tmp_path: pathlib.Path, loop: Callable[[], asyncio.AbstractEventLoop], received: bytes
) -> None:
    side = server_side(tmp_path)

    async def body(transport: asyncio.Transport, writer: asyncio.StreamWriter) -> None:
        transport.abort()
        with pytest.raises(TlsFailed, match="the connection was closed"):
            await side.encrypt(transport, asyncio.Protocol(), received=received)

    with_connection(loop, body)


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "fastest"])
def test_a_peer_that_leaves_in_the_middle(
    tmp_path: pathlib.Path, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    side = server_side(tmp_path)

    async def body(transport: asyncio.Transport, writer: asyncio.StreamWriter) -> None:
        shaking = asyncio.ensure_future(side.encrypt(transport, asyncio.Protocol(), received=b"\x16\x03\x01\x02"))
        await asyncio.sleep(0)
        writer.transport.abort()
        with pytest.raises(TlsFailed):
            await shaking

    with_connection(loop, body)


@pytest.mark.parametrize("version_min", ["1.2", "1.3"])
def test_the_oldest_version(tmp_path: pathlib.Path, version_min: str) -> None:
    side = server_side(tmp_path, version_min=version_min)

    async def body(transport: asyncio.Transport, writer: asyncio.StreamWriter) -> None:
        context = ssl.create_default_context(cafile=str(tmp_path / "authority.pem"))
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.verify_flags |= ssl.VERIFY_X509_STRICT  # Python 3.13 sets it.
        asked = asyncio.ensure_future(writer.start_tls(context, server_hostname="localhost"))
        if version_min == "1.3":
            with pytest.raises(TlsFailed, match="unsupported protocol"):
                await side.encrypt(transport, asyncio.Protocol())
            with pytest.raises(OSError):
                await asked
        else:
            encrypted = await side.encrypt(transport, asyncio.Protocol())
            await asked
            assert encrypted.get_extra_info("cipher")[1] == "TLSv1.2"
            encrypted.abort()

    with_connection(aio.new_event_loop, body)
