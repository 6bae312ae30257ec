"""`offload`: copy sealed ledgers to Parquet files; later, and only when asked, let the bookies forget theirs.

1. Every part of a ledger is written by a task, read back, and compared with what the ledger gave.
2. When all parts of a ledger are done, their counts, bytes and CRCs must come to the ledger's own; then its index is
   written, every file is looked for once more, and the ledger's record gets the label that names the copy, by
   compare-and-swap.
3. With `delete_after`: copies that old are read again, all of them; then the record gets a second label, which says
   that the bookies need not keep the entries. Readers go to the files from then on.
4. Directories that no record names, and nobody has written to for `sweep_after`, are deleted.

A run that stops anywhere leaves the ledgers as they were, or offloaded; repeated, it goes on. Two runs at once make
two copies, and the record names the first; the other one is swept. Source: spark 5.3.
"""

from __future__ import annotations

import datetime
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bookies.client.read.offloaded import OffloadedFiles
from bookies.errors import InvalidArgument, LedgerNotFound, VersionConflict
from bookies.kernels import crc32c
from bookies.protocol.ledger.offload import PARQUET, Offload, given_up, is_given_up, offload_of, offloaded
from bookies.spark.base import runtime
from bookies.spark.jobs.complete import Complete
from bookies.spark.jobs.shared import common, ledger_selection
from bookies.spark.jobs.shared.common import JobConfig, Option, Outcome, Run, Tools
from bookies.spark.jobs.shared.packing import Item
from bookies.spark.jobs.shared.progress import size_text
from bookies.spark.jobs.shared.report import Report, Section, Table

if TYPE_CHECKING:
    from bookies.client.client import Client
    from bookies.model import LedgerMetadata

OPTIONS = (
    Option("to", None, "where the copies go: a directory, or a URI such as s3://bucket/ledgers", metavar="URI"),
    *ledger_selection.OPTIONS,
    Option("older_than", "7d", "only ledgers made so long ago", metavar="TIME"),
    Option("larger_than", 0, "only ledgers with more bytes than that", int),
    Option("delete_after", None, "let the bookies forget ledgers that were offloaded so long ago", metavar="TIME"),
    Option("sweep_after", "7d", "delete what lost attempts left, and nobody wrote to for so long", metavar="TIME"),
)
COPIES = (
    "run_id STRING, ledger_id BIGINT, outcome STRING, entries BIGINT, bytes BIGINT, files BIGINT, uri STRING, "
    "detail STRING"
)
PART_SIZE = 512 << 20  # bytes of a ledger that one task copies
OFFLOADED, FORGOTTEN, SWEPT, ALREADY = "offloaded", "bookies-deleted", "swept", "already"


def job(spark: Any, config: JobConfig) -> Any:
    """What became of each ledger, a row each; directories that were swept too."""
    return complete(spark, config).frame


def complete(spark: Any, config: JobConfig) -> Complete:
    config = common.checked(config, OPTIONS)
    times = _times(config)
    if not config.options["to"]:
        raise InvalidArgument("option to is missing: where the copies go, a directory or a URI")
    common.refuse_speculation(spark)
    from bookies.spark.write import tier

    to = tier.absolute(str(config.options["to"]))
    cluster, records = common.ask(config.uri, lambda client: _chosen(client, config, times["older_than"]))
    due = [each for each in records if offload_of(each) is None]
    items = [item for record in due for item in items_of(record, to, cluster, config)]
    is_dry = config.mode == common.DRY_RUN
    directories = {item.name: str(json.loads(item.arguments)["directory"]) for item in items}
    run = common.execute(spark, config, "offload", items, CopyPart(is_dry), _still_there(directories))
    if config.mode == common.PLAN:
        return Complete.planned("offload", run)
    rows = _failed_parts(run)
    if is_dry:
        rows += [(each.ledger_id, "would offload", each.last_entry_id + 1, each.length, 0, to, "") for each in due]
    else:
        rows += _committed(spark, config, run, {each.ledger_id: each for each in due}, to, cluster)
    rows += _forgotten(spark, config, records, times["delete_after"])
    rows += _swept(config, to, cluster, times["sweep_after"], is_dry=is_dry)
    told = sorted((config.run_id, *row) for row in rows)
    frame = common.save(common.frame_of(spark, told, COPIES), config, "copies")
    return Complete(frame, _report(config, told))


def _times(config: JobConfig) -> dict[str, float]:
    """The options that are times, in seconds; without those that were not given."""
    names = ("older_than", "delete_after", "sweep_after")
    given = {name: config.options[name] for name in names if config.options[name] is not None}
    return {"delete_after": -1.0} | {name: ledger_selection.seconds_of(name, text) for name, text in given.items()}


async def _chosen(client: Client, config: JobConfig, older_s: float) -> tuple[str, list[LedgerMetadata]]:
    """The cluster's own id, and the sealed ledgers that are old and large enough."""
    chosen = await ledger_selection.select(client, config.options)
    before_ms = _now_ms() - older_s * 1000
    records = [
        record
        for record in chosen.records
        if record.is_closed
        and record.length >= config.options["larger_than"]
        and (record.ctime_ms is None or record.ctime_ms <= before_ms)
    ]
    return await client.administration().instance_id(), records


def _now_ms() -> int:
    return int(datetime.datetime.now(datetime.UTC).timestamp() * 1000)


def items_of(record: LedgerMetadata, to: str, cluster: str, config: JobConfig) -> list[Item]:
    """The parts of a ledger: of about `PART_SIZE` bytes, at least one."""
    from bookies.spark.write.tier import directory_of

    attempt = attempt_of(record, cluster, config.run_id)
    directory = directory_of(to, cluster, record.ledger_id, attempt)
    count = record.last_entry_id + 1
    parts = max(1, min(count, -(-record.length // PART_SIZE)))
    bounds = [count * index // parts for index in range(parts + 1)]
    return [
        Item(
            f"{record.ledger_id}:{first}",
            record.length // parts,
            tuple(record.ensemble_at(first)),
            json.dumps({"ledger": record.ledger_id, "first": first, "last": end - 1, "directory": directory}),
        )
        for first, end in pairwise(bounds)
    ]


def attempt_of(record: LedgerMetadata, cluster: str, run_id: str) -> str:
    """The name of a run's copy: the same when the run is repeated, and no other ledger's, cluster's or run's."""
    said = f"{cluster} {record.ledger_id} {record.ctime_ms} {record.length}".encode()
    return f"{run_id}-{crc32c(said):08x}"


# -- in a task -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CopyPart:
    """Writes entries of one ledger to files, and reads them back."""

    is_dry: bool = False

    async def carry_out(self, tools: Tools, item: Item) -> Outcome:
        from bookies.spark.write import tier

        asked = json.loads(item.arguments)
        ledger_id, first, last = asked["ledger"], asked["first"], asked["last"]
        files = runtime.worker().files()
        if last < first or self.is_dry:
            return Outcome(common.DONE, {"parts": []})
        try:
            reader = await tools.administration.open(ledger_id)
        except LedgerNotFound:
            return Outcome(common.GONE, {"error": "the ledger was deleted"})
        writer = await files.run(tier.PartsWriter, asked["directory"], ledger_id)
        try:
            async with reader:
                async for batch in reader.read_batches(first, last):
                    await files.run(writer.append, batch)
                    await tools.spent(reader.metadata.ensemble_at(batch.first_entry_id), batch.size)
            parts = await files.run(writer.finish)
        except BaseException:
            writer.discard()
            raise
        for part in parts:
            await files.run(tier.check_part, asked["directory"], ledger_id, part)
        return Outcome(common.DONE, {"parts": [part.to_json() for part in parts]})


@dataclass(frozen=True)
class CommitCopy:
    """Writes the index of a copy whose parts are complete, and names the copy in the ledger's record."""

    async def carry_out(self, tools: Tools, item: Item) -> Outcome:
        from bookies.spark.write import tier

        asked = json.loads(item.arguments)
        ledger_id, attempt, directory = asked["ledger"], asked["attempt"], asked["directory"]
        try:
            record = await tools.client.metadata(ledger_id)
        except LedgerNotFound:
            return Outcome(common.GONE, {"error": "the ledger was deleted"})
        found = offload_of(record)
        if found is not None:  # This run, before it was interrupted, or another one.
            return Outcome(common.DONE if found.attempt == attempt else ALREADY, {"uri": found.uri, **_counts(found)})
        parts = [tier.Part.from_json(each) for each in asked["parts"]]
        index, content = tier.index_of(ledger_id, attempt, parts)
        files = runtime.worker().files()
        crc = await files.run(tier.write_index, directory, index)
        # The index has made the directory young, so nobody begins to sweep it now. Somebody may have done so before.
        if lost := await files.run(tier.lost_parts, directory, parts):
            return Outcome(
                common.FAILED,
                {"error": f"{directory}/{lost[0]} is gone, or not what was written: repeat the run, and it is again"},
            )
        copy = Offload(attempt, directory, PARQUET, content.rows, content.size, content.crc, crc, _now_ms())
        try:
            await tools.administration.change_record(ledger_id, lambda record: offloaded(record, copy))
        except LedgerNotFound:
            return Outcome(common.GONE, {"error": "the ledger was deleted"})
        return Outcome(common.DONE, {"uri": directory, **_counts(copy), "files": len(parts)})


def _counts(copy: Offload) -> dict[str, int]:
    return {"entries": copy.rows, "bytes": copy.bytes}


@dataclass(frozen=True)
class Forget:
    """Reads a copy again; then the record says that the bookies need not keep theirs."""

    async def carry_out(self, tools: Tools, item: Item) -> Outcome:
        asked = json.loads(item.arguments)
        try:
            record = await tools.client.metadata(asked["ledger"])
            copied = await runtime.worker().files().run(_checked, record)
            await tools.administration.change_record(
                record.ledger_id, lambda record: given_up(record, copied.attempt, _now_ms())
            )
        except LedgerNotFound:
            return Outcome(common.GONE, {"error": "the ledger was deleted"})
        return Outcome(FORGOTTEN, {"uri": copied.uri, **_counts(copied)})


def _checked(record: LedgerMetadata) -> Offload:
    """Blocks. Raises `ReadFailed`, `DigestMismatch`, `VersionConflict`."""
    files = OffloadedFiles(record)
    try:
        content = files.check()
    finally:
        files.close()
    if (content.rows, content.size) != (record.last_entry_id + 1, record.length):
        raise VersionConflict("the copy does not have what the ledger has", ledger_id=record.ledger_id)
    return files.copy


# -- on the driver ---------------------------------------------------------------------------------------------------

Row = tuple[int, str, int, int, int, str, str]


def _still_there(directories: Mapping[str, str]) -> common.Holds:
    """Whether the files of a part that an earlier attempt wrote are where it left them. `directories`: by item."""
    from bookies.spark.write import tier

    def holds(name: str, detail: Mapping[str, Any]) -> bool:
        parts = [tier.Part.from_json(each) for each in detail["parts"]]
        return name not in directories or not tier.lost_parts(directories[name], parts)

    return holds


def _failed_parts(run: Run) -> list[Row]:
    found = []
    for name, outcome, detail in run.details():
        if outcome != common.DONE:
            found.append((int(name.partition(":")[0]), outcome, 0, 0, 0, "", str(detail.get("error", ""))))
    return list(dict.fromkeys(found))


def _committed(
    spark: Any, config: JobConfig, run: Run, due: dict[int, LedgerMetadata], to: str, cluster: str
) -> list[Row]:
    """Name the copies whose parts are all there."""
    from bookies.spark.write.tier import directory_of

    parts: dict[int, list[Any]] = {}
    broken: dict[int, None] = {}
    for name, outcome, detail in run.details():
        ledger_id = int(name.partition(":")[0])
        if outcome != common.DONE:
            broken[ledger_id] = None
        parts.setdefault(ledger_id, []).extend(detail.get("parts", ()))
    items = []
    for ledger_id, record in due.items():
        if ledger_id in broken or ledger_id not in parts:
            continue
        attempt = attempt_of(record, cluster, config.run_id)
        directory = directory_of(to, cluster, ledger_id, attempt)
        said = {"ledger": ledger_id, "attempt": attempt, "directory": directory, "parts": parts[ledger_id]}
        items.append(Item(str(ledger_id), 0, (), json.dumps(said)))
    return _rows_of(_stage(spark, config, "commit", items, CommitCopy()), OFFLOADED)


def _forgotten(spark: Any, config: JobConfig, records: Sequence[LedgerMetadata], after_s: float) -> list[Row]:
    """Let the bookies forget what was offloaded long enough ago."""
    if after_s < 0:
        return []
    before_ms = _now_ms() - after_s * 1000
    due = [
        (record, copy)
        for record in records
        if (copy := offload_of(record)) is not None and copy.at_ms <= before_ms and not is_given_up(record)
    ]
    if config.mode == common.DRY_RUN:
        return [
            (record.ledger_id, "would be forgotten", copy.rows, copy.bytes, 0, copy.uri, "") for record, copy in due
        ]
    items = [Item(str(each.ledger_id), each.length, (), json.dumps({"ledger": each.ledger_id})) for each, _ in due]
    return _rows_of(_stage(spark, config, "forget", items, Forget()), FORGOTTEN)


def _stage(spark: Any, config: JobConfig, name: str, items: list[Item], work: common.Work) -> Run | None:
    """A second, small run under a name of its own."""
    if not items:
        return None
    return common.execute(spark, replace(config, run_id=f"{config.run_id}.{name}"), f"offload-{name}", items, work)


def _rows_of(run: Run | None, good: str) -> list[Row]:
    found = []
    for name, outcome, detail in run.details() if run is not None else ():
        counts = detail.get("entries", 0), detail.get("bytes", 0), detail.get("files", 0)
        said = good if outcome == common.DONE else outcome
        found.append((int(name), said, *counts, str(detail.get("uri", "")), str(detail.get("error", ""))))
    return found


def _swept(config: JobConfig, to: str, cluster: str, after_s: float, *, is_dry: bool) -> list[Row]:
    """Delete directories that no record names. Whoever names one has just written its index, so it is not old."""
    from bookies.spark.write import tier

    before = _now_ms() / 1000 - after_s
    old = [each for each in tier.attempts(to, cluster) if each.changed_s <= before]
    named = common.ask(config.uri, _named({each.ledger_id for each in old})) if old else {}
    found = []
    for each in old:
        if named.get(each.ledger_id) == each.attempt:
            continue
        if not is_dry:
            if tier.is_changed(to, each):
                continue  # A run that was repeated after a long time has just written to it.
            tier.delete_attempt(to, each)
        found.append((each.ledger_id, "would be swept" if is_dry else SWEPT, 0, 0, 0, each.path, "a lost attempt"))
    return found


def _named(ledger_ids: Collection[int]) -> Any:
    """A question for `ask`: ledger -> the attempt that its record names. Raises rather than leave one out."""

    async def question(client: Client) -> dict[int, str]:
        found = {}
        for ledger_id in sorted(ledger_ids):
            try:
                copy = offload_of(await client.metadata(ledger_id))
            except LedgerNotFound:
                continue
            if copy is not None:
                found[ledger_id] = copy.attempt
        return found

    return question


def _report(config: JobConfig, rows: Sequence[tuple[Any, ...]]) -> Report:
    outcomes = Counter(row[2] for row in rows)
    counted = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(outcomes.items())) or "nothing is due"
    size = sum(row[4] for row in rows if row[2] == OFFLOADED)
    lead = f"{counted}; {size_text(size)} copied" + (
        "; a dry run, nothing was changed" if config.mode == common.DRY_RUN else ""
    )
    is_good = not any(outcome in common.UNFINISHED for outcome in outcomes)
    headers = ("ledger", "outcome", "entries", "bytes", "files", "directory", "detail")
    sections = [
        Section("Outcomes", table=Table(("outcome", "count"), sorted(outcomes.items()), (1,))),
        Section("Ledgers", table=Table(headers, [row[1:] for row in rows], (0, 2, 3, 4))),
    ]
    return Report("Offload", lead, is_good, {"run": config.run_id, "mode": config.mode, **config.options}, sections)
