"""A client of the ZooKeeper in memory that notes its transactions, and holds them up while a test wants it to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tests.fakes.zookeeper import FakeZooKeeper, Server

from bookies.metadata.zookeeper.zookeeper_port import Operation, Outcome


class NotedZooKeeper(FakeZooKeeper):
    """`requests`: the transactions sent, each a list of operations, in order; also those that were refused."""

    def __init__(self, server: Server) -> None:
        super().__init__(server)
        self.requests: list[Sequence[Operation]] = []
        self._may_go = asyncio.Event()
        self._may_go.set()

    def hold(self) -> None:
        """What is sent from here on waits on its way to the server."""
        self._may_go.clear()

    def release(self) -> None:
        self._may_go.set()

    async def multi(self, operations: Sequence[Operation], *, session: int | None = None) -> list[Outcome]:
        self.requests.append(list(operations))
        await self._may_go.wait()
        return await super().multi(operations, session=session)


async def settle() -> None:
    """Let everything that can go on go on."""
    for _ in range(100):
        await asyncio.sleep(0)
