"""`HostileProcess`: a hostile bookie as a participant of a simulated cluster."""

from __future__ import annotations

from random import Random
from typing import Any

from bookies.lab.sim.world.cluster import BOOKIE_PORT, SimCluster
from bookies.lab.sim.world.hostile import HostileBookie
from bookies.lab.sim.world.loop import Participant
from bookies.lab.sim.world.sim_metadata import SimDriver

NAME = "h1"


class HostileProcess:
    """The process of a hostile bookie. `behaviour`: see `HostileBookie`.

    Its replicas count as rotten in the final checks: an entry needs one replica less on the other bookies.
    """

    def __init__(self, cluster: SimCluster, **behaviour: Any) -> None:
        self._participant = Participant(cluster.loop, NAME)
        self._driver = SimDriver(cluster.store, cluster.memory, NAME)
        random = Random(f"{cluster.seed}/hostile")
        self.bookie = HostileBookie(cluster.network.port(NAME), self._driver, NAME, random, **behaviour)
        cluster.rotten[NAME] = None

    async def start(self) -> None:
        """Register the bookie and serve."""

        async def start() -> None:
            await self._driver.open()
            await self.bookie.start(NAME, BOOKIE_PORT)

        await self._participant.create_task(start(), name="start hostile")

    def reform(self) -> None:
        """Answer honestly from now on."""
        self.bookie.honesty = 1.0

    async def stop(self) -> None:
        """End the process."""

        async def stop() -> None:
            await self.bookie.stop()
            await self._driver.close()

        await self._participant.create_task(stop(), name="stop hostile")
