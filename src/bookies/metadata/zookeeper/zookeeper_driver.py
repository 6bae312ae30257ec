"""The metadata driver on ZooKeeper, in Apache's layout: our bookies and clients beside Apache's in one cluster.

`ZooKeeperDriver` is one session. `zk_layout` defines the paths; the parts are `zk_ledgers`, `zk_ids`, `zk_bookies`,
`zk_records` and `zk_recovery`, over `zk_nodes` and `zk_groups`. A lost session ends registrations, locks and votes, and
nothing else: the owner is notified, requests continue in the next session, and watches read the state again.
Source: metadata 1 to 8 and 11.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TypeVar

from msgspec import Struct

from bookies.errors import (
    ConfigError,
    MetadataCorrupt,
    MetadataError,
    SessionExpired,
)
from bookies.metadata.interface import Watch
from bookies.metadata.interface.driver import READ_AT_ONCE, GivenIds, LedgerEvent, Versioned
from bookies.metadata.interface.request_counts import RequestCounts
from bookies.metadata.shared.observers import WatchedNames
from bookies.metadata.shared.refusals import other_cluster
from bookies.metadata.shared.session_driver import DriverParts, SessionDriver
from bookies.metadata.shared.store_driver import parse_instance_id
from bookies.metadata.zookeeper.counted_zookeeper import CountedZooKeeper
from bookies.metadata.zookeeper.zk_bookies import Bookies
from bookies.metadata.zookeeper.zk_groups import Groups
from bookies.metadata.zookeeper.zk_ids import LedgerIds
from bookies.metadata.zookeeper.zk_layout import (
    Manager,
    Paths,
    is_of_cluster,
    managers_of,
    pack_layout,
    parent_of,
    parse_layout,
)
from bookies.metadata.zookeeper.zk_ledgers import Ledgers, SpentIds
from bookies.metadata.zookeeper.zk_nodes import ZkNodes
from bookies.metadata.zookeeper.zk_records import Records, Transactions
from bookies.metadata.zookeeper.zk_recovery import ZkNodeStore
from bookies.metadata.zookeeper.zookeeper_port import (
    Acl,
    Create,
    NodeExists,
    NodeMissing,
    NotEmpty,
    OutcomeUnknown,
    Refusal,
    ZooKeeper,
)
from bookies.model import BookieId, BookieInfo, BookieMode
from bookies.runtime.ports import Runtime
from bookies.runtime.tasks import Tasks, all_of

T = TypeVar("T")


class ZkCluster(Struct, frozen=True):
    """A cluster below the path `root`. `manager`: the layout that the URI names; None: the cluster's.

    `may_create`: the first session stores the layout of a cluster that has none. `is_secure`: only the identity that
    the session authenticates as has access to znodes that the driver creates.
    """

    root: str
    manager: Manager | None = None
    may_create: bool = True
    is_secure: bool = False


class ZooKeeperDriver(SessionDriver):
    """One session with a cluster."""

    def __init__(self, uri: str, zookeeper: ZooKeeper, runtime: Runtime, cluster: ZkCluster, *, lease_ms: int) -> None:
        self.zookeeper = zookeeper
        self._cluster = cluster
        self._paths = Paths(cluster.root)
        operations = RequestCounts()
        self._requests = CountedZooKeeper(zookeeper, operations, self._paths.kind)
        self._nodes = ZkNodes(self._requests, self._paths, Acl.CREATOR if cluster.is_secure else Acl.OPEN)
        self._spent = SpentIds(self._nodes)
        self._ledgers = Ledgers(self._nodes, self._spent, Groups(self._requests, self._require_open))
        self._ids = LedgerIds(self._nodes, self._require_open)
        self._sessions_lost = 0
        self._bookies = Bookies(self._nodes, lease_ms, lambda: self._sessions_lost)
        self._needs_session = False  # a registration, lock or vote depends on the current session
        records = Records(self._nodes)
        transactions = Transactions(self._nodes, self._ledgers, self._spent, records)
        lost, use = (lambda: self._sessions_lost), self._use_session
        recovery = ZkNodeStore(self._nodes, lost, use, self._require_open, self._open_observers)
        parts = DriverParts(
            self._paths, self._ledgers, self._bookies, records, transactions, recovery, NodeExists, NodeMissing
        )
        super().__init__(uri, lease_ms, runtime, parts, operations)

    def __repr__(self) -> str:
        state = "closed" if self._tasks is None else f"{self._ledgers.manager.value}, session {self.session_id}"
        return f"<{type(self).__name__} {self.uri} {state}>"

    # -- the session ---------------------------------------------------------------------------------------------
    @property
    def session_id(self) -> int | None:
        """Id of the session that our registrations, locks and votes depend on; None: there are none."""
        return self.zookeeper.session_id if self._needs_session else None

    def _use_session(self) -> None:
        self._needs_session = True

    async def open(self) -> None:
        assert self._tasks is None, "opened twice"
        self.zookeeper.on_session_lost(self._session_lost)
        await self.zookeeper.open()
        try:
            await self._open_layout()
        except BaseException:
            await self.zookeeper.close()
            raise
        tasks = Tasks(self._died)
        names = WatchedNames(self._nodes.last_seen, self._nodes.version, self._bookies.present, self.zookeeper.unwatch)
        self._opened(tasks, names)

    async def _disconnect(self) -> None:
        await self.zookeeper.close()

    def _session_lost(self) -> None:
        self._sessions_lost += 1
        if self._needs_session:
            self._needs_session = False
            self._notify_expired()

    # -- the cluster ---------------------------------------------------------------------------------------------
    async def _open_layout(self) -> None:
        """Read the cluster's layout; store it if the cluster has none. Source: metadata 2.2."""
        wanted = self._cluster.manager or Manager.HIERARCHICAL
        record = await self._nodes.read(self._paths.layout)
        if record is None and await self._nodes.stat(self._paths.root) is None:
            if not self._cluster.may_create:
                raise self._no_cluster()
            self._ledgers.manager = wanted  # stored when the cluster is created
            return
        if record is None:
            await self._check_no_ledgers()
            await self._store_layout(wanted)
        self._ledgers.manager = parse_layout(record[0]) if record is not None else wanted
        if self._cluster.manager not in (None, self._ledgers.manager):
            raise ConfigError(
                f"{self.uri} asks for the layout {wanted.value}, but the cluster has {self._ledgers.manager.value}: "
                "write zk:// to use the cluster's layout"
            )
        try:
            await self._requests.create(self._paths.registrations(BookieMode.READ_ONLY), b"", self._nodes.acl)
        except (Refusal, OutcomeUnknown, SessionExpired):
            pass  # It exists, or the cluster is incomplete; the first registration creates it.

    async def _check_no_ledgers(self) -> None:
        """Raise `MetadataCorrupt` if LAYOUT is lost: under a wrong layout, all ledgers would appear deleted."""
        listed = await self._nodes.children(self._paths.root)
        fitting = managers_of(listed[0] if listed is not None else ())
        if not fitting or self._cluster.manager in fitting:
            return
        names = " or ".join(manager.value for manager in fitting)
        raise MetadataCorrupt(
            f"{self._paths.layout} is missing, but there are ledgers, of the layout {names}. Nothing was changed. "
            "Restore it from a backup; or, if you know the layout, name it once: `bk metadata show --metadata "
            "zk+LAYOUT://...`"
        )

    async def _store_layout(self, manager: Manager) -> None:
        data = pack_layout(manager)
        try:
            await self._nodes.repeat(lambda: self._requests.create(self._paths.layout, data, self._nodes.acl))
        except NodeExists:
            record = await self._nodes.read(self._paths.layout)
            if record is None or record[0] != data:
                raise MetadataError(
                    f"another client wrote a different layout to {self._paths.layout} meanwhile: retry"
                ) from None

    async def _make_cluster(self, instance_id: str) -> None:
        # Another client was faster, or the outcome is unknown: the caller reads the instance id.
        with contextlib.suppress(Refusal, OutcomeUnknown, SessionExpired):
            await self._initialize(instance_id.encode("utf-8"))

    async def _initialize(self, instance_id: bytes) -> None:
        """Create the znodes of Apache's initnewcluster that are missing. Source: metadata 2.6."""
        paths, acl = self._paths, self._nodes.acl
        missing = [paths.root, paths.registrations(BookieMode.WRITABLE), paths.registrations(BookieMode.READ_ONLY)]
        missing = [path for path in missing if await self._nodes.stat(path) is None]
        await self._nodes.ensure(parent_of(paths.root))
        nodes = [Create(path, b"", acl) for path in missing]
        await self._requests.multi([*nodes, Create(paths.instance_id, instance_id, acl)])
        if await self._nodes.read(paths.layout) is None:
            await self._store_layout(self._ledgers.manager)

    async def instance_id(self) -> str | None:
        self._require_open()
        record = await self._nodes.read(self._paths.instance_id)
        return None if record is None else parse_instance_id(record[0], self._paths.instance_id)

    @property
    def layout(self) -> str:
        return self._ledgers.manager.value

    # -- moving a cluster ----------------------------------------------------------------------------------------
    async def given_ids(self) -> GivenIds:
        self._require_open()
        return GivenIds(await self._ids.bound(self._ledgers.manager), await self._spent.runs())

    async def restore_ids(self, ids: GivenIds) -> None:
        self._require_open()
        await self._nodes.ensure(self._paths.root)
        if await self._nodes.read(self._paths.layout) is None:
            await self._store_layout(self._ledgers.manager)
        await self._ids.raise_to(self._ledgers.manager, ids.next_id)
        await self._spent.restore(ids.spent)

    async def remove_cluster(self, instance_id: str) -> None:
        stored = await self.instance_id()
        if stored not in (None, instance_id):
            raise other_cluster(stored, instance_id)
        nodes, paths = self._nodes, self._paths
        await nodes.remove_tree(paths.instance_id)
        listed = await nodes.children(paths.root)
        children = [] if listed is None else list(filter(is_of_cluster, listed[0]))
        for child in children:
            if f"{paths.root}/{child}" != paths.layout:  # The layout says where ledgers are, so it is the last.
                await nodes.remove_tree(f"{paths.root}/{child}")
        await nodes.remove_tree(paths.own)
        await nodes.remove_tree(paths.layout)
        with contextlib.suppress(NotEmpty, NodeMissing):  # What is not the cluster's stays.
            await nodes.repeat(lambda: self._requests.delete(paths.root))

    # -- ledgers -------------------------------------------------------------------------------------------------
    async def next_ledger_id(self) -> int:
        self._require_open()
        return await self._ids.next(self._ledgers.manager)

    async def unspend_id(self, ledger_id: int) -> None:
        self._require_open()
        await self._spent.take_out(ledger_id)

    async def current_ledgers(
        self, ledger_ids: Sequence[int], known: Sequence[Versioned] = ()
    ) -> list[Versioned | MetadataCorrupt | None]:
        assert len(ledger_ids) <= READ_AT_ONCE
        self._require_open()
        copies: Sequence[Versioned | None] = known or [None] * len(ledger_ids)
        return await all_of(map(self._ledgers.read_current, ledger_ids, copies))

    # -- bookies -------------------------------------------------------------------------------------------------
    async def register(self, bookie: BookieId, mode: BookieMode, info: BookieInfo) -> None:
        self._require_registrable(bookie)
        self._use_session()
        await self._bookies.register(bookie, mode, info)

    # -- watches -------------------------------------------------------------------------------------------------
    def watch_ledger(self, ledger_id: int, callback: Callable[[LedgerEvent], None]) -> Watch:
        return self._open_observers().ledger(self._ledgers.path(ledger_id), callback)
