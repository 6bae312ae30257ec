"""Partition planning on the driver: from positions to partitions, by the state of the cluster. Source: spark 3.4."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from bookies.errors import BookKeeperError, InvalidArgument, LedgerNotFound, LogTruncated, NotConfirmed
from bookies.spark.base import plan, runtime
from bookies.spark.base.extents import Extents, Missing, pack_snapshots
from bookies.spark.base.offsets import At, Key
from bookies.spark.base.plan import Address, Gap, Part
from bookies.spark.base.selection import EARLIEST
from bookies.spark.base.settings import Settings
from bookies.spark.read.log_catalog import LogCatalog, cost_of, resolved
from bookies.spark.read.read import REMEDY

T = TypeVar("T")
Stretch = tuple[Extents, At, At]  # of a log or ledger, from the first up to, not including, the second position


async def persistently(settings: Settings, ask: Callable[[], Awaitable[T]]) -> T:
    """Return the answer of `ask`, repeated while it fails with a retriable error."""
    for _ in range(settings.retries):
        try:
            return await ask()
        except BookKeeperError as error:
            # NotConfirmed passes: another handle may learn of the same last add confirmed a little later.
            if not error.retriable and not isinstance(error, NotConfirmed):
                raise
        await asyncio.sleep(settings.retry_interval)
    return await ask()


async def resolved_parts(settings: Settings) -> list[Part]:
    """Plan what the options of a batch query select."""
    lookup, addresses = await opened(settings)
    try:
        return await partitions(lookup, settings, await selected(lookup, settings), addresses)
    finally:
        await lookup.close()


async def selected(lookup: LogCatalog, settings: Settings) -> list[Stretch]:
    """Return what a batch query reads of each log or ledger. Raises `InvalidArgument`."""
    if settings.snapshot is not None and settings.selection.pattern is not None:
        # Of the logs that exist now some may be newer than the snapshot, and some of the snapshot may be missing.
        pattern = re.compile(settings.selection.pattern)
        keys: list[Key] = [log for log in settings.snapshot if pattern.fullmatch(log)]
    else:
        keys = await lookup.keys(settings.selection)
    extents_by_key = await lookup.extents(keys)
    stretches = [(extents, *await _bounds(lookup, settings, extents)) for extents in extents_by_key.values()]
    return stretches if settings.limit is None else await _beginning(lookup, stretches, settings.limit)


async def snapshot(settings: Settings) -> str:
    """Return the text of a snapshot of the selected logs."""
    lookup, _ = await opened(settings)
    try:
        extents = await lookup.extents(await lookup.keys(settings.selection))
        return pack_snapshots({str(key): one.snapshot() for key, one in extents.items()})
    finally:
        await lookup.close()


async def _beginning(lookup: LogCatalog, stretches: Sequence[Stretch], count: int) -> list[Stretch]:
    """Return the first `count` entries."""
    beginning: list[Stretch] = []
    for extents, start, end in stretches:
        if not count:
            break
        stop = end
        for run in extents.runs(start, end):
            within = await lookup.count(run)
            if within > count:
                stop, count = (run.seq, (await lookup.held(run))[1][count]), 0
                break
            count -= within
        beginning.append((extents, start, stop))
    return beginning


async def _bounds(lookup: LogCatalog, settings: Settings, extents: Extents) -> tuple[At, At]:
    """Return the first and the end position to read of one log or ledger. Raises `InvalidArgument`, `LogTruncated`."""
    if settings.snapshot is not None:
        return extents.within(settings.snapshot[str(extents.key)])
    if extents.key in settings.selection.bounds:
        first, last = settings.selection.bounds[extents.key]
        if last is not None and last >= extents.rows:
            unit = "row" if extents.is_log else "entry"
            raise InvalidArgument(f"{extents} ends at {unit} {extents.rows - 1}, option assign asks for {last}")
        start = extents.at_row(first) if first <= extents.rows else extents.end
        return start, extents.end if last is None else extents.at_row(last + 1)
    now_ms = int(time.time() * 1000)
    start = await resolved(lookup, extents, settings.starting, is_end=False, now_ms=now_ms, strategy=settings.strategy)
    end = await resolved(lookup, extents, settings.ending, is_end=True, now_ms=now_ms)
    if start > end and settings.starting != EARLIEST:
        raise InvalidArgument(
            f"option endingOffsets: {extents} would end at {list(end)}, before it begins at {list(start)} by option "
            "startingOffsets: exchange them"
        )
    return start, end


def present_of(settings: Settings, stretch: Stretch) -> tuple[Stretch, Gap | None]:
    """Return what still exists of a stretch, and what does not. Raises `LogTruncated` unless data loss is allowed."""
    extents, start, end = stretch
    if (missing := extents.missing(start, end)) is None:
        return stretch, None
    gap = gap_of(extents, missing)
    if settings.fails_on_loss:
        raise loss_error(extents, gap, settings.cursor)
    return (extents, missing.until, end), gap


async def partitions(
    catalog: LogCatalog,
    settings: Settings,
    parts: Sequence[Stretch],
    addresses: Mapping[str, Address],
    gone: Sequence[Gap] = (),
) -> list[Part]:
    """Plan all rows from the start to the end position of each log or ledger, each row once. Raises `LogTruncated`.

    `gone`: gaps that are already known.
    """
    gaps = list(gone)
    present: list[Stretch] = []
    for stretch in parts:
        rest, gap = present_of(settings, stretch)
        present.append(rest)
        gaps += [] if gap is None else [gap]
    runs = [(extents, run) for extents, start, end in present for run in extents.runs(start, end)]
    curves = await catalog.sizes([run for _, run in runs])
    total = sum(cost_of(run, curve) for (_, run), curve in zip(runs, curves, strict=True))
    size_max = plan.size_limit(total, settings.size_max, settings.parts_min)
    ranges = []
    for extents, _, _ in present:
        own = [index for index, (owner, _) in enumerate(runs) if owner is extents]
        try:
            ranges += await catalog.ranges(
                extents, [runs[index][1] for index in own], [curves[index] for index in own], size_max
            )
        except LedgerNotFound as error:
            raise LedgerNotFound(
                f"ledger {error.ledger_id} of {extents} is lost: it is listed and does not exist"
            ) from error
    packed = plan.with_replicas(plan.pack(ranges, size_max=size_max, count_max=settings.count_max))
    planned = [Part(part, (), plan.bookies_of(part, addresses)) for part in packed]
    return [Part((), gaps, {}), *planned] if gaps else planned


def gap_of(extents: Extents, missing: Missing) -> Gap:
    """Return the missing rows as a gap."""
    (from_seq, from_entry), (until_seq, until_entry) = missing.start, missing.until
    reason = "truncated before it was read"
    if not extents.is_log:
        return Gap(None, int(extents.key), None, from_entry, None, until_entry, missing.rows, None, reason)
    is_numbered = missing.rows is not None and extents.has_numbers
    row = extents.row_of(missing.until) - (missing.rows or 0) if is_numbered else None
    return Gap(str(extents.key), None, from_seq, from_entry, until_seq, until_entry, missing.rows, row, reason)


def gap_of_deleted(key: Key, start: At, end: At) -> Gap:
    """Return the rows from `start` up to `end` of a log or ledger that no longer exists as a gap."""
    rows = end[1] - start[1] if start[0] == end[0] and start < end else None
    reason = "deleted before it was read"
    if isinstance(key, int):
        return Gap(None, key, None, start[1], None, end[1], rows, None, reason)
    return Gap(key, None, *start, *end, rows, None, reason)


def loss_error(extents: Extents, gap: Gap, cursor: str | None = None) -> LogTruncated:
    """Return the error for truncated rows. `cursor`: the query's, if any; it was created or moved back too late."""
    remedy = (
        f"Cursor {cursor} protects the rows after it from now on; option failOnDataLoss=false continues and reports "
        "the gap as a row"
        if cursor is not None
        else REMEDY
    )
    count = f"{gap.rows:,} rows" if gap.rows is not None else "rows"
    row = f" (row {extents.row_of(extents.beginning):,})" if extents.has_numbers else ""
    return LogTruncated(
        f"{extents}: {count} from [{gap.from_seq}, {gap.from_entry}] on were truncated before they were read; the log "
        f"now begins at [{gap.until_seq}, {gap.until_entry}]{row}. {remedy}"
    )


async def opened(settings: Settings) -> tuple[LogCatalog, Mapping[str, Address]]:
    """Return a catalog that uses the process's client, and the addresses of the bookies."""
    worker = runtime.worker()
    client = await worker.client(settings.uri, settings.config)
    namespace = None if settings.namespace is None else await worker.namespace(settings.uri, settings.config)
    return LogCatalog(client, settings.password, settings.tier, namespace), await runtime.addresses_of(client)
