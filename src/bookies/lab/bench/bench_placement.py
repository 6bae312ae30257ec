"""`bk bench placement`: evenness of placement and the cost of a choice. No cluster runs: only decisions are measured.

For each shape of a cluster, ensembles are chosen for the given number of ledgers, as a client chooses them. *Busiest*
and *idlest* are the bookies with the most and the fewest places, as multiples of the mean. Random choice differs from
the mean too: *by chance* is the busiest bookie's value if every place were drawn at random.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections import Counter
from collections.abc import Mapping

from msgspec import Struct

from bookies.admin.shared import UsageError
from bookies.admin.shared.command_line import Option
from bookies.admin.shared.report import Report, Table
from bookies.client.base.preference import preferred
from bookies.model import BookieId
from bookies.protocol.placement import PlacementPolicy, Topology, choose_ensemble
from bookies.protocol.placement.candidates import Candidates, Cluster
from bookies.protocol.placement.placement import judge
from bookies.protocol.placement.topology import Kind

JUDGED = 100  # ensembles of each cluster whose adherence is checked


class Shape(Struct, frozen=True):
    """Shape of a cluster: name, number of bookies per rack, placement policy and quorums."""

    name: str
    racks: Mapping[str, int]
    policy: PlacementPolicy
    size: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2


def shapes(bookies: int) -> list[Shape]:
    """Return the shapes for this number of bookies."""
    rack, rule = PlacementPolicy(Kind.RACK), PlacementPolicy(Kind.RACK, is_rule=True)
    even = {f"/r{n}": bookies // 50 for n in range(50)}
    three = {f"/r{n}": bookies // 3 for n in range(3)}
    regions = {f"/g{n % 3}/r{n}": bookies // 30 for n in range(30)}
    return [
        Shape("no racks", {"": bookies}, PlacementPolicy(Kind.RANDOM)),
        Shape("50 racks", even, rack),
        Shape("50 racks, striped 10/3", even, rule, size=10),
        Shape("3 racks", three, rule),
        Shape("3 racks, striped 5/3", three, rule, size=5),
        Shape("3 racks, one new and small", {**three, "/r2": max(1, bookies // 100)}, rule),
        Shape("3 regions", regions, PlacementPolicy(Kind.REGION, regions_min=2)),
        Shape("3 zones", regions, PlacementPolicy(Kind.ZONE, is_rule=True)),
    ]


OPTIONS = (
    Option("--bookies", "number of bookies per cluster (default 5000)", int, default=5000),
    Option("--creates", "number of ensembles to choose per cluster (default 100000)", int, default=100_000),
    Option("--seed", "seed of the random choices (default 1)", int, default=1),
)


def run(arguments: argparse.Namespace) -> Report:
    if arguments.bookies < 100 or arguments.creates < 1:
        raise UsageError("--bookies must be 100 or more and --creates 1 or more")
    rows = [measure(shape, arguments.creates, arguments.seed) for shape in shapes(arguments.bookies)]
    headers = [name.replace("_", " ") for name in rows[0]]
    return Report(rows, [Table(headers, [tuple(row.values()) for row in rows])])


def measure(shape: Shape, creates: int, seed: int) -> dict[str, object]:
    """Choose `creates` ensembles. Return a row of the table; times are processor time."""
    rng = random.Random(seed)
    locations = {
        f"10.{number >> 8}.{number & 255}.{index}:3181": rack
        for number, (rack, count) in enumerate(shape.racks.items())
        for index in range(count)
    }
    topology = Topology({name: rack for name, rack in locations.items() if rack})
    begun = time.process_time()
    cluster = Cluster(map(BookieId, locations), topology, shape.policy)
    built = time.process_time()
    places: Counter[BookieId] = Counter()
    quorums = shape.write_quorum, shape.ack_quorum
    for _ in range(creates):
        candidates = Candidates(cluster, preferred(cluster.bookies, rng, {}), turn=rng.getrandbits(16))
        places.update(choose_ensemble(candidates, shape.size, *quorums))
    chosen = time.process_time()
    ensembles = [
        choose_ensemble(Candidates(cluster, preferred(cluster.bookies, rng, {})), shape.size, *quorums)
        for _ in range(JUDGED)
    ]
    adhering = sum(judge(topology, shape.policy, ensemble, *quorums).is_adhering for ensemble in ensembles)
    mean = creates * shape.size / len(locations)
    counts = [places[BookieId(name)] for name in locations]
    return {
        "cluster": shape.name,
        "bookies": len(locations),
        "busiest": round(max(counts) / mean, 2),
        "idlest": round(min(counts) / mean, 2),
        "by_chance": round(1 + math.sqrt(2 * math.log(len(counts)) / mean), 2),
        "us_a_choice": round((chosen - built) / creates * 1e6, 1),
        "ms_a_change": round((built - begun) * 1e3, 1),
        "adhering_percent": round(100 * adhering / JUDGED),
    }
