"""Client processes in roles, one after the other: each runs until its work is done or it is killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from bookies.errors import BookKeeperError
from bookies.lab.sim.checkers import History
from bookies.lab.sim.clients.plan import Settings
from bookies.lab.sim.world import SimClient, SimCluster

Act = Callable[[SimClient], Coroutine[Any, Any, None]]


class Roles:
    """Base of every workload: runs clients in roles. `is_replaced`: after a client has ended, the next one starts."""

    def __init__(self, cluster: SimCluster, history: History, random: Random, *, is_replaced: bool = True) -> None:
        self.cluster = cluster
        self.history = history
        self.random = random
        self.is_replaced = is_replaced
        self.is_stopping = False
        self.healed = asyncio.Event()  # all faults have ended
        self._tasks: list[asyncio.Task[None]] = []

    def stop(self) -> None:
        """Let every client finish its current work and start no more."""
        self.is_stopping = True

    async def finish(self) -> None:
        """Wait until every client has finished. Requires `stop` before if clients are replaced."""
        assert self.is_stopping or not self.is_replaced
        for task in self._tasks:
            await asyncio.shield(task)

    def nudge(self) -> None:
        """Let planned actions that wait for their time begin now."""

    async def departed(self, client: SimClient) -> None:
        """React to the orderly close of a client. Called as its participant."""

    async def sleep(self, mean_ms: float) -> None:
        await asyncio.sleep(self.random.expovariate(1 / mean_ms) / 1000)

    def fill(self, role: str, count: int, act: Act, choices: tuple[Settings, ...] = ()) -> list[asyncio.Task[None]]:
        """Start `count` clients in a role and return the role's tasks. `choices`: each client takes one of them."""
        tasks = []
        for number in range(1, count + 1):
            slot = self.keep_running(f"{role}{number}", act, choices)
            tasks.append(asyncio.get_running_loop().create_task(slot, name=f"{role}{number}"))
        self._tasks += tasks
        return tasks

    async def keep_running(self, role: str, act: Act, choices: tuple[Settings, ...] = ()) -> None:
        """Run one client after the other in a role, each until it has done its work or is killed."""
        life = 0
        while not self.is_stopping:
            life += 1
            settings = {**self.cluster.client_settings, **self.random.choice(choices)} if choices else None
            client = self.cluster.new_client(f"{role}.{life}", settings)
            over = asyncio.get_running_loop().create_future()

            def end(*_: object, over: asyncio.Future[None] = over) -> None:
                if not over.done():
                    over.set_result(None)

            client.participant.on_kill(end)
            task = client.participant.create_task(self._live(client, act), name=f"{role}.{life}")
            task.add_done_callback(end, context=self.cluster.loop.world.copy())
            await over
            if not self.is_replaced:
                return
            await self.sleep(20)

    async def _live(self, client: SimClient, act: Act) -> None:
        try:
            await self.cluster.open_client(client)
            await act(client)
        except BookKeeperError as error:
            self.history.failed(client.name, "its work", error)
        except Exception as error:  # noqa: BLE001
            self.history.unexpected(client.name, "its work", error)
        await self.cluster.close_client(client)
        await self.departed(client)
