"""Znodes for the parts of the ZooKeeper driver: whole paths, repeated reads, versions that never return.

A znode's own version begins at 0 again when it is deleted and recreated. Our version is the transaction that wrote the
data last (`mzxid`), which grows over the whole life of the store. A write has to name the znode's own version, which
is read, or remembered from an earlier read. Source: metadata 0.2 and 5.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from bookies.errors import SessionExpired
from bookies.metadata.shared.store_driver import VERSIONS_COUNT_MAX
from bookies.metadata.zookeeper.zk_layout import Paths, parent_of
from bookies.metadata.zookeeper.zookeeper_port import (
    Acl,
    Delete,
    NodeExists,
    NodeMissing,
    NotEmpty,
    OutcomeUnknown,
    Refusal,
    Stat,
    ZooKeeper,
)

T = TypeVar("T")

ATTEMPTS_MAX = 4  # attempts of a repeatable operation while its outcome is unknown
REMOVED_AT_ONCE = 100  # znodes deleted in one request


class ZkNodes:
    """Access to the znodes of one cluster. `acl`: default access control list of created znodes."""

    def __init__(self, zookeeper: ZooKeeper, paths: Paths, acl: Acl) -> None:
        self.zookeeper = zookeeper
        self.paths = paths
        self.acl = acl
        self._known: dict[str, tuple[int, int]] = {}  # path -> (mzxid, version), oldest first

    # -- reading -------------------------------------------------------------------------------------------------
    async def repeat(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Repeat an operation, which may be carried out twice, until its outcome is known."""
        for _ in range(ATTEMPTS_MAX - 1):
            try:
                return await operation()
            except (OutcomeUnknown, SessionExpired):
                continue
        return await operation()

    async def read(self, path: str) -> tuple[bytes, Stat] | None:
        """Return a znode's current data and stat, also if the server lags behind; None: there is no such znode."""
        try:
            return await self.repeat(lambda: self.zookeeper.get(path, sync=True))
        except NodeMissing:
            return None

    async def stat(self, path: str, watch: Callable[[], None] | None = None) -> Stat | None:
        """Return a znode's current stat; None: there is no such znode."""
        return await self.repeat(lambda: self.zookeeper.exists(path, sync=True, watch=watch))

    async def version(self, path: str, watch: Callable[[], None]) -> int:
        """Return our version of a znode, see the module; 0 for a missing znode."""
        stat = await self.stat(path, watch)
        return 0 if stat is None else stat.mzxid

    async def children(self, path: str, watch: Callable[[], None] | None = None) -> tuple[list[str], Stat] | None:
        """Return the current names of children, and the stat; None: there is no such znode. The watch is also called
        when a missing znode is created.
        """
        while True:
            try:
                return await self.repeat(lambda: self.zookeeper.children(path, sync=True, watch=watch))
            except NodeMissing:
                if watch is None or await self.stat(path, watch) is None:
                    return None

    # -- whole paths ---------------------------------------------------------------------------------------------
    async def ensure(self, path: str) -> None:
        """Create an empty znode and its parents if they are missing."""
        while path and await self.stat(path) is None:
            try:
                await self.zookeeper.create(path, b"", self.acl)
            except NodeMissing:
                await self.ensure(parent_of(path))
            except (NodeExists, OutcomeUnknown, SessionExpired):
                continue

    async def create(
        self, path: str, data: bytes, acl: Acl | None = None, *, is_ephemeral: bool = False, is_sequential: bool = False
    ) -> tuple[str, Stat]:
        """Create a znode and its missing parents, which other clients may delete at any moment while they are empty.

        Raises `NodeExists`.
        """
        while True:
            try:
                return await self.zookeeper.create(
                    path, data, acl or self.acl, is_ephemeral=is_ephemeral, is_sequential=is_sequential
                )
            except NodeMissing:
                await self.ensure(parent_of(path))

    async def remove_empty_parents(self, path: str, top: str) -> None:
        """Delete the empty znodes between a deleted znode and `top`, as Apache does. After a failure an empty znode
        remains, which is harmless.
        """
        parent = parent_of(path)
        while parent != top:
            try:
                stat = await self.zookeeper.exists(parent)
                if stat is None or stat.children_count:
                    return
                await self.zookeeper.delete(parent)
            except (Refusal, OutcomeUnknown, SessionExpired):
                return
            parent = parent_of(parent)

    async def remove_tree(self, path: str) -> None:
        """Delete a znode and everything below it, if it is there. Repeatable after an interruption."""
        listed = await self.children(path)
        left = [] if listed is None else [f"{path}/{child}" for child in listed[0]]
        while left:
            deletions = [Delete(child) for child in left[-REMOVED_AT_ONCE:]]
            try:
                await self.repeat(partial(self.zookeeper.multi, deletions))
            except NotEmpty as refusal:
                await self.remove_tree(refusal.path)
            except NodeMissing as refusal:
                left.remove(refusal.path)
            else:
                del left[-REMOVED_AT_ONCE:]
        with contextlib.suppress(NodeMissing):
            await self.repeat(lambda: self.zookeeper.delete(path))

    # -- versions ------------------------------------------------------------------------------------------------
    def remember(self, path: str, stat: Stat | None) -> None:
        """Remember a znode's versions; None: it is missing."""
        self._known.pop(path, None)
        self._known[path] = (0, 0) if stat is None else (stat.mzxid, stat.version)
        if len(self._known) > VERSIONS_COUNT_MAX:
            del self._known[next(iter(self._known))]

    def last_seen(self, path: str) -> int | None:
        """Return our version that this driver read last, 0 for a missing znode; None: not read, or not remembered."""
        known = self._known.get(path)
        return None if known is None else known[0]

    def znode_version(self, path: str, version: int) -> int | None:
        """Return the znode's own version for one of ours; None: not remembered."""
        known = self._known.get(path)
        return known[1] if known is not None and known[0] == version else None
