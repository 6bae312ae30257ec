"""`restore`: bring offloaded ledgers, which the bookies were allowed to forget, back to bookies.

The ledger keeps its number: new replicas are written as a replicator writes copies, and its record names them. Another
way would be a new ledger in the lists of its logs; but then positions in the log (cursors, checkpoints of streams,
what users have noted) would point to a ledger that is gone, and ledgers without a log could not come back at all.

1. The record says that it is being restored, and no longer that bookies may forget it; readers stay with the files.
2. Everything is written to bookies that were chosen now, and every replica is read back.
3. The record names these bookies, and readers go to them, all in one compare-and-swap. The copy stays, and stays named.

When the copy is damaged or gone, and the bookies still have every entry, the record names no copy any more instead.

A run that stops before 3 changed nothing that a reader sees; repeated, it chooses bookies anew. Source: spark 5.3.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from bookies.client.offloaded import OffloadedFetch, OffloadedFiles
from bookies.errors import (
    BookieError,
    BookKeeperError,
    DigestMismatch,
    EntryError,
    LedgerNotFound,
    LedgerUnknownToBookie,
    QuorumError,
    ReadFailed,
)
from bookies.model import LedgerMetadata
from bookies.protocol.offload import Offload, is_given_up, kept, offload_of, restored, restoring
from bookies.spark import runtime
from bookies.spark.jobs import common, selection
from bookies.spark.jobs.common import JobConfig, Outcome, Tools
from bookies.spark.jobs.complete import Complete
from bookies.spark.jobs.packing import Item
from bookies.spark.jobs.progress import size_text
from bookies.spark.jobs.report import Report, Section, Table

OPTIONS = selection.OPTIONS
RESTORED = "run_id STRING, ledger_id BIGINT, outcome STRING, entries BIGINT, bytes BIGINT, detail STRING"
SATISFIED = "satisfied"


def job(spark: Any, config: JobConfig) -> Any:
    """What became of each ledger that bookies were allowed to forget."""
    return complete(spark, config).frame


def complete(spark: Any, config: JobConfig) -> Complete:
    config = common.checked(config, OPTIONS)
    common.refuse_speculation(spark)
    chosen = common.ask(config.uri, lambda client: selection.select(client, config.options))
    items = [
        Item(str(each.ledger_id), each.length * each.write_quorum, (), "")
        for each in chosen.records
        if is_given_up(each)
    ]
    run = common.execute(spark, config, "restore", items, Restore(config.mode == common.DRY_RUN))
    if config.mode == common.PLAN:
        return Complete.planned("restore", run)
    rows = []
    for name, outcome, detail in run.details():
        counts = detail.get("entries", 0), detail.get("bytes", 0)
        rows.append((config.run_id, int(name), outcome, *counts, str(detail.get("error", ""))))
    rows.sort()
    frame = common.save(common.frame_of(spark, rows, RESTORED), config, "restored")
    outcomes = Counter(row[2] for row in rows)
    is_good = not any(outcome in common.UNFINISHED for outcome in outcomes)
    lead = f"{outcomes[common.DONE]:,} of {len(rows):,} ledgers, {size_text(sum(row[4] for row in rows))}"
    if config.mode == common.DRY_RUN:
        lead = f"would restore {lead}; a dry run, nothing was changed"
    table = Table(("ledger", "outcome", "entries", "bytes", "detail"), [row[1:] for row in rows], (0, 2, 3))
    parameters = {"run": config.run_id, "mode": config.mode, **config.options}
    return Complete(frame, Report("Restore", lead, is_good, parameters, [Section("Ledgers", table=table)]))


@dataclass(frozen=True)
class Restore:
    """Writes one ledger to bookies from its files."""

    is_dry: bool

    async def carry_out(self, tools: Tools, item: Item) -> Outcome:
        try:
            record = await tools.client.metadata(int(item.name))
            copy = offload_of(record)
            if copy is None or not is_given_up(record):
                return Outcome(SATISFIED, {})
            counts = {"entries": copy.rows, "bytes": copy.bytes}
            if self.is_dry:
                return Outcome(common.DONE, counts)
            files = OffloadedFiles(record)
            worker = runtime.worker().files()
            # First of all: what bookies still have may be all there is.
            record = await tools.administration.change_record(record.ledger_id, restoring)
            try:
                await worker.run(files.check)
            except (ReadFailed, DigestMismatch) as error:
                await worker.run(files.close)
                return await _left_with_bookies(tools, record, copy, error)
            new = await tools.administration.with_new_bookies(record)
            fetch = OffloadedFetch(worker, files, 0, record.last_entry_id)
            try:
                while (batch := await fetch.next_batch()) is not None:
                    await tools.administration.write_entries(new, batch)
                    await tools.spent(new.last_ensemble, batch.size * new.write_quorum)
            finally:
                await worker.run(files.close)
            await tools.administration.check_entries(new)
            await tools.administration.change_record(
                record.ledger_id, lambda found: restored(found, copy.attempt, new.ensembles)
            )
        except LedgerNotFound:
            return Outcome(common.GONE, {"error": "the ledger was deleted"})
        return Outcome(common.DONE, counts)


async def _left_with_bookies(tools: Tools, record: LedgerMetadata, copy: Offload, error: BookKeeperError) -> Outcome:
    """The copy is of no use: an ordinary ledger again, if the bookies have not forgotten it yet."""
    try:
        async with tools.client.open(record.ledger_id, password=record.password or b"", tier="bookies") as reader:
            async for _ in reader.read_batches():
                pass
    except (EntryError, LedgerUnknownToBookie, BookieError, QuorumError) as missing:
        return Outcome(
            common.FAILED,
            {
                "error": f"{error.message}. Its bookies do not have all of it either: {missing.message}. They forget "
                "no more of it; what they have in quarantine comes back by `bk bookie undelete`"
            },
        )
    await tools.administration.change_record(record.ledger_id, lambda found: kept(found, copy.attempt))
    counts = {"entries": copy.rows, "bytes": copy.bytes}
    said = "its bookies still had all of it; the copy was of no use, and is not named any more"
    return Outcome(common.DONE, counts | {"error": f"{said}: {error.message}"})
