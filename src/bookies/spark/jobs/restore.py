"""`restore`: bring offloaded ledgers, which the bookies were allowed to forget, back to bookies.

The ledger keeps its number: new replicas are written as a replicator writes copies, and its record names them. Another
way would be a new ledger in the lists of its logs; but then positions in the log (cursors, checkpoints of streams,
what users have noted) would point to a ledger that is gone, and ledgers without a log could not come back at all.

1. The record says that it is being restored, and no longer that bookies may forget it; readers stay with the files.
2. Everything is written to bookies that were chosen now, and every replica is read back.
3. The record names these bookies, and readers go to them, all in one compare-and-swap. The copy stays, and stays named.

When the copy is damaged or gone, and the bookies still have every entry, the record names no copy any more instead.

A run that stops before 3 changed nothing that a reader sees; repeated, it chooses bookies anew. All is done under the
ledger's lock of auto-recovery: no bookie that is about to forget the ledger deletes what it is just given. What
somebody else has locked is tried again for a minute, and then left for a repetition of the run. Source: spark 5.3.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bookies.client.base.ledger_lock import AGAIN_S, TRIES
from bookies.client.read.offloaded import OffloadedFetch, OffloadedFiles
from bookies.client.repair import Administration
from bookies.errors import (
    BookieError,
    BookKeeperError,
    DigestMismatch,
    EntryError,
    LedgerLocked,
    LedgerNotFound,
    LedgerUnknownToBookie,
    QuorumError,
    ReadFailed,
)
from bookies.metadata.interface.recovery_store import LedgerLock
from bookies.model import LedgerMetadata
from bookies.protocol.ledger.offload import Offload, is_given_up, kept, offload_of, restored, restoring
from bookies.spark.base import runtime
from bookies.spark.jobs.complete import Complete
from bookies.spark.jobs.shared import common, ledger_selection
from bookies.spark.jobs.shared.common import JobConfig, Outcome, Tools
from bookies.spark.jobs.shared.packing import Item
from bookies.spark.jobs.shared.progress import size_text
from bookies.spark.jobs.shared.report import Report, Section, Table

if TYPE_CHECKING:
    from bookies.client.client import Client

OPTIONS = ledger_selection.OPTIONS
RESTORED = "run_id STRING, ledger_id BIGINT, outcome STRING, entries BIGINT, bytes BIGINT, detail STRING"
SATISFIED = "satisfied"


def job(spark: Any, config: JobConfig) -> Any:
    """What became of each ledger that bookies were allowed to forget."""
    return complete(spark, config).frame


def complete(spark: Any, config: JobConfig) -> Complete:
    config = common.checked(config, OPTIONS)
    common.refuse_speculation(spark)
    items = common.ask(config.uri, lambda client: _planned(client, config))
    run = common.execute(spark, config, "restore", items, Restore(config.mode == common.DRY_RUN, config.run_id))
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


async def _planned(client: Client, config: JobConfig) -> list[Item]:
    chosen = await ledger_selection.select(client, config.options)
    writable = [str(each.id) for each in await client.bookies() if each.mode == "writable"]
    return items_of(chosen.records, writable)


def items_of(records: Iterable[LedgerMetadata], writable: Sequence[str]) -> list[Item]:
    """The ledgers that bookies were allowed to forget.

    Which bookies a ledger goes to is chosen when its turn comes; for the plan all that are writable share it.
    """
    return [
        Item(str(each.ledger_id), each.length * each.write_quorum, tuple(writable))
        for each in records
        if is_given_up(each)
    ]


@dataclass(frozen=True)
class Restore:
    """Writes one ledger to bookies from its files. `run_id`: by which the lock says who has it."""

    is_dry: bool
    run_id: str = ""

    async def carry_out(self, tools: Tools, item: Item) -> Outcome:
        for _ in range(TRIES):
            try:
                return await self._attempt(tools, item)
            except LedgerLocked as error:
                locked = Outcome(common.WAITING, {"error": str(error)})
            await asyncio.sleep(AGAIN_S)
        return locked

    async def _attempt(self, tools: Tools, item: Item) -> Outcome:
        """Raises `LedgerLocked` before anything has changed."""
        ledger_id = int(item.name)
        try:
            if self.is_dry:
                return _done(_copy_of(await tools.client.metadata(ledger_id)))
            administration = tools.client.administration(owner=f"bk spark restore, run {self.run_id}")
            async with administration.locked(ledger_id) as lock:
                return await _restore(tools, administration, ledger_id, lock)
        except LedgerNotFound:
            return Outcome(common.GONE, {"error": "the ledger was deleted"})


def _copy_of(record: LedgerMetadata) -> Offload | None:
    """From which a ledger has to be restored; None: it is on bookies."""
    return offload_of(record) if is_given_up(record) else None


def _done(copy: Offload | None, said: str = "") -> Outcome:
    if copy is None:
        return Outcome(SATISFIED, {})
    return Outcome(common.DONE, {"entries": copy.rows, "bytes": copy.bytes} | ({"error": said} if said else {}))


async def _restore(tools: Tools, administration: Administration, ledger_id: int, lock: LedgerLock) -> Outcome:
    """Under the ledger's lock."""
    record = await tools.client.metadata(ledger_id)
    if (copy := _copy_of(record)) is None:
        return _done(None)
    files = OffloadedFiles(record)
    worker = runtime.worker().files()
    # First of all: what bookies still have may be all there is.
    record = await administration.change_record(ledger_id, restoring, lock=lock)
    try:
        await worker.run(files.check)
    except (ReadFailed, DigestMismatch) as error:
        await worker.run(files.close)
        return await _left_with_bookies(tools, administration, record, copy, error, lock)
    new = await administration.with_new_bookies(record)
    fetch = OffloadedFetch(worker, files, 0, record.last_entry_id)
    try:
        while (batch := await fetch.next_batch()) is not None:
            await administration.write_entries(new, batch)
            await tools.spent(new.last_ensemble, batch.size * new.write_quorum)
    finally:
        await worker.run(files.close)
    await administration.check_entries(new)
    await administration.change_record(ledger_id, lambda found: restored(found, copy.attempt, new.ensembles), lock=lock)
    return _done(copy)


async def _left_with_bookies(
    tools: Tools,
    administration: Administration,
    record: LedgerMetadata,
    copy: Offload,
    error: BookKeeperError,
    lock: LedgerLock,
) -> Outcome:
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
    await administration.change_record(record.ledger_id, lambda found: kept(found, copy.attempt), lock=lock)
    said = "its bookies still had all of it; the copy was of no use, and is not named any more"
    return _done(copy, f"{said}: {error.message}")
