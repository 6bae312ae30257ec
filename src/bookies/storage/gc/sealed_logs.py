"""The sealed entry logs of a bookie: what lives in each, and away with those in which nothing does.

Invariants
- A log is looked at only when a checkpoint has covered it, so every slot that will ever name it is set.
- A ledger of which a log has bytes, but the index nothing, is not taken for garbage on the index's word alone: neither
  does such a log go, nor is it compacted (`doubtful`).
- A log leaves the books only after its file is gone (R-29), and only for itself: what is wrong with one stops no other.

On the loop's thread; files are read and removed by the collector's worker. Source: storage 7.1, 7.4.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable

from bookies.errors import BookKeeperError, CorruptRecord, ReadFailed, StorageError
from bookies.runtime.events import Events
from bookies.runtime.ports import Runtime, Worker
from bookies.storage.disks.durable_files import SyncFailed, unlink_all
from bookies.storage.disks.rate_limit import DiskRateLimit
from bookies.storage.engine import StorageParts
from bookies.storage.engine.log_pieces import Piece, current_slots, matching_parts, pieces_of, slots_of
from bookies.storage.entry_log import LogUsage
from bookies.storage.entry_log.entry_log_format import HEADER_SIZE
from bookies.storage.entry_log.log_usage import LogScan, complete, find_logs, read_map, records_size
from bookies.storage.index.log_references import greatest_offsets
from bookies.storage.records import Batch, EndKind
from bookies.storage.records.record_scan import ScanEnd


class SealedLogs:
    """The sealed entry logs. `set_aside`: reason by log id; those are not touched until a forced run.

    `doubtful`: ledgers with bytes in them of which the index has nothing, although the metadata may want them.
    """

    def __init__(
        self, runtime: Runtime, parts: StorageParts, worker: Worker, throttle: DiskRateLimit, events: Events
    ) -> None:
        self.known: dict[int, LogUsage] = {}
        self.set_aside: dict[int, str] = {}
        self.was_examined = False
        self.doubtful: dict[int, None] = {}
        self.deleted_count = 0
        self.deleted_size = 0
        self.on_progress: Callable[[], None] = lambda: None
        self._open: LogScan | None = None
        self._disk = runtime.disk
        self._parts = parts
        self._worker = worker
        self._events = events
        self._throttle = throttle

    async def examine(self) -> None:
        """Learn what is in logs that are not known yet."""
        paths = await self._worker.run(
            find_logs, self._disk, self._parts.health.healthy(self._parts.directories.ledgers)
        )
        self.known = {log_id: usage for log_id, usage in self.known.items() if log_id in paths}
        unmapped: dict[int, str] = {}
        first_uncounted = self._parts.checkpointer.uncounted_log_id
        for log_id, path in paths.items():
            covered = self._parts.checkpointer.covered_log_id
            if log_id >= covered or log_id in self.known or log_id in self.set_aside:
                continue
            try:
                sizes = await self._worker.run(read_map, self._disk, path)
            except (OSError, CorruptRecord) as error:
                self.put_aside(log_id, str(error))
                continue
            if sizes is None or (first_uncounted is not None and log_id >= first_uncounted):
                unmapped[log_id] = path
            else:
                total = await self._worker.run(records_size, self._disk, path)
                self.known[log_id] = LogUsage.of(log_id, path, sizes, total)
            self.on_progress()
        await self._complete(unmapped)
        if first_uncounted is not None:
            self._parts.checkpointer.uncounted_log_id = None
        self.was_examined = True

    async def look_at(self, log_id: int) -> LogUsage | None:
        """One log, by its map; None if there is no such log, or it has none. Raises: OSError, CorruptRecord."""
        paths = await self._worker.run(
            find_logs, self._disk, self._parts.health.healthy(self._parts.directories.ledgers)
        )
        if log_id not in paths:
            return None
        sizes = await self._worker.run(read_map, self._disk, paths[log_id])
        if sizes is not None:
            total = await self._worker.run(records_size, self._disk, paths[log_id])
            self.known[log_id] = LogUsage.of(log_id, paths[log_id], sizes, total)
        return self.known.get(log_id)

    def put_aside(self, log_id: int, reason: str) -> None:
        """Take a log out of the books, and leave its file alone until a forced run."""
        self.known.pop(log_id, None)
        self.set_aside[log_id] = reason
        self._events.error("gc.log_set_aside", log=f"{log_id:x}", reason=reason)

    def take_back(self, log_id: int, reason: str) -> None:
        """What was the reason to put a log aside is no more: the next look at the logs finds it."""
        if self.set_aside.get(log_id) == reason:
            del self.set_aside[log_id]
            self._events.info("gc.log_taken_back", log=f"{log_id:x}")

    async def _complete(self, paths: dict[int, str]) -> None:
        """Scan logs without a map, and those an unclean end may have left copies in, once; they get another map."""
        scanned: dict[int, tuple[dict[int, int], int, ScanEnd]] = {}
        for log_id, path in paths.items():
            try:
                scanned[log_id] = await self._scan(log_id, path)
            except OSError as error:
                self.put_aside(log_id, str(error))
        doubtful = [log_id for log_id, (_, _, end) in scanned.items() if end.kind is not EndKind.CLEAN]
        named: dict[int, int] = {}
        if doubtful:
            try:
                named = await greatest_offsets(self._parts.index, doubtful)
            except BookKeeperError as error:
                for log_id in doubtful:
                    self.put_aside(log_id, f"{scanned.pop(log_id)[2].problem}; what is behind is unknown: {error}")
        for log_id, (sizes, stop, end) in scanned.items():
            if (behind := named.get(log_id, 0)) >= max(end.offset, 1):
                self.put_aside(log_id, f"byte {end.offset:,}: {end.problem}; an entry at {behind:,} is behind it")
                continue
            try:
                if sizes:
                    await self._worker.run(complete, self._disk, paths[log_id], stop, sizes)
            except SyncFailed:
                raise
            except (OSError, StorageError) as error:
                self._events.warning("gc.log_not_completed", log=f"{log_id:x}", error=error)
                continue
            self.known[log_id] = LogUsage.of(log_id, paths[log_id], sizes, stop - HEADER_SIZE)

    async def _scan(self, log_id: int, path: str) -> tuple[dict[int, int], int, ScanEnd]:
        """(bytes by ledger, where records end, how the log ends).

        Of ledgers that the index can speak for only what its slots name.
        """
        await self._worker.run(self.close_files)
        self._open = scan = await self._worker.run(LogScan, self._disk, path)
        sizes: dict[int, int] = {}
        stop = HEADER_SIZE
        while isinstance(batch := await self._worker.run(scan.read), Batch):
            starts, stop = batch.records.starts, batch.end
            for piece in pieces_of(batch):
                for part in await self._named(log_id, batch, piece):
                    size = starts[part.stop] - starts[part.start]
                    sizes[piece.ledger_id] = sizes.get(piece.ledger_id, 0) + size
            await self._throttle.take(batch.records.size)
            self.on_progress()
        await self._worker.run(self.close_files)
        return sizes, stop, batch

    async def _named(self, log_id: int, batch: Batch, piece: Piece) -> list[Piece]:
        """The parts that count: after a replay entries are in two places, and slots name the later one."""
        index = self._parts.index
        if not index.is_known(piece.ledger_id):
            return self._synced(log_id, batch, piece)
        try:
            return list(matching_parts(piece, slots_of(log_id, batch, piece), await current_slots(index, piece)))
        except ReadFailed:
            return [piece]

    def _synced(self, log_id: int, batch: Batch, piece: Piece) -> list[Piece]:
        """What was synced before an unclean end. The rest is in the journal, or was never promised (`torn_logs`)."""
        end = self._parts.index.catalog.torn.get(log_id)
        if end is None:
            return [piece]
        stop = bisect_right(batch.records.starts, end - batch.offset, piece.start, piece.stop + 1) - 1
        return [piece._replace(stop=stop)] if stop > piece.start else []

    def close_files(self) -> None:
        """On the worker: a scan that was given up leaves its file open until then."""
        if self._open is not None:
            self._open.close()
            self._open = None

    async def drop_ledgers(self, is_unwanted: Callable[[int], Awaitable[bool]]) -> None:
        """Take ledgers that are gone out of the books."""
        here = set(self._parts.index.ledger_ids())
        gone: dict[int, bool] = {}
        for usage in list(self.known.values()):
            for ledger_id in [each for each in usage.ledger_ids if each not in here and each not in gone]:
                gone[ledger_id] = self._parts.removals.is_deleted(ledger_id) or await is_unwanted(ledger_id)
            usage.keep(lambda ledger_id: ledger_id in here or not gone[ledger_id])
            self.on_progress()
            await asyncio.sleep(0)
        self.doubtful = {ledger_id: None for ledger_id, is_gone in gone.items() if not is_gone}

    def is_doubtful(self, usage: LogUsage) -> bool:
        """Whether a log holds anything that only the log knows of, and that somebody may want."""
        return any(usage.size_of(ledger_id) for ledger_id in self.doubtful)

    async def delete_empty(self) -> None:
        """Remove logs that hold nothing of any ledger.

        That is what their ledgers maps say, which have no checksum, so the whole index is asked too, once for all of
        them. Raises: ReadFailed when it cannot tell; then they stay.
        """
        empty = [each for each in self.known.values() if each.remaining == 0]
        named = await greatest_offsets(self._parts.index, [each.log_id for each in empty]) if empty else {}
        for usage in empty:
            if usage.log_id in named:
                self.put_aside(
                    usage.log_id, f"its ledgers map leaves out a ledger whose index names byte {named[usage.log_id]:,}"
                )
                continue
            try:
                await self.delete(usage)
            except SyncFailed:
                raise
            except OSError as error:
                self._events.warning("gc.log_not_deleted", log=f"{usage.log_id:x}", error=error)

    async def delete(self, usage: LogUsage) -> None:
        """Remove a log in which nothing lives. Raises: OSError, SyncFailed."""
        await self._worker.run(unlink_all, self._disk, [usage.path])
        del self.known[usage.log_id]
        await self._parts.readers.forget_log(usage.log_id)
        self.deleted_count += 1
        self.deleted_size += usage.total
        self._events.info("gc.log_deleted", log=f"{usage.log_id:x}", bytes=usage.total)
        self.on_progress()
