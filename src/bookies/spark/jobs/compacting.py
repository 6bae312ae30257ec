"""Job `compact`: keeps the last record of each key of a log, for logs that are too large for `Log.compact`.

1. Tasks read the closed ledgers of the log, and Spark finds the last record of each key. The rules are those of
   `protocol/log/compaction.py`. The entries that go of each ledger come to the driver, compressed.
2. Tasks write what stays of each ledger that changes, with the step of `Log.compact`.
3. The driver swaps the ledgers in, the oldest first, with the step of `Log.compact`. It stops before a ledger that was
   not written: a tombstone must not go before the records that it deletes.

A run that stops before 3 has changed nothing. Repeated, with output, it searches again, and keeps the ledgers that it
has written if the same entries go: with other ones a record could stay whose tombstone goes. A ledger that only has the
id of one of them, as in a cluster that was restored, is not swapped in. `bk log reap` deletes ledgers that no run swaps
in. Source: docs/explanation/logs.md, "Compaction".
"""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from msgspec import Struct

from bookies.client.log.log import compactor_of
from bookies.client.log.retaining import SWAP_EXTENTS
from bookies.config import ClientConfig
from bookies.encoding.envelope import parse_record
from bookies.errors import InvalidArgument, LedgerNotFound, LogTruncated, MetadataCorrupt
from bookies.model import BookieId, Ensemble, LedgerMetadata
from bookies.protocol.log.compaction import Rewritten
from bookies.protocol.log.kept import pack_kept, parse_kept
from bookies.protocol.log.log_model import Extent, check_log_name
from bookies.protocol.log.sequences import number_of
from bookies.protocol.log.transaction import label
from bookies.spark.base import runtime
from bookies.spark.base.arrow import schema_of_ddl
from bookies.spark.jobs.complete import Complete
from bookies.spark.jobs.shared import common
from bookies.spark.jobs.shared.common import JobConfig, Option, Outcome, Tools
from bookies.spark.jobs.shared.packing import Item, pack
from bookies.spark.jobs.shared.report import Report, Section, Table
from bookies.units import decimal_size_text, parse_duration

if TYPE_CHECKING:
    from bookies.client.base import EntryBatch
    from bookies.client.client import Client
    from bookies.client.log.retaining import CompactionBasis, Compactor

OPTIONS = (
    Option("log", None, "log that was created with compaction by key", metavar="LOG", is_positional=True),
    Option("tombstone_age", "1d", "time that the last record of a key stays if it has no value", metavar="TIME"),
)
COMPACTED = (
    "run_id STRING, extent BIGINT, ledger_id BIGINT, outcome STRING, entries BIGINT, bytes BIGINT, removed BIGINT, "
    "detail STRING"
)
RECORDS = "extent BIGINT, entry BIGINT, ordinal BIGINT, key BINARY, is_tombstone BOOLEAN, writer STRING"
GOING = "extent BIGINT, count BIGINT, ids ARRAY<BINARY>"
READ_AHEAD = 16 << 20  # bytes
DIGEST_SIZE = 8


def job(spark: Any, config: JobConfig) -> Any:
    """Return a row for each ledger that changes."""
    return complete(spark, config).frame


def complete(spark: Any, config: JobConfig) -> Complete:
    config = common.checked(config, OPTIONS)
    name, age_s = check_log_name(str(config.options["log"])), parse_duration(str(config.options["tombstone_age"]))
    if not age_s:
        raise InvalidArgument(
            f"tombstone_age={config.options['tombstone_age']!r}: must be a duration such as 1d or 12h"
        )
    common.refuse_speculation(spark)
    common.prepare(spark)

    basis, bookies = common.ask(config.uri, lambda client: _basis_of(client, name, age_s))
    extents = {extent.seq: extent for extent in basis.extents if _count(extent)}
    items = [
        Item(str(seq), extent.bytes or 0, bookies.get(extent.storage, ()), str(seq)) for seq, extent in extents.items()
    ]
    if config.mode != common.PLAN:
        scan = Scan(config.uri, name, basis, common.rate_of(spark, config))
        going = going_of(spark, records_of(spark, config, items, scan), basis.expired)
        items = [item_of(extent, *going[seq]) for seq, extent in extents.items() if seq in going]
    work = Rewrite(name, extents, config.mode == common.DRY_RUN)
    run = common.execute(spark, config, "compact", items, work, _still_there(config.uri, name))
    if config.mode == common.PLAN:
        return Complete.planned("compact", run)
    rows, rewritten = outcomes_of(items, extents, {name: result for name, *result in run.details()})
    if config.mode == common.RUN and rewritten:
        common.ask(config.uri, lambda client: _swap(client, name, rewritten))
    table = common.frame_of(spark, [(config.run_id, *row) for row in rows], COMPACTED)
    frame = common.save(table, config, "compacted")
    return Complete(frame, _report(config, rows, list(extents.values())))


def item_of(extent: Extent, count: int, ids: Sequence[bytes]) -> Item:
    """Return the work on an extent. `count`, `ids`: of the entries that go, packed. Its name tells others apart."""
    digest = blake2b(b"".join(ids), digest_size=DIGEST_SIZE).hexdigest()
    arguments = {"extent": extent.seq, "count": count, "ids": [base64.b64encode(part).decode() for part in ids]}
    return Item(f"{extent.seq}:{extent.storage}:{digest}", extent.bytes or 0, (), json.dumps(arguments))


def outcomes_of(
    items: Sequence[Item], extents: Mapping[int, Extent], results: Mapping[str, Sequence[Any]]
) -> tuple[list[tuple[Any, ...]], list[Rewritten]]:
    """Return a row for each item, in the order of the log, and the extents to swap in: those before the first failure.

    `results`: outcome and detail by item.
    """
    rows: list[tuple[Any, ...]] = []
    rewritten: list[Rewritten] = []
    for item in items:
        extent = extents[json.loads(item.arguments)["extent"]]
        outcome, detail = results[item.name]
        if outcome == common.DONE and len(rewritten) < len(rows):
            outcome, detail = common.WAITING, detail | {"error": "an older ledger was not rewritten: repeat the run"}
        counts = detail.get("entries", 0), detail.get("bytes", 0), detail.get("removed", 0)
        rows.append((extent.seq, extent.ledger_id, outcome, *counts, str(detail.get("error", ""))))
        if outcome == common.DONE:
            rewritten.append(Rewritten(extent, detail.get("ledger", -1), counts[0], counts[1]))
    return rows, rewritten


async def _basis_of(client: Client, name: str, age_s: float) -> tuple[CompactionBasis, Mapping[int, Ensemble]]:
    """Return what there is to scan, and the bookies of each ledger."""
    basis = await (await compactor_of(client.log(name), age_s)).basis()
    bookies: dict[int, Ensemble] = {}
    async for group in client.administration().records([extent.storage for extent in basis.extents]):
        bookies |= {stored.metadata.ledger_id: stored.metadata.last_ensemble for stored in group}
    return basis, bookies


def _still_there(uri: str, log: str) -> common.Holds:
    """Return a check that a ledger that an earlier attempt wrote still exists."""
    worker = runtime.worker()

    async def is_there(detail: Mapping[str, Any]) -> bool:
        return await is_written(await worker.client(uri, ClientConfig()), log, detail)

    return lambda _, detail: worker.run(is_there(detail))


async def is_written(client: Client, log: str, detail: Mapping[str, Any]) -> bool:
    """Report whether a ledger is, from its beginning to its end, the one that a result describes.

    False also for results of earlier versions, which have only its id.
    """
    if "attempt" not in detail:
        return False
    try:
        record = await client.metadata(detail["ledger"])
    except LedgerNotFound:
        return False
    known = {name: detail[name] for name in ("attempt", "last", "length")}
    return record.is_closed and label(record, "log") == log and _identity(record) == known


def _identity(record: LedgerMetadata) -> dict[str, Any]:
    """Return what tells a written ledger from others with its id. The label is of 64 random bits."""
    return {"attempt": label(record, "attempt"), "last": record.last_entry_id, "length": record.length}


async def _swap(client: Client, name: str, rewritten: Sequence[Rewritten]) -> None:
    compactor = await compactor_of(client.log(name))
    for at in range(0, len(rewritten), SWAP_EXTENTS):
        await compactor.swap(rewritten[at : at + SWAP_EXTENTS])


async def _compactor(client: Client, name: str, extent: Extent) -> tuple[Compactor, Ensemble]:
    """Return the steps for one extent, with the password that its ledger's record has, and the ledger's bookies.

    Raises `LedgerNotFound`.
    """
    record = await client.metadata(extent.storage)
    return await compactor_of(client.log(name, password=record.password or b"")), record.last_ensemble


def _report(config: JobConfig, rows: Sequence[tuple[Any, ...]], extents: Sequence[Extent]) -> Report:
    gone, left = (sum(row[at] for row in rows if row[2] == common.DONE) for at in (5, 4))
    changed = {row[0] for row in rows if row[2] == common.DONE}
    size = sum(extent.bytes or 0 for extent in extents if extent.seq in changed)
    is_good = len(changed) == len(rows)
    lead = f"{gone:,} of {sum(map(_count, extents)):,} entries, in {len(changed):,} of {len(extents):,} ledgers"
    if config.mode == common.DRY_RUN:
        lead = f"would remove {lead}; a dry run, nothing was changed"
    else:
        lead = f"removed {lead}; {decimal_size_text(size)} became {decimal_size_text(left)}"
    headers = ("extent", "ledger", "outcome", "stay", "bytes", "go", "detail")
    table = Table(headers, rows, (0, 1, 3, 4, 5))
    parameters = {"run": config.run_id, "mode": config.mode, **config.options}
    return Report("Compact", lead, is_good, parameters, [Section("Ledgers", table=table)])


def _count(extent: Extent) -> int:
    """Return the entries of a closed extent."""
    assert extent.last is not None
    return max(0, extent.last - extent.first + 1) if extent.kept is None else extent.kept


# -- search ----------------------------------------------------------------------------------------------------------


def records_of(spark: Any, config: JobConfig, items: Sequence[Item], scan: Scan) -> Any:
    """Return a row for each record with a key or a number."""
    tasks = pack(items, task_size=config.task_size, tasks_max=config.tasks_max)
    rows = [(task, int(item.arguments)) for task, inside in enumerate(tasks) for item in inside]
    frame = common.frame_of(spark, rows, "task INT, extent BIGINT")
    return common.spread(frame, len(tasks)).mapInArrow(scan, RECORDS)


def going_of(spark: Any, records: Any, expired: int) -> dict[int, tuple[int, list[bytes]]]:
    """Return the entries that go of each extent, by its number: count and packed ids. `expired`: of the basis."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    records = records.persist()
    try:
        numbered = records.where("writer IS NOT NULL").groupBy("writer").agg(f.max("ordinal").alias("ordinal"))
        pins = numbered.toArrow().to_pylist()
        of_key = Window.partitionBy("key")
        keyed = records.where("key IS NOT NULL").withColumn("last", f.max("ordinal").over(of_key))
        keyed = keyed.withColumn("first", f.min("ordinal").over(of_key))
        # A reader that has read an earlier record must find the tombstone: it goes in a later compaction.
        may_go = f.col("is_tombstone") & (f.col("ordinal") < expired) & (f.col("ordinal") == f.col("first"))
        going = keyed.where((f.col("ordinal") < f.col("last")) | may_go)
        if pins:  # The last number of a writer stays.
            kept = common.frame_of(spark, [(pin["ordinal"],) for pin in pins], "ordinal BIGINT")
            going = going.join(f.broadcast(kept), "ordinal", "left_anti")
        packed = going.select("extent", "entry").groupBy("extent").applyInArrow(_packed, GOING)
        return {row["extent"]: (row["count"], row["ids"]) for row in packed.toArrow().to_pylist()}
    finally:
        records.unpersist()


def _packed(table: pa.Table) -> pa.Table:
    ids = sorted(table.column("entry").to_pylist())
    row = {"extent": table.column("extent")[0].as_py(), "count": len(ids), "ids": pack_kept(ids)}
    return pa.Table.from_pylist([row], schema=schema_of_ddl(GOING))


class Scan(Struct, frozen=True):
    """Function that Spark runs over the extents of a task: their records with a key or a number.

    `rate`: of the task, bytes per second from each bookie; None: no limit.
    """

    uri: str
    log: str
    basis: CompactionBasis
    rate: float | None = None

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        extents = {extent.seq: extent for extent in self.basis.extents}
        worker, paces = runtime.worker(), common.Paces(self.rate)
        for batch in batches:
            for seq in batch.column("extent").to_pylist():
                extent, shift = extents[seq], self.basis.starts[seq] - extents[seq].first

                def entries(extent: Extent = extent) -> AsyncGenerator[EntryBatch, None]:
                    return self._entries(worker, extent, paces)

                for entries_read in worker.iterate(entries, lambda part: part.size, READ_AHEAD):
                    yield _columns(extent, shift, entries_read)

    async def _entries(
        self, worker: runtime.Worker, extent: Extent, paces: common.Paces
    ) -> AsyncGenerator[EntryBatch, None]:
        client = await worker.client(self.uri, ClientConfig())
        try:
            compactor, bookies = await _compactor(client, self.log, extent)
            async with compactor.opened(extent) as (_, batches):
                async for batch in batches:
                    yield batch
                    await paces.spent(bookies, batch.size)
        except LedgerNotFound as error:
            raise LogTruncated(
                f"log {self.log} was truncated or compacted meanwhile, so nothing was changed: repeat the run"
            ) from error


def _columns(extent: Extent, shift: int, batch: EntryBatch) -> pa.RecordBatch:
    rows = []
    for entry_id, entry in zip(batch.entry_ids, batch.payloads(), strict=True):
        try:
            record = parse_record(entry)
        except MetadataCorrupt:
            continue  # It stays: readers report it.
        number = number_of(record) if extent.txn is None else None
        if record.key is not None or number is not None:
            writer = None if number is None else number[0]
            rows.append((extent.seq, entry_id, shift + entry_id, record.key, record.value is None, writer))
    schema = schema_of_ddl(RECORDS)
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    return pa.RecordBatch.from_pydict(dict(zip(schema.names, columns, strict=True)), schema=schema)


# -- in a task -------------------------------------------------------------------------------------------------------


class Rewrite(Struct, frozen=True):
    """Rewriting of one extent without the entries that go."""

    log: str
    extents: Mapping[int, Extent]
    is_dry: bool

    async def carry_out(self, tools: Tools, item: Item) -> Outcome:
        arguments = json.loads(item.arguments)
        extent = self.extents[arguments["extent"]]
        detail = {"removed": arguments["count"], "entries": _count(extent) - arguments["count"]}
        if self.is_dry:
            return Outcome(common.DONE, detail)
        assert extent.last is not None
        goes = bytearray(extent.last - extent.first + 1)
        parts = [base64.b64decode(part) for part in arguments["ids"]]
        for entry_id in parse_kept(extent.storage, parts, arguments["count"]):
            goes[entry_id - extent.first] = 1
        try:
            compactor, bookies = await _compactor(tools.client, self.log, extent)

            async def moved(read: int, targets: Sequence[BookieId], written: int) -> None:
                await tools.spent(bookies, read)
                await tools.spent(targets, written)

            written = await compactor.written(extent, goes, moved)
            record = await tools.client.metadata(written.ledger_id)
        except LedgerNotFound:
            # A repetition tries again, because it plans only listed extents: perhaps the new ledger was reaped.
            return Outcome(common.FAILED, {"error": "it was truncated or compacted meanwhile: repeat the run"})
        # What a truncation of a compacted extent leaves is known only after it was read.
        detail |= {"ledger": written.ledger_id, "entries": written.kept, "bytes": written.size, **_identity(record)}
        return Outcome(common.DONE, detail)
