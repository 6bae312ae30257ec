"""Writes of the index to its files.

R-2: the entry log is durable before the index that names it, also when an index that needs memory is written early.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from bookies.errors import StorageError
from bookies.runtime.events import Events
from bookies.runtime.ports import Runtime
from bookies.storage.checkpoint.failover import Failover
from bookies.storage.checkpoint.indexed_log import IndexedLog
from bookies.storage.checkpoint.mark_files import Marks
from bookies.storage.disks import DirectoryHealth
from bookies.storage.entry_log.entry_log import LogLost
from bookies.storage.index.index_moves import move_from_crowded
from bookies.storage.index.index_readers import Readers


class StorageObserver:
    """Receiver of moments that answers to requests do not show. This one ignores them."""

    def index_write_begins(self) -> None:
        """Learn that the content of the next index files is fixed."""

    def deletion_begins(self, ledger_ids: Sequence[int]) -> None:
        """Learn that the data of these ledgers is about to be removed."""


class IndexWriter:
    """Writes index files and removes them, one of both at a time. Owned by the loop's thread.

    `worker`: the one of checkpoints, which writes all small files of the storage.
    """

    def __init__(
        self, runtime: Runtime, log: IndexedLog, readers: Readers, health: DirectoryHealth, failover: Failover
    ) -> None:
        self.log = log
        self.failover = failover
        self.observer = StorageObserver()
        self.worker = runtime.workers.start("checkpoint")
        self._readers = readers
        self._health = health
        self._events = Events("storage.checkpoint", runtime.clock)
        self._lock = asyncio.Lock()

    async def relieve(self) -> None:
        """Write the index if its dirty pages need too much memory. Raises as `write`."""
        if self.log.index.cache.is_pressed:
            await self.write()

    async def write(self, marks: Marks | None = None, cut_id: int = -1) -> None:
        """Make dirty pages and headers durable, after the logs that they name. Raises: OSError, StorageError.

        marks: to be persisted afterwards.
        cut_id: the first entry log named by the newest slots that the marks cover, -1: none.
        """
        async with self._lock:
            while True:
                try:
                    if self.log.has_lost:
                        await self.log.rescue()
                    await self._write(marks, cut_id)
                    return
                except LogLost:
                    self.log.has_lost = True
                    await self.failover.react(self.worker, self.log.writer.lost_ends)
                except (OSError, StorageError) as error:
                    if not await self.failover.survives(error, self.worker):
                        raise

    async def _write(self, marks: Marks | None, cut_id: int) -> None:
        log, index = self.log, self.log.index
        await move_from_crowded(index, self._events)
        while True:
            frozen = index.freeze()
            try:
                extent = await log.worker.run(log.writer.sync)
                # The catalog says that logs up to this id are synced, and the note which of them are not.
                await self.failover.react(self.worker, log.writer.lost_ends)
                index.catalog.note_synced(*extent, marks)
                self.observer.index_write_begins()
                has_saved_rebuilt = await index.write(frozen, self.worker)
            finally:
                index.unfreeze(frozen)
            if not has_saved_rebuilt:
                break
        if marks is not None:
            # The first log that may have uncounted copies: see `Contents`. Replay writes only after the cut.
            first = cut_id if cut_id >= 0 else index.catalog.uncounted_from
            first = first if log.uncounted_id is None else -1 - log.uncounted_id
            await index.catalog_writer.settle(marks, first, self.worker)

    async def drop_ledgers(self, ledger_ids: Sequence[int]) -> None:
        """Remove ledgers and their index files. The cache must not hold them. Raises: OSError, SyncFailed.

        After a failure all of them are still known, but their files may be deleted. If the caller is cancelled, the
        worker goes on: no ledger may be known then, because writes would not find its file.
        """
        index = self.log.index
        async with self._lock:
            paths = [(ledger_id, path) for ledger_id in ledger_ids for path in index.places.all_of(ledger_id)]
            await index.catalog_writer.forget(ledger_ids, self.worker)
            files = [path for _, path in paths if not self._health.is_failed(path)]
            try:
                await self.worker.run(index.remove_files, files)
            except asyncio.CancelledError:
                self._forget(paths, ledger_ids)
                raise
            self._forget(paths, ledger_ids)

    def _forget(self, paths: Sequence[tuple[int, str]], ledger_ids: Sequence[int]) -> None:
        for ledger_id in ledger_ids:
            self.log.index.remove(ledger_id)
        self._readers.forget_indexes(paths)
