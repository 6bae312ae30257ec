"""Nearness of bookies to a client: an order for reads, and a label for traffic.

Nearness only orders replicas. It excludes none, so what a read or a recovery may conclude does not depend on it.
Source: client-protocol 3.3.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct

from bookies.errors import ConfigError
from bookies.model import BookieId
from bookies.protocol.placement.topology import Kind, Topology, is_within, is_within_any, parse_location


class Nearness(enum.IntEnum):
    """How near a bookie is to a client; sorts the nearest first."""

    HOST = 0
    RACK = 1
    REGION = 2  # or zone
    PREFERRED = 3  # in a location that the client prefers to others
    UNKNOWN = 4  # the location of the bookie or of the client is not known
    OTHER = 5
    BANNED = 6

    @property
    def label(self) -> str:
        """Return the name in metrics and reports."""
        return self.name.lower()


STEP = 1 << 8  # between the ranks of two kinds of nearness; preferred locations are ranked within


class Vantage(Struct, frozen=True):
    """Place of a client and its preferences.

    hosts: names and addresses of its host. location: empty if unknown. preferred: locations, the most preferred first.
    banned: locations of bookies that are asked last.
    """

    hosts: frozenset[str] = frozenset()
    location: str = ""
    preferred: tuple[str, ...] = ()
    banned: tuple[str, ...] = ()

    @property
    def distinguishes(self) -> bool:
        """Report whether some bookies can be nearer than others."""
        return bool(self.hosts or self.location or self.preferred or self.banned)

    def rank(self, bookie: BookieId, topology: Topology, kind: Kind) -> int:
        """Return the rank of a bookie, the nearest first; `nearness_of` returns the kind of nearness."""
        location = topology.location(bookie)
        if location is not None and self.bans(location):
            return Nearness.BANNED * STEP
        # Several locations on one host are a cluster for tests: there the locations count.
        if topology.host(bookie) in self.hosts and (not self.location or location in (None, self.location)):
            return Nearness.HOST * STEP
        if location is None:
            return Nearness.UNKNOWN * STEP
        if location == self.location and kind is not Kind.ZONE:  # Upgrade domains are not near each other.
            return Nearness.RACK * STEP
        if self.location.count("/") > 1 and is_within(location, self.location[: self.location.index("/", 1)]):
            return Nearness.REGION * STEP
        for index, preferred in enumerate(self.preferred[:STEP]):
            if is_within(location, preferred):
                return Nearness.PREFERRED * STEP + index
        return (Nearness.OTHER if self.location else Nearness.UNKNOWN) * STEP

    def bans(self, location: str) -> bool:
        """Report whether a location is in a banned one."""
        return is_within_any(location, self.banned)


def nearness_of(rank: int) -> Nearness:
    """Return the kind of nearness of a rank."""
    return Nearness(rank // STEP)


def parse_locations(text: str, name: str) -> tuple[str, ...]:
    """Parse locations separated by commas. `name`: of the setting. Raises `ConfigError`."""
    try:
        return tuple(parse_location(part) for part in text.split(",") if part.strip())
    except ConfigError as error:
        raise ConfigError(f"{name}: {error.message}") from error


def own_location(
    hosts: Collection[str], configured: Mapping[str, str], topology: Topology, bookies: Iterable[BookieId]
) -> str:
    """Return the location of a client that has none in its settings; empty if unknown.

    It is the `configured` location of its host, else that of the bookies on its host, if they agree.
    """
    named: set[str | None] = {configured[host] for host in hosts if host in configured}
    there = named or {topology.location(bookie) for bookie in bookies if topology.host(bookie) in hosts}
    return (there.pop() or "") if len(there) == 1 else ""
