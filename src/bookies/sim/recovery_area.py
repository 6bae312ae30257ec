"""What auto-recovery keeps in the metadata store, reached over the simulated network: see `sim/metadata.py`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from bookies.metadata.driver import Watch
from bookies.metadata.recovery import Area, Node, Vote

if TYPE_CHECKING:
    from bookies.sim.metadata import SimDriver

T = TypeVar("T")


class SimArea:
    """`metadata.recovery.Area` over that of the session behind a participant's driver."""

    def __init__(self, driver: SimDriver, inner: Area) -> None:
        self.places = inner.places
        self._driver = driver
        self._inner = inner

    @property
    def session(self) -> int | None:
        return self._inner.session

    async def read(self, place: str) -> Node | None:
        return await self._driver.call(lambda: self._inner.read(place))

    async def create(self, place: str, data: bytes) -> bool:
        return await self._driver.call(lambda: self._inner.create(place, data))

    async def write(self, place: str, data: bytes, version: int | None) -> bool:
        return await self._driver.call(lambda: self._inner.write(place, data, version))

    async def delete(self, place: str, version: int | None) -> bool:
        return await self._driver.call(lambda: self._inner.delete(place, version))

    async def hold(self, place: str, data: bytes) -> int | None:
        return await self._driver.call(lambda: self._inner.hold(place, data))

    async def release(self, place: str, session: int) -> None:
        await self._driver.call(lambda: self._inner.release(place, session))

    async def vote(self, data: bytes) -> Vote:
        return await self._driver.call(lambda: self._inner.vote(data))

    async def votes(self) -> list[Vote]:
        return await self._driver.call(self._inner.votes)

    async def own_votes(self) -> list[str]:
        return await self._driver.call(self._inner.own_votes)

    async def marks(self, page_count: int, *, with_data: bool) -> AsyncIterator[Sequence[tuple[int, Node]]]:
        pages = self._inner.marks(page_count, with_data=with_data)
        while page := await self._driver.call(lambda: _next(pages)):
            yield page

    async def locks(self) -> list[tuple[int, bytes]]:
        return await self._driver.call(self._inner.locks)

    def watch(self, place: str, callback: Callable[[], None]) -> Watch:
        return self._driver.watch_with(lambda tell: self._inner.watch(place, tell), callback)

    def watch_marks(self, callback: Callable[[], None]) -> Watch:
        return self._driver.watch_with(self._inner.watch_marks, callback)


async def _next(pages: AsyncIterator[Sequence[T]]) -> Sequence[T]:
    """The next page; an empty one at the end."""
    async for page in pages:
        return page
    return ()
