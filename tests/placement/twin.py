"""Placement by trying everything: all ensembles of a small cluster, and what the worst write set of each has.

Knows nothing of `bookies.protocol`: a place is (region, rack, host), or (None, None, host) for a bookie that is
nowhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

Where = tuple[str | None, str | None, str]


class Measures(NamedTuple):
    """The fewest racks, regions and hosts of any write set; the most members of one region, those that are nowhere
    with them; whether in some write set a region has several members, all in one rack."""

    racks: int
    regions: int
    hosts: int
    fullest: int
    is_crowded: bool


def measure(ensemble: Sequence[Where], write_quorum: int) -> Measures:
    racks, regions, hosts, fullest, is_crowded = [], [], [], [], False
    for start in range(len(ensemble)):
        members = [ensemble[(start + offset) % len(ensemble)] for offset in range(write_quorum)]
        by_region: dict[str, list[str | None]] = {}
        nowhere = 0
        for region, rack, _ in members:
            if region is None:
                nowhere += 1
            else:
                by_region.setdefault(region, []).append(rack)
        racks.append(len({rack for _, rack, _ in members if rack is not None}))
        regions.append(len(by_region))
        hosts.append(len({host for _, _, host in members}))
        fullest.append(nowhere + max(map(len, by_region.values()), default=0))
        is_crowded |= any(len(found) > 1 and len(set(found)) == 1 for found in by_region.values())
    return Measures(min(racks), min(regions), min(hosts), max(fullest), is_crowded)


def ensembles(places: Sequence[Where], size: int) -> Iterator[tuple[Where, ...]]:
    """All ensembles, those that differ in bookies of one host, or by a turn of the ring, once."""
    left = Counter(places)
    order = list(left)

    def extend(chosen: list[int]) -> Iterator[tuple[Where, ...]]:
        if len(chosen) == size:
            yield tuple(order[each] for each in chosen)
            return
        for index in range(chosen[0] if chosen else 0, len(order)):
            if left[order[index]]:
                left[order[index]] -= 1
                yield from extend([*chosen, index])
                left[order[index]] += 1

    yield from extend([])


class Shape(NamedTuple):
    """A topology: racks as (region, bookies on each host), and the hosts of bookies that are nowhere."""

    racks: tuple[tuple[int, tuple[int, ...]], ...]
    nowhere: tuple[int, ...]

    def places(self) -> dict[str, Where]:
        """The bookies by name."""
        found: dict[str, Where] = {}
        for number, (region, hosts) in enumerate(self.racks):
            rack = f"/g{region}/r{number}"
            for host, count in enumerate(hosts):
                for port in range(count):
                    found[f"h{number}-{host}:{port}"] = (f"/g{region}", rack, f"{rack} h{number}-{host}")
        for host, count in enumerate(self.nowhere):
            for port in range(count):
                found[f"n{host}:{port}"] = (None, None, f" n{host}")
        return found


def shapes(bookies_max: int, racks_max: int, regions_max: int) -> Iterator[Shape]:
    """Every topology up to the names of regions, racks, hosts and bookies."""
    for total in range(1, bookies_max + 1):
        for count in range(total + 1):
            for nowhere in partitions(total - count, total):
                for racks in _racks(count, racks_max, None):
                    seen = set()
                    for regions in _regions(len(racks), regions_max):
                        key = frozenset(
                            Counter(
                                tuple(
                                    sorted(hosts for region, hosts in zip(regions, racks, strict=True) if region == g)
                                )
                                for g in set(regions)
                            ).items()
                        )
                        if key not in seen:
                            seen.add(key)
                            yield Shape(tuple(zip(regions, racks, strict=True)), nowhere)


def partitions(total: int, largest: int) -> Iterator[tuple[int, ...]]:
    """`total` as a sum of numbers that do not grow."""
    if total == 0:
        yield ()
    for first in range(min(total, largest), 0, -1):
        for rest in partitions(total - first, first):
            yield (first, *rest)


def _racks(total: int, count_max: int, before: tuple[int, ...] | None) -> Iterator[tuple[tuple[int, ...], ...]]:
    """So many bookies in at most so many racks, each as its hosts; racks do not grow."""
    if total == 0:
        yield ()
        return
    if count_max == 0:
        return
    for size in range(total, 0, -1):
        for hosts in partitions(size, size):
            if before is None or (sum(hosts), hosts) <= (sum(before), before):
                for rest in _racks(total - size, count_max - 1, hosts):
                    yield (hosts, *rest)


def _regions(racks: int, count_max: int) -> Iterator[tuple[int, ...]]:
    """Which region each rack is in; regions are numbered as they come."""

    def extend(chosen: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(chosen) == racks:
            yield chosen
            return
        for region in range(min(count_max, max(chosen, default=-1) + 2)):
            yield from extend((*chosen, region))

    yield from extend(())
