"""Choice of ensembles and replacements under placement rules."""

from __future__ import annotations

from bookies.protocol.placement.placement import choose_ensemble
from bookies.protocol.placement.placement_policy import PlacementPolicy
from bookies.protocol.placement.topology import Topology

__all__ = ["PlacementPolicy", "Topology", "choose_ensemble"]
