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
from msgspec.structs import replace

from bookies.client.read.offloaded import index_name
from bookies.errors import BookKeeperError, InvalidArgument, LedgerNotFound, ReadFailed
from bookies.metadata.dump_format import dump_lines
from bookies.metadata.transfer import Damaged, NamedRecord, counted_names
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
    from bookies.protocol.log import Manifest
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
COPIED, CARRIED, OMITTED, DELETED, WOULD = "copied", "carried-over", "omitted", "deleted", "would be copied"
LINES_AT_ONCE, OPENED_AT_ONCE = 1000, 32
ROUNDS_MAX = 3  # readings of the metadata, while logs change
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
    if config.mode == common.RUN:
        _check_new(root, config.run_id)
    base = chosen_run(earlier, None, root) if earlier else None
    before = backup_files.contents_of(root, base).copies if base is not None else ()
    result = _copied(spark, config, root, before)
    if config.mode == common.PLAN:
        return Complete.planned("backup", result.run)
    omitted = (*result.source.omitted, *result.failed)
    if config.mode == common.RUN:
        assert result.source.dump is not None
        new = list(result.new.values())
        whole = Contents((*result.carried.values(), *new), omitted, result.deleted)
        name = base.run if base is not None else ""
        _check_new(root, config.run_id)  # Another run of this id may have ended meanwhile.
        written = _manifest(root, config.run_id, (cluster, name, began_ms), result.source.dump, whole)
        _confirm(root, written, whole, new)
        if keep is not None:
            _prune(to, cluster, keep, sweep_s)
    rows = _rows(result, omitted, is_dry=config.mode == common.DRY_RUN)
    table = sorted((config.run_id, *row) for row in rows)
    frame = common.save(common.frame_of(spark, table, LEDGERS), config, "ledgers")
    return Complete(frame, _report(config, rows, result.source.broken, is_good=not result.failed))


class Copied(Struct):
    """Metadata, and the copies of its ledgers: of earlier runs, and new ones. `failed`: what could not be copied."""

    source: Source
    run: Run
    carried: dict[int, LedgerCopy]
    new: dict[int, LedgerCopy]
    deleted: tuple[int, ...]
    failed: list[Omitted]


def _copied(spark: Any, config: JobConfig, root: str, before: Sequence[LedgerCopy]) -> Copied:
    """Read the metadata, and copy what no earlier run has copied. `before`: copies of the run before.

    If ledgers were deleted meanwhile, the metadata is read again: a compaction may have replaced them.
    """
    from bookies.spark.jobs.shared import backup_files

    is_run = config.mode == common.RUN
    new: dict[int, LedgerCopy] = {}
    for number in range(ROUNDS_MAX):
        source: Source = common.ask(config.uri, _reading(root if is_run else None, config))
        carried, deleted = carried_over(before, source.sealed, source.ledger_ids)
        for ledger_id in backup_files.lost_copies(root, carried.values()):
            del carried[ledger_id]
        new, _ = carried_over(new.values(), source.sealed, source.ledger_ids)
        items = [_item(record) for key, record in source.sealed.items() if key not in carried and key not in new]
        part = config if number == 0 else replace(config, run_id=f"{config.run_id}.{number}")
        work = BackUpLedger(root, config.run_id, is_dry=not is_run)
        run = common.execute(spark, part, "backup", items, work, _still_there(root) if is_run else None)
        if not is_run:
            return Copied(source, run, carried, new, deleted, source.failed)
        copies, failed, gone = _outcomes(run, source.sealed)
        new |= copies
        if not gone:
            break
    return Copied(source, run, carried, new, deleted, source.failed + failed + gone)


# -- on the driver: the metadata ---------------------------------------------------------------------------------------


class Source(Struct):
    """Metadata of the cluster. `sealed`: ledgers to copy, an open one as if its confirmed entries were all.

    `omitted`: open ledgers that were not asked for; `failed`: ledgers that cannot be copied.
    `broken`: logs whose list lacks a part. `dump`: digest of the written file; None: none was written.
    """

    sealed: dict[int, LedgerMetadata]
    ledger_ids: set[int]
    omitted: list[Omitted]
    failed: list[Omitted]
    broken: list[str]
    dump: FileDigest | None = None


async def _instance_id(client: Client) -> str:
    return await client.administration().instance_id()


def _reading(root: str | None, config: JobConfig) -> Any:
    """Return a question for `ask` that writes the metadata to the run, if `root` is given, and returns the source."""
    from bookies.spark.jobs.shared import backup_files

    async def question(client: Client) -> Source:
        for _ in range(ROUNDS_MAX):
            file = None if root is None else backup_files.DumpFile(root, config.run_id)
            try:
                source, unsealed, lists = await _read_metadata(client, file)
                source.dump = None if file is None else file.finish()
            except BaseException:
                if file is not None:
                    file.discard()
                raise
            whole = [manifest for manifest in lists.values() if manifest is not None]
            missing = {one for manifest in whole for one in manifest.storages} - source.ledger_ids
            source.broken = [name for name, manifest in lists.items() if manifest is None]
            if not missing and not source.broken:
                break  # Otherwise a log has changed since its list was read, or has lost a ledger.
        source.failed += [Omitted(ledger_id, "a log lists it, and it does not exist") for ledger_id in missing]
        if not config.options["open"]:
            source.omitted += [Omitted(record.ledger_id, "it is open") for record in unsealed]
            return source
        for at in range(0, len(unsealed), OPENED_AT_ONCE):
            part = unsealed[at : at + OPENED_AT_ONCE]
            for record in await all_of([_confirmed(client, record) for record in part]):
                if isinstance(record, Omitted):
                    source.failed.append(record)
                else:
                    source.sealed[record.ledger_id] = record
        return source

    return question


async def _read_metadata(
    client: Client, file: DumpFile | None
) -> tuple[Source, list[LedgerMetadata], dict[str, Manifest | None]]:
    """Return the source, the ledgers that are not sealed, and the lists of logs."""
    source, unsealed, named = Source({}, set(), [], [], []), [], {}
    from bookies.spark.jobs.shared import backup_files

    lines: list[dict[str, Any]] = []
    async for item, line in dump_lines(client.administration().access.driver, passwords=True):
        lines.append(line)
        if file is not None and len(lines) >= LINES_AT_ONCE:
            file.write(lines)
            lines = []
        if isinstance(item, Damaged):
            source.ledger_ids.add(item.ledger_id)
            source.failed.append(Omitted(item.ledger_id, f"its record cannot be read: {item.reason}"))
        elif isinstance(item, NamedRecord):
            named[item.name] = item.data
        elif isinstance(item, LedgerMetadata):
            source.ledger_ids.add(item.ledger_id)
            if item.is_closed:
                source.sealed[item.ledger_id] = item
            else:
                unsealed.append(item)
    if file is not None:
        file.write(lines)
    return source, unsealed, backup_files.lists_of(named)


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
        attempt = tier.backup_name(self.run_id)
        directory = f"{backup_files.ledger_directory(self.root, record.ledger_id)}{attempt}"
        parts = await copying.written_files(tools, record.ledger_id, 0, record.last_entry_id, directory)
        index, content = tier.index_of(record.ledger_id, attempt, parts)
        if (content.rows, content.size) != (record.last_entry_id + 1, record.length):
            raise ReadFailed(
                "its entries or bytes differ from its record: scrub the ledger", ledger_id=record.ledger_id
            )
        crc = await files.run(tier.write_index, directory, index)
        named = (*((part.file, part.size) for part in parts), (index_name(crc), len(index.pack())))
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


def _outcomes(
    run: Run, sealed: Mapping[int, LedgerMetadata]
) -> tuple[dict[int, LedgerCopy], list[Omitted], list[Omitted]]:
    """Return the copies, and ledgers that could not be copied: of all others, and those that were deleted.

    Ignores ledgers of an earlier attempt.
    """
    copies: dict[int, LedgerCopy] = {}
    failed: list[Omitted] = []
    gone: list[Omitted] = []
    for name, outcome, detail in run.details():
        if (record := sealed.get(int(name))) is None:
            continue
        if outcome != common.DONE:
            left = Omitted(record.ledger_id, str(detail.get("error", outcome)))
            (gone if outcome == common.GONE else failed).append(left)
        elif (copy := convert(detail["copy"], LedgerCopy)).is_of(record):
            copies[record.ledger_id] = copy
    return copies, failed, gone


def _rows(result: Copied, omitted: Sequence[Omitted], *, is_dry: bool) -> list[Row]:
    rows = [(one.ledger, COPIED, one.rows, one.bytes, len(one.files), "") for one in result.new.values()]
    rows += [(one.ledger, CARRIED, one.rows, one.bytes, 0, "") for one in result.carried.values()]
    rows += [(one.ledger, OMITTED, 0, 0, 0, one.reason) for one in omitted]
    rows += [(ledger_id, DELETED, 0, 0, 0, "it was deleted since the run before") for ledger_id in result.deleted]
    for record in result.source.sealed.values() if is_dry else ():
        if record.ledger_id not in result.carried:
            rows.append((record.ledger_id, WOULD, record.last_entry_id + 1, record.length, 0, ""))
    return rows


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


def _check_new(root: str, run_id: str) -> None:
    from bookies.spark.jobs.shared import backup_files

    if any(run.run == run_id for run in backup_files.runs(root)):
        raise InvalidArgument(f"{root} has a complete run {run_id} already: choose another run id")
    if backup_files.RUN + run_id in backup_files.announced(root):
        raise InvalidArgument(f"another run deletes what is left of run {run_id} in {root}: choose another run id")


def _confirm(root: str, manifest: RunManifest, contents: Contents, new: Sequence[LedgerCopy]) -> None:
    """Read the run's files back, and check that no other run has deleted copies while no manifest listed them.

    Raises `ReadFailed`: then there is no such run.
    """
    from bookies.spark.jobs.shared import backup_files

    try:
        backup_files.contents_of(root, manifest)
        for _ in backup_files.metadata_of(root, manifest):
            pass
    except ReadFailed as error:
        backup_files.delete_run(root, manifest.run)
        raise ReadFailed(
            f"the files of run {manifest.run} are not as they were written, because of another run of this id or a "
            f"fault of the store, so there is no such run: repeat it under a new id ({error})"
        ) from error
    is_based = not manifest.base or any(run.run == manifest.base for run in backup_files.runs(root))
    lost = backup_files.lost_copies(root, new if is_based else contents.copies)
    if lost or backup_files.RUN + manifest.run in backup_files.announced(root):
        backup_files.delete_run(root, manifest.run)
        raise ReadFailed(
            f"another run deletes {f'the copies of {len(lost):,} ledgers' if lost else 'leftovers'} at present, so "
            f"there is no run {manifest.run}: repeat it{'' if lost else ' under a new id'}"
        )


def _prune(to: str, cluster: str, keep: int, sweep_s: float) -> None:
    """Delete older runs, and copies that no run lists."""
    from bookies.spark.jobs.shared import backup_files

    root = f"{to}/{cluster}"
    _, old = kept_runs(backup_files.runs(root), keep)
    for run in old:
        backup_files.delete_run(root, run.run)
    backup_files.delete_leftovers(to, cluster, common.now_ms() / 1000 - sweep_s)


def _report(config: JobConfig, rows: Sequence[Row], broken: Sequence[str], *, is_good: bool) -> Report:
    counts = Counter(row[1] for row in rows)
    sizes = {outcome: sum(row[3] for row in rows if row[1] == outcome) for outcome in counts}
    new = sizes.get(COPIED, 0) + sizes.get(WOULD, 0)
    lead = (
        f"{'would copy' if config.mode == common.DRY_RUN else 'copied'} {counts[COPIED] + counts[WOULD]:,} ledgers, "
        f"{decimal_size_text(new)}; {counts[CARRIED]:,} carried over; "
        f"{decimal_size_text(new + sizes.get(CARRIED, 0))} in all; {counts[OMITTED]:,} omitted, {counts[DELETED]:,} "
        "deleted since the run before"
    )
    if config.mode == common.DRY_RUN:
        lead += "; a dry run, nothing was written"
    if broken:
        lead += f"; a part is missing of the list of {counted_names(broken, 'log')}, so the run cannot restore it"
    headers = ("ledger", "outcome", "entries", "bytes", "files", "detail")
    shown = sorted(row for row in rows if row[1] != CARRIED)
    sections = [
        Section("Outcomes", table=Table(("outcome", "count"), sorted(counts.items()), (1,))),
        Section("Ledgers", table=Table(headers, shown, (0, 2, 3, 4))),
    ]
    parameters = {"run": config.run_id, "mode": config.mode, **config.options}
    return Report("Backup", lead, is_good and not broken, parameters, sections)
