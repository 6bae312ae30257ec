"""`repair`: carry out a repair plan that a scrub has made.

A plan is old as soon as it is made, so every item begins by looking at what is there now: the ledger's record, and
the very entries that were bad. What has been mended, moved or deleted meanwhile is left out; a bookie that came back
is not replaced. Doing an item twice does no harm. A fragment that may still grow belongs to its writer.

    renew    a bookie that answers gets the bad entries again, and nothing else; when it takes none (read-only),
             another one takes its place
    replace  a bookie that is gone: everything is copied to another one, and then the record names that one

A replacement holds the ledger's lock of auto-recovery. Where somebody else has it the item waits for some time, and
then looks again at what is there.

What cannot be mended says why: `waiting` when too few bookies answer, or somebody else has the ledger's lock; `lost`
when no good copy is left.
Source: spark 5.2.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bookies.client.base.ledger_lock import AGAIN_S, TRIES
from bookies.errors import (
    BookieUnreachable,
    DigestMismatch,
    InvalidArgument,
    LedgerLocked,
    LedgerNotFound,
    NotEnoughBookies,
)
from bookies.model import BookieId, LedgerMetadata
from bookies.protocol.ledger.offload import offloaded_to
from bookies.protocol.ledger.read import NEGATIVE
from bookies.protocol.repair import Fragment
from bookies.protocol.repair.fragments import stored_in
from bookies.spark.jobs.complete import Complete
from bookies.spark.jobs.scrub import REPAIRS
from bookies.spark.jobs.shared import common
from bookies.spark.jobs.shared.common import JobConfig, Option, Outcome, Tools
from bookies.spark.jobs.shared.findings import RENEW, REPLACE
from bookies.spark.jobs.shared.packing import Item
from bookies.spark.jobs.shared.report import Report, Section, Table

OPTIONS = (Option("plan", None, "the plan of a scrub: its directory DIR/RUN/plan", metavar="DIR"),)
ACTIONS = "run_id STRING, ledger_id BIGINT, fragment BIGINT, outcome STRING, entries BIGINT, detail STRING"
# What an item is told of each row of the plan: name -> column.
LINE = {"bookie": "bookie", "action": "action", "first": "first_entry", "last": "last_entry"}
TURN_S = 1.0  # before another look at a ledger that another item of the run has locked
SATISFIED, LEFT_ALONE, LOST = "satisfied", "left-alone", "lost"


def job(spark: Any, config: JobConfig) -> Any:
    """What was done, a row for each fragment. `dry-run`: what would be done, after looking at what is there now."""
    return complete(spark, config).frame


def complete(spark: Any, config: JobConfig) -> Complete:
    config = common.checked(config, OPTIONS)
    if not config.options["plan"]:
        raise InvalidArgument("option plan is missing: the directory of a repair plan, such as runs/monday/plan")
    common.refuse_speculation(spark)
    items = items_of(plan_rows(spark, str(config.options["plan"])))
    run = common.execute(spark, config, "repair", items, RepairWork(config.mode == common.DRY_RUN, config.run_id))
    if config.mode == common.PLAN:
        return Complete.planned("repair", run)
    rows = []
    for name, outcome, detail in run.details():
        ledger_id, _, fragment = name.partition(":")
        said = detail.get("error") or "; ".join(detail.get("said", ()))
        rows.append((config.run_id, int(ledger_id), int(fragment), outcome, detail.get("entries", 0), said))
    rows.sort()
    frame = common.save(common.frame_of(spark, rows, ACTIONS), config, "actions")
    return Complete(frame, _report(config, rows))


def plan_rows(spark: Any, path: str) -> list[dict[str, Any]]:
    from pyspark.errors import AnalysisException

    try:
        columns = common.reader_of(spark).parquet(path).columns
        frame = common.reader_of(spark).schema(REPAIRS).parquet(path)
    except AnalysisException as error:
        raise InvalidArgument(f"plan={path!r}: no repair plan there; a scrub with --output makes one") from error
    if lost := [name for name in frame.columns if name not in columns]:
        raise InvalidArgument(
            f"plan={path!r}: no repair plan, it has no column {lost[0]}; a scrub with --output makes DIR/RUN/plan"
        )
    found: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return found


def items_of(plan: Iterable[Mapping[str, Any]]) -> list[Item]:
    """One item for each fragment of the plan."""
    lines: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in plan:
        line = {name: row[column] for name, column in LINE.items()}
        lines.setdefault((row["ledger_id"], row["fragment"]), []).append(line)
    return [
        Item(
            f"{ledger_id}:{fragment}",
            0,
            tuple(dict.fromkeys(str(line["bookie"]) for line in found)),
            json.dumps({"ledger": ledger_id, "fragment": fragment, "lines": found}),
        )
        for (ledger_id, fragment), found in sorted(lines.items())
    ]


# -- in a task -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RepairWork:
    """Mends one fragment, or with `is_dry` says what it would do. `run_id`: by which locks say who has them."""

    is_dry: bool
    run_id: str = ""

    async def carry_out(self, tools: Tools, item: Item) -> Outcome:
        tries = 0
        while True:
            try:
                return await self._attempt(tools, item)
            except LedgerLocked as error:
                # Another item of this run is a fragment of the same ledger, and will be done.
                is_ours = error.owner == self._owner
                tries += not is_ours
                if tries >= TRIES:
                    return Outcome(common.WAITING, {"error": str(error)})
            await asyncio.sleep(TURN_S if is_ours else AGAIN_S)

    @property
    def _owner(self) -> str:
        return f"bk spark repair, run {self.run_id}"

    async def _attempt(self, tools: Tools, item: Item) -> Outcome:
        """Raises `LedgerLocked` before anything has changed."""
        asked = json.loads(item.arguments)
        try:
            record, fragments = await tools.administration.fragments(asked["ledger"])
            fragment = next((each for each in fragments if each.first == asked["fragment"]), None)
            if (place := offloaded_to(record)) is not None:
                return Outcome(
                    SATISFIED, {"said": [f"offloaded: its entries are in {place}, and no bookie needs them"]}
                )
            if fragment is None:
                return Outcome(SATISFIED, {"said": ["the ledger has no such fragment any more"]})
            if not fragment.is_finished:
                return Outcome(LEFT_ALONE, {"said": ["it may still grow: its writer looks after it"]})
            return await self._mend(tools, record, fragment, asked["lines"])
        except LedgerNotFound:
            return Outcome(common.GONE, {"said": ["the ledger was deleted"]})
        except (BookieUnreachable, NotEnoughBookies) as error:
            return Outcome(common.WAITING, {"error": str(error)})
        except (*NEGATIVE, DigestMismatch) as error:
            return Outcome(LOST, {"error": str(error)})

    async def _mend(
        self, tools: Tools, record: LedgerMetadata, fragment: Fragment, lines: Sequence[Mapping[str, Any]]
    ) -> Outcome:
        renewed, replaced, said = await _needed(tools, record, fragment, lines)
        would = "would " if self.is_dry else ""
        entries = 0
        if replaced:
            names = ", ".join(fragment.ensemble[position] for position in replaced)
            if self.is_dry:
                said.append(f"would replace {names}")
            else:
                administration = tools.client.administration(owner=self._owner)
                move = await administration.replicate_fragment(
                    fragment, replaced, exclude=[BookieId(each) for each in tools.gone], bytes_per_s=tools.bytes_per_s
                )
                said += [f"{each.old} replaced by {each.new}" for each in move.replacements]
                entries += sum(len(fragment.stored(position)) for position in replaced)
        for bookie, runs in renewed.items():
            count = sum(map(len, runs))
            said.append(f"{would}renew {count:,} entries on {bookie}")
            if not self.is_dry:
                entries += await tools.administration.renew_entries(
                    record.ledger_id, bookie, runs, bytes_per_s=tools.bytes_per_s
                )
        outcome = common.DONE if renewed or replaced else SATISFIED
        return Outcome(outcome, {"said": said, "entries": entries})


async def _needed(
    tools: Tools, record: LedgerMetadata, fragment: Fragment, lines: Sequence[Mapping[str, Any]]
) -> tuple[dict[BookieId, list[range]], list[int], list[str]]:
    """What is still to be done: runs to renew by bookie, positions to replace; and what is not, in words."""
    renewed: dict[BookieId, list[range]] = {}
    replaced: dict[int, None] = {}
    said: list[str] = []
    bad: dict[BookieId, list[range]] = {}
    for line in lines:
        bookie = BookieId(line["bookie"])
        if bookie not in fragment.ensemble:
            said.append(f"{bookie} does not hold it any more")
        elif line["action"] == REPLACE and bookie in tools.registered:
            said.append(f"{bookie} is back")
        elif line["action"] == REPLACE:
            replaced[fragment.ensemble.index(bookie)] = None
        elif line["action"] == RENEW:
            bad.setdefault(bookie, []).append(range(line["first"], line["last"] + 1))
    for bookie, runs in bad.items():
        position = fragment.ensemble.index(bookie)
        if position in replaced:
            continue
        if bookie not in tools.registered:
            raise BookieUnreachable("it was to get entries again and is not registered: scrub again", bookie=bookie)
        ids = stored_in(fragment.stored(position), sorted(runs, key=lambda run: run.start))
        scan = await tools.administration.scan_replica(record, bookie, ids, pace=tools.pace(bookie))
        if scan.stopped is not None:
            raise scan.stopped
        if not scan.bad:
            said.append(f"{bookie} has all of them")
        elif bookie in tools.writable:
            renewed[bookie] = [range(run.first, run.last + 1) for run in scan.bad]
        else:
            replaced[position] = None
    return renewed, sorted(replaced), said


def _report(config: JobConfig, rows: Sequence[tuple[Any, ...]]) -> Report:
    outcomes = Counter(row[3] for row in rows)
    counted = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(outcomes.items())) or "the plan is empty"
    entries = sum(row[4] for row in rows)
    is_good = not any(outcome in (common.FAILED, common.WAITING, LOST) for outcome in outcomes)
    lead = f"{len(rows):,} fragments: {counted}; {entries:,} entries written"
    if config.mode == common.DRY_RUN:
        lead += "; a dry run, nothing was changed"
    sections = [
        Section("Outcomes", table=Table(("outcome", "fragments"), sorted(outcomes.items()), (1,))),
        Section(
            "Fragments",
            table=Table(("ledger", "fragment", "outcome", "entries", "detail"), [row[1:] for row in rows], (0, 1, 3)),
        ),
    ]
    return Report("Repair", lead, is_good, {"run": config.run_id, "mode": config.mode, **config.options}, sections)
