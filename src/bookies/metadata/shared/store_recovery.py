"""Auto-recovery's state in a store of atomic operations: nodes by place, some of them ephemeral.

Places: `marks/` and `locks/` with the ledger's id in 16 hex digits, `votes/`, and a few single ones. The version of the
key `WORK` grows whenever a ledger may have become repairable.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Protocol, TypeVar

from bookies.errors import SessionExpired
from bookies.metadata.interface import Watch
from bookies.metadata.interface.recovery_store import AuditKind
from bookies.metadata.shared.nodes import (
    LOCKS,
    MARKS,
    VOTES,
    WORK,
    At,
    Change,
    Condition,
    Delete,
    Exists,
    HeldBy,
    Item,
    Key,
    Nodes,
    Outcome,
    Put,
    Table,
)
from bookies.metadata.shared.recovery import Node, Vote

T = TypeVar("T")


class StoreRecoveryPlaces:
    """`RecoveryPlaces` of an embedded store."""

    switch = "disabled"
    delay = "delay"
    election = "auditor"

    def mark(self, ledger_id: int) -> str:
        return f"{MARKS}{ledger_id:016x}"

    def lock(self, ledger_id: int) -> str:
        return f"{LOCKS}{ledger_id:016x}"

    def checked(self, kind: AuditKind) -> str:
        return f"checked/{kind.value}"


class Session(Protocol):
    """The part of the driver that `StoreNodes` uses."""

    session_id: int | None

    async def run(
        self, operation: str, function: Callable[..., T], *arguments: object, counted_as: str | None = None
    ) -> T: ...

    async def require_session(self) -> int: ...

    def lose_session(self, session_id: int) -> None: ...

    def watch_node(self, place: str, callback: Callable[[], None]) -> Watch: ...


class StoreNodes:
    """`NodeStore` of an embedded store."""

    def __init__(self, driver: Session, store: Nodes) -> None:
        self.places = StoreRecoveryPlaces()
        self._driver = driver
        self._store = store
        self._votes_count = 0

    @property
    def session(self) -> int | None:
        return self._driver.session_id

    async def read(self, place: str) -> Node | None:
        items = await self._run("read_node", place, self._store.get, [_key(place)])
        return items[0]

    async def create(self, place: str, data: bytes) -> bool:
        key = _key(place)
        return (await self._commit("create_node", [At(key, 0)], Put(key, data))).is_done

    async def write(self, place: str, data: bytes, version: int | None) -> bool:
        key = _key(place)
        conditions = [] if version is None else [At(key, version)]
        return (await self._commit("write_node", conditions, Put(key, data))).is_done

    async def delete(self, place: str, version: int | None) -> bool:
        key = _key(place)
        condition = Exists(key) if version is None else At(key, version)
        return (await self._commit("delete_node", [condition], Delete(key))).is_done

    async def create_ephemeral(self, place: str, data: bytes) -> int | None:
        session, version = await self._create_ephemeral(place, data)
        return None if version is None else session

    async def _create_ephemeral(self, place: str, data: bytes) -> tuple[int, int | None]:
        """Return the session, and the version of its node at the place; None: another session's node is there."""
        session, key = await self._driver.require_session(), _key(place)
        try:
            outcome = await self._commit("hold_node", [At(key, 0)], Put(key, data, session))
        except SessionExpired:
            self._driver.lose_session(session)
            raise
        item = Item(data, outcome.version, session) if outcome.is_done else outcome.items[0]
        return session, item.version if item is not None and item.session == session else None

    async def release(self, place: str, session: int) -> None:
        key = _key(place)
        await self._commit("release_node", [HeldBy(key, session)], Delete(key))

    async def _run(self, operation: str, place: str, function: Callable[..., T], *arguments: object) -> T:
        """Run an operation of the store, counted under its name and the kind of node."""
        kind = place.partition("/")[0]
        return await self._driver.run(operation, function, *arguments, counted_as=f"{operation} {kind}")

    async def _commit(self, operation: str, conditions: Sequence[Condition], change: Change) -> Outcome:
        return await self._run(operation, str(change.key.name), self._store.commit, conditions, [change])

    async def vote(self, data: bytes) -> Vote:
        self._votes_count += 1
        place = f"{_votes_of(await self._driver.require_session())}{self._votes_count}"
        _, version = await self._create_ephemeral(place, data)
        if version is None:
            raise SessionExpired("the session with the metadata store was lost during the vote")
        return Vote(version, place)

    async def votes(self) -> list[Vote]:
        votes = [Vote(node.version, place) async for page in self._pages(VOTES, 1000) for place, node in page]
        return sorted(votes, key=lambda vote: vote.number)

    async def own_votes(self) -> list[str]:
        session = self._driver.session_id
        own = None if session is None else _votes_of(session)
        return [vote.place for vote in await self.votes() if own is not None and vote.place.startswith(own)]

    async def marks(
        self, page_count: int, *, with_data: bool, needs: Callable[[int], bool] | None = None
    ) -> AsyncIterator[Sequence[tuple[int, Node]]]:
        async for page in self._pages(MARKS, page_count):
            yield [(int(place.removeprefix(MARKS), 16), node) for place, node in page]

    async def locks(self) -> list[tuple[int, bytes]]:
        return [
            (int(place.removeprefix(LOCKS), 16), node.data)
            async for page in self._pages(LOCKS, 1000)
            for place, node in page
        ]

    async def locked_ids(self) -> list[int]:
        return [ledger_id for ledger_id, _ in await self.locks()]

    async def _pages(self, prefix: str, count: int) -> AsyncIterator[Sequence[tuple[str, Node]]]:
        after: str | None = None
        while True:
            page = await self._run("nodes", prefix, self._store.list, Table.NODES, prefix, after, count)
            if page.items:
                yield [(str(name), item) for name, item in page.items]
            if len(page.items) < count:
                return
            after = str(page.items[-1][0])

    def watch(self, place: str, callback: Callable[[], None]) -> Watch:
        return self._driver.watch_node(place, callback)

    def watch_marks(self, callback: Callable[[], None]) -> Watch:
        return self._driver.watch_node(str(WORK.name), callback)


def _key(place: str) -> Key:
    return Key(Table.NODES, place)


def _votes_of(session: int) -> str:
    return f"{VOTES}{session:016x}-"
