"""`Tree`: the port to the znodes of a namespace, a part of the ZooKeeper port.

A `ZooKeeper` is a `Tree` as it is. `record_tree` implements the port on the named records of any other metadata store.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from bookies.metadata.zookeeper.zookeeper_port import Acl, Operation, Outcome, Stat


class Tree(Protocol):
    """Znodes with versions, changed by transactions. `ZooKeeper` documents the methods."""

    @property
    def session_id(self) -> int | None:
        """Id of the session; None: the store has no ephemeral znodes, hence no locks."""

    async def close(self) -> None: ...

    def on_session_lost(self, callback: Callable[[], None]) -> None: ...

    async def create(
        self, path: str, data: bytes, acl: Acl, *, is_ephemeral: bool = False, is_sequential: bool = False
    ) -> tuple[str, Stat]: ...

    async def get(self, path: str, *, sync: bool = False) -> tuple[bytes, Stat]: ...

    async def exists(
        self, path: str, *, sync: bool = False, watch: Callable[[], None] | None = None
    ) -> Stat | None: ...

    async def children(
        self, path: str, *, sync: bool = False, watch: Callable[[], None] | None = None
    ) -> tuple[list[str], Stat]: ...

    async def delete(self, path: str, version: int = -1, *, session: int | None = None) -> None: ...

    async def multi(self, operations: Sequence[Operation]) -> list[Outcome]: ...

    def unwatch(self, watch: Callable[[], None]) -> None: ...
