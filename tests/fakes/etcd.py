"""An etcd in memory, behind the port: revisions, leases, transactions, watches from a revision on.

`Server` is the cluster, `FakeEtcd` one client. Leases end only when a test ends them.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Sequence

from bookies.errors import ClientClosed, MetadataError
from bookies.metadata.etcd.etcd_port import (
    Answer,
    Condition,
    Delete,
    Etcd,
    Get,
    HeldBy,
    KeyValue,
    LeaseMissing,
    MadeAt,
    Only,
    Operation,
    OutcomeUnknown,
    Put,
)

Watch = Callable[[], None]


class Server:
    """`items`: every key. `lost_requests`, `lost_replies`: of the next changes, how many. `is_silent`: nobody gets an
    answer.
    """

    def __init__(self, *keys: str) -> None:
        self.revision = 1  # as a new etcd has it
        self.items: dict[str, KeyValue] = {}
        self.leases: dict[int, None] = {}
        self.lease_count = 0
        self.lost_requests = 0
        self.lost_replies = 0
        self.is_silent = False
        self._changes: list[tuple[int, str, bool]] = []  # revision, key, whether it was a deletion
        self._watches: dict[tuple[FakeEtcd, Watch], tuple[str, str | None, Only | None]] = {}
        for key in keys:
            self.transact((), [Put(key, b"")], ())

    def transact(
        self, conditions: Sequence[Condition], then: Sequence[Operation], otherwise: Sequence[Operation]
    ) -> Answer:
        is_met = all(self._is_met(each) for each in conditions)
        operations = [part for each in (then if is_met else otherwise) for part in self._single(each)]
        changed = [each.key for each in operations if isinstance(each, Put | Delete)]
        assert len(set(changed)) == len(changed), "etcd refuses transactions that change a key twice"
        if any(isinstance(each, Put) and each.lease and each.lease not in self.leases for each in operations):
            raise LeaseMissing("no such lease")
        writes = [each for each in operations if isinstance(each, Put) or each.key in self.items]
        self.revision += any(isinstance(each, Put | Delete) for each in writes)
        found = [self._apply(each) for each in operations]
        return Answer(is_met, self.revision, [each for each in found if each is not None])

    def _single(self, operation: Operation) -> list[Operation]:
        """A deletion of a range is one of each of its keys."""
        if not isinstance(operation, Delete) or operation.stop is None:
            return [operation]
        return [Delete(key) for key in sorted(self.items) if _is_in(key, operation.key, operation.stop)]

    def _is_met(self, condition: Condition) -> bool:
        item = self.items.get(condition.key)
        if item is None:
            return not isinstance(condition, HeldBy) and condition.revision == 0
        if isinstance(condition, HeldBy):
            return condition.lease == item.lease
        return condition.revision == (item.create_revision if isinstance(condition, MadeAt) else item.mod_revision)

    def _apply(self, operation: Operation) -> list[KeyValue] | None:
        key = operation.key
        old = self.items.get(key)
        if isinstance(operation, Get):
            keys = sorted(each for each in self.items if _is_in(each, key, operation.stop))
            keys = keys[: operation.count_max or None]
            found = [self.items[each] for each in keys]
            return [_without_value(each) for each in found] if operation.keys_only else found
        if isinstance(operation, Put):
            made, version = (old.create_revision, old.version + 1) if old is not None else (self.revision, 1)
            self.items[key] = KeyValue(key, operation.value, made, self.revision, version, operation.lease)
        elif old is None:
            return None
        else:
            del self.items[key]
        is_deletion = isinstance(operation, Delete)
        self._changes.append((self.revision, key, is_deletion))
        for watch, (start, stop, only) in list(self._watches.items()):
            if _is_in(key, start, stop) and _counts(only, is_deletion):
                self._fire(watch)
        return None

    def end_lease(self, lease: int) -> None:
        """What is attached to it goes, in one step."""
        self.leases.pop(lease, None)
        keys = [key for key, item in self.items.items() if item.lease == lease]
        self.transact((), [Delete(key) for key in keys], ())

    # -- watches -------------------------------------------------------------------------------------------------
    def watch(
        self, client: FakeEtcd, key: str, stop: str | None, revision: int, callback: Watch, only: Only | None
    ) -> None:
        self._watches[client, callback] = (key, stop, only)
        for at, changed, is_deletion in self._changes[bisect_left(self._changes, (revision,)) :]:
            if at >= revision and _is_in(changed, key, stop) and _counts(only, is_deletion):
                self._fire((client, callback))
                return

    def unwatch(self, client: FakeEtcd, callback: Watch | None) -> None:
        for each in [each for each in self._watches if each[0] is client and callback in (None, each[1])]:
            del self._watches[each]

    def break_streams(self) -> None:
        """Every watch has to be made again."""
        for each in list(self._watches):
            self._fire(each)

    def _fire(self, watch: tuple[FakeEtcd, Watch]) -> None:
        del self._watches[watch]
        asyncio.get_running_loop().call_soon(watch[1])


def _counts(only: Only | None, is_deletion: bool) -> bool:
    return only is None or (only is Only.DELETIONS) is is_deletion


def _is_in(key: str, start: str, stop: str | None) -> bool:
    return key == start if stop is None else start <= key < stop


def _without_value(item: KeyValue) -> KeyValue:
    return KeyValue(item.key, b"", item.create_revision, item.mod_revision, item.version, item.lease)


class FakeEtcd:
    """See `bookies.metadata.etcd.etcd_port.Etcd`."""

    def __init__(self, server: Server) -> None:
        self.hosts = "fake:2379"
        self.server = server
        self._is_closed = False

    async def open(self) -> None:
        await self._ready()

    async def close(self) -> None:
        await asyncio.sleep(0)
        self._is_closed = True
        self.server.unwatch(self, None)

    async def _ready(self) -> None:
        await asyncio.sleep(0)
        if self._is_closed:
            raise ClientClosed("the connection to fake:2379 is closed")
        if self.server.is_silent:
            raise MetadataError("no etcd server at fake:2379 has answered")

    async def transact(
        self, conditions: Sequence[Condition], then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> Answer:
        await self._ready()
        may_change = any(isinstance(each, Put | Delete) for each in then)
        if may_change and self.server.lost_requests:
            self.server.lost_requests -= 1
            raise OutcomeUnknown("the connection was lost before the request came")
        answer = self.server.transact(conditions, then, otherwise)
        if may_change and self.server.lost_replies:
            self.server.lost_replies -= 1
            raise OutcomeUnknown("the connection was lost before the answer came")
        await asyncio.sleep(0)
        return answer

    async def grant_lease(self, ttl_s: int) -> tuple[int, int]:
        await self._ready()
        self.server.lease_count += 1
        self.server.leases[self.server.lease_count] = None
        return self.server.lease_count, ttl_s

    async def keep_lease(self, lease: int) -> bool:
        await self._ready()
        return lease in self.server.leases

    async def revoke_lease(self, lease: int) -> None:
        await self._ready()
        self.server.end_lease(lease)

    def watch(self, key: str, stop: str | None, revision: int, callback: Watch, *, only: Only | None = None) -> None:
        self.server.watch(self, key, stop, revision, callback, only)

    def unwatch(self, callback: Watch) -> None:
        self.server.unwatch(self, callback)


async def end_lease(etcd: Etcd, lease: int) -> None:
    """End a lease behind its owner's back, as after a long pause."""
    await etcd.revoke_lease(lease)
