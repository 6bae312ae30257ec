"""Named records and cookies in ZooKeeper, and transactions over records and ledgers.

A record that is deleted and made again has the same ZooKeeper version as the first one had, so a write that names a
version alone could hit the wrong one. Every deletion therefore rewrites one more znode, and a write checks in its
transaction that this znode has not changed since it looked at the record. Source: metadata 7.2.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bookies.errors import InvalidArgument, LedgerNotFound
from bookies.metadata.interface.driver import LedgerAt, LedgerDeletion, RecordAt, RecordWrite, Step
from bookies.metadata.shared.store_driver import check_record_version, check_version
from bookies.metadata.zookeeper.zk_groups import request_size
from bookies.metadata.zookeeper.zk_layout import record_name
from bookies.metadata.zookeeper.zk_ledgers import Ledgers, SpentIds
from bookies.metadata.zookeeper.zk_nodes import Nodes
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
    """Data at paths that can come back after a deletion. Missing ones are `NodeMissing`, for the caller to name."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._zookeeper = nodes.zookeeper

    async def read(self, path: str) -> tuple[bytes, int]:
        found = await self._nodes.read(path)
        if found is None:
            raise NodeMissing(path)
        return found[0], found[1].mzxid

    async def create(self, path: str, data: bytes) -> int:
        """Raises `NodeExists`."""
        _, stat = await self._nodes.create(path, data)
        return stat.mzxid

    async def write(self, path: str, data: bytes, expected_version: int) -> int:
        while True:
            guard, version = await self._expect(path, expected_version)
            try:
                written = await self._zookeeper.multi([guard, SetData(path, data, version)])
            except Refusal:
                continue  # Looking again tells what it was.
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
        """The guard as it was before the look at the record, and what ZooKeeper calls the record's version."""
        guard = await self.guard()
        stat = await self._nodes.stat(path)
        if stat is None:
            raise NodeMissing(path)
        check_version(stat.mzxid, expected_version)
        return guard, stat.version

    async def guard(self) -> Check:
        """That nothing was deleted from now on."""
        path = self._nodes.paths.records
        while (stat := await self._nodes.stat(path)) is None:
            await self._nodes.ensure(path)
        return Check(path, stat.version)

    async def names(self, prefix: str) -> Sequence[str]:
        found = await self._nodes.children(self._nodes.paths.records)
        names = map(record_name, found[0] if found is not None else [])
        return sorted(name for name in names if name.startswith(prefix))


class Transactions:
    """See `MetadataDriver.transact`."""

    def __init__(self, nodes: Nodes, ledgers: Ledgers, spent: SpentIds, records: Records) -> None:
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
                _check_step(step, stat)
            if not steps:
                return 0
            operations: list[Operation] = [guard]
            operations += [each for found in zip(steps, paths, stats, strict=True) for each in self._operations(*found)]
            additions = await self._spent.additions(
                [step.ledger_id for step in steps if isinstance(step, LedgerDeletion)]
            )
            for addition in additions:
                self._spent.forget(addition.path)
            operations += additions
            is_change = any(isinstance(step, LedgerDeletion | RecordWrite) for step in steps)
            if is_change and not any(isinstance(each, SetData) for each in operations):
                await self._nodes.ensure(self._nodes.paths.revision)
                operations.append(SetData(self._nodes.paths.revision, b""))
            _check_size(operations)
            try:
                written = await self._zookeeper.multi(operations)
            except Refusal:
                continue  # Looking again tells what it was; or nothing of ours, and then it is tried again.
            for step, path in zip(steps, paths, strict=True):
                if isinstance(step, LedgerDeletion):
                    await self._ledgers.removed(path)
            versions = [each.mzxid for each in written if isinstance(each, Stat)]
            return versions[0] if versions else max(step.version for step in steps)

    def _path(self, step: Step) -> str:
        if isinstance(step, RecordAt | RecordWrite):
            return self._nodes.paths.record(step.name)
        path = self._ledgers.path(step.ledger_id)
        if path is None:
            raise LedgerNotFound("no such ledger in the metadata store", ledger_id=step.ledger_id)
        return path

    def _operations(self, step: Step, path: str, stat: Stat | None) -> list[Operation]:
        """`stat`: of the znode, whose version has been found to be the one that was asked for."""
        if isinstance(step, RecordWrite):
            return [
                Create(path, step.data, self._nodes.acl) if stat is None else SetData(path, step.data, stat.version)
            ]
        if stat is None:  # There has to be no such record: ZooKeeper cannot check that but by trying.
            return [Create(path, b"", self._nodes.acl), Delete(path)]
        return [Check(path, stat.version) if isinstance(step, LedgerAt | RecordAt) else Delete(path, stat.version)]


def _check_step(step: Step, stat: Stat | None) -> None:
    if isinstance(step, RecordAt | RecordWrite):
        check_record_version(0 if stat is None else stat.mzxid, step)
        return
    if stat is None:
        raise LedgerNotFound("no such ledger in the metadata store", ledger_id=step.ledger_id)
    check_version(stat.mzxid, step.version, ledger_id=step.ledger_id)


def _check_size(operations: Sequence[Operation]) -> None:
    size = request_size(operations)
    if size > REQUEST_SIZE_MAX:
        raise InvalidArgument(
            f"a transaction of {len(operations):,} operations and about {size:,} bytes; ZooKeeper takes "
            f"{REQUEST_SIZE_MAX:,} at once"
        )
