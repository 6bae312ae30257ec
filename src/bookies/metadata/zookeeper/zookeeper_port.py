"""The ZooKeeper port: the operations of a ZooKeeper client that the metadata driver needs, on the event loop.

`zk_client.py` implements it, and in memory `tests/fakes/zookeeper.py`. Every call waits for a
connection first, at most one session timeout, and can be cancelled at any time. Three kinds of failure:

- `Refusal` and `Denied`: the server refused the request; nothing was changed.
- `SessionExpired` and `OutcomeUnknown`: the connection was lost while the request was in flight; it may or may not have
  been carried out. Reads can be repeated; after a write the caller has to read the current state.
- any other `MetadataError`: nothing was sent.

Source: metadata 0.2.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec import Struct

from bookies.errors import MetadataError
from bookies.runtime.ports import KerberosLogin

ANY_VERSION = -1
REQUEST_SIZE_MAX = (1 << 20) - 1  # bytes; a server drops the connection after a larger request (jute.maxbuffer)


class Acl(enum.Enum):
    """The two access control lists that BookKeeper uses. Source: metadata 2.5."""

    OPEN = "world:anyone"
    CREATOR = "auth:"  # the identity that the creating session has authenticated as


class Stat(Struct, frozen=True):
    """A znode's metadata. `czxid`, `mzxid`, `pzxid`: the transactions that created it, last wrote its data, last
    changed its children; transactions of one ensemble are totally ordered. `ctime_ms`, `mtime_ms`: times of the first
    two, one time for all operations of a transaction. `owner`: the session of an ephemeral node, else 0.
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
    """The server's refusal of a request. `index`: the refused operation of a transaction."""

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


class Denied(MetadataError):
    """The server's refusal of a request for another reason than the state of a znode: access rights, a quota."""


class OutcomeUnknown(MetadataError):
    """The connection to ZooKeeper was lost before the answer came: the operation may or may not have happened."""


class Create(Struct, frozen=True):
    """Operation: create a znode."""

    path: str
    data: bytes
    acl: Acl
    is_ephemeral: bool = False
    is_sequential: bool = False


class SetData(Struct, frozen=True):
    """Operation: write a znode's data."""

    path: str
    data: bytes
    version: int = ANY_VERSION


class Delete(Struct, frozen=True):
    """Operation: delete a znode."""

    path: str
    version: int = ANY_VERSION


class Check(Struct, frozen=True):
    """Operation: check that the znode exists and its data has this version."""

    path: str
    version: int = ANY_VERSION


Operation = Create | SetData | Delete | Check
Outcome = str | Stat | None


class Answer(Protocol):
    """Takes the outcome of a request: a future, or an object with these methods of one."""

    def done(self) -> bool:
        """Report whether the outcome is not wanted any more, or is there."""

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, error: Exception, /) -> None: ...


class Credentials(Struct, frozen=True):
    """Credentials and TLS files for ZooKeeper.

    `digest`: `user:password` of the digest scheme. `sasl`: user and password for DIGEST-MD5, or whom
    Kerberos proves. `is_tls` with `authority` (PEM file), and for mutual TLS `certificate` and `key`.
    `is_secure`: znodes are readable and writable for this identity alone (Apache's `zkEnableSecurity`).
    """

    digest: str | None = None
    sasl: tuple[str, str] | KerberosLogin | None = None
    is_tls: bool = False
    authority: str | None = None
    certificate: str | None = None
    key: str | None = None
    key_password: str | None = None
    checks_certificate: bool = True
    checks_host_name: bool = True
    is_secure: bool = False

    @property
    def checks_name(self) -> bool:
        """Report whether the server's certificate has to be for the name that was connected to."""
        return self.checks_certificate and self.checks_host_name

    def __repr__(self) -> str:
        """Name the ways of authentication, without the secrets."""
        ways = [
            name for name, is_there in (("digest", self.digest), ("sasl", self.sasl), ("tls", self.is_tls)) if is_there
        ]
        return f"<Credentials {', '.join(ways) or 'none'}>"

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("", repr(self))]  # a struct's own method returns all fields


class ZooKeeper(Protocol):
    """One client of ZooKeeper. `sync`: the read sees every write, by any client, that had succeeded before the call.

    A watch is called once, on the event loop, after the next change of the state that was read. It is also called when
    the connection is lost, because later changes are missed: read the state again.
    """

    hosts: str

    @property
    def session_id(self) -> int | None:
        """Id of the current session; None: there is none."""

    async def open(self) -> None:
        """Connect. Raises `MetadataError` if no server answers within a session timeout, or the server refuses the
        credentials.
        """

    async def close(self) -> None:
        """End the session, and with it its ephemeral znodes. Idempotent."""

    def on_session_lost(self, callback: Callable[[], None]) -> None:
        """Call back once per lost session, before any operation in the next session succeeds. One callback only."""

    async def create(
        self, path: str, data: bytes, acl: Acl, *, is_ephemeral: bool = False, is_sequential: bool = False
    ) -> tuple[str, Stat]:
        """Create a znode; return its path, with the server's number if sequential, and its stat.

        Raises `NodeExists`, `NodeMissing` (no parent).
        """

    async def get(self, path: str, *, sync: bool = False) -> tuple[bytes, Stat]:
        """Return a znode's data and stat. Raises `NodeMissing`."""

    async def exists(self, path: str, *, sync: bool = False, watch: Callable[[], None] | None = None) -> Stat | None:
        """Return a znode's stat; None: it is missing. The watch is also called when a missing znode is created."""

    async def children(
        self, path: str, *, sync: bool = False, watch: Callable[[], None] | None = None
    ) -> tuple[list[str], Stat]:
        """Return the children's names, sorted, and the stat. The watch is called for children created or deleted, not
        for their data. Raises `NodeMissing`.
        """

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION, *, session: int | None = None) -> Stat:
        """Write a znode's data; return the new stat. `session`: if it is not the current session, nothing is sent and
        `SessionExpired` is raised, because what the write relies on ended with it.

        Raises `NodeMissing`, `WrongVersion`.
        """

    async def delete(self, path: str, version: int = ANY_VERSION, *, session: int | None = None) -> None:
        """Delete a znode. `session`: if it is not the current session, nothing is sent and `SessionExpired` is raised,
        because the znode may belong to another session by now.

        Raises `NodeMissing`, `WrongVersion`, `NotEmpty`.
        """

    async def multi(self, operations: Sequence[Operation], *, session: int | None = None) -> list[Outcome]:
        """Carry out all operations, or none. Returns the path for each `Create`, with the server's number if
        sequential, and the new stat for each `SetData`. `session`: as for `delete`. Raises the `Refusal` of the first
        refused operation.
        """

    def start_multi(self, operations: Sequence[Operation], answer: Answer) -> None:
        """Begin what `multi` does, without a task of its own; `answer` is given the outcome, perhaps at once."""

    def unwatch(self, watch: Callable[[], None]) -> None:
        """Remove a watch: it is not called any more."""
