"""The port of an embedded metadata store: keys with data and versions, changed by atomic transactions.

Every operation is synchronous, atomic and linearizable. One revision grows with every change and serves as the version
of everything. A key is a table and a name in it, so one pair of operations, `get` and `commit`, serves ledgers,
cookies, records, registrations and auto-recovery's nodes. `store_driver` knows what they mean; a store knows three
rules only, which `table_store` implements:

- A deleted ledger's number is spent: its key can never be created again.
- The version of the key `WORK` grows when a mark is created, and when a lock whose mark exists is deleted.
- A registration that is put again unchanged is no change.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from bookies.metadata.interface.driver import GivenIds
from bookies.metadata.shared.recovery import Node

MARKS, LOCKS, VOTES = "marks/", "locks/", "votes/"  # prefixes of names of nodes


class Table(enum.Enum):
    """A table. The names of ledgers are numbers. A bookie's registration is in the table of its mode."""

    CLUSTER = "cluster"
    LEDGERS = "ledgers"
    COOKIES = "cookies"
    RECORDS = "records"
    NODES = "nodes"
    WRITABLE = "writable"
    READ_ONLY = "read-only"


REGISTRATIONS = (Table.WRITABLE, Table.READ_ONLY)


class Key(NamedTuple):
    """A place for one item."""

    table: Table
    name: str | int


INSTANCE_ID = Key(Table.CLUSTER, "instance id")
WORK = Key(Table.NODES, "work")  # changes whenever a ledger may have become repairable; never read, only observed


class Item(Node, frozen=True):
    """The data at a key. `version` is 0 for registrations and the instance id.

    `session`: the session that the item ends with; 0: persistent. `ctime_ms`: time of creation of a ledger, wall clock.
    """

    session: int = 0
    ctime_ms: int = 0


# -- transactions ------------------------------------------------------------------------------------------------------


class At(Struct, frozen=True):
    """Condition: the item has this version; 0: it is missing, and not the key of a deleted ledger."""

    key: Key
    version: int


class Exists(Struct, frozen=True):
    """Condition: there is an item."""

    key: Key


class HeldBy(Struct, frozen=True):
    """Condition: the item exists, and ends with this session."""

    key: Key
    session: int


class FreeFor(Struct, frozen=True):
    """Condition: the item is missing, or ends with this session."""

    key: Key
    session: int


class Empty(Struct, frozen=True):
    """Condition: the table has no item."""

    table: Table


Condition = At | Exists | HeldBy | FreeFor | Empty


class Put(Struct, frozen=True):
    """Change: write the item. An existing item keeps its session and its time of creation.

    `session`: raises `SessionExpired` unless this session exists.
    """

    key: Key
    data: bytes
    session: int = 0
    ctime_ms: int = 0


class Delete(Struct, frozen=True):
    """Change: delete the item if it exists."""

    key: Key


Change = Put | Delete


class Outcome(Struct, frozen=True):
    """The result of a transaction. `is_done`: all conditions held, so the changes were carried out.

    `version`: of the items that it wrote. `items`: of the conditions' keys, in order, before the changes. `wait_ms`: if
    another session holds a key that had to be free, the rest of that session's lease.
    """

    is_done: bool
    version: int
    items: Sequence[Item | None]
    wait_ms: int = 0


def holds(condition: At | Exists | HeldBy | FreeFor, item: Item | None) -> bool:
    """Report whether a condition on a key holds. `item`: the item at the key."""
    if isinstance(condition, At):
        return item is None if condition.version == 0 else item is not None and item.version == condition.version
    if item is None:
        return isinstance(condition, FreeFor)
    return isinstance(condition, Exists) or item.session == condition.session


# -- the port ----------------------------------------------------------------------------------------------------------


class Page(Struct, frozen=True):
    """Items of one table, ascending by name. `version`: of the set of bookies, if the table is one."""

    items: Sequence[tuple[str | int, Item]]
    version: int


class Observation(Struct, frozen=True):
    """The watched state of the store at one moment.

    `versions`: of the watched keys that exist. `sets`: the watched tables whose version differs from the observer's.
    """

    versions: Mapping[Key, int]
    sets: Mapping[Table, Page]


class Nodes(Protocol):
    """An embedded store."""

    def get(self, keys: Sequence[Key]) -> list[Item | None]:
        """Read several items at one moment."""

    def list(
        self, table: Table, prefix: str = "", after: str | int | None = None, count: int = -1, has_data: bool = True
    ) -> Page:
        """Return the items whose names begin with `prefix` and come after `after`, at most `count` (-1: all).

        `has_data`: False: the items may lack their data.
        """

    def commit(self, conditions: Sequence[Condition], changes: Sequence[Change]) -> Outcome:
        """Carry out the changes, which all get one version, if every condition holds."""

    def next_id(self) -> int:
        """Return a ledger's number that was never returned before."""

    def given_ids(self) -> GivenIds: ...

    def restore_ids(self, ids: GivenIds) -> None: ...

    def unspend(self, ledger_id: int) -> None:
        """Allow the key of a deleted ledger to be created again."""

    def clear(self) -> None:
        """Delete all items and all spent numbers. The revision and the next number stay, so that neither returns."""

    def begin_session(self, lease_ms: int) -> int: ...

    def renew_session(self, session: int) -> bool:
        """Renew the lease for its full length. False: the session has ended, and with it its items."""

    def end_session(self, session: int) -> None: ...

    def observe(self, keys: Sequence[Key], sets: Mapping[Table, int], is_complete: bool) -> Observation | None:
        """Observe the watched state. None: nothing has changed since this connection's last observation.

        `sets`: the watched tables, with the observer's versions. `is_complete`: return an observation also without
        changes.
        """
