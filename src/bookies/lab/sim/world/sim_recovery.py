"""The way between a participant and what auto-recovery keeps in the metadata store.

The logic that the drivers share runs as the participant; each of its requests travels to the session in the store, may
be lost on the way, and its answer on the way back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from bookies.metadata.interface import Watch
from bookies.metadata.shared.recovery import Node, NodeStore, Vote

T = TypeVar("T")


class Way(Protocol):
    """Of a `SimDriver`."""

    async def call(self, work: Callable[[], Awaitable[T]], then: Callable[[T], None] | None = None) -> T:
        """`then` sees the result at the moment of the effect."""

    def note_recovery(self, what: str, place: str) -> None:
        """Something has had its effect at a place of auto-recovery."""

    async def travel_back(self) -> None: ...

    def watch(self, begin: Callable[[Callable[..., None]], Watch], callback: Callable[..., None]) -> Watch: ...


class SimArea:
    """See `recovery.NodeStore`. `inner`: of the session in the store."""

    def __init__(self, way: Way, inner: NodeStore) -> None:
        self.places = inner.places
        self._way = way
        self._inner = inner

    @property
    def session(self) -> int | None:
        return self._inner.session

    def _noting(self, what: str, place: str) -> Callable[[int | bool | None], None]:
        """What to do at the moment of the effect, if there was one."""

        def note(outcome: int | bool | None) -> None:
            if outcome is not None and outcome is not False:
                self._way.note_recovery(what, place)

        return note

    async def read(self, place: str) -> Node | None:
        return await self._way.call(lambda: self._inner.read(place))

    async def create(self, place: str, data: bytes) -> bool:
        return await self._way.call(lambda: self._inner.create(place, data))

    async def write(self, place: str, data: bytes, version: int | None) -> bool:
        return await self._way.call(lambda: self._inner.write(place, data, version))

    async def delete(self, place: str, version: int | None) -> bool:
        return await self._way.call(lambda: self._inner.delete(place, version), self._noting("delete", place))

    async def create_ephemeral(self, place: str, data: bytes) -> int | None:
        # The trace calls this "hold".
        return await self._way.call(lambda: self._inner.create_ephemeral(place, data), self._noting("hold", place))

    async def release(self, place: str, session: int) -> None:
        await self._way.call(
            lambda: self._inner.release(place, session), lambda _: self._way.note_recovery("release", place)
        )

    async def vote(self, data: bytes) -> Vote:
        return await self._way.call(lambda: self._inner.vote(data))

    async def votes(self) -> list[Vote]:
        return await self._way.call(self._inner.votes)

    async def own_votes(self) -> list[str]:
        return await self._way.call(self._inner.own_votes)

    async def marks(
        self, page_count: int, *, with_data: bool, needs: Callable[[int], bool] | None = None
    ) -> AsyncIterator[Sequence[tuple[int, Node]]]:
        async for page in self._inner.marks(page_count, with_data=with_data, needs=needs):
            await self._way.travel_back()
            yield page

    async def locks(self) -> list[tuple[int, bytes]]:
        return await self._way.call(self._inner.locks)

    async def locked_ids(self) -> list[int]:
        return await self._way.call(self._inner.locked_ids)

    def watch(self, place: str, callback: Callable[[], None]) -> Watch:
        return self._way.watch(lambda tell: self._inner.watch(place, tell), callback)

    def watch_marks(self, callback: Callable[[], None]) -> Watch:
        return self._way.watch(self._inner.watch_marks, callback)
