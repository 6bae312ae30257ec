"""Job `whatif`: predicts the simultaneous failure of bookies or fault domains. Asks only the metadata store.

For each fragment: how many copies its worst entry has left.

    lost      none: data is lost unless a bookie comes back
    single    one: the next failure loses data
    reduced   fewer than the write quorum
    stuck     of an open ledger: fewer bookies of the last fragment than its ack quorum are reachable, so its writer
              must change the ensemble, and a recovery cannot decide without the dead bookies

It also reports the cost of repair: bytes to copy, hours at a rate for each bookie, and whether the other disks have
enough space. Source: spark 5.5.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from msgspec import Struct

from bookies.errors import InvalidArgument
from bookies.model import BookieId
from bookies.protocol.placement.topology import host_of, parse_fault_domains
from bookies.protocol.quorums import write_set
from bookies.protocol.quorums.quorum import covered
from bookies.spark.base.arrow import schema_of_ddl
from bookies.spark.jobs.complete import Complete
from bookies.spark.jobs.shared import common
from bookies.spark.jobs.shared.common import JobConfig, Option
from bookies.spark.jobs.shared.packing import BOOKIE_RATE
from bookies.spark.jobs.shared.report import Report, Section, Table, counted
from bookies.units import decimal_size_text, duration_text

OPTIONS = (
    Option("dead", None, "bookies that fail, separated by commas", metavar="BOOKIES"),
    Option("domains", None, "fault domains that fail, separated by commas", metavar="NAMES"),
    Option("fault_domains", "", "bookie=domain pairs, separated by commas", metavar="PAIRS"),
    Option("fill", 0.9, "greatest used share of a disk, 0 to 1", float),
)
LOST, SINGLE, REDUCED, STUCK = "lost", "single", "reduced", "stuck"
FRAGMENTS = (
    "ledger_id BIGINT, fragment INT, first_entry BIGINT, last_entry BIGINT, outcome STRING, copies INT, "
    "bytes BIGINT, bookies_left INT"
)
_FRAGMENTS = schema_of_ddl(FRAGMENTS)


def job(spark: Any, config: JobConfig) -> Any:
    """Return the fragments that lose copies: outcome, copies left, bytes to copy, writable bookies outside."""
    return complete(spark, config).frame


def complete(spark: Any, config: JobConfig) -> Complete:
    config = common.checked(config, OPTIONS)
    bookies = common.table(spark, config, "bookies").toArrow().to_pylist()
    dead = dead_of(config.options, [row["bookie"] for row in bookies])
    alive = [row for row in bookies if row["bookie"] not in dead and row["mode"] == "writable"]
    judge = Judge(tuple(dead), tuple(str(row["bookie"]) for row in alive))
    frame = common.table(spark, config, "fragments").mapInArrow(judge, FRAGMENTS)
    frame = common.save(frame, config, "fragments") if config.directory else frame.persist()
    counts = frame.groupBy("outcome").agg({"ledger_id": "count", "bytes": "sum"}).toArrow().to_pylist()
    by_outcome = {row["outcome"]: (row["count(ledger_id)"], row["sum(bytes)"] or 0) for row in counts}
    homeless = frame.where("bookies_left < 1").count()
    worst = frame.orderBy("copies", "ledger_id", "fragment").limit(200).toArrow().to_pylist()
    cost = repair_cost(
        sum(size for outcome, (_, size) in by_outcome.items() if outcome != LOST),
        alive,
        config.bytes_per_s or BOOKIE_RATE,
        float(config.options["fill"]),
    )
    return Complete(frame, _report(config, dead, by_outcome, homeless, worst, cost))


def dead_of(options: Mapping[str, Any], bookies: Sequence[str]) -> list[str]:
    """Return the bookies that fail. Raises `InvalidArgument`."""
    domains = parse_fault_domains(str(options["fault_domains"] or ""))
    dead = _names(options["dead"])
    for domain in _names(options["domains"]):
        within = f"/{domain.strip('/')}/"
        members = [
            bookie
            for bookie in bookies
            if f"{domains.get(bookie) or domains.get(host_of(BookieId(bookie)), '')}/".startswith(within)
        ]
        if not members:
            known = ", ".join(sorted(set(domains.values()))) or "none: give fault_domains"
            raise InvalidArgument(f"domains: no bookie is in {domain}; the known domains are {known}")
        dead += members
    for bookie in dead:
        if bookie not in bookies:
            raise InvalidArgument(f"dead: there is no bookie {bookie}; there are {', '.join(bookies)}")
    if not dead:
        raise InvalidArgument("name what fails: dead=BOOKIES, or domains=NAMES with fault_domains=PAIRS")
    return list(dict.fromkeys(dead))


def _names(text: Any) -> list[str]:
    return [name.strip() for name in str(text or "").split(",") if name.strip()]


# -- one fragment ----------------------------------------------------------------------------------------------------


class Judge(Struct, frozen=True):
    """Assessment of the rows of the table of fragments, in a task."""

    dead: tuple[str, ...]
    alive: tuple[str, ...]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = [outcome_row for outcome_row in map(self.fragment, batch.to_pylist()) if outcome_row is not None]
            if rows:
                yield pa.RecordBatch.from_pylist(rows, schema=_FRAGMENTS)

    def fragment(self, row: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the outcome of a fragment; None: it loses no copy. `row`: of the table."""
        ensemble, write_quorum = row["ensemble"], row["write_quorum"]
        lives = [bookie not in self.dead for bookie in ensemble]
        copies = fewest_copies(lives, row["first_entry"], row["last_entry"], write_quorum)
        if copies == write_quorum:
            return None
        outcome = LOST if copies == 0 else SINGLE if copies == 1 else REDUCED
        if row["last_entry"] is None and not covered(lives, write_quorum, row["ack_quorum"]):
            outcome = STUCK
        lost = len(ensemble) - sum(lives)
        size = (row["bytes"] or 0) * write_quorum // len(ensemble) * lost
        left = len([bookie for bookie in self.alive if bookie not in ensemble])
        named = {name: row[name] for name in ("ledger_id", "fragment", "first_entry", "last_entry")}
        return {**named, "outcome": outcome, "copies": copies, "bytes": size, "bookies_left": left}


def fewest_copies(lives: Sequence[bool], first: int, last: int | None, write_quorum: int) -> int:
    """Return the least number of surviving replicas of any entry of the fragment."""
    size = len(lives)
    stop = first + size if last is None else min(last + 1, first + size)  # write sets repeat
    return min(
        (
            sum(lives[position] for position in write_set(entry_id, size, write_quorum))
            for entry_id in range(first, stop)
        ),
        default=write_quorum,
    )


# -- all of them -----------------------------------------------------------------------------------------------------


class Cost(Struct, frozen=True):
    """Cost of repair. `seconds` None: no bookie is left to copy to. `room`: bytes that the surviving disks may take."""

    size: int
    seconds: float | None
    room: int
    fills: Sequence[tuple[str, float, float]]  # bookie, share of its disk that is used now, and afterwards
    is_enough: bool


def repair_cost(size: int, alive: Sequence[Mapping[str, Any]], rate: float, fill: float) -> Cost:
    """Spread the copies over the surviving bookies by their free space.

    `rate`: bytes per second that each of them reads and writes; half of it is reading.
    """
    rooms = {}
    for row in alive:
        if row["total_bytes"] is not None and row["free_bytes"] is not None:
            rooms[row["bookie"]] = max(0, int(row["free_bytes"] - (1 - fill) * row["total_bytes"]))
    room = sum(rooms.values())
    fills = []
    for row in alive:
        if row["bookie"] in rooms and row["total_bytes"]:
            used = row["total_bytes"] - row["free_bytes"]
            share = size * rooms[row["bookie"]] / room if room else 0
            fills.append((str(row["bookie"]), used / row["total_bytes"], (used + share) / row["total_bytes"]))
    seconds = 2 * size / (rate * len(alive)) if alive else None
    return Cost(size, seconds, room, fills, size <= room)


def _report(
    config: JobConfig,
    dead: Sequence[str],
    by_outcome: Mapping[str, tuple[int, int]],
    homeless: int,
    worst: Sequence[Mapping[str, Any]],
    cost: Cost,
) -> Report:
    fragments = counted({outcome: count for outcome, (count, _) in by_outcome.items()}, "none")
    time = "no bookie is left to copy to" if cost.seconds is None else f"about {duration_text(cost.seconds)}"
    lead = (
        f"without {', '.join(dead)}: fragments that lose copies: {fragments}; to copy "
        f"{decimal_size_text(cost.size)}, {time}; the other disks {'hold' if cost.is_enough else 'do not hold'} it"
    )
    if homeless:
        lead += f"; {homeless:,} fragments have no other bookie outside their ensemble: start more bookies first"
    outcomes = sorted((outcome, count, size) for outcome, (count, size) in by_outcome.items())
    sections = [
        Section(
            "Fragments that lose copies",
            table=Table(
                ("outcome", "fragments", "bytes to copy"), outcomes, (1, 2), [count for _, count, _ in outcomes]
            ),
        ),
        Section(
            "Worst fragments",
            table=Table(
                ("ledger", "fragment", "first entry", "last entry", "outcome", "copies", "bytes", "bookies left"),
                [tuple(row.values()) for row in worst],
                (0, 1, 2, 3, 5, 6, 7),
            ),
        ),
        Section(
            "Disks afterwards",
            f"A disk may be filled to {float(config.options['fill']):.0%}.",
            Table(
                ("bookie", "used now", "used after"),
                [(name, f"{a:.1%}", f"{b:.1%}") for name, a, b in cost.fills],
                (1, 2),
                [after for _, _, after in cost.fills],
            ),
        ),
    ]
    is_good = LOST not in by_outcome and STUCK not in by_outcome and cost.is_enough and not homeless
    return Report("What if", lead, is_good, {"run": config.run_id, **config.options}, sections)
