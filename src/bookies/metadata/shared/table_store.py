"""Transactions of an embedded store, over the operations that differ between memory and SQLite.

It has the three rules of the port `Nodes`: spent numbers of ledgers, the key `WORK`, registrations without change.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from bookies.errors import SessionExpired
from bookies.metadata.shared.nodes import (
    LOCKS,
    MARKS,
    REGISTRATIONS,
    WORK,
    At,
    Change,
    Condition,
    Delete,
    Empty,
    Exists,
    FreeFor,
    HeldBy,
    Item,
    Key,
    Outcome,
    Put,
    Table,
    holds,
)

REVISION = "revision"  # counters; those of sets of bookies have the names of the tables
NEXT_ID = "next ledger id"
UNVERSIONED = (Table.CLUSTER, *REGISTRATIONS)
COUNTERS = (REVISION, NEXT_ID, *(table.value for table in (*REGISTRATIONS, Table.COOKIES)), str(WORK.name))


class TableStore(ABC):
    """The part of an embedded store that carries out transactions. Its caller makes them atomic."""

    @abstractmethod
    def _item(self, key: Key) -> Item | None: ...

    @abstractmethod
    def _put(self, key: Key, item: Item) -> None: ...

    @abstractmethod
    def _delete(self, key: Key) -> None: ...

    @abstractmethod
    def _is_empty(self, table: Table) -> bool: ...

    @abstractmethod
    def _is_spent(self, ledger_id: int) -> bool: ...

    @abstractmethod
    def _spend(self, first: int, last: int) -> None:
        """Exclude a run of numbers from new ledgers."""

    @abstractmethod
    def _lease_left_ms(self, session: int) -> int | None:
        """Return the rest of a session's lease, 0 or more; None: the session has ended."""

    @abstractmethod
    def _counter(self, name: str) -> int: ...

    @abstractmethod
    def _set_counter(self, name: str, value: int) -> None: ...

    # -- transactions --------------------------------------------------------------------------------------------
    def _transact(self, conditions: Sequence[Condition], changes: Sequence[Change]) -> Outcome:
        """Carry out a transaction, see `Nodes.commit`."""
        for change in changes:
            if isinstance(change, Put) and change.session and self._lease_left_ms(change.session) is None:
                raise SessionExpired("the session with the metadata store has ended")
        known: dict[Key, Item | None] = {}
        items: list[Item | None] = []
        is_met, wait_ms = True, 0
        for condition in conditions:
            if isinstance(condition, Empty):
                item, holds_now = None, self._is_empty(condition.table)
            else:
                item = known[condition.key] = self._item(condition.key)
                holds_now = self._holds(condition, item)
                if isinstance(condition, FreeFor) and item is not None and not holds_now:
                    wait_ms = max(wait_ms, self._lease_left_ms(item.session) or 0)
            items.append(item)
            is_met = is_met and holds_now
        if not is_met:
            return Outcome(False, self._counter(REVISION), items, wait_ms)
        for change in changes:
            if change.key not in known:
                known[change.key] = self._item(change.key)
        effective = [change for change in changes if _has_effect(change, known[change.key])]
        return Outcome(True, self._apply(effective, known), items)

    def _holds(self, condition: At | Exists | HeldBy | FreeFor, item: Item | None) -> bool:
        if isinstance(condition, At) and not condition.version and item is None:
            table, name = condition.key
            return table is not Table.LEDGERS or not self._is_spent(int(name))
        return holds(condition, item)

    def _apply(self, changes: Sequence[Change], known: Mapping[Key, Item | None]) -> int:
        """Carry out changes that all have an effect, under a new revision; return it. No changes: the current one.

        `known`: the items before the changes.
        """
        revision = self._counter(REVISION)
        if any(change.key.table is not Table.CLUSTER for change in changes):
            revision += 1
            self._set_counter(REVISION, revision)
        for change in changes:
            table, before = change.key.table, known[change.key]
            if isinstance(change, Put):
                self._write(change, before, revision)
            else:
                self._remove(change.key, revision)
            if table in REGISTRATIONS or (table is Table.COOKIES and (before is None or isinstance(change, Delete))):
                self._set_counter(table.value, revision)
        return revision

    def _end(self, items: Mapping[Key, Item | None]) -> None:
        """Delete the items of a session that has ended."""
        self._apply([Delete(key) for key in items], items)

    def _write(self, put: Put, before: Item | None, revision: int) -> None:
        session, ctime_ms = (put.session, put.ctime_ms) if before is None else (before.session, before.ctime_ms)
        version = 0 if put.key.table in UNVERSIONED else revision
        self._put(put.key, Item(put.data, version, session, ctime_ms))
        if before is None and put.key.table is Table.NODES and str(put.key.name).startswith(MARKS):
            self._set_counter(str(WORK.name), revision)

    def _remove(self, key: Key, revision: int) -> None:
        self._delete(key)
        if key.table is Table.LEDGERS:
            self._spend(int(key.name), int(key.name))
        name = str(key.name)
        if key.table is Table.NODES and name.startswith(LOCKS):
            mark = Key(Table.NODES, MARKS + name.removeprefix(LOCKS))
            if self._item(mark) is not None:
                self._set_counter(str(WORK.name), revision)


def _has_effect(change: Change, before: Item | None) -> bool:
    if isinstance(change, Delete):
        return before is not None
    return before is None or change.key.table not in REGISTRATIONS or before.data != change.data
