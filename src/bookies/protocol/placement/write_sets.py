"""What the replicas of an entry must not share: conditions on write sets, decided also when members are missing.

Entry e goes to the positions (e + k) mod E for k < Qw, so an ensemble has E write sets, the runs of Qw neighbours on a
ring (one, as a set, if Qw = E). A condition is asked about the members that a write set has so far and the number of
its free positions. It may say yes as long as somebody could still fill them well, and has to be exact once none is
free. Source: metadata 9.1, 9.4 (coverage), 9.5 (durability), 9.7 (upgrade domains).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from bookies.protocol.placement.topology import Place
from bookies.protocol.quorums import write_set


class Condition(Protocol):
    """One condition on every write set."""

    def holds(self, members: Sequence[Place], free: int) -> bool:
        """Whether these members, and `free` more, can meet it; exact for `free` = 0."""

    def wanted(self, write_quorum: int) -> str:
        """In words, as "a write quorum of 3 needs 2 racks"."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The members are in so many fault domains of one level. `name`: of the level. Members that are nowhere count for
    none."""

    level: int
    count: int
    name: str

    def holds(self, members: Sequence[Place], free: int) -> bool:
        return distinct(members, self.level) + free >= self.count

    def wanted(self, write_quorum: int) -> str:
        return f"a write quorum of {write_quorum} needs {self.count} {self.name}s"


@dataclass(frozen=True, slots=True)
class Outlives:
    """Any `ack_quorum` of the members are in `regions` regions: no fewer regions hold an ack quorum among them."""

    regions: int
    ack_quorum: int

    def holds(self, members: Sequence[Place], free: int) -> bool:
        counts: dict[str | None, int] = {}
        for place in members:
            counts[place[0]] = counts.get(place[0], 0) + 1
        # Members that are nowhere may be in any region, also in the fullest ones.
        nowhere = counts.pop(None, 0)
        fullest = sorted(counts.values(), reverse=True)[: self.regions - 1]
        return sum(fullest) + nowhere < self.ack_quorum

    def wanted(self, write_quorum: int) -> str:
        return (
            f"any {self.ack_quorum} replicas of an entry have to be in {self.regions} regions, so at most "
            f"{self.ack_quorum - 1} of {write_quorum} in any {self.regions - 1}"
        )


@dataclass(frozen=True, slots=True)
class UpgradeDomains:
    """Members in one zone are not all in one upgrade domain of it."""

    def holds(self, members: Sequence[Place], free: int) -> bool:
        domains: dict[str, dict[str | None, int]] = {}
        for place in members:
            if place[0] is not None:
                found = domains.setdefault(place[0], {})
                found[place[1]] = found.get(place[1], 0) + 1
        alone = sum(len(found) == 1 and sum(found.values()) > 1 for found in domains.values())
        return alone <= free

    def wanted(self, write_quorum: int) -> str:
        return "replicas in one zone have to be in different upgrade domains"


def distinct(members: Sequence[Place], level: int) -> int:
    """In how many fault domains of a level they are."""
    domains = {place[level] for place in members}
    return len(domains) - (None in domains)


def write_sets(size: int, write_quorum: int) -> list[tuple[int, ...]]:
    """The positions of each write set, by the position that it begins with."""
    return [write_set(start, size, write_quorum) for start in range(1 if size == write_quorum else size)]
