"""Streaming source: offsets, admission, tailing. Rows are read as in batch queries.

Spark keeps offsets as text and does not keep the first one. So the first offset is symbolic, and the end of the first
batch resolves it; see `offsets.py`. One process plans for the life of the query; it keeps a catalog and the extents
that it last read. Source: spark 3.6.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from bookies.errors import BookKeeperError, LedgerNotFound, LogNotFound
from bookies.spark.base import offsets, runtime
from bookies.spark.base.extents import Extents
from bookies.spark.base.head_times import HeadTimes
from bookies.spark.base.offsets import At, Key, Offset
from bookies.spark.base.plan import Address, Part
from bookies.spark.read import planning
from bookies.spark.read.log_catalog import LogCatalog, resolved
from bookies.spark.read.partition import EntriesPartition, rows_of, wrapped
from bookies.spark.read.read import RowReader

if TYPE_CHECKING:
    import pyarrow as pa

_logger = logging.getLogger("bookies.spark.stream")
Positions = dict[Key, At]


class EntriesStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streaming reader. Plans batches on the driver, in its own process; tasks use `read` only."""

    def __init__(self, row_reader: RowReader) -> None:
        self._row_reader = row_reader
        self._planner: _Planner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_row_reader": self._row_reader, "_planner": None}

    def _ask(self, name: str, *arguments: Any) -> Any:
        worker = runtime.worker()
        if self._planner is None:
            self._planner = _Planner(self._row_reader)
        return worker.run(getattr(self._planner, name)(*arguments))

    def initialOffset(self) -> dict[str, Any]:
        return offsets.symbolic(self._row_reader.settings.starting)

    def getDefaultReadLimit(self) -> ReadLimit:
        settings = self._row_reader.settings
        if settings.bytes_max is not None:
            return ReadMaxBytes(settings.bytes_max)
        if settings.rows_max is not None:
            return ReadMaxRows(settings.rows_max)
        return ReadMinRows(settings.rows_min) if settings.rows_min else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._ask("prepare")

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        offset: dict[str, Any] = self._ask("latest", start, isinstance(limit, ReadAllAvailable))
        return offset

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._planner is None else self._planner.head()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[EntriesPartition]:
        return wrapped(self._ask("partitions", start, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return rows_of(self._row_reader, partition)

    def commit(self, end: dict[str, Any]) -> None:
        if self._row_reader.settings.cursor is not None:
            self._ask("commit", end)


class _Planner:
    """State of a query in its planning process. Runs on the worker's loop."""

    def __init__(self, row_reader: RowReader) -> None:
        self._settings = row_reader.settings
        self._lookup: LogCatalog | None = None
        self._addresses: Mapping[str, Address] = {}
        self._target: Positions | None = None  # end of an available-now run
        self._is_available_now = False
        self._resolved: dict[str, Positions] = {}  # positions of a symbolic offset when this process first resolved it
        self._seen: dict[Key, Extents] = {}
        self._last: dict[tuple[Key, str | None], Extents] = {}  # by key and token, including those deleted since
        self._reached: Positions = {}  # the end of the last batch
        self._head_times = HeadTimes()
        self._batch_at = time.monotonic()
        self._has_cursor: set[Key] = set()

    async def _opened(self) -> LogCatalog:
        if self._lookup is None:
            self._lookup, self._addresses = await planning.opened(self._settings)
        return self._lookup

    async def _extents(self, known: Positions, *, skips_missing: bool) -> dict[Key, Extents]:
        """Return the readable extents of everything the query reads. Of a label: the ledgers it began with."""
        catalog = await self._opened()
        chosen = self._settings.selection
        keys = list(known) if known and chosen.label is not None else await catalog.keys(chosen)
        extents_by_key = await catalog.extents(keys, skips_missing=skips_missing)
        self._seen = extents_by_key
        self._head_times.note(time.monotonic(), self._heads(extents_by_key))
        self._last |= {(key, extents.token): extents for key, extents in extents_by_key.items()}
        return extents_by_key

    def _gone(self, known: Positions, tokens: Mapping[Key, str], existing: Mapping[Key, Extents]) -> Positions:
        """Return the logs and ledgers that no longer exist, and where each ended when this process last read it.

        A recreated log of the same name is another log. Raises `LogNotFound` or `LedgerNotFound` unless data loss is
        allowed.
        """
        gone: Positions = {}
        for key, at in known.items():
            if key in existing and tokens.get(key, existing[key].token) == existing[key].token:
                continue
            if key not in existing and not self._is_chosen(key):
                continue
            last = self._last.get((key, tokens.get(key)))
            end = at if last is None else max(at, last.end)
            if last is None or last.is_log or end > at or not last.pieces[-1].is_complete:
                gone[key] = end  # Otherwise it is a ledger that was read to its end.
        if gone and self._settings.fails_on_loss:
            raise _deleted(list(gone))
        return gone

    def _is_chosen(self, key: Key) -> bool:
        """Report whether the options, which may have changed since the query began, select the key."""
        chosen = self._settings.selection
        if chosen.pattern is not None:
            return isinstance(key, str) and re.fullmatch(chosen.pattern, key) is not None
        return chosen.label is not None or key in chosen.keys

    # -- positions -----------------------------------------------------------------------------------------------
    async def _begin(self, at: str) -> Positions:
        """Return where a query that has not begun will begin."""
        if at not in self._resolved:
            catalog = await self._opened()
            extents_by_key = await self._extents({}, skips_missing=False)
            now_ms = int(time.time() * 1000)
            positions: Positions = {}
            for key, extents in extents_by_key.items():
                first, _ = self._settings.selection.bounds.get(key, (0, None))
                start = await resolved(
                    catalog, extents, at, is_end=False, now_ms=now_ms, strategy=self._settings.strategy
                )
                positions[key] = max(start, extents.at_row(min(first, extents.rows))) if first else start
            self._resolved[at] = positions
        return self._resolved[at]

    def _heads(self, extents_by_key: Mapping[Key, Extents]) -> Positions:
        heads = {}
        for key, extents in extents_by_key.items():
            last = self._settings.selection.bounds.get(key, (0, None))[1]
            is_within = last is not None and last < extents.rows
            heads[key] = extents.at_row(last + 1) if is_within and last is not None else extents.end
        return heads

    def head(self) -> dict[str, Any] | None:
        """Return the end of everything that was readable at the last check, and the lag behind it. Without IO."""
        if not self._seen or self._lookup is None:
            return None
        heads = self._heads(self._seen)
        left = [
            run
            for key, extents in self._seen.items()
            for run in extents.runs(self._reached.get(key, extents.beginning), heads[key])
        ]
        lag = {
            "rows": sum(run.count for run in left),
            "bytes": sum(map(self._lookup.estimate, left)),
            "seconds": round(self._head_times.behind_s(time.monotonic(), self._reached), 3),
        }
        return Offset(heads, tokens=_tokens(self._seen)).to_json() | {"lag": lag}

    async def prepare(self) -> None:
        """Record where this available-now run ends."""
        self._is_available_now = True
        # `_latest` reports missing logs, because it has the positions of the query.
        skips_missing = not self._settings.fails_on_loss
        extents_by_key = await planning.persistently(
            self._settings, lambda: self._extents({}, skips_missing=skips_missing)
        )
        self._target = self._heads(extents_by_key)

    # -- the next batch ------------------------------------------------------------------------------------------
    async def latest(self, start: dict[str, Any], is_all: bool) -> dict[str, Any]:
        """Return the end of the next batch; `start` itself if there is no batch yet."""
        end = await planning.persistently(self._settings, lambda: self._latest(start, is_all))
        if end is None and not self._is_available_now and self._settings.tail_wait:
            lookup = await self._opened()
            await lookup.wait(self._seen.values(), self._settings.tail_wait)
            end = await planning.persistently(self._settings, lambda: self._latest(start, is_all))
        if end is None:
            end = start
        else:
            self._batch_at = time.monotonic()
        at = offsets.symbol(end)
        self._reached = dict(offsets.parse(end).positions) if at is None else await self._begin(at)
        return end

    async def _latest(self, start: dict[str, Any], is_all: bool) -> dict[str, Any] | None:
        at = offsets.symbol(start)
        before = Offset(await self._begin(at)) if at is not None else offsets.parse(start)
        known = dict(before.positions)
        existing = await self._extents(known, skips_missing=bool(known))
        gone = self._gone(known, before.tokens, existing)
        known = {key: position for key, position in known.items() if key not in gone}
        positions = {key: known.get(key, extents.beginning) for key, extents in existing.items()}
        origin = {key: position for key, position in positions.items() if at is not None or key not in known}
        await self._make_cursors(existing, positions)
        heads = self._heads(existing)
        if self._target is not None:
            heads = {key: min(self._target[key], head) for key, head in heads.items() if key in self._target}
            positions = {key: position for key, position in positions.items() if key in heads}
            origin = {key: position for key, position in origin.items() if key in heads}
        heads = {key: max(head, positions[key]) for key, head in heads.items()}
        rows = {key: existing[key].count(positions[key], head) for key, head in heads.items()}
        if not is_all and self._has_to_wait(sum(rows.values())) and at is None and not gone:
            return None
        if not is_all:
            heads = await self._admitted(existing, positions, heads, rows)
        if at is None and heads == {key: known[key] for key in heads if key in known} and not origin and not gone:
            return None
        # Logs without a target in this run keep their positions.
        kept = {key: position for key, position in known.items() if key not in heads and self._target is not None}
        tokens = {key: token for key, token in before.tokens.items() if key in kept} | _tokens(existing, heads)
        return Offset(kept | heads, origin, tokens, gone).to_json()

    def _has_to_wait(self, rows: int) -> bool:
        """Report whether to wait for a fuller batch."""
        settings = self._settings
        if self._is_available_now or rows >= (settings.rows_min or 0):
            return False
        return time.monotonic() - self._batch_at < settings.delay_max

    async def _admitted(
        self, extents_by_key: Mapping[Key, Extents], positions: Positions, heads: Positions, rows: Mapping[Key, int]
    ) -> Positions:
        """Return the ends that all limits allow, with at least one entry of each log that has any."""
        settings = self._settings
        ends = dict(heads)
        if settings.rows_max is not None:
            for key, share in offsets.shares(rows, settings.rows_max).items():
                ends[key] = min(ends[key], extents_by_key[key].after(positions[key], share))
        if settings.bytes_max is None:
            return ends
        lookup = await self._opened()
        sizes: dict[Key, int] = {}
        curves = {}
        for key, end in ends.items():
            runs = list(extents_by_key[key].runs(positions[key], end))
            curves[key] = list(zip(runs, await lookup.sizes(runs), strict=True))
            sizes[key] = sum(curve[-1][1] - curve[0][1] for _, curve in curves[key])
            if runs and not sizes[key]:
                sizes[key] = 1  # Empty entries have to be admitted too.
        for key, share in offsets.shares(sizes, settings.bytes_max).items():
            left = share
            for run, curve in curves[key]:
                size = curve[-1][1] - curve[0][1]
                if size <= left:
                    left -= size
                    continue
                if left > 0 or run is curves[key][0][0]:
                    last = await lookup.entry_within(run, left)
                    is_first = run is curves[key][0][0]
                    is_over = last == run.first and await lookup.length(run, last) - curve[0][1] > left
                    stop = last if is_over and not is_first else last + 1
                else:
                    stop = run.first
                ends[key] = extents_by_key[key].normal((run.seq, stop))
                break
        return ends

    async def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Part]:
        """Return the tasks of a batch. The same batch always has the same rows."""
        return await planning.persistently(self._settings, lambda: self._partitions(start, end))

    async def _partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Part]:
        until = offsets.parse(end)
        begin = {} if offsets.symbol(start) is not None else offsets.parse(start).positions
        begin = {**begin, **until.origin}
        lookup = await self._opened()
        keys = [key for key in until.positions if begin.get(key) != until.positions[key]]
        existing = await lookup.extents(keys, skips_missing=True)
        readable = {
            key: extents for key, extents in existing.items() if until.tokens.get(key, extents.token) == extents.token
        }
        deleted = [key for key in keys if key not in readable]
        if self._settings.fails_on_loss and (deleted or until.gone):
            raise _deleted([*deleted, *until.gone])
        gone = [
            planning.gap_of_deleted(key, begin.get(key, until.positions[key]), until.positions[key]) for key in deleted
        ]
        if until.gone:
            before = offsets.parse(start).positions
            gone += [planning.gap_of_deleted(key, before.get(key, at), at) for key, at in until.gone.items()]
        parts = [
            (extents, begin.get(key, extents.beginning), until.positions[key]) for key, extents in readable.items()
        ]
        self._addresses = await runtime.addresses_of(
            await runtime.worker().client(self._settings.uri, self._settings.config)
        )
        return await planning.partitions(lookup, self._settings, parts, self._addresses, gone)

    # -- cursors -------------------------------------------------------------------------------------------------
    async def _make_cursors(self, extents_by_key: Mapping[Key, Extents], positions: Positions) -> None:
        """Create the query's cursors: rows that it has not read are truncated only by force.

        A cursor of that name may be another query's, or that of an earlier life of this query. It is moved back to the
        query's position if it is ahead of it. A cursor before that position stays until the next commit.
        """
        if self._settings.cursor is None:
            return
        for key, extents in extents_by_key.items():
            if isinstance(key, str) and key not in self._has_cursor:
                client = await runtime.worker().client(self._settings.uri, self._settings.config)
                log = client.log(key, password=self._settings.password)
                at = max(positions[key], extents.beginning)  # A cursor before truncated rows would protect nothing.
                position = extents.position(at)
                if position is None:
                    continue
                cursor = (await log.cursors()).get(self._settings.cursor)
                if cursor is None or extents.is_behind(at, cursor.position):
                    await log.move_cursor(self._settings.cursor, position)
                self._has_cursor.add(key)

    async def commit(self, end: dict[str, Any]) -> None:
        """Move the cursors to the processed position. The checkpoint is authoritative, so a failure is only logged."""
        client = await runtime.worker().client(self._settings.uri, self._settings.config)
        assert self._settings.cursor is not None
        until = offsets.parse(end)
        for key, at in until.positions.items():
            seen = self._seen.get(key)
            if isinstance(key, str) and seen is not None and until.tokens.get(key, seen.token) == seen.token:
                position = seen.position(at)
                try:
                    if position is not None:
                        log = client.log(key, password=self._settings.password)
                        await log.move_cursor(self._settings.cursor, position)
                except BookKeeperError as error:
                    _logger.warning("cursor %s of log %s was not moved: %s", self._settings.cursor, key, error)


def _tokens(extents_by_key: Mapping[Key, Extents], keys: Collection[Key] | None = None) -> dict[Key, str]:
    """Return the tokens of the logs; `keys`: only of these."""
    return {
        key: extents.token
        for key, extents in extents_by_key.items()
        if extents.token is not None and (keys is None or key in keys)
    }


def _deleted(keys: list[Key]) -> BookKeeperError:
    names = ", ".join(f"log {key}" if isinstance(key, str) else f"ledger {key}" for key in keys)
    error_class = LogNotFound if isinstance(keys[0], str) else LedgerNotFound
    return error_class(
        f"{names}: deleted while the query reads it (a log that has its name now is another one). With option "
        "failOnDataLoss=false the query continues, and reports the rows it has not read as a gap row"
    )
