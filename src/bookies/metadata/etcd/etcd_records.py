"""Named records and cookies in etcd, and transactions over records and ledgers. Source: metadata 7.2 and 10."""

from __future__ import annotations

from collections.abc import Sequence

from bookies.metadata.etcd.etcd_ledgers import SpentIds
from bookies.metadata.etcd.etcd_port import Condition, Delete, Get, Operation, Put, WrittenAt
from bookies.metadata.etcd.etcd_values import Values, there_at
from bookies.metadata.interface.driver import LedgerDeletion, RecordAt, RecordWrite, Step
from bookies.metadata.shared.refusals import check_step, check_version, not_found


class KeyMissing(Exception):
    """There is no such key. The caller translates it."""


class KeyExists(Exception):
    """The key exists already. The caller translates it."""


class Records:
    """Values with a version, at keys that can be recreated after a deletion. Raises `KeyMissing`, `KeyExists`."""

    def __init__(self, values: Values) -> None:
        self._values = values
        self._etcd = values.etcd

    async def read(self, key: str) -> tuple[bytes, int]:
        item = (await self._values.read(key))[0]
        if item is None:
            raise KeyMissing(key)
        return item.value, item.mod_revision

    async def create(self, key: str, data: bytes) -> int:
        answer = await self._etcd.transact([WrittenAt(key, 0)], [Put(key, data)])
        if not answer.is_met:
            raise KeyExists(key)
        return answer.revision

    async def write(self, key: str, data: bytes, expected_version: int) -> int:
        return await self._change(key, expected_version, Put(key, data))

    async def delete(self, key: str, expected_version: int) -> None:
        await self._change(key, expected_version, Delete(key))

    async def _change(self, key: str, expected_version: int, change: Operation) -> int:
        answer = await self._etcd.transact([there_at(key, expected_version)], [change], [Get(key, keys_only=True)])
        if answer.is_met:
            return answer.revision
        if not answer.items[0]:
            raise KeyMissing(key)
        check_version(answer.items[0][0].mod_revision, expected_version)
        raise AssertionError("etcd refused the version that it shows")

    async def names(self, prefix: str) -> Sequence[str]:
        records = self._values.keys.records
        items, _ = await self._values.below(records)
        names = (item.key.removeprefix(records) for item in items)
        return sorted(name for name in names if name.startswith(prefix))


class Transactions:
    """Transactions over records and ledgers, see `MetadataDriver.transact`."""

    def __init__(self, values: Values, spent: SpentIds) -> None:
        self._values = values
        self._etcd = values.etcd
        self._spent = spent

    async def transact(self, steps: Sequence[Step]) -> int:
        deleted = [step.ledger_id for step in steps if isinstance(step, LedgerDeletion)]
        keys = [self._key(step) for step in steps]
        if not steps:
            return 0
        while True:
            additions, puts = self._spent.additions(deleted)
            conditions: list[Condition] = [*map(_condition, steps, keys), *additions]
            changes = [change for step, key in zip(steps, keys, strict=True) for change in _changes(step, key)]
            reads = [Get(key, keys_only=True) for key in keys] + [Get(addition.key) for addition in additions]
            answer = await self._etcd.transact(conditions, [*changes, *puts], reads)
            if answer.is_met:
                self._spent.wrote(puts, answer.revision)
                return answer.revision
            for step, items in zip(steps, answer.items, strict=False):
                check_step(step, items[0].mod_revision if items else 0)
            # The steps hold, so the remembered lists were outdated: another client has deleted ledgers.
            for addition, items in zip(additions, answer.items[len(steps) :], strict=True):
                self._spent.remember(addition.key, items[0] if items else None)

    def _key(self, step: Step) -> str:
        if isinstance(step, RecordAt | RecordWrite):
            return self._values.keys.record(step.name)
        key = self._values.keys.ledger(step.ledger_id)
        if key is None:
            raise not_found(step.ledger_id)
        return key


def _condition(step: Step, key: str) -> WrittenAt:
    may_be_missing = isinstance(step, RecordAt | RecordWrite)
    return WrittenAt(key, step.version) if may_be_missing else there_at(key, step.version)


def _changes(step: Step, key: str) -> list[Operation]:
    if isinstance(step, RecordWrite):
        return [Put(key, step.data)]
    return [Delete(key)] if isinstance(step, LedgerDeletion) else []
