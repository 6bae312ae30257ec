"""Job `reconcile`: inconsistencies of a cluster. Read-only; every finding is checked twice before it is reported.

    unreferenced    a ledger older than `older_than` that no log names. It may belong to an application that uses
                    ledgers directly: its labels are shown
    missing-ledger  a log names a ledger that does not exist: readers of the log fail there
    unknown-bookie  a record names a bookie that is neither registered nor has a cookie
    leftover        a bookie holds entries of a ledger that does not exist: space that a deletion has not freed yet

No request lists a bookie's ledgers, but a bookie can be asked whether it has entries of a given ledger. So leftovers
are searched among unused ids below the highest id in use: at most `probe` of them, the lowest first.
Source: spark 5.5; pains 24 and 52.
"""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

from msgspec import Struct

from bookies.client.transport.watcher import DOWN
from bookies.errors import BookieUnreachable, LedgerNotFound, LedgerUnknownToBookie, LogNotFound
from bookies.model import BookieId
from bookies.runtime.tasks import all_of
from bookies.spark.jobs.complete import Complete
from bookies.spark.jobs.shared import common
from bookies.spark.jobs.shared.common import JobConfig, Option, Outcome, Tools
from bookies.spark.jobs.shared.packing import Item
from bookies.spark.jobs.shared.report import Report, Section, Table, counted

OPTIONS = (
    Option(
        "older_than",
        24.0,
        "report unreferenced ledgers older than this, in hours; a younger one may still be added to a log",
        float,
    ),
    Option("probe", 100_000, "number of unused ledger ids to check on each bookie", int),
)
FINDINGS = "run_id STRING, kind STRING, ledger_id BIGINT, log STRING, bookie STRING, entries BIGINT, detail STRING"
UNREFERENCED, MISSING_LEDGER, UNKNOWN_BOOKIE, LEFTOVER = "unreferenced", "missing-ledger", "unknown-bookie", "leftover"
PROBES_PER_ITEM = 1000
PROBES_AT_ONCE = 16

Finding = tuple[str, int, str, str, int, str]  # kind, ledger, log, bookie, entries, detail


def job(spark: Any, config: JobConfig) -> Any:
    """Return the findings, one row each."""
    return complete(spark, config).frame


def complete(spark: Any, config: JobConfig) -> Complete:
    config = common.checked(config, OPTIONS)
    tables = {name: common.table(spark, config, name) for name in ("manifests", "ledgers", "fragments", "bookies")}
    with common.kept(tables) as kept:
        return _complete(spark, config, kept)


def _complete(spark: Any, config: JobConfig, tables: Mapping[str, Any]) -> Complete:
    bookies = tables["bookies"].select("bookie", "mode").toArrow().to_pylist()
    ids = common.ask(config.uri, common.ledger_ids)
    gaps = list(islice(unused(ids), int(config.options["probe"])))
    suspects = _lost(tables)
    registered = [row["bookie"] for row in bookies if row["mode"] != DOWN]
    run = common.execute(spark, config, "reconcile", [*lost_items(suspects), *probe_items(gaps, registered)], Check())
    if config.mode == common.PLAN:
        return Complete.planned("reconcile", run)
    findings: list[Finding] = [*_unreferenced(tables, config), *_unknown_bookies(tables)]
    failed = []
    for name, outcome, detail in run.details():
        findings += [_finding(finding_row) for finding_row in detail.get("found", ())]
        if outcome == common.FAILED:
            failed.append((name, str(detail["error"])))
    findings.sort()
    rows = [(config.run_id, *finding_row) for finding_row in findings]
    frame = common.save(common.frame_of(spark, rows, FINDINGS), config, "findings")
    return Complete(frame, _report(config, findings, failed, len(gaps), len(registered)))


def _finding(row: Sequence[Any]) -> Finding:
    finding_kind, ledger_id, log, bookie, entries, detail = row
    return str(finding_kind), int(ledger_id), str(log), str(bookie), int(entries), str(detail)


def unused(ids: Iterable[int]) -> Iterable[int]:
    """Yield the unused ids below the highest of `ids`, ascending."""
    at = 0
    for ledger_id in sorted(ids):
        yield from range(at, ledger_id)
        at = ledger_id + 1


# -- findings from the tables ----------------------------------------------------------------------------------------


def _unreferenced(tables: Mapping[str, Any], config: JobConfig) -> list[Finding]:
    from pyspark.sql import functions as f

    limit = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=float(config.options["older_than"]))
    named = tables["manifests"].select("ledger_id").distinct()
    # A record without a creation time is old: it was written before records had one.
    old = tables["ledgers"].where(f.col("created").isNull() | (f.col("created") < f.lit(limit)))
    unreferenced = old.join(named, "ledger_id", "left_anti").select(
        "ledger_id", "state", "length", "last_entry", "labels"
    )
    return [
        (UNREFERENCED, row["ledger_id"], "", "", _count(row["last_entry"]), _described(row))
        for row in unreferenced.toArrow().to_pylist()
    ]


def _count(last: int | None) -> int:
    return 0 if last is None else last + 1


def _described(row: dict[str, Any]) -> str:
    labels = ", ".join(f"{name}={value}" for name, value in row["labels"]) or "no labels"
    size = f"{row['length']:,} bytes" if row["length"] is not None else row["state"]
    return f"{size}, {labels}"


def _unknown_bookies(tables: Mapping[str, Any]) -> list[Finding]:
    from pyspark.sql import functions as f

    held = tables["fragments"].select("ledger_id", "first_entry", f.explode("ensemble").alias("bookie"))
    unknown = held.join(tables["bookies"].select("bookie"), "bookie", "left_anti").toArrow().to_pylist()
    return [
        (UNKNOWN_BOOKIE, row["ledger_id"], "", row["bookie"], 0, f"in the fragment from entry {row['first_entry']}")
        for row in unknown
    ]


def _lost(tables: Mapping[str, Any]) -> list[dict[str, Any]]:
    named = tables["manifests"].select("log", "ledger_id").distinct()
    lost: list[dict[str, Any]] = named.join(tables["ledgers"], "ledger_id", "left_anti").toArrow().to_pylist()
    return lost


# -- checks in tasks -------------------------------------------------------------------------------------------------


def lost_items(suspects: Iterable[dict[str, Any]]) -> list[Item]:
    """Return an item for each log that named a missing ledger, because the tables were not read at one moment."""
    return [
        Item(f"log:{row['log']}:{row['ledger_id']}", 0, (), json.dumps({"log": row["log"], "ledger": row["ledger_id"]}))
        for row in suspects
    ]


def probe_items(ids: Sequence[int], bookies: Sequence[str]) -> list[Item]:
    """Return items that ask each bookie for ledgers that do not exist."""
    items = []
    for at in range(0, len(ids), PROBES_PER_ITEM):
        part = ids[at : at + PROBES_PER_ITEM]
        for bookie in bookies:
            arguments = json.dumps({"bookie": bookie, "ids": part})
            items.append(Item(f"leftover:{bookie}:{part[0]}-{part[-1]}", 0, (bookie,), arguments))
    return items


class Check(Struct, frozen=True):
    """Check of one log, or one bookie."""

    async def carry_out(self, tools: Tools, item: Item) -> Outcome:
        arguments = json.loads(item.arguments)
        if "log" in arguments:
            return await _check_log(tools, arguments["log"], arguments["ledger"])
        bookie, leftovers = BookieId(arguments["bookie"]), []
        for at in range(0, len(arguments["ids"]), PROBES_AT_ONCE):
            part = arguments["ids"][at : at + PROBES_AT_ONCE]
            answers = await all_of(_held(tools, bookie, ledger_id) for ledger_id in part)
            leftovers += [finding for finding in answers if finding]
        return Outcome(common.DONE, {"found": leftovers})


async def _check_log(tools: Tools, name: str, ledger_id: int) -> Outcome:
    try:
        manifest = await tools.client.log(name).manifest()
    except LogNotFound:
        return Outcome(common.GONE, {})
    if ledger_id not in manifest.storages or await _exists(tools, ledger_id):
        return Outcome(common.DONE, {})
    lost = [place for place, storage in enumerate(manifest.storages, 1) if storage == ledger_id]
    extents = f"extent {lost[0]}" if len(lost) == 1 else f"{len(lost):,} extents from {lost[0]} on,"
    explanation = f"{extents} of {len(manifest.extents)}; readers of the log fail there"
    rows = sum(manifest.extents[place - 1].rows or 0 for place in lost)
    return Outcome(common.DONE, {"found": [(MISSING_LEDGER, ledger_id, name, "", rows, explanation)]})


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
    explanation = f"entries {runs[0].start} to {runs[-1].stop - 1}"
    return LEFTOVER, ledger_id, "", bookie, sum(map(len, runs)), explanation


async def _exists(tools: Tools, ledger_id: int) -> bool:
    try:
        await tools.administration.record(ledger_id)
    except LedgerNotFound:
        return False
    return True


def _report(
    config: JobConfig, findings: Sequence[Finding], failed: Sequence[tuple[str, str]], probed: int, bookies: int
) -> Report:
    counts = Counter(finding[0] for finding in findings)
    lead = counted(counts, "everything is consistent")
    sections = [
        Section(
            "Findings",
            table=Table(
                ("kind", "findings"), sorted(counts.items()), (1,), [count for _, count in sorted(counts.items())]
            ),
        ),
        Section(
            "Each finding",
            f"{probed:,} unused ledger ids were checked on {bookies:,} bookies.",
            Table(("kind", "ledger", "log", "bookie", "entries", "detail"), findings, (1, 4)),
        ),
        Section("Items that failed", table=Table(("item", "why"), failed)),
    ]
    is_good = not failed and all(finding_kind == UNREFERENCED for finding_kind in counts)
    return Report("Reconcile", lead, is_good, {"run": config.run_id, **config.options}, sections)
