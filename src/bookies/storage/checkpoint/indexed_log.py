"""The active entry logs together with the index slots of their entries."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from bookies.config import BookieConfig
from bookies.kernels import SortedEntries
from bookies.runtime.ports import Runtime
from bookies.storage.cache.write_cache import AddRun, Run
from bookies.storage.disks import DirectoryHealth
from bookies.storage.disks.durable_files import run_last
from bookies.storage.entry_log.entry_log import EntryLogWriter
from bookies.storage.entry_log.log_directories import LogDirectories
from bookies.storage.entry_log.log_opener import log_of
from bookies.storage.index import LedgerIndex
from bookies.storage.index.index_format import SLOT_SIZE
from bookies.storage.index.slots import pieces
from bookies.storage.sealing.sealer import Sealer

INSTALLED_AT_ONCE = 100  # ledgers whose slots are set in one iteration of the event loop


class IndexedLog:
    """The entry logs of normal traffic: one write at a time, which ends when the slots of its entries are set.

    Owned by the loop's thread. A worker of its own runs the blocking methods of `writer`.

    `newest_ids`: for each space of ids, the entry log that the newest slot names, or a bound of the next; -1: none yet.
    """

    def __init__(
        self,
        runtime: Runtime,
        logs: LogDirectories,
        config: BookieConfig,
        health: DirectoryHealth,
        index: LedgerIndex,
        sealer: Sealer | None = None,
    ) -> None:
        self.index = index
        self.writer = EntryLogWriter(runtime.disk, logs, config, health, sealer)
        self.worker = runtime.workers.start("entry-log")
        self.newest_ids = [-1] * logs.count
        self.uncounted_id: int | None = None  # from this log on there may be copies that no slot names
        self.has_lost = False  # a lost log has entries that are not rescued yet
        self._covered_ids = [-1] * logs.count  # by space: logs with smaller ids are covered
        self._moves: list[tuple[int, int, Run, bytes]] = []  # pending slot moves of rescued entries: see `rescue`
        self._lock = asyncio.Lock()  # from a write to the log until its slots are set

    async def write(self, runs: Sequence[tuple[int, Run]]) -> None:
        """Write runs of single ledgers, and set their slots. Raises: OSError, DiskFull, SyncFailed, ReadFailed."""
        async with self._lock:
            slots = await self.worker.run(self.writer.write, runs)
            for (ledger_id, run), data in zip(runs, slots, strict=True):
                if not self.index.try_install(ledger_id, run.entry_ids, data):
                    await self.index.install(ledger_id, run.entry_ids, data)
        self._note_newest(map(log_of, slots))

    async def sort(self, mixed: Sequence[AddRun]) -> SortedEntries:
        """Return the entries of runs of many ledgers, sorted by ledger and entry."""
        return await self.worker.run(_sorted_entries, mixed)

    async def write_sorted(self, sorted_entries: SortedEntries, start: int) -> int:
        """Write the next sorted entries from `start` on, and set their slots. Return their count. Raises as `write`."""
        async with self._lock:
            entries, slots, log_ids = await self.worker.run(self.writer.write_mixed, sorted_entries, start)
            for number, (ledger_id, first, stop) in enumerate(entries.stretches(), 1):
                entry_ids = range(entries.entry_ids[first], entries.entry_ids[stop - 1] + 1)
                data = slots[first * SLOT_SIZE : stop * SLOT_SIZE]
                if not self.index.try_install(ledger_id, entry_ids, data):
                    await self.index.install(ledger_id, entry_ids, data)
                if not number % INSTALLED_AT_ONCE:
                    await asyncio.sleep(0)
        self._note_newest(log_ids)
        return len(entries)

    def _note_newest(self, log_ids: Iterable[int]) -> None:
        for log_id in log_ids:
            self.newest_ids[log_id % len(self.newest_ids)] = log_id

    async def copy(self, runs: Sequence[tuple[int, Run]], source_id: int) -> None:
        """Append entries of the entry log `source_id`, and move their slots, to be written after the entries.

        Raises: OSError, DiskFull, SyncFailed.
        """
        async with self._lock:
            slots = await self.worker.run(self.writer.write, runs)
            for (ledger_id, run), data in zip(runs, slots, strict=True):
                await self._move(ledger_id, run.entry_ids, source_id, data)

    async def rescue(self) -> None:
        """Write the unsynced entries of lost logs again and move their slots. Raises as `write`."""
        async with self._lock:
            while True:
                while self._moves:
                    lost_id, ledger_id, run, slots = self._moves[0]
                    await self._move(ledger_id, run.entry_ids, lost_id, slots)
                    self._moves.pop(0)
                await self.worker.run(self._rescue_more)
                if not self._moves:
                    self.has_lost = False
                    return

    def _rescue_more(self) -> None:
        """Write some lost entries again, on the worker: it notes their moves, as a cancelled caller could not."""
        if not self._moves:
            self._moves = self.writer.rescue()

    async def _move(self, ledger_id: int, entry_ids: Sequence[int], log_id: int, slots: bytes) -> None:
        """Move the slots of entries that name a log to new places. Raises: ReadFailed."""
        for first, start, count in pieces(entry_ids, self.index.slots_per_page):
            part = slots[start * SLOT_SIZE : (start + count) * SLOT_SIZE]
            await self.index.move(ledger_id, first, log_id, part)

    def is_covered(self, log_id: int) -> bool:
        """Report whether an entry log is sealed, and a checkpoint has covered its entries."""
        return log_id < self._covered_ids[log_id % len(self._covered_ids)]

    def note_sealed(self, log_ids: Sequence[int]) -> None:
        """Note that these logs are sealed, and that all their slots are set."""
        for log_id in log_ids:
            space = log_id % len(self.newest_ids)
            self.newest_ids[space] = max(self.newest_ids[space], log_id + 1)

    def cover(self, log_ids: Sequence[int]) -> None:
        """Count logs with ids below these as covered. `log_ids`: by space."""
        self._covered_ids = list(map(max, self._covered_ids, log_ids))

    async def cover_all(self) -> None:
        """Count all existing logs as covered, after the checkpoint of the start and before any add."""
        self.cover(await self.worker.run(self.writer.first_unfinished_ids))

    async def roll(self, threshold: int) -> list[int]:
        """Seal the active logs of which less than `threshold` percent belong to known ledgers. Return their ids.

        Raises: DiskFull, OSError, SyncFailed.
        """
        few: list[int] = []
        for log_id, sizes in (await self.worker.run(self.writer.active_sizes)).items():
            live_size = sum(size for ledger_id, size in sizes.items() if self.index.is_known(ledger_id))
            if live_size * 100 < threshold * sum(sizes.values()):
                few.append(log_id)
        return await self.worker.run(self.writer.roll, few) if few else []

    def close(self) -> None:
        """Close the files without a sync and end the worker. Blocks until its current work is done."""
        run_last(self.worker, self.writer.abort)


def _sorted_entries(mixed: Sequence[AddRun]) -> SortedEntries:
    return SortedEntries([(run.ledger_ids, run.entry_ids, run.records) for run in mixed])
