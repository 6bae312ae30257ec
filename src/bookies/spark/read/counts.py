"""Table `summary`: how many rows a batch query would have, and the first and the last of them, without reading them.

The metadata tells the number of entries, and in a log that keeps one record in each entry that is the number of rows.
Only the first and the last entry are read, for their timestamps, and the ids of compacted ledgers that are selected in
part. No Spark.
"""

from __future__ import annotations

from typing import Any

from bookies.errors import InvalidArgument
from bookies.protocol.log.log_model import ENVELOPE
from bookies.protocol.log.records import Decoder
from bookies.spark.base.extents import Extents, Piece
from bookies.spark.base.settings import Settings
from bookies.spark.read import planning
from bookies.spark.read.log_catalog import LogCatalog
from bookies.spark.read.planning import Stretch

WAY_OUT = "count them by reading"


async def summaries(settings: Settings) -> list[dict[str, Any]]:
    """Return a row for each selected log and ledger. Raises `InvalidArgument`, and what planning a query raises."""
    lookup, _ = await planning.opened(settings)
    try:
        stretches = await planning.selected(lookup, settings)
        for extents, _, _ in stretches:
            check(settings, extents)
        return [await summary(lookup, settings, stretch) for stretch in stretches]
    finally:
        await lookup.close()


async def summary(lookup: LogCatalog, settings: Settings, stretch: Stretch) -> dict[str, Any]:
    """Return the row of one log or ledger."""
    (extents, start, end), gap = planning.present_of(settings, stretch)
    counts = [(run, await lookup.count(run)) for run in extents.runs(start, end)]
    counts = [(run, count) for run, count in counts if count]
    first = await _edge(lookup, settings, extents, counts[0][0], 0) if counts else {}
    last = await _edge(lookup, settings, extents, counts[-1][0], -1) if counts else {}
    ledgers = [run.ledger_id for run, _ in counts]
    return {
        "log": extents.key if extents.is_log else None,
        "ledger_id": None if extents.is_log else extents.key,
        "rows": sum(count for _, count in counts),
        "gaps": int(gap is not None),
        "min_offset": first.get("offset"),
        "max_offset": last.get("offset"),
        "min_ledger_id": min(ledgers, default=None),
        "max_ledger_id": max(ledgers, default=None),
        "first_entry_id": first.get("entry_id"),
        "last_entry_id": last.get("entry_id"),
        "first_timestamp": first.get("timestamp"),
        "last_timestamp": last.get("timestamp"),
    }


async def _edge(
    lookup: LogCatalog, settings: Settings, extents: Extents, run: Piece, index: int
) -> dict[str, int | None]:
    """Return offset, entry and timestamp (us since 1970) of the first or the last row of a run. `index`: 0 or -1."""
    stored, ids = await lookup.held(run)
    entry_id = ids[index]
    offset = run.row + entry_id - run.first if extents.is_log else None
    timestamp = None
    if settings.record_format == ENVELOPE or (settings.record_format == "auto" and extents.is_envelope):
        payload = await lookup.payload(run, stored[index])
        records = Decoder(str(extents.key), ENVELOPE).intact(run.ledger_id, (entry_id,), (payload,))
        timestamp = next((record.timestamp_us for record in records), None)
    return {"offset": offset, "entry_id": entry_id, "timestamp": timestamp}


def check(settings: Settings, extents: Extents) -> None:
    """Check that an entry is a row. Raises `InvalidArgument`."""
    is_sets = settings.record_format == "sets" or (settings.record_format == "auto" and extents.is_sets)
    if settings.namespace is not None or is_sets:
        raise InvalidArgument(f"{extents}: an entry holds several records, and no metadata tells how many: {WAY_OUT}")
    if settings.value_format == "arrow":
        raise InvalidArgument(f"option valueFormat=arrow: an entry holds any number of rows: {WAY_OUT}")
    if settings.mode == "DROPMALFORMED":
        raise InvalidArgument(f"option mode=DROPMALFORMED: only reading tells which rows are omitted: {WAY_OUT}")
