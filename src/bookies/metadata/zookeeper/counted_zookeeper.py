"""A client of ZooKeeper that counts its requests, see `request_counts`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bookies.metadata.interface.request_counts import RequestCounts
from bookies.metadata.zookeeper import zookeeper_port
from bookies.metadata.zookeeper.zookeeper_port import (
    ANY_VERSION,
    Acl,
    Create,
    Outcome,
    Stat,
    ZooKeeper,
)


class CountedZooKeeper:
    """A `ZooKeeper` whose requests are counted. `kind_of`: returns the kind of a path."""

    def __init__(self, zookeeper: ZooKeeper, operations: RequestCounts, kind_of: Callable[[str], str]) -> None:
        self.hosts = zookeeper.hosts
        self._zookeeper = zookeeper
        self._operations = operations
        self._kind_of = kind_of

    @property
    def session_id(self) -> int | None:
        return self._zookeeper.session_id

    async def open(self) -> None:
        await self._zookeeper.open()

    async def close(self) -> None:
        await self._zookeeper.close()

    def on_session_lost(self, callback: Callable[[], None]) -> None:
        self._zookeeper.on_session_lost(callback)

    def _count(self, what: str, path: str) -> None:
        self._operations.count(f"{what} {self._kind_of(path)}")

    async def create(
        self, path: str, data: bytes, acl: Acl, *, is_ephemeral: bool = False, is_sequential: bool = False
    ) -> tuple[str, Stat]:
        self._count("create", path)
        return await self._zookeeper.create(path, data, acl, is_ephemeral=is_ephemeral, is_sequential=is_sequential)

    async def get(self, path: str, *, sync: bool = False) -> tuple[bytes, Stat]:
        self._count("get", path)
        return await self._zookeeper.get(path, sync=sync)

    async def exists(self, path: str, *, sync: bool = False, watch: Callable[[], None] | None = None) -> Stat | None:
        self._count("exists" if watch is None else "watch", path)
        return await self._zookeeper.exists(path, sync=sync, watch=watch)

    async def children(
        self, path: str, *, sync: bool = False, watch: Callable[[], None] | None = None
    ) -> tuple[list[str], Stat]:
        self._count("children" if watch is None else "watch children", path)
        return await self._zookeeper.children(path, sync=sync, watch=watch)

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION, *, session: int | None = None) -> Stat:
        self._count("set", path)
        return await self._zookeeper.set(path, data, version, session=session)

    async def delete(self, path: str, version: int = ANY_VERSION, *, session: int | None = None) -> None:
        self._count("delete", path)
        await self._zookeeper.delete(path, version, session=session)

    def _count_multi(self, operations: Sequence[zookeeper_port.Operation]) -> None:
        what = "multi create" if Create in map(type, operations) else "multi"
        self._count(what, operations[-1].path)

    async def multi(
        self, operations: Sequence[zookeeper_port.Operation], *, session: int | None = None
    ) -> list[Outcome]:
        self._count_multi(operations)
        return await self._zookeeper.multi(operations, session=session)

    def start_multi(self, operations: Sequence[zookeeper_port.Operation], answer: zookeeper_port.Answer) -> None:
        self._count_multi(operations)
        self._zookeeper.start_multi(operations, answer)

    def unwatch(self, watch: Callable[[], None]) -> None:
        self._zookeeper.unwatch(watch)
