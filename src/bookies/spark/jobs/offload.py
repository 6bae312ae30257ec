"""Job `offload`: copies sealed ledgers to Parquet files; later, on request, lets the bookies delete theirs.

1. A task writes each part of a ledger, reads it back, and compares it with what it read from the ledger.
2. When all parts of a ledger are done, their counts, bytes and CRCs must add up to the ledger's own. Then its index is
   written, the existence of every file is checked once more, and the ledger's record gets the label that names the
   copy, by compare-and-swap. Only then files of other attempts at it are deleted.
3. With `delete_after`: copies of that age are read again completely. Then the record gets a second label, which lets
   the bookies delete the entries. From then on readers use the files.
4. Directories of this job that no record names, and that were not written to for `sweep_after`, are deleted.

A run that stops leaves each ledger unchanged or offloaded; repeated, it continues. Two concurrent runs make two copies,
and the record names the first; the other one is swept. With the same run id both write to one directory, without
replacing each other's files (`write/tier.py`). Source: spark 5.3.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from bookies.client.read.offloaded import OffloadedFiles
from bookies.errors import InvalidArgument, LedgerNotFound, ReadFailed, VersionConflict
from bookies.kernels import crc32c
from bookies.protocol.ledger.offload import (
    PARQUET,
    Offload,
    given_up,
    is_given_up,
    offload_of,
    offloaded,
    swept,
    swept_of,
)
from bookies.spark.base import runtime
from bookies.spark.base.plan import even_parts
from bookies.spark.jobs.complete import Complete
from bookies.spark.jobs.shared import common, copying, ledger_selection
from bookies.spark.jobs.shared.common import JobConfig, Option, Outcome, Run, Tools
from bookies.spark.jobs.shared.packing import Item
from bookies.spark.jobs.shared.report import Report, Section, Table, counted
from bookies.units import decimal_size_text

if TYPE_CHECKING:
    from bookies.client.client import Client
    from bookies.model import LedgerMetadata
    from bookies.spark.write.tier import Attempt

OPTIONS = (
    Option("to", None, "target of the copies: a directory, or a URI such as s3://bucket/ledgers", metavar="URI"),
    *ledger_selection.OPTIONS,
    Option("older_than", "7d", "only ledgers created at least this long ago", metavar="TIME"),
    Option("larger_than", 0, "only ledgers with at least this many bytes", int),
    Option("delete_after", None, "let the bookies forget ledgers that were offloaded this long ago", metavar="TIME"),
    Option(
        "sweep_after", "7d", "delete leftovers of lost attempts that were not written to for this long", metavar="TIME"
    ),
)
COPIES = (
    "run_id STRING, ledger_id BIGINT, outcome STRING, entries BIGINT, bytes BIGINT, files BIGINT, uri STRING, "
    "detail STRING"
)
PART_SIZE = 512 << 20  # bytes of a ledger that one task copies
OFFLOADED, FORGOTTEN, SWEPT, ALREADY = "offloaded", "bookies-deleted", "swept", "already"


def job(spark: Any, config: JobConfig) -> Any:
    """Return the outcome of each ledger and of each swept directory, a row each."""
    return complete(spark, config).frame


def complete(spark: Any, config: JobConfig) -> Complete:
    config = common.checked(config, OPTIONS)
    times = _times(config)
    if not config.options["to"]:
        raise InvalidArgument("option to is missing: give the target of the copies, a directory or a URI")
    common.refuse_speculation(spark)
    from bookies.spark.write import tier

    to = tier.absolute(str(config.options["to"]))
    cluster, records = common.ask(config.uri, lambda client: _chosen(client, config, times["older_than"]))
    due = [ledger for ledger in records if offload_of(ledger) is None]
    items = [item for record in due for item in items_of(record, to, cluster, config)]
    is_dry = config.mode == common.DRY_RUN
    directories = {item.name: str(json.loads(item.arguments)["directory"]) for item in items}
    run = common.execute(spark, config, "offload", items, CopyPart(is_dry), _still_there(directories))
    if config.mode == common.PLAN:
        return Complete.planned("offload", run)
    # Read once: without output Spark may carry out lost items again, and a copy must not be written after its commit.
    details = run.details()
    rows = _failed_parts(details)
    if is_dry:
        rows += [
            (ledger.ledger_id, "would offload", ledger.last_entry_id + 1, ledger.length, 0, to, "") for ledger in due
        ]
    else:
        rows += _committed(spark, config, details, {ledger.ledger_id: ledger for ledger in due}, to, cluster)
        rows += _earlier(details, [ledger for ledger in records if is_of_run(ledger, cluster, config.run_id)])
    rows += _forgotten(spark, config, records, times["delete_after"])
    rows += _swept(config, to, cluster, times["sweep_after"], is_dry=is_dry)
    copies = sorted((config.run_id, *row) for row in rows)
    frame = common.save(common.frame_of(spark, copies, COPIES), config, "copies")
    return Complete(frame, _report(config, copies))


def _times(config: JobConfig) -> dict[str, float]:
    """Return the options that are times, in seconds, without those that were not given."""
    names = ("older_than", "delete_after", "sweep_after")
    given = {name: config.options[name] for name in names if config.options[name] is not None}
    return {"delete_after": -1.0} | {name: ledger_selection.seconds_of(name, text) for name, text in given.items()}


async def _chosen(client: Client, config: JobConfig, older_s: float) -> tuple[str, list[LedgerMetadata]]:
    """Return the cluster's instance id, and the sealed ledgers that are old and large enough."""
    chosen = await ledger_selection.select(client, config.options)
    before_ms = common.now_ms() - older_s * 1000
    records = [
        record
        for record in chosen.records
        if record.is_closed
        and record.length >= config.options["larger_than"]
        and (record.ctime_ms is None or record.ctime_ms <= before_ms)
    ]
    return await client.administration().instance_id(), records


def items_of(record: LedgerMetadata, to: str, cluster: str, config: JobConfig) -> list[Item]:
    """Return the parts of a ledger: of about `PART_SIZE` bytes, at least one."""
    from bookies.spark.write.tier import directory_of

    attempt = attempt_of(record, cluster, config.run_id)
    directory = directory_of(to, cluster, record.ledger_id, attempt)
    count = record.last_entry_id + 1
    parts = max(1, min(count, -(-record.length // PART_SIZE)))
    return [
        Item(
            f"{record.ledger_id}:{first}",
            record.length // parts,
            tuple(record.ensemble_at(first)),
            json.dumps({"ledger": record.ledger_id, "first": first, "last": last, "directory": directory}),
        )
        for first, last in even_parts(0, record.last_entry_id, parts)
    ]


def attempt_of(record: LedgerMetadata, cluster: str, run_id: str) -> str:
    """Return the name of a run's copy: the same if the run is repeated, and unique to ledger, cluster and run.

    A record that refuses swept attempts gets another name.
    """
    from bookies.spark.write.tier import offload_name

    identity = f"{cluster} {record.ledger_id} {record.ctime_ms} {record.length}{swept_of(record)}".encode()
    return offload_name(run_id, crc32c(identity))


def is_of_run(record: LedgerMetadata, cluster: str, run_id: str) -> bool:
    """Report whether the ledger's copy was made by a run of this id."""
    copy = offload_of(record)
    return copy is not None and copy.attempt == attempt_of(record, cluster, run_id)


# -- in a task -------------------------------------------------------------------------------------------------------


class CopyPart(Struct, frozen=True):
    """Copy of one part of a ledger to files, which are read back. Files that the ledger's record names stay."""

    is_dry: bool = False

    async def carry_out(self, tools: Tools, item: Item) -> Outcome:
        arguments = json.loads(item.arguments)
        ledger_id, first, last = arguments["ledger"], arguments["first"], arguments["last"]
        if last < first or self.is_dry:
            return Outcome(common.DONE, {"parts": []})
        try:
            existing = offload_of(await tools.client.metadata(ledger_id))
            if existing is not None and existing.uri == arguments["directory"]:
                return Outcome(common.FAILED, {"error": "another attempt of this run has offloaded it: repeat the run"})
            parts = await copying.written_files(tools, ledger_id, first, last, arguments["directory"])
        except LedgerNotFound:
            return Outcome(common.GONE, {"error": "the ledger was deleted"})
        return Outcome(common.DONE, {"parts": [part.to_json() for part in parts]})


class CommitCopy(Struct, frozen=True):
    """Commit of a copy whose parts are complete: writes the index, and names the copy in the ledger's record."""

    async def carry_out(self, tools: Tools, item: Item) -> Outcome:
        from bookies.spark.write import tier

        arguments = json.loads(item.arguments)
        ledger_id, attempt, directory = arguments["ledger"], arguments["attempt"], arguments["directory"]
        try:
            record = await tools.client.metadata(ledger_id)
        except LedgerNotFound:
            return Outcome(common.GONE, {"error": "the ledger was deleted"})
        existing = offload_of(record)
        if existing is not None:  # By this run before it was interrupted, or by another run.
            if existing.attempt == attempt:
                await runtime.worker().files().run(_tidy, record)
            return Outcome(
                common.DONE if existing.attempt == attempt else ALREADY, {"uri": existing.uri, **_counts(existing)}
            )
        parts = [tier.Part.from_json(part) for part in arguments["parts"]]
        index, content = tier.index_of(ledger_id, attempt, parts)
        files = runtime.worker().files()
        crc = await files.run(tier.write_index, directory, index)
        # A sweep that began before has made the record refuse this attempt, or will find it in the record.
        if lost := await files.run(tier.lost_parts, directory, parts):
            return Outcome(
                common.FAILED,
                {"error": f"{directory}/{lost[0]} is missing, or was changed: repeat the run, which writes it again"},
            )
        copy = Offload(attempt, directory, PARQUET, content.rows, content.size, content.crc, crc, common.now_ms())
        try:
            # Another driver with this run id may be first: then the record names its index, and so its files.
            record = await tools.administration.change_record(ledger_id, lambda record: offloaded(record, copy))
        except LedgerNotFound:
            return Outcome(common.GONE, {"error": "the ledger was deleted"})
        await files.run(_tidy, record)
        return Outcome(common.DONE, {"uri": directory, **_counts(copy), "files": len(parts)})


def _counts(copy: Offload) -> dict[str, int]:
    return {"entries": copy.rows, "bytes": copy.bytes}


class Forget(Struct, frozen=True):
    """Permission for the bookies to delete their entries: reads the copy again, then changes the ledger's record."""

    async def carry_out(self, tools: Tools, item: Item) -> Outcome:
        arguments = json.loads(item.arguments)
        try:
            record = await tools.client.metadata(arguments["ledger"])
            copied = await runtime.worker().files().run(_checked, record)
            await runtime.worker().files().run(_tidy, record)
            await tools.administration.change_record(
                record.ledger_id, lambda record: given_up(record, copied.attempt, common.now_ms())
            )
        except LedgerNotFound:
            return Outcome(common.GONE, {"error": "the ledger was deleted"})
        return Outcome(FORGOTTEN, {"uri": copied.uri, **_counts(copied)})


def _checked(record: LedgerMetadata) -> Offload:
    """Read a copy completely. Blocks. Raises `ReadFailed`, `DigestMismatch`, `VersionConflict`."""
    files = OffloadedFiles(record)
    try:
        content = files.check()
    finally:
        files.close()
    if (content.rows, content.size) != (record.last_entry_id + 1, record.length):
        raise VersionConflict(
            "the copy's entries or bytes differ from the ledger's: offload it again", ledger_id=record.ledger_id
        )
    return files.copy


def _tidy(record: LedgerMetadata) -> None:
    """Delete what other attempts have left beside a committed copy. Best effort; blocks."""
    from bookies.spark.write import tier

    files = OffloadedFiles(record)
    with contextlib.suppress(ReadFailed, OSError):
        tier.delete_others(files.copy.uri, files.index(), files.copy.index)


# -- on the driver ---------------------------------------------------------------------------------------------------

Row = tuple[int, str, int, int, int, str, str]
Detail = tuple[str, str, dict[str, Any]]  # of an item: name, outcome, detail


def _still_there(directories: Mapping[str, str]) -> common.Holds:
    """Return a check that the files of a part that an earlier attempt wrote still exist. `directories`: by item."""
    from bookies.spark.write import tier

    def holds(name: str, detail: Mapping[str, Any]) -> bool:
        parts = [tier.Part.from_json(part) for part in detail["parts"]]
        return name not in directories or not tier.lost_parts(directories[name], parts)

    return holds


def _failed_parts(details: Sequence[Detail]) -> list[Row]:
    rows = []
    for name, outcome, detail in details:
        if outcome != common.DONE:
            rows.append((int(name.partition(":")[0]), outcome, 0, 0, 0, "", str(detail.get("error", ""))))
    return list(dict.fromkeys(rows))


def _earlier(details: Sequence[Detail], records: Sequence[LedgerMetadata]) -> list[Row]:
    """Return the rows of ledgers that an earlier attempt of this run has offloaded. `records`: theirs.

    The number of files is known only with an output directory.
    """
    files: Counter[int] = Counter()
    for name, _, detail in details:
        files[int(name.partition(":")[0])] += len(detail.get("parts", ()))
    copies = [(record.ledger_id, offload_of(record)) for record in records]
    return [
        (ledger_id, OFFLOADED, copy.rows, copy.bytes, files[ledger_id], copy.uri, "by an earlier attempt of this run")
        for ledger_id, copy in copies
        if copy is not None
    ]


def _committed(
    spark: Any, config: JobConfig, details: Sequence[Detail], due: dict[int, LedgerMetadata], to: str, cluster: str
) -> list[Row]:
    """Name the copies whose parts are complete in their ledgers' records."""
    from bookies.spark.write.tier import directory_of

    parts: dict[int, list[Any]] = {}
    broken: dict[int, None] = {}
    for name, outcome, detail in details:
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
        arguments = {"ledger": ledger_id, "attempt": attempt, "directory": directory, "parts": parts[ledger_id]}
        items.append(Item(str(ledger_id), 0, (), json.dumps(arguments)))
    return _rows_of(_stage(spark, config, "commit", items, CommitCopy()), OFFLOADED)


def _forgotten(spark: Any, config: JobConfig, records: Sequence[LedgerMetadata], after_s: float) -> list[Row]:
    """Let the bookies delete what was offloaded long enough ago."""
    if after_s < 0:
        return []
    before_ms = common.now_ms() - after_s * 1000
    due = [
        (record, copy)
        for record in records
        if (copy := offload_of(record)) is not None and copy.at_ms <= before_ms and not is_given_up(record)
    ]
    if config.mode == common.DRY_RUN:
        return [
            (record.ledger_id, "would be forgotten", copy.rows, copy.bytes, 0, copy.uri, "") for record, copy in due
        ]
    items = [
        Item(str(ledger.ledger_id), ledger.length, (), json.dumps({"ledger": ledger.ledger_id})) for ledger, _ in due
    ]
    return _rows_of(_stage(spark, config, "forget", items, Forget()), FORGOTTEN)


def _stage(spark: Any, config: JobConfig, name: str, items: list[Item], work: common.Work) -> Run | None:
    """Execute a second, small run under its own name."""
    if not items:
        return None
    return common.execute(spark, replace(config, run_id=f"{config.run_id}.{name}"), f"offload-{name}", items, work)


def _rows_of(run: Run | None, good: str) -> list[Row]:
    rows = []
    for name, outcome, detail in run.details() if run is not None else ():
        counts = detail.get("entries", 0), detail.get("bytes", 0), detail.get("files", 0)
        result = good if outcome == common.DONE else outcome
        rows.append((int(name), result, *counts, str(detail.get("uri", "")), str(detail.get("error", ""))))
    return rows


def _swept(config: JobConfig, to: str, cluster: str, after_s: float, *, is_dry: bool) -> list[Row]:
    """Delete old directories that no record names. A record refuses its own first, so no commit in flight names it."""
    from bookies.spark.write import tier

    before = common.now_ms() / 1000 - after_s
    old = [one for one in tier.attempts(to, cluster, tier.OFFLOAD_DIGITS) if one.changed_s <= before]
    lost = common.ask(config.uri, _lost(old, is_dry=is_dry)) if old else []
    rows = []
    for attempt in lost:
        if not is_dry:
            tier.delete_attempt(to, attempt)
        rows.append((attempt.ledger_id, "would be swept" if is_dry else SWEPT, 0, 0, 0, attempt.path, "a lost attempt"))
    return rows


def _lost(attempts: Sequence[Attempt], *, is_dry: bool) -> Any:
    """Return a question for `ask`: which attempts no record names, nor will name. Raises rather than omit a ledger."""

    async def question(client: Client) -> list[Attempt]:
        lost = []
        for attempt in attempts:
            with contextlib.suppress(VersionConflict):
                try:
                    if is_dry:
                        swept(await client.metadata(attempt.ledger_id), attempt.attempt)
                    else:
                        await client.administration().change_record(
                            attempt.ledger_id, partial(swept, attempt=attempt.attempt)
                        )
                except LedgerNotFound:
                    pass  # No record will name it.
                lost.append(attempt)
        return lost

    return question


def _report(config: JobConfig, rows: Sequence[tuple[Any, ...]]) -> Report:
    outcomes = Counter(row[2] for row in rows)
    size = sum(row[4] for row in rows if row[2] == OFFLOADED)
    lead = f"{counted(outcomes, 'no ledger is due')}; {decimal_size_text(size)} copied" + (
        "; a dry run, nothing was changed" if config.mode == common.DRY_RUN else ""
    )
    is_good = not any(outcome in common.UNFINISHED for outcome in outcomes)
    headers = ("ledger", "outcome", "entries", "bytes", "files", "directory", "detail")
    sections = [
        Section("Outcomes", table=Table(("outcome", "count"), sorted(outcomes.items()), (1,))),
        Section("Ledgers", table=Table(headers, [row[1:] for row in rows], (0, 2, 3, 4))),
    ]
    return Report("Offload", lead, is_good, {"run": config.run_id, "mode": config.mode, **config.options}, sections)
