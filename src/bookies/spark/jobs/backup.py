"""Job `backup`: copies a whole cluster to a directory or an object store: its metadata, and every sealed ledger.

1. All metadata is written to a file, as of the beginning of the run.
2. Sealed ledgers that an earlier run has copied are carried over; a task copies each of the others, reads the copy
   back, and then names it in a file of its own. So a run that stops loses only the copies that were being written.
3. The list of ledgers is written, and last the manifest. Until then the run does not exist for readers.

Open ledgers are left out, with their reason, unless `open` is given: then a run has their entries up to the last add
confirmed. It disturbs no writer. Source: spark 5.3, 5.4.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, convert, to_builtins

from bookies.client.read.offloaded import INDEX
from bookies.errors import BookKeeperError, InvalidArgument, LedgerNotFound, ReadFailed
from bookies.metadata.dump_format import dump_lines
from bookies.metadata.transfer import Damaged
from bookies.model import LedgerMetadata
from bookies.protocol.ledger.backup import (
    FORMAT,
    Contents,
    FileDigest,
    LedgerCopy,
    Omitted,
    RunManifest,
    carried_over,
    chosen_run,
    kept_runs,
)
from bookies.protocol.ledger.ledger import closed
from bookies.runtime.tasks import all_of
from bookies.spark.base import runtime
from bookies.spark.jobs.complete import Complete
from bookies.spark.jobs.shared import common, copying, ledger_selection
from bookies.spark.jobs.shared.common import JobConfig, Option, Outcome, Run, Tools
from bookies.spark.jobs.shared.packing import Item
from bookies.spark.jobs.shared.report import Report, Section, Table
from bookies.units import decimal_size_text

if TYPE_CHECKING:
    from bookies.client.client import Client
    from bookies.spark.jobs.shared.backup_files import DumpFile

OPTIONS = (
    Option("to", None, "target: a directory, or a URI such as s3://bucket/backups", metavar="TO", is_positional=True),
    Option("open", False, "copy also the confirmed entries of ledgers that are not sealed", bool),
    Option("keep", None, "then delete all but this many of the newest runs, and what only those have", int),
    Option(
        "sweep_after", "7d", "with keep: delete copies that no run lists, last written this long ago", metavar="TIME"
    ),
)
LEDGERS = "run_id STRING, ledger_id BIGINT, outcome STRING, entries BIGINT, bytes BIGINT, files BIGINT, detail STRING"
COPIED, CARRIED, OMITTED, DELETED = "copied", "carried-over", "omitted", "deleted"
LINES_AT_ONCE, OPENED_AT_ONCE = 1000, 32
Row = tuple[int, str, int, int, int, str]


def job(spark: Any, config: JobConfig) -> Any:
    """Return a row for each ledger."""
    return complete(spark, config).frame


def complete(spark: Any, config: JobConfig) -> Complete:
    config = common.checked(config, OPTIONS)
    sweep_s = ledger_selection.seconds_of("sweep_after", config.options["sweep_after"])
    if not config.options["to"]:
        raise InvalidArgument("option to is missing: give the target of the backup, a directory or a URI")
    if (keep := config.options["keep"]) is not None and keep < 1:
        raise InvalidArgument(f"keep={keep}: a backup keeps at least 1 run")
    common.refuse_speculation(spark)
    from bookies.spark.jobs.shared import backup_files
    from bookies.spark.write import tier

    to, began_ms = tier.absolute(str(config.options["to"])), common.now_ms()
    cluster: str = common.ask(config.uri, _instance_id)
    root = f"{to}/{cluster}"
    earlier = backup_files.runs(root)
    if config.mode == common.RUN and any(run.run == config.run_id for run in earlier):
        raise InvalidArgument(f"{root} has a complete run {config.run_id} already: choose another run id")
    is_run = config.mode == common.RUN
    source: Source = common.ask(config.uri, _reading(root if is_run else None, config))
    base = chosen_run(earlier, None, root) if earlier else None
    contents = backup_files.contents_of(root, base) if base is not None else Contents((), (), ())
    copies, deleted = carried_over(contents.copies, source.sealed, source.ledger_ids)
    lost = backup_files.lost_copies(root, copies.values())
    copies = {ledger_id: copy for ledger_id, copy in copies.items() if ledger_id not in lost}
    carried = len(copies)
    items = [_item(record) for ledger_id, record in source.sealed.items() if ledger_id not in copies]
    work = BackUpLedger(root, config.run_id, is_dry=not is_run)
    run = common.execute(spark, config, "backup", items, work, None if not is_run else _still_there(root))
    if config.mode == common.PLAN:
        return Complete.planned("backup", run)
    rows, new, failed = _copied(run, source.sealed)
    rows += [(ledger_id, CARRIED, copy.rows, copy.bytes, 0, "") for ledger_id, copy in copies.items()]
    omitted = (*source.omitted, *failed)
    rows += [(one.ledger, OMITTED, 0, 0, 0, one.reason) for one in omitted]
    rows += [(ledger_id, DELETED, 0, 0, 0, "it was deleted since the run before") for ledger_id in deleted]
    if is_run:
        assert source.dump is not None
        whole = Contents((*copies.values(), *new), omitted, deleted)
        name = base.run if base is not None else ""
        written = _manifest(root, config.run_id, (cluster, name, began_ms), source.dump, whole)
        _confirm(root, written, whole, new)
        if keep is not None:
            _prune(to, cluster, keep, sweep_s)
    table = sorted((config.run_id, *row) for row in rows)
    frame = common.save(common.frame_of(spark, table, LEDGERS), config, "ledgers")
    return Complete(frame, _report(config, rows, carried, failed))


# -- on the driver: the metadata ---------------------------------------------------------------------------------------


class Source(Struct):
    """Metadata of the cluster. `sealed`: ledgers to copy, an open one as if its confirmed entries were all.

    `dump`: digest of the written file; None: none was written.
    """

    sealed: dict[int, LedgerMetadata]
    ledger_ids: set[int]
    omitted: list[Omitted]
    dump: FileDigest | None = None


async def _instance_id(client: Client) -> str:
    return await client.administration().instance_id()


def _reading(root: str | None, config: JobConfig) -> Any:
    """Return a question for `ask` that writes the metadata to the run, if `root` is given, and returns the source."""
    from bookies.spark.jobs.shared import backup_files

    async def question(client: Client) -> Source:
        file = None if root is None else backup_files.DumpFile(root, config.run_id)
        try:
            source, unsealed = await _read_metadata(client, file)
            source.dump = None if file is None else file.finish()
        except BaseException:
            if file is not None:
                file.discard()
            raise
        if not config.options["open"]:
            source.omitted += [Omitted(record.ledger_id, "it is open") for record in unsealed]
            return source
        for at in range(0, len(unsealed), OPENED_AT_ONCE):
            part = unsealed[at : at + OPENED_AT_ONCE]
            for record in await all_of([_confirmed(client, record) for record in part]):
                if isinstance(record, Omitted):
                    source.omitted.append(record)
                else:
                    source.sealed[record.ledger_id] = record
        return source

    return question


async def _read_metadata(client: Client, file: DumpFile | None) -> tuple[Source, list[LedgerMetadata]]:
    """Return the source, and the ledgers that are not sealed."""
    source, unsealed = Source({}, set(), []), []
    lines: list[dict[str, Any]] = []
    async for item, line in dump_lines(client.administration().access.driver, passwords=True):
        lines.append(line)
        if file is not None and len(lines) >= LINES_AT_ONCE:
            file.write(lines)
            lines = []
        if isinstance(item, Damaged):
            source.ledger_ids.add(item.ledger_id)
            source.omitted.append(Omitted(item.ledger_id, f"its record cannot be read: {item.reason}"))
        elif isinstance(item, LedgerMetadata):
            source.ledger_ids.add(item.ledger_id)
            if item.is_closed:
                source.sealed[item.ledger_id] = item
            else:
                unsealed.append(item)
    if file is not None:
        file.write(lines)
    return source, unsealed


async def _confirmed(client: Client, record: LedgerMetadata) -> LedgerMetadata | Omitted:
    """Return the record of an open ledger as if it ended with its last add confirmed."""
    try:
        async with await client.administration().open(record.ledger_id) as reader:
            last, length = reader.last_add_confirmed, 0
            if last >= 0:
                async for batch in reader.read_batches(last, last):
                    length = batch.lengths()[-1]
            return closed(record, last, length)
    except BookKeeperError as error:
        return Omitted(record.ledger_id, f"it is open, and its end cannot be read: {error}")


# -- in a task ---------------------------------------------------------------------------------------------------------


def _item(record: LedgerMetadata) -> Item:
    arguments = {"last": record.last_entry_id, "length": record.length, "ctime_ms": record.ctime_ms}
    return Item(str(record.ledger_id), record.length, tuple(record.ensemble_at(0)), json.dumps(arguments))


class BackUpLedger(Struct, frozen=True):
    """Copy of one ledger to files, unless an earlier run has left one."""

    root: str
    run_id: str
    is_dry: bool

    async def carry_out(self, tools: Tools, item: Item) -> Outcome:
        from bookies.spark.jobs.shared import backup_files

        arguments = json.loads(item.arguments)
        ledger_id, last = int(item.name), arguments["last"]
        if self.is_dry:
            return Outcome(common.DONE, {})
        files = runtime.worker().files()
        try:
            current = await tools.client.metadata(ledger_id)
            record = closed(current, last, arguments["length"]).replace(ctime_ms=arguments["ctime_ms"])
            copy = await files.run(backup_files.complete_copy, self.root, record)
            if copy is None:
                copy = await self._copy(tools, record)
        except LedgerNotFound:
            return Outcome(common.GONE, {"error": "it was deleted while the run was copying"})
        return Outcome(common.DONE, {"copy": to_builtins(copy)})

    async def _copy(self, tools: Tools, record: LedgerMetadata) -> LedgerCopy:
        """Write the copy. Raises `ReadFailed` if it has other totals than the record."""
        from bookies.spark.jobs.shared import backup_files
        from bookies.spark.write import tier

        files = runtime.worker().files()
        attempt = tier.attempt_name(self.run_id)
        directory = f"{backup_files.ledger_directory(self.root, record.ledger_id)}{attempt}"
        parts = await copying.written_files(tools, record.ledger_id, 0, record.last_entry_id, directory)
        index, content = tier.index_of(record.ledger_id, attempt, parts)
        if (content.rows, content.size) != (record.last_entry_id + 1, record.length):
            raise ReadFailed(
                "its entries or bytes differ from its record: scrub the ledger", ledger_id=record.ledger_id
            )
        crc = await files.run(tier.write_index, directory, index)
        named = (*((part.file, part.size) for part in parts), (INDEX, len(index.pack())))
        counts = content.rows, content.size, content.crc
        copy = LedgerCopy(record.ledger_id, attempt, *counts, crc, common.now_ms(), record.ctime_ms, named)
        await files.run(backup_files.name_copy, self.root, record, copy)
        return copy


# -- on the driver: the run --------------------------------------------------------------------------------------------


def _still_there(root: str) -> common.Holds:
    """Return a check that the copies of an earlier attempt still exist."""
    from bookies.spark.jobs.shared import backup_files

    def holds(name: str, detail: Mapping[str, Any]) -> bool:
        return not backup_files.lost_copies(root, [convert(detail["copy"], LedgerCopy)])

    return holds


def _copied(run: Run, sealed: Mapping[int, LedgerMetadata]) -> tuple[list[Row], list[LedgerCopy], list[Omitted]]:
    """Return rows, copies and the ledgers that could not be copied. Ignores ledgers of an earlier attempt."""
    rows: list[Row] = []
    copies, failed = [], []
    for name, outcome, detail in run.details():
        ledger_id = int(name)
        record = sealed.get(ledger_id)
        if outcome == common.DONE and "copy" in detail:
            copy = convert(detail["copy"], LedgerCopy)
            if record is not None and copy.is_of(record):
                copies.append(copy)
                rows.append((ledger_id, COPIED, copy.rows, copy.bytes, len(copy.files), ""))
        elif outcome == common.DONE and record is not None:
            rows.append((ledger_id, "would be copied", record.last_entry_id + 1, record.length, 0, ""))
        elif record is not None:
            failed.append(Omitted(ledger_id, str(detail.get("error", outcome))))
    return rows, copies, failed


def _manifest(
    root: str, run_id: str, origin: tuple[str, str, int], dump: FileDigest, contents: Contents
) -> RunManifest:
    """Write the list of ledgers and the manifest. `origin`: cluster, the run before, begin."""
    from bookies.spark.jobs.shared import backup_files

    digest = backup_files.write_contents(root, run_id, contents)
    cluster, base, began_ms = origin
    size = sum(copy.bytes for copy in contents.copies)
    counts = len(contents.copies), size, len(contents.omitted), len(contents.deleted)
    manifest = RunManifest(FORMAT, run_id, cluster, base, began_ms, common.now_ms(), *counts, dump, digest)
    backup_files.write_manifest(root, manifest)
    return manifest


def _confirm(root: str, manifest: RunManifest, contents: Contents, new: Sequence[LedgerCopy]) -> None:
    """Check that no other run has deleted copies while no manifest listed them. Raises `ReadFailed`."""
    from bookies.spark.jobs.shared import backup_files

    is_based = not manifest.base or any(run.run == manifest.base for run in backup_files.runs(root))
    if lost := backup_files.lost_copies(root, new if is_based else contents.copies):
        backup_files.delete_run(root, manifest.run)
        raise ReadFailed(
            f"another run has deleted the copies of {len(lost):,} ledgers meanwhile, so there is no run "
            f"{manifest.run}: repeat it"
        )


def _prune(to: str, cluster: str, keep: int, sweep_s: float) -> None:
    """Delete older runs, and copies that no run lists."""
    from bookies.spark.jobs.shared import backup_files

    root = f"{to}/{cluster}"
    _, old = kept_runs(backup_files.runs(root), keep)
    for run in old:
        backup_files.delete_run(root, run.run)
    backup_files.delete_leftovers(to, cluster, common.now_ms() / 1000 - sweep_s)


def _report(config: JobConfig, rows: Sequence[Row], carried: int, failed: Sequence[Omitted]) -> Report:
    counts = Counter(row[1] for row in rows)
    new = sum(row[3] for row in rows if row[1] not in (CARRIED, OMITTED, DELETED))
    total = new + sum(row[3] for row in rows if row[1] == CARRIED)
    verb = "would copy" if config.mode == common.DRY_RUN else "copied"
    lead = (
        f"{verb} {len(rows) - carried - counts[OMITTED] - counts[DELETED]:,} ledgers, {decimal_size_text(new)}; "
        f"{carried:,} carried over; {decimal_size_text(total)} in all; {counts[OMITTED]:,} omitted, "
        f"{counts[DELETED]:,} deleted since the run before"
    )
    if config.mode == common.DRY_RUN:
        lead += "; a dry run, nothing was written"
    headers = ("ledger", "outcome", "entries", "bytes", "files", "detail")
    shown = sorted(row for row in rows if row[1] != CARRIED)
    sections = [
        Section("Outcomes", table=Table(("outcome", "count"), sorted(counts.items()), (1,))),
        Section("Ledgers", table=Table(headers, shown, (0, 2, 3, 4))),
    ]
    parameters = {"run": config.run_id, "mode": config.mode, **config.options}
    return Report("Backup", lead, not failed, parameters, sections)
