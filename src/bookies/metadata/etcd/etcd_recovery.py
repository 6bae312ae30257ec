"""Auto-recovery's state in etcd. Apache's etcd driver has none, so this is our own: the values that Apache stores in
ZooKeeper, under keys in the style of its ledgers' keys. Locks and votes are attached to the lease.

etcd may carry out a request long after its client has given up: a suspended leader that wakes up forwards it to the
next one. A lock or vote that appears then would block others as long as our session lasts. So each attempt requires
that a key of its own is missing. If its outcome is unknown, this key is written before the attempt is repeated or its
place released.
Source: metadata 8, 10.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial

from bookies.errors import SessionExpired
from bookies.metadata.etcd.etcd_layout import RecoveryKeys, stop_of
from bookies.metadata.etcd.etcd_port import (
    Answer,
    Condition,
    Delete,
    Get,
    LeaseMissing,
    Only,
    Operation,
    OutcomeUnknown,
    Put,
    WrittenAt,
)
from bookies.metadata.etcd.etcd_session import Session
from bookies.metadata.etcd.etcd_values import Values, there_at
from bookies.metadata.interface import Watch
from bookies.metadata.interface.watches import NEVER_SEEN
from bookies.metadata.shared.marks_watch import MarksWatch
from bookies.metadata.shared.observers import Observers
from bookies.metadata.shared.recovery import Node, Vote
from bookies.runtime.tasks import Tasks


class EtcdNodeStore:
    """`NodeStore` of etcd."""

    def __init__(
        self, values: Values, session: Session, tasks: Callable[[], Tasks], observers: Callable[[], Observers]
    ) -> None:
        self.places: RecoveryKeys = values.keys.recovery
        self._values = values
        self._etcd = values.etcd
        self._session = session
        self._tasks = tasks
        self._observers = observers
        self._attempts_count = 0
        self._unsure: dict[str, Put] = {}  # by place of a lock or vote: what makes its last attempt void

    @property
    def session(self) -> int | None:
        return self._session.lease

    # -- nodes ---------------------------------------------------------------------------------------------------
    async def read(self, place: str) -> Node | None:
        item = (await self._values.read(place))[0]
        return None if item is None else Node(item.value, item.mod_revision)

    async def create(self, place: str, data: bytes) -> bool:
        is_met, is_unsure = await self._change(WrittenAt(place, 0), [Put(place, data)])
        return is_met or (is_unsure and await self._has(place, data))

    async def write(self, place: str, data: bytes, version: int | None) -> bool:
        if version is None:
            await self._values.repeat(lambda: self._etcd.transact((), [Put(place, data)]))
            return True
        is_met, is_unsure = await self._change(there_at(place, version), [Put(place, data)])
        return is_met or (is_unsure and await self._has(place, data))

    async def delete(self, place: str, version: int | None) -> bool:
        if version is None:
            is_missing, is_unsure = await self._change(WrittenAt(place, 0), [], [Delete(place)])
            return is_unsure or not is_missing
        is_met, is_unsure = await self._change(there_at(place, version), [Delete(place)])
        return is_met or (is_unsure and await self.read(place) is None)

    async def _change(
        self, condition: Condition, then: Sequence[Operation], otherwise: Sequence[Operation] = ()
    ) -> tuple[bool, bool]:
        """Return whether the condition was met, and whether an earlier attempt may have succeeded."""
        is_unsure = False
        while True:
            try:
                answer = await self._etcd.transact([condition], then, otherwise)
            except OutcomeUnknown:
                is_unsure = True
            else:
                return answer.is_met, is_unsure

    async def _has(self, place: str, data: bytes) -> bool:
        node = await self.read(place)
        return node is not None and node.data == data

    # -- ephemeral nodes -----------------------------------------------------------------------------------------
    async def create_ephemeral(self, place: str, data: bytes) -> int | None:
        lease = await self._session.begin(self._tasks())
        while True:
            try:
                await self._void(place)
                answer = await self._attach(lease, [WrittenAt(place, 0)], Put(place, data, lease))
            except OutcomeUnknown:
                continue  # The next attempt determines the outcome.
            is_ours = answer.is_met or any(item.lease == lease for item in answer.items[0])
            return lease if is_ours else None

    async def _attach(self, lease: int, conditions: Sequence[Condition], put: Put) -> Answer:
        self._attempts_count += 1
        void = self.places.void(lease, self._attempts_count)
        try:
            conditions = [*conditions, WrittenAt(void, 0)]
            return await self._etcd.transact(conditions, [put], [Get(put.key, keys_only=True)])
        except LeaseMissing:
            self._session.lose(lease)
            raise SessionExpired("the session with etcd was lost") from None
        except OutcomeUnknown:
            current = {place: unsure for place, unsure in self._unsure.items() if unsure.lease == lease}
            self._unsure = current | {put.key: Put(void, b"", lease)}
            raise

    async def _void(self, place: str) -> None:
        """Determine an earlier attempt's outcome: it has been carried out by now, or never will be."""
        unsure = self._unsure.get(place)
        if unsure is not None:
            with contextlib.suppress(LeaseMissing):  # Then the attempt fails for the same reason.
                await self._etcd.transact((), [unsure])
            self._unsure.pop(place, None)

    async def release(self, place: str, session: int) -> None:
        await self._void(place)
        item = (await self._values.read(place))[0]
        if item is not None and item.lease == session:
            await self._etcd.transact([WrittenAt(place, item.mod_revision)], [Delete(place)])

    async def vote(self, data: bytes) -> Vote:
        lease = await self._session.begin(self._tasks())
        key = self.places.vote(lease, self._attempts_count)
        answer = await self._attach(lease, (), Put(key, data, lease))
        return Vote(answer.revision, key)

    async def votes(self) -> list[Vote]:
        items, _ = await self._values.below(self.places.votes)
        return sorted((Vote(item.create_revision, item.key) for item in items), key=lambda vote: vote.number)

    async def own_votes(self) -> list[str]:
        for place in [place for place in self._unsure if place.startswith(self.places.votes)]:
            await self._void(place)
        items, _ = await self._values.below(self.places.votes)
        return [item.key for item in items if item.lease and item.lease == self.session]

    # -- lists ---------------------------------------------------------------------------------------------------
    async def marks(
        self, page_count: int, *, with_data: bool, needs: Callable[[int], bool] | None = None
    ) -> AsyncIterator[Sequence[tuple[int, Node]]]:
        start, stop = self.places.marks, stop_of(self.places.marks)
        while True:
            answer = await self._etcd.transact((), [Get(start, stop, page_count, keys_only=not with_data)])
            items = answer.items[0]
            ids = [self.places.ledger_id(item.key) for item in items]
            page = [
                (ledger_id, Node(item.value, item.mod_revision))
                for ledger_id, item in zip(ids, items, strict=True)
                if ledger_id is not None
            ]
            if page:
                yield page
            if len(items) < page_count:
                return
            start = items[-1].key + "\0"  # the next possible key

    async def locks(self) -> list[tuple[int, bytes]]:
        items, _ = await self._values.below(self.places.locks, keys_only=False)
        locks = [(self.places.ledger_id(item.key), item.value) for item in items]
        return [(ledger_id, data) for ledger_id, data in locks if ledger_id is not None]

    async def locked_ids(self) -> list[int]:
        items, _ = await self._values.below(self.places.locks)
        ledger_ids = (self.places.ledger_id(item.key) for item in items)
        return [ledger_id for ledger_id in ledger_ids if ledger_id is not None]

    # -- watches -------------------------------------------------------------------------------------------------
    def watch(self, place: str, callback: Callable[[], None]) -> Watch:
        return self._observers().record(place, NEVER_SEEN, callback)

    def watch_marks(self, callback: Callable[[], None]) -> Watch:
        return _KeysWatch(self._values, self.places, self._tasks(), callback)


class _KeysWatch(MarksWatch):
    """A watch of every write of a mark, and every deletion of a lock. It cannot determine whether the ledger of a
    deleted lock is still marked, or whether a lock was created and deleted between two checks.
    """

    def __init__(self, values: Values, places: RecoveryKeys, tasks: Tasks, callback: Callable[[], None]) -> None:
        self._values = values
        self._watched = {Only.PUTS: places.marks, Only.DELETIONS: places.locks}
        self._callbacks = {only: partial(self._hear, only) for only in Only}
        self._fired = dict.fromkeys(Only)  # watches that have called back, and have to be registered again
        super().__init__(tasks, callback)

    async def _check(self) -> None:
        _, revision = await self._values.below(self._watched[Only.DELETIONS])
        for only in list(self._fired):
            del self._fired[only]
            prefix = self._watched[only]
            self._values.etcd.watch(prefix, stop_of(prefix), revision + 1, self._callbacks[only], only=only)

    def _hear(self, only: Only) -> None:
        self._fired[only] = None
        self.is_work = True
        self.news.set()

    def _end(self) -> None:
        for callback in self._callbacks.values():
            self._values.etcd.unwatch(callback)
