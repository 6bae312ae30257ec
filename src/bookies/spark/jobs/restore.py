"""Job `restore`: copies offloaded ledgers, which the bookies were allowed to delete, back to bookies.

The ledger keeps its number: new replicas are written as a replicator writes copies, and its record names them. The
alternative is a new ledger in the lists of its logs. But then positions in the log (cursors, checkpoints of streams,
users' notes) would point to a deleted ledger, and ledgers without a log could not be restored at all.

1. The record is marked as being restored and no longer lets bookies delete the ledger; readers stay with the files.
2. All entries are written to newly chosen bookies, and every replica is read back.
3. One compare-and-swap makes the record name these bookies and directs readers to them. The copy stays, and the record
   still names it.

If the copy is damaged or missing, and the bookies still have every entry, the record stops naming the copy instead.

A run that stops before 3 has changed nothing for readers; repeated, it chooses bookies again. The ledger's
auto-recovery lock is held throughout, so no bookie that is about to delete the ledger deletes the new entries. A ledger
that is locked is retried for a minute, and then left for a repetition of the run. Source: spark 5.3.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

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
from bookies.spark.jobs.shared.report import Report, Section, Table
from bookies.units import decimal_size_text

if TYPE_CHECKING:
    from bookies.client.client import Client

OPTIONS = ledger_selection.OPTIONS
RESTORED = "run_id STRING, ledger_id BIGINT, outcome STRING, entries BIGINT, bytes BIGINT, detail STRING"
SATISFIED = "satisfied"


def job(spark: Any, config: JobConfig) -> Any:
    """Return the outcome of each ledger that bookies were allowed to delete."""
    return complete(spark, config).frame


def complete(spark: Any, config: JobConfig) -> Complete:
    config = common.checked(config, OPTIONS)
    common.refuse_speculation(spark)
    items = common.ask(config.uri, lambda client: _planned(client, config))
    run = common.execute(spark, config, "restore", items, Restore(config.mode == common.DRY_RUN, config.run_id))
    if config.mode == common.PLAN:
        return Complete.planned("restore", run)
    rows: list[tuple[Any, ...]] = sorted((config.run_id, int(name), *totals) for name, *totals in run.totals())
    frame = common.save(common.frame_of(spark, rows, RESTORED), config, "restored")
    outcomes = Counter(row[2] for row in rows)
    is_good = not any(outcome in common.UNFINISHED for outcome in outcomes)
    lead = f"{outcomes[common.DONE]:,} of {len(rows):,} ledgers, {decimal_size_text(sum(row[4] for row in rows))}"
    if config.mode == common.DRY_RUN:
        lead = f"would restore {lead}; a dry run, nothing was changed"
    table = Table(("ledger", "outcome", "entries", "bytes", "detail"), [row[1:] for row in rows], (0, 2, 3))
    parameters = {"run": config.run_id, "mode": config.mode, **config.options}
    return Complete(frame, Report("Restore", lead, is_good, parameters, [Section("Ledgers", table=table)]))


async def _planned(client: Client, config: JobConfig) -> list[Item]:
    chosen = await ledger_selection.select(client, config.options)
    writable = [str(bookie.id) for bookie in await client.bookies() if bookie.mode == "writable"]
    return items_of(chosen.records, writable)


def items_of(records: Iterable[LedgerMetadata], writable: Sequence[str]) -> list[Item]:
    """Return an item for each ledger that bookies were allowed to delete.

    The bookies of a ledger are chosen when its item is carried out; in the plan all writable ones share it.
    """
    return [
        Item(str(record.ledger_id), record.length * record.write_quorum, tuple(writable))
        for record in records
        if is_given_up(record)
    ]


class Restore(Struct, frozen=True):
    """Restore of one ledger to bookies from its files. `run_id`: names the lock's owner."""

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
        """Restore the ledger. Raises `LedgerLocked` before any change."""
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
    """Return the copy from which the ledger has to be restored; None: it is on bookies."""
    return offload_of(record) if is_given_up(record) else None


def _done(copy: Offload | None, explanation: str = "") -> Outcome:
    if copy is None:
        return Outcome(SATISFIED, {})
    return Outcome(
        common.DONE, {"entries": copy.rows, "bytes": copy.bytes} | ({"error": explanation} if explanation else {})
    )


async def _restore(tools: Tools, administration: Administration, ledger_id: int, lock: LedgerLock) -> Outcome:
    """Restore the ledger, under its lock."""
    record = await tools.client.metadata(ledger_id)
    if (copy := _copy_of(record)) is None:
        return _done(None)
    files = OffloadedFiles(record)
    worker = runtime.worker().files()
    # This comes first: entries that bookies still have may be the only ones.
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
    await administration.change_record(
        ledger_id, lambda record_now: restored(record_now, copy.attempt, new.ensembles), lock=lock
    )
    return _done(copy)


async def _left_with_bookies(
    tools: Tools,
    administration: Administration,
    record: LedgerMetadata,
    copy: Offload,
    error: BookKeeperError,
    lock: LedgerLock,
) -> Outcome:
    """Make it an ordinary ledger again if its bookies still have every entry, because the copy is unusable."""
    try:
        async with tools.client.open(record.ledger_id, password=record.password or b"", tier="bookies") as reader:
            async for _ in reader.read_batches():
                pass
    except (EntryError, LedgerUnknownToBookie, BookieError, QuorumError) as missing:
        return Outcome(
            common.FAILED,
            {
                "error": f"{error.message}. Its bookies do not have all of it either: {missing.message}. They delete "
                "no more of it; restore what they have in quarantine with `bk bookie undelete`"
            },
        )
    await administration.change_record(record.ledger_id, lambda record_now: kept(record_now, copy.attempt), lock=lock)
    explanation = "its bookies still had all of it; the copy was unusable, and its record no longer names it"
    return _done(copy, f"{explanation}: {error.message}")
