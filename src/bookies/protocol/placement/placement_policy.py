"""What placement asks for, as a value, and what follows from it for the write sets of an ensemble.

A *minimum* is what adhering to the policy means. As a rule it is never gone below: there is an ensemble that meets it
or none at all. As a wish it is met when it can be, else as nearly as it can. Beyond the minimum more is better:
as many racks as an entry has replicas, if that does not give some bookies far more than their share, and as many
hosts. Source: metadata 9.1, 9.4, 9.5, 9.7.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bookies.errors import ConfigError
from bookies.protocol.placement.topology import Kind
from bookies.protocol.placement.write_sets import Condition, Outlives, Spread, UpgradeDomains

SHARE_MAX = 3.0  # times its fair share that a bookie may get for the sake of more domains than the minimum
HOSTS_WISHED = 2  # whatever their shares


class Adherence(enum.IntEnum):
    """How well an ensemble meets a policy; numbers as Apache's. Source: metadata 9.1."""

    FAIL = 1
    SOFT = 3  # the minimum, and less than desired
    STRICT = 5


@dataclass(frozen=True, slots=True)
class PlacementPolicy:
    """`racks_min`, `zones_min`: in so many racks (zones) is every entry, or in as many as it has replicas.

    `is_rule`: whether those are rules. `regions_min`: any ack quorum of an entry's replicas is in so many regions,
    always as a rule; less than 2: entries are spread over `racks_min` regions, as a wish. `zones_desired`: what strict
    adherence asks for.
    """

    kind: Kind = Kind.RACK
    is_rule: bool = False
    racks_min: int = 2
    regions_min: int = 0
    zones_min: int = 2
    zones_desired: int = 3

    def __post_init__(self) -> None:
        if self.kind is Kind.ZONE and self.zones_min > self.zones_desired:
            raise ConfigError(f"zones_min = {self.zones_min} is more than zones_desired = {self.zones_desired}")

    def minimum(self, write_quorum: int, ack_quorum: int) -> tuple[Condition, ...]:
        """What every write set has to meet for the ensemble to adhere."""
        conditions: list[Condition] = []
        if self.kind is Kind.ZONE:
            conditions = [Spread(0, min(write_quorum, self.zones_min), "zone"), UpgradeDomains()]
        elif self.kind is not Kind.RANDOM:
            level = self.kind.levels.index("rack")
            conditions = [Spread(level, min(write_quorum, self.racks_min), "rack")]
            if self.kind is Kind.REGION and self.regions_min > 1:
                conditions.insert(0, Outlives(self.regions_min, ack_quorum))
        return tuple(each for each in conditions if not (isinstance(each, Spread) and each.count < 2))

    def required(self, write_quorum: int, ack_quorum: int) -> tuple[Condition, ...]:
        """The part of the minimum that is a rule."""
        return tuple(
            each for each in self.minimum(write_quorum, ack_quorum) if self.is_rule or isinstance(each, Outlives)
        )

    def desired(self, write_quorum: int) -> tuple[Condition, ...]:
        """What every write set meets in an ensemble that adheres strictly, beyond the minimum."""
        if self.kind is Kind.ZONE:
            return (Spread(0, min(write_quorum, self.zones_desired), "zone"),)
        if self.kind is Kind.REGION and self.regions_min < 2:
            return (Spread(0, min(write_quorum, self.racks_min), "region"),)
        return ()

    def wishes(self, write_quorum: int, sizes: Sequence[Iterable[int]]) -> list[list[Condition]]:
        """What to ask for beyond the rules, the most important first; of each the alternatives, the best first.

        `sizes`: of each level how many bookies each domain has.
        """
        wishes: list[list[Condition]] = []
        for level, name in enumerate(self.kind.levels):
            if name == "upgrade domain":
                wishes.append([UpgradeDomains()])
                continue
            asked, most = self._asked(name, write_quorum)
            of_level = sorted(sizes[level], reverse=True)
            wishes.append(
                [
                    Spread(level, count, name)
                    for count in range(min(most, len(of_level)), 1, -1)
                    if count <= asked or _share(of_level, count, write_quorum) <= SHARE_MAX
                ]
            )
        return [each for each in wishes if each]

    def _asked(self, name: str, write_quorum: int) -> tuple[int, int]:
        """How many domains of a level are asked for in any case, and how many at most."""
        if name == "zone":
            return self.zones_desired, min(write_quorum, self.zones_desired)
        return HOSTS_WISHED if name == "host" else self.racks_min, write_quorum


def _share(sizes: Sequence[int], count: int, write_quorum: int) -> float:
    """How many times its fair share the busiest bookie gets when every write set is in `count` of these domains.

    `sizes`: bookies of each domain, the largest first. A domain gets at most as many replicas as leave one for each of
    the others; what large ones may not take is shared out among the small ones.
    """
    most = (write_quorum - count + 1) / write_quorum
    share, left, total = 1.0, sum(sizes), sum(sizes)
    for size in sizes[: count - 1]:  # That many can be full at most: the shares of `count` are more than all.
        if size * share / left <= most:
            break
        share -= most
        left -= size
    return share * total / left
