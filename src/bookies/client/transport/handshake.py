"""First exchange on a new connection: encrypt, authenticate, hand over.

A `Handshake` is the first protocol of a connection if the settings ask for TLS or authentication. When it is done, the
transport calls the `Connection` as if the connection were new. Source: wire-protocol 5.1 to 5.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

from bookies.client.transport.connection import Connection
from bookies.config import ClientConfig
from bookies.encoding.digest_md5 import SERVICE
from bookies.encoding.documents import parse_toml
from bookies.encoding.gssapi import GssapiClient
from bookies.errors import BookieUnreachable, BookKeeperError, ConfigError, RemoteProtocolError, TlsFailed
from bookies.runtime.events import Events
from bookies.runtime.ports import Disk, Encryption, KerberosLogin, Runtime, TlsFiles
from bookies.wire import v2, v3
from bookies.wire.auth import Ask, BeginTls, ClientOpening, Fail, Open, SaslClient, Step
from bookies.wire.client import encode_request
from bookies.wire.framing import PREFIX_SIZE
from bookies.wire.messages import Response
from bookies.wire.sasl import DIGEST_MD5, MECHANISMS, PLAIN, sasl_client
from bookies.wire.sasl.mechanisms import GSSAPI

NONCE_BITS = 192
KERBEROS_KEYS = {"mechanism", "principal", "keytab", "service"}  # of sasl_file
RECHECK_S = 1.0  # at least, between two reads of sasl_file
FRAME_SIZE_MAX = 64 << 10  # bytes of a response to START_TLS or AUTH


class ClientSecurity:
    """Encryption and authentication of one client. Raises `ConfigError` if a file cannot be read on construction.

    Files are read again when they change. The previous content stays in use while a changed one is damaged.
    """

    def __init__(self, runtime: Runtime, config: ClientConfig) -> None:
        self.encryption = _encryption(runtime, config)
        self.tls_port = config.tls_port if config.tls else 0
        self._runtime = runtime
        self._config = config
        self._events = Events("client", runtime.clock)
        self._credentials = self._read() if config.sasl_file else None
        self._read_at = runtime.clock.monotonic()

    @property
    def is_needed(self) -> bool:
        """Report whether connections need a handshake before the first request."""
        return self.encryption is not None or self._credentials is not None

    async def opening(self, connection: Connection, host: str) -> ClientOpening:
        """Return the opening of a new connection; with Kerberos get a ticket for the bookie on `host` before.

        Raises `Unauthorized`, `BookieUnreachable` if the KDC does not answer.
        """
        tls = "" if self.encryption is None else "direct" if self.tls_port else "start"
        sasl: SaslClient | None = None
        if self._credentials is not None:
            self._reread()
            credentials = self._credentials
            if isinstance(credentials, KerberosLogin):
                sasl = GssapiClient(*await self._runtime.kerberos().initiate(credentials, host))
            else:
                sasl = sasl_client(*credentials, f"{self._runtime.random.getrandbits(NONCE_BITS):x}")
        version = v3.VERSION if connection.wire == "v3" else v2.VERSION
        return ClientOpening(version, tls, sasl, lambda: connection.next_txn_ids()[0])

    def _reread(self) -> None:
        now = self._runtime.clock.monotonic()
        if now - self._read_at < RECHECK_S:
            return
        self._read_at = now
        try:
            self._credentials = self._read()
        except ConfigError as error:
            self._events.warning("sasl.credentials_kept", error=error, consequence="the previous ones stay in use")

    def _read(self) -> tuple[str, str, str] | KerberosLogin:
        path = self._config.sasl_file
        credentials = read_credentials(self._runtime.disk, path)
        if isinstance(credentials, KerberosLogin):
            self._runtime.kerberos()
        elif credentials[0] == PLAIN and not self._config.tls:
            raise ConfigError(f"sasl_file {path}: PLAIN sends the password, so it needs tls = true")
        return credentials


class Handshake(asyncio.Protocol):
    """The protocol of a connection until it is open. `wait` returns then."""

    def __init__(
        self, connection: Connection, encryption: Encryption | None, opening: ClientOpening, host: str
    ) -> None:
        self._connection = connection
        self._encryption = encryption
        self._opening = opening
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._done: asyncio.Future[None] = self._loop.create_future()
        self._held = b""
        self._is_shaking = self._is_lost = False
        self._transport: asyncio.Transport
        self._encrypting: asyncio.Task[None] | None = None

    async def wait(self) -> None:
        """Wait until the connection is open.

        Raises `TlsFailed`, `Unauthorized`, `BookieUnreachable`. Cancelling drops the connection.
        """
        try:
            await self._done
        except BaseException:
            if self._encrypting is not None:
                self._encrypting.cancel()
            self._transport.abort()
            raise

    @property
    def waits_for(self) -> str:
        return self._opening.waits_for

    # -- asyncio.Protocol ----------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._carry_out(self._opening.connected())

    def data_received(self, data: bytes) -> None:
        self._held += data
        try:
            while not self._done.done() and (frame := self._take_frame()):
                for response in self._parse(frame):
                    self._carry_out(self._opening.received(response))
        except RemoteProtocolError as error:
            self._fail(BookieUnreachable(f"connection dropped: {error.message}"))

    def connection_lost(self, error: Exception | None) -> None:
        if self._is_shaking:
            self._is_lost = True  # The TLS handshake reports the cause.
            return
        reason = f": {error}" if error else " by the bookie"
        self._fail(BookieUnreachable(f"connection closed{reason} while the client waited for {self.waits_for}"))

    # -- steps ---------------------------------------------------------------------------------------------------
    def _take_frame(self) -> bytes:
        """Remove and return the next frame with its length word; empty until it is complete."""
        if len(self._held) < PREFIX_SIZE:
            return b""
        end = PREFIX_SIZE + int.from_bytes(self._held[:PREFIX_SIZE], "big")
        if not PREFIX_SIZE < end <= FRAME_SIZE_MAX:
            raise RemoteProtocolError(f"answer of {end:,} bytes before the first request")
        if len(self._held) < end:
            return b""
        frame, self._held = self._held[:end], self._held[end:]
        return frame

    def _parse(self, frame: bytes) -> Sequence[Response]:
        """Parse a frame as v2 or v3. Responses to START_TLS are always v3, and no v3 message begins below 0x08."""
        if frame[PREFIX_SIZE] < 0x08:
            return [v2.parse_response(frame, 0, len(frame))]
        responses: list[Response] = []
        v3.parse_responses(frame, [0, len(frame)], 0, responses)
        return responses

    def _carry_out(self, steps: Sequence[Step]) -> None:
        for step in steps:
            match step:
                case Ask(request):
                    self._transport.write(b"".join(encode_request(request)))
                case BeginTls():
                    self._encrypting = self._loop.create_task(self._encrypt())
                case Open():
                    self._hand_over()
                case Fail(error):
                    self._fail(error)

    async def _encrypt(self) -> None:
        assert self._encryption is not None
        self._is_shaking = True
        try:
            # Bytes after the response to START_TLS are unauthenticated: anybody could have injected them.
            self._held = b""
            self._transport = await self._encryption.encrypt(self._transport, self, host_name=self._host)
        except TlsFailed as error:
            self._fail(error)
        else:
            self._is_shaking = False
            if self._is_lost:
                self.connection_lost(None)
            elif not self._done.done():
                self._carry_out(self._opening.encrypted())

    def _hand_over(self) -> None:
        connection, transport = self._connection, self._transport
        transport.set_protocol(connection)
        self._done.set_result(None)
        connection.connection_made(transport)
        held, self._held = self._held, b""
        while held and connection.error is None:
            room = memoryview(connection.get_buffer(len(held)))
            count = min(len(room), len(held))
            room[:count] = held[:count]
            connection.buffer_updated(count)
            held = held[count:]

    def _fail(self, error: BookKeeperError) -> None:
        if not self._done.done():
            self._done.set_exception(error)


def _encryption(runtime: Runtime, config: ClientConfig) -> Encryption | None:
    if not config.tls:
        return None
    if runtime.tls is None:
        raise ConfigError("tls = true: there is no TLS in this environment")
    files = TlsFiles(
        certificate=config.tls_certificate,
        key=config.tls_key,
        key_password_file=config.tls_key_password_file,
        authority=config.tls_authority,
        authority_password_file=config.tls_authority_password_file,
        checks_peer=True,
        checks_host_name=config.tls_check_host_name,
        version_min=config.tls_version_min,
        ciphers=config.tls_ciphers,
        reload_interval_s=config.tls_reload_interval_ms / 1000,
    )
    return runtime.tls(files, False)


def read_credentials(disk: Disk, path: str) -> tuple[str, str, str] | KerberosLogin:
    """Return mechanism, user and password from a TOML file, or those of Kerberos. Raises `ConfigError`, whose message
    has no password."""
    try:
        settings = {"mechanism": DIGEST_MD5, **parse_toml(disk.read_bytes(path))}
    except OSError as error:
        raise ConfigError(f"sasl_file {path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"sasl_file {path} is not TOML: {error}") from error
    if settings["mechanism"] == GSSAPI:
        if not set(settings) <= KERBEROS_KEYS or not all(isinstance(value, str) for value in settings.values()):
            raise ConfigError(f"sasl_file {path}: with GSSAPI it may have principal, keytab and service, all texts")
        return KerberosLogin(
            settings.get("principal", ""), settings.get("keytab", ""), settings.get("service") or SERVICE
        )
    mechanism, user, password = (settings.get(name) for name in ("mechanism", "username", "password"))
    if mechanism not in MECHANISMS:
        known = ", ".join((*MECHANISMS, GSSAPI))
        raise ConfigError(f"sasl_file {path}: mechanism = {mechanism!r}: must be one of {known}")
    if set(settings) != {"mechanism", "username", "password"} or not (
        isinstance(user, str) and isinstance(password, str)
    ):
        raise ConfigError(f'sasl_file {path} must have two lines, username = "..." and password = "..."')
    return mechanism, user, password
