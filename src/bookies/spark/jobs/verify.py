"""Job `verify`: reads a run of a backup completely, and compares it with its manifest; nothing is written.

The metadata and the list of ledgers must have the digests in the manifest, and the files of every copy its entries, by
number, bytes and CRC. With `in_cluster` the ledgers of a cluster are read instead of the files: of one that was
restored from the backup, or of the source. A repeated run is one of the same backup run, also if a later one is the
latest now. Source: spark 5.3.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, convert, to_builtins
from msgspec.structs import replace

from bookies.client.read.offloaded import content_of
from bookies.errors import InvalidArgument, LedgerNotFound, ReadFailed
from bookies.protocol.ledger.backup import LedgerCopy, RunManifest
from bookies.protocol.ledger.offload import Content
from bookies.spark.base import runtime
from bookies.spark.jobs.complete import Complete
from bookies.spark.jobs.shared import common
from bookies.spark.jobs.shared.common import JobConfig, Option, Outcome, Tools
from bookies.spark.jobs.shared.packing import Item
from bookies.spark.jobs.shared.report import Report, Section, Table, counted
from bookies.units import decimal_size_text

BACKUP = Option("backup", None, "directory or URI of a backup", metavar="BACKUP", is_positional=True)
RUN = Option("backup_run", None, "run of the backup (default: the latest complete one)", metavar="RUN")
OPTIONS = (
    BACKUP,
    RUN,
    Option("in_cluster", False, "read the ledgers of the cluster instead of the files", bool),
)
VERIFIED = "run_id STRING, ledger_id BIGINT, outcome STRING, entries BIGINT, bytes BIGINT, detail STRING"
NO_CLUSTER = "memory:"  # a client of this store has no bookies


def needs_cluster(options: Mapping[str, Any]) -> bool:
    """Report whether the job with these options needs a cluster."""
    return bool(options["in_cluster"])


def job(spark: Any, config: JobConfig) -> Any:
    """Return a row for each ledger of the run."""
    return complete(spark, config).frame


def complete(spark: Any, config: JobConfig) -> Complete:
    config = common.checked(config, OPTIONS)
    if not config.options["backup"]:
        raise InvalidArgument("option backup is missing: give the directory or URI of a backup")
    from bookies.spark.jobs.shared import backup_files

    config, root, chosen = chosen_for(config)
    items = items_of(backup_files.contents_of(root, chosen).copies)
    if not needs_cluster(config.options):
        config = replace(config, uri=NO_CLUSTER)
        lines = sum(1 for _ in backup_files.metadata_of(root, chosen))
    else:
        lines = 0
    work = VerifyCopy(root, in_cluster=bool(config.options["in_cluster"]))
    run = common.execute(spark, config, "verify", items, work)
    if config.mode == common.PLAN:
        return Complete.planned("verify", run)
    rows = rows_of(config.run_id, items, run.totals())
    frame = common.save(common.frame_of(spark, rows, VERIFIED), config, "verified")
    return Complete(frame, _report(config, rows, chosen, lines))


def chosen_for(config: JobConfig) -> tuple[JobConfig, str, RunManifest]:
    """Return the configuration with the name of the backup run, the directory of its cluster, and the run.

    Raises `InvalidArgument`, `NotSupported`.
    """
    from bookies.spark.jobs.shared import backup_files

    to, cluster = backup_files.root_of(str(config.options["backup"]))
    root = f"{to}/{cluster}"
    chosen = backup_files.run_of(root, config.options["backup_run"])
    return replace(config, options={**config.options, "backup_run": chosen.run}), root, chosen


def items_of(copies: Sequence[LedgerCopy]) -> list[Item]:
    """Return an item for each copy. Another copy of the same ledger has another name."""
    return [Item(f"{copy.ledger}:{copy.attempt}", copy.bytes, (), json.dumps(to_builtins(copy))) for copy in copies]


def rows_of(run_id: str, items: Sequence[Item], totals: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return a row for each copy of the run. `totals`: results by item, perhaps with those of other copies."""
    names = {item.name for item in items}
    return sorted((run_id, int(name.partition(":")[0]), *rest) for name, *rest in totals if name in names)


class VerifyCopy(Struct, frozen=True):
    """Comparison of one ledger, from the files or from the cluster, with the description of its copy."""

    root: str
    in_cluster: bool

    async def carry_out(self, tools: Tools, item: Item) -> Outcome:
        copy = convert(json.loads(item.arguments), LedgerCopy)
        if self.in_cluster:
            try:
                content = await _stored(tools, copy.ledger)
            except LedgerNotFound:
                return Outcome(common.FAILED, {"error": "the cluster has no such ledger"})
        else:
            content = await runtime.worker().files().run(_in_files, self.root, copy)
        if (content.rows, content.size, content.crc) != (copy.rows, copy.bytes, copy.crc):
            raise ReadFailed(
                f"it has {content.rows:,} entries of {content.size:,} bytes, CRC {content.crc:08x}; the backup "
                f"{copy.rows:,} of {copy.bytes:,}, CRC {copy.crc:08x}",
                ledger_id=copy.ledger,
            )
        return Outcome(common.DONE, {"entries": content.rows, "bytes": content.size})


async def _stored(tools: Tools, ledger_id: int) -> Content:
    content = Content()
    async with await tools.administration.open(ledger_id) as reader:
        async for batch in reader.read_batches():
            content = content.joined(content_of(batch))
            await tools.spent(reader.metadata.ensemble_at(batch.first_entry_id), batch.size)
    return content


def _in_files(root: str, copy: LedgerCopy) -> Content:
    """Read a copy completely. Blocks. Raises `ReadFailed`, `DigestMismatch`."""
    from bookies.spark.jobs.shared import backup_files

    files = backup_files.opened_files(root, copy)
    try:
        return files.check()
    finally:
        files.close()


def _report(config: JobConfig, rows: Sequence[tuple[Any, ...]], run: RunManifest, lines: int) -> Report:
    outcomes = Counter(row[2] for row in rows)
    bad = [row for row in rows if row[2] != common.DONE]
    place = "the cluster" if config.options["in_cluster"] else f"the files, {lines:,} items of metadata"
    lead = (
        f"backup run {run.run} in {place}: {counted(outcomes, 'no ledgers')}; "
        f"{sum(row[3] for row in rows):,} entries, {decimal_size_text(sum(row[4] for row in rows))} compared; "
        f"the run omitted {run.omitted:,} ledgers"
    )
    headers = ("ledger", "outcome", "entries", "bytes", "detail")
    sections = [Section("Ledgers that differ", table=Table(headers, [row[1:] for row in bad], (0, 2, 3)))]
    return Report("Verify", lead, not bad, {"run": config.run_id, "mode": config.mode, **config.options}, sections)
