"""A metadata driver over a store of atomic operations: the common base of the in-memory and the embedded driver.

A `Store` carries out synchronous, atomic operations one at a time, without asyncio. `StoreDriver` is one client's
session with it: it serializes records, waits for a predecessor's registration to end, keeps its own alive by
heartbeats, and turns changes into callbacks. The two subclasses define how a call reaches the store, how long a
session lives without heartbeats, and how changes by other drivers are noticed.

Watches. One task per driver observes the store when notified, or every `poll_interval_s`: the current versions of the
watched ledgers, records and nodes, and the current sets of bookies. Each watch compares the observation with its last
delivery. So changes coalesce, a set is never followed by an older one, and a failed observation loses nothing, because
the next one sees the same difference. Source: metadata 6.3 and 11.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from typing import TypeVar

from bookies.errors import (
    BookKeeperError,
    ClientClosed,
    CookieNotFound,
    InvalidArgument,
    LedgerExists,
    LedgerNotFound,
    MetadataCorrupt,
    MetadataError,
    RecordExists,
    RecordNotFound,
    SessionExpired,
    StorageError,
    VersionConflict,
)
from bookies.metadata.formats import pack_ledger, parse_ledger
from bookies.metadata.formats.serde import is_bookie_id, pack_bookie_info, parse_bookie_info
from bookies.metadata.interface import MetadataDriver, Watch
from bookies.metadata.interface.driver import (
    READ_AT_ONCE,
    BookieSet,
    GivenIds,
    LedgerEvent,
    RecordAt,
    RecordWrite,
    Step,
    Versioned,
    check_record,
    check_steps,
)
from bookies.metadata.interface.recovery_store import LedgerLock
from bookies.metadata.interface.request_counts import RequestCounts
from bookies.metadata.interface.watches import MISSING, NEVER_SEEN, Subscription
from bookies.metadata.shared.recovery import SharedRecovery
from bookies.metadata.shared.store import Observation, Record, Store
from bookies.metadata.shared.store_recovery import StoreNodes
from bookies.model import BookieId, BookieInfo, BookieMode, LedgerMetadata
from bookies.runtime.tasks import Tasks

T = TypeVar("T")

PAGE_COUNT = 10_000  # ledger ids in one range of an iteration
RETRY_INTERVAL_S = 0.2  # after a failed observation of the store; Source: metadata 6.3
PREDECESSOR_INTERVAL_S = 0.1  # between two checks of a registration that has to end first
VERSIONS_COUNT_MAX = 4096  # ledgers whose last version this driver remembers


def check_version(stored: int, expected: int, *, ledger_id: int | None = None, bookie: str | None = None) -> None:
    """Check the version of a compare-and-swap. Raises `VersionConflict`."""
    if stored != expected:
        message = f"the record has version {stored}, not {expected}: another client changed it"
        raise VersionConflict(message, ledger_id=ledger_id, bookie=bookie)


def taken(ledger_id: int) -> LedgerExists:
    """Return the error for a new ledger whose id an existing ledger has."""
    return LedgerExists(
        "the ledger id is taken: choose another one, or leave the choice to the metadata store", ledger_id=ledger_id
    )


def deleted_before(ledger_id: int) -> LedgerExists:
    """Return the error for a new ledger whose id a deleted ledger had."""
    return LedgerExists(
        "a ledger of this id was deleted, and bookies may still hold its entries, so the id can never be used again: "
        "choose another one, or leave the choice to the metadata store",
        ledger_id=ledger_id,
    )


def half_a_cluster() -> MetadataError:
    """Return the error for creating a cluster in a store with cookies: a new instance id would keep their bookies from
    starting.
    """
    return MetadataError(
        "the metadata store has no instance id, but cookies of bookies. Either `bk metadata migrate` was interrupted: "
        "run it again. Or the instance id was lost: restore it from a bookie's VERSION file"
    )


def other_cluster(stored: str, wanted: str) -> MetadataError:
    """Return the error for a store that belongs to another cluster."""
    return MetadataError(
        f"the metadata store is that of cluster {stored}, and cannot become {wanted}: name an empty store"
    )


def check_record_version(stored: int, step: RecordAt | RecordWrite) -> None:
    """Check the version of a transaction's step. `stored`: the record's version, 0 without a record.

    Raises as `MetadataDriver.transact`.
    """
    if stored and not step.version and isinstance(step, RecordWrite):
        raise RecordExists(f"the metadata store has a record {step.name} already")
    if step.version and not stored:
        raise RecordNotFound(f"no record {step.name} in the metadata store")
    check_version(stored, step.version)


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


def _what(operation: str, arguments: Sequence[object]) -> str:
    """Return the name that an operation is counted under; for operations on nodes, with the kind of node."""
    if not operation.endswith(("_node", "nodes")):
        return operation
    place = next(argument for argument in arguments if isinstance(argument, str))
    return f"{operation} {place.partition('/')[0]}"


_NO_SET = BookieSet((), NEVER_SEEN)


# -- the driver ------------------------------------------------------------------------------------------------------

UNCOUNTED = ("watch", "heartbeat")  # the driver's own operations


class StoreDriver(MetadataDriver):
    """One session with a `Store`. `session_id`: None until the first registration, and after the session was lost."""

    poll_interval_s: float | None = None  # None: the store notifies of every change
    has_heartbeat = False

    def __init__(self, uri: str, store: Store, lease_ms: int) -> None:
        self.uri = uri
        self.lease_ms = lease_ms
        self.session_id: int | None = None
        self.operations = RequestCounts()
        self._store = store
        self._tasks: Tasks | None = None  # None: not open
        self._failure: BaseException | None = None
        self._versions: dict[int, int] = {}  # ledger -> version last returned to our caller, oldest first
        self._ledger_watches: dict[Subscription[int, LedgerEvent], None] = {}
        self._set_watches: dict[Subscription[BookieMode, BookieSet], None] = {}
        self._record_watches: dict[Subscription[str, None], None] = {}
        self._node_watches: dict[Subscription[str, None], None] = {}
        self._expiry_watches: dict[Subscription[None, None], None] = {}
        self._sets: dict[BookieMode, BookieSet] = {}
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

    async def run(self, operation: str, function: Callable[..., T], *arguments: object) -> T:
        """Run an operation of the store, if the driver is open and has not failed."""
        self._require_open()
        if self._failure is not None:
            raise MetadataError(f"the session with {self.uri} failed: {self._failure}") from self._failure
        if operation not in UNCOUNTED:
            self.operations.count(_what(operation, arguments))
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
        self._ledger_watches.clear()
        self._set_watches.clear()
        self._record_watches.clear()
        self._node_watches.clear()
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

    # -- the cluster ---------------------------------------------------------------------------------------------
    async def initialize_cluster(self) -> str:
        return await self.run("initialize_cluster", self._store.initialize, self._new_instance_id())

    async def instance_id(self) -> str | None:
        return await self.run("instance_id", self._store.instance_id)

    async def given_ids(self) -> GivenIds:
        return await self.run("given_ids", self._store.given_ids)

    async def restore_ids(self, ids: GivenIds) -> None:
        await self.run("restore_ids", self._store.restore_ids, ids)

    async def restore_instance_id(self, instance_id: str) -> None:
        await self.run("restore_instance_id", self._store.restore_instance_id, instance_id)

    # -- ledgers -------------------------------------------------------------------------------------------------
    async def next_ledger_id(self) -> int:
        return await self.run("next_ledger_id", self._store.next_ledger_id)

    async def create_ledger(self, metadata: LedgerMetadata) -> Versioned:
        data, ledger_id, ctime_ms = pack_ledger(metadata), metadata.ledger_id, self._wall_ms()
        is_new, record = await self.run("create_ledger", self._store.create_ledger, ledger_id, data, ctime_ms)
        stored = self._versioned(ledger_id, record)
        # The same token: our own earlier attempt, whose answer was lost. Formats before 3 have no token, so there an
        # earlier attempt is reported as `LedgerExists`.
        if is_new or (metadata.creator_token and stored.metadata.creator_token == metadata.creator_token):
            return stored
        raise taken(ledger_id)

    async def read_ledger(self, ledger_id: int) -> Versioned:
        record = await self.run("read_ledger", self._store.read_ledger, ledger_id)
        if record is None:
            self._remember(ledger_id, MISSING)
            raise LedgerNotFound("no such ledger in the metadata store", ledger_id=ledger_id)
        return self._versioned(ledger_id, record)

    async def read_ledgers(self, ledger_ids: Sequence[int]) -> list[Versioned | MetadataCorrupt | None]:
        assert len(ledger_ids) <= READ_AT_ONCE
        records = await self.run("read_ledgers", self._store.read_ledgers, ledger_ids)
        return [self._parsed(ledger_id, record) for ledger_id, record in zip(ledger_ids, records, strict=True)]

    def _parsed(self, ledger_id: int, record: Record | None) -> Versioned | MetadataCorrupt | None:
        if record is None:
            self._remember(ledger_id, MISSING)
            return None
        try:
            return self._versioned(ledger_id, record)
        except MetadataCorrupt as error:
            return error

    async def write_ledger(
        self, metadata: LedgerMetadata, expected_version: int, lock: LedgerLock | None = None
    ) -> Versioned:
        data, ledger_id = pack_ledger(metadata), metadata.ledger_id
        holder = None if lock is None else (lock.session, self._recovery.nodes.places.lock(ledger_id))
        record = await self.run("write_ledger", self._store.write_ledger, ledger_id, data, expected_version, holder)
        return self._versioned(ledger_id, record)

    async def delete_ledger(self, ledger_id: int, expected_version: int | None = None) -> None:
        await self.run("delete_ledger", self._store.delete_ledger, ledger_id, expected_version)

    async def ledger_ids(self) -> AsyncIterator[Sequence[int]]:
        above = -1
        while ids := await self.run("ledger_ids", self._store.ledger_ids, above, PAGE_COUNT):
            yield ids
            above = ids[-1]

    def _versioned(self, ledger_id: int, record: Record) -> Versioned:
        self._remember(ledger_id, record.version)
        return Versioned(parse_ledger(ledger_id, record.data, record.ctime_ms), record.version)

    def _remember(self, ledger_id: int, version: int) -> None:
        self._versions.pop(ledger_id, None)
        self._versions[ledger_id] = version
        if len(self._versions) > VERSIONS_COUNT_MAX:
            del self._versions[next(iter(self._versions))]

    # -- bookies -------------------------------------------------------------------------------------------------
    async def register(self, bookie: BookieId, mode: BookieMode, info: BookieInfo) -> None:
        if not is_bookie_id(bookie):
            raise InvalidArgument(f"{bookie!r} is not a bookie id: letters, digits, - . _ : only")
        data = pack_bookie_info(info)
        loop = asyncio.get_running_loop()
        deadline: float | None = None
        while True:
            session_id = await self.require_session()
            try:
                wait_ms = await self.run("register", self._store.register, session_id, bookie, mode, data)
            except SessionExpired:
                self.lose_session(session_id)
                raise
            if wait_ms is None:
                return
            if deadline is None:
                deadline = loop.time() + max(wait_ms, self.lease_ms) / 1000 + PREDECESSOR_INTERVAL_S
            if loop.time() >= deadline:
                raise MetadataError("another process keeps this bookie registered: stop that process", bookie=bookie)
            await asyncio.sleep(min(wait_ms / 1000 + 0.001, PREDECESSOR_INTERVAL_S))

    async def unregister(self, bookie: BookieId) -> None:
        self._require_open()
        if self.session_id is not None:
            await self.run("unregister", self._store.unregister, self.session_id, bookie)

    async def bookies(self, mode: BookieMode) -> BookieSet:
        return await self.run("bookies", self._store.bookies, mode)

    async def all_bookies(self) -> BookieSet:
        return await self.run("all_bookies", self._store.all_bookies)

    async def bookie_info(self, bookie: BookieId) -> BookieInfo | None:
        data = await self.run("bookie_info", self._store.registration, bookie)
        return None if data is None else parse_bookie_info(bookie, data)

    # -- cookies -------------------------------------------------------------------------------------------------
    async def create_cookie(self, bookie: BookieId, data: bytes) -> int:
        return await self.run("create_cookie", self._store.create_cookie, bookie, data)

    async def read_cookie(self, bookie: BookieId) -> tuple[bytes, int]:
        cookie = await self.run("read_cookie", self._store.read_cookie, bookie)
        if cookie is None:
            raise CookieNotFound("no cookie in the metadata store", bookie=bookie)
        return cookie

    async def write_cookie(self, bookie: BookieId, data: bytes, expected_version: int) -> int:
        return await self.run("write_cookie", self._store.write_cookie, bookie, data, expected_version)

    async def delete_cookie(self, bookie: BookieId, expected_version: int) -> None:
        await self.run("delete_cookie", self._store.delete_cookie, bookie, expected_version)

    # -- named records -------------------------------------------------------------------------------------------
    async def create_record(self, name: str, data: bytes) -> int:
        check_record(name, data)
        return await self.run("create_record", self._store.create_record, name, data)

    async def read_record(self, name: str) -> tuple[bytes, int]:
        check_record(name)
        return await self.run("read_record", self._store.read_record, name)

    async def write_record(self, name: str, data: bytes, expected_version: int) -> int:
        check_record(name, data)
        return await self.run("write_record", self._store.write_record, name, data, expected_version)

    async def delete_record(self, name: str, expected_version: int) -> None:
        check_record(name)
        await self.run("delete_record", self._store.delete_record, name, expected_version)

    async def transact(self, steps: Sequence[Step]) -> int:
        check_steps(steps)
        return await self.run("transact", self._store.transact, tuple(steps))

    async def record_names(self, prefix: str) -> Sequence[str]:
        return await self.run("record_names", self._store.record_names, prefix)

    @property
    def recovery(self) -> SharedRecovery:
        return self._recovery

    # -- watches -------------------------------------------------------------------------------------------------
    def watch_ledger(self, ledger_id: int, callback: Callable[[LedgerEvent], None]) -> Watch:
        # The watch starts from the version that the caller has read; without one, the first call comes soon.
        self._require_open()
        watch = Subscription(self._ledger_watches, ledger_id, callback, self._versions.get(ledger_id, NEVER_SEEN))
        self._observe_soon()
        return watch

    def watch_bookies(self, mode: BookieMode, callback: Callable[[BookieSet], None]) -> Watch:
        self._require_open()
        watch = Subscription(self._set_watches, mode, callback, NEVER_SEEN)
        self._observe_soon()
        return watch

    def watch_record(self, name: str, version: int, callback: Callable[[], None]) -> Watch:
        self._require_open()
        watch = Subscription(self._record_watches, name, lambda _: callback(), version)
        self._observe_soon()
        return watch

    def watch_node(self, place: str, callback: Callable[[], None]) -> Watch:
        """Call back soon, and after each change of the node; several changes may become one call."""
        self._require_open()
        watch = Subscription(self._node_watches, place, lambda _: callback(), NEVER_SEEN)
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
        while self._ledger_watches or self._set_watches or self._record_watches or self._node_watches:
            await self._wait_for_news()
            is_complete, self._has_new_watch = self._has_new_watch, False
            ledger_ids = {watch.key: None for watch in self._ledger_watches}
            names = {watch.key: None for watch in self._record_watches}
            places = {watch.key: None for watch in self._node_watches}
            modes = {watch.key: self._sets.get(watch.key, _NO_SET).version for watch in self._set_watches}
            watched = list(ledger_ids), modes, is_complete, list(names), list(places)
            try:
                seen = await self.run("watch", self._store.observe, *watched)
            except (MetadataError, StorageError):
                self._has_new_watch = True  # The next observation has to be complete as well.
                self._has_news.set()
                await asyncio.sleep(RETRY_INTERVAL_S)
                continue
            if seen is not None:
                self._deliver(seen, ledger_ids, names, places)
        self._observer = None

    async def _wait_for_news(self) -> None:
        try:
            async with asyncio.timeout(self.poll_interval_s):
                await self._has_news.wait()
        except TimeoutError:
            pass  # The poll interval is over.
        self._has_news.clear()

    def _deliver(
        self, seen: Observation, ledger_ids: Collection[int], names: Collection[str], places: Collection[str]
    ) -> None:
        self._sets.update(seen.sets)
        for ledger_watch in self._ledger_watches:
            if ledger_watch.key not in ledger_ids:
                continue  # The watch is newer than this observation.
            version = seen.ledgers.get(ledger_watch.key, MISSING)
            if version != ledger_watch.known:
                ledger_watch.known = version
                ledger_watch.deliver(LedgerEvent.DELETED if version == MISSING else LedgerEvent.CHANGED)
        for watches, watched, versions in (
            (self._record_watches, names, seen.records),
            (self._node_watches, places, seen.nodes),
        ):
            for watch in watches:
                version = versions.get(watch.key, MISSING)
                if watch.key in watched and version != watch.known:
                    watch.known = version
                    watch.deliver(None)
        for set_watch in self._set_watches:
            bookies = self._sets.get(set_watch.key, _NO_SET)
            if bookies.version > set_watch.known:
                set_watch.known = bookies.version
                set_watch.deliver(bookies)
