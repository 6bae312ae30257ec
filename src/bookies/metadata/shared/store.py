"""The port of an embedded metadata store: atomic, synchronous operations that know nothing of asyncio."""

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
    """A ledger's record as stored. `ctime_ms`: when it was created, wall clock."""

    data: bytes
    version: int
    ctime_ms: int


@dataclass(frozen=True, slots=True)
class Observation:
    """What an observer asked for, at one moment.

    `ledgers`, `records`, `nodes`: versions of those watched that exist. `sets`: those that the observer did not know in
    this version.
    """

    ledgers: Mapping[int, int]
    sets: Mapping[BookieMode, BookieSet]
    records: Mapping[str, int]
    nodes: Mapping[str, int]


class Store(Protocol):
    """Atomic, synchronous, linearizable. One revision grows with every change and serves as version everywhere.

    Operations without their own sentence do what the method of `MetadataDriver` of that name says.
    """

    def initialize(self, candidate: str) -> str:
        """Make `candidate` the instance id unless there is one; return the one there is. Raises `half_a_cluster`."""

    def instance_id(self) -> str | None: ...

    def given_ids(self) -> GivenIds: ...

    def restore_ids(self, ids: GivenIds) -> None: ...

    def restore_instance_id(self, instance_id: str) -> None: ...

    def next_ledger_id(self) -> int: ...

    def create_ledger(self, ledger_id: int, data: bytes, ctime_ms: int) -> tuple[bool, Record]:
        """(whether it was created, the record there is now). Raises `deleted_before` for the id of a deleted ledger."""

    def read_ledger(self, ledger_id: int) -> Record | None: ...

    def read_ledgers(self, ledger_ids: Sequence[int]) -> Sequence[Record | None]: ...

    def write_ledger(
        self, ledger_id: int, data: bytes, expected_version: int, holder: tuple[int, str] | None = None
    ) -> Record:
        """`holder`: the session that has to hold this node. Raises `VersionConflict`, `LedgerNotFound`, and the error
        of `lock_lost`."""

    def delete_ledger(self, ledger_id: int, expected_version: int | None) -> None: ...

    def ledger_ids(self, above: int, count: int) -> Sequence[int]:
        """The next `count` ids above one, ascending."""

    def begin_session(self, lease_ms: int) -> int: ...

    def renew_session(self, session_id: int) -> bool:
        """Prolong the lease by its length from now. False: the session is gone, and with it its registrations."""

    def end_session(self, session_id: int) -> None: ...

    def register(self, session_id: int, bookie: BookieId, mode: BookieMode, data: bytes) -> int | None:
        """None: done. Otherwise another session holds the registration, for that many ms unless it renews its lease.

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
        """See `Observation`. `known`: versions of the sets that are watched; `names`: of watched records; `places`: of
        watched nodes. None: nothing changed since this connection's last observation; never so if it has to be
        complete.
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

    # Nodes: what auto-recovery keeps, see `leased_recovery`.
    def read_node(self, place: str) -> Node | None: ...

    def create_node(self, place: str, data: bytes) -> bool:
        """False: there is one."""

    def write_node(self, place: str, data: bytes, expected_version: int | None) -> bool:
        """False: it is missing, or has another version. None: whatever is there, also when nothing is."""

    def delete_node(self, place: str, expected_version: int | None) -> bool:
        """False: as `write_node`; None: whatever is there."""

    def nodes(self, prefix: str, above: str, count: int) -> Sequence[tuple[str, Node]]:
        """Those whose places begin with `prefix` and come after `above`, ascending, `count` at most."""

    def hold_node(self, session_id: int, place: str, data: bytes) -> int | None:
        """Make a node that ends with the session; its version. None: another session's is there. One of this session's
        stays as it is. Raises `SessionExpired`.
        """

    def release_node(self, session_id: int, place: str) -> None:
        """Delete the node if it is this session's."""
