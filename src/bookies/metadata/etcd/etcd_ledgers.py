"""Ledgers in etcd: records, spent ids, generation of ids, and the listing.

Apache allows an id to be used again after a deletion; our interface does not. So a deletion also adds the id to a list
of spent ids, in one transaction, and a creation checks the version of that list in its transaction.
Source: metadata 3.3, 4, 5.1 and 10.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from bookies.errors import LedgerNotFound, MetadataCorrupt, MetadataError, NotSupported
from bookies.metadata.etcd.etcd_layout import BUCKET_SIZE, BUCKETS_COUNT, stop_of
from bookies.metadata.etcd.etcd_port import (
    Condition,
    Delete,
    Get,
    HeldBy,
    KeyValue,
    MadeAt,
    OutcomeUnknown,
    Put,
    WrittenAt,
)
from bookies.metadata.etcd.etcd_values import ATTEMPTS_MAX, Values, there_at
from bookies.metadata.formats import as_stored, pack_ledger, parse_ledger
from bookies.metadata.interface.driver import Versioned
from bookies.metadata.interface.recovery_store import LedgerLock, lock_lost
from bookies.metadata.interface.spent_ids import (
    SPENT_SIZE,
    divided,
    is_spent_list,
    joined,
    pack_spent,
    parse_spent,
    without,
)
from bookies.metadata.shared.refusals import check_version, deleted_before, not_found, taken
from bookies.model import LedgerMetadata
from bookies.protocol.quorums import IdSet

COUNTED_IDS_MAX = 10_000  # largest increase of a counter, a request for each step
COUNTED_AT_ONCE = 64  # requests in flight
_LISTS_COUNT_MAX = 64  # lists of spent ids that this driver remembers


class SpentIds:
    """The lists of deleted ledgers' ids, each a key; see the module."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._lists: dict[str, tuple[bytes, int]] = {}  # key -> (value, version)

    def around(self, ledger_id: int) -> tuple[str, IdSet, int]:
        """Return the key, a copy, and the version of the list that contains the id, as last read. The transaction has
        to check the version.
        """
        key = self._values.keys.spent_list(ledger_id)
        data, version = self._lists.get(key, (b"", 0))
        return key, parse_spent(key, data), version

    def remember(self, key: str, item: KeyValue | None) -> None:
        """Remember the current state of a list."""
        self._lists.pop(key, None)
        if item is not None:
            if len(self._lists) >= _LISTS_COUNT_MAX:
                del self._lists[next(iter(self._lists))]
            self._lists[key] = (item.value, item.mod_revision)

    def additions(self, ledger_ids: list[int]) -> tuple[list[WrittenAt], list[Put]]:
        """Return the conditions and writes of a transaction that spends these ids."""
        changed: dict[str, tuple[IdSet, int]] = {}
        for ledger_id in ledger_ids:
            key, ids, version = self.around(ledger_id)
            ids, version = changed.setdefault(key, (ids, version))
            ids.add(ledger_id % SPENT_SIZE, ledger_id % SPENT_SIZE + 1)
        conditions = [WrittenAt(key, version) for key, (_, version) in changed.items()]
        return conditions, [Put(key, pack_spent(ids)) for key, (ids, _) in changed.items()]

    async def runs(self) -> tuple[tuple[int, int], ...]:
        """Return all spent ids, see `GivenIds`."""
        prefix = self._values.keys.spent
        items, _ = await self._values.below(prefix, keys_only=False)
        lists = {item.key.removeprefix(prefix): item for item in items}
        return joined(
            {int(name, 16): parse_spent(item.key, item.value) for name, item in lists.items() if is_spent_list(name)}
        )

    async def restore(self, runs: Sequence[tuple[int, int]]) -> None:
        """Add runs of ids (first, last)."""
        for number, added in divided(runs).items():
            while not await self._restore(number * SPENT_SIZE, added):
                continue  # Another client changed the list, or we had not read it.

    async def take_out(self, ledger_id: int) -> None:
        """Remove one id."""
        while not await self._replace(ledger_id, lambda ids: without(ids, ledger_id % SPENT_SIZE)):
            continue  # Another client changed the list, or we had not read it.

    async def _restore(self, base: int, added: list[tuple[int, int]]) -> bool:
        def extended(ids: IdSet) -> IdSet:
            for first, last in added:
                ids.add(first, last + 1)
            return ids

        return await self._replace(base, extended)

    async def _replace(self, base: int, change: Callable[[IdSet], IdSet]) -> bool:
        """Write the list of an id, changed. False: it is not the one that was remembered; it is now."""
        key, ids, version = self.around(base)
        puts = [Put(key, pack_spent(change(ids)))]
        condition = WrittenAt(key, version)
        answer = await self._values.repeat(lambda: self._values.etcd.transact([condition], puts, [Get(key)]))
        if answer.is_met:
            self.wrote(puts, answer.revision)
        else:
            self.remember(key, answer.items[0][0] if answer.items[0] else None)
        return answer.is_met

    def wrote(self, puts: list[Put], revision: int) -> None:
        """Remember the lists that a successful transaction wrote."""
        for put in puts:
            self.remember(put.key, KeyValue(put.key, put.value, revision, revision, 1, 0))


class Ledgers:
    """The ledgers' records of one cluster. `wall_ms`: the clock for a record without a time of creation, because etcd
    keeps no times.
    """

    def __init__(self, values: Values, spent: SpentIds, wall_ms: Callable[[], int]) -> None:
        self._values = values
        self._etcd = values.etcd
        self._spent = spent
        self._wall_ms = wall_ms
        self._deleting = asyncio.Lock()  # concurrent deletions of one driver would make each other's transactions fail

    def _key(self, metadata: LedgerMetadata) -> str:
        key = self._values.keys.ledger(metadata.ledger_id)
        assert key is not None, "a record of this id cannot be packed"
        return key

    # -- records -------------------------------------------------------------------------------------------------
    async def read(self, ledger_id: int) -> Versioned:
        """Read a record. Raises `LedgerNotFound`."""
        key = self._values.keys.ledger(ledger_id)
        if key is None:
            raise not_found(ledger_id)
        return self._versioned(key, ledger_id, (await self._values.read(key))[0])

    async def read_all(self, ledger_ids: Sequence[int]) -> list[Versioned | MetadataCorrupt | None]:
        """Read several records, see `MetadataDriver.read_ledgers`."""
        keys = [self._values.keys.ledger(ledger_id) for ledger_id in ledger_ids]
        items = iter(await self._values.read(*(key for key in keys if key is not None)))
        return [
            None if key is None else self._parsed(key, ledger_id, next(items))
            for key, ledger_id in zip(keys, ledger_ids, strict=True)
        ]

    def _parsed(self, key: str, ledger_id: int, item: KeyValue | None) -> Versioned | MetadataCorrupt | None:
        try:
            return self._versioned(key, ledger_id, item)
        except LedgerNotFound:
            return None
        except MetadataCorrupt as error:
            return error

    def _versioned(self, key: str, ledger_id: int, item: KeyValue | None) -> Versioned:
        self._values.remember(key, 0 if item is None else item.mod_revision)
        if item is None:
            raise not_found(ledger_id)
        return Versioned(parse_ledger(ledger_id, item.value, version=item.mod_revision), item.mod_revision)

    def _written(self, key: str, metadata: LedgerMetadata, data: bytes, revision: int) -> Versioned:
        self._values.remember(key, revision)
        return Versioned(as_stored(metadata, data), revision)

    async def create(self, metadata: LedgerMetadata) -> Versioned:
        """Create a record, see `MetadataDriver.create_ledger`."""
        ledger_id = metadata.ledger_id
        if metadata.ctime_ms is None or not metadata.stores_ctime:
            metadata = metadata.replace(ctime_ms=self._wall_ms())
        metadata = _with_ctime(metadata)
        data, key = pack_ledger(metadata), self._key(metadata)
        attempts = 0
        while True:
            list_key, spent, version = self._spent.around(ledger_id)
            if ledger_id % SPENT_SIZE in spent:
                raise deleted_before(ledger_id)
            conditions = [WrittenAt(key, 0), WrittenAt(list_key, version)]
            try:
                answer = await self._etcd.transact(conditions, [Put(key, data)], [Get(key), Get(list_key)])
            except OutcomeUnknown:
                attempts += 1
                if attempts == ATTEMPTS_MAX:
                    raise
                continue
            if answer.is_met:
                return self._written(key, metadata, data, answer.revision)
            records, lists = answer.items
            self._spent.remember(list_key, lists[0] if lists else None)
            if records:
                return self._own_attempt(key, metadata, records[0])

    def _own_attempt(self, key: str, metadata: LedgerMetadata, item: KeyValue) -> Versioned:
        """Return the stored record if our own attempt created it and its answer was lost.

        Raises `LedgerExists`, also for our own record in formats before 3, which have no token.
        """
        stored = self._versioned(key, metadata.ledger_id, item)
        if metadata.creator_token and stored.metadata.creator_token == metadata.creator_token:
            return stored
        raise taken(metadata.ledger_id)

    async def write(self, metadata: LedgerMetadata, expected_version: int, lock: LedgerLock | None = None) -> Versioned:
        """Write a record, see `MetadataDriver.write_ledger`. After a lost answer, the record shows the outcome."""
        metadata, ledger_id = _with_ctime(metadata), metadata.ledger_id
        data = pack_ledger(metadata)
        key = self._key(metadata)
        conditions: list[Condition] = [there_at(key, expected_version)]
        if lock is not None:
            conditions.append(HeldBy(self._values.keys.recovery.lock(ledger_id), lock.session))
        attempts = 0
        while True:
            try:
                answer = await self._etcd.transact(conditions, [Put(key, data)], [Get(key)])
            except OutcomeUnknown:
                attempts += 1
                if attempts == ATTEMPTS_MAX:
                    raise
                continue
            if answer.is_met:
                return self._written(key, metadata, data, answer.revision)
            stored = self._versioned(key, ledger_id, answer.items[0][0] if answer.items[0] else None)
            if attempts and answer.items[0][0].value == data:
                return stored
            check_version(stored.version, expected_version, ledger_id=ledger_id)
            raise lock_lost(ledger_id)  # the only other condition

    async def delete(self, ledger_id: int, expected_version: int | None) -> None:
        """Delete a record, see `MetadataDriver.delete_ledger`."""
        key = self._values.keys.ledger(ledger_id)
        if key is None:
            return
        async with self._deleting:
            while True:
                list_key = self._values.keys.spent_list(ledger_id)
                record, spent = await self._values.read(key, list_key)
                if record is None:
                    return
                if expected_version is not None:
                    check_version(record.mod_revision, expected_version, ledger_id=ledger_id)
                self._spent.remember(list_key, spent)
                conditions, puts = self._spent.additions([ledger_id])
                conditions = [WrittenAt(key, record.mod_revision), *conditions]
                try:
                    answer = await self._etcd.transact(conditions, [Delete(key), *puts])
                except OutcomeUnknown:
                    continue  # The next read determines the outcome.
                if answer.is_met:
                    self._spent.wrote(puts, answer.revision)
                    return

    # -- listing -------------------------------------------------------------------------------------------------
    async def listing(self, page_count: int) -> AsyncIterator[list[int]]:
        """Yield every ledger's id, ascending, in pages. Raises `MetadataError` rather than omit an id.

        Garbage collection deletes the data of ledgers that are not listed. So a cluster that is missing, or was
        recreated meanwhile, is an error and not an empty list. Source: metadata 3.3 and 13.
        """
        keys = self._values.keys
        markers = (keys.scope, keys.instance_id)
        scope, instance = await self._values.read(*markers)
        if scope is None:
            raise MetadataError(
                f"there is no cluster at {keys.scope} in etcd, so its ledgers are unknown; check the path in the "
                "metadata URI"
            )
        same = [
            MadeAt(key, 0 if item is None else item.create_revision)
            for key, item in zip(markers, (scope, instance), strict=True)
        ]
        start, stop = keys.ledgers, stop_of(keys.ledgers)
        while True:
            answer = await self._etcd.transact(same, [Get(start, stop, page_count, keys_only=True)])
            if not answer.is_met:
                raise MetadataError(f"the cluster at {keys.scope} was formatted while its ledgers were listed; retry")
            items = answer.items[0]
            ids = [ledger_id for ledger_id in (keys.ledger_id(item.key) for item in items) if ledger_id is not None]
            if ids:
                yield ids
            if len(items) < page_count:
                return
            start = items[-1].key + "\0"  # the next possible key


def _with_ctime(metadata: LedgerMetadata) -> LedgerMetadata:
    """Return a record that stores its time of creation, if that is known."""
    return metadata.replace(stores_ctime=metadata.ctime_ms is not None)


class LedgerIds:
    """Generation of ids from counters, each with its own range of ids. Source: metadata 10.

    Apache's clients use all counters in turn. Ours use the last counter in use, so that ids ascend; a counter can be
    used by any number of clients concurrently.
    """

    def __init__(self, values: Values) -> None:
        self._values = values
        self._etcd = values.etcd
        self._bucket: int | None = None  # None: not read yet

    async def next(self) -> int:
        """Return an id, never the same twice: a key's version counts its writes."""
        if self._bucket is None:
            self._bucket, _ = await self._last()
        number = await self._count(self._bucket)
        if number >= BUCKET_SIZE:
            raise MetadataError(
                f"the ids of {self._values.keys.bucket(self._bucket)} are used up; create ledgers with ids of your own"
            )
        return self._bucket * BUCKET_SIZE + number

    async def _count(self, bucket: int) -> int:
        key = self._values.keys.bucket(bucket)
        answer = await self._values.repeat(lambda: self._etcd.transact((), [Put(key, b""), Get(key, keys_only=True)]))
        return answer.items[0][0].version

    async def _last(self) -> tuple[int, int]:
        """Return the last bucket in use, and its number of writes."""
        items, _ = await self._values.below(self._values.keys.buckets)
        used = {self._values.keys.bucket_number(item.key): item.version for item in items}
        last = max((number for number in used if number is not None), default=0)
        return last, used.get(last, 0)

    async def bound(self) -> int:
        """Return a number larger than every id handed out so far. Changes nothing."""
        bucket, count = await self._last()
        return bucket * BUCKET_SIZE + count + 1 if count else 0

    async def raise_to(self, bound: int) -> None:
        """Ensure that no id below `bound` is handed out.

        If counting up would take too long, ids continue in the next bucket.
        """
        if await self.bound() >= bound:
            return
        bucket, low = divmod(bound, BUCKET_SIZE)
        if low > COUNTED_IDS_MAX:
            bucket, low = bucket + 1, 1
        if bucket >= BUCKETS_COUNT:
            raise NotSupported(f"in etcd, no ids can be generated after {bound - 1:,}")
        self._bucket = bucket
        key = self._values.keys.bucket(bucket)
        item = (await self._values.read(key))[0]
        missing = max(low, 1) - 1 - (0 if item is None else item.version)
        while missing > 0:
            at_once = min(missing, COUNTED_AT_ONCE)
            await asyncio.gather(*(self._count(bucket) for _ in range(at_once)))
            missing -= at_once
        if not bound % BUCKET_SIZE or low == 1:
            await self._count(bucket)  # makes it the last bucket in use
