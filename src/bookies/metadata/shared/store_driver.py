"""A metadata driver over a store of atomic operations: the common base of the in-memory and the embedded driver.

A store (the port `Nodes`) carries out synchronous, atomic transactions one at a time, without asyncio. `StoreDriver` is
one client's session with it: it turns operations into transactions and their refusals into errors, waits for a
predecessor's registration to end, keeps its own alive by heartbeats, and turns changes into callbacks. The two
subclasses define how a call reaches the store, how long a session lives without heartbeats, and how changes by other
drivers are noticed.

Watches. One task per driver observes the store when notified, or every `poll_interval_s`: the current versions of the
watched keys, and the current sets of bookies. Each watch compares the observation with its last
delivery. So changes coalesce, a set is never followed by an older one, and a failed observation loses nothing, because
the next one sees the same difference. Source: metadata 6.3 and 11.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import chain
from typing import TypeVar

from bookies.errors import (
    BookKeeperError,
    ClientClosed,
    InvalidArgument,
    LedgerNotFound,
    MetadataCorrupt,
    MetadataError,
    RegisteredElsewhere,
    SessionExpired,
    StorageError,
)
from bookies.metadata.formats import as_stored, pack_ledger, parse_ledger
from bookies.metadata.formats.serde import is_bookie_id, pack_bookie_info, parse_bookie_info
from bookies.metadata.interface import MetadataDriver, Watch
from bookies.metadata.interface.driver import (
    READ_AT_ONCE,
    BookieSet,
    GivenIds,
    LedgerDeletion,
    LedgerEvent,
    RecordAt,
    RecordWrite,
    Step,
    Versioned,
    check_record,
    check_steps,
)
from bookies.metadata.interface.recovery_store import LedgerLock, lock_lost
from bookies.metadata.interface.request_counts import RequestCounts
from bookies.metadata.interface.watches import MISSING, NEVER_SEEN, Subscription
from bookies.metadata.shared.nodes import (
    INSTANCE_ID,
    At,
    Change,
    Condition,
    Delete,
    Empty,
    FreeFor,
    HeldBy,
    Item,
    Key,
    Nodes,
    Outcome,
    Put,
    Table,
)
from bookies.metadata.shared.recovery import SharedRecovery
from bookies.metadata.shared.refusals import (
    check_step,
    check_version,
    cookie_exists,
    deleted_before,
    half_a_cluster,
    no_cookie,
    no_record,
    not_found,
    other_cluster,
    record_exists,
    taken,
)
from bookies.metadata.shared.store_recovery import StoreNodes
from bookies.metadata.shared.store_watches import StoreWatches, set_of
from bookies.model import BookieId, BookieInfo, BookieMode, LedgerMetadata
from bookies.runtime.tasks import Tasks

T = TypeVar("T")

PAGE_COUNT = 10_000  # ledger ids in one range of an iteration
RETRY_INTERVAL_S = 0.2  # after a failed observation of the store; Source: metadata 6.3
PREDECESSOR_INTERVAL_S = 0.1  # between two checks of a registration that has to end first
VERSIONS_COUNT_MAX = 16_384  # ledgers whose last version this driver remembers


def parse_instance_id(data: bytes, where: str) -> str:
    """Read an instance id as stored on a server. Raises `MetadataCorrupt` for an empty or undecodable one."""
    try:
        instance_id = data.decode("utf-8")
    except UnicodeDecodeError:
        instance_id = ""
    if not instance_id.strip():
        raise MetadataCorrupt(
            f"{where} is {data!r:.80}, which is not an instance id: write the one in the bookies' VERSION files"
        )
    return instance_id


def instance_id_of(number: int) -> str:
    """Return 128 random bits as a cluster's instance id: the text form of a version 4 UUID."""
    number = number & ~(0xF000 << 64) & ~(0xC000 << 48) | 0x4000 << 64 | 0x8000 << 48
    digits = f"{number:032x}"
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _ledger(ledger_id: int) -> Key:
    return Key(Table.LEDGERS, ledger_id)


def _registrations(bookie: BookieId, mode: BookieMode) -> tuple[Key, Key]:
    """Return the keys of a bookie's registration in this mode and in the other one."""
    own = Table(mode.value)
    other = Table.READ_ONLY if own is Table.WRITABLE else Table.WRITABLE
    return Key(own, bookie), Key(other, bookie)


def _there_at(key: Key, version: int) -> At:
    """Return the condition that the item exists with this version. Version 0 would match a missing item."""
    return At(key, version or _NEVER)


def _condition(step: Step) -> At:
    if isinstance(step, RecordAt | RecordWrite):
        return At(Key(Table.RECORDS, step.name), step.version)
    return _there_at(_ledger(step.ledger_id), step.version)


def _changes(step: Step) -> list[Change]:
    if isinstance(step, RecordWrite):
        return [Put(Key(Table.RECORDS, step.name), step.data)]
    return [Delete(_ledger(step.ledger_id))] if isinstance(step, LedgerDeletion) else []


_NEVER = -1  # a version that no item has


# -- the driver ------------------------------------------------------------------------------------------------------

UNCOUNTED = ("watch", "heartbeat")  # the driver's own operations


class StoreDriver(MetadataDriver):
    """One session with a store, a `Nodes`.

    `session_id`: None until the first registration, and after the session was lost.
    """

    poll_interval_s: float | None = None  # None: the store notifies of every change
    has_heartbeat = False

    def __init__(self, uri: str, store: Nodes, lease_ms: int) -> None:
        self.uri = uri
        self.lease_ms = lease_ms
        self.session_id: int | None = None
        self.operations = RequestCounts()
        self._store = store
        self._tasks: Tasks | None = None  # None: not open
        self._failure: BaseException | None = None
        self._versions: dict[int, int] = {}  # ledger -> version last returned to our caller, oldest first
        self._watches = StoreWatches()
        self._expiry_watches: dict[Subscription[None, None], None] = {}
        self._observer: asyncio.Task[None] | None = None
        self._has_news = asyncio.Event()
        self._has_new_watch = False
        self._recovery = SharedRecovery(StoreNodes(self, store), self._require_open, self.on_session_expired)

    def __repr__(self) -> str:
        state = "closed" if self._tasks is None else f"session {self.session_id}"
        return f"<{type(self).__name__} {self.uri} {state}>"

    @abstractmethod
    async def _call(self, operation: str, function: Callable[..., T], *arguments: object) -> T:
        """Run an operation of the store."""

    @abstractmethod
    def _wall_ms(self) -> int: ...

    @abstractmethod
    def _new_instance_id(self) -> str: ...

    async def run(
        self, operation: str, function: Callable[..., T], *arguments: object, counted_as: str | None = None
    ) -> T:
        """Run an operation of the store, if the driver is open and has not failed. `counted_as`: None: `operation`."""
        self._require_open()
        if self._failure is not None:
            raise MetadataError(f"the session with {self.uri} failed: {self._failure}") from self._failure
        if operation not in UNCOUNTED:
            self.operations.count(counted_as or operation)
        return await self._call(operation, function, *arguments)

    def _require_open(self) -> Tasks:
        if self._tasks is None:
            raise ClientClosed(f"the session with {self.uri} is closed")
        return self._tasks

    # -- the session ---------------------------------------------------------------------------------------------
    async def open(self) -> None:
        assert self._tasks is None, "opened twice"
        self._tasks = Tasks(self._died)

    async def close(self) -> None:
        tasks, self._tasks = self._tasks, None
        self._watches.clear()
        self._expiry_watches.clear()
        if tasks is None:
            return
        await tasks.stop()
        session_id, self.session_id = self.session_id, None
        if session_id is not None:
            try:
                await self._call("close", self._store.end_session, session_id)
            except BookKeeperError:
                pass  # The store cannot be reached; it ends the session when the lease expires.

    def _died(self, cause: BaseException) -> None:
        """Stop using the driver after an unexpected exception in a background task, and report it to the owner."""
        self._failure = cause
        message = f"the session with {self.uri} failed"
        asyncio.get_running_loop().call_exception_handler({"message": message, "exception": cause})
        if self.session_id is not None:
            self.lose_session(self.session_id)

    async def require_session(self) -> int:
        """Return the current session; begin one if there is none."""
        if self.session_id is None:
            session_id = await self.run("begin_session", self._store.begin_session, self.lease_ms)
            if self.session_id is None:  # otherwise a concurrent call was faster; this session ends with its lease
                self.session_id = session_id
                if self.has_heartbeat:
                    self._require_open().start(self._keep_alive(session_id), f"heartbeat of session {session_id}")
        return self.session_id

    async def _keep_alive(self, session_id: int) -> None:
        while self.session_id == session_id:
            await asyncio.sleep(self.lease_ms / 3000)
            try:
                if not await self.run("heartbeat", self._store.renew_session, session_id):
                    self.lose_session(session_id)
            except (MetadataError, StorageError):
                continue  # There are two more attempts before the lease expires; a later one finds the session ended.

    def lose_session(self, session_id: int) -> None:
        """Notify the owner of a lost session, once per session; the next registration begins a new one."""
        if self.session_id == session_id:
            self.session_id = None
            for watch in list(self._expiry_watches):
                watch.callback(None)

    async def _commit(self, operation: str, conditions: Sequence[Condition], *changes: Change) -> Outcome:
        return await self.run(operation, self._store.commit, conditions, changes)

    async def _get(self, operation: str, *keys: Key) -> list[Item | None]:
        return await self.run(operation, self._store.get, keys)

    # -- the cluster ---------------------------------------------------------------------------------------------
    async def initialize_cluster(self) -> str:
        instance_id = self._new_instance_id()
        conditions: list[Condition] = [At(INSTANCE_ID, 0), Empty(Table.COOKIES)]
        outcome = await self._commit("initialize_cluster", conditions, Put(INSTANCE_ID, instance_id.encode()))
        stored = outcome.items[0]
        if stored is None and not outcome.is_done:
            raise half_a_cluster()
        return instance_id if stored is None else stored.data.decode()

    async def instance_id(self) -> str | None:
        stored = (await self._get("instance_id", INSTANCE_ID))[0]
        return None if stored is None else stored.data.decode()

    async def given_ids(self) -> GivenIds:
        return await self.run("given_ids", self._store.given_ids)

    async def restore_ids(self, ids: GivenIds) -> None:
        await self.run("restore_ids", self._store.restore_ids, ids)

    async def restore_instance_id(self, instance_id: str) -> None:
        data = instance_id.encode()
        outcome = await self._commit("restore_instance_id", [At(INSTANCE_ID, 0)], Put(INSTANCE_ID, data))
        stored = outcome.items[0]
        if stored is not None and stored.data != data:
            raise other_cluster(stored.data.decode(), instance_id)

    async def remove_cluster(self, instance_id: str) -> None:
        stored = await self.instance_id()
        if stored not in (None, instance_id):
            raise other_cluster(stored, instance_id)
        await self.run("remove_cluster", self._store.clear)

    # -- ledgers -------------------------------------------------------------------------------------------------
    async def next_ledger_id(self) -> int:
        return await self.run("next_ledger_id", self._store.next_id)

    async def create_ledger(self, metadata: LedgerMetadata) -> Versioned:
        put = Put(_ledger(metadata.ledger_id), pack_ledger(metadata), ctime_ms=self._wall_ms())
        outcome = await self._commit("create_ledger", [At(put.key, 0)], put)
        if outcome.is_done:
            return self._written(metadata, put.data, outcome.version, put.ctime_ms)
        if outcome.items[0] is None:
            raise deleted_before(metadata.ledger_id)
        stored = self._versioned(metadata.ledger_id, outcome.items[0])
        # The same token: our own earlier attempt, whose answer was lost. Formats before 3 have no token, so there an
        # earlier attempt is reported as `LedgerExists`.
        if metadata.creator_token and stored.metadata.creator_token == metadata.creator_token:
            return stored
        raise taken(metadata.ledger_id)

    async def read_ledger(self, ledger_id: int) -> Versioned:
        return self._versioned(ledger_id, (await self._get("read_ledger", _ledger(ledger_id)))[0])

    async def read_ledgers(self, ledger_ids: Sequence[int]) -> list[Versioned | MetadataCorrupt | None]:
        return await self._read_all("read_ledgers", ledger_ids)

    async def current_ledgers(
        self, ledger_ids: Sequence[int], known: Sequence[Versioned] = ()
    ) -> list[Versioned | MetadataCorrupt | None]:
        return await self._read_all("current_ledgers", ledger_ids)

    async def _read_all(self, operation: str, ledger_ids: Sequence[int]) -> list[Versioned | MetadataCorrupt | None]:
        assert len(ledger_ids) <= READ_AT_ONCE
        items = await self._get(operation, *map(_ledger, ledger_ids))
        return [self._parsed(ledger_id, item) for ledger_id, item in zip(ledger_ids, items, strict=True)]

    def _parsed(self, ledger_id: int, item: Item | None) -> Versioned | MetadataCorrupt | None:
        try:
            return self._versioned(ledger_id, item)
        except LedgerNotFound:
            return None
        except MetadataCorrupt as error:
            return error

    async def write_ledger(
        self, metadata: LedgerMetadata, expected_version: int, lock: LedgerLock | None = None
    ) -> Versioned:
        ledger_id = metadata.ledger_id
        put = Put(_ledger(ledger_id), pack_ledger(metadata))
        conditions: list[Condition] = [_there_at(put.key, expected_version)]
        if lock is not None:
            place = self._recovery.nodes.places.lock(ledger_id)
            conditions.append(HeldBy(Key(Table.NODES, place), lock.session))
        outcome = await self._commit("write_ledger", conditions, put)
        stored = outcome.items[0]
        if stored is None:
            raise not_found(ledger_id)
        if not outcome.is_done:
            check_version(stored.version, expected_version, ledger_id=ledger_id)
            raise lock_lost(ledger_id)  # the only other condition
        return self._written(metadata, put.data, outcome.version, stored.ctime_ms)

    async def delete_ledger(self, ledger_id: int, expected_version: int | None = None) -> None:
        key = _ledger(ledger_id)
        conditions: list[Condition] = [] if expected_version is None else [_there_at(key, expected_version)]
        outcome = await self._commit("delete_ledger", conditions, Delete(key))
        if not outcome.is_done and outcome.items[0] is not None:
            check_version(outcome.items[0].version, expected_version or 0, ledger_id=ledger_id)

    async def unspend_id(self, ledger_id: int) -> None:
        await self.run("unspend_id", self._store.unspend, ledger_id)

    async def ledger_ids(self, after: int = -1) -> AsyncIterator[Sequence[int]]:
        while ids := await self._ids_after(after):
            yield ids
            after = ids[-1]

    async def _ids_after(self, ledger_id: int) -> list[int]:
        page = await self.run("ledger_ids", self._store.list, Table.LEDGERS, "", ledger_id, PAGE_COUNT, False)
        return [int(name) for name, _ in page.items]

    def _written(self, metadata: LedgerMetadata, data: bytes, version: int, ctime_ms: int) -> Versioned:
        self._remember(metadata.ledger_id, version)
        return Versioned(as_stored(metadata, data, ctime_ms), version)

    def _versioned(self, ledger_id: int, item: Item | None) -> Versioned:
        self._remember(ledger_id, MISSING if item is None else item.version)
        if item is None:
            raise not_found(ledger_id)
        return Versioned(parse_ledger(ledger_id, item.data, item.ctime_ms, item.version), item.version)

    def _remember(self, ledger_id: int, version: int) -> None:
        self._versions.pop(ledger_id, None)
        self._versions[ledger_id] = version
        if len(self._versions) > VERSIONS_COUNT_MAX:
            del self._versions[next(iter(self._versions))]

    # -- bookies -------------------------------------------------------------------------------------------------
    async def register(self, bookie: BookieId, mode: BookieMode, info: BookieInfo) -> None:
        if not is_bookie_id(bookie):
            raise InvalidArgument(f"{bookie!r} is not a bookie id: letters, digits, - . _ : only")
        own, other = _registrations(bookie, mode)
        data = pack_bookie_info(info)
        loop = asyncio.get_running_loop()
        deadline: float | None = None
        while True:
            session_id = await self.require_session()
            conditions = [FreeFor(own, session_id), FreeFor(other, session_id)]
            try:
                outcome = await self._commit("register", conditions, Delete(other), Put(own, data, session_id))
            except SessionExpired as error:
                self.lose_session(session_id)
                raise SessionExpired(str(error), bookie=bookie) from None
            if outcome.is_done:
                return
            wait_ms = outcome.wait_ms
            if deadline is None:
                deadline = loop.time() + max(wait_ms, self.lease_ms) / 1000 + PREDECESSOR_INTERVAL_S
            if loop.time() >= deadline:
                raise RegisteredElsewhere(
                    "another process keeps this bookie registered: stop that process", bookie=bookie
                )
            await asyncio.sleep(min(wait_ms / 1000 + 0.001, PREDECESSOR_INTERVAL_S))

    async def unregister(self, bookie: BookieId) -> None:
        self._require_open()
        if self.session_id is not None:
            keys = _registrations(bookie, BookieMode.WRITABLE)
            conditions = [FreeFor(key, self.session_id) for key in keys]
            await self._commit("unregister", conditions, *map(Delete, keys))

    async def bookies(self, mode: BookieMode) -> BookieSet:
        return set_of(await self.run("bookies", self._store.list, Table(mode.value)))

    async def all_bookies(self) -> BookieSet:
        return set_of(await self.run("all_bookies", self._store.list, Table.COOKIES))

    async def bookie_info(self, bookie: BookieId) -> BookieInfo | None:
        items = await self._get("bookie_info", *_registrations(bookie, BookieMode.WRITABLE))
        return next((parse_bookie_info(bookie, item.data) for item in items if item is not None), None)

    # -- cookies and named records -------------------------------------------------------------------------------
    async def create_cookie(self, bookie: BookieId, data: bytes) -> int:
        outcome = await self._create("create_cookie", Key(Table.COOKIES, bookie), data)
        if not outcome.is_done:
            raise cookie_exists(bookie)
        return outcome.version

    async def read_cookie(self, bookie: BookieId) -> tuple[bytes, int]:
        item = (await self._get("read_cookie", Key(Table.COOKIES, bookie)))[0]
        if item is None:
            raise no_cookie(bookie)
        return item.data, item.version

    async def write_cookie(self, bookie: BookieId, data: bytes, expected_version: int) -> int:
        change = Put(Key(Table.COOKIES, bookie), data)
        return await self._swap("write_cookie", change, expected_version, no_cookie(bookie))

    async def delete_cookie(self, bookie: BookieId, expected_version: int) -> None:
        change = Delete(Key(Table.COOKIES, bookie))
        await self._swap("delete_cookie", change, expected_version, no_cookie(bookie))

    async def create_record(self, name: str, data: bytes) -> int:
        check_record(name, data)
        outcome = await self._create("create_record", Key(Table.RECORDS, name), data)
        if not outcome.is_done:
            raise record_exists(name)
        return outcome.version

    async def read_record(self, name: str) -> tuple[bytes, int]:
        check_record(name)
        item = (await self._get("read_record", Key(Table.RECORDS, name)))[0]
        if item is None:
            raise no_record(name)
        return item.data, item.version

    async def write_record(self, name: str, data: bytes, expected_version: int) -> int:
        check_record(name, data)
        return await self._swap("write_record", Put(Key(Table.RECORDS, name), data), expected_version, no_record(name))

    async def delete_record(self, name: str, expected_version: int) -> None:
        check_record(name)
        await self._swap("delete_record", Delete(Key(Table.RECORDS, name)), expected_version, no_record(name))

    async def _create(self, operation: str, key: Key, data: bytes) -> Outcome:
        return await self._commit(operation, [At(key, 0)], Put(key, data))

    async def _swap(self, operation: str, change: Change, expected_version: int, missing: BookKeeperError) -> int:
        """Change an item by compare-and-swap; return the new version. `missing`: the error without the item."""
        outcome = await self._commit(operation, [_there_at(change.key, expected_version)], change)
        item = outcome.items[0]
        if item is None:
            raise missing
        if not outcome.is_done:
            check_version(item.version, expected_version, bookie=missing.bookie)
        return outcome.version

    async def transact(self, steps: Sequence[Step]) -> int:
        check_steps(steps)
        conditions = [_condition(step) for step in steps]
        outcome = await self._commit("transact", conditions, *chain(*map(_changes, steps)))
        if not outcome.is_done:
            for step, item in zip(steps, outcome.items, strict=True):
                check_step(step, 0 if item is None else item.version)
        return outcome.version

    async def record_names(self, prefix: str) -> Sequence[str]:
        page = await self.run("record_names", self._store.list, Table.RECORDS, prefix, None, -1, False)
        return [str(name) for name, _ in page.items]

    @property
    def recovery(self) -> SharedRecovery:
        return self._recovery

    # -- watches -------------------------------------------------------------------------------------------------
    def watch_ledger(self, ledger_id: int, callback: Callable[[LedgerEvent], None]) -> Watch:
        # The watch starts from the version that the caller has read; without one, the first call comes soon.
        known = self._versions.get(ledger_id, NEVER_SEEN)
        return self._watch_key(_ledger(ledger_id), known, lambda version: callback(_event(version)))

    def watch_record(self, name: str, version: int, callback: Callable[[], None]) -> Watch:
        return self._watch_key(Key(Table.RECORDS, name), version, lambda _: callback())

    def watch_node(self, place: str, callback: Callable[[], None]) -> Watch:
        """Call back soon, and after each change of the node; several changes may become one call."""
        return self._watch_key(Key(Table.NODES, place), NEVER_SEEN, lambda _: callback())

    def _watch_key(self, key: Key, version: int, callback: Callable[[int], None]) -> Watch:
        self._require_open()
        watch = self._watches.add_key(key, version, callback)
        self._observe_soon()
        return watch

    def watch_bookies(self, mode: BookieMode, callback: Callable[[BookieSet], None]) -> Watch:
        self._require_open()
        watch = self._watches.add_set(Table(mode.value), callback)
        self._observe_soon()
        return watch

    def on_session_expired(self, callback: Callable[[], None]) -> Watch:
        return Subscription(self._expiry_watches, None, lambda _: callback(), NEVER_SEEN)

    def _observe_soon(self) -> None:
        self._has_new_watch = True
        self._has_news.set()
        if self._observer is None:
            self._observer = self._require_open().start(self._observe(), f"observer of {self.uri}")

    async def _observe(self) -> None:
        """Observe the store while there are watches."""
        while self._watches:
            await self._wait_for_news()
            is_complete, self._has_new_watch = self._has_new_watch, False
            keys = self._watches.keys()
            try:
                seen = await self.run("watch", self._store.observe, keys, self._watches.sets(), is_complete)
            except (MetadataError, StorageError):
                self._has_new_watch = True  # The next observation has to be complete as well.
                self._has_news.set()
                await asyncio.sleep(RETRY_INTERVAL_S)
                continue
            if seen is not None:
                self._watches.deliver(seen, frozenset(keys))
        self._observer = None

    async def _wait_for_news(self) -> None:
        try:
            async with asyncio.timeout(self.poll_interval_s):
                await self._has_news.wait()
        except TimeoutError:
            pass  # The poll interval is over.
        self._has_news.clear()


def _event(version: int) -> LedgerEvent:
    return LedgerEvent.DELETED if version == MISSING else LedgerEvent.CHANGED
