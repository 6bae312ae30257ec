"""Base of the drivers on servers: one session, cookies and records at places in a tree, watches, and checks of state.

A driver supplies its `DriverParts`, which know the store; this module knows none. Source: metadata 5, 6 and 11.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol

from msgspec import Struct

from bookies.errors import (
    ClientClosed,
    InvalidArgument,
    MetadataError,
    NoCluster,
)
from bookies.metadata.formats.serde import is_bookie_id
from bookies.metadata.interface import MetadataDriver, RecoveryStore, Watch
from bookies.metadata.interface.driver import BookieSet, Step, Versioned, check_record, check_steps
from bookies.metadata.interface.recovery_store import LedgerLock
from bookies.metadata.interface.request_counts import RequestCounts
from bookies.metadata.interface.watches import NEVER_SEEN, Subscription
from bookies.metadata.shared import refusals, store_driver
from bookies.metadata.shared.observers import Observers, WatchedNames
from bookies.metadata.shared.recovery import NodeStore, SharedRecovery
from bookies.model import BookieId, BookieInfo, BookieMode, LedgerMetadata
from bookies.runtime.ports import Runtime
from bookies.runtime.tasks import Tasks

ATTEMPTS_MAX = 4  # to create a cluster while other clients change the store


class RecordPlaces(Protocol):
    """Places of cookies and records in the tree."""

    def cookie(self, bookie: BookieId) -> str: ...

    def record(self, name: str) -> str: ...


class Ledgers(Protocol):
    """Operations on ledgers' records, see the methods of `MetadataDriver`."""

    async def create(self, metadata: LedgerMetadata) -> Versioned: ...

    async def read(self, ledger_id: int) -> Versioned: ...

    async def write(self, metadata: LedgerMetadata, expected_version: int, lock: LedgerLock | None) -> Versioned: ...

    async def delete(self, ledger_id: int, expected_version: int | None) -> None: ...

    def listing(self, page_count: int) -> AsyncIterator[list[int]]: ...


class Bookies(Protocol):
    """Operations on bookies, see the methods of `MetadataDriver`. `known`: bookies with a cookie."""

    async def unregister(self, bookie: BookieId) -> None: ...

    async def present(self, mode: BookieMode, watch: Callable[[], None] | None = None) -> BookieSet: ...

    async def known(self) -> BookieSet: ...

    async def info(self, bookie: BookieId) -> BookieInfo | None: ...


class Records(Protocol):
    """Operations on data with versions, by place. They raise `exists` and `missing` of `DriverParts`."""

    async def create(self, place: str, data: bytes, /) -> int: ...

    async def read(self, place: str, /) -> tuple[bytes, int]: ...

    async def write(self, place: str, data: bytes, expected_version: int, /) -> int: ...

    async def delete(self, place: str, expected_version: int, /) -> None: ...

    async def names(self, prefix: str) -> Sequence[str]: ...


class Transactions(Protocol):
    """Atomic transactions, see `MetadataDriver.transact`."""

    async def transact(self, steps: Sequence[Step]) -> int: ...


class DriverParts(Struct, frozen=True):
    """The parts of a driver that know its store.

    `exists`, `missing`: exceptions that `records` raises for a place that has a record, and for one that has none.
    """

    places: RecordPlaces
    ledgers: Ledgers
    bookies: Bookies
    records: Records
    transactions: Transactions
    recovery: NodeStore
    exists: type[Exception]
    missing: type[Exception]


class SessionDriver(MetadataDriver):
    """A driver whose registrations, locks and votes depend on a session with servers."""

    def __init__(
        self, uri: str, lease_ms: int, runtime: Runtime, parts: DriverParts, operations: RequestCounts
    ) -> None:
        self.uri = uri
        self.operations = operations
        self.lease_ms = lease_ms
        self._runtime = runtime
        self._parts = parts
        self._expiry_watches: dict[Subscription[None, None], None] = {}
        self._tasks: Tasks | None = None  # None: not open
        self._observers: Observers | None = None
        self._failure: BaseException | None = None
        self._recovery = SharedRecovery(parts.recovery, self._require_open, self.on_session_expired)

    # -- the session ---------------------------------------------------------------------------------------------
    @abstractmethod
    def _session_lost(self) -> None:
        """Handle the loss of the session, and with it of the registrations, or a failure of the driver."""

    @abstractmethod
    async def _disconnect(self) -> None:
        """End the session and the connection to the servers."""

    @abstractmethod
    async def _make_cluster(self, instance_id: str) -> None:
        """Create the missing parts of the cluster and its instance id. Returns also if the outcome is unknown."""

    def _opened(self, tasks: Tasks, names: WatchedNames) -> None:
        self._tasks = tasks
        self._observers = Observers(names, tasks)

    async def close(self) -> None:
        tasks, self._tasks = self._tasks, None
        self._expiry_watches.clear()
        if tasks is None:
            return
        await tasks.stop()
        if self._observers is not None:
            self._observers.clear()
        await self._disconnect()

    def _notify_expired(self) -> None:
        for watch in list(self._expiry_watches):
            watch.callback(None)

    def _died(self, cause: BaseException) -> None:
        """Stop using the driver after an unexpected exception in a background task, and report it to the owner."""
        self._failure = cause
        message = f"the session with {self.uri} failed"
        asyncio.get_running_loop().call_exception_handler({"message": message, "exception": cause})
        self._session_lost()

    def _require_open(self) -> Tasks:
        if self._tasks is None:
            raise ClientClosed(f"the session with {self.uri} is closed")
        if self._failure is not None:
            raise MetadataError(f"the session with {self.uri} failed: {self._failure}") from self._failure
        return self._tasks

    # -- the cluster ---------------------------------------------------------------------------------------------
    def _no_cluster(self) -> NoCluster:
        return NoCluster(
            f"there is no cluster at {self.uri}: check the path, or create the cluster with `bk metadata init` or "
            "with Apache's `bookkeeper shell initnewcluster`"
        )

    async def initialize_cluster(self) -> str:
        self._require_open()
        for _ in range(ATTEMPTS_MAX):
            stored = await self.instance_id()
            if stored is not None:
                return stored
            if (await self._parts.bookies.known()).bookies:
                raise refusals.half_a_cluster()
            await self._make_cluster(store_driver.instance_id_of(self._runtime.random.getrandbits(128)))
        raise MetadataError(
            f"the cluster at {self.uri} could not be created: other clients changed the store during {ATTEMPTS_MAX} "
            "attempts; retry"
        )

    async def restore_instance_id(self, instance_id: str) -> None:
        self._require_open()
        for _ in range(ATTEMPTS_MAX):
            stored = await self.instance_id()
            if stored == instance_id:
                return
            if stored is not None:
                raise refusals.other_cluster(stored, instance_id)
            await self._make_cluster(instance_id)
        raise MetadataError(
            f"the instance id could not be written to {self.uri}: other clients changed the store during "
            f"{ATTEMPTS_MAX} attempts; retry"
        )

    # -- ledgers -------------------------------------------------------------------------------------------------
    async def create_ledger(self, metadata: LedgerMetadata) -> Versioned:
        self._require_open()
        return await self._parts.ledgers.create(metadata)

    async def read_ledger(self, ledger_id: int) -> Versioned:
        self._require_open()
        return await self._parts.ledgers.read(ledger_id)

    async def write_ledger(
        self, metadata: LedgerMetadata, expected_version: int, lock: LedgerLock | None = None
    ) -> Versioned:
        self._require_open()
        return await self._parts.ledgers.write(metadata, expected_version, lock)

    async def delete_ledger(self, ledger_id: int, expected_version: int | None = None) -> None:
        self._require_open()
        await self._parts.ledgers.delete(ledger_id, expected_version)

    async def ledger_ids(self, after: int = -1) -> AsyncIterator[Sequence[int]]:
        self._require_open()
        async for page in self._parts.ledgers.listing(store_driver.PAGE_COUNT):
            if left := page[bisect_right(page, after) :]:
                yield left
            self._require_open()

    # -- bookies -------------------------------------------------------------------------------------------------
    def _require_registrable(self, bookie: BookieId) -> Tasks:
        tasks = self._require_open()
        if not is_bookie_id(bookie):
            raise InvalidArgument(f"{bookie!r} is not a bookie id: letters, digits, - . _ : only")
        return tasks

    async def unregister(self, bookie: BookieId) -> None:
        self._require_open()
        await self._parts.bookies.unregister(bookie)

    async def bookies(self, mode: BookieMode) -> BookieSet:
        self._require_open()
        return await self._parts.bookies.present(mode)

    async def all_bookies(self) -> BookieSet:
        self._require_open()
        return await self._parts.bookies.known()

    async def bookie_info(self, bookie: BookieId) -> BookieInfo | None:
        self._require_open()
        return await self._parts.bookies.info(bookie)

    # -- cookies -------------------------------------------------------------------------------------------------
    async def create_cookie(self, bookie: BookieId, data: bytes) -> int:
        self._require_open()
        try:
            return await self._parts.records.create(self._parts.places.cookie(bookie), data)
        except self._parts.exists:
            raise refusals.cookie_exists(bookie) from None

    async def read_cookie(self, bookie: BookieId) -> tuple[bytes, int]:
        self._require_open()
        try:
            return await self._parts.records.read(self._parts.places.cookie(bookie))
        except self._parts.missing:
            raise refusals.no_cookie(bookie) from None

    async def write_cookie(self, bookie: BookieId, data: bytes, expected_version: int) -> int:
        self._require_open()
        try:
            return await self._parts.records.write(self._parts.places.cookie(bookie), data, expected_version)
        except self._parts.missing:
            raise refusals.no_cookie(bookie) from None

    async def delete_cookie(self, bookie: BookieId, expected_version: int) -> None:
        self._require_open()
        try:
            await self._parts.records.delete(self._parts.places.cookie(bookie), expected_version)
        except self._parts.missing:
            raise refusals.no_cookie(bookie) from None

    # -- named records -------------------------------------------------------------------------------------------
    async def create_record(self, name: str, data: bytes) -> int:
        check_record(name, data)
        self._require_open()
        try:
            return await self._parts.records.create(self._parts.places.record(name), data)
        except self._parts.exists:
            raise refusals.record_exists(name) from None

    async def read_record(self, name: str) -> tuple[bytes, int]:
        check_record(name)
        self._require_open()
        try:
            return await self._parts.records.read(self._parts.places.record(name))
        except self._parts.missing:
            raise refusals.no_record(name) from None

    async def write_record(self, name: str, data: bytes, expected_version: int) -> int:
        check_record(name, data)
        self._require_open()
        try:
            return await self._parts.records.write(self._parts.places.record(name), data, expected_version)
        except self._parts.missing:
            raise refusals.no_record(name) from None

    async def delete_record(self, name: str, expected_version: int) -> None:
        check_record(name)
        self._require_open()
        try:
            await self._parts.records.delete(self._parts.places.record(name), expected_version)
        except self._parts.missing:
            raise refusals.no_record(name) from None

    async def record_names(self, prefix: str) -> Sequence[str]:
        self._require_open()
        return await self._parts.records.names(prefix)

    async def transact(self, steps: Sequence[Step]) -> int:
        check_steps(steps)
        self._require_open()
        return await self._parts.transactions.transact(steps)

    @property
    def recovery(self) -> RecoveryStore:
        return self._recovery

    # -- watches -------------------------------------------------------------------------------------------------
    def watch_bookies(self, mode: BookieMode, callback: Callable[[BookieSet], None]) -> Watch:
        return self._open_observers().bookies(mode, callback)

    def watch_record(self, name: str, version: int, callback: Callable[[], None]) -> Watch:
        return self._open_observers().record(self._parts.places.record(name), version, callback)

    def on_session_expired(self, callback: Callable[[], None]) -> Watch:
        return Subscription(self._expiry_watches, None, lambda _: callback(), NEVER_SEEN)

    def _open_observers(self) -> Observers:
        self._require_open()
        assert self._observers is not None
        return self._observers
