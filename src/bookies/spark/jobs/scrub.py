"""Job `scrub`: checks every replica of every entry, reports what is wrong, and plans the repair. Never writes data.

    level 0  metadata alone: quorums, fragments, unknown bookies
    level 1  existence, by the list of entries that each bookie has
    level 2  the first and last entry of each fragment, read at each bookie, digest verified
    level 3  every entry at every bookie, digest verified
    level 4  as 3, and payloads compared between the replicas

An open ledger is checked on level 1 only, up to its last add confirmed; there an entry is missing if fewer bookies
than the ack quorum have it. A bookie that does not answer is one finding. Before a bookie is blamed, the ledger's
record is read again: entries deleted or moved meanwhile are no finding. Of offloaded ledgers that bookies may delete,
only the record is checked; they are counted. Source: spark 5.1.
"""

from __future__ import annotations

import datetime
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from bookies.client.base import EntryBatch
from bookies.client.repair.scan import ReplicaScan
from bookies.client.transport.watcher import DOWN
from bookies.errors import InvalidArgument, LedgerNotFound
from bookies.model import BookieId, LedgerMetadata
from bookies.protocol.ledger.offload import is_given_up
from bookies.protocol.repair import Fragment
from bookies.runtime.tasks import all_of
from bookies.spark.base.plan import even_parts
from bookies.spark.jobs.complete import Complete
from bookies.spark.jobs.shared import common
from bookies.spark.jobs.shared.common import JobConfig, Option, Outcome, Run, Tools
from bookies.spark.jobs.shared.findings import (
    DIFFERS,
    LENGTH_MISMATCH,
    METADATA,
    MISSING,
    UNAVAILABLE,
    Finding,
    Repair,
    check_record,
    differing,
    findings_of,
    joined,
    one_by_bookie,
    repairs_of,
    too_few,
)
from bookies.spark.jobs.shared.ledger_selection import numbers_of
from bookies.spark.jobs.shared.packing import Item
from bookies.spark.jobs.shared.report import Report, Section, Table, counted
from bookies.units import decimal_size_text

if TYPE_CHECKING:
    from bookies.client.client import Client

OPTIONS = (
    Option(
        "level", 3, "0 metadata, 1 existence, 2 ends of fragments, 3 every entry, 4 payloads compared", int, range(5)
    ),
    Option("ledgers", None, "only these ledgers, separated by commas", metavar="IDS"),
    Option("fraction", "1/1", "one part in N of the ledgers, chosen by their id", metavar="1/N"),
    Option(
        "seed",
        None,
        "number that selects the part; raise it by one for each run (default: the number of today)",
        int,
        metavar="DAY",
    ),
)
ITEM_SIZE = 64 << 20  # payload bytes of an item
ITEM_ENTRIES = 500_000
COMPARED_ENTRIES = 50_000  # of an item on level 4, which keeps a hash per entry and replica
FINDINGS = (
    "run_id STRING, ledger_id BIGINT, fragment BIGINT, bookie STRING, first_entry BIGINT, last_entry BIGINT, "
    "kind STRING, detail STRING"
)
REPAIRS = (
    "run_id STRING, ledger_id BIGINT, fragment BIGINT, bookie STRING, first_entry BIGINT, last_entry BIGINT, "
    "action STRING, reason STRING"
)
COVERAGE = "run_id STRING, bookie STRING, replicas BIGINT, entries BIGINT, bytes BIGINT"


def job(spark: Any, config: JobConfig) -> Any:
    """Return the findings, one row each. With output also writes DIR/RUN/plan, for `repair`, and DIR/RUN/coverage."""
    return complete(spark, config).frame


def complete(spark: Any, config: JobConfig) -> Complete:
    config = common.checked(config, OPTIONS)
    items = plan_items(spark, config)
    run = common.execute(spark, config, "scrub", items, ScrubWork(int(config.options["level"])))
    if config.mode == common.PLAN:
        return Complete.planned("scrub", run)
    return _concluded(spark, config, run)


# -- the work list ---------------------------------------------------------------------------------------------------


def plan_items(spark: Any, config: JobConfig) -> list[Item]:
    """Return ranges of entries of fragments, on all their bookies; for ledgers without entries, their record."""
    wanted = _selection(config.options)
    level = int(config.options["level"])
    ids = [ledger_id for ledger_id in common.ask(config.uri, common.ledger_ids) if wanted(ledger_id)]
    fragments = common.table(spark, config, "fragments").toArrow().to_pylist() if level and ids else []
    rows = [row for row in fragments if wanted(row["ledger_id"])]
    named = {row["ledger_id"] for row in rows}
    return [*items_of(rows, level), *(_item(ledger_id, 0, -1, 0, ()) for ledger_id in ids if ledger_id not in named)]


def _selection(options: Mapping[str, Any]) -> Callable[[int], bool]:
    if options["ledgers"]:
        return set(numbers_of(str(options["ledgers"]))).__contains__
    one, slash, parts = str(options["fraction"]).partition("/")
    if one != "1" or not slash or not parts.isdecimal() or int(parts) < 1:
        raise InvalidArgument(f"fraction={options['fraction']!r}: must be 1/N")
    seed = datetime.date.today().toordinal() if options["seed"] is None else int(options["seed"])
    return lambda ledger_id: part_of(ledger_id, int(parts)) == seed % int(parts)


def part_of(ledger_id: int, parts: int) -> int:
    """Return the part of `parts` that a ledger belongs to: evenly distributed, and the same in every run."""
    hashed = hashlib.blake2b(ledger_id.to_bytes(8, "big"), digest_size=8).digest()
    return int.from_bytes(hashed, "big") % parts


def items_of(fragments: Iterable[Mapping[str, Any]], level: int) -> list[Item]:
    """Return the items of fragments, cut to at most `ITEM_SIZE`. `fragments`: rows of the table."""
    items = []
    for row in fragments:
        first, last, bookies = row["first_entry"], row["last_entry"], tuple(row["ensemble"])
        if last is None:
            items.append(_item(row["ledger_id"], first, None, 0, bookies))
            continue
        size, count = row["bytes"] or 0, last - first + 1
        parts = 1
        if level >= 3:
            most = COMPARED_ENTRIES if level == 4 else ITEM_ENTRIES
            parts = min(count, max(-(-size // ITEM_SIZE), -(-count // most)))
        for low, high in even_parts(first, last, parts):
            share = row["write_quorum"] * size * (high - low + 1) // count if level >= 3 else 0
            items.append(_item(row["ledger_id"], low, high, share, bookies))
    return items


def _item(ledger_id: int, first: int, last: int | None, size: int, bookies: tuple[str, ...]) -> Item:
    name = f"{ledger_id}:{first}-{'' if last is None else last}"
    # Items begin with different bookies, so that all of them have requests at the same time.
    turn = (ledger_id + first) % len(bookies) if bookies else 0
    arguments = json.dumps({"ledger": ledger_id, "first": first, "last": last})
    return Item(name, size, bookies[turn:] + bookies[:turn], arguments)


# -- in a task -------------------------------------------------------------------------------------------------------


class _Tally(Struct):
    """Findings of an item. `covered`: bookie -> [replicas, entries, bytes]."""

    findings: list[Finding] = field(default_factory=list)
    covered: dict[str, list[int]] = field(default_factory=dict)
    is_partial: bool = False
    is_offloaded: bool = False

    def count(self, bookie: str, entries: int, size: int) -> None:
        counts = self.covered.setdefault(bookie, [0, 0, 0])
        for index, more in enumerate((1, entries, size)):
            counts[index] += more


class ScrubWork(Struct, frozen=True):
    """Scrub of one item: entries first..last of a ledger, on every bookie that has to hold them."""

    level: int

    async def carry_out(self, tools: Tools, item: Item) -> Outcome:
        arguments = json.loads(item.arguments)
        try:
            record, fragments = await tools.administration.fragments(arguments["ledger"])
        except LedgerNotFound:
            return Outcome(common.GONE, {})
        tally = _Tally(is_offloaded=is_given_up(record))
        if arguments["first"] == 0:
            tally.findings += check_record(record, tools.known)
        if self.level:
            for fragment in fragments:
                part = part_between(fragment, arguments["first"], arguments["last"])
                if part is not None and not part.is_doubtful:
                    known = len(tally.findings)
                    await self._fragment(tools, record, part, tally)
                    tally.findings[known:] = [
                        finding._replace(fragment=fragment.first) for finding in tally.findings[known:]
                    ]
        if any(finding.kind != UNAVAILABLE for finding in tally.findings):
            await _recheck(tools, record.ledger_id, tally)
            if not tally.covered and not tally.findings and not tally.is_offloaded:
                return Outcome(common.GONE, {})
        outcome = common.PARTLY if tally.is_partial else common.DONE
        detail: dict[str, Any] = {"findings": tally.findings, "covered": tally.covered}
        return Outcome(outcome, detail | ({"offloaded": record.ledger_id} if tally.is_offloaded else {}))

    async def _fragment(self, tools: Tools, record: LedgerMetadata, fragment: Fragment, tally: _Tally) -> None:
        positions = []
        for position, bookie in enumerate(fragment.ensemble):
            if bookie in tools.registered and bookie not in tools.gone:
                positions.append(position)
            else:
                reason = tools.gone.get(bookie, "it is not registered")
                _silent(tally, fragment, bookie, reason)
        if self.level == 1 or not record.is_closed:
            await _listed(tools, record, fragment, positions, tally)
            return
        hashes: dict[int, dict[int, bytes]] = {}
        lengths: dict[int, int] = {}
        scans = await all_of(
            self._replica(tools, record, fragment, index, hashes.setdefault(index, {}), lengths) for index in positions
        )
        for position, scan in zip(positions, scans, strict=True):
            bookie = fragment.ensemble[position]
            tally.findings += findings_of(fragment, bookie, scan.bad)
            tally.count(bookie, scan.entries, scan.size)
            if scan.stopped is not None:
                tools.gone[bookie] = scan.stopped.message
                _silent(tally, fragment, bookie, scan.stopped.message)
            if lengths.get(position, record.length) != record.length:
                explanation = f"the last entry has length {lengths[position]:,}, the record {record.length:,}"
                tally.findings.append(
                    _blame(fragment, bookie, fragment.last, fragment.last, LENGTH_MISMATCH, explanation)
                )
        if self.level == 4:
            for position, entry_id, reason in differing(fragment, hashes):
                tally.findings.append(
                    _blame(fragment, fragment.ensemble[position], entry_id, entry_id, DIFFERS, reason)
                )

    async def _replica(
        self,
        tools: Tools,
        record: LedgerMetadata,
        fragment: Fragment,
        position: int,
        hashes: dict[int, bytes],
        lengths: dict[int, int],
    ) -> ReplicaScan:
        def visit(batch: EntryBatch) -> None:
            if batch.last_entry_id == record.last_entry_id:
                lengths[position] = batch.lengths()[-1]
            if self.level == 4:
                for entry_id, payload in zip(batch.entry_ids, batch.payloads(), strict=True):
                    hashes[entry_id] = hashlib.blake2b(payload, digest_size=16).digest()

        ids = fragment.stored(position)
        if self.level == 2 and len(ids) > 2:
            ids = [ids[0], ids[-1]]
        bookie = fragment.ensemble[position]
        return await tools.administration.scan_replica(record, bookie, ids, visit=visit, pace=tools.pace(bookie))


def part_between(fragment: Fragment, first: int, last: int | None) -> Fragment | None:
    """Return the part of a fragment in first..last; None: there is none. `last` None: to its end."""
    low, high = max(fragment.first, first), fragment.last if last is None else min(fragment.last, last)
    return replace(fragment, first=low, last=high) if low <= high else None


def _blame(fragment: Fragment, bookie: str, first: int, last: int, finding_kind: str, detail: str) -> Finding:
    return Finding(fragment.ledger_id, fragment.first, bookie, first, last, finding_kind, detail)


def _silent(tally: _Tally, fragment: Fragment, bookie: str, reason: str) -> None:
    tally.is_partial = True
    tally.findings.append(_blame(fragment, bookie, fragment.first, fragment.last, UNAVAILABLE, reason))


async def _listed(
    tools: Tools, record: LedgerMetadata, fragment: Fragment, positions: Sequence[int], tally: _Tally
) -> None:
    """Compare each bookie's list of entries with what it must hold (level 1)."""
    missing_runs = await all_of(_missing(tools, record, fragment, position, tally) for position in positions)
    missing = {position: runs for position, runs in zip(positions, missing_runs, strict=True) if runs is not None}
    if not fragment.is_finished:
        missing = too_few(fragment, record.ack_quorum, missing)
    for position, runs in missing.items():
        explanation = "not in the bookie's list of entries"
        bookie = fragment.ensemble[position]
        lost = [_blame(fragment, bookie, run.start, run.stop - 1, MISSING, explanation) for run in runs]
        tally.findings += joined(fragment, lost)


async def _missing(
    tools: Tools, record: LedgerMetadata, fragment: Fragment, position: int, tally: _Tally
) -> list[range] | None:
    """Return the runs of entries that a bookie lacks; None: it does not answer."""
    bookie, ids = fragment.ensemble[position], fragment.stored(position)
    scan = await tools.administration.scan_replica(record, bookie, ids, is_listing=True)
    if scan.stopped is not None:
        tools.gone[bookie] = scan.stopped.message
        _silent(tally, fragment, bookie, scan.stopped.message)
        return None
    tally.count(bookie, scan.entries, 0)
    return [range(run.first, run.last + 1) for run in scan.bad]


async def _recheck(tools: Tools, ledger_id: int, tally: _Tally) -> None:
    """Drop findings about a deleted ledger, one that bookies may delete by now, or a replaced bookie."""
    try:
        record = (await tools.administration.record(ledger_id)).metadata
    except LedgerNotFound:
        tally.findings.clear()
        tally.covered.clear()
        tally.is_partial = False
        return
    if is_given_up(record):
        tally.findings = [finding for finding in tally.findings if finding.kind == METADATA]
        tally.is_partial, tally.is_offloaded = False, True
    tally.findings = [
        finding
        for finding in tally.findings
        if not finding.bookie or BookieId(finding.bookie) in record.ensemble_at(max(0, finding.first_entry))
    ]


# -- at the end ------------------------------------------------------------------------------------------------------


class _Scrubbed(Struct):
    """Results of all items. `covered`: see `_Tally`; `failed`: names of items and the reasons."""

    items: int
    findings: Sequence[Finding] = ()
    repairs: Sequence[Repair] = ()
    covered: dict[str, list[int]] = field(default_factory=dict)
    failed: list[tuple[str, str]] = field(default_factory=list)
    offloaded: set[int] = field(default_factory=set)


def _concluded(spark: Any, config: JobConfig, run: Run) -> Complete:
    raw: list[Finding] = []
    details = run.details()
    scrubbed = _Scrubbed(len(details))
    for name, outcome, detail in details:
        if outcome == common.FAILED:
            scrubbed.failed.append((name, detail["error"]))
        if "offloaded" in detail:
            scrubbed.offloaded.add(detail["offloaded"])
        raw += [Finding(*finding) for finding in detail.get("findings", ())]
        for bookie, counts in detail.get("covered", {}).items():
            total = scrubbed.covered.setdefault(bookie, [0, 0, 0])
            for index, count in enumerate(counts):
                total[index] += count
    scrubbed.findings = one_by_bookie(raw)
    registered = common.ask(config.uri, _registered)
    scrubbed.repairs = repairs_of(raw, [finding.bookie for finding in raw if finding.bookie not in registered])
    frame = common.save(common.frame_of(spark, _labelled(config, scrubbed.findings), FINDINGS), config, "findings")
    common.save(common.frame_of(spark, _labelled(config, scrubbed.repairs), REPAIRS), config, "plan")
    rows = [(config.run_id, bookie, *counts) for bookie, counts in sorted(scrubbed.covered.items())]
    common.save(common.frame_of(spark, rows, COVERAGE), config, "coverage")
    return Complete(frame, _report(config, scrubbed))


async def _registered(client: Client) -> list[str]:
    return [str(bookie.id) for bookie in await client.bookies() if bookie.mode != DOWN]


def _labelled(config: JobConfig, rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [(config.run_id, *row) for row in rows]


def _report(config: JobConfig, scrubbed: _Scrubbed) -> Report:
    findings, covered, failed = scrubbed.findings, scrubbed.covered, scrubbed.failed
    size = sum(counts[2] for counts in covered.values())
    entries = sum(counts[1] for counts in covered.values())
    counts_by_kind = Counter(finding.kind for finding in findings)
    lead = f"{scrubbed.items:,} items, {entries:,} copies of entries, {decimal_size_text(size)} checked: "
    lead += counted(counts_by_kind, "no findings")
    if scrubbed.offloaded:
        lead += f"; {len(scrubbed.offloaded):,} ledgers are offloaded, so bookies need not have their entries"
    if failed:
        lead += f"; {len(failed):,} items could not be checked: repeat run {config.run_id}"
    blamed = Counter(finding.bookie or "(no bookie)" for finding in findings)
    sections = [
        Section("Findings", table=Table(("kind", "findings"), sorted(counts_by_kind.items()), (1,))),
        Section(
            "Findings by bookie",
            table=Table(
                ("bookie", "findings"), blamed.most_common(), (1,), [count for _, count in blamed.most_common()]
            ),
            is_printed=False,
        ),
        Section(
            "Each finding",
            table=Table(
                ("ledger", "fragment", "bookie", "first entry", "last entry", "kind", "detail"), findings, (0, 1, 3, 4)
            ),
        ),
        Section(
            "Repair plan",
            "What `bk spark repair` would do.",
            Table(
                ("ledger", "fragment", "bookie", "first entry", "last entry", "action", "reason"),
                scrubbed.repairs,
                (0, 1, 3, 4),
            ),
        ),
        Section(
            "Coverage",
            "What was read from each bookie.",
            Table(
                ("bookie", "replicas", "entries", "bytes"),
                [(bookie, *counts) for bookie, counts in sorted(covered.items())],
                (1, 2, 3),
                [counts[2] for _, counts in sorted(covered.items())],
            ),
        ),
        Section("Items that failed", table=Table(("item", "why"), failed)),
    ]
    return Report("Scrub", lead, not findings and not failed, {"run": config.run_id, **config.options}, sections)
