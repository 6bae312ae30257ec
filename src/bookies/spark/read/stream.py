"""The streaming source: offsets, admission, tailing. The rows are read as in batches.

Spark keeps offsets as text and the first one not at all, so the first is symbolic and resolved by the end of the first
batch; see `offsets.py`. One process plans for the life of the query; it keeps a lookup and what it last saw.
Source: spark 3.6.
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
from bookies.spark.base.offsets import At, Key, Offset
from bookies.spark.read import planning
from bookies.spark.read.log_catalog import LogCatalog, resolved
from bookies.spark.read.read import EntriesPartition, RowReader

if TYPE_CHECKING:
    import pyarrow as pa

_logger = logging.getLogger(__name__)
Positions = dict[Key, At]


class EntriesStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches on the driver, in a process of its own; tasks use `read` only."""

    def __init__(self, how: RowReader) -> None:
        self._how = how
        self._planner: _Planner | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_how": self._how, "_planner": None}

    def _ask(self, name: str, *arguments: Any) -> Any:
        worker = runtime.worker()
        if self._planner is None:
            self._planner = _Planner(self._how)
        return worker.run(getattr(self._planner, name)(*arguments))

    def initialOffset(self) -> dict[str, Any]:
        return offsets.symbolic(self._how.settings.starting)

    def getDefaultReadLimit(self) -> ReadLimit:
        settings = self._how.settings
        if settings.bytes_max is not None:
            return ReadMaxBytes(settings.bytes_max)
        if settings.rows_max is not None:
            return ReadMaxRows(settings.rows_max)
        return ReadMinRows(settings.rows_min) if settings.rows_min else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._ask("prepare")

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        found: dict[str, Any] = self._ask("latest", start, isinstance(limit, ReadAllAvailable))
        return found

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return None if self._planner is None else self._planner.head()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[EntriesPartition]:
        found: list[EntriesPartition] = self._ask("partitions", start, end)
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._how.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        if self._how.settings.cursor is not None:
            self._ask("commit", end)


class _Planner:
    """What one process knows of the query. On the worker's loop."""

    def __init__(self, how: RowReader) -> None:
        self._settings = how.settings
        self._lookup: LogCatalog | None = None
        self._addresses: Mapping[str, tuple[str, int]] = {}
        self._target: Positions | None = None  # of a run that ends there
        self._is_available_now = False
        self._resolved: dict[str, Positions] = {}  # what a symbolic offset meant when this process first met it
        self._seen: dict[Key, Extents] = {}
        self._last: dict[tuple[Key, str | None], Extents] = {}  # also of what was deleted since, by key and token
        self._batch_at = time.monotonic()
        self._has_cursor: set[Key] = set()

    async def _opened(self) -> LogCatalog:
        if self._lookup is None:
            self._lookup, self._addresses = await planning.opened(self._settings)
        return self._lookup

    async def _extents(self, known: Positions, *, skips_missing: bool) -> dict[Key, Extents]:
        """What can be read now, of everything that the query reads. Ledgers are those that it began with."""
        lookup = await self._opened()
        chosen = self._settings.selection
        keys = list(known) if known and chosen.label is not None else await lookup.keys(chosen)
        found = await lookup.extents(keys, skips_missing=skips_missing)
        self._seen = found
        self._last |= {(key, extents.token): extents for key, extents in found.items()}
        return found

    def _gone(self, known: Positions, tokens: Mapping[Key, str], found: Mapping[Key, Extents]) -> Positions:
        """Which of the logs and ledgers do not exist any more, and where each ended, as far as this process saw it.

        A log that was made again under its name is another one. Raises `LogNotFound` if that is not to be passed over.
        """
        gone: Positions = {}
        for key, at in known.items():
            if key in found and tokens.get(key, found[key].token) == found[key].token:
                continue
            if key not in found and not self._is_chosen(key):
                continue
            last = self._last.get((key, tokens.get(key)))
            end = at if last is None else max(at, last.end)
            if last is None or last.is_log or end > at or not last.pieces[-1].is_complete:
                gone[key] = end  # Else it was a ledger that had been read to its end.
        if gone and self._settings.fails_on_loss:
            raise _deleted(list(gone))
        return gone

    def _is_chosen(self, key: Key) -> bool:
        """Whether the options, which may have changed since the query began, mean it."""
        chosen = self._settings.selection
        if chosen.pattern is not None:
            return isinstance(key, str) and re.fullmatch(chosen.pattern, key) is not None
        return chosen.label is not None or key in chosen.keys

    # -- where ---------------------------------------------------------------------------------------------------
    async def _begin(self, at: str) -> Positions:
        """Where a query that has not begun begins."""
        if at not in self._resolved:
            lookup = await self._opened()
            found = await self._extents({}, skips_missing=False)
            now_ms = int(time.time() * 1000)
            positions: Positions = {}
            for key, extents in found.items():
                first, _ = self._settings.selection.bounds.get(key, (0, None))
                start = await resolved(
                    lookup, extents, at, is_end=False, now_ms=now_ms, strategy=self._settings.strategy
                )
                positions[key] = max(start, extents.at_row(min(first, extents.rows))) if first else start
            self._resolved[at] = positions
        return self._resolved[at]

    def _heads(self, found: Mapping[Key, Extents]) -> Positions:
        heads = {}
        for key, extents in found.items():
            last = self._settings.selection.bounds.get(key, (0, None))[1]
            is_within = last is not None and last < extents.rows
            heads[key] = extents.at_row(last + 1) if is_within and last is not None else extents.end
        return heads

    def head(self) -> dict[str, Any] | None:
        """Everything there was when this was last looked at."""
        return Offset(self._heads(self._seen), tokens=_tokens(self._seen)).to_json() if self._seen else None

    async def prepare(self) -> None:
        """Remember where this run is to end."""
        self._is_available_now = True
        # Whether something is missing that should not be is said by whoever knows where the query is.
        skips_missing = not self._settings.fails_on_loss
        found = await planning.persistently(self._settings, lambda: self._extents({}, skips_missing=skips_missing))
        self._target = self._heads(found)

    # -- the next batch ------------------------------------------------------------------------------------------
    async def latest(self, start: dict[str, Any], is_all: bool) -> dict[str, Any]:
        """The end of the next batch; `start` itself when there is to be none yet."""
        end = await planning.persistently(self._settings, lambda: self._latest(start, is_all))
        if end is None and not self._is_available_now and self._settings.tail_wait:
            lookup = await self._opened()
            await lookup.wait(self._seen.values(), self._settings.tail_wait)
            end = await planning.persistently(self._settings, lambda: self._latest(start, is_all))
        if end is None:
            return start
        self._batch_at = time.monotonic()
        return end

    async def _latest(self, start: dict[str, Any], is_all: bool) -> dict[str, Any] | None:
        at = offsets.symbol(start)
        before = Offset(await self._begin(at)) if at is not None else offsets.parse(start)
        known = dict(before.positions)
        found = await self._extents(known, skips_missing=bool(known))
        gone = self._gone(known, before.tokens, found)
        known = {key: position for key, position in known.items() if key not in gone}
        positions = {key: known.get(key, extents.beginning) for key, extents in found.items()}
        origin = {key: position for key, position in positions.items() if at is not None or key not in known}
        await self._make_cursors(found, positions)
        heads = self._heads(found)
        if self._target is not None:
            heads = {key: min(self._target[key], head) for key, head in heads.items() if key in self._target}
            positions = {key: position for key, position in positions.items() if key in heads}
            origin = {key: position for key, position in origin.items() if key in heads}
        heads = {key: max(head, positions[key]) for key, head in heads.items()}
        rows = {key: found[key].count(positions[key], head) for key, head in heads.items()}
        if not is_all and self._has_to_wait(sum(rows.values())) and at is None and not gone:
            return None
        if not is_all:
            heads = await self._admitted(found, positions, heads, rows)
        if at is None and heads == {key: known[key] for key in heads if key in known} and not origin and not gone:
            return None
        # Logs that are not looked at (those of a run with an older target) stay where they are.
        kept = {key: position for key, position in known.items() if key not in heads and self._target is not None}
        tokens = {key: token for key, token in before.tokens.items() if key in kept} | _tokens(found, heads)
        return Offset(kept | heads, origin, tokens, gone).to_json()

    def _has_to_wait(self, rows: int) -> bool:
        """For a fuller batch."""
        settings = self._settings
        if self._is_available_now or rows >= settings.rows_min:
            return False
        return time.monotonic() - self._batch_at < settings.delay_max

    async def _admitted(
        self, found: Mapping[Key, Extents], positions: Positions, heads: Positions, rows: Mapping[Key, int]
    ) -> Positions:
        """The ends that all limits allow, and at least one entry of each log that has any."""
        settings = self._settings
        ends = dict(heads)
        if settings.rows_max is not None:
            for key, share in offsets.shares(rows, settings.rows_max).items():
                ends[key] = min(ends[key], found[key].after(positions[key], share))
        if settings.bytes_max is None:
            return ends
        lookup = await self._opened()
        sizes: dict[Key, int] = {}
        curves = {}
        for key, end in ends.items():
            runs = list(found[key].runs(positions[key], end))
            curves[key] = list(zip(runs, await lookup.sizes(runs), strict=True))
            sizes[key] = sum(curve[-1][1] - curve[0][1] for _, curve in curves[key])
            if runs and not sizes[key]:
                sizes[key] = 1  # Entries without a byte still have to come some time.
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
                    is_over = last == run.first and await lookup.length(run.piece.ledger_id, last) - curve[0][1] > left
                    stop = last if is_over and not is_first else last + 1
                else:
                    stop = run.first
                ends[key] = found[key].normal((run.piece.seq, stop))
                break
        return ends

    async def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[EntriesPartition]:
        """The tasks of a batch; of the same batch the same rows, whenever it is asked for."""
        return await planning.persistently(self._settings, lambda: self._partitions(start, end))

    async def _partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[EntriesPartition]:
        until = offsets.parse(end)
        begin = {} if offsets.symbol(start) is not None else offsets.parse(start).positions
        begin = {**begin, **until.origin}
        lookup = await self._opened()
        keys = [key for key in until.positions if begin.get(key) != until.positions[key]]
        found = await lookup.extents(keys, skips_missing=True)
        there = {
            key: extents for key, extents in found.items() if until.tokens.get(key, extents.token) == extents.token
        }
        deleted = [key for key in keys if key not in there]
        if self._settings.fails_on_loss and (deleted or until.gone):
            raise _deleted([*deleted, *until.gone])
        gone = [
            planning.gap_of_deleted(key, begin.get(key, until.positions[key]), until.positions[key]) for key in deleted
        ]
        if until.gone:
            was = offsets.parse(start).positions
            gone += [planning.gap_of_deleted(key, was.get(key, at), at) for key, at in until.gone.items()]
        parts = [(extents, begin.get(key, extents.beginning), until.positions[key]) for key, extents in there.items()]
        self._addresses = await runtime.addresses_of(
            await runtime.worker().client(self._settings.uri, self._settings.config)
        )
        return await planning.partitions(lookup, self._settings, parts, self._addresses, gone)

    # -- cursors -------------------------------------------------------------------------------------------------
    async def _make_cursors(self, found: Mapping[Key, Extents], positions: Positions) -> None:
        """From now on nothing that the query has not read is truncated unless by force.

        A cursor of that name may be another query's, or of an earlier life of this one: it is put back to where the
        query is, if it is ahead of that. One that is behind is left until the next commit.
        """
        if self._settings.cursor is None:
            return
        for key, extents in found.items():
            if isinstance(key, str) and key not in self._has_cursor:
                client = await runtime.worker().client(self._settings.uri, self._settings.config)
                log = client.log(key, password=self._settings.password)
                position = extents.position(positions[key])
                if position is None:
                    continue
                cursor = (await log.cursors()).get(self._settings.cursor)
                if cursor is None or extents.is_behind(positions[key], cursor.position):
                    await log.move_cursor(self._settings.cursor, position)
                self._has_cursor.add(key)

    async def commit(self, end: dict[str, Any]) -> None:
        """Move the cursors to what was processed. The checkpoint stays the truth: a failure is only noted."""
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
                    _logger.warning("cursor %s of log %s stays behind: %s", self._settings.cursor, key, error)


def _tokens(found: Mapping[Key, Extents], keys: Collection[Key] | None = None) -> dict[Key, str]:
    """Those of the logs, or of some of them."""
    return {
        key: extents.token
        for key, extents in found.items()
        if extents.token is not None and (keys is None or key in keys)
    }


def _deleted(keys: list[Key]) -> BookKeeperError:
    names = ", ".join(f"log {key}" if isinstance(key, str) else f"ledger {key}" for key in keys)
    kind = LogNotFound if isinstance(keys[0], str) else LedgerNotFound
    return kind(
        f"{names}: deleted while the query reads it (a log that has its name now is another one). With option "
        "failOnDataLoss=false the query goes on, and tells in a row what it has not read"
    )
