"""`migrate`: copy ledgers, and logs, to another cluster, while they are in use; then move over to it.

A sealed ledger is copied by one task: its record is made in the target, open, with a label that says where it is from;
the entries are written under it as they were, with their lengths and digests; every replica is read back; then the
record is closed, and the ledger is read once more from the target and compared with the source (count, bytes, CRC). A
task that stops leaves a ledger that is open and labelled, and the next one goes on with it: writing the same entries
again does no harm.

The lists of logs follow, by swaps on condition that every copy that comes in is there, and whole. Until the cut-over
nobody can append to a log in the target. `cut_over` holds the source's list for ever, ends its last ledgers, copies
what is left, and frees the target's: in this order, each step safe to repeat. Source: spark 5.4.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bookies.client.log.log import LOGS
from bookies.client.log.transaction import read_ledgers
from bookies.client.read.offloaded import content_of
from bookies.client.write.manifest import ManifestLoop
from bookies.errors import (
    InvalidArgument,
    LedgerExists,
    LedgerNotFound,
    LogExists,
    RecordExists,
    ReplicationFailed,
    VersionConflict,
)
from bookies.metadata.interface.driver import LedgerAt
from bookies.model import LedgerMetadata
from bookies.protocol.ledger.ledger import closed
from bookies.protocol.ledger.offload import Content
from bookies.protocol.log import Manifest
from bookies.protocol.log.log_model import LedgerEnd, ended, pack_manifest
from bookies.protocol.log.migration import FROM, at_once, copied, held, log_origin, origin_of
from bookies.spark.base import runtime
from bookies.spark.jobs.complete import Complete
from bookies.spark.jobs.shared import common, ledger_selection
from bookies.spark.jobs.shared.common import JobConfig, Option, Outcome, Tools
from bookies.spark.jobs.shared.packing import Item
from bookies.spark.jobs.shared.progress import size_text
from bookies.spark.jobs.shared.report import Report, Section, Table

if TYPE_CHECKING:
    from bookies.client.client import Client

OPTIONS = (
    Option("target", None, "the metadata store of the other cluster", metavar="URI"),
    *ledger_selection.OPTIONS,
    Option("map_ids", False, "give ledgers new numbers in the target, in place of their own", bool),
    Option("cut_over", False, "stop the writers of these logs for ever, copy the rest, and let the target go on", bool),
)
MIGRATED = (
    "run_id STRING, kind STRING, source STRING, target STRING, outcome STRING, entries BIGINT, bytes BIGINT, "
    "crc BIGINT, detail STRING"
)
LEDGER, LOG = "ledger", "log"
FOLLOWS, MOVED = "follows", "moved"


def job(spark: Any, config: JobConfig) -> Any:
    """A row for each ledger (source, target: the mapping table), and one for each log."""
    return complete(spark, config).frame


def complete(spark: Any, config: JobConfig) -> Complete:
    config = common.checked(config, OPTIONS)
    target = config.options["target"]
    if not target:
        raise InvalidArgument("option target is missing: the metadata store of the other cluster")
    if config.options["cut_over"] and not config.options["log"]:
        raise InvalidArgument("cut_over is for logs: say which with --log")
    common.refuse_speculation(spark)
    cluster = common.ask(config.uri, _instance)
    if cluster == common.ask(str(target), _instance):
        raise InvalidArgument("source and target are one cluster")
    if config.options["cut_over"] and config.mode == common.RUN:
        for name in ledger_selection.logs_of(config.options["log"]):
            common.ask(config.uri, _holding(name, str(target)))
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
        said = str(detail.get("error", ""))
        rows.append((config.run_id, LEDGER, name, str(detail.get("target", "")), outcome, *counts, said))
    if not is_dry:
        rows += [_moved(config, cluster, name, manifest, ids) for name, manifest in chosen.manifests.items()]
    rows.sort()
    frame = common.save(common.frame_of(spark, rows, MIGRATED), config, "migrated")
    return Complete(frame, _report(config, rows))


# -- in a task -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CopyLedger:
    """Copies one sealed ledger to the target, or finds that it is there."""

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
                made = await self._record(target, record, known)
                content = await _copy(tools, target, record, made)
        except LedgerNotFound as error:
            return Outcome(common.GONE, {"error": str(error)})
        except LedgerExists:
            return Outcome(
                common.FAILED,
                {"error": f"the target has, or had, another ledger {item.name}: repeat it with --map-ids, new run id"},
            )
        counts = {"entries": content.rows, "bytes": content.size, "crc": content.crc}
        return Outcome(common.DONE, {"target": made.ledger_id, **counts})

    async def _record(self, target: Client, record: LedgerMetadata, known: int | None) -> LedgerMetadata:
        """The ledger's record in the target, made now or by an earlier attempt. Raises `LedgerExists`."""
        origin = origin_of(self.cluster, record.ledger_id).encode()
        number = known if known is not None else None if self.maps_ids else record.ledger_id
        if number is not None:
            with contextlib.suppress(LedgerNotFound):
                found = await target.metadata(number)
                if found.custom_metadata.get(FROM) != origin:
                    raise LedgerExists("of another origin", ledger_id=number)
                return found
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


async def _copy(tools: Tools, target: Client, record: LedgerMetadata, made: LedgerMetadata) -> Content:
    """Write what is missing, close the ledger, compare. Raises `ReplicationFailed`."""
    administration = target.administration()
    content = Content()
    if not made.is_closed:
        writable = {each.id for each in await target.bookies() if each.mode == "writable"}
        if not writable.issuperset(made.last_ensemble):  # One has gone since an earlier attempt began.
            fresh = await administration.with_new_bookies(made)
            made = await administration.change_record(made.ledger_id, lambda found: _on(found, fresh))
    async with tools.client.open(record.ledger_id, password=record.password or b"") as reader:
        async for batch in reader.read_batches():
            content = content.joined(content_of(batch))
            await tools.spent(record.ensemble_at(batch.first_entry_id), batch.size)
            if not made.is_closed:
                await administration.write_entries(made, batch)
                written = [f"target {bookie}" for bookie in made.last_ensemble]  # Names may be those of the source's.
                await tools.spent(written, batch.size * made.write_quorum)
    if (content.rows, content.size) != (record.last_entry_id + 1, record.length):
        raise ReplicationFailed("the source does not deliver what its record says", ledger_id=record.ledger_id)
    if not made.is_closed:
        end = closed(made, record.last_entry_id, record.length)
        await administration.check_entries(end)
        made = await administration.change_record(made.ledger_id, lambda found: _closed(found, made, end))
    back = Content()
    async with target.open(made.ledger_id, password=record.password or b"") as reader:
        async for batch in reader.read_batches():
            back = back.joined(content_of(batch))
    if back != content:
        raise ReplicationFailed(
            f"ledger {made.ledger_id} of the target has {back.rows:,} entries of {back.size:,} bytes, the source "
            f"{content.rows:,} of {content.size:,}: delete it there, and migrate it with --map-ids",
            ledger_id=record.ledger_id,
        )
    return content


def _on(found: LedgerMetadata, fresh: LedgerMetadata) -> LedgerMetadata | None:
    """The open record with other bookies."""
    if found.is_closed or found.ensembles == fresh.ensembles:
        return None
    return found.replace(ensembles=fresh.ensembles)


def _closed(found: LedgerMetadata, made: LedgerMetadata, end: LedgerMetadata) -> LedgerMetadata | None:
    """The record with its end. Raises `VersionConflict`: another attempt has chosen other bookies."""
    if found.is_closed:
        return None
    if found.ensembles != made.ensembles:
        raise VersionConflict(
            "another run copies it too: repeat this one when that has ended", ledger_id=made.ledger_id
        )
    return end


# -- on the driver ---------------------------------------------------------------------------------------------------


async def _instance(client: Client) -> str:
    return await client.administration().instance_id()


def _known(cluster: str) -> Any:
    """A question for `ask`: number in the source -> number in the target, of all that was begun; closed ones first."""

    async def question(client: Client) -> dict[int, int]:
        found: dict[int, LedgerMetadata] = {}
        async for record in client.ledgers():
            source, slash, number = record.custom_metadata.get(FROM, b"").decode(errors="replace").rpartition("/")
            if slash and source == cluster and number.isdigit():
                other = found.get(int(number))
                if other is None or (record.is_closed and not other.is_closed):
                    found[int(number)] = record
        return {number: record.ledger_id for number, record in found.items()}

    return question


def _holding(name: str, target: str) -> Any:
    """A question for `ask`: let nobody append to the log any more, then end what is open in it."""

    async def question(client: Client) -> None:
        parts = client.transactions()
        records = ManifestLoop(parts.runtime, parts.driver, name)
        await records.refresh()
        manifest = await records.update(lambda found: held(found, target))
        ends = await _ends(client, manifest, is_final=True)
        await records.update(lambda found: ended(found, ends))

    return question


async def _ends(client: Client, manifest: Manifest, *, is_final: bool = False) -> dict[int, LedgerEnd]:
    """Of the ledgers whose end the list does not say; `is_final`: stop their writers, and decide it."""
    ends = {}
    for ledger_id in manifest.open_ledgers:
        record = await client.metadata(ledger_id)
        if not record.is_closed and is_final:
            record = await client.administration().recover(ledger_id)
        if record.is_closed:
            ends[ledger_id] = LedgerEnd(record.last_entry_id, record.length)
    return ends


def _moved(
    config: JobConfig, cluster: str, name: str, manifest: Manifest, ids: Mapping[int, int]
) -> tuple[str, str, str, str, str, int, int, int, str]:
    """Let the log's list in the target follow, or take over; the row about it."""

    async def source(client: Client) -> Manifest:
        return ended(manifest, await _ends(client, manifest)) or manifest

    basis: Manifest = common.ask(config.uri, source)

    async def swap(client: Client) -> Manifest:
        return await _swapped(client, cluster, name, basis, ids, is_cut_over=bool(config.options["cut_over"]))

    try:
        made: Manifest = common.ask(str(config.options["target"]), swap)
    except (LogExists, LedgerNotFound) as error:
        return config.run_id, LOG, name, name, common.FAILED, 0, 0, 0, str(error)
    rows = sum(each.rows or 0 for each in made.extents)
    size = sum(each.bytes or 0 for each in made.extents)
    left = len(basis.extents) - len(made.extents)
    said = f"{left} ledgers of the source are still to come" if made.held and left else ""
    is_late = bool(config.options["cut_over"] and made.held)
    outcome = common.PARTLY if is_late else FOLLOWS if made.held else MOVED
    return config.run_id, LOG, name, name, outcome, rows, size, 0, said


async def _swapped(
    client: Client, cluster: str, name: str, source: Manifest, ids: Mapping[int, int], *, is_cut_over: bool
) -> Manifest:
    """The list in the target once nothing is to be changed. Raises `LogExists`, `LedgerNotFound`."""
    parts = client.transactions()
    origin = log_origin(cluster, name, source)
    token = f"{parts.runtime.random.getrandbits(64):016x}"
    records = ManifestLoop(parts.runtime, parts.driver, name)
    sources = {copy: ledger_id for ledger_id, copy in ids.items()}

    def change(found: Manifest) -> Manifest | None:
        return copied(source, found, at_once(source, found, ids), origin, token, is_cut_over=is_cut_over)

    async def conditions(found: Manifest) -> list[LedgerAt]:
        """That every copy that is to be listed is there: somebody may have deleted one since it was made."""
        made = change(found)
        listed = {*found.ledger_ids}
        new = [each for each in made.ledger_ids if each not in listed] if made is not None else []
        steps = []
        for ledger_id, record in (await read_ledgers(parts.driver, new)).items():
            label = origin_of(cluster, sources[ledger_id]).encode()
            if record is None or record.metadata.custom_metadata.get(FROM) != label or not record.metadata.is_closed:
                raise LedgerNotFound(
                    f"ledger {ledger_id} of the target, the copy of {sources[ledger_id]}, is gone since it was made, "
                    f"so log {name} stays there as it was: repeat the migration under a new run id",
                    ledger_id=ledger_id,
                )
            steps.append(LedgerAt(ledger_id, record.version))
        return steps

    if name not in await client.logs(name):
        new = copied(source, None, {}, origin, token, is_cut_over=False)
        assert new is not None
        with contextlib.suppress(RecordExists):  # Another run's; or another log, which `copied` refuses.
            await parts.driver.create_record(LOGS + name, pack_manifest(new))
    made = await records.refresh()
    while change(made) is not None:
        made = await records.update(change, conditions)
    return made


def _report(config: JobConfig, rows: Sequence[tuple[Any, ...]]) -> Report:
    outcomes = Counter(row[4] for row in rows)
    counted = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(outcomes.items())) or "nothing to migrate"
    lead = f"{counted}; {size_text(sum(row[6] for row in rows if row[1] == LEDGER))}"
    if config.mode == common.DRY_RUN:
        lead = f"would migrate: {lead}; a dry run, nothing was changed"
    is_good = not any(outcome in common.UNFINISHED for outcome in outcomes)
    headers = ("kind", "source", "target", "outcome", "entries", "bytes", "crc", "detail")
    sections = [Section("Ledgers and logs", table=Table(headers, [row[1:] for row in rows], (4, 5, 6)))]
    return Report("Migrate", lead, is_good, {"run": config.run_id, "mode": config.mode, **config.options}, sections)
