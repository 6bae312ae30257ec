"""Job `repair`: carries out a scrub's repair plan.

A plan is outdated as soon as it is written, so every item first reads the current state: the ledger's record, and the
bad entries. What was repaired, moved or deleted meanwhile is skipped, and a bookie that came back is not replaced.
Repeating an item does no harm. A fragment that may still grow belongs to its writer.

    renew    a bookie that answers gets the bad entries again, and no others; if it is read-only, another bookie
             replaces it
    replace  an unregistered bookie: all its entries are copied to another one, and then the record names that one

A replacement holds the ledger's auto-recovery lock. If another process has it, the item waits for some time, and then
reads the state again.

An item that cannot be repaired has the reason in its outcome: `waiting` if too few bookies answer or the ledger is
locked; `lost` if no good copy is left.
Source: spark 5.2.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

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

OPTIONS = (Option("plan", None, "directory of a scrub's repair plan: DIR/RUN/plan", metavar="DIR"),)
ACTIONS = "run_id STRING, ledger_id BIGINT, fragment BIGINT, outcome STRING, entries BIGINT, detail STRING"
# Arguments of an item for each row of the plan: name -> column.
LINE = {"bookie": "bookie", "action": "action", "first": "first_entry", "last": "last_entry"}
TURN_S = 1.0  # before retrying a ledger that another item of the run has locked
SATISFIED, LEFT_ALONE, LOST = "satisfied", "left-alone", "lost"


def job(spark: Any, config: JobConfig) -> Any:
    """Return what was done, a row for each fragment. `dry-run`: what would be done, by the current state."""
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
        explanation = detail.get("error") or "; ".join(detail.get("said", ()))
        rows.append((config.run_id, int(ledger_id), int(fragment), outcome, detail.get("entries", 0), explanation))
    rows.sort()
    frame = common.save(common.frame_of(spark, rows, ACTIONS), config, "actions")
    return Complete(frame, _report(config, rows))


def plan_rows(spark: Any, path: str) -> list[dict[str, Any]]:
    from pyspark.errors import AnalysisException

    try:
        columns = common.reader_of(spark).parquet(path).columns
        frame = common.reader_of(spark).schema(REPAIRS).parquet(path)
    except AnalysisException as error:
        raise InvalidArgument(f"plan={path!r}: no repair plan there; a scrub with --output writes one") from error
    if absent := [name for name in frame.columns if name not in columns]:
        raise InvalidArgument(
            f"plan={path!r}: not a repair plan, it has no column {absent[0]}; a scrub with --output writes DIR/RUN/plan"
        )
    plan: list[dict[str, Any]] = frame.toArrow().to_pylist()
    return plan


def items_of(plan: Iterable[Mapping[str, Any]]) -> list[Item]:
    """Return one item for each fragment of the plan."""
    lines: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for row in plan:
        line = {name: row[column] for name, column in LINE.items()}
        lines.setdefault((row["ledger_id"], row["fragment"]), []).append(line)
    return [
        Item(
            f"{ledger_id}:{fragment}",
            0,
            tuple(dict.fromkeys(str(line["bookie"]) for line in lines_of_fragment)),
            json.dumps({"ledger": ledger_id, "fragment": fragment, "lines": lines_of_fragment}),
        )
        for (ledger_id, fragment), lines_of_fragment in sorted(lines.items())
    ]


# -- in a task -------------------------------------------------------------------------------------------------------


class RepairWork(Struct, frozen=True):
    """Repair of one fragment. `is_dry`: report what would be done. `run_id`: names the owner of locks."""

    is_dry: bool
    run_id: str = ""

    async def carry_out(self, tools: Tools, item: Item) -> Outcome:
        tries = 0
        while True:
            try:
                return await self._attempt(tools, item)
            except LedgerLocked as error:
                # If this run holds the lock, another item has a fragment of the same ledger, and will release it.
                is_ours = error.owner == self._owner
                tries += not is_ours
                if tries >= TRIES:
                    return Outcome(common.WAITING, {"error": str(error)})
            await asyncio.sleep(TURN_S if is_ours else AGAIN_S)

    @property
    def _owner(self) -> str:
        return f"bk spark repair, run {self.run_id}"

    async def _attempt(self, tools: Tools, item: Item) -> Outcome:
        """Repair the fragment. Raises `LedgerLocked` before any change."""
        arguments = json.loads(item.arguments)
        try:
            record, fragments = await tools.administration.fragments(arguments["ledger"])
            fragment = next((candidate for candidate in fragments if candidate.first == arguments["fragment"]), None)
            if (place := offloaded_to(record)) is not None:
                return Outcome(
                    SATISFIED, {"said": [f"offloaded: its entries are in {place}, and no bookie needs them"]}
                )
            if fragment is None:
                return Outcome(SATISFIED, {"said": ["the ledger no longer has this fragment"]})
            if not fragment.is_finished:
                return Outcome(LEFT_ALONE, {"said": ["it may still grow: its writer is responsible for it"]})
            return await self._repair(tools, record, fragment, arguments["lines"])
        except LedgerNotFound:
            return Outcome(common.GONE, {"said": ["the ledger was deleted"]})
        except (BookieUnreachable, NotEnoughBookies) as error:
            return Outcome(common.WAITING, {"error": str(error)})
        except (*NEGATIVE, DigestMismatch) as error:
            return Outcome(LOST, {"error": str(error)})

    async def _repair(
        self, tools: Tools, record: LedgerMetadata, fragment: Fragment, lines: Sequence[Mapping[str, Any]]
    ) -> Outcome:
        renewed, replaced, messages = await _needed(tools, record, fragment, lines)
        would = "would " if self.is_dry else ""
        entries = 0
        if replaced:
            names = ", ".join(fragment.ensemble[position] for position in replaced)
            if self.is_dry:
                messages.append(f"would replace {names}")
            else:
                administration = tools.client.administration(owner=self._owner)
                move = await administration.replicate_fragment(
                    fragment,
                    replaced,
                    exclude=[BookieId(bookie) for bookie in tools.gone],
                    bytes_per_s=tools.bytes_per_s,
                )
                messages += [f"{change.old} replaced by {change.new}" for change in move.replacements]
                entries += sum(len(fragment.stored(position)) for position in replaced)
        for bookie, runs in renewed.items():
            count = sum(map(len, runs))
            messages.append(f"{would}renew {count:,} entries on {bookie}")
            if not self.is_dry:
                entries += await tools.administration.renew_entries(
                    record.ledger_id, bookie, runs, bytes_per_s=tools.bytes_per_s
                )
        outcome = common.DONE if renewed or replaced else SATISFIED
        return Outcome(outcome, {"said": messages, "entries": entries})


async def _needed(
    tools: Tools, record: LedgerMetadata, fragment: Fragment, lines: Sequence[Mapping[str, Any]]
) -> tuple[dict[BookieId, list[range]], list[int], list[str]]:
    """Return the pending work: runs to renew by bookie, positions to replace, and messages about what is not needed."""
    renewed: dict[BookieId, list[range]] = {}
    replaced: dict[int, None] = {}
    messages: list[str] = []
    bad: dict[BookieId, list[range]] = {}
    for line in lines:
        bookie = BookieId(line["bookie"])
        if bookie not in fragment.ensemble:
            messages.append(f"{bookie} no longer holds it")
        elif line["action"] == REPLACE and bookie in tools.registered:
            messages.append(f"{bookie} is back")
        elif line["action"] == REPLACE:
            replaced[fragment.ensemble.index(bookie)] = None
        elif line["action"] == RENEW:
            bad.setdefault(bookie, []).append(range(line["first"], line["last"] + 1))
    for bookie, runs in bad.items():
        position = fragment.ensemble.index(bookie)
        if position in replaced:
            continue
        if bookie not in tools.registered:
            raise BookieUnreachable("it needs entries again and is not registered: scrub again", bookie=bookie)
        ids = stored_in(fragment.stored(position), sorted(runs, key=lambda run: run.start))
        scan = await tools.administration.scan_replica(record, bookie, ids, pace=tools.pace(bookie))
        if scan.stopped is not None:
            raise scan.stopped
        if not scan.bad:
            messages.append(f"{bookie} has all of them")
        elif bookie in tools.writable:
            renewed[bookie] = [range(run.first, run.last + 1) for run in scan.bad]
        else:
            replaced[position] = None
    return renewed, sorted(replaced), messages


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
