"""The metadata driver on etcd, with the keys of Apache's driver: for clusters with etcd instead of ZooKeeper.

`EtcdDriver` is one session. `etcd_layout` defines the keys; the parts are `etcd_ledgers`, `etcd_bookies`,
`etcd_records` and `etcd_recovery`, over `etcd_values`; `etcd_session` keeps the lease that registrations, locks and
votes depend on. A lost lease ends these, and nothing else: the owner is notified, and requests continue.
Source: metadata 5, 6, 8, 10 and 11.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from bookies.errors import MetadataCorrupt
from bookies.metadata.etcd.counted_etcd import CountedEtcd
from bookies.metadata.etcd.etcd_bookies import Bookies
from bookies.metadata.etcd.etcd_layout import Keys, check_layout, stop_of
from bookies.metadata.etcd.etcd_ledgers import LedgerIds, Ledgers, SpentIds
from bookies.metadata.etcd.etcd_port import Delete, Etcd, MadeAt, OutcomeUnknown, Put
from bookies.metadata.etcd.etcd_records import KeyExists, KeyMissing, Records, Transactions
from bookies.metadata.etcd.etcd_recovery import EtcdNodeStore
from bookies.metadata.etcd.etcd_session import Session
from bookies.metadata.etcd.etcd_values import Values
from bookies.metadata.interface import Watch
from bookies.metadata.interface.driver import (
    READ_AT_ONCE,
    GivenIds,
    LedgerEvent,
    Versioned,
)
from bookies.metadata.interface.request_counts import RequestCounts
from bookies.metadata.shared.observers import WatchedNames
from bookies.metadata.shared.refusals import other_cluster
from bookies.metadata.shared.session_driver import DriverParts, SessionDriver
from bookies.metadata.shared.store_driver import parse_instance_id
from bookies.model import BookieId, BookieInfo, BookieMode
from bookies.runtime.ports import Runtime
from bookies.runtime.tasks import Tasks


class EtcdDriver(SessionDriver):
    """One session with the cluster of a scope. `lease_ms` is rounded up to whole seconds."""

    def __init__(
        self, uri: str, etcd: Etcd, runtime: Runtime, scope: str, *, lease_ms: int, may_create: bool = True
    ) -> None:
        self.etcd = etcd
        self._may_create = may_create
        self._keys = Keys(scope)
        operations = RequestCounts()
        self._requests = CountedEtcd(etcd, operations, self._keys.kind)
        self._values = Values(self._requests, self._keys)
        self._spent = SpentIds(self._values)
        self._ids = LedgerIds(self._values)
        self._session = Session(self._requests, lease_ms, self._session_lost)
        self._bookies = Bookies(self._values, self._session)
        self._ledgers = ledgers = Ledgers(self._values, self._spent, runtime.clock.wall_ms)
        records, transactions = Records(self._values), Transactions(self._values, self._spent)
        recovery = EtcdNodeStore(self._values, self._session, self._require_open, self._open_observers)
        parts = DriverParts(self._keys, ledgers, self._bookies, records, transactions, recovery, KeyExists, KeyMissing)
        super().__init__(uri, lease_ms, runtime, parts, operations)

    def __repr__(self) -> str:
        state = "closed" if self._tasks is None else f"session {self.session_id}"
        return f"<{type(self).__name__} {self.uri} {state}>"

    # -- the session ---------------------------------------------------------------------------------------------
    @property
    def session_id(self) -> int | None:
        """The lease that our registrations, locks and votes depend on; None: there are none."""
        return self._session.lease

    async def open(self) -> None:
        assert self._tasks is None, "opened twice"
        await self.etcd.open()
        try:
            await self._find_cluster()
        except BaseException:
            await self.etcd.close()
            raise
        names = WatchedNames(self._values.last_seen, self._values.version, self._bookies.present, self.etcd.unwatch)
        self._opened(Tasks(self._died), names)

    async def _find_cluster(self) -> None:
        scope, layout = await self._values.read(self._keys.scope, self._keys.layout)
        if layout is not None:
            check_layout(layout.value)
        elif scope is None and not self._may_create:
            raise self._no_cluster()

    async def _disconnect(self) -> None:
        await self._session.end()
        await self.etcd.close()

    def _session_lost(self) -> None:
        self._notify_expired()

    # -- the cluster ---------------------------------------------------------------------------------------------
    async def _make_cluster(self, instance_id: str) -> None:
        with contextlib.suppress(OutcomeUnknown):  # It may have happened: the caller reads the instance id.
            await self._create_missing(self._keys.fixed(instance_id))

    async def _create_missing(self, wanted: Sequence[tuple[str, bytes]]) -> None:
        """Create the missing keys in one transaction, as Apache creates all keys."""
        items = await self._values.read(*(key for key, _ in wanted))
        missing = [pair for pair, item in zip(wanted, items, strict=True) if item is None]
        await self._requests.transact([MadeAt(key, 0) for key, _ in missing], [Put(key, data) for key, data in missing])

    async def instance_id(self) -> str | None:
        self._require_open()
        item = (await self._values.read(self._keys.instance_id))[0]
        return None if item is None else parse_instance_id(item.value, self._keys.instance_id)

    # -- moving a cluster ----------------------------------------------------------------------------------------
    async def given_ids(self) -> GivenIds:
        self._require_open()
        return GivenIds(await self._ids.bound(), await self._spent.runs())

    async def restore_ids(self, ids: GivenIds) -> None:
        self._require_open()
        fixed = [(key, data) for key, data in self._keys.fixed("") if key != self._keys.instance_id]
        await self._values.repeat(lambda: self._create_missing(fixed))
        await self._ids.raise_to(ids.next_id)
        await self._spent.restore(ids.spent)

    async def remove_cluster(self, instance_id: str) -> None:
        stored = await self.instance_id()
        if stored not in (None, instance_id):
            raise other_cluster(stored, instance_id)
        parts = self._keys.parts()
        deletions = [Delete(self._keys.scope), *map(Delete, parts)]
        deletions += [Delete(f"{part}/", stop_of(f"{part}/")) for part in parts]
        await self._values.repeat(lambda: self._requests.transact((), deletions))

    # -- ledgers -------------------------------------------------------------------------------------------------
    async def next_ledger_id(self) -> int:
        self._require_open()
        return await self._ids.next()

    async def unspend_id(self, ledger_id: int) -> None:
        self._require_open()
        await self._spent.take_out(ledger_id)

    async def read_ledgers(self, ledger_ids: Sequence[int]) -> list[Versioned | MetadataCorrupt | None]:
        assert len(ledger_ids) <= READ_AT_ONCE
        self._require_open()
        return await self._ledgers.read_all(ledger_ids)

    # -- bookies -------------------------------------------------------------------------------------------------
    async def register(self, bookie: BookieId, mode: BookieMode, info: BookieInfo) -> None:
        tasks = self._require_registrable(bookie)
        await self._bookies.register(tasks, bookie, mode, info)

    # -- watches -------------------------------------------------------------------------------------------------
    def watch_ledger(self, ledger_id: int, callback: Callable[[LedgerEvent], None]) -> Watch:
        return self._open_observers().ledger(self._keys.ledger(ledger_id), callback)
