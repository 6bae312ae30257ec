"""Job `restore-cluster`: restores a run of a backup into an empty cluster.

1. A record of the target names the backup; the ids of all ledgers of the source are excluded from new ledgers there.
2. A task restores a ledger: it creates the record under the old id, with bookies of the target, writes the entries,
   reads every replica back, closes the record, and compares the ledger with the copy.
3. When all ledgers are there, the other records follow: logs, their cursors, times and numbers, leases. A log ends
   before the first ledger that the backup lacks. Cookies, marks and notes are about bookies of the source: they stay.
4. The record of step 1 is deleted.

A run that stops is continued by the same command. Until step 3 the target has no log. Source: spark 5.4.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, convert, to_builtins

from bookies.client.base.segments import LOGS
from bookies.client.log.base.cursor_store import CURSORS, HISTORY, MIRRORS, SEQUENCES, TIMES
from bookies.client.read.offloaded import OffloadedFetch
from bookies.client.turns.lease import ELECTIONS
from bookies.errors import InvalidArgument, LedgerExists, LedgerNotFound, LogExists, RecordExists, RecordNotFound
from bookies.metadata.dump_format import ids_of, pack_item, parse_item
from bookies.metadata.interface import bookie_places
from bookies.metadata.interface.driver import GivenIds
from bookies.metadata.ledger_counts import RECORD as COUNTS
from bookies.metadata.shared import bookie_notes, change_log
from bookies.metadata.transfer import (
    AT_ONCE,
    MARK,
    RESTORATION,
    Filling,
    NamedRecord,
    carried,
    counted_names,
    read_ledgers,
    read_record,
)
from bookies.model import LedgerMetadata
from bookies.protocol.ledger.backup import LedgerCopy, sealed_as, unwritten
from bookies.protocol.log import Manifest
from bookies.protocol.log.cursors import pack_cursors, parse_cursors
from bookies.protocol.log.log_model import LedgerEnd, parse_manifest
from bookies.protocol.log.log_segments import SEGMENTS, stored
from bookies.protocol.log.log_times import pack_times, parse_times
from bookies.protocol.log.migration import (
    FROM,
    brought_back,
    cursors_brought_back,
    end_of,
    is_after_end,
    log_origin,
    origin_of,
    times_brought_back,
)
from bookies.protocol.log.sequences import CURSOR as SEQUENCES_CURSOR
from bookies.protocol.log.sequences import parse_sequences
from bookies.replication.operator import orphans, status
from bookies.runtime.tasks import all_of
from bookies.spark.base import runtime
from bookies.spark.jobs.complete import Complete
from bookies.spark.jobs.shared import common, copying, ledger_selection
from bookies.spark.jobs.shared.common import JobConfig, Option, Outcome, Tools
from bookies.spark.jobs.shared.packing import Item
from bookies.spark.jobs.shared.report import Report, Section, Table, counted
from bookies.spark.jobs.verify import BACKUP, RUN
from bookies.units import decimal_size_text

if TYPE_CHECKING:
    from bookies.client.base import EntryBatch
    from bookies.client.client import Client
    from bookies.metadata.interface import MetadataDriver

OPTIONS = (
    BACKUP,
    RUN,
    Option("skip", None, "ledgers that are not restored, such as damaged ones: 17,18,20-29", metavar="LIST"),
)
RESTORED = "run_id STRING, kind STRING, name STRING, outcome STRING, entries BIGINT, bytes BIGINT, detail STRING"
LEDGER, LOG = "ledger", "log"
# Records about the bookies and daemons of their own cluster: not restored, and no sign of a cluster in use.
OWN = (
    MARK,
    RESTORATION,
    bookie_notes.NAME,
    change_log.NAME,
    bookie_places.NAME,
    orphans.NAME,
    COUNTS,
    ELECTIONS + status.HOUSEKEEPING,
)
PARTS = (LOGS, CURSORS, TIMES, HISTORY, SEQUENCES, MIRRORS)  # prefixes of the records of a log, without segments
Row = tuple[str, str, str, int, int, str]


def job(spark: Any, config: JobConfig) -> Any:
    """Return a row for each ledger and each log."""
    return complete(spark, config).frame


def complete(spark: Any, config: JobConfig) -> Complete:
    config = common.checked(config, OPTIONS)
    if not config.options["backup"]:
        raise InvalidArgument("option backup is missing: give the directory or URI of a backup")
    common.refuse_speculation(spark)
    backup = _read(config)
    writable, present = common.ask(config.uri, _beginning(backup, is_dry=config.mode != common.RUN))
    items = [_item(backup.records[copy.ledger], copy, writable) for copy in backup.copies]
    work = RestoreLedger(backup.root, backup.cluster, is_dry=config.mode != common.RUN)
    holds = None if work.is_dry else (lambda name, _: int(name) in present)  # The cluster may have been recreated.
    run = common.execute(spark, config, "restore-cluster", items, work, holds)
    if config.mode == common.PLAN:
        return Complete.planned("restore-cluster", run)
    rows: list[Row] = [(LEDGER, *totals) for totals in run.totals()]
    is_good = not any(row[2] in common.UNFINISHED for row in rows)
    records, logs = records_brought_back(backup)
    if is_good:
        rows += logs
        if config.mode == common.RUN:
            common.ask(config.uri, _ending(records, backup))
    table = sorted((config.run_id, *row) for row in rows)
    frame = common.save(common.frame_of(spark, table, RESTORED), config, "restored")
    is_good = is_good and not any(row[2] == common.FAILED for row in rows)
    return Complete(frame, _report(config, rows, backup.run, is_good=is_good))


# -- the backup --------------------------------------------------------------------------------------------------------


class Backup(Struct, frozen=True):
    """Run of a backup. `records`: of ledgers that have a copy, as if these were their ends; `named`: other records.

    `omitted`: reasons, by ledger.
    """

    root: str
    cluster: str
    run: str
    copies: Sequence[LedgerCopy]
    records: Mapping[int, LedgerMetadata]
    named: Mapping[str, bytes]
    ids: GivenIds
    omitted: Mapping[int, str]


def _read(config: JobConfig) -> Backup:
    """Read the description of the run. Raises `InvalidArgument`, `ReadFailed`."""
    from bookies.spark.jobs.shared import backup_files

    to, cluster = backup_files.root_of(str(config.options["backup"]))
    root = f"{to}/{cluster}"
    chosen = backup_files.run_of(root, config.options["backup_run"])
    contents = backup_files.contents_of(root, chosen)
    skip = config.options["skip"]
    skipped = dict.fromkeys(ledger_selection.numbers_of(skip) if skip else (), "it was skipped")
    copies = {copy.ledger: copy for copy in contents.copies if copy.ledger not in skipped}
    records, named, ids = {}, {}, []
    for item in backup_files.metadata_of(root, chosen):
        if isinstance(item, LedgerMetadata) and item.ledger_id in copies:
            records[item.ledger_id] = sealed_as(item, copies[item.ledger_id])
        elif isinstance(item, NamedRecord):
            named[item.name] = item.data
        elif isinstance(item, GivenIds):
            ids.append(item)
    omitted = {one.ledger: one.reason for one in contents.omitted} | skipped
    return Backup(root, cluster, chosen.run, list(copies.values()), records, named, ids_of(ids, records), omitted)


def records_brought_back(backup: Backup) -> tuple[dict[str, bytes], list[Row]]:
    """Return the records of the target, and a row for each log. Raises `MetadataCorrupt`, `NotSupported`."""
    from bookies.spark.jobs.shared import backup_files

    ends = {record.ledger_id: LedgerEnd(record.last_entry_id, record.length) for record in backup.records.values()}
    kept = {name: data for name, data in backup.named.items() if not _is_own(name) and not name.startswith(SEGMENTS)}
    rows: list[Row] = []
    for name, source in backup_files.lists_of(backup.named).items():
        if source is None:
            del kept[LOGS + name]
            rows.append((LOG, name, common.FAILED, 0, 0, "a part of its list is not in the backup: choose another run"))
            continue
        restored = brought_back(source, ends, log_origin(backup.cluster, name, source))
        layout = stored(name, restored)
        kept |= {segment: content for segment, (content, _) in layout.new.items()}
        kept[LOGS + name] = layout.head
        _follow(kept, name, source, restored)
        rows.append(_log_row(name, source, restored, backup.omitted, ends))
    return kept, rows


def _is_own(name: str) -> bool:
    return name in OWN or name.startswith(status.PREFIX)


def _follow(kept: dict[str, bytes], name: str, source: Manifest, restored: Manifest) -> None:
    """Adapt a log's cursors, times and numbers to its restored list."""
    is_known = False
    if data := kept.get(SEQUENCES + name):
        snapshot = parse_sequences(name, source.token, data)
        is_known = (
            snapshot is not None
            and restored.find(snapshot[1]) is not None
            and not any(is_after_end(end, source, restored) for end in (snapshot[1], *snapshot[0].ends()))
        )
        if not is_known:  # It has numbers of lost entries. The next writer reads the log.
            del kept[SEQUENCES + name]
    if data := kept.get(CURSORS + name):
        cursors = parse_cursors(name, source.token, data)
        without = "" if is_known else SEQUENCES_CURSOR
        kept[CURSORS + name] = pack_cursors(
            source.token, cursors_brought_back(cursors, source, restored, without=without)
        )
    if data := kept.get(TIMES + name):
        points = times_brought_back(parse_times(name, source.token, data), source, restored)
        kept[TIMES + name] = pack_times(source.token, points)


def _log_row(
    name: str, source: Manifest, restored: Manifest, omitted: Mapping[int, str], ends: Mapping[int, LedgerEnd]
) -> Row:
    rows, size = (sum(getattr(extent, field) or 0 for extent in restored.extents) for field in ("rows", "bytes"))
    listed = {extent.seq for extent in restored.extents}
    last = restored.extents[-1].seq if restored.extents else -1
    missing = [extent for extent in source.extents if extent.seq not in listed]
    texts = []
    if before := list(dict.fromkeys(extent.storage for extent in missing if extent.seq < last)):
        texts.append(f"begins after {counted_names(before, 'ledger')}, which the backup lacks")
    if after := list(dict.fromkeys(extent.storage for extent in missing if extent.seq > last)):
        reason = omitted.get(after[0], "it was created after the run had begun, or deleted")
        if after[0] in ends:
            lost = next(one for one in after if one not in ends)
            reason = f"its transaction is not whole: the backup lacks ledger {lost}"
        texts.append(f"ends at {end_of(restored) or 'its beginning'}, before ledger {after[0]} ({reason})")
        if len(after) > 1:
            texts.append(f"not listed either: {counted_names(after[1:], 'later ledger')}")
    return LOG, name, common.DONE, rows, size, "; ".join(texts)


# -- in a task ---------------------------------------------------------------------------------------------------------


def _item(record: LedgerMetadata, copy: LedgerCopy, writable: Sequence[str]) -> Item:
    arguments = {"record": pack_item(record, passwords=True), "copy": to_builtins(copy)}
    return Item(str(record.ledger_id), record.length * record.write_quorum, tuple(writable), json.dumps(arguments))


class RestoreLedger(Struct, frozen=True):
    """Restoration of one ledger; `is_dry`: its copy is only read."""

    root: str
    cluster: str
    is_dry: bool

    async def carry_out(self, tools: Tools, item: Item) -> Outcome:
        from bookies.spark.jobs.shared import backup_files

        arguments = json.loads(item.arguments)
        record, copy = parse_item(arguments["record"]), convert(arguments["copy"], LedgerCopy)
        assert isinstance(record, LedgerMetadata)
        worker = runtime.worker().files()
        files = backup_files.opened_files(self.root, copy)
        try:
            await worker.run(files.check)
            if not self.is_dry:
                target = await self._record(tools, record)
                entries = _entries(OffloadedFetch(worker, files, 0, record.last_entry_id))
                await copying.written_ledger(tools, tools.client, record, target, entries)
        finally:
            await worker.run(files.close)
        return Outcome(common.DONE, {"entries": copy.rows, "bytes": copy.bytes})

    async def _record(self, tools: Tools, record: LedgerMetadata) -> LedgerMetadata:
        """Return the ledger's record in the target, created now or by an earlier attempt. Raises `LedgerExists`."""
        origin = origin_of(self.cluster, record.ledger_id).encode()
        driver = tools.administration.access.driver
        with contextlib.suppress(LedgerNotFound):
            existing = await tools.client.metadata(record.ledger_id)
            if existing.custom_metadata.get(FROM) != origin:
                raise LedgerExists(
                    "the cluster has another ledger of this id: delete it, or restore into an empty cluster",
                    ledger_id=record.ledger_id,
                )
            return existing
        new = await tools.administration.with_new_bookies(unwritten(record, {FROM: origin}))
        return (await driver.create_ledger(carried(new))).metadata


async def _entries(fetch: OffloadedFetch) -> AsyncGenerator[EntryBatch]:
    while (batch := await fetch.next_batch()) is not None:
        yield batch


# -- on the driver: the target -----------------------------------------------------------------------------------------


def _beginning(backup: Backup, *, is_dry: bool) -> Any:
    """Return a question for `ask`: checks and marks the target; returns its writable bookies and restored ledgers."""

    async def question(client: Client) -> tuple[list[str], set[int]]:
        driver = client.administration().access.driver
        writable = [str(bookie.id) for bookie in await client.bookies() if bookie.mode == "writable"]
        needed = max((record.ensemble_size for record in backup.records.values()), default=0)
        if len(writable) < needed:
            raise InvalidArgument(
                f"the backup has ledgers on {needed} bookies, and the cluster has {len(writable)} writable ones: start "
                "more"
            )
        mark = {"cluster": backup.cluster, "run": backup.run}
        begun = await read_record(driver, RESTORATION)
        if begun is None:
            await _check_empty(driver)
            if not is_dry:
                with contextlib.suppress(RecordExists):  # Another restoration began at the same time.
                    await driver.create_record(RESTORATION, json.dumps(mark).encode())
                begun = await read_record(driver, RESTORATION)
        if begun is not None and json.loads(begun.data) != mark:
            raise InvalidArgument(
                f"the cluster is half restored from {begun.data.decode()}: finish that first, or name an empty cluster"
            )
        if not is_dry:
            await driver.restore_ids(backup.ids)
        return writable, set() if begun is None else await _restored(driver, backup)

    return question


async def _restored(driver: MetadataDriver, backup: Backup) -> set[int]:
    """Return the ledgers of the backup that the cluster has completely."""
    restored = set()
    async for records in read_ledgers(driver):
        for there in records:
            if not isinstance(there, LedgerMetadata) or (record := backup.records.get(there.ledger_id)) is None:
                continue
            is_ours = there.custom_metadata.get(FROM) == origin_of(backup.cluster, there.ledger_id).encode()
            if is_ours and there.is_closed and there.last_entry_id == record.last_entry_id:
                restored.add(there.ledger_id)
    return restored


async def _check_empty(driver: MetadataDriver) -> None:
    """Raise `InvalidArgument` if the cluster has ledgers, logs or other records of users."""
    ledger_ids: Sequence[int] = ()
    async for page in driver.ledger_ids():
        ledger_ids = page
        break
    names = [name for name in await driver.record_names("") if not _is_own(name)]
    for present, noun in ((ledger_ids, "ledger"), (names, "record")):
        if present:
            raise InvalidArgument(
                f"the cluster at {driver.uri} is not empty, it has {counted_names(present, noun)}: create another one "
                "(`bk metadata init`, new bookies) and restore into that"
            )


def _ending(records: Mapping[str, bytes], backup: Backup) -> Any:
    """Return a question for `ask`: writes the records, the lists of logs last, and ends the restoration.

    Deletes incomplete ledgers that an earlier attempt has left and this one skipped. A log that an earlier attempt has
    written stays as it is: it may be in use. Raises `LogExists` if others have created one of its name.
    """

    async def question(client: Client) -> None:
        driver = client.administration().access.driver
        written = await _written_logs(driver, records)
        for ledger_id in backup.omitted if not written else ():  # Else a log in use may list it.
            with contextlib.suppress(LedgerNotFound):
                left = (await client.metadata(ledger_id)).custom_metadata.get(FROM)
                if left == origin_of(backup.cluster, ledger_id).encode():
                    await client.delete(ledger_id)
        filling = Filling(driver, "", "")
        for is_last in (False, True):
            items = [
                NamedRecord(name, data)
                for name, data in records.items()
                if name.startswith(LOGS) is is_last and not _is_part_of(name, written)
            ]
            for part in _parts(items):
                await (all_of([_create(driver, item) for item in part]) if is_last else filling.put(part))
        with contextlib.suppress(RecordNotFound):  # Another run has ended the restoration.
            _, version = await driver.read_record(RESTORATION)
            await driver.delete_record(RESTORATION, version)

    return question


async def _create(driver: MetadataDriver, item: NamedRecord) -> None:
    with contextlib.suppress(RecordExists):  # Another run has written it, and the log may be in use.
        await driver.create_record(item.name, item.data)


async def _written_logs(driver: MetadataDriver, records: Mapping[str, bytes]) -> set[str]:
    """Return the logs to restore that the cluster has. Raises `LogExists` if one of them is another log."""
    written = set()
    for name in (record.removeprefix(LOGS) for record in records if record.startswith(LOGS)):
        if (there := await read_record(driver, LOGS + name)) is None:
            continue
        if parse_manifest(name, there.data).token != parse_manifest(name, records[LOGS + name]).token:
            raise LogExists(f"the cluster has another log {name}, created since: delete it, and repeat the run")
        written.add(name)
    return written


def _is_part_of(record: str, logs: Collection[str]) -> bool:
    """Report whether a record is one of these logs, or about one."""
    if record.startswith(SEGMENTS):
        return record.removeprefix(SEGMENTS).partition("/")[0] in logs
    return any(record.removeprefix(prefix) in logs for prefix in PARTS if record.startswith(prefix))


def _parts(items: Sequence[NamedRecord]) -> Iterable[Sequence[NamedRecord]]:
    return (items[at : at + AT_ONCE] for at in range(0, len(items), AT_ONCE))


def _report(config: JobConfig, rows: Sequence[Row], run: str, *, is_good: bool) -> Report:
    outcomes = Counter(row[2] for row in rows if row[0] == LEDGER)
    size = sum(row[4] for row in rows if row[0] == LEDGER)
    logs = sum(row[0] == LOG for row in rows)
    ledgers = f"{counted(outcomes, 'no ledgers')}; {decimal_size_text(size)}"
    lead = f"backup run {run}: {ledgers}; {logs:,} {'log' if logs == 1 else 'logs'}"
    if config.mode == common.DRY_RUN:
        lead = f"would restore {lead}; a dry run, nothing was changed"
    elif any(outcome in common.UNFINISHED for outcome in outcomes):
        lead += "; no log yet: repeat the run, or leave ledgers out with --skip"
    headers = ("name", "outcome", "entries", "bytes", "detail")
    sections = [
        Section(title, table=Table(headers, [row[1:] for row in sorted(rows) if row[0] == kind], (2, 3)))
        for kind, title in ((LOG, "Logs"), (LEDGER, "Ledgers"))
    ]
    parameters = {"run": config.run_id, "mode": config.mode, **config.options}
    return Report("Restore cluster", lead, is_good, parameters, sections)
