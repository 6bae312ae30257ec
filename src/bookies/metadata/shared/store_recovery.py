"""Auto-recovery's state in a store of atomic operations: nodes by place, some of them ephemeral.

Places: `marks/` and `locks/` with the ledger's id in 16 hex digits, `votes/`, and a few single ones. The store
increments the counter `WORK` whenever a ledger may have become repairable.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from bookies.errors import SessionExpired
from bookies.metadata.interface import Watch
from bookies.metadata.interface.recovery_store import AuditKind
from bookies.metadata.shared.recovery import Node, Vote

if TYPE_CHECKING:
    from bookies.metadata.shared.store import Store

T = TypeVar("T")

WORK = "work"  # changes whenever a ledger may have become repairable
MARKS, LOCKS, VOTES = "marks/", "locks/", "votes/"


def mark_of_lock(place: str) -> str | None:
    """Return the place of the mark of the ledger that a node locks; None: the node is not a lock.

    The store increments `WORK` when it creates a mark, or deletes a lock whose mark exists.
    """
    return MARKS + place.removeprefix(LOCKS) if place.startswith(LOCKS) else None


class StoreNodePaths:
    """`NodePaths` of an embedded store."""

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

    async def run(self, operation: str, function: Callable[..., T], *arguments: object) -> T: ...

    async def require_session(self) -> int: ...

    def lose_session(self, session_id: int) -> None: ...

    def watch_node(self, place: str, callback: Callable[[], None]) -> Watch: ...


class StoreNodes:
    """`NodeStore` of an embedded store."""

    def __init__(self, driver: Session, store: Store) -> None:
        self.places = StoreNodePaths()
        self._driver = driver
        self._store = store
        self._votes_count = 0

    @property
    def session(self) -> int | None:
        return self._driver.session_id

    async def read(self, place: str) -> Node | None:
        return await self._driver.run("read_node", self._store.read_node, place)

    async def create(self, place: str, data: bytes) -> bool:
        return await self._driver.run("create_node", self._store.create_node, place, data)

    async def write(self, place: str, data: bytes, version: int | None) -> bool:
        return await self._driver.run("write_node", self._store.write_node, place, data, version)

    async def delete(self, place: str, version: int | None) -> bool:
        return await self._driver.run("delete_node", self._store.delete_node, place, version)

    async def create_ephemeral(self, place: str, data: bytes) -> int | None:
        session, version = await self._create_ephemeral(place, data)
        return None if version is None else session

    async def _create_ephemeral(self, place: str, data: bytes) -> tuple[int, int | None]:
        session = await self._driver.require_session()
        try:
            return session, await self._driver.run("hold_node", self._store.hold_node, session, place, data)
        except SessionExpired:
            self._driver.lose_session(session)
            raise

    async def release(self, place: str, session: int) -> None:
        await self._driver.run("release_node", self._store.release_node, session, place)

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
        above = prefix
        while page := await self._driver.run("nodes", self._store.nodes, prefix, above, count):
            yield page
            if len(page) < count:
                return
            above = page[-1][0]

    def watch(self, place: str, callback: Callable[[], None]) -> Watch:
        return self._driver.watch_node(place, callback)

    def watch_marks(self, callback: Callable[[], None]) -> Watch:
        return self._driver.watch_node(WORK, callback)


def _votes_of(session: int) -> str:
    return f"{VOTES}{session:016x}-"
