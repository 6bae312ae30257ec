"""The metadata driver on etcd, with the keys of Apache's: for clusters where etcd runs and ZooKeeper does not.

`EtcdDriver` is one session. What is where is in `etcd_layout`; the parts that do the work are `etcd_ledgers`,
`etcd_bookies` and `etcd_records`, over `etcd_values`; `etcd_session` keeps the lease that registrations depend on.
A lost lease takes registrations with it, nothing else: the owner is told, and everything goes on.
Source: metadata 5, 6, 10 and 11.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from bookies.errors import (
    ClientClosed,
    CookieExists,
    CookieNotFound,
    InvalidArgument,
    MetadataError,
    RecordExists,
    RecordNotFound,
)
from bookies.metadata import leased
from bookies.metadata.driver import (
    BookieSet,
    GivenIds,
    LedgerEvent,
    MetadataDriver,
    Step,
    Versioned,
    Watch,
    check_record,
    check_steps,
)
from bookies.metadata.etcd_bookies import Bookies
from bookies.metadata.etcd_layout import Keys, check_layout
from bookies.metadata.etcd_ledgers import LedgerIds, Ledgers, SpentIds
from bookies.metadata.etcd_records import KeyExists, KeyMissing, Records, Transactions
from bookies.metadata.etcd_session import Session
from bookies.metadata.etcd_values import ATTEMPTS_MAX, Values
from bookies.metadata.observers import Eyes, Observers
from bookies.metadata.serde import is_bookie_id
from bookies.metadata.watches import NEVER_SEEN, Subscription
from bookies.model import BookieId, BookieInfo, BookieMode, LedgerMetadata
from bookies.runtime.etcd import Etcd, MadeAt, OutcomeUnknown, Put
from bookies.runtime.ports import Runtime
from bookies.runtime.tasks import Tasks


class EtcdDriver(MetadataDriver):
    """One session with the cluster of a scope. `lease_ms` is rounded up to whole seconds."""

    def __init__(
        self, uri: str, etcd: Etcd, runtime: Runtime, scope: str, *, lease_ms: int, may_create: bool = True
    ) -> None:
        self.uri = uri
        self.lease_ms = lease_ms
        self.etcd = etcd
        self._runtime = runtime
        self._may_create = may_create
        self._keys = Keys(scope)
        self._values = Values(etcd, self._keys)
        self._spent = SpentIds(self._values)
        self._ledgers = Ledgers(self._values, self._spent, runtime.clock.wall_ms)
        self._ids = LedgerIds(self._values)
        self._records = Records(self._values)
        self._transactions = Transactions(self._values, self._spent)
        self._session = Session(etcd, lease_ms, self._session_lost)
        self._bookies = Bookies(self._values, self._session)
        self._expiry_watches: dict[Subscription[None, None], None] = {}
        self._tasks: Tasks | None = None  # None: not open
        self._observers: Observers | None = None
        self._failure: BaseException | None = None

    def __repr__(self) -> str:
        state = "closed" if self._tasks is None else f"session {self.session_id}"
        return f"<{type(self).__name__} {self.uri} {state}>"

    # -- the session ---------------------------------------------------------------------------------------------
    @property
    def session_id(self) -> int | None:
        """The lease that holds our registrations; None when there are none."""
        return self._session.lease

    async def open(self) -> None:
        assert self._tasks is None, "opened twice"
        await self.etcd.open()
        try:
            await self._find_cluster()
        except BaseException:
            await self.etcd.close()
            raise
        self._tasks = Tasks(self._died)
        eyes = Eyes(self._values.last_seen, self._values.version, self._bookies.present, self.etcd.unwatch)
        self._observers = Observers(eyes, self._tasks)

    async def _find_cluster(self) -> None:
        scope, layout = await self._values.read(self._keys.scope, self._keys.layout)
        if layout is not None:
            check_layout(layout.value)
        elif scope is None and not self._may_create:
            raise MetadataError(
                f"there is no cluster at {self.uri}: check the path, or start one with its first bookie, or with "
                "Apache's `bookkeeper shell initnewcluster`"
            )

    async def close(self) -> None:
        tasks, self._tasks = self._tasks, None
        self._expiry_watches.clear()
        if tasks is None:
            return
        await tasks.stop()
        if self._observers is not None:
            self._observers.clear()
        await self._session.end()
        await self.etcd.close()

    def _session_lost(self) -> None:
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
    async def initialize_cluster(self) -> str:
        self._require_open()
        for _ in range(ATTEMPTS_MAX):
            found = await self.instance_id()
            if found is not None:
                return found
            if (await self._bookies.known()).bookies:
                raise leased.half_a_cluster()
            try:
                await self._make(self._keys.fixed(leased.instance_id_of(self._runtime.random.getrandbits(128))))
            except OutcomeUnknown:
                continue  # It may have happened: look.
        raise MetadataError(f"the cluster at {self.uri} could not be made: others keep changing what is there")

    async def _make(self, wanted: Sequence[tuple[str, bytes]]) -> None:
        """Those keys that are missing, in one transaction, as Apache does with all."""
        found = await self._values.read(*(key for key, _ in wanted))
        missing = [each for each, there in zip(wanted, found, strict=True) if there is None]
        await self.etcd.transact([MadeAt(key, 0) for key, _ in missing], [Put(key, data) for key, data in missing])

    async def instance_id(self) -> str | None:
        self._require_open()
        found = (await self._values.read(self._keys.instance_id))[0]
        return None if found is None else found.value.decode("utf-8")

    # -- moving a cluster ----------------------------------------------------------------------------------------
    async def given_ids(self) -> GivenIds:
        self._require_open()
        return GivenIds(await self._ids.bound(), await self._spent.runs())

    async def restore_ids(self, ids: GivenIds) -> None:
        self._require_open()
        fixed = self._keys.fixed("")
        await self._values.repeat(lambda: self._make([each for each in fixed if each[0] != self._keys.instance_id]))
        await self._ids.raise_to(ids.next_id)
        await self._spent.restore(ids.spent)

    async def restore_instance_id(self, instance_id: str) -> None:
        self._require_open()
        for _ in range(ATTEMPTS_MAX):
            found = await self.instance_id()
            if found == instance_id:
                return
            if found is not None:
                raise leased.other_cluster(found, instance_id)
            try:
                await self._make(self._keys.fixed(instance_id))
            except OutcomeUnknown:
                continue  # As above.
        raise MetadataError(f"the instance id could not be written to {self.uri}: others keep changing what is there")

    # -- ledgers -------------------------------------------------------------------------------------------------
    async def next_ledger_id(self) -> int:
        self._require_open()
        return await self._ids.next()

    async def create_ledger(self, metadata: LedgerMetadata) -> Versioned:
        self._require_open()
        return await self._ledgers.create(metadata)

    async def read_ledger(self, ledger_id: int) -> Versioned:
        self._require_open()
        return await self._ledgers.read(ledger_id)

    async def write_ledger(self, metadata: LedgerMetadata, expected_version: int) -> Versioned:
        self._require_open()
        return await self._ledgers.write(metadata, expected_version)

    async def delete_ledger(self, ledger_id: int, expected_version: int | None = None) -> None:
        self._require_open()
        await self._ledgers.delete(ledger_id, expected_version)

    async def ledger_ids(self) -> AsyncIterator[Sequence[int]]:
        self._require_open()
        async for page in self._ledgers.listing(leased.PAGE_COUNT):
            yield page
            self._require_open()

    # -- bookies -------------------------------------------------------------------------------------------------
    async def register(self, bookie: BookieId, mode: BookieMode, info: BookieInfo) -> None:
        tasks = self._require_open()
        if not is_bookie_id(bookie):
            raise InvalidArgument(f"{bookie!r} is not a bookie id: letters, digits, - . _ : only")
        await self._bookies.register(tasks, bookie, mode, info)

    async def unregister(self, bookie: BookieId) -> None:
        self._require_open()
        await self._bookies.unregister(bookie)

    async def bookies(self, mode: BookieMode) -> BookieSet:
        self._require_open()
        return await self._bookies.present(mode)

    async def all_bookies(self) -> BookieSet:
        self._require_open()
        return await self._bookies.known()

    async def bookie_info(self, bookie: BookieId) -> BookieInfo | None:
        self._require_open()
        return await self._bookies.info(bookie)

    # -- cookies -------------------------------------------------------------------------------------------------
    async def create_cookie(self, bookie: BookieId, data: bytes) -> int:
        self._require_open()
        try:
            return await self._records.create(self._keys.cookie(bookie), data)
        except KeyExists:
            raise CookieExists("the metadata store has a cookie already", bookie=bookie) from None

    async def read_cookie(self, bookie: BookieId) -> tuple[bytes, int]:
        self._require_open()
        try:
            return await self._records.read(self._keys.cookie(bookie))
        except KeyMissing:
            raise _no_cookie(bookie) from None

    async def write_cookie(self, bookie: BookieId, data: bytes, expected_version: int) -> int:
        self._require_open()
        try:
            return await self._records.write(self._keys.cookie(bookie), data, expected_version)
        except KeyMissing:
            raise _no_cookie(bookie) from None

    async def delete_cookie(self, bookie: BookieId, expected_version: int) -> None:
        self._require_open()
        try:
            await self._records.delete(self._keys.cookie(bookie), expected_version)
        except KeyMissing:
            raise _no_cookie(bookie) from None

    # -- named records -------------------------------------------------------------------------------------------
    async def create_record(self, name: str, data: bytes) -> int:
        check_record(name, data)
        self._require_open()
        try:
            return await self._records.create(self._keys.record(name), data)
        except KeyExists:
            raise RecordExists(f"the metadata store has a record {name} already") from None

    async def read_record(self, name: str) -> tuple[bytes, int]:
        check_record(name)
        self._require_open()
        try:
            return await self._records.read(self._keys.record(name))
        except KeyMissing:
            raise _no_record(name) from None

    async def write_record(self, name: str, data: bytes, expected_version: int) -> int:
        check_record(name, data)
        self._require_open()
        try:
            return await self._records.write(self._keys.record(name), data, expected_version)
        except KeyMissing:
            raise _no_record(name) from None

    async def delete_record(self, name: str, expected_version: int) -> None:
        check_record(name)
        self._require_open()
        try:
            await self._records.delete(self._keys.record(name), expected_version)
        except KeyMissing:
            raise _no_record(name) from None

    async def record_names(self, prefix: str) -> Sequence[str]:
        self._require_open()
        return await self._records.names(prefix)

    async def transact(self, steps: Sequence[Step]) -> int:
        check_steps(steps)
        self._require_open()
        return await self._transactions.transact(steps)

    # -- watches -------------------------------------------------------------------------------------------------
    def watch_ledger(self, ledger_id: int, callback: Callable[[LedgerEvent], None]) -> Watch:
        return self._open_observers().ledger(self._keys.ledger(ledger_id), callback)

    def watch_bookies(self, mode: BookieMode, callback: Callable[[BookieSet], None]) -> Watch:
        return self._open_observers().bookies(mode, callback)

    def watch_record(self, name: str, version: int, callback: Callable[[], None]) -> Watch:
        return self._open_observers().record(self._keys.record(name), version, callback)

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
