"""Partition planning on the driver: from positions to partitions, by the state of the cluster. Source: spark 3.4."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from bookies.errors import BookKeeperError, LedgerNotFound, LogTruncated, NotConfirmed
from bookies.spark.base import plan, runtime
from bookies.spark.base.extents import Extents, Missing
from bookies.spark.base.offsets import At, Key
from bookies.spark.base.plan import Address, Gap
from bookies.spark.base.settings import Settings
from bookies.spark.read.log_catalog import LogCatalog, cost_of
from bookies.spark.read.read import REMEDY, EntriesPartition

T = TypeVar("T")


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


async def partitions(
    catalog: LogCatalog,
    settings: Settings,
    parts: Sequence[tuple[Extents, At, At]],
    addresses: Mapping[str, Address],
    gone: Sequence[Gap] = (),
) -> list[EntriesPartition]:
    """Plan all rows from the start to the end position of each log or ledger, each row once. Raises `LogTruncated`.

    `gone`: gaps that are already known.
    """
    gaps = list(gone)
    present: list[tuple[Extents, At, At]] = []
    for extents, start, end in parts:
        if (missing := extents.missing(start, end)) is not None:
            gap = gap_of(extents, missing)
            if settings.fails_on_loss:
                raise loss_error(extents, gap, settings.cursor)
            gaps.append(gap)
            start = missing.until
        present.append((extents, start, end))
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
    planned = [EntriesPartition(part, (), plan.bookies_of(part, addresses)) for part in packed]
    return [EntriesPartition((), gaps, {}), *planned] if gaps else planned


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
