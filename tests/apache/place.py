"""A place for tests of security: a ZooKeeper, an authority, users of both kinds; bookies and clients with them."""

from __future__ import annotations

import contextlib
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from tests.apache.apache import VERSION
from tests.fakes.certificates import Authority, Files
from tests.interop.processes import Bookie, Client, java_client, our_client

from bookies.encoding.digest_md5 import secret_of_password
from bookies.wire.sasl.scram import verifier_of

USER, PASSWORD = "bookkeeper-app", "päss wörd€"
SIZES = [0, 100, 20_000]
PLUGINS = {
    "sasl": "org.apache.bookkeeper.sasl.SASLBookieAuthProviderFactory",
    "certificate": "org.apache.bookkeeper.tls.BookieAuthZFactory",
}
CONTEXT_FACTORY = "org.apache.bookkeeper.tls.TLSContextFactory"
LOGIN_MODULE = "org.apache.zookeeper.server.auth.DigestLoginModule"


class Place:
    """A ZooKeeper, an authority, and the users' files of both kinds."""

    def __init__(self, folder: pathlib.Path, address: str) -> None:
        self.folder, self.uri = folder, f"zk+hierarchical://{address}/ledgers"
        self.count = 0
        (folder / "certificates").mkdir()
        self.authority = Authority(folder / "certificates")
        self.bookie = self.authority.issue("bookie")
        self.app = self.authority.issue("app", units=("0:app,other",))
        self.other = self.authority.issue("other", units=("0:other",))
        self.users = self.users_file("writer")
        self.jaas(PASSWORD)

    def file(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return str(self.folder / name)

    def users_file(self, role: str, *grants: str) -> str:
        """A file of users: `USER` with this role and these grants, and an administrator who uses SCRAM."""
        lines = [f"{USER} {role} digest-md5:{secret_of_password(USER, PASSWORD).hex()}"]
        lines += [f"{USER} {grant}" for grant in grants]
        lines.append(f"bookkeeper-admin administrator {verifier_of('admin', b'salt').text}\n")
        return self.file("users-rights", "\n".join(lines))

    def jaas(self, password: str) -> str:
        """Users of Java's bookies, and the one that Java's clients are."""
        return self.file(
            "jaas.conf",
            f'Bookie {{ {LOGIN_MODULE} required user_{USER}="{PASSWORD}"; }};\n'
            f'BookKeeper {{ {LOGIN_MODULE} required username="{USER}" password="{password}"; }};\n',
        )

    def credentials(self, password: str = PASSWORD) -> dict[str, Any]:
        path = self.file(f"credentials-{password == PASSWORD}.toml", f'username = "{USER}"\npassword = "{password}"\n')
        return {"sasl_file": path}

    def our_tls(self, files: Files) -> dict[str, Any]:
        own = {"tls_certificate": files.certificate, "tls_key": files.key}
        return {"tls": True, "tls_authority": self.authority.path} | own

    def java_tls(self, files: Files) -> dict[str, Any]:
        """Of a client or a bookie."""
        return {
            "tlsProviderFactoryClass": CONTEXT_FACTORY,
            "tlsProvider": "JDK",
            "tlsClientAuthentication": "true",
            "tlsKeyStoreType": "PEM",
            "tlsKeyStore": files.key,
            "tlsCertificatePath": files.certificate,
            "tlsTrustStoreType": "PEM",
            "tlsTrustStore": self.authority.path,
        }

    @contextlib.contextmanager
    def serving(self, kind: str, settings: dict[str, Any]) -> Iterator[Bookie]:
        """One bookie. Ours takes its settings from the environment."""
        self.count += 1
        name = f"b{self.count}"
        bookie = Bookie(kind, name, self.folder / name, self.uri, version=VERSION, settings=settings)
        with environment(
            {f"BK_{key.upper()}": str(value) for key, value in settings.items()} if kind == "ours" else {}
        ):
            bookie.launch()
        try:
            bookie.wait_ready()
            yield bookie
        finally:
            bookie.stop()

    @contextlib.contextmanager
    def client(self, kind: str) -> Iterator[Client]:
        client = our_client(self.folder) if kind == "ours" else java_client(VERSION, self.folder)
        try:
            yield client
        finally:
            client.kill()

    def use(self, kind: str, wire: str, settings: dict[str, Any]) -> None:
        """Write and read a ledger with a new client. Raises `Failed`."""
        words = {"uri": self.uri, "wire": wire, "settings": settings, "password": "ledger"}
        quorums = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}
        with self.client(kind) as client:
            created = client.ask("create", **words, **quorums)
            client.ask("append", handle=created["handle"], count=300, sizes=SIZES)
            closed = client.ask("close", handle=created["handle"])
            assert (closed["confirmed"], closed["failure"]) == (299, ""), closed["failure"]
            found = client.ask("read", ledger=created["ledger"], sizes=SIZES, **words)
            assert (found["count"], found["good"]) == (300, 300)


@contextlib.contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
