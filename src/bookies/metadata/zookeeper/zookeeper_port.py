"""The ZooKeeper port: what the metadata driver needs of a ZooKeeper client, on the event loop.

`metadata/zookeeper/kazoo_client.py` implements it on the library kazoo, `tests/fakes/zookeeper.py` in memory. Every call waits for
a connection first, at most one session timeout, and can be cancelled at any time. Three kinds of failure:

- `Refusal`: the server said no; nothing was changed.
- `SessionExpired` and `OutcomeUnknown`: the connection went while the request was under way; it may or may not have
  been carried out. Reads can be repeated; after a write the caller has to look what is there.
- any other `MetadataError`: nothing was sent.

Source: metadata 0.2.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from bookies.errors import MetadataError

ANY_VERSION = -1
REQUEST_SIZE_MAX = (1 << 20) - 1  # bytes; a server drops the connection of who sends more (jute.maxbuffer)


class Acl(enum.Enum):
    """The two access control lists that BookKeeper uses. Source: metadata 2.5."""

    OPEN = "world:anyone"
    CREATOR = "auth:"  # whoever the creating session has authenticated as


@dataclass(frozen=True, slots=True)
class Stat:
    """A znode's numbers. `czxid`, `mzxid`, `pzxid`: the transaction that created it, wrote its data, changed its
    children; transactions of one ensemble are totally ordered. `ctime_ms`, `mtime_ms`: the times of the first two, one
    time for all operations of a transaction. `owner`: the session of an ephemeral node, else 0.
    """

    czxid: int
    mzxid: int
    pzxid: int
    ctime_ms: int
    mtime_ms: int
    version: int
    cversion: int
    owner: int
    children_count: int


class Refusal(Exception):
    """The server's definite no. `index`: which operation of a transaction it was for."""

    def __init__(self, path: str, index: int = 0) -> None:
        super().__init__(f"{type(self).__name__}: {path}")
        self.path = path
        self.index = index


class NodeMissing(Refusal):
    """There is no such znode, or no parent to create it in."""


class NodeExists(Refusal):
    """There is such a znode already."""


class WrongVersion(Refusal):
    """The znode's data has another version."""


class NotEmpty(Refusal):
    """The znode to be deleted has children."""


class OutcomeUnknown(MetadataError):
    """The connection to ZooKeeper went before the answer came: the operation may or may not have happened."""


@dataclass(frozen=True, slots=True)
class Create:
    """In a transaction."""

    path: str
    data: bytes
    acl: Acl
    is_ephemeral: bool = False
    is_sequential: bool = False


@dataclass(frozen=True, slots=True)
class SetData:
    """In a transaction."""

    path: str
    data: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """In a transaction."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """In a transaction: the znode exists and its data has this version."""

    path: str
    version: int = ANY_VERSION


Operation = Create | SetData | Delete | Check
Outcome = str | Stat | None


@dataclass(frozen=True, slots=True)
class Credentials:
    """How to authenticate with ZooKeeper, and how to encrypt.

    `digest`: `user:password` of the digest scheme. `sasl`: what the library pure-sasl takes, `mechanism`, `username`,
    `password` and so on. `is_tls` with `authority` (PEM file), and for mutual TLS `certificate` and `key`.
    `is_secure`: znodes are readable and writable for this identity alone (Apache's `zkEnableSecurity`).
    """

    digest: str | None = None
    sasl: tuple[tuple[str, str], ...] = ()
    is_tls: bool = False
    authority: str | None = None
    certificate: str | None = None
    key: str | None = None
    key_password: str | None = None
    checks_certificate: bool = True
    checks_host_name: bool = True
    is_secure: bool = False

    def __repr__(self) -> str:
        """Without the secrets."""
        ways = [
            name for name, is_there in (("digest", self.digest), ("sasl", self.sasl), ("tls", self.is_tls)) if is_there
        ]
        return f"<Credentials {', '.join(ways) or 'none'}>"


class ZooKeeper(Protocol):
    """One client. `sync`: the read sees every write that had succeeded when it was called, by whomever.

    A watch is called once, on the loop, after the next change of what was read, and also whenever the connection is
    lost, because changes are missed from then on: look again.
    """

    hosts: str

    @property
    def session_id(self) -> int | None:
        """Of the session at present; None while there is none."""

    async def open(self) -> None:
        """Connect. Raises `MetadataError` when no server answers within a session timeout, or refuses credentials."""

    async def close(self) -> None:
        """End the session; its ephemeral znodes go. Idempotent."""

    def on_session_lost(self, callback: Callable[[], None]) -> None:
        """Called once per lost session, before any operation in the next one succeeds. One callback."""

    async def create(
        self, path: str, data: bytes, acl: Acl, *, is_ephemeral: bool = False, is_sequential: bool = False
    ) -> tuple[str, Stat]:
        """The path made, with its number if sequential. Raises `NodeExists`, `NodeMissing` (no parent)."""

    async def get(self, path: str, *, sync: bool = False) -> tuple[bytes, Stat]:
        """Raises `NodeMissing`."""

    async def exists(self, path: str, *, sync: bool = False, watch: Callable[[], None] | None = None) -> Stat | None:
        """The watch also sees a missing znode appear."""

    async def children(
        self, path: str, *, sync: bool = False, watch: Callable[[], None] | None = None
    ) -> tuple[list[str], Stat]:
        """Names, sorted. The watch sees children come and go, not their data. Raises `NodeMissing`."""

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat:
        """Raises `NodeMissing`, `WrongVersion`."""

    async def delete(self, path: str, version: int = ANY_VERSION, *, session: int | None = None) -> None:
        """Raises `NodeMissing`, `WrongVersion`, `NotEmpty`. `session`: if this one is not the present one any more,
        nothing is sent, and `SessionExpired` raised: the znode may be another's by now.
        """

    async def multi(self, operations: Sequence[Operation]) -> list[Outcome]:
        """All or nothing; the path made for each `Create`, with its number if sequential, and the new stat for each
        `SetData`. Raises the `Refusal` of the first operation refused.
        """

    def unwatch(self, watch: Callable[[], None]) -> None:
        """This watch is not called any more."""
