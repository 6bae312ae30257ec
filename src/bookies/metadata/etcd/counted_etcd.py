"""A client of etcd that counts its requests, see `request_counts`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bookies.metadata.etcd import etcd_port
from bookies.metadata.etcd.etcd_port import Answer, Condition, Etcd, Only
from bookies.metadata.interface.request_counts import RequestCounts


class CountedEtcd:
    """An `Etcd` whose transactions are counted. `kind_of`: returns the kind of a key."""

    def __init__(self, etcd: Etcd, operations: RequestCounts, kind_of: Callable[[str], str]) -> None:
        self.hosts = etcd.hosts
        self._etcd = etcd
        self._operations = operations
        self._kind_of = kind_of

    async def open(self) -> None:
        await self._etcd.open()

    async def close(self) -> None:
        await self._etcd.close()

    async def transact(
        self,
        conditions: Sequence[Condition],
        then: Sequence[etcd_port.Operation],
        otherwise: Sequence[etcd_port.Operation] = (),
    ) -> Answer:
        first = next(iter((*then, *otherwise)), None)
        what = "check" if first is None else f"{type(first).__name__.lower()} {self._kind_of(first.key)}"
        self._operations.count(what)
        return await self._etcd.transact(conditions, then, otherwise)

    async def grant_lease(self, ttl_s: int) -> tuple[int, int]:
        self._operations.count("grant lease")
        return await self._etcd.grant_lease(ttl_s)

    async def keep_lease(self, lease: int) -> bool:
        return await self._etcd.keep_lease(lease)

    async def revoke_lease(self, lease: int) -> None:
        self._operations.count("revoke lease")
        await self._etcd.revoke_lease(lease)

    def watch(
        self, key: str, stop: str | None, revision: int, callback: Callable[[], None], *, only: Only | None = None
    ) -> None:
        self._etcd.watch(key, stop, revision, callback, only=only)

    def unwatch(self, callback: Callable[[], None]) -> None:
        self._etcd.unwatch(callback)
