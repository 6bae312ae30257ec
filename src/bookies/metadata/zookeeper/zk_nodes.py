"""Znodes as the parts of the ZooKeeper driver use them: whole paths, repeated reads, versions that never come back.

A znode's own version begins again at 0 when it is deleted and made anew. The version of ours is the transaction that
wrote the data last (`mzxid`), which grows over the whole life of the store; the znode's version, which a write has to
name, is looked up, or remembered from the last time. Source: metadata 0.2 and 5.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from bookies.errors import SessionExpired
from bookies.metadata.shared.store_driver import VERSIONS_COUNT_MAX
from bookies.metadata.zookeeper.zk_layout import Paths, parent_of
from bookies.metadata.zookeeper.zookeeper_port import (
    Acl,
    NodeExists,
    NodeMissing,
    OutcomeUnknown,
    Refusal,
    Stat,
    ZooKeeper,
)

T = TypeVar("T")

ATTEMPTS_MAX = 4  # of an operation whose outcome is unknown and that can be repeated


class Nodes:
    """`acl`: of what we create, unless said otherwise."""

    def __init__(self, zookeeper: ZooKeeper, paths: Paths, acl: Acl) -> None:
        self.zookeeper = zookeeper
        self.paths = paths
        self.acl = acl
        self._known: dict[str, tuple[int, int]] = {}  # path -> (mzxid, version), oldest first

    # -- reading -------------------------------------------------------------------------------------------------
    async def repeat(self, operation: Callable[[], Awaitable[T]]) -> T:
        """An operation that may be carried out twice, until its outcome is known."""
        for _ in range(ATTEMPTS_MAX - 1):
            try:
                return await operation()
            except (OutcomeUnknown, SessionExpired):
                continue
        return await operation()

    async def read(self, path: str) -> tuple[bytes, Stat] | None:
        """As of now, not as a server that lags behind knows it. None: there is no such znode."""
        try:
            return await self.repeat(lambda: self.zookeeper.get(path, sync=True))
        except NodeMissing:
            return None

    async def stat(self, path: str, watch: Callable[[], None] | None = None) -> Stat | None:
        """As `read`."""
        return await self.repeat(lambda: self.zookeeper.exists(path, sync=True, watch=watch))

    async def version(self, path: str, watch: Callable[[], None]) -> int:
        """Ours, see the module; 0 for a missing znode."""
        stat = await self.stat(path, watch)
        return 0 if stat is None else stat.mzxid

    async def children(self, path: str, watch: Callable[[], None] | None = None) -> tuple[list[str], Stat] | None:
        """As `read`. The watch sees the znode appear, too."""
        while True:
            try:
                return await self.repeat(lambda: self.zookeeper.children(path, sync=True, watch=watch))
            except NodeMissing:
                if watch is None or await self.stat(path, watch) is None:
                    return None

    # -- whole paths ---------------------------------------------------------------------------------------------
    async def ensure(self, path: str) -> None:
        """Make an empty znode and those above it, where they are missing."""
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
        """With the znodes above it. Somebody else may delete those, being empty, at any moment. Raises `NodeExists`."""
        while True:
            try:
                return await self.zookeeper.create(
                    path, data, acl or self.acl, is_ephemeral=is_ephemeral, is_sequential=is_sequential
                )
            except NodeMissing:
                await self.ensure(parent_of(path))

    async def remove_empty_parents(self, path: str, top: str) -> None:
        """Between a znode that was deleted and one that stays, as Apache does. Whatever prevents it leaves an empty
        znode, no harm.
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

    # -- versions ------------------------------------------------------------------------------------------------
    def remember(self, path: str, stat: Stat | None) -> None:
        """None: it was seen to be missing."""
        self._known.pop(path, None)
        self._known[path] = (0, 0) if stat is None else (stat.mzxid, stat.version)
        if len(self._known) > VERSIONS_COUNT_MAX:
            del self._known[next(iter(self._known))]

    def last_seen(self, path: str) -> int | None:
        """The version that this driver saw last, 0 for a missing znode; None if it has not looked, or long ago."""
        found = self._known.get(path)
        return None if found is None else found[0]

    def znode_version(self, path: str, version: int) -> int | None:
        """What ZooKeeper calls this version, if we know."""
        found = self._known.get(path)
        return found[1] if found is not None and found[0] == version else None
