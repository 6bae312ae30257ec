"""Auto-recovery's state in ZooKeeper, in Apache's znodes. Source: metadata 2.1, 2.4 and 8.

A mark is four directories deep, each mark in a directory of its own; what is left empty goes with the mark. Watches for
work are on the lists of children: of the directories above those of the marks, and of the locks. Only directories whose
list has changed are read again.
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
from bookies.metadata.zookeeper.zk_nodes import Nodes
from bookies.metadata.zookeeper.zookeeper_port import (
    Acl,
    Create,
    Delete,
    NodeExists,
    NodeMissing,
    NotEmpty,
    OutcomeUnknown,
    Stat,
    WrongVersion,
)
from bookies.runtime.tasks import Tasks, all_of

AT_ONCE = 64  # reads under way


class RecoveryArea:
    """See `recovery.NodeStore`. `sessions_lost`: how often the session was lost. `use_session`: from now on something
    depends on it.
    """

    def __init__(
        self,
        nodes: Nodes,
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
        self._last_session: tuple[int, int] | None = None  # and how many were lost before it
        self._is_checked = False
        self._is_made = False

    @property
    def session(self) -> int | None:
        """Also while there is no connection, until the session is known to be lost."""
        present, lost = self._zookeeper.session_id, self._sessions_lost()
        if present is not None:
            self._last_session = (present, lost)
        last = self._last_session
        return last[0] if last is not None and last[1] == lost else None

    async def _check(self) -> bool:
        """Whether somebody has said what is how here. Raises `MetadataCorrupt` if it is not as we know it."""
        if not self._is_checked:
            found = await self._nodes.read(self.places.layout)
            if found is not None:
                check_layout(found[0])
                self._is_checked = True
        return self._is_checked

    async def _make(self) -> None:
        """What everybody makes who changes something here."""
        while not await self._check():
            try:
                await self._nodes.repeat(lambda: self._nodes.create(self.places.layout, LAYOUT))
            except NodeExists:
                continue
        if not self._is_made:
            await self._nodes.ensure(self.places.marks)
            await self._nodes.ensure(self.places.locks)
            self._is_made = True

    # -- nodes ---------------------------------------------------------------------------------------------------
    async def read(self, place: str) -> Node | None:
        await self._check()
        found = await self._nodes.read(place)
        return None if found is None else Node(found[0], found[1].mzxid)

    async def create(self, place: str, data: bytes) -> bool:
        await self._make()
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
        """With its directory, which is missing as a rule, in one request. Raises `NodeExists` if there is a mark."""
        directory, acl = parent_of(place), self._nodes.acl
        while True:
            try:
                await self._zookeeper.multi([Create(directory, b"", acl), Create(place, data, acl)])
                return
            except NodeMissing:
                await self._nodes.ensure(parent_of(directory))
                continue
            except NodeExists:
                pass  # The directory.
            with contextlib.suppress(NodeMissing):  # It went at this moment.
                await self._zookeeper.create(place, data, acl)
                return

    async def _has(self, place: str, data: bytes) -> bool:
        found = await self._nodes.read(place)
        return found is not None and found[0] == data

    async def write(self, place: str, data: bytes, version: int | None) -> bool:
        await self._make()
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
                continue  # Looking again tells.
            except (OutcomeUnknown, SessionExpired):
                is_unsure = True
            else:
                return True

    async def delete(self, place: str, version: int | None) -> bool:
        """A znode that is deleted and made anew between our look and the deletion goes too, if it has the same version
        by ZooKeeper's count. Nobody but who holds the lock deletes a mark.
        """
        await self._check()
        is_ours = False  # a deletion of ours may have succeeded
        look = self._stat if version is not None else self._nodes.stat  # who names a version has seen it
        while (stat := await look(place)) is not None:
            if version not in (None, stat.mzxid):
                return False
            try:
                await self._delete(place, stat.version)
            except (NodeMissing, WrongVersion):
                continue  # Looking again tells.
            except (OutcomeUnknown, SessionExpired):
                is_ours = True
            else:
                return True
        return is_ours

    async def _stat(self, place: str) -> Stat | None:
        """Not older than what we have seen or done before; others may have changed it."""
        return await self._nodes.repeat(lambda: self._zookeeper.exists(place))

    async def _delete(self, place: str, version: int) -> None:
        """A mark with its directory, in which it is alone as a rule, and what is empty above."""
        if not place.startswith(self.places.marks):
            await self._zookeeper.delete(place, version)
            return
        directory = parent_of(place)
        try:
            await self._zookeeper.multi([Delete(place, version), Delete(directory)])
        except NotEmpty:
            await self._zookeeper.delete(place, version)
        else:
            await self._nodes.remove_empty_parents(directory, self.places.marks)

    # -- what goes with the session ------------------------------------------------------------------------------
    async def hold(self, place: str, data: bytes) -> int | None:
        self._use_session()
        await self._make()
        while True:
            try:
                _, made = await self._nodes.create(place, data, is_ephemeral=True)
                return made.owner
            except NodeExists:
                stat = await self._nodes.stat(place)
                return stat.owner if stat is not None and stat.owner == self.session else None
            except OutcomeUnknown:
                continue  # What is there then tells.

    async def release(self, place: str, session: int) -> None:
        stat = await self._stat(place)
        if stat is not None and stat.owner == session:
            try:
                await self._zookeeper.delete(place, session=session)
            except (NodeMissing, SessionExpired):
                pass  # It is gone.

    async def vote(self, data: bytes) -> Vote:
        self._use_session()
        await self._make()
        place, _ = await self._nodes.create(self.places.vote_prefix, data, is_ephemeral=True, is_sequential=True)
        return Vote(int(place.removeprefix(self.places.vote_prefix)), place)

    async def votes(self) -> list[Vote]:
        found = await self._nodes.children(self.places.election)
        names = [] if found is None else found[0]
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
        await self._check()
        await self._nodes.stat(self.places.marks)  # synchronizes: what comes now is not older
        page: list[tuple[int, Node]] = []
        async for directories in self._below([self.places.marks], MARK_DEPTH):
            for at in range(0, len(directories), AT_ONCE):
                ledger_ids = [self.places.marked_in(each) for each in directories[at : at + AT_ONCE]]
                found = await all_of(self._leaf(each, with_data=with_data, needs=needs) for each in ledger_ids)
                page += [(each, node) for each, node in zip(ledger_ids, found, strict=True) if node is not None]
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
            found = await self._nodes.repeat(lambda: self._zookeeper.exists(path))
            return None if found is None else Node(b"", found.mzxid)
        try:
            data, stat = await self._nodes.repeat(lambda: self._zookeeper.get(path))
        except NodeMissing:
            return None
        return Node(data, stat.mzxid)

    async def _below(self, parents: Sequence[str], depth: int) -> AsyncIterator[Sequence[str]]:
        """Directories so many levels below, in order, some at a time."""
        if depth == 0:
            yield parents
            return
        for at in range(0, len(parents), AT_ONCE):
            some = parents[at : at + AT_ONCE]
            found = await all_of(self._children(each) for each in some)
            children = [
                f"{parent}/{child}"
                for parent, names in zip(some, found, strict=True)
                for child in mark_directories(names)
            ]
            async for each in self._below(children, depth - 1):
                yield each

    async def _children(self, path: str) -> list[str]:
        try:
            return (await self._nodes.repeat(lambda: self._zookeeper.children(path)))[0]
        except NodeMissing:
            return []  # Emptied meanwhile.

    async def locked_ids(self) -> list[int]:
        found = await self._nodes.children(self.places.locks)
        return [each for each in map(ledger_of, found[0] if found is not None else []) if each is not None]

    async def locks(self) -> list[tuple[int, bytes]]:
        ledger_ids = await self.locked_ids()
        locks: list[tuple[int, bytes]] = []
        for at in range(0, len(ledger_ids), AT_ONCE):
            some = ledger_ids[at : at + AT_ONCE]
            data = await all_of(self._nodes.read(self.places.lock(each)) for each in some)
            locks += [(each, read[0]) for each, read in zip(some, data, strict=True) if read is not None]
        return locks

    # -- watches -------------------------------------------------------------------------------------------------
    def watch(self, place: str, callback: Callable[[], None]) -> Watch:
        return self._observers().record(place, NEVER_SEEN, callback)

    def watch_marks(self, callback: Callable[[], None]) -> Watch:
        return _TreeWatch(self._nodes, self.places, self._tasks(), callback)


class _List(NamedTuple):
    """The children of a directory when they were listed last, and how many had come or gone until then."""

    names: frozenset[str] = frozenset()
    changes: int = 0


class _TreeWatch(MarksWatch):
    """See the module. A directory of a mark is not looked into: the mark comes and goes with it.

    One that was left empty, and into which somebody puts a mark, is not noticed; the next listing of the marks is.
    """

    def __init__(self, nodes: Nodes, places: RecoveryPaths, tasks: Tasks, callback: Callable[[], None]) -> None:
        self._nodes = nodes
        self._places = places
        self._lists: dict[str, _List] = {}  # of the locks, and of the directories above those of marks
        self._watches: dict[str, Callable[[], None]] = {}
        self._changed: dict[str, None] = {places.marks: None, places.locks: None}
        super().__init__(tasks, callback)

    async def _look(self) -> None:
        while self._changed:
            # The locks last: with what is known of the marks by then, most that are free need no request.
            directories = [each for each in self._changed if each != self._places.locks]
            await all_of(map(self._look_at, directories[:AT_ONCE] or [self._places.locks]))

    async def _look_at(self, path: str) -> None:
        """One directory; what is new below is to be looked at, too."""
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
            await self._saw(path, names, changes)

    async def _saw(self, path: str, names: Sequence[str], changes: int) -> None:
        if path == self._places.locks:
            await self._saw_locks(frozenset(names), changes)
        elif path.removeprefix(self._places.marks).count("/") < MARK_DEPTH - 1:
            below = [f"{path}/{name}" for name in mark_directories(names)]
            self._changed |= {each: None for each in below if each not in self._watches}
        else:
            before = self._lists.get(path)
            self._lists[path] = now = _List(frozenset(names), changes)
            came = now.names if before is None else now.names - before.names
            self.is_work |= bool(came) or (before is not None and not _is_all(before, now))

    async def _saw_locks(self, names: frozenset[str], changes: int) -> None:
        """There is work where a marked ledger is free again, or a lock has come and gone since we looked last."""
        before = self._lists.get(self._places.locks, _List())
        now = _List(names, changes)
        freed = [each for each in map(ledger_of, sorted(before.names - names)) if each is not None]
        marks = await all_of(self._nodes.stat(self._places.mark(each)) for each in freed if self._may_be_marked(each))
        self.is_work |= not _is_all(before, now) or any(mark is not None for mark in marks)
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


def _is_all(before: _List, now: _List) -> bool:
    """Whether nothing has come and gone in between."""
    return now.changes - before.changes == len(before.names ^ now.names)
