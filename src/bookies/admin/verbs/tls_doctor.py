"""`bk doctor tls`: checks of the TLS that bookies offer, their certificates and expiry, and of certificate files.

The check connects like a client, with START_TLS and a handshake: once without verification, and once with the settings
of clients (BK_TLS_AUTHORITY and so on). Source: wire-protocol 5.3.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import os
import socket
import ssl
from collections.abc import Iterator

from bookies.admin.shared.common import run_async
from bookies.admin.shared.report import Finding
from bookies.config import ClientConfig
from bookies.configuration import configured
from bookies.encoding.key_stores import is_key_store
from bookies.errors import BookKeeperError, InvalidArgument, Status
from bookies.model import FRAME_SIZE_MAX
from bookies.runtime.tls import load_authorities, load_certificate
from bookies.wire.auth import roles_of, text_of
from bookies.wire.certificate import Certificate, parse_certificate, pem_blocks
from bookies.wire.client import ResponseDecoder, encode_request
from bookies.wire.messages import GetBookieInfoRequest, Request, Response, StartTlsRequest

CONNECT_S = 5.0
SOON = datetime.timedelta(days=30)
RSA_BITS_MIN = 2048
OWN = "if it requires client certificates, set BK_TLS=true, BK_TLS_CERTIFICATE and BK_TLS_KEY; see the bookie's log"
RENEW = "renew it: replace the files, a running bookie reloads them"


def findings(arguments: argparse.Namespace) -> Iterator[Finding]:
    """Yield the findings of the named file, else of the named bookie, else of all registered bookies."""
    if arguments.certificate:
        yield from of_file(arguments.certificate, arguments.key)
        return
    config = configured(ClientConfig)
    addresses = run_async(lambda: _addresses(arguments))
    if arguments.bookie and arguments.bookie not in addresses:
        yield Finding("bad", f"bookie {arguments.bookie} is not registered", "list the bookies with `bk bookie list`")
        return
    for bookie, (host, port) in addresses.items():
        if arguments.bookie in (None, bookie):
            try:
                yield from of_bookie(f"bookie {bookie}", host, port, config)
            except (OSError, BookKeeperError) as error:
                yield Finding("bad", f"bookie {bookie} at {host}:{port}: {error}", "is it running?")


async def _addresses(arguments: argparse.Namespace) -> dict[str, tuple[str, int]]:
    from bookies.admin.shared.common import metadata_uri
    from bookies.metadata.uri import connect
    from bookies.runtime import aio

    driver = connect(metadata_uri(arguments), aio.runtime(), may_create=False)
    await driver.open()
    try:
        addresses: dict[str, tuple[str, int]] = {}
        for bookie in await driver.modes():
            info = await driver.bookie_info(bookie)
            if info is not None and (address := info.rpc_address()) is not None:
                addresses[bookie] = address
        return addresses
    finally:
        await driver.close()


# -- a bookie ----------------------------------------------------------------------------------------------------
def of_bookie(name: str, host: str, port: int, config: ClientConfig) -> Iterator[Finding]:
    """Yield the findings of the bookie at an address. `config`: the settings that verify its certificate."""
    with _connected(host, port) as plain:
        if _ask(plain, StartTlsRequest(3, 1)) is not Status.OK:
            yield Finding(
                "warn",
                f"{name} at {host}:{port} does not offer TLS",
                "set tls_certificate and tls_key (docs/howto/encrypt-connections.md)",
            )
            return
        context = _context(config, checks=False)
        try:
            with context.wrap_socket(plain, server_hostname=host) as encrypted:
                version, data = encrypted.version(), encrypted.getpeercert(binary_form=True)
        except OSError as error:
            yield Finding("bad", f"{name} offers TLS, but the handshake fails: {_reason(error)}", OWN)
            return
    yield Finding("ok", f"{name} at {host}:{port} offers {version}")
    certificate = parse_certificate(data or b"")
    yield from of_certificate(f"{name}: its certificate", certificate)
    if host not in certificate.hosts:
        names = ", ".join(certificate.hosts) or "no host"
        yield Finding(
            "warn",
            f"{name} is registered at {host}, its certificate names {names}",
            "issue one for that host, or set advertised_host: clients that check host names (ours do) refuse it",
        )
    yield from _accepted(name, host, port, config)
    yield _plain(name, host, port)


def _accepted(name: str, host: str, port: int, config: ClientConfig) -> Iterator[Finding]:
    if not config.tls:
        yield Finding(
            "warn",
            f"{name}: no trusted authority is set, so its certificate was not verified",
            "set BK_TLS=true and BK_TLS_AUTHORITY to the file of the authorities",
        )
        return
    by = config.tls_authority or "the system's authorities"
    with _connected(host, port) as plain:
        _ask(plain, StartTlsRequest(3, 1))
        try:
            with _context(config, checks=True).wrap_socket(plain, server_hostname=host) as encrypted:
                # With TLS 1.3 the bookie refuses the client's certificate only after the handshake.
                answer = _ask(encrypted, GetBookieInfoRequest(3, 2, 3))
        except OSError as error:
            yield Finding(
                "bad",
                f"{name} is refused with {by}: {_reason(error)}",
                "name the authority that signed it, or renew it",
            )
            return
    if answer is None:
        yield Finding(
            "bad", f"{name} is accepted with {by}, but closes the connection: it does not accept this client", OWN
        )
    elif answer is Status.UNAUTHORIZED:
        yield Finding("ok", f"{name} is accepted with {by}; it also requires a user or a role")
    else:
        yield Finding("ok", f"{name} is accepted with {by}")


def _plain(name: str, host: str, port: int) -> Finding:
    with _connected(host, port) as plain:
        answer = _ask(plain, GetBookieInfoRequest(3, 1, 3))
    if answer is Status.OK:
        return Finding(
            "warn",
            f"{name} also serves clients without encryption",
            "when all clients encrypt, set tls_required = true (Apache's bookies do not have this setting)",
        )
    return Finding("ok", f"{name} refuses clients that neither encrypt nor authenticate")


@contextlib.contextmanager
def _connected(host: str, port: int) -> Iterator[socket.socket]:
    with socket.create_connection((host, port), timeout=CONNECT_S) as connection:
        yield connection


def _ask(connection: socket.socket, request: Request) -> Status | None:
    """Send one request and return the status of its response; None if the bookie closes the connection instead."""
    connection.sendall(b"".join(bytes(part) for part in encode_request(request)))
    decoder, responses = ResponseDecoder("v3", FRAME_SIZE_MAX), list[Response]()
    while not responses:
        data = connection.recv(1 << 16)
        if not data:
            return None
        responses = decoder.feed(data)
    return responses[0].status


def _context(config: ClientConfig, *, checks: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if not checks:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    else:
        context.check_hostname = config.tls_check_host_name
        if config.tls_authority:
            load_authorities(context, config.tls_authority, config.tls_authority_password_file)
        else:
            context.load_default_certs()
    if config.tls_certificate:
        load_certificate(context, config.tls_certificate, config.tls_key, config.tls_key_password_file)
    return context


# -- a certificate -----------------------------------------------------------------------------------------------
def of_certificate(name: str, certificate: Certificate) -> Iterator[Finding]:
    """Yield the subject, expiry, key and roles of a certificate, and its faults."""
    now = datetime.datetime.now(datetime.UTC)
    owner = f"{name} belongs to {text_of(certificate.subject) or 'no subject'}, signed by {text_of(certificate.issuer)}"
    until = f"{certificate.ends:%Y-%m-%d %H:%M} UTC"
    if certificate.ends < now:
        yield Finding("bad", f"{owner}, expired since {until}", RENEW)
    elif certificate.begins > now:
        yield Finding("bad", f"{owner}, not valid before {certificate.begins:%Y-%m-%d %H:%M} UTC", "compare the clocks")
    elif certificate.ends - now < SOON:
        yield Finding("warn", f"{owner}, valid until {until}: {(certificate.ends - now).days} days left", RENEW)
    else:
        yield Finding("ok", f"{owner}, valid until {until}")
    roles = roles_of(certificate.subject)
    hosts = ", ".join(certificate.hosts)
    yield Finding(
        "ok", f"{name}: {certificate.key}; for {hosts or 'no host'}; roles: {', '.join(roles) or 'none (no OU=0:role)'}"
    )
    if certificate.key.startswith("RSA") and certificate.key_bits < RSA_BITS_MIN:
        yield Finding("bad", f"{name}: a key of {certificate.key_bits} bits", "create one of 2,048 bits or more")
    if certificate.key.startswith("Ed"):
        yield Finding(
            "warn", f"{name}: Java 11 and older do not support {certificate.key}", "use RSA or P-256 for such clients"
        )
    if certificate.old_signature:
        yield Finding("bad", f"{name} is signed with {certificate.old_signature}", "have it signed with SHA-256")


def of_file(path: str, key: str | None) -> Iterator[Finding]:
    """Yield the findings of a bookie's or client's PEM file. `key`: the file of its key, if it is another one."""
    if _is_key_store(path):
        yield Finding("ok", f"{path} is a key store", "`keytool -list -v` shows its certificates and their validity")
        return
    try:
        blocks = pem_blocks(_read(path))
        certificates = [parse_certificate(data) for label, data in blocks if label == "CERTIFICATE"]
    except (OSError, InvalidArgument) as error:
        yield Finding("bad", f"{path}: {error}", "use a PEM file: BEGIN CERTIFICATE, base64, END CERTIFICATE")
        return
    if not certificates:
        yield Finding("bad", f"{path} holds no certificate", "use a PEM file; convert a JKS store with keytool")
        return
    for number, certificate in enumerate(certificates):
        yield from of_certificate(f"certificate {number + 1}", certificate)
        if number and certificate.subject != certificates[number - 1].issuer:
            yield Finding(
                "bad",
                f"certificate {number + 1} did not sign the one before it",
                "order the file: the own certificate first, then that of its issuer, and so on",
            )
    labels = [label for label, _ in (pem_blocks(_read(key)) if key else blocks) if label.endswith("PRIVATE KEY")]
    for label in labels:
        if label == "PRIVATE KEY":
            yield Finding("ok", "the key is PKCS#8, which Java reads too")
        elif label == "ENCRYPTED PRIVATE KEY":
            yield Finding("ok", "the key is encrypted", "name the file with its password in tls_key_password_file")
        else:
            yield Finding(
                "warn",
                f"the key is BEGIN {label}, which Apache's bookies and clients do not read",
                "convert it: openssl pkcs8 -topk8 -nocrypt -in KEY -out KEY8 (ours read both)",
            )
    if labels and "ENCRYPTED PRIVATE KEY" not in labels:
        yield _pair(path, key)


def _pair(path: str, key: str | None) -> Finding:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path, key, "")
    except OSError as error:
        return Finding(
            "bad",
            f"certificate and key do not match: {_reason(error)}",
            "name the key that the certificate was issued for",
        )
    return Finding("ok", "certificate and key match")


def _is_key_store(path: str) -> bool:
    try:
        return is_key_store(_read(path).encode("latin-1"))
    except OSError:
        return False


def _read(path: str) -> str:
    with open(os.fspath(path), encoding="latin-1") as file:
        return file.read()


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return (error.reason or str(error)).lower().replace("_", " ") if isinstance(error, ssl.SSLError) else str(error)
