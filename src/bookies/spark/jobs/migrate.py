"""Job `migrate`: copies ledgers, and logs, to another cluster while they are in use; then cuts over to it.

One task copies a sealed ledger. It creates its record in the target, open, with a label that names the origin. It
writes the entries with their original lengths and digests, and reads every replica back. It closes the record, reads
the ledger once more from the target, and compares it with the source (count, bytes, CRC). A task that stops leaves an
open, labelled ledger, and the next one continues it: writing the same entries again does no harm.

The lists of logs follow, by conditional swaps: every new copy must exist and be complete. Until the cut-over no client
can append to a log in the target. `cut_over` holds the source's list for ever, ends its last ledgers, copies the rest,
and releases the target's list, in this order. Each step can be repeated safely. Source: spark 5.4.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from bookies.client.log.log import LOGS
from bookies.client.log.transaction import read_ledgers
from bookies.client.mirror import stop_writing
from bookies.client.write.manifest import ManifestLoop
from bookies.errors import (
    BookieError,
    EntryError,
    InvalidArgument,
    LedgerExists,
    LedgerNotFound,
    LogExists,
    LogNotFound,
    QuorumError,
    RecordExists,
    ReplicationFailed,
)
from bookies.metadata.interface.driver import LedgerAt
from bookies.metadata.transfer import counted_names
from bookies.model import LedgerMetadata
from bookies.protocol.log import Manifest
from bookies.protocol.log.log_model import LedgerEnd, ended, pack_manifest
from bookies.protocol.log.migration import FROM, as_planned, at_once, copied, log_origin, origin_of, unnamed, unread
from bookies.spark.base import runtime
from bookies.spark.jobs.complete import Complete
from bookies.spark.jobs.shared import common, copying, ledger_selection
from bookies.spark.jobs.shared.common import JobConfig, Option, Outcome, Tools
from bookies.spark.jobs.shared.packing import Item
from bookies.spark.jobs.shared.report import Report, Section, Table, counted
from bookies.units import decimal_size_text

if TYPE_CHECKING:
    from bookies.client.base import EntryBatch
    from bookies.client.client import Client

OPTIONS = (
    Option("target", None, "metadata store of the target cluster", metavar="URI"),
    *ledger_selection.OPTIONS,
    Option("map_ids", False, "give ledgers new numbers in the target instead of their own", bool),
    Option(
        "cut_over",
        False,
        "end writing to these logs here permanently, copy the rest, then allow writers in the target",
        bool,
    ),
)
MIGRATED = (
    "run_id STRING, kind STRING, source STRING, target STRING, outcome STRING, entries BIGINT, bytes BIGINT, "
    "crc BIGINT, detail STRING"
)
LEDGER, LOG = "ledger", "log"
FOLLOWS, MOVED = "follows", "moved"
NAMED = ("source cluster: ", "target cluster: ", "the source", "of the target")  # in errors that name the cluster


def job(spark: Any, config: JobConfig) -> Any:
    """Return a row for each ledger (source, target: the mapping table), and one for each log."""
    return complete(spark, config).frame


def complete(spark: Any, config: JobConfig) -> Complete:
    config = common.checked(config, OPTIONS)
    target = config.options["target"]
    if not target:
        raise InvalidArgument("option target is missing: give the metadata store of the target cluster")
    if config.options["cut_over"] and not config.options["log"]:
        raise InvalidArgument("cut_over is for logs: name them with --log")
    common.refuse_speculation(spark)
    cluster = common.ask(config.uri, _instance)
    if cluster == common.ask(str(target), _instance):
        raise InvalidArgument("source and target are the same cluster: give another target")
    if config.options["cut_over"] and config.mode == common.RUN:
        for name in ledger_selection.logs_of(config.options["log"]):
            common.ask(config.uri, partial(stop_writing, name=name, target=str(target)))
    chosen = common.ask(config.uri, lambda client: ledger_selection.select(client, config.options))
    known = common.ask(str(target), _known(cluster))
    items = [
        Item(
            str(record.ledger_id),
            record.length * record.write_quorum,
            tuple(record.ensemble_at(0)),
            json.dumps({"known": known.get(record.ledger_id)}),
        )
        for record in chosen.records
        if record.is_closed
    ]
    is_dry = config.mode == common.DRY_RUN
    work = CopyLedger(str(target), cluster, maps_ids=bool(config.options["map_ids"]), is_dry=is_dry)
    run = common.execute(spark, config, "migrate", items, work)
    if config.mode == common.PLAN:
        return Complete.planned("migrate", run)
    rows, ids = [], {}
    for name, outcome, detail in run.details():
        if outcome == common.DONE and "target" in detail:
            ids[int(name)] = int(detail["target"])
        counts = detail.get("entries", 0), detail.get("bytes", 0), detail.get("crc", 0)
        explanation = str(detail.get("error", ""))
        rows.append((config.run_id, LEDGER, name, str(detail.get("target", "")), outcome, *counts, explanation))
    if not is_dry:
        rows += [_moved(config, cluster, name, manifest, ids) for name, manifest in chosen.manifests.items()]
    rows.sort()
    frame = common.save(common.frame_of(spark, rows, MIGRATED), config, "migrated")
    return Complete(frame, _report(config, rows))


# -- in a task -------------------------------------------------------------------------------------------------------


class CopyLedger(Struct, frozen=True):
    """Copy of one sealed ledger to the target, or confirmation that it already exists there."""

    target: str
    cluster: str
    maps_ids: bool
    is_dry: bool

    async def carry_out(self, tools: Tools, item: Item) -> Outcome:
        known = json.loads(item.arguments)["known"]
        try:
            record = await tools.client.metadata(int(item.name))
            if self.is_dry:
                return Outcome(common.DONE, {"entries": record.last_entry_id + 1, "bytes": record.length})
            async with runtime.worker().new_client(self.target) as target:
                with _naming("target"):
                    target_record = await self._record(target, record, known)
                    content = await copying.written_ledger(
                        tools, target, record, target_record, _entries(tools, record)
                    )
        except LedgerNotFound as error:
            return Outcome(common.GONE, {"error": str(error)})
        except LedgerExists:
            return Outcome(
                common.FAILED,
                {"error": f"the target has, or had, another ledger {item.name}: repeat it with --map-ids, new run id"},
            )
        counts = {"entries": content.rows, "bytes": content.size, "crc": content.crc}
        return Outcome(common.DONE, {"target": target_record.ledger_id, **counts})

    async def _record(self, target: Client, record: LedgerMetadata, known: int | None) -> LedgerMetadata:
        """Return the ledger's record in the target, created now or by an earlier attempt. Raises `LedgerExists`."""
        origin = origin_of(self.cluster, record.ledger_id).encode()
        number = known if known is not None else None if self.maps_ids else record.ledger_id
        if number is not None:
            with contextlib.suppress(LedgerNotFound):
                existing = await target.metadata(number)
                if existing.custom_metadata.get(FROM) != origin:
                    raise LedgerExists("of another origin", ledger_id=number)
                return existing
        writer = await target.create(
            ensemble=record.ensemble_size,
            write_quorum=record.write_quorum,
            ack_quorum=record.ack_quorum,
            digest=record.digest_type or "crc32c",
            password=record.password or b"",
            labels={
                name: value for name, value in record.custom_metadata.items() if not name.startswith("bookies.offload")
            }
            | {FROM: origin},
            ledger_id=number,
        )
        await writer.close()
        return await target.metadata(writer.ledger_id)


@contextlib.contextmanager
def _naming(cluster: str) -> Iterator[None]:
    """Let errors of bookies name the cluster, source or target, unless they do: both have bookies of the same names."""
    try:
        yield
    except (BookieError, EntryError, QuorumError, ReplicationFailed) as error:
        if not any(words in error.message for words in NAMED):
            error.args = (f"{cluster} cluster: {error.message}",)
        raise


async def _entries(tools: Tools, record: LedgerMetadata) -> AsyncGenerator[EntryBatch]:
    """Yield the source's entries, at the rate of its bookies."""
    with _naming("source"):
        async with tools.client.open(record.ledger_id, password=record.password or b"") as reader:
            async for batch in reader.read_batches():
                yield batch
                await tools.spent(record.ensemble_at(batch.first_entry_id), batch.size)


# -- on the driver ---------------------------------------------------------------------------------------------------


async def _instance(client: Client) -> str:
    return await client.administration().instance_id()


def _known(cluster: str) -> Any:
    """Return a question for `ask`: number in the source -> number in the target, of all copies; prefers closed ones."""

    async def question(client: Client) -> dict[int, int]:
        copies: dict[int, LedgerMetadata] = {}
        async for record in client.ledgers():
            source, slash, number = record.custom_metadata.get(FROM, b"").decode(errors="replace").rpartition("/")
            if slash and source == cluster and number.isdigit():
                other = copies.get(int(number))
                if other is None or (record.is_closed and not other.is_closed):
                    copies[int(number)] = record
        return {number: record.ledger_id for number, record in copies.items()}

    return question


async def _ends(client: Client, manifest: Manifest) -> dict[int, LedgerEnd]:
    """Return the ends of closed ledgers that the list has as open."""
    ends = {}
    for ledger_id in manifest.open_ledgers:
        record = await client.metadata(ledger_id)
        if record.is_closed:
            ends[ledger_id] = LedgerEnd(record.last_entry_id, record.length)
    return ends


def _moved(
    config: JobConfig, cluster: str, name: str, manifest: Manifest, ids: Mapping[int, int]
) -> tuple[str, str, str, str, str, int, int, int, str]:
    """Let the log's list in the target follow, or take over, and return its row. `manifest`: the list of the plan."""

    async def source(client: Client) -> tuple[Manifest, Manifest]:
        """Return the list as it is now, too: what has left it since the plan was truncated."""
        now = await client.log(name).manifest()
        ends = await _ends(client, now)
        return ended(now, ends) or now, ended(manifest, ends) or manifest

    target = str(config.options["target"])

    async def swap(client: Client) -> Manifest:
        return await _swapped(client, cluster, name, basis, ids, target if config.options["cut_over"] else None)

    try:
        basis = common.ask(config.uri, source)
        target_manifest: Manifest = common.ask(target, swap)
    except (LogExists, LogNotFound, LedgerNotFound) as error:
        return config.run_id, LOG, name, name, common.FAILED, 0, 0, 0, str(error)
    rows = sum(extent.rows or 0 for extent in target_manifest.extents)
    size = sum(extent.bytes or 0 for extent in target_manifest.extents)
    is_late = bool(config.options["cut_over"] and target_manifest.held)
    left = len(basis[0].extents) - len(target_manifest.extents)
    explanation = f"{left} ledgers of the source are still to be copied" if target_manifest.held and left > 0 else ""
    if is_late and not explanation and (missed := unread(basis[0], ids)):
        explanation = f"not compared in this run: {counted_names(missed, 'ledger')}; repeat it under a new run id"
    outcome = common.PARTLY if is_late else FOLLOWS if target_manifest.held else MOVED
    return config.run_id, LOG, name, name, outcome, rows, size, 0, explanation


async def _swapped(
    client: Client,
    cluster: str,
    name: str,
    lists: tuple[Manifest, Manifest],
    ids: Mapping[int, int],
    moves_to: str | None,
) -> Manifest:
    """Return the target's list once no change is left. `lists`: of the source, now and when the run was planned.

    `moves_to`: metadata store of the target, at a cut-over.

    Raises `LogExists`, `LedgerNotFound`.
    """
    source, planned = lists
    parts = client.transactions()
    origin = log_origin(cluster, name, source)
    token = f"{parts.runtime.random.getrandbits(64):016x}"
    records = ManifestLoop(parts.runtime, parts.driver, name)
    sources = {copy: ledger_id for ledger_id, copy in ids.items()}

    def change(current: Manifest) -> Manifest | None:
        basis = as_planned(source, planned, current, ids)
        return copied(basis, current, at_once(basis, current, ids), origin, token, moves_to)

    async def conditions(current: Manifest) -> list[LedgerAt]:
        """Return conditions that every newly listed copy exists: one may have been deleted since it was written."""
        changed = change(current)
        listed = {*current.storages}
        new = [copy_id for copy_id in changed.storages if copy_id not in listed] if changed is not None else []
        steps = []
        for ledger_id, record in (await read_ledgers(parts.driver, list(dict.fromkeys(new)))).items():
            label = origin_of(cluster, sources[ledger_id]).encode()
            if record is None or record.metadata.custom_metadata.get(FROM) != label or not record.metadata.is_closed:
                raise LedgerNotFound(
                    f"ledger {ledger_id} of the target, the copy of {sources[ledger_id]}, was deleted since it was "
                    f"written, so log {name} is unchanged there: repeat the migration under a new run id",
                    ledger_id=ledger_id,
                )
            steps.append(LedgerAt(ledger_id, record.version))
        return steps

    if name not in await client.logs(name):
        new = copied(source, None, {}, origin, token, None)
        assert new is not None
        with contextlib.suppress(RecordExists):  # Created by another run; `copied` refuses another log's.
            await parts.driver.create_record(LOGS + name, pack_manifest(new))
    manifest = await records.refresh()
    nameless = unnamed(as_planned(source, planned, manifest, ids), manifest, ids)
    ids = {**ids} | {one: await parts.driver.next_ledger_id() for one in nameless}
    while change(manifest) is not None:
        manifest = await records.update(change, conditions)
    return manifest


def _report(config: JobConfig, rows: Sequence[tuple[Any, ...]]) -> Report:
    outcomes = Counter(row[4] for row in rows)
    size = sum(row[6] for row in rows if row[1] == LEDGER)
    lead = f"{counted(outcomes, 'no ledgers to migrate')}; {decimal_size_text(size)}"
    if config.mode == common.DRY_RUN:
        lead = f"would migrate: {lead}; a dry run, nothing was changed"
    is_good = not any(outcome in common.UNFINISHED for outcome in outcomes)
    headers = ("kind", "source", "target", "outcome", "entries", "bytes", "crc", "detail")
    sections = [Section("Ledgers and logs", table=Table(headers, [row[1:] for row in rows], (4, 5, 6)))]
    return Report("Migrate", lead, is_good, {"run": config.run_id, "mode": config.mode, **config.options}, sections)
