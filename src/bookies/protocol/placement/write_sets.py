"""Conditions on write sets: fault domains that the replicas of an entry must not share.

Entry e goes to the positions (e + k) mod E for k < Qw. So an ensemble has E write sets, the runs of Qw neighbours on a
ring (one, as a set, if Qw = E). A condition checks the present members of a write set and the number of its free
positions. It may return True while the free positions could still be filled well, and must be exact once none is free.
Source: metadata 9.1, 9.4 (coverage), 9.5 (durability), 9.7 (upgrade domains).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from bookies.protocol.placement.topology import Place
from bookies.protocol.quorums import write_set


class Condition(Protocol):
    """Condition on every write set."""

    def holds(self, members: Sequence[Place], free: int) -> bool:
        """Report whether these members, and `free` more, can meet it; exact for `free` = 0."""

    def wanted(self, write_quorum: int) -> str:
        """Return the condition as text, such as "a write quorum of 3 needs 2 racks"."""


class Spread(Struct, frozen=True):
    """Condition: the members are in at least `count` fault domains of one level. `name`: of the level.

    Members that are nowhere count for none.
    """

    level: int
    count: int
    name: str

    def holds(self, members: Sequence[Place], free: int) -> bool:
        return distinct(members, self.level) + free >= self.count

    def wanted(self, write_quorum: int) -> str:
        return f"a write quorum of {write_quorum} needs {self.count} {self.name}s"


class Outlives(Struct, frozen=True):
    """Condition: any `ack_quorum` of the members are in `regions` regions; no fewer regions hold an ack quorum."""

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


class UpgradeDomains(Struct, frozen=True):
    """Condition: members in one zone are not all in one upgrade domain of it."""

    def holds(self, members: Sequence[Place], free: int) -> bool:
        domains: dict[str, dict[str | None, int]] = {}
        for place in members:
            if place[0] is not None:
                counts = domains.setdefault(place[0], {})
                counts[place[1]] = counts.get(place[1], 0) + 1
        unspread = sum(len(counts) == 1 and sum(counts.values()) > 1 for counts in domains.values())
        return unspread <= free

    def wanted(self, write_quorum: int) -> str:
        return "replicas in one zone have to be in different upgrade domains"


def distinct(members: Sequence[Place], level: int) -> int:
    """Return the number of fault domains of a level that these members are in."""
    domains = {place[level] for place in members}
    return len(domains) - (None in domains)


def write_sets(size: int, write_quorum: int) -> list[tuple[int, ...]]:
    """Return the positions of each write set, by the position that it begins with."""
    return [write_set(start, size, write_quorum) for start in range(1 if size == write_quorum else size)]
