"""Named records and cookies in ZooKeeper, and transactions over records and ledgers.

A record that is deleted and recreated can have the same ZooKeeper version as the first one, so a write that names only
a version could change the wrong record. Every deletion therefore rewrites a guard znode, and a write checks in its
transaction that the guard has not changed since it read the record. Source: metadata 7.2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bookies.errors import InvalidArgument
from bookies.metadata.interface.driver import LedgerAt, LedgerDeletion, RecordAt, RecordWrite, Step
from bookies.metadata.shared.refusals import check_step, check_version, not_found
from bookies.metadata.zookeeper.zk_groups import request_size
from bookies.metadata.zookeeper.zk_layout import record_name
from bookies.metadata.zookeeper.zk_ledgers import Ledgers, SpentIds
from bookies.metadata.zookeeper.zk_nodes import ZkNodes
from bookies.metadata.zookeeper.zookeeper_port import (
    REQUEST_SIZE_MAX,
    Check,
    Create,
    Delete,
    NodeMissing,
    Operation,
    Refusal,
    SetData,
    Stat,
)


class Records:
    """Data at paths that can be recreated after a deletion. A missing one raises `NodeMissing`, which the caller
    translates.
    """

    def __init__(self, nodes: ZkNodes) -> None:
        self._nodes = nodes
        self._zookeeper = nodes.zookeeper

    async def read(self, path: str) -> tuple[bytes, int]:
        node = await self._nodes.read(path)
        if node is None:
            raise NodeMissing(path)
        return node[0], node[1].mzxid

    async def create(self, path: str, data: bytes) -> int:
        """Create a record; return its version. Raises `NodeExists`."""
        _, stat = await self._nodes.create(path, data)
        return stat.mzxid

    async def write(self, path: str, data: bytes, expected_version: int) -> int:
        while True:
            guard, version = await self._expect(path, expected_version)
            try:
                written = await self._zookeeper.multi([guard, SetData(path, data, version)])
            except Refusal:
                continue  # The next check determines the reason.
            assert isinstance(written[1], Stat)
            return written[1].mzxid

    async def delete(self, path: str, expected_version: int) -> None:
        while True:
            guard, version = await self._expect(path, expected_version)
            try:
                await self._zookeeper.multi([SetData(guard.path, b"", guard.version), Delete(path, version)])
            except Refusal:
                continue
            return

    async def _expect(self, path: str, expected_version: int) -> tuple[Check, int]:
        """Check a record's version; return the guard as read before the record, and the record's znode version."""
        guard = await self.guard()
        stat = await self._nodes.stat(path)
        if stat is None:
            raise NodeMissing(path)
        check_version(stat.mzxid, expected_version)
        return guard, stat.version

    async def guard(self) -> Check:
        """Return a check that no record or cookie was deleted since this call."""
        path = self._nodes.paths.records
        while (stat := await self._nodes.stat(path)) is None:
            await self._nodes.ensure(path)
        return Check(path, stat.version)

    async def names(self, prefix: str) -> Sequence[str]:
        listed = await self._nodes.children(self._nodes.paths.records)
        names = map(record_name, listed[0] if listed is not None else [])
        return sorted(name for name in names if name.startswith(prefix))


class Transactions:
    """Transactions over records and ledgers, see `MetadataDriver.transact`."""

    def __init__(self, nodes: ZkNodes, ledgers: Ledgers, spent: SpentIds, records: Records) -> None:
        self._nodes = nodes
        self._zookeeper = nodes.zookeeper
        self._ledgers = ledgers
        self._spent = spent
        self._records = records

    async def transact(self, steps: Sequence[Step]) -> int:
        while True:
            guard = await self._records.guard()
            paths = [self._path(step) for step in steps]
            stats = await asyncio.gather(*map(self._nodes.stat, paths))
            for step, stat in zip(steps, stats, strict=True):
                check_step(step, 0 if stat is None else stat.mzxid)
            if not steps:
                return 0
            operations: list[Operation] = [guard]
            operations += [
                operation
                for step, path, stat in zip(steps, paths, stats, strict=True)
                for operation in self._operations(step, path, stat)
            ]
            deleted = (
                (step, stat) for step, stat in zip(steps, stats, strict=True) if isinstance(step, LedgerDeletion)
            )
            operations += await self._spent.additions(
                {step.ledger_id: stat.version for step, stat in deleted if stat is not None}
            )
            is_change = any(isinstance(step, LedgerDeletion | RecordWrite) for step in steps)
            if is_change and not any(isinstance(operation, SetData) for operation in operations):
                await self._nodes.ensure(self._nodes.paths.revision)
                operations.append(SetData(self._nodes.paths.revision, b""))
            _check_size(operations)
            try:
                written = await self._zookeeper.multi(operations)
            except Refusal:
                continue  # The next check determines the reason; if the steps still hold, the next attempt is equal.
            for step, path in zip(steps, paths, strict=True):
                if isinstance(step, LedgerDeletion):
                    await self._ledgers.removed(path)
            versions = [outcome.mzxid for outcome in written if isinstance(outcome, Stat)]
            return versions[0] if versions else max(step.version for step in steps)

    def _path(self, step: Step) -> str:
        if isinstance(step, RecordAt | RecordWrite):
            return self._nodes.paths.record(step.name)
        path = self._ledgers.path(step.ledger_id)
        if path is None:
            raise not_found(step.ledger_id)
        return path

    def _operations(self, step: Step, path: str, stat: Stat | None) -> list[Operation]:
        """Return a step's operations. `stat`: of the znode, which has the expected version; None: it is missing."""
        if isinstance(step, RecordWrite):
            return [
                Create(path, step.data, self._nodes.acl) if stat is None else SetData(path, step.data, stat.version)
            ]
        if stat is None:  # The record must be missing. ZooKeeper can check that only by creating it.
            return [Create(path, b"", self._nodes.acl), Delete(path)]
        return [Check(path, stat.version) if isinstance(step, LedgerAt | RecordAt) else Delete(path, stat.version)]


def _check_size(operations: Sequence[Operation]) -> None:
    size = request_size(operations)
    if size > REQUEST_SIZE_MAX:
        raise InvalidArgument(
            f"a transaction has {len(operations):,} operations and about {size:,} bytes; ZooKeeper accepts at most "
            f"{REQUEST_SIZE_MAX:,} in one request"
        )
