"""Bringing the catalog to its file: what has to be durable before index files change, and what may come after.

On the loop's thread; the file is the checkpoint's worker's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from bookies.runtime.ports import Worker
from bookies.storage.disks import DirectoryHealth
from bookies.storage.index import catalog_format
from bookies.storage.index.catalog import Catalog, CatalogFile
from bookies.storage.journal import LogMark


class CatalogWriter:
    """`directories`: of index files. What could not be appended goes back to the catalog, and comes with the next."""

    def __init__(
        self, catalog: Catalog, file: CatalogFile, directories: Sequence[str], health: DirectoryHealth
    ) -> None:
        self._catalog = catalog
        self._file = file
        self._directories = directories
        self._health = health
        self._must_move = False
        self._noted: list[int] = []  # the journals that the marks in the file name, for certain

    def abandon(self, directory: str) -> None:
        """The directory has failed; if the file is there, it has to move."""
        self._must_move = self._must_move or self._file.path.startswith(directory + "/")

    async def move(self, worker: Worker) -> None:
        """Away from a directory that has failed. Raises: DiskFull, OSError."""
        if not self._must_move:
            return
        directory = self._health.pick(self._directories, 0)
        notes = self._catalog.take()  # which the whole has, too
        try:  # What a crash leaves unwritten of what this says is there looks like damage, and is built again.
            await worker.run(self._file.move, directory, self._whole())
        except BaseException:
            self._catalog.give_back(notes)
            raise
        self._must_move = False

    async def settle(self, marks: Sequence[LogMark], doubtful_from: int, worker: Worker) -> None:
        """Everything is written: note that, and the marks that are about to be persisted. Raises: DiskFull, OSError.

        `doubtful_from`: see `Contents`. Journals before a mark are removed once it is persisted, so what is noted has
        to name one that stays.
        """
        await self.move(worker)
        named = [mark.journal_id for mark in marks]
        self._catalog.settle(marks, doubtful_from)
        notes = self._catalog.take()
        try:
            if self._file.is_bloated:
                await worker.run(self._file.replace, self._whole())
            else:
                await worker.run(partial(self._file.append, notes, is_durable=named != self._noted))
        except BaseException:
            self._catalog.give_back(notes)
            raise
        self._noted = named

    async def forget(self, ledger_ids: Sequence[int], worker: Worker) -> None:
        """From now on it is no damage that these ledgers have no file. Raises: OSError, DiskFull; SyncFailed."""
        await self.move(worker)
        for ledger_id in ledger_ids:
            self._catalog.delete(ledger_id)
        if not (notes := self._catalog.take()):
            return
        try:
            await worker.run(partial(self._file.append, notes, is_durable=True))
        except BaseException:
            self._catalog.give_back(notes)
            raise

    def _whole(self) -> list[bytes]:
        return list(catalog_format.pack(self._catalog.contents()))
