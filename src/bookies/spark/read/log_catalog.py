"""What the driver's side has to know of logs and ledgers, asked of the cluster and kept as long as it cannot change.

Nothing is ever recovered or fenced: a ledger that is being written ends, for now, at its last add confirmed.
Source: spark 3.4, 3.6.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

from bookies.client.base.keys import keys_of
from bookies.client.read.offloaded import OffloadedFiles
from bookies.errors import BookieError, EntryError, InvalidArgument, LedgerNotFound, LogNotFound, NotSupported
from bookies.protocol.ledger.offload import offload_of
from bookies.protocol.log.log_model import ENVELOPE
from bookies.spark.base import envelope, plan, runtime, selection
from bookies.spark.base.extents import Extents, Piece, Run
from bookies.spark.base.offsets import At, Key

if TYPE_CHECKING:
    from bookies.client.client import Client
    from bookies.client.log import LogReader
    from bookies.client.read import LedgerReader
    from bookies.client.read.offloaded import Group
    from bookies.model import LedgerMetadata
    from bookies.protocol.log import Manifest

T = TypeVar("T")
R = TypeVar("R")
AT_ONCE = 32  # questions under way
READERS_MAX = 256  # ledgers kept open for questions
WAITED_FOR_MAX = 16  # tails that are waited for together; of more logs than that, news is looked for at intervals
GUESSES_MAX = 8
UNTIMED_MAX = 16  # records without a time that are passed over to find one with
SAMPLES_MAX = 32  # entries whose place is asked for before a range is cut


class LogCatalog:
    """Answers about the logs and ledgers of one cluster, for one query. On the worker's loop."""

    def __init__(self, client: Client, password: bytes, tier: str = "auto") -> None:
        self._client = client
        self._password = password
        self._tier = tier
        self._groups: dict[int, Sequence[Group]] = {}  # of offloaded ledgers
        self._ended: dict[int, LedgerMetadata] = {}  # closed ledgers, whose end cannot change
        self._readers: dict[int, LedgerReader] = {}
        self._logs: dict[str, LogReader] = {}
        self._turns = asyncio.Semaphore(AT_ONCE)

    # -- what there is -------------------------------------------------------------------------------------------
    async def keys(self, chosen: selection.Selection) -> list[Key]:
        """The logs and ledgers that are meant, as there are now."""
        if chosen.pattern is not None:
            pattern = re.compile(chosen.pattern)
            return [name for name in await self._client.logs() if pattern.fullmatch(name)]
        if chosen.label is not None:
            return [each.ledger_id async for each in self._client.ledgers(label=chosen.label)]
        return list(chosen.keys)

    async def extents(self, keys: Iterable[Key], *, skips_missing: bool = False) -> dict[Key, Extents]:
        """What can be read of each now; `skips_missing`: of those that there are.

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
        found = await self._all(keys, one)
        return {key: each for key, each in zip(keys, found, strict=True) if each is not None}

    async def _ledger(self, ledger_id: int) -> Extents:
        last, is_complete, size = await self._end(ledger_id)
        return Extents(ledger_id, (Piece(0, ledger_id, 0, last, 0, is_complete, size),), 1)

    async def _log(self, name: str) -> Extents:
        manifest = await self._manifest(name)
        pieces: list[Piece] = []
        row = manifest.rows_truncated
        for extent in manifest.extents:
            if extent.last is not None:
                last, is_complete, size = extent.last, True, None if extent.first else extent.bytes
            else:
                last, is_complete, size = await self._end(extent.ledger_id)
            last = max(last, extent.first - 1)
            piece = Piece(extent.seq, extent.ledger_id, extent.first, last, row, is_complete, size)
            pieces.append(piece)
            row += piece.count
            if not is_complete:
                break  # What follows may not be read before this has its end.
        is_envelope = manifest.record_format == ENVELOPE
        return Extents(name, tuple(pieces), manifest.next_seq, manifest.rows_truncated, is_envelope, manifest.token)

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
        """(last entry that can be read, whether nothing will follow, payload bytes up to there or None)."""
        metadata = await self.metadata(ledger_id)
        if not metadata.is_closed:
            last = await (await self._reader(ledger_id)).read_last_add_confirmed()
            metadata = await self.metadata(ledger_id)
            if not metadata.is_closed:
                return last, False, None
        return metadata.last_entry_id, True, metadata.length

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        """Raises `LedgerNotFound`, `Unauthorized`: a wrong password is better found here than in every task."""
        if ledger_id in self._ended:
            return self._ended[ledger_id]
        metadata = await self._client.metadata(ledger_id)
        keys_of(metadata, self._password)
        if metadata.is_closed:
            self._ended[ledger_id] = metadata
        return metadata

    async def at_time(self, extents: Extents, time_ms: int, *, is_end: bool) -> At:
        """Where the time is. Of records with times: the first one of this time or later, both as beginning and as end.

        Else to a ledger, which knows when it was made. A beginning is that of the last ledger made at that time or
        before, an end that of the first one made then or later: what is wanted is never left out. Raises
        `NotSupported` for ledgers that do not know their time.
        """
        if extents.is_envelope and (row := await self._row_at(extents, 1000 * time_ms)) is not None:
            return extents.at_row(row)
        low, high = 0, len(extents.pieces)
        while low < high:
            middle = (low + high) // 2
            created = (await self.metadata(extents.pieces[middle].ledger_id)).ctime_ms
            if created is None:
                raise NotSupported(f"{extents}: the metadata store does not say when its ledgers were made")
            if created < time_ms or (created == time_ms and not is_end):
                low = middle + 1
            else:
                high = middle
        if is_end:
            return (extents.pieces[low].seq, extents.pieces[low].first) if low < len(extents.pieces) else extents.end
        return (extents.pieces[low - 1].seq, extents.pieces[low - 1].first) if low else extents.beginning

    async def _row_at(self, extents: Extents, time_us: int) -> int | None:
        """The first row whose record has this time or a later one, the end if none has; None: records have no times.

        By halving: records are taken to be in the order of their times. Those without one go with what follows them.
        """
        low, high, has_times = extents.rows_truncated, extents.rows, False
        while low < high:
            middle = row = (low + high) // 2
            time_us_found = await self._time_of(extents, row)
            while time_us_found is None and row + 1 < min(high, middle + UNTIMED_MAX):
                row += 1
                time_us_found = await self._time_of(extents, row)
            if time_us_found is None and row + 1 < high:
                return None
            has_times = has_times or time_us_found is not None
            if time_us_found is not None and time_us_found < time_us:
                low = row + 1
            else:
                high = middle
        return low if has_times else None

    async def _time_of(self, extents: Extents, row: int) -> int | None:
        """Microseconds since 1970, of the row's record."""
        position = extents.position(extents.at_row(row))
        assert position is not None
        try:
            entry = await (await self._reader(position.ledger_id)).read_entry(position.entry_id)
        except EntryError:
            return None  # Damaged or gone, which is said when it is read, if it is.
        return envelope.timestamp_of(entry.payload)

    # -- bytes ---------------------------------------------------------------------------------------------------
    async def length(self, ledger_id: int, entry_id: int) -> int:
        """Payload bytes of the ledger up to and including the entry, estimated if that cannot be read."""
        if entry_id < 0:
            return 0
        ended = self._ended.get(ledger_id)
        if ended is not None and entry_id == ended.last_entry_id:
            return ended.length
        if (groups := await self.groups(ledger_id)) is not None:
            curve = [(groups[0].first, groups[0].below), *((each.last + 1, each.above) for each in groups)]
            return plan.bytes_before(curve, entry_id + 1)
        try:
            return (await (await self._reader(ledger_id)).read_entry(entry_id)).length
        except (EntryError, BookieError):
            # Only a size is asked for: an entry that is damaged or out of reach must not keep others from being read.
            return ended.length * (entry_id + 1) // (ended.last_entry_id + 1) if ended is not None else 0

    async def groups(self, ledger_id: int) -> Sequence[Group] | None:
        """The row groups of a ledger's copy, if that is what is to be read. Raises `NotSupported`, `ReadFailed`."""
        if self._tier == "bookies":
            return None
        if ledger_id not in self._groups:
            metadata = await self.metadata(ledger_id)
            if self._tier == "auto" and offload_of(metadata) is None:
                return None
            self._groups[ledger_id] = await runtime.worker().files().run(_groups_of, metadata)
        return self._groups[ledger_id]

    async def curve(self, run: Run) -> list[tuple[int, int]]:
        """The bytes before its first entry and behind its last one."""
        piece = run.piece
        below = await self.length(piece.ledger_id, run.first - 1)
        if run.last == piece.last and piece.is_complete and piece.size is not None:
            return [(run.first, below), (run.last + 1, piece.size)]
        return [(run.first, below), (run.last + 1, await self.length(piece.ledger_id, run.last))]

    async def sizes(self, runs: Sequence[Run]) -> list[list[tuple[int, int]]]:
        """The curves of several runs."""
        return await self._all(runs, self.curve)

    async def ranges(
        self, extents: Extents, runs: Sequence[Run], curves: Sequence[list[tuple[int, int]]], size_max: int
    ) -> list[plan.Range]:
        """The runs cut into ranges of at most `size_max` bytes, or of one entry."""

        async def cut(index: int) -> list[plan.Range]:
            run, curve = runs[index], curves[index]
            ledger_id = run.piece.ledger_id
            metadata = await self.metadata(ledger_id)
            source = (
                plan.Source(
                    metadata, run.first, run.last, str(extents.key), run.piece.seq, run.row, extents.is_envelope
                )
                if extents.is_log
                else plan.Source(metadata, run.first, run.last)
            )
            if (groups := await self.groups(ledger_id)) is not None:
                return plan.offloaded_ranges(source, groups, size_max)
            points = plan.sample_points(curve, run.first, run.last, size_max, SAMPLES_MAX)
            for point in points:
                curve.append((point, await self.length(ledger_id, point - 1)))
            curve.sort()
            return plan.ranges_of(source, curve, size_max)

        return [each for ranges in await self._all(range(len(runs)), cut) for each in ranges]

    async def entry_within(self, run: Run, size: int) -> int:
        """The last entry such that the run up to it has at most `size` bytes of payload; its first one at least.

        The bytes are as the entries say; found by interpolation, so a few questions are enough.
        """
        curve = await self.curve(run)
        below = curve[0][1]
        if curve[-1][1] - below <= size:
            return run.last
        known = dict(curve)
        low, high = run.first, run.last - 1  # The answer is between the two.
        while low < high:
            # When sizes are uneven, halving gets there sooner.
            guess = _reach(sorted(known.items()), below + size) if len(known) < GUESSES_MAX else (low + high + 1) // 2
            guess = min(max(guess, low + 1), high)
            known[guess + 1] = await self.length(run.piece.ledger_id, guess)
            if known[guess + 1] - below <= size:
                low = guess
            else:
                high = guess - 1
        return low

    # -- news ----------------------------------------------------------------------------------------------------
    async def wait(self, extents: Iterable[Extents], seconds: float) -> None:
        """Until something new can be read in one of them, or the time is over."""
        tails = [each.pieces[-1] for each in extents if each.pieces and not each.pieces[-1].is_complete]
        if not tails or len(tails) > WAITED_FOR_MAX:
            await asyncio.sleep(seconds)
            return

        async def news(tail: Piece) -> None:
            reader = await self._reader(tail.ledger_id)
            await reader.read_last_add_confirmed_and_entry(tail.last + 1, wait=seconds)

        waiting = [asyncio.ensure_future(news(tail)) for tail in tails]
        try:
            done, _ = await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if any(each.exception() is not None for each in done):
                await asyncio.sleep(seconds)  # Whoever asks for the extents next meets the reason again.
        finally:
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def _reader(self, ledger_id: int) -> LedgerReader:
        reader = self._readers.pop(ledger_id, None)
        if reader is None:
            reader = await self._client.open(ledger_id, password=self._password)
        self._readers[ledger_id] = reader  # The last one used is the last in line.
        while len(self._readers) > READERS_MAX:
            await self._readers.pop(next(iter(self._readers))).close()
        return reader

    async def _all(self, items: Iterable[T], ask: Callable[[T], Awaitable[R]]) -> list[R]:
        async def one(item: T) -> R:
            async with self._turns:
                return await ask(item)

        tasks = [asyncio.ensure_future(one(item)) for item in items]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    async def close(self) -> None:
        """Let go of what was opened."""
        for reader in self._readers.values():
            await reader.close()
        for log in self._logs.values():
            await log.close()
        self._readers.clear()
        self._logs.clear()


def _groups_of(metadata: LedgerMetadata) -> Sequence[Group]:
    """Blocks."""
    return OffloadedFiles(metadata).index().groups


def _reach(points: Sequence[tuple[int, int]], size: int) -> int:
    """The last entry that ends at `size` bytes or before, going straight between what is known."""
    for (low, below), (high, above) in pairwise(points):
        if above > size:
            return low - 1 + (high - low) * (size - below) // max(1, above - below)
    return points[-1][0] - 1


async def resolved(
    lookup: LogCatalog, extents: Extents, at: str, *, is_end: bool, now_ms: int, strategy: str = "error"
) -> At:
    """The position that `at` means. `strategy`: error or latest, for times that nothing has reached yet.

    Raises `InvalidArgument`.
    """
    time_ms = selection.time_of(at, extents.key)
    if time_ms is None:
        return selection.at_of(at, extents)
    if not is_end and (time_ms > now_ms or not extents.pieces):
        if strategy == selection.LATEST:
            return extents.end
        raise InvalidArgument(
            f"{extents} has nothing from {time_ms} milliseconds after 1970 on yet: choose an earlier time, or option "
            "startingOffsetsByTimestampStrategy=latest"
        )
    return await lookup.at_time(extents, time_ms, is_end=is_end)
