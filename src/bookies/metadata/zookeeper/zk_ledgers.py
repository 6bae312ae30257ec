"""Ledgers in ZooKeeper: records, spent ids, and the listing.

Apache allows an id to be used again after a deletion; our interface does not. So a deletion also adds the id to a list
of spent ids, in one transaction, and a creation checks the version of that list in its transaction.

An operator may create the record of a deleted ledger again. ZooKeeper counts a znode's versions from 0 in each of its
lives, so a client that knows the record from an earlier life could take a new one for it, and overwrite it. Hence the
znode of a record that was created again has only versions that no earlier one had: the transaction of the creation
also writes it that many times. The number is in the name of a child of the list of spent ids. No other request costs
more, and Apache's clients are refused as well.

Source: metadata 3, 4 and 5.1.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from bookies.errors import InvalidArgument, LedgerNotFound, MetadataCorrupt, MetadataError, NotSupported, SessionExpired
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
from bookies.metadata.shared.refusals import check_version, deleted_before, taken
from bookies.metadata.zookeeper.zk_groups import Groups
from bookies.metadata.zookeeper.zk_layout import (
    Manager,
    branches_among,
    ledger_path,
    ledgers_among,
    parent_of,
    tops_among,
)
from bookies.metadata.zookeeper.zk_nodes import ATTEMPTS_MAX, ZkNodes
from bookies.metadata.zookeeper.zookeeper_port import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    NodeExists,
    NodeMissing,
    NotEmpty,
    Operation,
    OutcomeUnknown,
    Refusal,
    SetData,
    Stat,
    WrongVersion,
)
from bookies.model import LedgerMetadata
from bookies.protocol.quorums import IdSet

_LISTS_COUNT_MAX = 64  # lists of spent ids that this driver remembers
_VERSION_UNNOTED_MAX = 1_000  # a deletion notes the version of a znode that was written more often
_FIRST_VERSION_MAX = 10_000  # writes of it that fit into one request
_FIRST = re.compile(r"([0-9]+)-([0-9]+)")


class _List(NamedTuple):
    """A list as read last, not to be changed. `firsts`: by offset, the least version of a new znode of that ledger."""

    data: bytes
    ids: IdSet
    check: Check
    firsts: dict[int, int]


def _first(listed: _List, ledger_id: int) -> int:
    """Return the least version of a new znode of the ledger. Raises `NotSupported`: it is out of reach."""
    offset = ledger_id % SPENT_SIZE
    first = listed.firsts.get(offset, 0)
    if first > _FIRST_VERSION_MAX:
        raise NotSupported(
            f"the record was changed {first:,} times before it was deleted, more than {_FIRST_VERSION_MAX:,}, and "
            "ZooKeeper cannot tell those versions from the ones of a new record: stop all clients that have opened the "
            f"ledger, delete the znode {listed.check.path}/{offset}-{first}, and repeat",
            ledger_id=ledger_id,
        )
    return first


class SpentIds:
    """The lists of deleted ledgers' ids, each a znode; see the module."""

    def __init__(self, nodes: ZkNodes) -> None:
        self._nodes = nodes
        self._lists: dict[str, _List] = {}  # by path

    async def check(self, ledger_id: int) -> tuple[Check, int] | None:
        """Return the check that the id's list, in which it is not, has not changed since, and the least version of the
        znode to be created; None: the id is spent. Raises `NotSupported`.
        """
        listed = await self._list(ledger_id)
        return None if ledger_id % SPENT_SIZE in listed.ids else (listed.check, _first(listed, ledger_id))

    async def around(self, ledger_id: int) -> tuple[str, IdSet, int]:
        """Return the path, a copy, and the znode's version of the list for the id, perhaps not the latest."""
        listed = await self._list(ledger_id)
        return listed.check.path, parse_spent(listed.check.path, listed.data), listed.check.version

    async def _list(self, ledger_id: int) -> _List:
        """Return a list. Creates a missing one."""
        path = self._nodes.paths.spent_list(ledger_id)
        while path not in self._lists:
            stored = await self._nodes.read(path)
            if stored is None:
                await self._nodes.ensure(path)
                continue
            # Read after the list. Every addition to them also writes the list, so the check covers both.
            names = await self._nodes.children(path) if stored[1].children_count else None
            firsts: dict[int, int] = {}
            for match in filter(None, map(_FIRST.fullmatch, names[0] if names is not None else ())):
                firsts[int(match[1])] = max(firsts.get(int(match[1]), 0), int(match[2]))
            if len(self._lists) >= _LISTS_COUNT_MAX:
                del self._lists[next(iter(self._lists))]
            check = Check(path, stored[1].version)
            self._lists[path] = _List(stored[0], parse_spent(path, stored[0]), check, firsts)
        return self._lists[path]

    def forget(self, path: str) -> None:
        """Forget the remembered copy of a list."""
        self._lists.pop(path, None)

    async def additions(self, deleted: Mapping[int, int]) -> list[Operation]:
        """Return the operations of a transaction that spends ids, and forget their lists. `deleted`: the versions of
        the ledgers' znodes, by id.
        """
        changed: dict[str, tuple[IdSet, int]] = {}
        notes: list[Operation] = []
        for ledger_id, znode_version in deleted.items():
            path, ids, version = await self.around(ledger_id)
            ids, version = changed.setdefault(path, (ids, version))
            offset = ledger_id % SPENT_SIZE
            ids.add(offset, offset + 1)
            if znode_version >= max(_VERSION_UNNOTED_MAX, (await self._list(ledger_id)).firsts.get(offset, 0)):
                notes.append(self._note(path, offset, znode_version + 1))
        for path in changed:
            self.forget(path)
        return [SetData(path, pack_spent(ids), version) for path, (ids, version) in changed.items()] + notes

    def _note(self, path: str, offset: int, first: int) -> Operation:
        return Create(f"{path}/{offset}-{first}", b"", self._nodes.acl)

    async def runs(self) -> tuple[tuple[int, int], ...]:
        """Return all spent ids, see `GivenIds`."""
        listed = await self._nodes.children(self._nodes.paths.spent)
        lists: dict[int, IdSet] = {}
        for name in filter(is_spent_list, listed[0] if listed is not None else []):
            path = f"{self._nodes.paths.spent}/{name}"
            data = await self._nodes.read(path)
            lists[int(name, 16)] = parse_spent(path, b"" if data is None else data[0])
        return joined(lists)

    async def take_out(self, ledger_id: int) -> None:
        """Remove one id, and note which versions its new record must not have. Raises `NotSupported`."""
        path, offset = self._nodes.paths.spent_list(ledger_id), ledger_id % SPENT_SIZE
        while True:
            self.forget(path)
            listed = await self._list(ledger_id)
            if offset not in listed.ids:
                return
            operations: list[Operation] = [SetData(path, pack_spent(without(listed.ids, offset)), listed.check.version)]
            if not _first(listed, ledger_id):
                operations.append(self._note(path, offset, _VERSION_UNNOTED_MAX))
            try:
                await self._nodes.zookeeper.multi(operations)
            except (Refusal, OutcomeUnknown, SessionExpired):
                continue  # Another client changed the list, or the next attempt determines the outcome.

    async def restore(self, runs: Sequence[tuple[int, int]]) -> None:
        """Add runs of ids (first, last)."""
        for number, added in divided(runs).items():
            while not await self._restore(number * SPENT_SIZE, added):
                continue  # Another client changed the list.

    async def _restore(self, base: int, added: list[tuple[int, int]]) -> bool:
        self.forget(self._nodes.paths.spent_list(base))  # An older copy may have ids that the list lacks.
        path, ids, version = await self.around(base)
        before = pack_spent(ids)
        for first, last in added:
            ids.add(first, last + 1)
        data = pack_spent(ids)
        self.forget(path)
        try:
            if data != before:
                await self._nodes.zookeeper.set(path, data, version)
        except (Refusal, OutcomeUnknown, SessionExpired):
            return False
        return True


class Ledgers:
    """The ledgers' records of one cluster. `manager`: the layout, set once the cluster's layout is known."""

    def __init__(self, nodes: ZkNodes, spent: SpentIds, groups: Groups) -> None:
        self.manager = Manager.HIERARCHICAL
        self._nodes = nodes
        self._zookeeper = nodes.zookeeper
        self._groups = groups
        self._spent = spent
        self._revise = SetData(nodes.paths.revision, b"")  # Its stat has the transaction's number and time.
        self._deleting = asyncio.Lock()  # concurrent deletions of one driver would make each other's transactions fail

    def path(self, ledger_id: int) -> str | None:
        """Return the path of a ledger's record; None for an id that cannot have one."""
        return ledger_path(self._nodes.paths.root, self.manager, ledger_id)

    def _required_path(self, ledger_id: int) -> str:
        path = self.path(ledger_id)
        if path is None:
            raise InvalidArgument(f"ledger id {ledger_id} is out of range for the layout {self.manager.value}")
        return path

    # -- records -------------------------------------------------------------------------------------------------
    async def read(self, ledger_id: int) -> Versioned:
        """Read a record. Raises `LedgerNotFound`."""
        path = self.path(ledger_id)
        node = None if path is None else await self._nodes.read(path)
        if path is None or node is None:
            if path is not None:
                self._nodes.remember(path, None)
            raise LedgerNotFound("no such ledger in the metadata store", ledger_id=ledger_id)
        return self._versioned(path, ledger_id, *node)

    def _versioned(self, path: str, ledger_id: int, data: bytes, stat: Stat) -> Versioned:
        self._nodes.remember(path, stat)
        return Versioned(parse_ledger(ledger_id, data, stat.ctime_ms, stat.mzxid), stat.mzxid)

    async def read_current(self, ledger_id: int, known: Versioned | None = None) -> Versioned | MetadataCorrupt | None:
        """Read a record, see `MetadataDriver.current_ledgers`. `known`: the caller's copy, which is only checked.

        A leader that a majority has deposed answers `sync` and reads until it notices. It cannot carry out a
        transaction, or refuse one, so one that only checks the version, or that there is a record, follows the read.
        """
        path = self.path(ledger_id)
        if path is not None and known is not None:
            version = self._nodes.znode_version(path, known.version)
            if version is not None and await self._is_current(path, version):
                return known
        while path is not None:
            node = await self._nodes.read(path)
            is_current = await self._is_current(path, ANY_VERSION if node is None else node[1].version)
            if node is None and not is_current:
                break
            if node is not None and is_current:
                try:
                    return self._versioned(path, ledger_id, *node)
                except MetadataCorrupt as error:
                    return error
        return None

    async def _is_current(self, path: str, version: int) -> bool:
        try:
            await self._groups.multi([Check(path, version)])
        except Refusal:
            return False  # It has changed since, or there is none.
        return True

    async def create(self, metadata: LedgerMetadata) -> Versioned:
        """See `MetadataDriver.create_ledger`."""
        data, ledger_id = pack_ledger(metadata), metadata.ledger_id
        path = self._required_path(ledger_id)
        attempts = 0
        while True:
            allowed = await self._spent.check(ledger_id)
            if allowed is None:
                raise deleted_before(ledger_id)
            check, first = allowed
            writes = [SetData(path, data if version == first - 1 else b"", version) for version in range(first)]
            creation = Create(path, b"" if first else data, self._nodes.acl)
            try:
                revised = (await self._groups.multi((self._revise, check, creation, *writes)))[0]
            except NodeExists:
                own = await self._own_attempt(metadata)
                if own is not None:
                    return own
            except Refusal as refusal:
                if refusal.path == check.path:
                    self._spent.forget(check.path)
                else:
                    await self._nodes.ensure(parent_of(path) if refusal.path == path else refusal.path)
            except (OutcomeUnknown, SessionExpired):
                attempts += 1
                if attempts == ATTEMPTS_MAX:
                    raise
            else:
                assert isinstance(revised, Stat)
                zxid, now_ms = revised.mzxid, revised.mtime_ms
                self._nodes.remember(path, Stat(zxid, zxid, zxid, now_ms, now_ms, first, 0, 0, 0))
                return Versioned(as_stored(metadata, data, now_ms), zxid)

    async def _own_attempt(self, metadata: LedgerMetadata) -> Versioned | None:
        """Return the stored record if our own attempt created it and its answer was lost; None: it is missing.

        Raises `LedgerExists`, also for our own record in formats before 3, which have no token.
        """
        try:
            stored = await self.read(metadata.ledger_id)
        except LedgerNotFound:
            return None
        if metadata.creator_token and stored.metadata.creator_token == metadata.creator_token:
            return stored
        raise taken(metadata.ledger_id)

    async def write(self, metadata: LedgerMetadata, expected_version: int, lock: LedgerLock | None = None) -> Versioned:
        """Write a record, see `MetadataDriver.write_ledger`. After a lost answer, the stored record shows the outcome.

        A lock ends with its session, and so does every request of that session that was not carried out yet.
        """
        data, ledger_id = pack_ledger(metadata), metadata.ledger_id
        path = self._required_path(ledger_id)
        attempts = 0
        while True:
            version = self._nodes.znode_version(path, expected_version)
            if version is None:
                version = (await self._expect(path, ledger_id, expected_version)).version
            if lock is not None and self._zookeeper.session_id != lock.session:
                raise lock_lost(ledger_id)
            try:
                if lock is None:
                    stat = (await self._groups.multi([SetData(path, data, version)]))[0]
                else:  # The session is checked once more when the request is sent.
                    stat = await self._zookeeper.set(path, data, version, session=lock.session)
            except (NodeMissing, WrongVersion):
                await self._expect(path, ledger_id, expected_version)
                continue
            except (OutcomeUnknown, SessionExpired):
                stored = await self._nodes.read(path)
                if stored is not None and stored[1].version == version + 1 and stored[0] == data:
                    return self._versioned(path, ledger_id, *stored)
                await self._expect(path, ledger_id, expected_version)
                attempts += 1
                if attempts == ATTEMPTS_MAX:
                    raise
                continue
            assert isinstance(stat, Stat)
            self._nodes.remember(path, stat)
            return Versioned(as_stored(metadata, data, stat.ctime_ms), stat.mzxid)

    async def _expect(self, path: str, ledger_id: int, expected_version: int) -> Stat:
        """Check the record's current version; return its stat. Raises `LedgerNotFound`, `VersionConflict`."""
        stat = await self._nodes.stat(path)
        self._nodes.remember(path, stat)
        if stat is None:
            raise LedgerNotFound("no such ledger in the metadata store", ledger_id=ledger_id)
        check_version(stat.mzxid, expected_version, ledger_id=ledger_id)
        return stat

    async def delete(self, ledger_id: int, expected_version: int | None) -> None:
        """See `MetadataDriver.delete_ledger`."""
        path = self.path(ledger_id)
        if path is None:
            return
        async with self._deleting:
            while (stat := await self._nodes.stat(path)) is not None:
                if expected_version is not None:
                    check_version(stat.mzxid, expected_version, ledger_id=ledger_id)
                operations = [*await self._spent.additions({ledger_id: stat.version}), Delete(path, stat.version)]
                try:
                    await self._nodes.repeat(partial(self._zookeeper.multi, operations))
                    break
                except NotEmpty:
                    raise MetadataError(f"{path} has children, so it cannot be deleted", ledger_id=ledger_id) from None
                except Refusal:
                    continue
        await self.removed(path)

    async def removed(self, path: str) -> None:
        """Delete the empty parents of a deleted ledger, in the layouts where Apache does."""
        if self.manager.has_long_ids:
            await self._nodes.remove_empty_parents(path, self._nodes.paths.root)

    # -- listing -------------------------------------------------------------------------------------------------
    async def listing(self, page_count: int) -> AsyncIterator[list[int]]:
        """Yield every ledger's id, ascending, in pages. Raises `MetadataError` rather than omit an id.

        Garbage collection deletes the data of ledgers that are not listed. So a cluster that is missing, or was
        recreated meanwhile, is an error and not an empty list. Source: metadata 3.3 and 13.
        """
        identity = await self._identity()
        page: list[int] = []
        last = -1
        async for ids in self._leaves():
            if ids and ids[0] <= last:
                raise MetadataError(f"the listing of ledgers is out of order: {ids[0]} after {last}")
            last = ids[-1] if ids else last
            page += ids
            while len(page) >= page_count:
                await self._check_identity(identity)
                yield page[:page_count]
                del page[:page_count]
        await self._check_identity(identity)
        if page:
            yield page

    async def _identity(self) -> tuple[int, int]:
        """Return the transactions that created the cluster: they differ after it is recreated."""
        paths = self._nodes.paths
        root, instance = await self._nodes.stat(paths.root), await self._nodes.stat(paths.instance_id)
        if root is None:
            raise MetadataError(
                f"there is no cluster at {paths.root} in ZooKeeper, so its ledgers are unknown; check the path in the "
                "metadata URI"
            )
        return root.czxid, 0 if instance is None else instance.czxid

    async def _check_identity(self, identity: tuple[int, int]) -> None:
        if await self._identity() != identity:
            raise MetadataError(
                f"the cluster at {self._nodes.paths.root} was formatted while its ledgers were listed; retry"
            )

    async def _leaves(self) -> AsyncIterator[list[int]]:
        root = self._nodes.paths.root
        listed = await self._nodes.children(root)
        if listed is None:
            raise MetadataError(f"{root} was deleted while its ledgers were listed")
        if self.manager is Manager.FLAT:
            yield ledgers_among(root, self.manager, root, listed[0])
        for top, depth in tops_among(self.manager, listed[0]):
            async for ids in self._below(f"{root}/{top}", depth - 2):
                yield ids

    async def _below(self, path: str, levels: int) -> AsyncIterator[list[int]]:
        """Yield the ids below a znode. A missing znode became empty: deletions of ledgers delete empty parents."""
        listed = await self._nodes.children(path)
        if listed is None:
            return
        if levels == 0:
            yield ledgers_among(self._nodes.paths.root, self.manager, path, listed[0])
            return
        for branch in branches_among(listed[0]):
            async for ids in self._below(f"{path}/{branch}", levels - 1):
                yield ids
