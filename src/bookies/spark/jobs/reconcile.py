"""`reconcile`: what does not fit together. Changes nothing; every finding is looked at twice before it is told.

    unreferenced    a ledger that no log names, older than `older_than`. It may belong to an application that uses
                    ledgers directly: its labels are shown
    missing-ledger  a log names a ledger that does not exist: readers of the log fail there
    unknown-bookie  a record names a bookie that is neither registered nor has a cookie
    leftover        a bookie holds entries of a ledger that does not exist: space that a deletion has not returned yet

No request lists a bookie's ledgers. What can be asked is whether it has entries of a given one, so leftovers are
looked for under the ids below the highest one in use that no ledger has: at most `probe` of them, the lowest first.
Source: spark 5.5; pains 24 and 52.
"""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from bookies.client.transport.watcher import DOWN
from bookies.errors import BookieUnreachable, LedgerNotFound, LedgerUnknownToBookie, LogNotFound
from bookies.model import BookieId
from bookies.runtime.tasks import all_of
from bookies.spark.jobs.complete import Complete
from bookies.spark.jobs.shared import common
from bookies.spark.jobs.shared.common import JobConfig, Option, Outcome, Tools
from bookies.spark.jobs.shared.packing import Item
from bookies.spark.jobs.shared.report import Bars, Report, Section, Table

OPTIONS = (
    Option("older_than", 24.0, "hours: younger ledgers that no log names may be on their way into one", float),
    Option("probe", 100_000, "how many unused ledger ids to look for on each bookie", int),
)
FINDINGS = "run_id STRING, kind STRING, ledger_id BIGINT, log STRING, bookie STRING, entries BIGINT, detail STRING"
UNREFERENCED, MISSING_LEDGER, UNKNOWN_BOOKIE, LEFTOVER = "unreferenced", "missing-ledger", "unknown-bookie", "leftover"
PROBES_PER_ITEM = 1000
PROBES_AT_ONCE = 16

Finding = tuple[str, int, str, str, int, str]  # kind, ledger, log, bookie, entries, detail


def job(spark: Any, config: JobConfig) -> Any:
    """The findings, one row each."""
    return complete(spark, config).frame


def complete(spark: Any, config: JobConfig) -> Complete:
    config = common.checked(config, OPTIONS)
    tables = {name: common.table(spark, config, name) for name in ("manifests", "ledgers", "fragments", "bookies")}
    bookies = tables["bookies"].select("bookie", "mode").toArrow().to_pylist()
    ids = common.ask(config.uri, common.ledger_ids)
    gaps = list(islice(unused(ids), int(config.options["probe"])))
    suspects = _lost(tables)
    registered = [row["bookie"] for row in bookies if row["mode"] != DOWN]
    run = common.execute(spark, config, "reconcile", [*lost_items(suspects), *probe_items(gaps, registered)], Look())
    if config.mode == common.PLAN:
        return Complete.planned("reconcile", run)
    found: list[Finding] = [*_unreferenced(tables, config), *_unknown_bookies(tables)]
    failed = []
    for name, outcome, detail in run.details():
        found += [_finding(each) for each in detail.get("found", ())]
        if outcome == common.FAILED:
            failed.append((name, str(detail["error"])))
    found.sort()
    rows = [(config.run_id, *each) for each in found]
    frame = common.save(common.frame_of(spark, rows, FINDINGS), config, "findings")
    return Complete(frame, _report(config, found, failed, len(gaps), len(registered)))


def _finding(row: Sequence[Any]) -> Finding:
    kind, ledger_id, log, bookie, entries, detail = row
    return str(kind), int(ledger_id), str(log), str(bookie), int(entries), str(detail)


def unused(ids: Iterable[int]) -> Iterable[int]:
    """The ids below the highest of these that none of them is, ascending."""
    at = 0
    for ledger_id in sorted(ids):
        yield from range(at, ledger_id)
        at = ledger_id + 1


# -- by tables alone -------------------------------------------------------------------------------------------------


def _unreferenced(tables: dict[str, Any], config: JobConfig) -> list[Finding]:
    from pyspark.sql import functions as f

    limit = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=float(config.options["older_than"]))
    named = tables["manifests"].select("ledger_id").distinct()
    # A record without a time of creation is old: it was written before records had one.
    old = tables["ledgers"].where(f.col("created").isNull() | (f.col("created") < f.lit(limit)))
    found = old.join(named, "ledger_id", "left_anti").select("ledger_id", "state", "length", "last_entry", "labels")
    return [
        (UNREFERENCED, row["ledger_id"], "", "", _count(row["last_entry"]), _described(row))
        for row in found.toArrow().to_pylist()
    ]


def _count(last: int | None) -> int:
    return 0 if last is None else last + 1


def _described(row: dict[str, Any]) -> str:
    labels = ", ".join(f"{name}={value}" for name, value in row["labels"]) or "no labels"
    size = f"{row['length']:,} bytes" if row["length"] is not None else row["state"]
    return f"{size}, {labels}"


def _unknown_bookies(tables: dict[str, Any]) -> list[Finding]:
    from pyspark.sql import functions as f

    held = tables["fragments"].select("ledger_id", "first_entry", f.explode("ensemble").alias("bookie"))
    found = held.join(tables["bookies"].select("bookie"), "bookie", "left_anti").toArrow().to_pylist()
    return [
        (UNKNOWN_BOOKIE, row["ledger_id"], "", row["bookie"], 0, f"in the fragment from entry {row['first_entry']}")
        for row in found
    ]


def _lost(tables: dict[str, Any]) -> list[dict[str, Any]]:
    named = tables["manifests"].select("log", "seq", "ledger_id")
    lost: list[dict[str, Any]] = named.join(tables["ledgers"], "ledger_id", "left_anti").toArrow().to_pylist()
    return lost


# -- asked again, in tasks -------------------------------------------------------------------------------------------


def lost_items(suspects: Iterable[dict[str, Any]]) -> list[Item]:
    """Logs that named a missing ledger when the tables were read, which was not at one moment."""
    return [
        Item(f"log:{row['log']}:{row['seq']}", 0, (), json.dumps({"log": row["log"], "ledger": row["ledger_id"]}))
        for row in suspects
    ]


def probe_items(ids: Sequence[int], bookies: Sequence[str]) -> list[Item]:
    """Ask each bookie for ledgers that do not exist."""
    items = []
    for at in range(0, len(ids), PROBES_PER_ITEM):
        part = ids[at : at + PROBES_PER_ITEM]
        for bookie in bookies:
            arguments = json.dumps({"bookie": bookie, "ids": part})
            items.append(Item(f"leftover:{bookie}:{part[0]}-{part[-1]}", 0, (bookie,), arguments))
    return items


@dataclass(frozen=True)
class Look:
    """Asks about one log, or one bookie."""

    async def carry_out(self, tools: Tools, item: Item) -> Outcome:
        asked = json.loads(item.arguments)
        if "log" in asked:
            return await _look_at_log(tools, asked["log"], asked["ledger"])
        bookie, found = BookieId(asked["bookie"]), []
        for at in range(0, len(asked["ids"]), PROBES_AT_ONCE):
            part = asked["ids"][at : at + PROBES_AT_ONCE]
            found += [each for each in await all_of(_held(tools, bookie, each) for each in part) if each]
        return Outcome(common.DONE, {"found": found})


async def _look_at_log(tools: Tools, name: str, ledger_id: int) -> Outcome:
    try:
        manifest = await tools.client.log(name).manifest()
    except LogNotFound:
        return Outcome(common.GONE, {})
    if ledger_id not in manifest.ledger_ids or await _exists(tools, ledger_id):
        return Outcome(common.DONE, {})
    position = manifest.ledger_ids.index(ledger_id)
    said = f"extent {position + 1} of {len(manifest.extents)}; readers of the log fail there"
    rows = manifest.extents[position].rows or 0
    return Outcome(common.DONE, {"found": [(MISSING_LEDGER, ledger_id, name, "", rows, said)]})


async def _held(tools: Tools, bookie: BookieId, ledger_id: int) -> Finding | None:
    try:
        runs = await tools.administration.list_entries(bookie, ledger_id)
    except LedgerUnknownToBookie:
        return None
    except BookieUnreachable as error:
        tools.gone[bookie] = error.message
        raise
    if not runs or await _exists(tools, ledger_id):
        return None
    said = f"entries {runs[0].start} to {runs[-1].stop - 1}"
    return LEFTOVER, ledger_id, "", bookie, sum(map(len, runs)), said


async def _exists(tools: Tools, ledger_id: int) -> bool:
    try:
        await tools.administration.record(ledger_id)
    except LedgerNotFound:
        return False
    return True


def _report(
    config: JobConfig, found: Sequence[Finding], failed: Sequence[tuple[str, str]], probed: int, bookies: int
) -> Report:
    kinds = Counter(each[0] for each in found)
    said = ", ".join(f"{count:,} {kind}" for kind, count in sorted(kinds.items())) or "everything fits together"
    sections = [
        Section(
            "Findings",
            table=Table(("kind", "findings"), sorted(kinds.items()), (1,)),
            plot=Bars([(kind, count, f"{count:,}") for kind, count in sorted(kinds.items())]),
        ),
        Section(
            "Each finding",
            f"{probed:,} unused ledger ids were looked for on {bookies:,} bookies.",
            Table(("kind", "ledger", "log", "bookie", "entries", "detail"), found, (1, 4)),
        ),
        Section("Items that failed", table=Table(("item", "why"), failed)),
    ]
    is_good = not failed and all(kind == UNREFERENCED for kind in kinds)
    return Report("Reconcile", said, is_good, {"run": config.run_id, **config.options}, sections)
