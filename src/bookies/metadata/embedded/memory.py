"""A metadata store in this process: for tests, the simulator, and programs that run bookies and clients together.

`MemoryStore` is the store, `MemoryDriver` one session with it. Every operation is one step of the event loop, which
makes it linearizable; so all drivers of a store must run on one loop at a time. A session lives until its driver is
closed or `expire` is called. `Faults` makes calls to the store as unreliable as calls over a network.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from heapq import nsmallest
from typing import Protocol, TypeVar

from bookies.errors import (
    CookieExists,
    CookieNotFound,
    LedgerNotFound,
    MetadataError,
    RecordExists,
    RecordNotFound,
    SessionExpired,
    VersionConflict,
)
from bookies.metadata.interface.driver import BookieSet, GivenIds, LedgerAt, LedgerDeletion, RecordWrite, Step
from bookies.metadata.interface.recovery_store import lock_lost
from bookies.metadata.shared.recovery import Node
from bookies.metadata.shared.store import Observation, Record
from bookies.metadata.shared.store_driver import (
    StoreDriver,
    check_record_version,
    check_version,
    deleted_before,
    half_a_cluster,
    instance_id_of,
    other_cluster,
)
from bookies.metadata.shared.store_recovery import MARKS, WORK, mark_of_lock
from bookies.model import BookieId, BookieMode
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


class MemoryStore:
    """A `Store` in memory. `name`: empty for a private store."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.revision = 0
        self._instance_id: str | None = None
        self._next_ledger_id = 0
        self._ledgers: dict[int, Record] = {}
        self._deleted = IdSet(0)  # ids of deleted ledgers, never used again
        self._cookies: dict[BookieId, tuple[bytes, int]] = {}
        self._records: dict[str, tuple[bytes, int]] = {}
        self._nodes: dict[str, Node] = {}
        self._owners: dict[str, int] = {}  # place of an ephemeral node -> session
        self._work = 0  # see `store_recovery`
        self._session_count = 0
        self._sessions: dict[int, dict[BookieId, tuple[BookieMode, bytes]]] = {}  # alive, with their registrations
        self._set_versions: dict[BookieMode | None, int] = {None: 0, BookieMode.WRITABLE: 0, BookieMode.READ_ONLY: 0}
        self._listeners: dict[MemoryDriver, None] = {}

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

    def _changed(self, *sets: BookieMode | None) -> int:
        """Begin a new revision, also of the named sets of bookies; return it."""
        self.revision += 1
        for name in sets:
            self._set_versions[name] = self.revision
        for driver in self._listeners:
            driver.notify()
        return self.revision

    # -- the cluster ---------------------------------------------------------------------------------------------
    def initialize(self, candidate: str) -> str:
        if self._instance_id is None:
            if self._cookies:
                raise half_a_cluster()
            self._instance_id = candidate
        return self._instance_id

    def instance_id(self) -> str | None:
        return self._instance_id

    def given_ids(self) -> GivenIds:
        runs = ([(0, self._deleted.bound)] if self._deleted.bound > 0 else []) + self._deleted.runs
        return GivenIds(self._next_ledger_id, tuple((start, stop - 1) for start, stop in runs))

    def restore_ids(self, ids: GivenIds) -> None:
        self._next_ledger_id = max(self._next_ledger_id, ids.next_id)
        for first, last in ids.spent:
            self._deleted.add(first, last + 1)

    def restore_instance_id(self, instance_id: str) -> None:
        if self._instance_id not in (None, instance_id):
            raise other_cluster(str(self._instance_id), instance_id)
        self._instance_id = instance_id

    # -- ledgers -------------------------------------------------------------------------------------------------
    def next_ledger_id(self) -> int:
        self._next_ledger_id += 1
        return self._next_ledger_id - 1

    def create_ledger(self, ledger_id: int, data: bytes, ctime_ms: int) -> tuple[bool, Record]:
        if ledger_id in self._ledgers:
            return False, self._ledgers[ledger_id]
        if ledger_id in self._deleted:
            raise deleted_before(ledger_id)
        self._ledgers[ledger_id] = Record(data, self._changed(), ctime_ms)
        return True, self._ledgers[ledger_id]

    def read_ledger(self, ledger_id: int) -> Record | None:
        return self._ledgers.get(ledger_id)

    def read_ledgers(self, ledger_ids: Sequence[int]) -> Sequence[Record | None]:
        return [self._ledgers.get(ledger_id) for ledger_id in ledger_ids]

    def write_ledger(
        self, ledger_id: int, data: bytes, expected_version: int, holder: tuple[int, str] | None = None
    ) -> Record:
        record = self._ledgers.get(ledger_id)
        if record is None:
            raise LedgerNotFound("no such ledger in the metadata store", ledger_id=ledger_id)
        check_version(record.version, expected_version, ledger_id=ledger_id)
        if holder is not None and self._owners.get(holder[1]) != holder[0]:
            raise lock_lost(ledger_id)
        self._ledgers[ledger_id] = Record(data, self._changed(), record.ctime_ms)
        return self._ledgers[ledger_id]

    def rewrite_ledger(self, ledger_id: int) -> None:
        """Write a record unchanged: it gets a new version, which conflicts with writers of the old one. Without the
        ledger, no effect.
        """
        record = self._ledgers.get(ledger_id)
        if record is not None:
            self.write_ledger(ledger_id, record.data, record.version)

    def delete_ledger(self, ledger_id: int, expected_version: int | None) -> None:
        record = self._ledgers.get(ledger_id)
        if record is None:
            return
        if expected_version is not None:
            check_version(record.version, expected_version, ledger_id=ledger_id)
        del self._ledgers[ledger_id]
        self._deleted.add(ledger_id, ledger_id + 1)
        self._changed()

    def ledger_ids(self, above: int, count: int) -> Sequence[int]:
        ids = sorted(self._ledgers)
        first = bisect_right(ids, above)
        return ids[first : first + count]

    # -- bookies -------------------------------------------------------------------------------------------------
    def begin_session(self, lease_ms: int) -> int:
        self._session_count += 1
        self._sessions[self._session_count] = {}
        return self._session_count

    def renew_session(self, session_id: int) -> bool:
        return session_id in self._sessions

    def end_session(self, session_id: int) -> None:
        registrations = self._sessions.pop(session_id, {})
        for place in sorted(place for place, owner in self._owners.items() if owner == session_id):
            self._remove_node(place)
        if registrations:
            self._changed(*(mode for mode, _ in registrations.values()))

    def register(self, session_id: int, bookie: BookieId, mode: BookieMode, data: bytes) -> int | None:
        own = self._sessions.get(session_id)
        if own is None:
            raise SessionExpired("the session with the metadata store has ended", bookie=bookie)
        if any(bookie in registrations for registrations in self._sessions.values() if registrations is not own):
            return SESSION_TIMEOUT_MS
        before = own.get(bookie)
        own[bookie] = (mode, data)
        if before is None:
            self._changed(mode)
        elif before != (mode, data):
            self._changed(mode, before[0])
        return None

    def unregister(self, session_id: int, bookie: BookieId) -> None:
        before = self._sessions.get(session_id, {}).pop(bookie, None)
        if before is not None:
            self._changed(before[0])

    def bookies(self, mode: BookieMode) -> BookieSet:
        registrations = [item for session in self._sessions.values() for item in session.items()]
        bookies = sorted(bookie for bookie, (registered, _) in registrations if registered is mode)
        return BookieSet(tuple(bookies), self._set_versions[mode])

    def all_bookies(self) -> BookieSet:
        return BookieSet(tuple(sorted(self._cookies)), self._set_versions[None])

    def registration(self, bookie: BookieId) -> bytes | None:
        return next((session[bookie][1] for session in self._sessions.values() if bookie in session), None)

    def observe(
        self,
        ledger_ids: Sequence[int],
        known: Mapping[BookieMode, int],
        is_complete: bool,
        names: Sequence[str] = (),
        places: Sequence[str] = (),
    ) -> Observation | None:
        ledgers = {
            ledger_id: self._ledgers[ledger_id].version for ledger_id in ledger_ids if ledger_id in self._ledgers
        }
        sets = {mode: self.bookies(mode) for mode, version in known.items() if self._set_versions[mode] != version}
        records = {name: self._records[name][1] for name in names if name in self._records}
        nodes = {place: self._nodes[place].version for place in places if place in self._nodes}
        return Observation(ledgers, sets, records, nodes | {place: self._work for place in places if place == WORK})

    # -- cookies -------------------------------------------------------------------------------------------------
    def create_cookie(self, bookie: BookieId, data: bytes) -> int:
        if bookie in self._cookies:
            raise CookieExists("the metadata store has a cookie already", bookie=bookie)
        self._cookies[bookie] = (data, self._changed(None))
        return self.revision

    def read_cookie(self, bookie: BookieId) -> tuple[bytes, int] | None:
        return self._cookies.get(bookie)

    def write_cookie(self, bookie: BookieId, data: bytes, expected_version: int) -> int:
        self._check_cookie(bookie, expected_version)
        self._cookies[bookie] = (data, self._changed())
        return self.revision

    def delete_cookie(self, bookie: BookieId, expected_version: int) -> None:
        self._check_cookie(bookie, expected_version)
        del self._cookies[bookie]
        self._changed(None)

    def _check_cookie(self, bookie: BookieId, expected_version: int) -> None:
        if bookie not in self._cookies:
            raise CookieNotFound("no cookie in the metadata store", bookie=bookie)
        check_version(self._cookies[bookie][1], expected_version, bookie=bookie)

    # -- named records -------------------------------------------------------------------------------------------
    def create_record(self, name: str, data: bytes) -> int:
        if name in self._records:
            raise RecordExists(f"the metadata store has a record {name} already")
        self._records[name] = (data, self._changed())
        return self.revision

    def read_record(self, name: str) -> tuple[bytes, int]:
        if name not in self._records:
            raise RecordNotFound(f"no record {name} in the metadata store")
        return self._records[name]

    def write_record(self, name: str, data: bytes, expected_version: int) -> int:
        check_version(self.read_record(name)[1], expected_version)
        self._records[name] = (data, self._changed())
        return self.revision

    def delete_record(self, name: str, expected_version: int) -> None:
        check_version(self.read_record(name)[1], expected_version)
        del self._records[name]
        self._changed()

    def transact(self, steps: Sequence[Step]) -> int:
        for step in steps:
            if isinstance(step, LedgerAt | LedgerDeletion):
                ledger = self._ledgers.get(step.ledger_id)
                if ledger is None:
                    raise LedgerNotFound("no such ledger in the metadata store", ledger_id=step.ledger_id)
                check_version(ledger.version, step.version, ledger_id=step.ledger_id)
            else:
                check_record_version(self._records.get(step.name, (b"", 0))[1], step)
        if not any(isinstance(step, LedgerDeletion | RecordWrite) for step in steps):
            return self.revision
        version = self._changed()
        for step in steps:
            if isinstance(step, LedgerDeletion):
                del self._ledgers[step.ledger_id]
                self._deleted.add(step.ledger_id, step.ledger_id + 1)
            elif isinstance(step, RecordWrite):
                self._records[step.name] = (step.data, version)
        return version

    def record_names(self, prefix: str) -> Sequence[str]:
        return sorted(name for name in self._records if name.startswith(prefix))

    # -- nodes ---------------------------------------------------------------------------------------------------
    def read_node(self, place: str) -> Node | None:
        return self._nodes.get(place)

    def create_node(self, place: str, data: bytes) -> bool:
        return place not in self._nodes and self.write_node(place, data, None)

    def write_node(self, place: str, data: bytes, expected_version: int | None) -> bool:
        before = self._nodes.get(place)
        if expected_version is not None and (before is None or before.version != expected_version):
            return False
        self._nodes[place] = Node(data, self._changed())
        if before is None and place.startswith(MARKS):
            self._work = self.revision
        return True

    def delete_node(self, place: str, expected_version: int | None) -> bool:
        node = self._nodes.get(place)
        if node is None or expected_version not in (None, node.version):
            return False
        self._remove_node(place)
        return True

    def _remove_node(self, place: str) -> None:
        del self._nodes[place]
        self._owners.pop(place, None)
        revision = self._changed()
        if mark_of_lock(place) in self._nodes:
            self._work = revision

    def nodes(self, prefix: str, above: str, count: int) -> Sequence[tuple[str, Node]]:
        places = nsmallest(count, (place for place in self._nodes if place.startswith(prefix) and place > above))
        return [(place, self._nodes[place]) for place in places]

    def hold_node(self, session_id: int, place: str, data: bytes) -> int | None:
        if session_id not in self._sessions:
            raise SessionExpired("the session with the metadata store has ended")
        if place not in self._nodes:
            self._owners[place] = session_id
            self._nodes[place] = Node(data, self._changed())
        return self._nodes[place].version if self._owners.get(place) == session_id else None

    def release_node(self, session_id: int, place: str) -> None:
        if self._owners.get(place) == session_id:
            self.delete_node(place, None)


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
            ledger_id = arguments[0]
            assert isinstance(ledger_id, int)
            self.store.rewrite_ledger(ledger_id)
        result = function(*arguments)
        await self._faults.after(operation, self)
        return result

    def _wall_ms(self) -> int:
        return int(self.loop.time() * 1000) if self._runtime is None else self._runtime.clock.wall_ms()

    def _new_instance_id(self) -> str:
        return instance_id_of(self.store.revision if self._runtime is None else self._runtime.random.getrandbits(128))
