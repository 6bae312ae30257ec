"""Job `usage`: where the bytes are, by label, log, age and bookie; how evenly; the largest and the hottest ledgers.

Payload counts each byte once, `stored` counts every copy. The length of a closed ledger is in its record; for an open
one the bookies are asked. All else is queries over the tables of `spark/read/tables.py`. A run with output keeps these
tables beside its results, so that runs can be compared (`tables`: use those of another run).

*Hot* means growth: bytes per second since creation, of ledgers created within `hot_hours`; the protocol has no request
for read rates. Deleting a log frees its `stored` bytes. Compaction can free at most the difference between what a
bookie's disks hold and what the records name. Source: spark 5.5.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from bookies.errors import BookieUnreachable, InvalidArgument, LedgerNotFound, ReadFailed
from bookies.spark.jobs.complete import Complete
from bookies.spark.jobs.shared import common
from bookies.spark.jobs.shared.common import JobConfig, Option, Outcome, Tools
from bookies.spark.jobs.shared.packing import Item
from bookies.spark.jobs.shared.report import Report, Section, Table
from bookies.units import decimal_size_text

OPTIONS = (
    Option("top", 20, "number of ledgers to list", int),
    Option("hot_hours", 24.0, "rank only ledgers created within this many hours as hottest", float),
    Option("tables", None, "read the tables of an earlier run, DIR/RUN/tables, instead of the cluster", metavar="DIR"),
)
USAGE = "run_id STRING, section STRING, name STRING, ledgers BIGINT, bytes BIGINT, stored BIGINT"
TABLES = ("ledgers", "replicas", "manifests", "bookies")
AGES = (
    (1, "under an hour"),
    (24, "under a day"),
    (168, "under a week"),
    (720, "under 30 days"),
    (8766, "under a year"),
)
OLDER, UNKNOWN_AGE, NO_LABEL, NO_LOG = "older", "unknown", "(no label)", "(no log)"


def job(spark: Any, config: JobConfig) -> Any:
    """Return rows (section, name, ledgers, bytes, stored); sections label, log, age, bookie, day, largest, hottest."""
    return complete(spark, config).frame


def complete(spark: Any, config: JobConfig) -> Complete:
    config = common.checked(config, OPTIONS)
    frames, is_saved = tables_of(spark, config)
    is_stored = is_saved or (config.directory is not None and config.mode != common.PLAN)
    with common.kept(frames, is_stored=is_stored) as tables:
        return _complete(spark, config, tables, is_saved)


def _complete(spark: Any, config: JobConfig, frames: Mapping[str, Any], is_saved: bool) -> Complete:
    is_open = frames["ledgers"].where("length IS NULL").select("ledger_id")
    ids = [] if is_saved else is_open.toArrow().column("ledger_id").to_pylist()
    items = [Item(str(ledger_id), 0, (), json.dumps({"ledger": ledger_id})) for ledger_id in ids]
    run = common.execute(spark, config, "usage", items, Measure())
    if config.mode == common.PLAN:
        return Complete.planned("usage", run)
    lengths = [(int(name), detail["length"]) for name, _, detail in run.details() if "length" in detail]
    measured = common.frame_of(spark, lengths, "ledger_id BIGINT, measured BIGINT")
    sums = analyse(frames, measured, datetime.datetime.now(datetime.UTC), config)
    rows = [(config.run_id, *row) for row in sums]
    frame = common.save(common.frame_of(spark, rows, USAGE), config, "usage")
    space = [row for row in frames["bookies"].toArrow().to_pylist() if row["total_bytes"]]
    return Complete(frame, report_of(config, sums, space, unmeasured=len(items) - len(lengths)))


def tables_of(spark: Any, config: JobConfig) -> tuple[dict[str, Any], bool]:
    """Return the tables, and whether they are those of an earlier run."""
    if kept := config.options["tables"]:
        from pyspark.errors import AnalysisException

        try:
            return {name: common.reader_of(spark).parquet(f"{kept}/{name}") for name in TABLES}, True
        except AnalysisException as error:
            raise InvalidArgument(
                f"tables={kept!r}: no tables there; `usage --output DIR --run-id RUN` keeps them in DIR/RUN/tables"
            ) from error
    frames = {name: common.table(spark, config, name) for name in TABLES}
    if config.directory is None or config.mode == common.PLAN:
        return frames, False
    return {name: common.save(frame, config, f"tables/{name}") for name, frame in frames.items()}, False


class Measure(Struct, frozen=True):
    """Measurement of an open ledger: its length at its last confirmed entry."""

    async def carry_out(self, tools: Tools, item: Item) -> Outcome:
        try:
            async with await tools.administration.open(json.loads(item.arguments)["ledger"]) as ledger:
                last = ledger.last_add_confirmed
                length = (await ledger.read_entry(last)).length if last >= 0 else 0
        except LedgerNotFound:
            return Outcome(common.GONE, {})
        except (BookieUnreachable, ReadFailed) as error:
            return Outcome(common.WAITING, {"error": str(error)})
        return Outcome(common.DONE, {"length": length, "last_entry": last})


def analyse(
    frames: Mapping[str, Any], measured: Any, now: datetime.datetime, config: JobConfig
) -> list[tuple[str, str, int, int, int]]:
    """Return section, name, ledgers, bytes and stored, in display order."""
    from pyspark.sql import functions as f

    length = f.coalesce("length", "measured", f.lit(0)).alias("bytes")
    ledgers = frames["ledgers"].join(measured, "ledger_id", "left")
    ledgers = ledgers.select("ledger_id", "created", "labels", "write_quorum", length).withColumn(
        "stored", f.col("bytes") * f.col("write_quorum")
    )
    hours = (f.lit(now).cast("double") - f.col("created").cast("double")) / 3600
    age = f.when(f.col("created").isNull(), UNKNOWN_AGE)
    for limit, name in AGES:
        age = age.when(hours < limit, name)
    labels = f.when(f.size("labels") > 0, f.map_entries("labels")).otherwise(
        f.array(f.struct(f.lit(NO_LABEL).alias("key"), f.lit("").alias("value")))
    )
    label = f.concat_ws("=", "label.key", f.when(f.col("label.value") != "", f.col("label.value")))
    by_label = ledgers.withColumn("label", f.explode(labels)).withColumn("name", label)
    owners = frames["manifests"].select("ledger_id", "log").distinct()
    by_log = ledgers.join(owners, "ledger_id", "left").withColumn("name", f.coalesce("log", f.lit(NO_LOG)))
    by_age = ledgers.withColumn("name", age.otherwise(OLDER))
    by_day = ledgers.where("created IS NOT NULL").withColumn("name", f.date_format("created", "yyyy-MM-dd"))
    rows = []
    for section, frame in (("label", by_label), ("log", by_log), ("age", by_age), ("day", by_day)):
        sums = frame.groupBy("name").agg(f.count("*").alias("ledgers"), f.sum("bytes"), f.sum("stored").alias("stored"))
        order = sums.orderBy(f.col("name") if section == "day" else f.desc("stored"), "name")
        rows += [(section, *row.values()) for row in order.toArrow().to_pylist()]
    held = frames["replicas"].groupBy("bookie").agg(f.countDistinct("ledger_id"), f.sum(f.coalesce("bytes", f.lit(0))))
    everyone = frames["bookies"].select("bookie").join(held, "bookie", "full").na.fill(0).orderBy("bookie")
    for bookie, count, size in (row.values() for row in everyone.toArrow().to_pylist()):
        rows.append(("bookie", bookie, count, size, size))
    rate = f.col("bytes") / f.greatest(hours * 3600, f.lit(1.0))
    hot = ledgers.where(hours < float(config.options["hot_hours"])).orderBy(f.desc(rate), "ledger_id")
    for section, frame in (("largest", ledgers.orderBy(f.desc("bytes"), "ledger_id")), ("hottest", hot)):
        top = frame.limit(int(config.options["top"])).select(
            f.col("ledger_id").cast("string").alias("name"), "bytes", "stored"
        )
        rows += [(section, row["name"], 1, row["bytes"], row["stored"]) for row in top.toArrow().to_pylist()]
    return rows


def gini(sizes: Sequence[float]) -> float:
    """Return the Gini coefficient: 0 all equal, near 1 all in one place."""
    ordered, total, count = sorted(sizes), sum(sizes), len(sizes)
    if not total:
        return 0.0
    return 2 * sum(rank * size for rank, size in enumerate(ordered, 1)) / (count * total) - (count + 1) / count


def lorenz(sizes: Sequence[float]) -> list[tuple[float, float]]:
    """Return points (share of the bookies, share of the bytes that the emptiest of them hold)."""
    ordered, total = sorted(sizes), sum(sizes) or 1
    points, so_far = [(0.0, 0.0)], 0.0
    for rank, size in enumerate(ordered, 1):
        so_far += size
        points.append((rank / len(ordered), so_far / total))
    return points


def report_of(
    config: JobConfig,
    rows: Sequence[tuple[str, str, int, int, int]],
    space: Sequence[dict[str, Any]],
    *,
    unmeasured: int,
) -> Report:
    by_section: dict[str, list[tuple[str, int, int, int]]] = {}
    for section, name, count, size, stored_size in rows:
        by_section.setdefault(section, []).append((name, count, size, stored_size))
    bookies = by_section.get("bookie", [])
    sizes = [size for _, _, _, size in bookies]
    mean = sum(sizes) / len(sizes) if sizes else 0.0
    total = sum(size for _, _, size, _ in by_section.get("age", ()))
    stored = sum(size for _, _, _, size in by_section.get("age", ()))
    ledgers = sum(count for _, count, _, _ in by_section.get("age", ()))
    skew = max(sizes, default=0) / mean if mean else 1.0
    lead = (
        f"{ledgers:,} ledgers, {decimal_size_text(total)} of payload, {decimal_size_text(stored)} stored; "
        f"fullest bookie {skew:.2f} times the mean, Gini {gini(sizes):.3f}"
    )
    if unmeasured:
        lead += f"; {unmeasured:,} open ledgers could not be measured"
    sections = [
        _section("By label", by_section.get("label", ())),
        _section("By log", by_section.get("log", ()), "`stored` is what deleting the log would free."),
        _section("By age", by_section.get("age", ())),
        Section(
            "By bookie",
            f"Closed ledgers only, by their records. The mean is {decimal_size_text(mean)}.",
            Table(
                ("bookie", "ledgers", "stored", "of the mean"),
                [(name, count, size, size / mean if mean else 0.0) for name, count, _, size in bookies],
                (1, 2, 3),
                sizes,
            ),
        ),
        Section("Evenness", f"Gini {gini(sizes):.3f}", _curve(sizes), is_printed=False),
        _disks(space, {name: size for name, _, _, size in bookies}),
        _section("Largest ledgers", by_section.get("largest", ())),
        _section("Hottest ledgers", by_section.get("hottest", ()), "Most bytes per second since creation."),
        _section("Written by day", by_section.get("day", ()), "Ledgers by the day of creation."),
    ]
    return Report("Usage", lead, True, {"run": config.run_id, **config.options}, sections)


def _section(title: str, rows: Sequence[tuple[str, int, int, int]], text: str = "") -> Section:
    headers = ("name", "ledgers", "bytes", "stored")
    return Section(title, text, Table(headers, rows, (1, 2, 3), [stored for _, _, _, stored in rows]))


def _curve(sizes: Sequence[int]) -> Table:
    """Return the Lorenz curve in about ten steps."""
    points = lorenz(sizes)[1:]
    step = max(1, len(points) // 10)
    shown = points[::-step][::-1]
    rows = [(f"{x:.0%}", f"{y:.0%}") for x, y in shown]
    return Table(("bookies, the emptiest first", "bytes"), rows, (0, 1), [y for _, y in shown])


def _disks(space: Sequence[dict[str, Any]], live: dict[str, int]) -> Section:
    rows = []
    for row in space:
        used = row["total_bytes"] - row["free_bytes"]
        known = live.get(row["bookie"], 0)
        rows.append((row["bookie"], row["total_bytes"], row["free_bytes"], used, known, max(0, used - known)))
    text = (
        "`beyond`: on the disks and in no record: deleted ledgers, open ones, indexes, journals, and other files on "
        "these disks. Compaction can free at most that."
    )
    headers = ("bookie", "total", "free", "used", "in records", "beyond")
    return Section("Disks", text, Table(headers, rows, (1, 2, 3, 4, 5)))
