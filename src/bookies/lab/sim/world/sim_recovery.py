"""The path between a participant and the auto-recovery state in the metadata store.

The logic that the drivers share runs as the participant. Each of its requests travels to the session in the store.
Requests and replies may be lost.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from bookies.metadata.interface import Watch
from bookies.metadata.shared.recovery import Node, NodeStore, Vote

T = TypeVar("T")


class StorePath(Protocol):
    """The methods of a `SimDriver` that carry auto-recovery's requests to the store."""

    async def call(self, work: Callable[[], Awaitable[T]], then: Callable[[T], None] | None = None) -> T:
        """Perform `work` in the store. `then` is called with the result at the moment of the effect."""

    def note_recovery(self, operation: str, place: str) -> None:
        """Record that an operation has taken effect at a place of auto-recovery."""

    async def travel_back(self) -> None: ...

    def watch(self, begin: Callable[[Callable[..., None]], Watch], callback: Callable[..., None]) -> Watch: ...


class SimArea:
    """`recovery.NodeStore` over a simulated path. `inner`: that of the session in the store."""

    def __init__(self, path: StorePath, inner: NodeStore) -> None:
        self.places = inner.places
        self._path = path
        self._inner = inner

    @property
    def session(self) -> int | None:
        return self._inner.session

    def _noting(self, operation: str, place: str) -> Callable[[int | bool | None], None]:
        """Return a callback that records the operation at the moment of its effect, if it had one."""

        def note(outcome: int | bool | None) -> None:
            if outcome is not None and outcome is not False:
                self._path.note_recovery(operation, place)

        return note

    async def read(self, place: str) -> Node | None:
        return await self._path.call(lambda: self._inner.read(place))

    async def create(self, place: str, data: bytes) -> bool:
        return await self._path.call(lambda: self._inner.create(place, data))

    async def write(self, place: str, data: bytes, version: int | None) -> bool:
        return await self._path.call(lambda: self._inner.write(place, data, version))

    async def delete(self, place: str, version: int | None) -> bool:
        return await self._path.call(lambda: self._inner.delete(place, version), self._noting("delete", place))

    async def create_ephemeral(self, place: str, data: bytes) -> int | None:
        # The trace calls this "hold".
        return await self._path.call(lambda: self._inner.create_ephemeral(place, data), self._noting("hold", place))

    async def release(self, place: str, session: int) -> None:
        await self._path.call(
            lambda: self._inner.release(place, session), lambda _: self._path.note_recovery("release", place)
        )

    async def vote(self, data: bytes) -> Vote:
        return await self._path.call(lambda: self._inner.vote(data))

    async def votes(self) -> list[Vote]:
        return await self._path.call(self._inner.votes)

    async def own_votes(self) -> list[str]:
        return await self._path.call(self._inner.own_votes)

    async def marks(
        self, page_count: int, *, with_data: bool, needs: Callable[[int], bool] | None = None
    ) -> AsyncIterator[Sequence[tuple[int, Node]]]:
        async for page in self._inner.marks(page_count, with_data=with_data, needs=needs):
            await self._path.travel_back()
            yield page

    async def locks(self) -> list[tuple[int, bytes]]:
        return await self._path.call(self._inner.locks)

    async def locked_ids(self) -> list[int]:
        return await self._path.call(self._inner.locked_ids)

    def watch(self, place: str, callback: Callable[[], None]) -> Watch:
        return self._path.watch(lambda tell: self._inner.watch(place, tell), callback)

    def watch_marks(self, callback: Callable[[], None]) -> Watch:
        return self._path.watch(self._inner.watch_marks, callback)
