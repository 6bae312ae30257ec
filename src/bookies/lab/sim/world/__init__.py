"""The simulated world: event loop, network, disks, metadata store, cluster."""

from __future__ import annotations

from bookies.lab.sim.world.cluster import SimClient, SimCluster
from bookies.lab.sim.world.trace import Trace

__all__ = ["SimClient", "SimCluster", "Trace"]
