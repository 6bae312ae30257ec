"""Bookies in ZooKeeper: registrations, which live as long as a session, and discovery.

Source: metadata 6.1 and 6.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from bookies.errors import MetadataError, RegisteredElsewhere, SessionExpired
from bookies.metadata.formats.serde import pack_bookie_info, parse_bookie_info
from bookies.metadata.interface.driver import BookieSet
from bookies.metadata.zookeeper.zk_layout import bookies_among, parent_of
from bookies.metadata.zookeeper.zk_nodes import ZkNodes
from bookies.metadata.zookeeper.zookeeper_port import (
    Create,
    Delete,
    NodeMissing,
    Operation,
    OutcomeUnknown,
    Refusal,
    Stat,
)
from bookies.model import BookieId, BookieInfo, BookieMode

STALE_AFTER_S = 1.0  # without an answer for this time, a bookie's information as last read is used
PATIENCE = 1.2  # session timeouts to wait for a predecessor's registration: servers expire sessions at intervals
_WRITABLE, _READ_ONLY = BookieMode.WRITABLE, BookieMode.READ_ONLY
_READ_ORDER = (_WRITABLE, _READ_ONLY, _WRITABLE)  # also finds a bookie that becomes writable meanwhile


class Bookies:
    """Registration and discovery of bookies. `session`: returns a number that changes with the session."""

    def __init__(self, nodes: ZkNodes, lease_ms: int, session: Callable[[], int]) -> None:
        self._nodes = nodes
        self._zookeeper = nodes.zookeeper
        self._lease_s = lease_ms / 1000
        self._session = session
        self._infos: dict[BookieId, BookieInfo] = {}  # as last read

    # -- registration --------------------------------------------------------------------------------------------
    async def register(self, bookie: BookieId, mode: BookieMode, info: BookieInfo) -> None:
        """Register a bookie, see `MetadataDriver.register`. Raises `SessionExpired` if the session ends meanwhile."""
        data, session = pack_bookie_info(info), self._session()
        loop = asyncio.get_running_loop()
        deadline: float | None = None
        unknown: OutcomeUnknown | None = None
        while True:
            try:
                holder = await self._try_register(bookie, mode, data)
            except OutcomeUnknown as error:
                holder, unknown = bookie, error
            if session != self._session():
                raise SessionExpired("the session with ZooKeeper was lost during the registration", bookie=bookie)
            if holder is None:
                return
            if deadline is None:
                deadline = loop.time() + PATIENCE * self._lease_s
            if loop.time() >= deadline:
                raise unknown or RegisteredElsewhere(
                    "another process keeps this bookie registered: stop that process", bookie=bookie
                )
            if holder != bookie:
                await self._wait_gone(holder, deadline)

    async def _try_register(self, bookie: BookieId, mode: BookieMode, data: bytes) -> str | None:
        """Try to register. Returns None when done, the path of another session's registration, or the bookie's id if
        the caller should retry.

        One transaction creates the new registration and deletes the old one, so the bookie is always registered.
        """
        paths = self._nodes.paths
        other_mode = _READ_ONLY if mode is _WRITABLE else _WRITABLE
        path, other = paths.registration(bookie, mode), paths.registration(bookie, other_mode)
        before, other_before = await asyncio.gather(
            self._zookeeper.exists(path, sync=True), self._zookeeper.exists(other)
        )
        session = self._zookeeper.session_id
        for registration, stat in ((path, before), (other, other_before)):
            if stat is not None and stat.owner != session:
                return registration
        try:
            operations = await self._changes(path, before, data)
            if other_before is not None:
                operations.append(Delete(other))
            if operations:  # In the next session, what was ours may be another process's.
                await self._zookeeper.multi(operations, session=session)
        except NodeMissing as refusal:
            if refusal.path == path and before is None:
                await self._nodes.ensure(parent_of(path))
            return bookie
        except Refusal:
            return bookie
        return await self._yield_to(path, other, session) if before is None and other_before is None else None

    async def _changes(self, path: str, before: Stat | None, data: bytes) -> list[Operation]:
        """Return the operations that register. Changed data gets a new znode, so that clients that watch only the list
        of bookies notice it.
        """
        create = Create(path, data, self._nodes.acl, is_ephemeral=True)
        if before is None:
            return [create]
        present, _ = await self._zookeeper.get(path)
        return [] if present == data else [Delete(path, before.version), create]

    async def _yield_to(self, path: str, other: str, session: int | None) -> str | None:
        """Withdraw our registration, of `session`, if another process registered the bookie in the other mode at the
        same moment; return that registration's path, or None.
        """
        stat = await self._zookeeper.exists(other, sync=True)
        if stat is None or stat.owner == session:
            return None
        try:
            await self._zookeeper.delete(path, session=session)
        except (NodeMissing, SessionExpired):
            pass  # It ended with our session.
        return other

    async def _wait_gone(self, path: str, deadline: float) -> None:
        """Wait until a znode is deleted or changed, or the deadline has passed."""
        changed = asyncio.Event()
        try:
            async with asyncio.timeout_at(deadline):
                stat = await self._zookeeper.exists(path, watch=changed.set)
                if stat is not None:
                    await changed.wait()
        except (TimeoutError, OutcomeUnknown):
            pass  # The caller reads the state.
        finally:
            self._zookeeper.unwatch(changed.set)

    async def unregister(self, bookie: BookieId) -> None:
        for mode in BookieMode:
            path = self._nodes.paths.registration(bookie, mode)
            stat = await self._nodes.stat(path)
            if stat is not None and stat.owner == self._zookeeper.session_id:
                try:
                    await self._zookeeper.delete(path, session=stat.owner)
                except (NodeMissing, SessionExpired):
                    continue  # It ended with our session.

    # -- discovery -----------------------------------------------------------------------------------------------
    async def present(self, mode: BookieMode, watch: Callable[[], None] | None = None) -> BookieSet:
        bookies = await self._set_at(self._nodes.paths.registrations(mode), watch)
        await self._learn(bookie for bookie in bookies.bookies if bookie not in self._infos)
        return bookies

    async def known(self) -> BookieSet:
        """Return the bookies with a cookie."""
        return await self._set_at(self._nodes.paths.cookies, None)

    async def _set_at(self, path: str, watch: Callable[[], None] | None) -> BookieSet:
        """Return the bookies among the children; the version is the transaction that changed the set last."""
        listed = await self._nodes.children(path, watch)
        if listed is None:
            return BookieSet((), 0)
        names, stat = listed
        return BookieSet(bookies_among(names), stat.pzxid if stat.cversion else 0)

    async def info(self, bookie: BookieId) -> BookieInfo | None:
        """Return a bookie's current information; if ZooKeeper does not answer, the information as last read, so that
        writers can still reach their bookies.
        """
        known = self._infos.get(bookie)
        if known is None:
            return await self._read_info(bookie)
        try:
            async with asyncio.timeout(STALE_AFTER_S):
                return await self._read_info(bookie)
        except (TimeoutError, MetadataError):
            return known

    async def _read_info(self, bookie: BookieId) -> BookieInfo | None:
        for mode in _READ_ORDER:
            node = await self._nodes.read(self._nodes.paths.registration(bookie, mode))
            if node is not None:
                self._infos[bookie] = parse_bookie_info(bookie, node[0])
                return self._infos[bookie]
        self._infos.pop(bookie, None)
        return None

    async def _learn(self, bookies: Iterable[BookieId]) -> None:
        """Read bookies' information in advance, for times without an answer; errors are raised by a later `info`."""
        await asyncio.gather(*(self._read_info(bookie) for bookie in bookies), return_exceptions=True)
