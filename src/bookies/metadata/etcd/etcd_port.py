"""The etcd port: what the metadata driver needs of an etcd client, on the event loop.

`metadata/etcd/grpc_etcd.py` implements it on gRPC, `tests/fakes/etcd.py` in memory. Everything is a transaction, reads too.
Every call waits for a connection first, at most one session timeout, and can be cancelled at any time. Failures:

- `LeaseMissing`: the lease that a key was to be attached to is gone; nothing was changed.
- `InvalidArgument`: this etcd does not take so much at once; nothing was changed.
- `OutcomeUnknown`: the connection went while the transaction was under way; it may or may not have been carried out.
  Transactions that only read are repeated by the port as long as there is time.
- any other `MetadataError`: nothing was changed.

Source: metadata 10; the meaning of each operation is that of etcd's published API, version 3.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bookies.errors import MetadataError


class OutcomeUnknown(MetadataError):
    """The connection to etcd went before the answer came: the transaction may or may not have happened."""


class LeaseMissing(Exception):
    """There is no such lease: it has run out, or was revoked."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """One key. Revisions count the changes of the whole store: the one that made the key, the one that wrote it last.

    `version`: how often it was written since it was made. `lease`: that it lives as long as, 0 without one.
    """

    key: str
    value: bytes
    create_revision: int
    mod_revision: int
    version: int
    lease: int


# -- transactions ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WrittenAt:
    """Condition: the key was written last by this revision; 0: there is no such key."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class MadeAt:
    """Condition: the key was made by this revision; 0: there is no such key."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class HeldBy:
    """Condition: the key is there, and goes with this lease."""

    key: str
    lease: int


Condition = WrittenAt | MadeAt | HeldBy


@dataclass(frozen=True, slots=True)
class Get:
    """The key, or all keys from `key` up to but without `stop`, ascending, `count_max` at most (0: all of them).

    `keys_only`: with empty values.
    """

    key: str
    stop: str | None = None
    count_max: int = 0
    keys_only: bool = False


@dataclass(frozen=True, slots=True)
class Put:
    """Write the key; with a lease, for as long as that lives."""

    key: str
    value: bytes
    lease: int = 0


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the key if it is there."""

    key: str


Operation = Get | Put | Delete


@dataclass(frozen=True, slots=True)
class Answer:
    """`is_met`: all conditions held, so `then` was carried out and not `otherwise`. `revision`: of the store, after it.

    `found`: what each `Get` of the part carried out has found, in order.
    """

    is_met: bool
    revision: int
    found: list[list[KeyValue]]


@dataclass(frozen=True, slots=True)
class Credentials:
    """How to authenticate with etcd, and how to encrypt. PEM in `authority`, `certificate` and `key`.

    `authority` None: the authorities that this machine trusts. `server_name`: what the server's certificate says, where
    that is not the host name of the URI.
    """

    user: str | None = None
    password: str = field(default="", repr=False)
    is_tls: bool = False
    authority: bytes | None = field(default=None, repr=False)
    certificate: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)
    server_name: str | None = None


class Only(enum.Enum):
    """Changes that a watch hears of."""

    PUTS = "puts"
    DELETIONS = "deletions"


class Etcd(Protocol):
    """One client."""

    hosts: str

    async def open(self) -> None:
        """Connect. Raises `MetadataError` when no server answers within a session timeout, or refuses credentials."""

    async def close(self) -> None:
        """Leases live on until they run out. Idempotent."""

    async def transact(
        self, conditions: Sequence[Condition], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> Answer:
        """One step, which sees every change that had succeeded when it was called, by whomever."""

    async def grant_lease(self, ttl_s: int) -> tuple[int, int]:
        """A new lease, and how long it lives when it is not kept, in seconds; etcd may make that longer."""

    async def keep_lease(self, lease: int) -> bool:
        """Let it live another whole time. False: it is gone."""

    async def revoke_lease(self, lease: int) -> None:
        """End it, and what is attached to it goes. One that is gone already counts as success."""

    def watch(
        self, key: str, stop: str | None, revision: int, callback: Callable[[], None], *, only: Only | None = None
    ) -> None:
        """Call back once, on the loop, soon after this key, or one from it up to `stop`, was changed by `revision` or
        later; and also whenever that cannot be known any more: look again, and watch again.

        `only`: the other changes do not count.
        """

    def unwatch(self, callback: Callable[[], None]) -> None:
        """It is not called any more."""
