"""Catalog of logs and ledgers for the driver. Asks the cluster, and caches what cannot change.

It never recovers or fences a ledger: an open ledger ends, for now, at its last add confirmed.
Source: spark 3.4, 3.6.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from msgspec.structs import replace

from bookies.client.base.keys import keys_of
from bookies.client.read.kept_entries import read_kept
from bookies.client.read.offloaded import OffloadedFiles
from bookies.distributedlog.formats.segment import PARTLY_TRUNCATED, TRUNCATED
from bookies.errors import (
    BookieError,
    EntryError,
    InvalidArgument,
    LedgerNotFound,
    LogNotFound,
    NotSupported,
    ReadFailed,
)
from bookies.protocol.ledger.offload import offload_of
from bookies.protocol.log.kept import span
from bookies.protocol.log.log_model import ENVELOPE, SETS
from bookies.spark.base import plan, runtime, selection
from bookies.spark.base.extents import Extents, Piece, stored_of
from bookies.spark.base.offsets import At, Key

if TYPE_CHECKING:
    from bookies.client.client import Client
    from bookies.client.log import LogReader
    from bookies.client.read import LedgerReader
    from bookies.client.read.offloaded import Group
    from bookies.distributedlog import Namespace, Segment
    from bookies.model import LedgerMetadata
    from bookies.protocol.log import Manifest

T = TypeVar("T")
R = TypeVar("R")
AT_ONCE = 32  # requests in flight
READERS_MAX = 256  # ledgers kept open
WAITED_FOR_MAX = 16  # tails waited for together; with more logs than that, `wait` only sleeps
GUESSES_MAX = 8
SAMPLES_MAX = 32  # entries whose place is requested before a range is cut


class LogCatalog:
    """Facts about the logs and ledgers of one cluster, for one query. Runs on the worker's loop.

    `namespace`: of DistributedLog, whose logs are read.
    """

    def __init__(self, client: Client, password: bytes, tier: str = "auto", namespace: Namespace | None = None) -> None:
        self._client = client
        self._namespace = namespace
        self._segments: dict[int, Segment] = {}  # of the namespace's logs, by ledger
        self._password = password
        self._tier = tier
        self._groups: dict[int, Sequence[Group]] = {}  # of offloaded ledgers
        self._ended: dict[int, LedgerMetadata] = {}  # closed ledgers, whose end cannot change
        self._readers: dict[int, LedgerReader] = {}
        # The ids of the compacted extent read last, and its ledger and place there.
        self._kept: tuple[tuple[int, int], Sequence[int]] = (-1, 0), ()
        self._logs: dict[str, LogReader] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)

    # -- existence and extents ------------------------------------------------------------------------------------
    async def keys(self, chosen: selection.Selection) -> list[Key]:
        """Return the selected logs and ledgers that exist now."""
        if chosen.pattern is not None:
            pattern = re.compile(chosen.pattern)
            names = await (self._client.logs() if self._namespace is None else self._namespace.logs())
            return [name for name in names if pattern.fullmatch(name)]
        if chosen.label is not None:
            return [ledger.ledger_id async for ledger in self._client.ledgers(label=chosen.label)]
        return list(chosen.keys)

    async def extents(self, keys: Iterable[Key], *, skips_missing: bool = False) -> dict[Key, Extents]:
        """Return the readable extents of each key. `skips_missing`: leave out keys that do not exist.

        Raises `LogNotFound`, `LedgerNotFound`, `Unauthorized`.
        """

        async def one(key: Key) -> Extents | None:
            try:
                return await (self._log(key) if isinstance(key, str) else self._ledger(key))
            except (LogNotFound, LedgerNotFound) as error:
                if skips_missing and getattr(error, "ledger_id", key) in (None, key):
                    return None
                raise

        keys = list(keys)
        results = await self._all(keys, one)
        return {key: extents for key, extents in zip(keys, results, strict=True) if extents is not None}

    async def _ledger(self, ledger_id: int) -> Extents:
        last, is_complete, size = await self._end(ledger_id)
        return Extents(ledger_id, (Piece(0, ledger_id, 0, last, 0, is_complete, size),), 1)

    async def _log(self, name: str) -> Extents:
        if self._namespace is not None:
            return await self._segments_of(self._namespace, name)
        manifest = await self._manifest(name)
        pieces: list[Piece] = []
        row = manifest.rows_truncated
        for extent in manifest.extents:
            if extent.last is not None:
                last, is_complete, size = extent.last, True, None if extent.first else extent.bytes
            else:
                last, is_complete, size = await self._end(extent.ledger_id)
            last = max(last, extent.first - 1)
            piece = Piece(extent.seq, extent.ledger_id, extent.first, last, row, is_complete, size, stored_of(extent))
            pieces.append(piece)
            row += piece.count
            if not is_complete:
                break  # Later extents may be read only once this one has its end.
        is_envelope, is_sets = manifest.record_format == ENVELOPE, manifest.record_format == SETS
        return Extents(
            name, tuple(pieces), manifest.next_seq, manifest.rows_truncated, is_envelope, manifest.token, is_sets
        )

    async def _segments_of(self, namespace: Namespace, name: str) -> Extents:
        """Return the segments of a log of DistributedLog as its extents, under their numbers."""
        log = namespace.log(name)
        pieces: list[Piece] = []
        next_seq = log.first_lssn
        for segment in await log.segments():
            next_seq = segment.lssn + 1
            if segment.truncation == TRUNCATED:
                continue
            first = segment.min_entry if segment.truncation == PARTLY_TRUNCATED else 0
            try:
                last, is_complete, size = await self._end(segment.ledger_id)
            except LedgerNotFound:
                if segment.is_completed:
                    raise
                last, is_complete, size = -1, False, None  # It stayed empty, and is being recovered.
            # The number of a segment that stays empty is used again, with another ledger: it ends when that one does.
            is_complete = is_complete and (segment.is_completed or last >= 0)
            self._segments[segment.ledger_id] = segment
            row = pieces[-1].row + pieces[-1].count if pieces else 0
            size = None if first else size
            pieces.append(Piece(segment.lssn, segment.ledger_id, first, max(last, first - 1), row, is_complete, size))
            if not is_complete:
                break
        return Extents(name, tuple(pieces), next_seq, has_numbers=False)

    async def _manifest(self, name: str) -> Manifest:
        if name not in self._logs:
            self._logs[name] = await self._client.log(name, password=self._password).open()
            return self._logs[name].manifest
        try:
            return await self._logs[name].refresh()
        except LogNotFound:
            await self._logs.pop(name).close()
            raise

    async def _end(self, ledger_id: int) -> tuple[int, bool, int | None]:
        """Return the last readable entry, whether it is final, and the payload bytes up to it (None: unknown)."""
        metadata = await self.metadata(ledger_id)
        if not metadata.is_closed:
            last = await (await self._reader(ledger_id)).read_last_add_confirmed()
            metadata = await self.metadata(ledger_id)
            if not metadata.is_closed:
                return last, False, None
        return metadata.last_entry_id, True, metadata.length

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        """Return a ledger's metadata. Raises `LedgerNotFound`, `Unauthorized`: here rather than in every task."""
        if ledger_id in self._ended:
            return self._ended[ledger_id]
        metadata = await self._asked(ledger_id, self._client.metadata(ledger_id))
        keys_of(metadata, self._password)
        if metadata.is_closed:
            self._ended[ledger_id] = metadata
        return metadata

    async def _asked(self, ledger_id: int, answer: Awaitable[T]) -> T:
        """Return an answer about a ledger. `ReadFailed`: the log has removed or replaced it meanwhile."""
        try:
            return await answer
        except LedgerNotFound:
            for log in self._logs.values():
                if ledger_id in log.manifest.storages and ledger_id not in (await log.refresh()).storages:
                    raise ReadFailed(
                        f"log {log.name} was truncated or compacted while the query was planned: repeat the query",
                        ledger_id=ledger_id,
                    ) from None
            raise

    async def at_time(self, extents: Extents, time_ms: int, *, is_end: bool) -> At:
        """Return the position of a time: of logs see `Log.at`.

        Ledgers, and segments of DistributedLog, have no times but their creation. A start is the last one created at
        the time or before, an end the first one created then or later. So no wanted row is left out. Raises
        `NotSupported` for ledgers without a creation time.
        """
        if extents.is_log and self._namespace is None:
            log = self._client.log(str(extents.key), password=self._password)
            return extents.known(await log.at(time_ms / 1000, is_end=is_end))
        low, high = 0, len(extents.pieces)
        while low < high:
            middle = (low + high) // 2
            created = (await self.metadata(extents.pieces[middle].ledger_id)).ctime_ms
            if created is None:
                raise NotSupported(f"{extents}: the metadata store has no creation times of its ledgers")
            if created < time_ms or (created == time_ms and not is_end):
                low = middle + 1
            else:
                high = middle
        if is_end:
            return (extents.pieces[low].seq, extents.pieces[low].first) if low < len(extents.pieces) else extents.end
        return (extents.pieces[low - 1].seq, extents.pieces[low - 1].first) if low else extents.beginning

    # -- bytes ---------------------------------------------------------------------------------------------------
    async def length(self, run: Piece, entry_id: int) -> int:
        """Return the payload bytes of the ledger up to and including an entry; an estimate if that cannot be read.

        Of a compacted or rolled up extent those of the run, always estimated.
        """
        if run.stored is not None:
            return run.stored.size_of(entry_id - run.first + 1)
        if entry_id < 0:
            return 0
        ledger_id = run.ledger_id
        ended = self._ended.get(ledger_id)
        if ended is not None and entry_id == ended.last_entry_id:
            return ended.length
        if (groups := await self.groups(ledger_id)) is not None:
            curve = [(groups[0].first, groups[0].below), *((group.last + 1, group.above) for group in groups)]
            return plan.bytes_before(curve, entry_id + 1)
        try:
            return (await (await self._reader(ledger_id)).read_entry(entry_id)).length
        except (EntryError, BookieError):
            # Only the size is needed: a damaged or unreachable entry must not prevent reading the others.
            return ended.length * (entry_id + 1) // (ended.last_entry_id + 1) if ended is not None else 0

    def estimate(self, run: Piece) -> int:
        """Return the payload bytes of a run by what is known, as if the entries of a ledger were equally large."""
        if run.stored is not None:
            return run.stored.size_of(run.count)
        total, count = run.size, run.last + 1
        if total is None:
            ended, reader = self._ended.get(run.ledger_id), self._readers.get(run.ledger_id)
            if ended is not None:
                total, count = ended.length, ended.last_entry_id + 1
            elif reader is not None:
                total, count = reader.length, reader.last_add_confirmed + 1
        return (total or 0) * run.count // max(1, count)

    async def groups(self, ledger_id: int) -> Sequence[Group] | None:
        """Return the row groups of a ledger's copy; None: bookies are read. Raises `NotSupported`, `ReadFailed`."""
        if self._tier == "bookies":
            return None
        if ledger_id not in self._groups:
            metadata = await self.metadata(ledger_id)
            if self._tier == "auto" and offload_of(metadata) is None:
                return None
            self._groups[ledger_id] = await runtime.worker().files().run(_groups_of, metadata)
        return self._groups[ledger_id]

    async def curve(self, run: Piece) -> list[tuple[int, int]]:
        """Return the bytes before the run's first entry and after its last one, as a curve."""
        below = await self.length(run, run.first - 1)
        above = await self.length(run, run.last) if run.size is None or run.stored is not None else run.size
        return [(run.first, below), (run.last + 1, above)]

    async def sizes(self, runs: Sequence[Piece]) -> list[list[tuple[int, int]]]:
        """Return the curves of several runs."""
        return await self._all(runs, self.curve)

    async def ranges(
        self, extents: Extents, runs: Sequence[Piece], curves: Sequence[list[tuple[int, int]]], size_max: int
    ) -> list[plan.Range]:
        """Cut the runs into ranges of at most `size_max` bytes, or of one entry."""

        async def cut(index: int) -> list[plan.Range]:
            run, curve = runs[index], curves[index]
            if run.stored is not None and run.stored.kept == 0:
                return []
            whole = plan.Range(await self.metadata(run.storage), run.first, run.last)
            if extents.is_log:
                row = run.row if extents.has_numbers else None
                segment, is_envelope = self._segments.get(run.ledger_id), extents.is_envelope
                is_sets = extents.is_sets
                log, seq = str(extents.key), run.seq
                whole = replace(
                    whole, log=log, seq=seq, row=row, is_envelope=is_envelope, is_sets=is_sets, segment=segment
                )
            groups = await self.groups(run.storage)
            if run.stored is not None:
                size = cost_of(run, curve)
                whole = replace(
                    whole,
                    size=size,
                    named=run.ledger_id,
                    kept=run.stored.kept,
                    shift=run.stored.shift,
                    is_offloaded=groups is not None,
                )
                parts = plan.even_parts(run.first, run.last, min(run.count, max(1, -(-size // size_max))))
                return [whole.part(*part) for part in parts]
            if groups is not None:
                return plan.offloaded_ranges(whole, groups, size_max)
            points = plan.sample_points(curve, run.first, run.last, size_max, SAMPLES_MAX)
            for point in points:
                curve.append((point, await self.length(run, point - 1)))
            curve.sort()
            return plan.ranges_of(whole, curve, size_max)

        return [entry_range for ranges in await self._all(range(len(runs)), cut) for entry_range in ranges]

    async def held(self, run: Piece) -> tuple[range, Sequence[int]]:
        """Return the entries of a run in the ledger that holds them, and their ids.

        Those of a compacted extent are looked up.
        """
        shift, kept = (0, None) if run.stored is None else (run.stored.shift, run.stored.kept)
        if kept is None:
            return range(shift + run.first, shift + run.last + 1), range(run.first, run.last + 1)
        if kept == 0:
            return range(0), ()
        place, ids = self._kept
        if place != (run.storage, shift):
            ids = await read_kept(await self._reader(run.storage), kept, shift)
            self._kept = (run.storage, shift), ids
        within = span(ids, run.first, run.last)
        return range(shift + within.start, shift + within.stop), ids[within.start : within.stop]

    async def count(self, run: Piece) -> int:
        """Return how many entries a run has."""
        if run.stored is None or run.stored.kept is None:
            return run.count
        # An extent that was truncated after its compaction still counts the entries before its beginning.
        is_whole = run.first == 0 and run.count == run.stored.ids
        return run.stored.kept if is_whole else len((await self.held(run))[0])

    async def payload(self, run: Piece, entry_id: int) -> bytes:
        """Return the payload of an entry of the ledger that holds a run."""
        return (await (await self._reader(run.storage)).read_entry(entry_id)).payload

    async def entry_within(self, run: Piece, size: int) -> int:
        """Return the last entry such that the run up to it has at most `size` bytes; at least its first entry.

        The payload bytes are those that entries report. Interpolation keeps the number of requests small.
        """
        curve = await self.curve(run)
        below = curve[0][1]
        if curve[-1][1] - below <= size:
            return run.last
        known = dict(curve)
        low, high = run.first, run.last - 1  # The answer is between the two.
        while low < high:
            # With uneven sizes, halving needs fewer requests.
            guess = _reach(sorted(known.items()), below + size) if len(known) < GUESSES_MAX else (low + high + 1) // 2
            guess = min(max(guess, low + 1), high)
            known[guess + 1] = await self.length(run, guess)
            if known[guess + 1] - below <= size:
                low = guess
            else:
                high = guess - 1
        return low

    # -- waiting --------------------------------------------------------------------------------------------------
    async def wait(self, extents: Iterable[Extents], seconds: float) -> None:
        """Wait until one of them has new entries to read, at most `seconds`."""
        tails = [log.pieces[-1] for log in extents if log.pieces and not log.pieces[-1].is_complete]
        if not tails or len(tails) > WAITED_FOR_MAX:
            await asyncio.sleep(seconds)
            return

        async def wait_for_entry(tail: Piece) -> None:
            reader = await self._reader(tail.ledger_id)
            await reader.read_last_add_confirmed_and_entry(tail.last + 1, wait=seconds)

        waiting = [asyncio.ensure_future(wait_for_entry(tail)) for tail in tails]
        try:
            done, _ = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if any(task.exception() is not None for task in done):
                await asyncio.sleep(seconds)  # The next call of `extents` reports the error.
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _reader(self, ledger_id: int) -> LedgerReader:
        reader = self._readers.pop(ledger_id, None)
        if reader is None:
            reader = await self._asked(ledger_id, self._client.open(ledger_id, password=self._password))
        self._readers[ledger_id] = reader  # The most recently used is last in the dict.
        while len(self._readers) > READERS_MAX:
            await self._readers.pop(next(iter(self._readers))).close()
        return reader

    async def _all(self, items: Iterable[T], ask: Callable[[T], Awaitable[R]]) -> list[R]:
        async def one(item: T) -> R:
            async with self._slots:
                return await ask(item)

        tasks = [asyncio.ensure_future(one(item)) for item in items]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def close(self) -> None:
        """Close all readers."""
        for reader in self._readers.values():
            await reader.close()
        for log in self._logs.values():
            await log.close()
        self._readers.clear()
        self._logs.clear()


def cost_of(run: Piece, curve: plan.Curve) -> int:
    """Return the bytes that the entries of a run cost; of a compacted extent an estimate."""
    if run.stored is None:
        return plan.size_between(curve, run.first, run.last)
    return run.stored.size_of(run.count) + plan.ENTRY_OVERHEAD * run.stored.kept_of(run.count)


def _groups_of(metadata: LedgerMetadata) -> Sequence[Group]:
    """Return the row groups of a ledger's copy. Blocks."""
    return OffloadedFiles(metadata).index().groups


def _reach(points: Sequence[tuple[int, int]], size: int) -> int:
    """Return the last entry that ends at `size` bytes or before, by linear interpolation between the points."""
    for (low, below), (high, above) in pairwise(points):
        if above > size:
            return low - 1 + (high - low) * (size - below) // max(1, above - below)
    return points[-1][0] - 1


async def resolved(
    lookup: LogCatalog, extents: Extents, at: str, *, is_end: bool, now_ms: int, strategy: str = "error"
) -> At:
    """Return the position that `at` names. `strategy`: error or latest, for times after the newest record.

    Raises `InvalidArgument`.
    """
    time_ms = selection.time_of(at, extents.key)
    if time_ms is None:
        return selection.at_of(at, extents)
    if not is_end and (time_ms > now_ms or not extents.pieces):
        if strategy == selection.LATEST:
            return extents.end
        raise InvalidArgument(
            f"{extents} has no rows from {time_ms} milliseconds after 1970 on yet: choose an earlier time, or option "
            "startingOffsetsByTimestampStrategy=latest"
        )
    return await lookup.at_time(extents, time_ms, is_end=is_end)
