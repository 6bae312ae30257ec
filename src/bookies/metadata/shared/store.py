"""The port of an embedded metadata store: atomic, synchronous operations, without asyncio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bookies.metadata.interface.driver import (
    BookieSet,
    GivenIds,
    Step,
)
from bookies.metadata.shared.recovery import Node
from bookies.model import BookieId, BookieMode


@dataclass(frozen=True, slots=True)
class Record:
    """A ledger's record as stored. `ctime_ms`: time of creation, wall clock."""

    data: bytes
    version: int
    ctime_ms: int


@dataclass(frozen=True, slots=True)
class Observation:
    """The watched state of the store at one moment.

    `ledgers`, `records`, `nodes`: versions of the watched ones that exist. `sets`: watched sets whose version differs
    from the observer's.
    """

    ledgers: Mapping[int, int]
    sets: Mapping[BookieMode, BookieSet]
    records: Mapping[str, int]
    nodes: Mapping[str, int]


class Store(Protocol):
    """A store with atomic, synchronous, linearizable operations. One revision grows with every change and serves as the
    version of everything.

    An operation without a docstring does what the method of that name in `MetadataDriver` does.
    """

    def initialize(self, candidate: str) -> str:
        """Store `candidate` as the instance id unless there is one; return the stored one. Raises `half_a_cluster`."""

    def instance_id(self) -> str | None: ...

    def given_ids(self) -> GivenIds: ...

    def restore_ids(self, ids: GivenIds) -> None: ...

    def restore_instance_id(self, instance_id: str) -> None: ...

    def next_ledger_id(self) -> int: ...

    def create_ledger(self, ledger_id: int, data: bytes, ctime_ms: int) -> tuple[bool, Record]:
        """Create a record; return (whether it was created, the stored record).

        Raises `deleted_before` for the id of a deleted ledger.
        """

    def read_ledger(self, ledger_id: int) -> Record | None: ...

    def read_ledgers(self, ledger_ids: Sequence[int]) -> Sequence[Record | None]: ...

    def write_ledger(
        self, ledger_id: int, data: bytes, expected_version: int, holder: tuple[int, str] | None = None
    ) -> Record:
        """Write a record. `holder`: (session, place) of a node that the session must hold.

        Raises `VersionConflict`, `LedgerNotFound`, and the error of `lock_lost`.
        """

    def delete_ledger(self, ledger_id: int, expected_version: int | None) -> None: ...

    def ledger_ids(self, above: int, count: int) -> Sequence[int]:
        """Return the next `count` ids above `above`, ascending."""

    def begin_session(self, lease_ms: int) -> int: ...

    def renew_session(self, session_id: int) -> bool:
        """Renew the lease for its full length. False: the session has ended, and with it its registrations."""

    def end_session(self, session_id: int) -> None: ...

    def register(self, session_id: int, bookie: BookieId, mode: BookieMode, data: bytes) -> int | None:
        """Register a bookie. Returns None when done, otherwise the remaining lease, in ms, of the session that holds
        the registration.

        Raises `SessionExpired`.
        """

    def unregister(self, session_id: int, bookie: BookieId) -> None: ...

    def bookies(self, mode: BookieMode) -> BookieSet: ...

    def all_bookies(self) -> BookieSet: ...

    def registration(self, bookie: BookieId) -> bytes | None: ...

    def observe(
        self,
        ledger_ids: Sequence[int],
        known: Mapping[BookieMode, int],
        is_complete: bool,
        names: Sequence[str] = (),
        places: Sequence[str] = (),
    ) -> Observation | None:
        """Observe the watched state. None: nothing has changed since this connection's last observation.

        `ledger_ids`, `names`, `places`: of watched ledgers, records, nodes. `known`: the watched sets, with the
        observer's versions. `is_complete`: return an observation also without changes.
        """

    def create_cookie(self, bookie: BookieId, data: bytes) -> int: ...

    def read_cookie(self, bookie: BookieId) -> tuple[bytes, int] | None: ...

    def write_cookie(self, bookie: BookieId, data: bytes, expected_version: int) -> int: ...

    def delete_cookie(self, bookie: BookieId, expected_version: int) -> None: ...

    def create_record(self, name: str, data: bytes) -> int: ...

    def read_record(self, name: str) -> tuple[bytes, int]: ...

    def write_record(self, name: str, data: bytes, expected_version: int) -> int: ...

    def delete_record(self, name: str, expected_version: int) -> None: ...

    def record_names(self, prefix: str) -> Sequence[str]: ...

    def transact(self, steps: Sequence[Step]) -> int: ...

    # Nodes: auto-recovery's state, see `store_recovery`.
    def read_node(self, place: str) -> Node | None: ...

    def create_node(self, place: str, data: bytes) -> bool:
        """Create a node. False: it exists."""

    def write_node(self, place: str, data: bytes, expected_version: int | None) -> bool:
        """Write a node that has this version; None: write or create it unconditionally.

        False: it is missing, or has another version.
        """

    def delete_node(self, place: str, expected_version: int | None) -> bool:
        """Delete a node that has this version; None: any version. False: it is missing, or has another version."""

    def nodes(self, prefix: str, above: str, count: int) -> Sequence[tuple[str, Node]]:
        """Return the nodes whose places begin with `prefix` and come after `above`, ascending, at most `count`."""

    def hold_node(self, session_id: int, place: str, data: bytes) -> int | None:
        """Create a node that ends with the session; return its version. None: another session's node is there.

        A node of this session stays as it is. Raises `SessionExpired`.
        """

    def release_node(self, session_id: int, place: str) -> None:
        """Delete the node if it belongs to this session."""
