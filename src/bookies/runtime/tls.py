"""TLS with OpenSSL: the port `Encryption`, and the reload of certificate files.

A renewed certificate applies to connections made after the change was noticed; existing connections keep theirs.
Files that do not load, or a certificate that does not fit the key because only one of the two has been replaced yet,
change nothing: the old files stay in use, and one log line names the problem, until the files change again.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from typing import cast

from bookies.encoding.key_stores import KeyStore, is_key_store, read_key_store
from bookies.errors import ConfigError, TlsFailed
from bookies.runtime.events import Events
from bookies.runtime.ports import Clock, TlsFiles

HANDSHAKE_S = 10.0  # a peer that has not finished the handshake by then is closed
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}

Stamps = tuple[tuple[int, int, int] | None, ...]  # inode, size, time of change of each file; None: it is missing


class TlsSide:
    """See `ports.Encryption`. Raises `ConfigError` when the files do not load now."""

    def __init__(self, files: TlsFiles, is_server: bool, clock: Clock) -> None:
        self._files = files
        self._is_server = is_server
        self._clock = clock
        self._events = Events("tls", clock)
        self._stamps = self._look()
        self._looked_at = clock.monotonic()
        self._context = self._load()

    async def encrypt(
        self,
        transport: asyncio.Transport,
        protocol: asyncio.BaseProtocol,
        *,
        host_name: str | None = None,
        received: bytes = b"",
    ) -> asyncio.Transport:
        """See `ports.Encryption`."""
        if transport.is_closing():  # Otherwise the handshake would wait for its time-out.
            raise TlsFailed("the TLS handshake failed: the connection was closed")
        loop = asyncio.get_running_loop()
        handshake = loop.create_task(
            loop.start_tls(
                transport,
                protocol,
                self._current(),
                server_side=self._is_server,
                server_hostname=None if self._is_server else host_name,
                ssl_handshake_timeout=HANDSHAKE_S,
            )
        )
        try:
            async with asyncio.timeout(HANDSHAKE_S + 1):
                if received:
                    # Now the handshake's protocol is in place and begins in the loop's next iteration. Only then does
                    # the transport read again, so bytes that were read before come first.
                    await asyncio.sleep(0)
                    loop.call_soon(_hand_over, transport, received)
                encrypted = await handshake
        except TimeoutError as error:  # The loop's own timeout does not cover a connection lost at the beginning.
            handshake.cancel()
            transport.abort()
            raise TlsFailed("the TLS handshake failed: it took too long") from error
        except ssl.SSLCertVerificationError as error:
            raise TlsFailed(f"the other side's certificate is not accepted: {error.verify_message}") from error
        except ssl.SSLError as error:
            raise TlsFailed(f"the TLS handshake failed: {_reason(error)}") from error
        except OSError as error:
            raise TlsFailed(f"the TLS handshake failed: {str(error) or 'the connection was closed'}") from error
        except asyncio.CancelledError:
            handshake.cancel()
            transport.abort()
            raise
        if encrypted is None:
            raise TlsFailed("the TLS handshake failed: the connection was closed")
        return encrypted

    def _current(self) -> ssl.SSLContext:
        """Return the context for a new connection: from the current files, if they have changed and load."""
        now = self._clock.monotonic()
        if now - self._looked_at < self._files.reload_interval_s:
            return self._context
        self._looked_at = now
        stamps = self._look()
        if stamps == self._stamps:
            return self._context
        self._stamps = stamps
        try:
            self._context = self._load()
        except ConfigError as error:
            self._events.warning(
                "tls.not_reloaded",
                error=error,
                consequence="the previous certificates stay in use until the files change",
            )
        else:
            self._events.info("tls.reloaded", certificate=self._files.certificate, authority=self._files.authority)
        return self._context

    def _look(self) -> Stamps:
        files = self._files
        passwords = (files.key_password_file, files.authority_password_file)
        paths = (files.certificate, files.key, files.authority, *passwords)
        return tuple(_stamp(path) for path in paths if path)

    def _load(self) -> ssl.SSLContext:
        files = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if self._is_server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = VERSIONS[files.version_min]
        context.check_hostname = files.checks_host_name and not self._is_server
        absent = ssl.CERT_OPTIONAL if files.asks_peer else ssl.CERT_NONE
        context.verify_mode = ssl.CERT_REQUIRED if files.checks_peer else absent
        if files.ciphers:
            try:
                context.set_ciphers(files.ciphers)
            except ssl.SSLError as error:
                raise ConfigError(f"tls_ciphers = {files.ciphers!r}: OpenSSL supports none of these") from error
        if files.certificate:
            load_certificate(context, files.certificate, files.key, files.key_password_file, files.key_password)
        if files.authority:
            load_authorities(context, files.authority, files.authority_password_file)
        elif files.checks_peer:
            context.load_default_certs()
        return context


def load_certificate(
    context: ssl.SSLContext, certificate: str, key: str, password_file: str, key_password: str = ""
) -> None:
    """Load a certificate and its key, from PEM files or from a key store. `key_password`: if no file has it.

    Raises `ConfigError`.
    """
    password = _password(password_file) or key_password.encode()
    where = f"{certificate} and {key}" if key else certificate
    try:
        with open(certificate, "rb") as file:
            data = file.read()
        if is_key_store(data):
            _load_key_store(context, read_key_store(data, password, certificate))
        else:
            # OpenSSL must not prompt for a password.
            context.load_cert_chain(certificate, key or None, password or "")
    except (OSError, ValueError) as error:  # ValueError: a password that is too long
        raise ConfigError(f"certificate and key cannot be loaded from {where}: {_reason(error)}") from error


def _load_key_store(context: ssl.SSLContext, store: KeyStore) -> None:
    """Load the key of a store from memory: it must not be on a disk without its password."""
    descriptor = os.memfd_create("key")
    try:
        os.write(descriptor, store.key_and_chain)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def load_authorities(context: ssl.SSLContext, path: str, password_file: str) -> None:
    """Load trusted certificates from a PEM file or a key store. Raises `ConfigError`."""
    try:
        with open(path, "rb") as file:
            data = file.read()
        if not is_key_store(data):
            context.load_verify_locations(path)
        elif trusted := read_key_store(data, _password(password_file), path).authorities:
            context.load_verify_locations(cadata=trusted)
        else:
            raise ConfigError(f"the key store {path} has no trusted certificate: tls_authority needs one")
    except OSError as error:
        raise ConfigError(f"authorities cannot be loaded from {path}: {_reason(error)}") from error


def _hand_over(transport: asyncio.Transport, data: bytes) -> None:
    """Give a transport's protocol bytes as the transport would. After a failure the bytes are dropped."""
    protocol = transport.get_protocol()
    if not hasattr(protocol, "get_buffer") or transport.is_closing():
        return
    receiver = cast(asyncio.BufferedProtocol, protocol)
    while data:
        room = memoryview(receiver.get_buffer(len(data)))
        count = min(len(room), len(data))
        room[:count] = data[:count]
        receiver.buffer_updated(count)
        data = data[count:]


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _password(path: str) -> bytes:
    if not path:
        return b""
    try:
        with open(path, "rb") as file:
            return file.read().rstrip(b"\r\n")
    except OSError as error:
        raise ConfigError(f"the password file {path} cannot be read: {error.strerror}") from error


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, ssl.SSLError):
        # OpenSSL gives no reason for a file that is not PEM.
        return (error.reason or "damaged, or not what it should be").lower().replace("_", " ")
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
