"""Auto-recovery's state in ZooKeeper, in Apache's znodes. Source: metadata 2.1, 2.4 and 8.

A mark is four directories deep, each mark in a directory of its own; directories that become empty are deleted with the
mark. Watches for work are on lists of children: of the directories above those of the marks, and of the locks. Only
directories whose list has changed are read again.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import NamedTuple

from bookies.errors import SessionExpired
from bookies.metadata.formats.recovery_formats import LAYOUT, check_layout, ledger_of
from bookies.metadata.interface import Watch
from bookies.metadata.interface.recovery_store import UNREAD
from bookies.metadata.interface.watches import NEVER_SEEN
from bookies.metadata.shared.marks_watch import MarksWatch
from bookies.metadata.shared.observers import Observers
from bookies.metadata.shared.recovery import Node, Vote
from bookies.metadata.zookeeper.zk_layout import MARK_DEPTH, RecoveryPaths, mark_directories, parent_of
from bookies.metadata.zookeeper.zk_nodes import ZkNodes
from bookies.metadata.zookeeper.zookeeper_port import (
    Acl,
    Create,
    Delete,
    NodeExists,
    NodeMissing,
    NotEmpty,
    OutcomeUnknown,
    WrongVersion,
)
from bookies.runtime.tasks import Tasks, all_of

AT_ONCE = 64  # reads in flight


class ZkNodeStore:
    """`NodeStore` of ZooKeeper. `sessions_lost`: returns how often the session was lost. `use_session`: called before
    a node is created that ends with the session.
    """

    def __init__(
        self,
        nodes: ZkNodes,
        sessions_lost: Callable[[], int],
        use_session: Callable[[], None],
        tasks: Callable[[], Tasks],
        observers: Callable[[], Observers],
    ) -> None:
        self.places: RecoveryPaths = nodes.paths.recovery
        self._nodes = nodes
        self._zookeeper = nodes.zookeeper
        self._sessions_lost = sessions_lost
        self._use_session = use_session
        self._tasks = tasks
        self._observers = observers
        self._last_session: tuple[int, int] | None = None  # with the number of sessions lost before it
        self._is_layout_checked = False
        self._has_directories = False

    @property
    def session(self) -> int | None:
        """The current session, also without a connection, until the session is known to be lost."""
        present, lost = self._zookeeper.session_id, self._sessions_lost()
        if present is not None:
            self._last_session = (present, lost)
        last = self._last_session
        return last[0] if last is not None and last[1] == lost else None

    async def _check_layout(self) -> bool:
        """Check the LAYOUT of auto-recovery; False: there is none. Raises `MetadataCorrupt` for an unknown layout."""
        if not self._is_layout_checked:
            layout = await self._nodes.read(self.places.layout)
            if layout is not None:
                check_layout(layout[0])
                self._is_layout_checked = True
        return self._is_layout_checked

    async def _ensure_directories(self) -> None:
        """Create the LAYOUT and the directories, as every client does before a change."""
        while not await self._check_layout():
            try:
                await self._nodes.repeat(lambda: self._nodes.create(self.places.layout, LAYOUT))
            except NodeExists:
                continue
        if not self._has_directories:
            await self._nodes.ensure(self.places.marks)
            await self._nodes.ensure(self.places.locks)
            self._has_directories = True

    # -- nodes ---------------------------------------------------------------------------------------------------
    async def read(self, place: str) -> Node | None:
        await self._check_layout()
        znode = await self._nodes.read(place)
        return None if znode is None else Node(znode[0], znode[1].mzxid)

    async def create(self, place: str, data: bytes) -> bool:
        await self._ensure_directories()
        return await self._create(place, data)

    async def _create(self, place: str, data: bytes) -> bool:
        is_unsure = False
        while True:
            try:
                if place.startswith(self.places.marks):
                    await self._create_mark(place, data)
                else:  # Source: metadata 2.5
                    await self._nodes.create(place, data, Acl.OPEN if place == self.places.delay else None)
            except NodeExists:
                return is_unsure and await self._has(place, data)
            except (OutcomeUnknown, SessionExpired):
                is_unsure = True
            else:
                return True

    async def _create_mark(self, place: str, data: bytes) -> None:
        """Create a mark together with its directory, which is usually missing, in one request.

        Raises `NodeExists` if there is a mark.
        """
        directory, acl = parent_of(place), self._nodes.acl
        while True:
            try:
                await self._zookeeper.multi([Create(directory, b"", acl), Create(place, data, acl)])
                return
            except NodeMissing:
                await self._nodes.ensure(parent_of(directory))
                continue
            except NodeExists:
                pass  # The directory exists.
            with contextlib.suppress(NodeMissing):  # The directory was deleted at this moment.
                await self._zookeeper.create(place, data, acl)
                return

    async def _has(self, place: str, data: bytes) -> bool:
        znode = await self._nodes.read(place)
        return znode is not None and znode[0] == data

    async def write(self, place: str, data: bytes, version: int | None) -> bool:
        await self._ensure_directories()
        is_unsure = False
        while True:
            stat = await self._nodes.stat(place)
            if version is None and stat is None and await self._create(place, data):
                return True
            if version is not None and (stat is None or stat.mzxid != version):
                return is_unsure and await self._has(place, data)
            if stat is None:
                continue
            try:
                await self._zookeeper.set(place, data, stat.version)
            except (NodeMissing, WrongVersion):
                continue  # The next read determines the reason.
            except (OutcomeUnknown, SessionExpired):
                is_unsure = True
            else:
                return True

    async def delete(self, place: str, version: int | None) -> bool:
        """Delete a znode, see `NodeStore.delete`.

        A znode that is deleted and recreated between the check and the deletion is deleted too, if ZooKeeper's own
        version is equal. It is 0 for every new mark. Therefore every check is synchronized: the server may not have
        applied an earlier attempt yet. Between check and deletion the lock protects a mark, so the deletion is only
        sent in the session of the check. Without the lock only a restore of the metadata deletes marks.
        """
        await self._check_layout()
        is_ours = False  # a deletion of ours may have succeeded
        while True:
            session = self._zookeeper.session_id
            stat = await self._nodes.stat(place)
            if stat is None:
                return is_ours
            if version not in (None, stat.mzxid):
                return False
            try:
                await self._delete(place, stat.version, session)
            except (NodeMissing, WrongVersion, SessionExpired):
                continue  # The next read determines the reason.
            except OutcomeUnknown:
                is_ours = True
            else:
                return True

    async def _delete(self, place: str, version: int, session: int | None) -> None:
        """Delete a znode; a mark together with its directory, which usually has no other child, and empty parents."""
        if not place.startswith(self.places.marks):
            await self._zookeeper.delete(place, version, session=session)
            return
        directory = parent_of(place)
        try:
            await self._zookeeper.multi([Delete(place, version), Delete(directory)], session=session)
        except NotEmpty:
            await self._zookeeper.delete(place, version, session=session)
        else:
            await self._nodes.remove_empty_parents(directory, self.places.marks)

    # -- ephemeral nodes -----------------------------------------------------------------------------------------
    async def create_ephemeral(self, place: str, data: bytes) -> int | None:
        self._use_session()
        await self._ensure_directories()
        while True:
            try:
                _, created = await self._nodes.create(place, data, is_ephemeral=True)
                return created.owner
            except NodeExists:
                stat = await self._nodes.stat(place)
                return stat.owner if stat is not None and stat.owner == self.session else None
            except OutcomeUnknown:
                continue  # The next attempt determines the outcome.

    async def release(self, place: str, session: int) -> None:
        # Synchronized: a server that has not applied an earlier attempt shows a deleted lock, or misses one of ours.
        stat = await self._nodes.stat(place)
        if stat is not None and stat.owner == session:
            try:
                await self._zookeeper.delete(place, session=session)
            except (NodeMissing, SessionExpired):
                pass  # The znode is deleted, or ended with its session.

    async def vote(self, data: bytes) -> Vote:
        self._use_session()
        await self._ensure_directories()
        place, _ = await self._nodes.create(self.places.vote_prefix, data, is_ephemeral=True, is_sequential=True)
        return Vote(int(place.removeprefix(self.places.vote_prefix)), place)

    async def votes(self) -> list[Vote]:
        listed = await self._nodes.children(self.places.election)
        names = [] if listed is None else listed[0]
        numbers = [(self.places.vote_number(name), f"{self.places.election}/{name}") for name in names]
        return [Vote(number, place) for number, place in sorted((n, p) for n, p in numbers if n is not None)]

    async def own_votes(self) -> list[str]:
        places = [vote.place for vote in await self.votes()]
        stats = await all_of(self._nodes.stat(place) for place in places)
        return [
            place
            for place, stat in zip(places, stats, strict=True)
            if stat is not None and stat.owner and stat.owner == self.session
        ]

    # -- lists ---------------------------------------------------------------------------------------------------
    async def marks(
        self, page_count: int, *, with_data: bool, needs: Callable[[int], bool] | None = None
    ) -> AsyncIterator[Sequence[tuple[int, Node]]]:
        await self._check_layout()
        await self._nodes.stat(self.places.marks)  # synchronizes: the following reads are not older
        page: list[tuple[int, Node]] = []
        async for directories in self._below([self.places.marks], MARK_DEPTH):
            for at in range(0, len(directories), AT_ONCE):
                ledger_ids = [self.places.marked_in(directory) for directory in directories[at : at + AT_ONCE]]
                nodes = await all_of(
                    self._leaf(ledger_id, with_data=with_data, needs=needs) for ledger_id in ledger_ids
                )
                page += [
                    (ledger_id, node) for ledger_id, node in zip(ledger_ids, nodes, strict=True) if node is not None
                ]
                if len(page) >= page_count:
                    yield page
                    page = []
        if page:
            yield page

    async def _leaf(self, ledger_id: int, *, with_data: bool, needs: Callable[[int], bool] | None) -> Node | None:
        if needs is not None and not needs(ledger_id):
            return Node(b"", UNREAD)
        path = self.places.mark(ledger_id)
        if not with_data:
            mark_stat = await self._nodes.repeat(lambda: self._zookeeper.exists(path))
            return None if mark_stat is None else Node(b"", mark_stat.mzxid)
        try:
            data, stat = await self._nodes.repeat(lambda: self._zookeeper.get(path))
        except NodeMissing:
            return None
        return Node(data, stat.mzxid)

    async def _below(self, parents: Sequence[str], depth: int) -> AsyncIterator[Sequence[str]]:
        """Yield the directories `depth` levels below, in order, in batches."""
        if depth == 0:
            yield parents
            return
        for at in range(0, len(parents), AT_ONCE):
            batch = parents[at : at + AT_ONCE]
            lists = await all_of(self._children(parent) for parent in batch)
            children = [
                f"{parent}/{child}"
                for parent, names in zip(batch, lists, strict=True)
                for child in mark_directories(names)
            ]
            async for directories in self._below(children, depth - 1):
                yield directories

    async def _children(self, path: str) -> list[str]:
        try:
            return (await self._nodes.repeat(lambda: self._zookeeper.children(path)))[0]
        except NodeMissing:
            return []  # Emptied meanwhile.

    async def locked_ids(self) -> list[int]:
        listed = await self._nodes.children(self.places.locks)
        ledger_ids = map(ledger_of, listed[0] if listed is not None else [])
        return [ledger_id for ledger_id in ledger_ids if ledger_id is not None]

    async def locks(self) -> list[tuple[int, bytes]]:
        ledger_ids = await self.locked_ids()
        locks: list[tuple[int, bytes]] = []
        for at in range(0, len(ledger_ids), AT_ONCE):
            batch = ledger_ids[at : at + AT_ONCE]
            nodes = await all_of(self._nodes.read(self.places.lock(ledger_id)) for ledger_id in batch)
            locks += [(ledger_id, node[0]) for ledger_id, node in zip(batch, nodes, strict=True) if node is not None]
        return locks

    # -- watches -------------------------------------------------------------------------------------------------
    def watch(self, place: str, callback: Callable[[], None]) -> Watch:
        return self._observers().record(place, NEVER_SEEN, callback)

    def watch_marks(self, callback: Callable[[], None]) -> Watch:
        return _TreeWatch(self._nodes, self.places, self._tasks(), callback)


class _List(NamedTuple):
    """A directory's children as listed last. `changes`: number of creations and deletions of children until then."""

    names: frozenset[str] = frozenset()
    changes: int = 0


class _TreeWatch(MarksWatch):
    """The watch of marks and locks, see the module.

    A mark's own directory is not listed: it is created and deleted with the mark.

    If an empty directory was left behind, a new mark in it is not noticed by this watch, only by the next listing.
    """

    def __init__(self, nodes: ZkNodes, places: RecoveryPaths, tasks: Tasks, callback: Callable[[], None]) -> None:
        self._nodes = nodes
        self._places = places
        self._lists: dict[str, _List] = {}  # by path: the locks, and the directories above those of marks
        self._watches: dict[str, Callable[[], None]] = {}
        self._changed: dict[str, None] = {places.marks: None, places.locks: None}
        super().__init__(tasks, callback)

    async def _check(self) -> None:
        while self._changed:
            # The locks last: the marks are known by then, so most released locks need no request.
            directories = [path for path in self._changed if path != self._places.locks]
            await all_of(map(self._list, directories[:AT_ONCE] or [self._places.locks]))

    async def _list(self, path: str) -> None:
        """List one directory; new directories below it are listed next."""
        watch = self._watches.setdefault(path, partial(self._hear, path))
        self._changed.pop(path)
        try:
            if path in (self._places.marks, self._places.locks):
                listed = await self._nodes.children(path, watch)
            else:
                listed = await self._nodes.repeat(lambda: self._nodes.zookeeper.children(path, watch=watch))
        except NodeMissing:
            self._forget(path)
        except BaseException:
            self._changed[path] = None
            raise
        else:
            names, changes = ([], 0) if listed is None else (listed[0], listed[1].cversion)
            await self._update(path, names, changes)

    async def _update(self, path: str, names: Sequence[str], changes: int) -> None:
        if path == self._places.locks:
            await self._update_locks(frozenset(names), changes)
        elif path.removeprefix(self._places.marks).count("/") < MARK_DEPTH - 1:
            below = [f"{path}/{name}" for name in mark_directories(names)]
            self._changed |= {directory: None for directory in below if directory not in self._watches}
        else:
            before = self._lists.get(path)
            self._lists[path] = now = _List(frozenset(names), changes)
            added = now.names if before is None else now.names - before.names
            self.is_work |= bool(added) or (before is not None and not _explains_all(before, now))

    async def _update_locks(self, names: frozenset[str], changes: int) -> None:
        """Set `is_work` if a marked ledger was unlocked, or a lock was created and deleted since the last listing."""
        before = self._lists.get(self._places.locks, _List())
        now = _List(names, changes)
        freed = [ledger_id for ledger_id in map(ledger_of, sorted(before.names - names)) if ledger_id is not None]
        possible = [ledger_id for ledger_id in freed if self._may_be_marked(ledger_id)]
        marks = await all_of(self._nodes.stat(self._places.mark(ledger_id)) for ledger_id in possible)
        self.is_work |= not _explains_all(before, now) or any(mark is not None for mark in marks)
        self._lists[self._places.locks] = now

    def _may_be_marked(self, ledger_id: int) -> bool:
        above, _, name = parent_of(self._places.mark(ledger_id)).rpartition("/")
        return name in self._lists.get(above, _List()).names

    def _forget(self, path: str) -> None:
        self._lists.pop(path, None)
        self._nodes.zookeeper.unwatch(self._watches.pop(path))

    def _hear(self, path: str) -> None:
        if path in self._watches:
            self._changed[path] = None
            self.news.set()

    def _end(self) -> None:
        for path in list(self._watches):
            self._forget(path)


def _explains_all(before: _List, now: _List) -> bool:
    """Report whether the two lists show every change: no child was created and deleted in between."""
    return now.changes - before.changes == len(before.names ^ now.names)
