"""How near bookies are to this client: the shell of `protocol/placement/nearness.py`.

Ranks are read with every request, so they are kept until a location changes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from bookies.config import ClientConfig
from bookies.model import BookieId
from bookies.protocol.placement import Topology
from bookies.protocol.placement.nearness import Nearness, Vantage, nearness_of, own_location, parse_locations
from bookies.protocol.placement.topology import Kind, parse_location
from bookies.runtime.ports import Runtime


class Nearby:
    """Ranks of bookies by nearness. Raises `ConfigError` for locations that cannot be parsed."""

    def __init__(self, runtime: Runtime, config: ClientConfig) -> None:
        self._configured = parse_location(config.location) if config.location else ""
        self._orders = config.near_reads
        self._topology, self._kind = Topology(), Kind.RACK
        self._ranks: dict[BookieId, int] = {}
        self.vantage = Vantage(
            frozenset(runtime.host_names),
            self._configured,
            parse_locations(config.locations_preferred, "locations_preferred"),
            parse_locations(config.locations_banned, "locations_banned"),
        )

    @property
    def is_needed(self) -> bool:
        """Report whether reads need the locations of bookies."""
        return self._orders and self.vantage.distinguishes

    def update(
        self, topology: Topology, kind: Kind, configured: Mapping[str, str], bookies: Collection[BookieId]
    ) -> None:
        """Use other locations. `configured`: by host, by this client's sources; `bookies`: those that are known."""
        hosts = self.vantage.hosts
        location = self._configured or own_location(hosts, configured, topology, bookies)
        self.vantage = Vantage(hosts, location, self.vantage.preferred, self.vantage.banned)
        self._topology, self._kind = topology, kind
        self._ranks = {}

    def rank(self, bookie: BookieId) -> int:
        """Return the rank of a bookie, the nearest first."""
        rank = self._ranks.get(bookie)
        if rank is None:
            rank = self._ranks[bookie] = self.vantage.rank(bookie, self._topology, self._kind)
        return rank

    def order_rank(self, bookie: BookieId) -> int:
        """Return the rank of a bookie in the order of reads: the same for all if `near_reads` is false."""
        return self.rank(bookie) if self._orders else 0

    def nearness(self, bookie: BookieId) -> Nearness:
        return nearness_of(self.rank(bookie))
