"""The metadata driver on ZooKeeper, in Apache's layout: our bookies and clients beside Apache's in one cluster.

`ZooKeeperDriver` is one session. What is where is in `zk_layout`; the parts that do the work are `zk_ledgers`,
`zk_bookies` and `zk_records`, over `zk_nodes`. A lost session takes registrations with it, nothing else: the owner is
told, everything goes on in the next session, and watches look again. Source: metadata 1 to 7 and 11.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

from bookies.errors import (
    ClientClosed,
    ConfigError,
    CookieExists,
    CookieNotFound,
    InvalidArgument,
    MetadataError,
    RecordExists,
    RecordNotFound,
    SessionExpired,
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
from bookies.metadata.observers import Eyes, Observers
from bookies.metadata.serde import is_bookie_id
from bookies.metadata.watches import NEVER_SEEN, Subscription
from bookies.metadata.zk_bookies import Bookies
from bookies.metadata.zk_layout import Manager, Paths, pack_layout, parent_of, parse_layout
from bookies.metadata.zk_ledgers import LedgerIds, Ledgers, SpentIds
from bookies.metadata.zk_nodes import ATTEMPTS_MAX, Nodes
from bookies.metadata.zk_records import Records, Transactions
from bookies.model import BookieId, BookieInfo, BookieMode, LedgerMetadata
from bookies.runtime.ports import Runtime
from bookies.runtime.tasks import Tasks
from bookies.runtime.zookeeper import (
    Acl,
    Create,
    NodeExists,
    NodeMissing,
    OutcomeUnknown,
    Refusal,
    ZooKeeper,
)

T = TypeVar("T")


class ZooKeeperDriver(MetadataDriver):
    """One session with the cluster below `root`. `manager`: the layout that the URI asks for, None for whatever is
    there. `is_secure`: what we create belongs to the identity that the session authenticates as, alone.
    """

    def __init__(
        self,
        uri: str,
        zookeeper: ZooKeeper,
        runtime: Runtime,
        root: str,
        *,
        manager: Manager | None = None,
        lease_ms: int,
        may_create: bool = True,
        is_secure: bool = False,
    ) -> None:
        self.uri = uri
        self.lease_ms = lease_ms
        self.zookeeper = zookeeper
        self._runtime = runtime
        self._wanted = manager
        self._may_create = may_create
        self._paths = Paths(root)
        self._nodes = Nodes(zookeeper, self._paths, Acl.CREATOR if is_secure else Acl.OPEN)
        self._spent = SpentIds(self._nodes)
        self._ledgers = Ledgers(self._nodes, self._spent)
        self._records = Records(self._nodes)
        self._transactions = Transactions(self._nodes, self._ledgers, self._spent, self._records)
        self._sessions_lost = 0
        self._bookies = Bookies(self._nodes, lease_ms, lambda: self._sessions_lost)
        self._has_registered = False  # in this session
        self._expiry_watches: dict[Subscription[None, None], None] = {}
        self._tasks: Tasks | None = None  # None: not open
        self._ids: LedgerIds | None = None
        self._observers: Observers | None = None
        self._failure: BaseException | None = None

    def __repr__(self) -> str:
        state = "closed" if self._tasks is None else f"{self._ledgers.manager.value}, session {self.session_id}"
        return f"<{type(self).__name__} {self.uri} {state}>"

    # -- the session ---------------------------------------------------------------------------------------------
    @property
    def session_id(self) -> int | None:
        """Of the session that holds our registrations; None when there are none."""
        return self.zookeeper.session_id if self._has_registered else None

    async def open(self) -> None:
        assert self._tasks is None, "opened twice"
        self.zookeeper.on_session_lost(self._session_lost)
        await self.zookeeper.open()
        try:
            await self._open_layout()
        except BaseException:
            await self.zookeeper.close()
            raise
        self._tasks = Tasks(self._died)
        self._ids = LedgerIds(self._nodes, self._tasks)
        eyes = Eyes(self._nodes.last_seen, self._nodes.version, self._bookies.present, self.zookeeper.unwatch)
        self._observers = Observers(eyes, self._tasks)

    async def close(self) -> None:
        tasks, self._tasks = self._tasks, None
        self._expiry_watches.clear()
        if tasks is None:
            return
        await tasks.stop()
        if self._observers is not None:
            self._observers.clear()
        await self.zookeeper.close()

    def _session_lost(self) -> None:
        self._sessions_lost += 1
        if self._has_registered:
            self._has_registered = False
            for watch in list(self._expiry_watches):
                watch.callback(None)

    def _died(self, cause: BaseException) -> None:
        """A background task made a mistake of our own: nothing works from here on, and the owner hears of it."""
        self._failure = cause
        message = f"the session with {self.uri} failed"
        asyncio.get_running_loop().call_exception_handler({"message": message, "exception": cause})
        self._session_lost()

    def _require_open(self) -> None:
        if self._tasks is None:
            raise ClientClosed(f"the session with {self.uri} is closed")
        if self._failure is not None:
            raise MetadataError(f"the session with {self.uri} failed: {self._failure}") from self._failure

    # -- the cluster ---------------------------------------------------------------------------------------------
    async def _open_layout(self) -> None:
        """Find out how ids become paths, or say it where nobody has. Source: metadata 2.2."""
        wanted = self._wanted or Manager.HIERARCHICAL
        found = await self._nodes.read(self._paths.layout)
        if found is None and await self._nodes.stat(self._paths.root) is None:
            if not self._may_create:
                raise MetadataError(
                    f"there is no cluster at {self.uri}: check the path, or start one with its first bookie, or with "
                    "Apache's `bookkeeper shell initnewcluster`"
                )
            self._ledgers.manager = wanted  # stored when the cluster is made
            return
        if found is None:
            await self._store_layout(wanted)
        self._ledgers.manager = parse_layout(found[0]) if found is not None else wanted
        if self._wanted not in (None, self._ledgers.manager):
            raise ConfigError(
                f"{self.uri} asks for the layout {wanted.value}, but the cluster has {self._ledgers.manager.value}: "
                "write zk:// to take the cluster's"
            )
        try:
            await self.zookeeper.create(self._paths.registrations(BookieMode.READ_ONLY), b"", self._nodes.acl)
        except (Refusal, OutcomeUnknown, SessionExpired):
            pass  # It is there, or the cluster is not complete; whoever needs it makes it.

    async def _store_layout(self, manager: Manager) -> None:
        data = pack_layout(manager)
        try:
            await self._nodes.repeat(lambda: self.zookeeper.create(self._paths.layout, data, self._nodes.acl))
        except NodeExists:
            found = await self._nodes.read(self._paths.layout)
            if found is None or found[0] != data:
                raise MetadataError(f"somebody else wrote another layout to {self._paths.layout}; try again") from None

    async def initialize_cluster(self) -> str:
        self._require_open()
        for _ in range(ATTEMPTS_MAX):
            found = await self.instance_id()
            if found is not None:
                return found
            if (await self._bookies.known()).bookies:
                raise leased.half_a_cluster()
            number = leased.instance_id_of(self._runtime.random.getrandbits(128))
            try:
                await self._initialize(number.encode("ascii"))
            except (Refusal, OutcomeUnknown, SessionExpired):
                continue  # Somebody else was faster, or our own attempt may have been: look.
        raise MetadataError(f"the cluster at {self.uri} could not be made: others keep changing what is there")

    async def _initialize(self, instance_id: bytes) -> None:
        """As Apache's initnewcluster, and where its znodes are there in part, the rest. Source: metadata 2.6."""
        paths, acl = self._paths, self._nodes.acl
        missing = [paths.root, paths.registrations(BookieMode.WRITABLE), paths.registrations(BookieMode.READ_ONLY)]
        missing = [path for path in missing if await self._nodes.stat(path) is None]
        await self._nodes.ensure(parent_of(paths.root))
        nodes = [Create(path, b"", acl) for path in missing]
        await self.zookeeper.multi([*nodes, Create(paths.instance_id, instance_id, acl)])
        if await self._nodes.read(paths.layout) is None:
            await self._store_layout(self._ledgers.manager)

    async def instance_id(self) -> str | None:
        self._require_open()
        found = await self._nodes.read(self._paths.instance_id)
        return None if found is None else found[0].decode("utf-8")

    @property
    def layout(self) -> str:
        return self._ledgers.manager.value

    # -- moving a cluster ----------------------------------------------------------------------------------------
    async def given_ids(self) -> GivenIds:
        self._require_open()
        assert self._ids is not None
        return GivenIds(await self._ids.bound(self._ledgers.manager), await self._spent.runs())

    async def restore_ids(self, ids: GivenIds) -> None:
        self._require_open()
        assert self._ids is not None
        await self._nodes.ensure(self._paths.root)
        if await self._nodes.read(self._paths.layout) is None:
            await self._store_layout(self._ledgers.manager)
        await self._ids.raise_to(self._ledgers.manager, ids.next_id)
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
                await self._initialize(instance_id.encode("utf-8"))
            except (Refusal, OutcomeUnknown, SessionExpired):
                continue  # As above.
        raise MetadataError(f"the instance id could not be written to {self.uri}: others keep changing what is there")

    # -- ledgers -------------------------------------------------------------------------------------------------
    async def next_ledger_id(self) -> int:
        self._require_open()
        assert self._ids is not None
        return await self._ids.next(self._ledgers.manager)

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
        self._require_open()
        if not is_bookie_id(bookie):
            raise InvalidArgument(f"{bookie!r} is not a bookie id: letters, digits, - . _ : only")
        self._has_registered = True
        await self._bookies.register(bookie, mode, info)

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
            return await self._records.create(self._paths.cookie(bookie), data)
        except NodeExists:
            raise CookieExists("the metadata store has a cookie already", bookie=bookie) from None

    async def read_cookie(self, bookie: BookieId) -> tuple[bytes, int]:
        self._require_open()
        try:
            return await self._records.read(self._paths.cookie(bookie))
        except NodeMissing:
            raise _no_cookie(bookie) from None

    async def write_cookie(self, bookie: BookieId, data: bytes, expected_version: int) -> int:
        self._require_open()
        try:
            return await self._records.write(self._paths.cookie(bookie), data, expected_version)
        except NodeMissing:
            raise _no_cookie(bookie) from None

    async def delete_cookie(self, bookie: BookieId, expected_version: int) -> None:
        self._require_open()
        try:
            await self._records.delete(self._paths.cookie(bookie), expected_version)
        except NodeMissing:
            raise _no_cookie(bookie) from None

    # -- named records -------------------------------------------------------------------------------------------
    async def create_record(self, name: str, data: bytes) -> int:
        check_record(name, data)
        self._require_open()
        try:
            return await self._records.create(self._paths.record(name), data)
        except NodeExists:
            raise RecordExists(f"the metadata store has a record {name} already") from None

    async def read_record(self, name: str) -> tuple[bytes, int]:
        check_record(name)
        self._require_open()
        try:
            return await self._records.read(self._paths.record(name))
        except NodeMissing:
            raise _no_record(name) from None

    async def write_record(self, name: str, data: bytes, expected_version: int) -> int:
        check_record(name, data)
        self._require_open()
        try:
            return await self._records.write(self._paths.record(name), data, expected_version)
        except NodeMissing:
            raise _no_record(name) from None

    async def delete_record(self, name: str, expected_version: int) -> None:
        check_record(name)
        self._require_open()
        try:
            await self._records.delete(self._paths.record(name), expected_version)
        except NodeMissing:
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
        return self._open_observers().ledger(self._ledgers.path(ledger_id), callback)

    def watch_bookies(self, mode: BookieMode, callback: Callable[[BookieSet], None]) -> Watch:
        return self._open_observers().bookies(mode, callback)

    def watch_record(self, name: str, version: int, callback: Callable[[], None]) -> Watch:
        return self._open_observers().record(self._paths.record(name), version, callback)

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
