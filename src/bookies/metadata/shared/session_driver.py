"""What drivers on servers share: one session, cookies and records at places of a tree, watches, and when to refuse.

A driver brings its `DriverParts`, which know their store; what is here knows none. Source: metadata 5, 6 and 11.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from bookies.errors import (
    ClientClosed,
    CookieExists,
    CookieNotFound,
    InvalidArgument,
    MetadataError,
    NoCluster,
    RecordExists,
    RecordNotFound,
)
from bookies.metadata.formats.serde import is_bookie_id
from bookies.metadata.interface import MetadataDriver, RecoveryStore, Watch
from bookies.metadata.interface.driver import BookieSet, Step, Versioned, check_record, check_steps
from bookies.metadata.interface.recovery_store import LedgerLock
from bookies.metadata.interface.request_counts import RequestCounts
from bookies.metadata.interface.watches import NEVER_SEEN, Subscription
from bookies.metadata.shared import store_driver
from bookies.metadata.shared.observers import Eyes, Observers
from bookies.metadata.shared.recovery import NodeStore, SharedRecovery
from bookies.model import BookieId, BookieInfo, BookieMode, LedgerMetadata
from bookies.runtime.ports import Runtime
from bookies.runtime.tasks import Tasks

ATTEMPTS_MAX = 4  # to make a cluster, while others change what is there


class NodePaths(Protocol):
    """Where things are in the tree."""

    def cookie(self, bookie: BookieId) -> str: ...

    def record(self, name: str) -> str: ...


class Ledgers(Protocol):
    async def create(self, metadata: LedgerMetadata) -> Versioned: ...

    async def read(self, ledger_id: int) -> Versioned: ...

    async def write(self, metadata: LedgerMetadata, expected_version: int, lock: LedgerLock | None) -> Versioned: ...

    async def delete(self, ledger_id: int, expected_version: int | None) -> None: ...

    def listing(self, page_count: int) -> AsyncIterator[list[int]]: ...


class Bookies(Protocol):
    async def unregister(self, bookie: BookieId) -> None: ...

    async def present(self, mode: BookieMode, watch: Callable[[], None] | None = None) -> BookieSet: ...

    async def known(self) -> BookieSet: ...

    async def info(self, bookie: BookieId) -> BookieInfo | None: ...


class Records(Protocol):
    """Data with versions, at a place. They raise the `exists` and `missing` of `DriverParts`."""

    async def create(self, place: str, data: bytes, /) -> int: ...

    async def read(self, place: str, /) -> tuple[bytes, int]: ...

    async def write(self, place: str, data: bytes, expected_version: int, /) -> int: ...

    async def delete(self, place: str, expected_version: int, /) -> None: ...

    async def names(self, prefix: str) -> Sequence[str]: ...


class Transactions(Protocol):
    async def transact(self, steps: Sequence[Step]) -> int: ...


@dataclass(frozen=True, slots=True)
class DriverParts:
    """Who does the work. `exists`, `missing`: what records raise for a place that is taken, and for one that is not."""

    places: NodePaths
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
        """Registrations are gone, or nothing works any more."""

    @abstractmethod
    async def _leave(self) -> None:
        """Let go of the servers."""

    @abstractmethod
    async def _make_cluster(self, instance_id: str) -> None:
        """Make what is missing, the instance id with it. Returns too when nobody knows whether it has happened."""

    def _opened(self, tasks: Tasks, eyes: Eyes) -> None:
        self._tasks = tasks
        self._observers = Observers(eyes, tasks)

    async def close(self) -> None:
        tasks, self._tasks = self._tasks, None
        self._expiry_watches.clear()
        if tasks is None:
            return
        await tasks.stop()
        if self._observers is not None:
            self._observers.clear()
        await self._leave()

    def _tell_expired(self) -> None:
        for watch in list(self._expiry_watches):
            watch.callback(None)

    def _died(self, cause: BaseException) -> None:
        """A background task made a mistake of our own: nothing works from here on, and the owner hears of it."""
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
            f"there is no cluster at {self.uri}: check the path, or start one with its first bookie, or with "
            "Apache's `bookkeeper shell initnewcluster`"
        )

    async def initialize_cluster(self) -> str:
        self._require_open()
        for _ in range(ATTEMPTS_MAX):
            found = await self.instance_id()
            if found is not None:
                return found
            if (await self._parts.bookies.known()).bookies:
                raise store_driver.half_a_cluster()
            await self._make_cluster(store_driver.instance_id_of(self._runtime.random.getrandbits(128)))
        raise MetadataError(f"the cluster at {self.uri} could not be made: others keep changing what is there")

    async def restore_instance_id(self, instance_id: str) -> None:
        self._require_open()
        for _ in range(ATTEMPTS_MAX):
            found = await self.instance_id()
            if found == instance_id:
                return
            if found is not None:
                raise store_driver.other_cluster(found, instance_id)
            await self._make_cluster(instance_id)
        raise MetadataError(f"the instance id could not be written to {self.uri}: others keep changing what is there")

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

    async def ledger_ids(self) -> AsyncIterator[Sequence[int]]:
        self._require_open()
        async for page in self._parts.ledgers.listing(store_driver.PAGE_COUNT):
            yield page
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
            raise CookieExists("the metadata store has a cookie already", bookie=bookie) from None

    async def read_cookie(self, bookie: BookieId) -> tuple[bytes, int]:
        self._require_open()
        try:
            return await self._parts.records.read(self._parts.places.cookie(bookie))
        except self._parts.missing:
            raise _no_cookie(bookie) from None

    async def write_cookie(self, bookie: BookieId, data: bytes, expected_version: int) -> int:
        self._require_open()
        try:
            return await self._parts.records.write(self._parts.places.cookie(bookie), data, expected_version)
        except self._parts.missing:
            raise _no_cookie(bookie) from None

    async def delete_cookie(self, bookie: BookieId, expected_version: int) -> None:
        self._require_open()
        try:
            await self._parts.records.delete(self._parts.places.cookie(bookie), expected_version)
        except self._parts.missing:
            raise _no_cookie(bookie) from None

    # -- named records -------------------------------------------------------------------------------------------
    async def create_record(self, name: str, data: bytes) -> int:
        check_record(name, data)
        self._require_open()
        try:
            return await self._parts.records.create(self._parts.places.record(name), data)
        except self._parts.exists:
            raise RecordExists(f"the metadata store has a record {name} already") from None

    async def read_record(self, name: str) -> tuple[bytes, int]:
        check_record(name)
        self._require_open()
        try:
            return await self._parts.records.read(self._parts.places.record(name))
        except self._parts.missing:
            raise _no_record(name) from None

    async def write_record(self, name: str, data: bytes, expected_version: int) -> int:
        check_record(name, data)
        self._require_open()
        try:
            return await self._parts.records.write(self._parts.places.record(name), data, expected_version)
        except self._parts.missing:
            raise _no_record(name) from None

    async def delete_record(self, name: str, expected_version: int) -> None:
        check_record(name)
        self._require_open()
        try:
            await self._parts.records.delete(self._parts.places.record(name), expected_version)
        except self._parts.missing:
            raise _no_record(name) from None

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


def _no_cookie(bookie: BookieId) -> CookieNotFound:
    return CookieNotFound("no cookie in the metadata store", bookie=bookie)


def _no_record(name: str) -> RecordNotFound:
    return RecordNotFound(f"no record {name} in the metadata store")
