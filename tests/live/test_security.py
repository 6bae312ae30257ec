"""TLS and authentication between our clients and our bookies, over real sockets, on both event loops."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import os
import pathlib
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from tests.fakes.certificates import Authority, Files

import bookies as bk
from bookies.admin.verbs.tls_doctor import of_bookie
from bookies.bookie.server import BookieServer
from bookies.bookie.transport.connection import Connection
from bookies.bookie.transport.secure_connection import SecureConnection
from bookies.config import BookieConfig, validate
from bookies.encoding.digest_md5 import DigestMd5Client, secret_of_password
from bookies.errors import BookieUnreachable, Status, TlsFailed, Unauthorized
from bookies.metadata.uri import connect as connect_metadata
from bookies.model import BookieId
from bookies.runtime import aio
from bookies.wire.client import ResponseDecoder, encode_request
from bookies.wire.messages import (
    AuthRequest,
    AuthResponse,
    BareResponse,
    Operation,
    ReadLacRequest,
    ReadRequest,
    ReadResponse,
    Request,
    Response,
    StartTlsRequest,
    StartTlsResponse,
)
from bookies.wire.sasl import MECHANISMS
from bookies.wire.sasl.scram import verifier_of

pytestmark = pytest.mark.live

PATIENCE_S = 60.0
SIZE_MAX = 5 << 20
HOUR = datetime.timedelta(hours=1)
BEFORE = -10 * datetime.timedelta(days=1)
LOOPS = [asyncio.new_event_loop, aio.new_event_loop]


def user_lines(user: str, password: str) -> str:
    """Return a user's lines of the file of users."""
    digest_md5 = secret_of_password(user, password).hex()
    return f"{user} writer {verifier_of(password, b'salt').text}\n{user} writer digest-md5:{digest_md5}\n"


class Place:
    """A folder for one bookie, its metadata and certificates."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.uri = f"file:{folder}/metadata"
        self.authority = Authority(folder)
        self.certificate = self.authority.issue("bookie")
        (folder / "metadata").mkdir()

    def file(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return str(self.folder / name)

    def tls(self, **more: Any) -> dict[str, Any]:
        """Settings of a bookie with TLS."""
        return {"tls_certificate": self.certificate.certificate, "tls_key": self.certificate.key} | more

    def mutual(self, **more: Any) -> dict[str, Any]:
        return self.tls(tls_client_certificates=True, tls_authority=self.authority.path) | more

    def sasl(self, **more: Any) -> dict[str, Any]:
        users = self.file("users", user_lines("bookkeeper-app", 'pass "wörd€') + user_lines("other", "0ther"))
        return {"authentication": "sasl", "users_file": users, "sasl_allowed_ids": ".*bookkeeper.*"} | more

    def credentials(
        self, user: str = "bookkeeper-app", password: str = 'pass \\"wörd€', mechanism: str = "DIGEST-MD5"
    ) -> str:
        lines = f'username = "{user}"\npassword = "{password}"\nmechanism = "{mechanism}"\n'
        return self.file(f"{user}-{len(password)}-{mechanism}.toml", lines)

    def encrypted(self, files: Files | None = None, **more: Any) -> dict[str, Any]:
        """Settings of a client with TLS."""
        own = {"tls_certificate": files.certificate, "tls_key": files.key} if files else {}
        return {"tls": True, "tls_authority": self.authority.path} | own | more

    @contextlib.asynccontextmanager
    async def bookie(self, **settings: Any) -> AsyncIterator[BookieServer]:
        runtime = aio.runtime()
        driver = connect_metadata(self.uri, runtime)
        await driver.open()
        await driver.initialize_cluster()
        config = BookieConfig(
            bookie_id="b1",
            port=0,
            journal_directories=(f"{self.folder}/journal",),
            ledger_directories=(f"{self.folder}/ledgers",),
            journal_preallocate_size=1 << 20,
            control=False,
            **settings,
        )
        server = BookieServer(runtime, validate(config), driver)
        await server.start()
        try:
            yield server
        finally:
            await server.stop()
            await driver.close()

    async def use(self, **settings: Any) -> None:
        """Write and read a ledger with a client of these settings."""
        async with bk.connect(self.uri, **settings) as store:
            payloads = [os.urandom(size) for size in (10, 300_000, 1)]
            async with store.create(ensemble=1, write_quorum=1, ack_quorum=1, password=b"x") as ledger:
                await ledger.append_many(payloads)
            async with store.open(ledger.ledger_id, password=b"x") as reader:
                assert [entry.payload async for entry in reader.read(0, 2)] == payloads
            await store.bookie_space(BookieId("b1"))  # always v3


@pytest.fixture
def place(tmp_path: pathlib.Path) -> Place:
    return Place(tmp_path)


def run(body: Coroutine[Any, Any, None], loop: Callable[[], asyncio.AbstractEventLoop] = aio.new_event_loop) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(asyncio.wait_for(body, PATIENCE_S))


class Raw:
    """A peer that sends what it likes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connect(cls, server: BookieServer) -> Raw:
        return cls(*await asyncio.open_connection(*server.address))

    def send(self, *requests: Request) -> None:
        self.writer.write(b"".join(bytes(part) for request in requests for part in encode_request(request)))

    async def response(self, wire: str = "v3") -> Response:
        head = await self.reader.readexactly(4)
        frame = head + await self.reader.readexactly(int.from_bytes(head, "big"))
        (response,) = ResponseDecoder(wire, SIZE_MAX).feed(frame)
        return response

    async def ask(self, request: Request) -> Response:
        self.send(request)
        return await self.response("v3" if request.version == 3 else "v2")

    async def encrypt(self, place: Place) -> None:
        await self.writer.start_tls(
            ssl.create_default_context(cafile=place.authority.path), server_hostname="localhost"
        )

    async def is_closed(self) -> bool:
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True

    async def is_refused(self) -> bool:
        """Ask for something; whether the connection has ended meanwhile."""
        try:
            await self.ask(ReadLacRequest(3, 1, 1))
        except (asyncio.IncompleteReadError, ConnectionError):
            return True
        return False

    def close(self) -> None:
        self.writer.close()


# -- what works -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "fastest"])
@pytest.mark.parametrize("wire", ["v2", "v3"])
def test_everything_at_once(place: Place, wire: str, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Mutual TLS and SASL, with a user and password that are not ASCII and full of quotes."""

    async def body() -> None:
        own = place.authority.issue("client")
        async with place.bookie(**place.mutual(), **place.sasl(tls_required=True)) as server:
            await place.use(wire=wire, sasl_file=place.credentials(), **place.encrypted(own))
            assert server.describe()["peers_refused"] is None

    run(body(), loop)


@pytest.mark.parametrize("wire", ["v2", "v3"])
def test_tls_alone_and_plain_peers_beside_it(place: Place, wire: str) -> None:
    async def body() -> None:
        async with place.bookie(**place.tls()):
            await place.use(wire=wire, **place.encrypted())
            await place.use(wire=wire)

    run(body())


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "fastest"])
def test_tls_from_the_first_byte(place: Place, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def body() -> None:
        async with place.bookie(**place.tls(tls_port=0, tls_required=True)) as server:
            assert server.tls_address is not None
            await place.use(tls_port=server.tls_address[1], **place.encrypted())
            with pytest.raises(bk.BookKeeperError):  # plain text, where TLS is expected
                await place.use(connect_timeout_ms=1000)

    run(body(), loop)


def hello_in_pieces(address: tuple[str, int], before: bytes, pieces: int) -> str:
    """Shake hands on a thread, with the first message sent in one breath with what comes before it, and in pieces."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    received, sent = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(received, sent)
    with socket.create_connection(address, timeout=PATIENCE_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(before)
        answer = b"" if not before else connection.recv(1000)
        assert len(answer) < 1000
        while True:
            try:
                tls.do_handshake()
                connection.sendall(sent.read())
                return tls.version() or ""
            except ssl.SSLWantReadError:
                data = sent.read()
                size = -(-len(data) // pieces)
                for at in range(0, len(data), size or 1):
                    connection.sendall(data[at : at + size])
                received.write(connection.recv(65536))


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "fastest"])
def test_a_handshake_that_comes_faster_than_anybody_looks(
    place: Place, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """Bytes that are there before TLS is: all of the first message, or the rest of it right after its beginning."""
    start = b"".join(map(bytes, encode_request(StartTlsRequest(3, 1))))

    async def body() -> None:
        async with place.bookie(**place.tls(tls_port=0)) as server:
            assert server.tls_address is not None
            for address, before in ((server.tls_address, b""), (server.address, start)):
                for pieces in (1, 1, 2, 5, 100):
                    found = await asyncio.to_thread(hello_in_pieces, address, before, pieces)
                    assert found == "TLSv1.3"

    run(body(), loop)


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "fastest"])
def test_a_client_hears_that_its_certificate_is_the_reason(
    place: Place, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """In TLS 1.3 the handshake is over for the client before the bookie has looked at what it shows."""
    (place.folder / "foreign").mkdir()
    foreign = Authority(place.folder / "foreign", "foreign").issue("app")

    async def body() -> None:
        async with place.bookie(**place.mutual()):
            for shown in (None, foreign):
                async with bk.connect(place.uri, **place.encrypted(shown)) as store:
                    with pytest.raises(TlsFailed, match="it requires a certificate, or another one"):
                        await store.bookie_space(BookieId("b1"))

    run(body(), loop)


def test_strangers_do_not_keep_their_connections(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is silent, or goes on being refused, makes room for those who are known."""
    monkeypatch.setattr("bookies.bookie.transport.secure_connection.GATE_S", 0.3)

    async def body() -> None:
        for settings, reason in (
            (place.sasl(), "it has not authenticated in time"),
            (place.tls(tls_required=True), "its connection is not encrypted in time"),
        ):
            async with place.bookie(**settings) as server:
                silent, refused = await Raw.connect(server), await Raw.connect(server)
                for _ in range(1000):
                    if await refused.is_refused():
                        break
                    await asyncio.sleep(0.02)
                assert await silent.is_closed()
                assert server._reception.security is not None
                assert server._reception.security.refusals[reason] == 2
                silent.close()
                refused.close()
        async with (
            place.bookie(**place.sasl()),
            bk.connect(place.uri, sasl_file=place.credentials()) as store,
            store.create(ensemble=1, write_quorum=1, ack_quorum=1) as ledger,
        ):
            for _ in range(4):
                await ledger.append(b"x")
                await asyncio.sleep(0.1)

    run(body())


def test_a_peer_that_asks_for_tls_and_says_no_more(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bookies.bookie.transport.secure_connection.HANDSHAKE_S", 0.05)

    async def body() -> None:
        async with place.bookie(**place.tls(tls_port=0)) as server:
            raw = await Raw.connect(server)
            assert isinstance(await raw.ask(StartTlsRequest(3, 1)), StartTlsResponse)
            assert server.tls_address is not None
            reader, writer = await asyncio.open_connection(*server.tls_address)
            assert await reader.read() == b""
            writer.close()
            while len(server._reception.intake.connections()) > 0:
                raw.close()
                await asyncio.sleep(0.01)
            assert server._reception.security is not None
            assert server._reception.security.refusals == {"it did not begin the TLS handshake in time": 2}

    run(body())


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "fastest"])
@pytest.mark.parametrize("wire", ["v2", "v3"])
def test_sasl_without_tls(place: Place, wire: str, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def body() -> None:
        async with place.bookie(**place.sasl()):
            await place.use(wire=wire, sasl_file=place.credentials())
            await place.use(wire=wire, sasl_file=place.credentials(mechanism="SCRAM-SHA-256"))
            with pytest.raises(bk.ConfigError, match="PLAIN sends the password, so it needs tls = true"):
                await place.use(wire=wire, sasl_file=place.credentials(mechanism="PLAIN"))

    run(body(), loop)


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "fastest"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_sasl_inside_tls(place: Place, mechanism: str, loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def body() -> None:
        async with place.bookie(**place.tls(), **place.sasl(tls_required=True)):
            for wire in ("v2", "v3"):
                settings = place.encrypted(wire=wire)
                await place.use(**settings, sasl_file=place.credentials(mechanism=mechanism))
                with pytest.raises(bk.BookKeeperError):
                    await place.use(**settings, sasl_file=place.credentials(password="wrong", mechanism=mechanism))

    run(body(), loop)


def test_the_gate_is_gone_once_it_is_open(place: Place) -> None:
    """A peer that is served has no gate before it, only the service of its user."""

    async def body() -> None:
        async with place.bookie() as server:
            raw = await Raw.connect(server)
            await raw.ask(ReadLacRequest(3, 1, 1))
            (connection,) = server._reception.intake.connections()
            assert type(connection) is Connection
            raw.close()
        async with place.bookie(**place.sasl()) as server:
            raw, client = await Raw.connect(server), DigestMd5Client("bookkeeper-app", 'pass "wörd€', "abc")
            challenge = await raw.ask(AuthRequest(3, 1, "sasl", b""))
            (connection,) = server._reception.intake.connections()
            assert isinstance(connection, SecureConnection)
            gate = connection._service
            assert isinstance(challenge, AuthResponse)
            await raw.ask(AuthRequest(3, 2, "sasl", client.respond(challenge.payload)))
            assert connection._service is connection._user_service is not gate
            raw.close()

    run(body())


def test_what_a_peer_says_of_itself_is_printable(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        async with place.bookie(**place.sasl()) as server:
            raw = await Raw.connect(server)
            await raw.ask(AuthRequest(3, 1, "\x1b[2J\r\nkerberos", b""))
            raw.close()

    run(body())
    (line,) = [message for message in caplog.messages if "kerberos" in message]
    assert line.isprintable()


def test_the_command_takes_it_from_the_environment(place: Place) -> None:
    own = place.authority.issue("client")
    settings = place.encrypted(own) | {"sasl_file": place.credentials()}
    environment = os.environ | {f"BK_{name.upper()}": str(value) for name, value in settings.items()}

    def bk_command(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "bookies", *words, "--metadata", place.uri]
        return subprocess.run(command, input=text, capture_output=True, text=True, env=environment, check=False)

    async def body() -> None:
        async with place.bookie(**place.mutual(), **place.sasl(tls_required=True)):
            replicas = ("--ensemble", "1", "--write-quorum", "1", "--ack-quorum", "1")
            written = await asyncio.to_thread(bk_command, "ledger", "append", "--new", *replicas, text="a\nb\n")
            assert written.returncode == 0, written.stderr
            read = await asyncio.to_thread(bk_command, "ledger", "read", written.stdout.split()[0])
            assert read.stdout == "a\nb\n"
            found = await asyncio.to_thread(bk_command, "doctor", "tls")
            assert found.returncode == 0, found.stdout
            assert "it also requires a user or a role" in found.stdout
            environment["BK_TLS"] = "false"
            refused = await asyncio.to_thread(bk_command, "ledger", "list")
            assert (refused.returncode, "tls = true" in refused.stderr) == (2, True)

    run(body())


def test_a_client_that_authenticates_with_a_bookie_that_does_not_ask(place: Place) -> None:
    async def body() -> None:
        async with place.bookie():
            await place.use(sasl_file=place.credentials())

    run(body())


def test_roles(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """The first role of item 0 of the first OU counts. Source: wire-protocol 5.3."""
    admin = place.authority.issue("admin", units=("0:broker,other;1:cluster", "0:nothing"))
    other = place.authority.issue("other", units=("0:other,broker",))
    nobody = place.authority.issue("nobody")

    async def body() -> None:
        roles = {"authentication": "certificate", "authorized_roles": ("broker",)}
        async with place.bookie(**place.mutual(), **roles) as server:
            await place.use(**place.encrypted(admin))
            for files in (other, nobody):
                with pytest.raises(Unauthorized):
                    await place.use(**place.encrypted(files))
            with pytest.raises(Unauthorized):
                await place.use()
            assert "first role" in str(server.describe()["peers_refused"])

    run(body())
    refused = [message for message in caplog.messages if message.startswith("peer.refused")]
    assert any("first role" in each and "commonName=other" in each for each in refused)
    assert any("names no roles" in each for each in refused)
    assert any("has not authenticated" in each for each in refused)


@pytest.mark.parametrize("name", ["jks", "p12"])
def test_key_stores(place: Place, name: str) -> None:
    stores = pathlib.Path(__file__).parents[1] / "golden" / "key-stores"
    password = place.file("store-password", "changeit\n")
    identity = {"tls_certificate": f"{stores}/identity.{name}", "tls_key_password_file": password}
    trust = {"tls_authority": f"{stores}/trust.{name}", "tls_authority_password_file": password}

    async def body() -> None:
        settings = identity | trust | {"tls_client_certificates": True, "tls_required": True}
        async with place.bookie(**settings, authentication="certificate", authorized_roles=("app",)) as server:
            await place.use(tls=True, **identity, **trust)
            with pytest.raises(bk.BookKeeperError, match="certificate is not accepted"):
                await place.use(**place.encrypted(place.authority.issue("stranger")))
            assert "valid until" in str(server.describe()["tls"])

    run(body())


def test_certificates_of_users(place: Place) -> None:
    """A user has the rights of its lines; whose certificate names an authorized role only has all of them."""
    reader, writer, broker = (
        place.authority.issue(name, units=("0:broker",)) for name in ("reader", "writer", "broker")
    )
    lines = [
        f"{name} {name} certificate:commonName={name}, organizationalUnitName=0:broker" for name in ("reader", "writer")
    ]

    async def body() -> None:
        users = place.file("users", "\n".join(lines))
        async with place.bookie(**place.mutual(), authentication="certificate", users_file=users) as server:
            await place.use(**place.encrypted(writer))
            for files in (reader, broker):
                with pytest.raises(Unauthorized):
                    await place.use(**place.encrypted(files))
            assert server.rights.denials.count >= 1
        roles = {"authentication": "certificate", "authorized_roles": ("broker",), "users_file": users}
        async with place.bookie(**place.mutual(), **roles):
            await place.use(**place.encrypted(broker))
            with pytest.raises(Unauthorized):
                await place.use(**place.encrypted(reader))

    run(body())


# -- what is refused --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("user", "password", "reason"),
    [
        ("bookkeeper-app", "wrong", "wrong user or password"),
        ("bookkeeper-none", "wrong", "wrong user or password"),
        ("other", "0ther", "does not match sasl_allowed_ids"),
    ],
)
@pytest.mark.parametrize("wire", ["v2", "v3"])
def test_bad_credentials(
    place: Place, user: str, password: str, reason: str, wire: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def body() -> None:
        async with place.bookie(**place.sasl()) as server:
            # v2 has no word for a refusal: the connection is closed.
            kind = Unauthorized if wire == "v3" else bk.BookKeeperError
            for _ in range(2):
                with pytest.raises(kind) as caught:
                    await place.use(wire=wire, sasl_file=place.credentials(user, password))
                assert password not in str(caught.value).split()
            assert reason in str(server.describe()["peers_refused"])

    run(body())
    assert len([message for message in caplog.messages if reason in message]) == 1
    assert "wörd" not in caplog.text


def test_certificates_that_are_not_accepted(place: Place, tmp_path: pathlib.Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    stranger = Authority(tmp_path / "elsewhere", "stranger")
    ours = place.authority.issue("client")
    expired = place.authority.issue("expired", begins=BEFORE, ends=-HOUR)
    foreign = stranger.issue("foreign")
    other_host = place.authority.issue("other-host", hosts=("bookie.example",))

    async def refused(why: str, **settings: Any) -> None:
        with pytest.raises(bk.BookKeeperError) as caught:
            await place.use(**settings)
        texts = str(caught.value) + str([str(each) for each in getattr(caught.value, "causes", {}).values()])
        assert why in texts

    async def body() -> None:
        async with place.bookie(**place.mutual()) as server:
            await place.use(**place.encrypted(ours))
            await refused("", **place.encrypted())
            await refused("", **place.encrypted(expired))
            await refused("", **place.encrypted(foreign))
            await refused(
                "self-signed certificate in certificate chain",
                **(place.encrypted(ours) | {"tls_authority": stranger.path}),
            )
            reasons = str(server.describe()["peers_refused"])
            assert "certificate has expired" in reasons
            assert "peer did not return a certificate" in reasons
            assert "unable to get local issuer certificate" in reasons
        shown = {"tls_certificate": expired.certificate, "tls_key": expired.key}
        async with place.bookie(**shown):
            await refused("certificate has expired", **place.encrypted())
        shown = {"tls_certificate": other_host.certificate, "tls_key": other_host.key}
        async with place.bookie(**shown):
            await refused("127.0.0.1", **place.encrypted())
            await place.use(**place.encrypted(tls_check_host_name=False))
        async with place.bookie():
            await refused("does not offer TLS", **place.encrypted())

    run(body())


def test_who_does_not_encrypt_is_told_so_and_nothing_else(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Table of wire-protocol 5.1, on a bookie that requires TLS."""

    async def body() -> None:
        async with place.bookie(**place.tls(tls_required=True)) as server:
            raw = await Raw.connect(server)
            assert await raw.ask(ReadLacRequest(3, 7, 1)) == BareResponse(3, 7, Operation.READ_LAC, Status.UNAUTHORIZED)
            answer = await raw.ask(AuthRequest(3, 8, "sasl", b""))
            assert isinstance(answer, AuthResponse)
            assert answer.plugin == "AuthDisabledPlugin"
            assert (await raw.ask(ReadLacRequest(3, 9, 1))).status is Status.UNAUTHORIZED
            raw.send(ReadRequest(2, 0, 1, 5))
            assert await raw.response("v2") == ReadResponse(2, 0, Status.UNAUTHORIZED, 1, 5)
            raw.close()
            for wire in ("v2", "v3"):
                with pytest.raises(Unauthorized):
                    await place.use(wire=wire)

    run(body())
    assert len([message for message in caplog.messages if "connection is not encrypted" in message]) == 1


def test_auth_frames_around_start_tls(place: Place) -> None:
    """A Java client with both does not wait with the one for the other. Source: wire-protocol 5.3, the last quirk."""

    async def body() -> None:
        client = DigestMd5Client("bookkeeper-app", 'pass "wörd€', "abc")
        async with place.bookie(**place.tls(), **place.sasl(tls_required=True)) as server:
            raw = await Raw.connect(server)
            raw.send(AuthRequest(3, 1, "sasl", b""), StartTlsRequest(3, 2))
            challenge = await raw.response()
            assert isinstance(challenge, AuthResponse)
            assert isinstance(await raw.response(), StartTlsResponse)
            raw.send(AuthRequest(3, 3, "sasl", client.respond(challenge.payload)))  # still plain
            await raw.writer.drain()
            await raw.encrypt(place)
            proof = await raw.response()
            assert isinstance(proof, AuthResponse)
            client.respond(proof.payload)
            assert (await raw.ask(ReadLacRequest(3, 9, 1))).status is Status.NO_ENTRY
            raw.close()

            raw = await Raw.connect(server)
            raw.send(StartTlsRequest(3, 2), AuthRequest(3, 1, "sasl", b""))
            assert isinstance(await raw.response(), StartTlsResponse)
            await raw.encrypt(place)
            assert isinstance(await raw.response(), AuthResponse)
            raw.close()

    run(body())


def test_plain_requests_behind_start_tls_are_not_smuggled_in(place: Place) -> None:
    async def body() -> None:
        async with place.bookie(**place.tls()) as server:
            for injected in (ReadLacRequest(3, 9, 1), StartTlsRequest(3, 4), ReadRequest(2, 0, 1, 5)):
                raw = await Raw.connect(server)
                raw.send(StartTlsRequest(3, 2), injected)
                assert isinstance(await raw.response(), StartTlsResponse)
                assert await raw.is_closed()
                raw.close()
            raw = await Raw.connect(server)
            raw.send(StartTlsRequest(3, 2))
            assert isinstance(await raw.response(), StartTlsResponse)
            raw.writer.write(b"\x16\x03\x01\x00\x05hello")
            await raw.reader.read()  # an alert
            assert await raw.is_closed()
            raw.close()
            assert "sent something else" in str(server.describe()["peers_refused"])

    run(body())


def test_nothing_is_left_of_peers_that_fail(place: Place) -> None:
    """Whatever stage they end in, on either loop."""

    async def body() -> None:
        async with place.bookie(**place.mutual(), **place.sasl(tls_port=0)) as server:
            assert server.tls_address is not None
            tls_only = [b"", b"\x16\x03\x01\x00\x05hello", bytes(100)]
            begun = [b"", _bytes(StartTlsRequest(3, 1)), _bytes(AuthRequest(3, 1, "sasl", b""))]
            begun += [_bytes(StartTlsRequest(3, 1)) + each for each in (b"\x16", b"\x16\x03\x01\x00\x05hello", b"\0\0")]
            peers = [(server.tls_address, data) for data in tls_only] + [(server.address, data) for data in begun]
            writers = []
            for address, data in peers:
                _, writer = await asyncio.open_connection(*address)
                writer.write(data)
                await writer.drain()
                writers.append(writer)
            raw = await Raw.connect(server)
            await raw.ask(AuthRequest(3, 1, "sasl", b""))  # by now the others were heard
            for writer in writers:
                writer.transport.abort()
            raw.writer.transport.abort()
            await server._reception.intake.wait_empty()

    for loop in LOOPS:
        run(body(), loop)


def _bytes(request: Request) -> bytes:
    return b"".join(bytes(part) for part in encode_request(request))


@pytest.mark.parametrize("loop", LOOPS, ids=["asyncio", "fastest"])
@pytest.mark.parametrize("version", [2, 3])
def test_a_peer_that_reads_slowly_gets_everything(
    place: Place, version: int, loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    """More than all buffers hold, so that the bookie has to wait for it inside of TLS."""
    count, size = 150, 70_000

    async def body() -> None:
        async with place.bookie(**place.tls()) as server:
            async with bk.connect(place.uri, **place.encrypted()) as store:
                ledger = await store.create(ensemble=1, write_quorum=1, ack_quorum=1)
                await ledger.append_many([bytes(size)] * count)
                await ledger.seal()
            raw = await Raw.connect(server)
            await raw.ask(StartTlsRequest(3, 1))
            await raw.encrypt(place)
            raw.send(*(ReadRequest(version, 10 + each, ledger.ledger_id, each) for each in range(count)))
            await asyncio.sleep(0.5)  # the bookie's and the system's buffers are full by now
            found = [await raw.response(f"v{version}") for _ in range(count)]
            assert all(isinstance(each, ReadResponse) and each.status is Status.OK for each in found)
            raw.close()

    run(body(), loop)


# -- certificates that change ------------------------------------------------------------------------------------------
def test_renewed_certificates_count_for_new_connections(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bookies.tls")

    async def serial(server: BookieServer) -> object:
        raw = await Raw.connect(server)
        await raw.ask(StartTlsRequest(3, 1))
        await raw.encrypt(place)
        certificate = raw.writer.get_extra_info("peercert")
        raw.close()
        return certificate["serialNumber"]

    async def body() -> None:
        async with place.bookie(**place.tls(tls_reload_interval_ms=0)) as server:
            raw = await Raw.connect(server)
            await raw.ask(StartTlsRequest(3, 1))
            await raw.encrypt(place)
            first = await serial(server)
            assert await serial(server) == first
            place.file("bookie.pem", "half a certifi")
            assert await serial(server) == first
            assert await serial(server) == first
            place.certificate = place.authority.issue("bookie")
            assert await serial(server) != first
            assert (await raw.ask(ReadLacRequest(3, 9, 1))).status is Status.NO_ENTRY  # the old one goes on
            raw.close()

    run(body())
    assert len([message for message in caplog.messages if message.startswith("tls.not_reloaded")]) == 1
    assert len([message for message in caplog.messages if message.startswith("tls.reloaded")]) == 1


def test_a_broken_certificate_keeps_a_bookie_from_starting(place: Place) -> None:
    async def body() -> None:
        wrong = place.file("wrong.pem", "no certificate")
        for settings, why in (
            (place.tls(tls_key=wrong), "certificate and key cannot be loaded"),
            (place.tls(tls_certificate="/nowhere.pem"), "cannot be loaded from /nowhere.pem"),
            (place.tls(tls_authority=wrong, tls_client_certificates=True), "authorities cannot be loaded"),
            (place.sasl(users_file=wrong), "line 1: the role of no has to be one of"),
            (place.tls(tls_ciphers="NO-SUCH"), "tls_ciphers"),
        ):
            with pytest.raises(bk.ConfigError, match=why):
                async with place.bookie(**settings):
                    pass

    run(body())


# -- bk doctor tls ---------------------------------------------------------------------------------------------------
def test_what_the_doctor_says(place: Place) -> None:
    own = place.authority.issue("client")

    async def said(server: BookieServer, **settings: Any) -> str:
        config = bk.ClientConfig(**settings)
        found = await asyncio.to_thread(lambda: list(of_bookie("b1", *server.address, config)))
        return "\n".join(f"{each.level} {each.what}" for each in found)

    async def body() -> None:
        async with place.bookie() as server:
            assert "warn b1 at 127.0.0.1" in (text := await said(server))
            assert "does not offer TLS" in text
        async with place.bookie(**place.tls()) as server:
            text = await said(server)
            assert "ok b1 at 127.0.0.1" in text
            assert "signed by commonName=authority, valid until" in text
            assert "certificate was not verified" in text
            assert "warn b1 also serves clients without encryption" in text
            assert "ok b1 is accepted" in await said(server, tls=True, tls_authority=place.authority.path)
        async with place.bookie(**place.mutual(tls_required=True)) as server:
            assert "valid until" in str(server.describe()["tls"])
            text = await said(server, **place.encrypted(own))
            assert "ok b1 is accepted" in text
            assert "ok b1 refuses clients that neither encrypt" in text
            assert "it does not accept this client" in await said(server, **place.encrypted())

    run(body())


def test_errors_have_apaches_numbers() -> None:
    assert (TlsFailed.code, Unauthorized.code, BookieUnreachable.code) == (-24, -102, -8)
