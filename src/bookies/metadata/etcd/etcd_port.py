"""The etcd port: the operations of an etcd client that the metadata driver needs, on the event loop.

`grpc_etcd.py` implements it on gRPC, `tests/fakes/etcd.py` in memory. Every request for keys is a transaction, also a
read. Every call waits for a connection first, at most one session timeout, and can be cancelled at any time. Failures:

- `LeaseMissing`: the lease that a key was to be attached to has ended; nothing was changed.
- `InvalidArgument`: the request exceeds a limit of this etcd; nothing was changed.
- `OutcomeUnknown`: the connection was lost while the transaction was in flight; it may or may not have been carried
  out. The port repeats transactions that only read, until a session timeout has passed.
- any other `MetadataError`: nothing was changed.

Source: metadata 10; the meaning of each operation is that of etcd's published API, version 3.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec import Struct

from bookies.errors import MetadataError


class OutcomeUnknown(MetadataError):
    """The connection to etcd was lost before the answer came: the transaction may or may not have happened."""


class LeaseMissing(Exception):
    """There is no such lease: it has expired, or was revoked."""


class KeyValue(Struct, frozen=True):
    """One key. `create_revision`, `mod_revision`: the revisions of the store that created the key and wrote it last;
    revisions count the changes of the whole store.

    `version`: number of writes since the key was created. `lease`: the lease that the key ends with, 0 without one.
    """

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int


# -- transactions ------------------------------------------------------------------------------------------------------


class WrittenAt(Struct, frozen=True):
    """Condition: this revision wrote the key last; 0: there is no such key."""

    key: str
    revision: int


class MadeAt(Struct, frozen=True):
    """Condition: this revision created the key; 0: there is no such key."""

    key: str
    revision: int


class HeldBy(Struct, frozen=True):
    """Condition: the key exists, and ends with this lease."""

    key: str
    lease: int


Condition = WrittenAt | MadeAt | HeldBy


class Get(Struct, frozen=True):
    """Operation: read the key, or all keys from `key` to `stop` exclusively, ascending, at most `count_max` (0: all).

    `keys_only`: with empty values.
    """

    key: str
    stop: str | None = None
    count_max: int = 0
    keys_only: bool = False


class Put(Struct, frozen=True):
    """Operation: write the key; with a lease, for the life of the lease."""

    key: str
    value: bytes
    lease: int = 0


class Delete(Struct, frozen=True):
    """Operation: delete the key if it exists, or all keys from `key` to `stop` exclusively."""

    key: str
    stop: str | None = None


Operation = Get | Put | Delete


class Answer(Struct, frozen=True):
    """The result of a transaction. `is_met`: all conditions held, so `then` was carried out and not `otherwise`.
    `revision`: of the store, after the transaction.

    `items`: the keys of each `Get` in the part that was carried out, in order.
    """

    is_met: bool
    revision: int
    items: list[list[KeyValue]]


class Credentials(Struct, frozen=True):
    """Credentials and TLS data for etcd. `authority`, `certificate`, `key`: PEM.

    `authority`: None: the authorities that this machine trusts. `server_name`: the name in the server's certificate, if
    it is not the host name of the URI.
    """

    user: str | None = None
    password: str = ""
    is_tls: bool = False
    authority: bytes | None = None
    certificate: bytes | None = None
    key: bytes | None = None
    server_name: str | None = None

    def __repr__(self) -> str:
        return f"Credentials(user={self.user!r}, is_tls={self.is_tls}, server_name={self.server_name!r})"  # no secrets

    def __rich_repr__(self) -> list[tuple[str, object]]:
        return [("", repr(self))]  # a struct's own method returns all fields


class Only(enum.Enum):
    """The kind of changes that a watch reports."""

    PUTS = "puts"
    DELETIONS = "deletions"


class Etcd(Protocol):
    """One client of etcd."""

    hosts: str

    async def open(self) -> None:
        """Connect. Raises `MetadataError` if no server answers within a session timeout, or the server refuses the
        credentials.
        """

    async def close(self) -> None:
        """Close the connection; leases live on until they expire. Idempotent."""

    async def transact(
        self, conditions: Sequence[Condition], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> Answer:
        """Carry out a transaction atomically. It sees every change, by any client, that succeeded before the call."""

    async def grant_lease(self, ttl_s: int) -> tuple[int, int]:
        """Return a new lease, and its time to live without renewal, in seconds; etcd may choose a longer time."""

    async def keep_lease(self, lease: int) -> bool:
        """Renew a lease for its full time. False: it has ended."""

    async def revoke_lease(self, lease: int) -> None:
        """End a lease, which deletes the keys attached to it. A lease that has ended already counts as success."""

    def watch(
        self, key: str, stop: str | None, revision: int, callback: Callable[[], None], *, only: Only | None = None
    ) -> None:
        """Call back once, on the event loop, soon after this key, or one between it and `stop`, was changed by
        `revision` or later. Also call back when changes may have been missed: read the state, and watch again.

        `only`: ignore the other changes.
        """

    def unwatch(self, callback: Callable[[], None]) -> None:
        """Remove a callback's watches: it is not called any more."""
