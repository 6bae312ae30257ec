"""The sealed entry logs of a bookie: how much of each is live, and the deletion of empty ones.

Invariants
- A log is scanned only when a checkpoint has covered it, so every slot that will ever name it is set.
- A ledger that has bytes in a log, and is missing from the index, is not garbage because of that. Its logs are neither
  deleted nor compacted (`unindexed`).
- R-29: forget a log only after its unlink succeeded.
- R-28: isolate failures per log.

On the loop's thread; the collector's worker reads and removes files. Source: storage 7.1, 7.4.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial

from bookies.errors import BookKeeperError, CorruptRecord, ReadFailed, StorageError
from bookies.protocol.pacing import RateLimit
from bookies.protocol.pacing.rate_limit import BURST_S
from bookies.runtime.events import Events
from bookies.runtime.ports import Worker
from bookies.runtime.tasks import throttle
from bookies.storage.disks.durable_files import SyncFailed, unlink_all
from bookies.storage.engine import StorageParts
from bookies.storage.engine.log_pieces import Piece, current_slots, matching_parts, may_lack_slot, pieces_of, slots_of
from bookies.storage.entry_log import LogUsage
from bookies.storage.entry_log.entry_log_format import HEADER_SIZE
from bookies.storage.entry_log.log_usage import LogScan, complete, find_logs, read_map, records_size, twins_of
from bookies.storage.index.log_references import greatest_offsets
from bookies.storage.records import Batch, EndKind
from bookies.storage.records.record_scan import ScanEnd


class SealedLogs:
    """The sealed entry logs. `set_aside`: reason by log id; those logs are not touched until a forced run.

    `unindexed`: ledgers that have bytes in the logs, are missing from the index, and may be live in the metadata.
    """

    def __init__(self, parts: StorageParts, worker: Worker, events: Events) -> None:
        self.known: dict[int, LogUsage] = {}
        self.set_aside: dict[int, str] = {}
        self.was_examined = False
        self.unindexed: dict[int, None] = {}
        self.deleted_count = 0
        self.deleted_size = 0
        self.on_progress: Callable[[], None] = lambda: None
        self._waiting: dict[int, tuple[int, str]] = {}  # logs set aside until a ledger leaves limbo, with the reason
        self._open: LogScan | None = None
        self._disk = parts.runtime.disk
        self._parts = parts
        self._worker = worker
        self._events = events
        self._throttle = RateLimit(parts.config.compaction_rate_size, BURST_S)

    def reconfigure(self) -> None:
        """Use the settings that `StorageParts.config` has now."""
        self._throttle.rate = self._parts.config.compaction_rate_size

    async def examine(self) -> None:
        """Read the usage of logs that are not known yet."""
        for log_id, (ledger_id, reason) in list(self._waiting.items()):
            if ledger_id not in self._parts.index.catalog.limbo:
                del self._waiting[log_id]
                self.take_back(log_id, reason)
        paths = await self._find()
        self.known = {log_id: usage for log_id, usage in self.known.items() if log_id in paths}
        unmapped: dict[int, str] = {}
        first_uncounted = self._parts.checkpointer.log.uncounted_id
        for log_id, path in paths.items():
            is_covered = self._parts.checkpointer.log.is_covered(log_id)
            if not is_covered or log_id in self.known or log_id in self.set_aside:
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
                self.known[log_id] = self._usage(log_id, path, sizes, total)
            self.on_progress()
        await self._complete(unmapped, paths)
        if first_uncounted is not None:
            self._parts.checkpointer.log.uncounted_id = None
        self.was_examined = True

    async def _find(self) -> dict[int, str]:
        parts = self._parts
        good = parts.health.healthy(parts.directories.ledgers)
        return await self._worker.run(find_logs, self._disk, parts.logs, good)

    def _usage(self, log_id: int, path: str, sizes: dict[int, int], total: int) -> LogUsage:
        """Return the usage of a log by the ledgers that count in it."""
        holds = self._parts.logs.holds
        own = {ledger_id: size for ledger_id, size in sizes.items() if holds(log_id, ledger_id)}
        return LogUsage.of(log_id, path, own, total)

    async def read_usage(self, log_id: int) -> LogUsage | None:
        """Return one log's usage from its ledgers map; None without a log or a map. Raises: OSError, CorruptRecord."""
        paths = await self._find()
        if log_id not in paths:
            return None
        sizes = await self._worker.run(read_map, self._disk, paths[log_id])
        if sizes is not None:
            total = await self._worker.run(records_size, self._disk, paths[log_id])
            self.known[log_id] = self._usage(log_id, paths[log_id], sizes, total)
        return self.known.get(log_id)

    def put_aside(self, log_id: int, reason: str) -> None:
        """Set a log aside: forget its usage, and keep its file until a forced run."""
        self.known.pop(log_id, None)
        self.set_aside[log_id] = reason
        self._events.error("gc.log_set_aside", log=self._parts.logs.label(log_id), reason=reason)

    def wait_for(self, log_id: int, ledger_id: int) -> None:
        """Set a log aside until a ledger leaves limbo: the index has nothing of some entries, which may be live."""
        reason = f"ledger {ledger_id} is in limbo, and the index lacks entries of it that are in the log"
        self._waiting[log_id] = ledger_id, reason
        self.put_aside(log_id, reason)

    def take_back(self, log_id: int, reason: str) -> None:
        """Undo `put_aside` if this reason still applies. The next run reads the log's usage again."""
        if self.set_aside.get(log_id) == reason:
            del self.set_aside[log_id]
            self._events.info("gc.log_taken_back", log=self._parts.logs.label(log_id))

    async def _complete(self, paths: Mapping[int, str], others: Mapping[int, str]) -> None:
        """Scan logs without a map, and those in which an unclean stop may have left copies. Write their maps.

        `others`: all logs, among them second names of these.
        """
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
                named = await self._greatest_named(doubtful, others)
            except (BookKeeperError, OSError) as error:
                for log_id in doubtful:
                    self.put_aside(log_id, f"{scanned.pop(log_id)[2].problem}; entries after it are unknown: {error}")
        for log_id, (sizes, stop, end) in scanned.items():
            if (last := named.get(log_id, 0)) >= max(end.offset, 1):
                self.put_aside(log_id, f"byte {end.offset:,}: {end.problem}; the index names byte {last:,} after it")
                continue
            try:
                if any(sizes.values()):
                    may_be_sealed = self._parts.sealer is not None
                    write = partial(complete, may_be_sealed=may_be_sealed)
                    await self._worker.run(write, self._disk, paths[log_id], stop, sizes)
            except SyncFailed:
                raise
            except (OSError, StorageError) as error:
                self._events.warning("gc.log_not_completed", log=self._parts.logs.label(log_id), error=error)
                continue
            self.known[log_id] = self._usage(log_id, paths[log_id], sizes, stop - HEADER_SIZE)

    async def _greatest_named(self, log_ids: Sequence[int], paths: Mapping[int, str]) -> dict[int, int]:
        """Return the greatest offset in each log that a slot names, also by a name that another directory may have."""
        twins = await self._worker.run(twins_of, self._disk, self._parts.logs, log_ids, paths)
        named = await greatest_offsets(self._parts.index, [twin for others in twins.values() for twin in others])
        return {log_id: max(named.get(twin, 0) for twin in others) for log_id, others in twins.items()}

    async def _scan(self, log_id: int, path: str) -> tuple[dict[int, int], int, ScanEnd]:
        """Return (bytes by ledger, where records end, how the log ends).

        For ledgers in the index only the entries count whose slots name this log. A ledger without such entries has 0
        bytes, because the map lists every ledger that has records in the log.
        """
        await self._worker.run(self.close_files)
        self._open = scan = await self._worker.run(LogScan, self._disk, path)
        sizes: dict[int, int] = {}
        stop = HEADER_SIZE
        while isinstance(batch := await self._worker.run(scan.read), Batch):
            starts, stop = batch.records.starts, batch.end
            for piece in pieces_of(batch):
                sizes.setdefault(piece.ledger_id, 0)
                for part in await self._named(log_id, batch, piece):
                    size = starts[part.stop] - starts[part.start]
                    sizes[piece.ledger_id] = sizes.get(piece.ledger_id, 0) + size
            await self.pay(batch.records.size)
        await self._worker.run(self.close_files)
        return sizes, stop, batch

    async def pay(self, size: int) -> None:
        """Wait until `size` bytes of entry logs may be read or written for the collection."""
        await throttle(self._throttle, size)
        self.on_progress()

    async def _named(self, log_id: int, batch: Batch, piece: Piece) -> list[Piece]:
        """Return the parts that count. After a replay entries are in two places, and slots name the later one."""
        index = self._parts.index
        if not self._parts.logs.holds(log_id, piece.ledger_id):
            return [piece]  # Another directory has the log too, for this ledger.
        if not index.is_known(piece.ledger_id):
            return self._synced(log_id, batch, piece)
        try:
            slots = await current_slots(index, piece)
        except ReadFailed:
            return [piece]
        if may_lack_slot(index, piece, slots):
            return [piece]
        return list(matching_parts(piece, slots_of(log_id, batch, piece), slots))

    def _synced(self, log_id: int, batch: Batch, piece: Piece) -> list[Piece]:
        """Return the part that was synced before an unclean stop.

        The rest is in the journal, or was never acknowledged (`torn_logs`).
        """
        end = self._parts.index.catalog.torn.get(log_id)
        if end is None:
            return [piece]
        stop = bisect_right(batch.records.starts, end - batch.offset, piece.start, piece.stop + 1) - 1
        return [piece._replace(stop=stop)] if stop > piece.start else []

    def close_files(self) -> None:
        """Close the file that a cancelled scan left open. On the worker."""
        if self._open is not None:
            self._open.close()
            self._open = None

    async def drop_ledgers(self, is_unwanted: Callable[[int], Awaitable[bool]]) -> None:
        """Remove deleted ledgers from the usage of logs."""
        indexed = set(self._parts.index.ledger_ids())
        garbage: dict[int, bool] = {}
        for usage in list(self.known.values()):
            for ledger_id in [held for held in usage.ledger_ids if held not in indexed and held not in garbage]:
                garbage[ledger_id] = self._parts.removals.is_proven(ledger_id) or await is_unwanted(ledger_id)
            usage.keep(lambda ledger_id: ledger_id in indexed or not garbage[ledger_id])
            self.on_progress()
            await asyncio.sleep(0)
        self.unindexed = {ledger_id: None for ledger_id, is_garbage in garbage.items() if not is_garbage}

    async def may_hold(self, ledger_ids: Collection[int]) -> Collection[int]:
        """Return those of these ledgers, which do not exist any more, of which logs may have entries. Raises: OSError.

        That is all of them while it is not known what a log has: it is damaged, not examined yet, or out of reach.
        """
        paths, log = await self._find(), self._parts.checkpointer.log
        active = await log.worker.run(log.writer.active_sizes)
        if self._parts.health.failed or any(log_id not in self.known and log_id not in active for log_id in paths):
            return ledger_ids
        wanted = frozenset(ledger_ids)
        held = {ledger_id for sizes in active.values() for ledger_id in wanted.intersection(sizes)}
        for usage in list(self.known.values()):
            held |= wanted.intersection(usage.ledger_ids) | wanted.intersection(usage.dropped)
            await asyncio.sleep(0)
        return held

    def has_unindexed(self, usage: LogUsage) -> bool:
        """Report whether a log holds entries of an unindexed ledger."""
        return any(usage.size_of(ledger_id) for ledger_id in self.unindexed)

    async def delete_empty(self) -> None:
        """Delete logs without live ledgers.

        Ledgers maps have no checksum, so the whole index is scanned too, once for all these logs. Raises: ReadFailed
        when a part of it cannot be read; then the logs stay.
        """
        empty = [usage for usage in self.known.values() if usage.remaining == 0]
        named = await greatest_offsets(self._parts.index, [usage.log_id for usage in empty]) if empty else {}
        for usage in empty:
            if usage.log_id in named:
                self.put_aside(
                    usage.log_id, f"its ledgers map lacks a ledger whose index names byte {named[usage.log_id]:,}"
                )
                continue
            try:
                await self.delete(usage)
            except SyncFailed:
                raise
            except OSError as error:
                self._events.warning("gc.log_not_deleted", log=self._parts.logs.label(usage.log_id), error=error)

    async def delete(self, usage: LogUsage) -> None:
        """Delete a log without live entries. Raises: OSError, SyncFailed."""
        await self._worker.run(unlink_all, self._disk, [usage.path])
        del self.known[usage.log_id]
        await self._parts.readers.forget_log(usage.log_id)
        self.deleted_count += 1
        self.deleted_size += usage.total
        self._events.info("gc.log_deleted", log=self._parts.logs.label(usage.log_id), bytes=usage.total)
        self.on_progress()
