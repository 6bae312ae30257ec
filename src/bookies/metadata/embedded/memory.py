"""A metadata store in this process: for tests, the simulator, and programs that run bookies and clients together.

`MemoryStore` is the store, `MemoryDriver` one session with it. Every operation is one step of the event loop, which
makes it linearizable; so all drivers of a store must run on one loop at a time. A session lives until its driver is
closed or `expire` is called. `Faults` makes calls to the store as unreliable as calls over a network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from bookies.errors import MetadataError, VersionConflict
from bookies.metadata.interface.driver import GivenIds
from bookies.metadata.interface.spent_ids import without
from bookies.metadata.shared.nodes import (
    WORK,
    At,
    Change,
    Condition,
    Item,
    Key,
    Observation,
    Outcome,
    Page,
    Put,
    Table,
)
from bookies.metadata.shared.store_driver import StoreDriver, instance_id_of
from bookies.metadata.shared.table_store import COUNTERS, NEXT_ID, REVISION, TableStore
from bookies.protocol.quorums import IdSet
from bookies.runtime.ports import Runtime

T = TypeVar("T")

SESSION_TIMEOUT_MS = 10_000


class Faults(Protocol):
    """Faults between a driver and the store. Both methods may wait; an exception becomes that of the operation.

    `operation`: the name of the driver's method, `watch` for an observation for its watches, or `begin_session`.
    """

    async def before(self, operation: str, driver: MemoryDriver) -> None:
        """Run before the operation. A `MetadataError` is a lost request: the operation has no effect. If it raises
        `VersionConflict` for `write_ledger`, the driver rewrites the record first, so that the conflict is real.
        """

    async def after(self, operation: str, driver: MemoryDriver) -> None:
        """Run after the operation. A `MetadataError` is a lost reply: the operation has taken effect."""


class MemoryStore(TableStore):
    """`Nodes` in memory. `name`: empty for a private store."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self._tables: dict[Table, dict[str | int, Item]] = {table: {} for table in Table}
        self._counters = dict.fromkeys(COUNTERS, 0)
        self._spent = IdSet(0)  # numbers of deleted ledgers, never used again
        self._session_count = 0
        self._sessions: dict[int, None] = {}  # alive
        self._listeners: dict[MemoryDriver, None] = {}

    @property
    def revision(self) -> int:
        return self._counters[REVISION]

    # -- drivers -------------------------------------------------------------------------------------------------
    def attach(self, driver: MemoryDriver) -> None:
        """Notify a driver of every change. Raises `MetadataError` while drivers on another loop are open."""
        for other in list(self._listeners):
            if other.loop.is_closed():
                self.detach(other)  # It was not closed before its loop, and cannot be closed any more.
                if other.session_id is not None:
                    self.end_session(other.session_id)
            elif other.loop is not driver.loop:
                raise MetadataError(f"memory:{self.name} is in use on another event loop; use file:DIR to share it")
        self._listeners[driver] = None

    def detach(self, driver: MemoryDriver) -> None:
        self._listeners.pop(driver, None)

    # -- items ---------------------------------------------------------------------------------------------------
    def get(self, keys: Sequence[Key]) -> list[Item | None]:
        return [self._item(key) for key in keys]

    def list(
        self, table: Table, prefix: str = "", after: str | int | None = None, count: int = -1, has_data: bool = True
    ) -> Page:
        items = self._tables[table]
        names = (name for name in items if after is None or name > after)  # type: ignore[operator]
        chosen = sorted(name for name in names if not prefix or str(name).startswith(prefix))
        if count >= 0:
            del chosen[count:]
        return Page([(name, items[name]) for name in chosen], self._counters.get(table.value, 0))

    def commit(self, conditions: Sequence[Condition], changes: Sequence[Change]) -> Outcome:
        return self._transact(conditions, changes)

    def rewrite(self, key: Key) -> None:
        """Write an item unchanged: it gets a new version, which conflicts with writers of the old one. Without the
        item, no effect.
        """
        item = self._item(key)
        if item is not None:
            self._apply([Put(key, item.data)], {key: item})

    def _item(self, key: Key) -> Item | None:
        return self._tables[key.table].get(key.name)

    def _put(self, key: Key, item: Item) -> None:
        self._tables[key.table][key.name] = item

    def _delete(self, key: Key) -> None:
        del self._tables[key.table][key.name]

    def _is_empty(self, table: Table) -> bool:
        return not self._tables[table]

    def _counter(self, name: str) -> int:
        return self._counters[name]

    def _set_counter(self, name: str, value: int) -> None:
        self._counters[name] = value
        if name == REVISION:
            for driver in self._listeners:
                driver.notify()

    # -- ledgers' numbers ----------------------------------------------------------------------------------------
    def next_id(self) -> int:
        self._counters[NEXT_ID] += 1
        return self._counters[NEXT_ID] - 1

    def given_ids(self) -> GivenIds:
        runs = ([(0, self._spent.bound)] if self._spent.bound > 0 else []) + self._spent.runs
        return GivenIds(self._counters[NEXT_ID], tuple((start, stop - 1) for start, stop in runs))

    def restore_ids(self, ids: GivenIds) -> None:
        self._counters[NEXT_ID] = max(self._counters[NEXT_ID], ids.next_id)
        for first, last in ids.spent:
            self._spend(first, last)

    def unspend(self, ledger_id: int) -> None:
        self._spent = without(self._spent, ledger_id)

    def clear(self) -> None:
        items = {Key(table, name): item for table in Table for name, item in self._tables[table].items()}
        self._end(items)
        self._spent = IdSet(0)

    def _is_spent(self, ledger_id: int) -> bool:
        return ledger_id in self._spent

    def _spend(self, first: int, last: int) -> None:
        self._spent.add(first, last + 1)

    # -- sessions ------------------------------------------------------------------------------------------------
    def begin_session(self, lease_ms: int) -> int:
        self._session_count += 1
        self._sessions[self._session_count] = None
        return self._session_count

    def renew_session(self, session: int) -> bool:
        return session in self._sessions

    def end_session(self, session: int) -> None:
        if session in self._sessions:
            del self._sessions[session]
            items = [(Key(table, name), item) for table in Table for name, item in self._tables[table].items()]
            self._end({key: item for key, item in items if item.session == session})

    def _lease_left_ms(self, session: int) -> int | None:
        return SESSION_TIMEOUT_MS if session in self._sessions else None

    def observe(self, keys: Sequence[Key], sets: Mapping[Table, int], is_complete: bool) -> Observation | None:
        items = zip(keys, self.get(keys), strict=True)
        versions = {key: item.version for key, item in items if item is not None}
        if WORK in keys:
            versions[WORK] = self._counters[str(WORK.name)]
        changed = [table for table, version in sets.items() if self._counters[table.value] != version]
        return Observation(versions, {table: self.list(table) for table in changed})


_SHARED: dict[str, MemoryStore] = {}


def shared_store(name: str) -> MemoryStore:
    """Return the store of that name, created by the first call and kept for the life of the process."""
    return _SHARED.setdefault(name, MemoryStore(name))


class MemoryDriver(StoreDriver):
    """One session with a `MemoryStore`. Without a runtime, creation times are the event loop's, and instance ids are
    derived from the revision.
    """

    def __init__(self, store: MemoryStore, runtime: Runtime | None = None, *, faults: Faults | None = None) -> None:
        super().__init__(f"memory:{store.name}", store, SESSION_TIMEOUT_MS)
        self.store = store
        self._runtime = runtime
        self._faults = faults

    async def open(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.store.attach(self)
        await super().open()

    async def close(self) -> None:
        self.store.detach(self)
        await super().close()

    def expire(self) -> None:
        """Lose the session now: registrations end and the owner is notified, as after an expired lease."""
        session_id = self.session_id
        if session_id is not None:
            self.store.end_session(session_id)
            self.lose_session(session_id)

    def notify(self) -> None:
        """Wake the observer, a task of its own, after a change of the store by any driver."""
        if not self.loop.is_closed():
            self._has_news.set()

    async def _call(self, operation: str, function: Callable[..., T], *arguments: object) -> T:
        await asyncio.sleep(0)  # As with any store, others may run before the operation does.
        if self._faults is None:
            return function(*arguments)
        try:
            await self._faults.before(operation, self)
        except VersionConflict:
            if operation != "write_ledger":
                raise
            self._rewrite(arguments[0])
        result = function(*arguments)
        await self._faults.after(operation, self)
        return result

    def _rewrite(self, conditions: object) -> None:
        assert isinstance(conditions, Sequence)
        assert isinstance(conditions[0], At)
        self.store.rewrite(conditions[0].key)

    def _wall_ms(self) -> int:
        return int(self.loop.time() * 1000) if self._runtime is None else self._runtime.clock.wall_ms()

    def _new_instance_id(self) -> str:
        return instance_id_of(self.store.revision if self._runtime is None else self._runtime.random.getrandbits(128))
