"""Appends the catalog's records to its file: before index files change (durable), and after.

On the loop's thread; the file belongs to the checkpoint's worker.
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
    """Writer of the catalog. `directories`: of index files.

    Records whose append failed go back to the catalog and are written with the next append.
    """

    def __init__(
        self, catalog: Catalog, file: CatalogFile, directories: Sequence[str], health: DirectoryHealth
    ) -> None:
        self._catalog = catalog
        self.file = file
        self._directories = directories
        self._health = health
        self._must_move = False
        self._noted: list[int] = []  # the journals that the durable marks in the file name, and the versions

    def directory_failed(self, directory: str) -> None:
        """Schedule a move of the file if it is in this directory, which has failed."""
        self._must_move = self._must_move or self.file.path.startswith(directory + "/")

    async def move(self, worker: Worker) -> None:
        """Move the file out of a failed directory, if it is in one. Raises: DiskFull, OSError."""
        if not self._must_move:
            return
        directory = self._health.pick(self._directories, 0)
        notes = self._catalog.take()  # the whole contains them too
        try:  # Pages listed here that a crash leaves unwritten look damaged, and are rebuilt.
            await worker.run(self.file.move, directory, self._whole())
        except BaseException:
            self._catalog.give_back(notes)
            raise
        self._must_move = False

    async def settle(self, marks: Sequence[LogMark], uncounted_from: int, worker: Worker) -> None:
        """Note that all index files are written, and the marks about to be persisted. Raises: DiskFull, OSError.

        `uncounted_from`: see `Contents`. Journals before a mark are removed once it is persisted, so the marks noted
        durably must name journals that stay. Versions of databases are durable before the marks that rely on them.
        """
        await self.move(worker)
        named = [*(mark.journal_id for mark in marks), *self._catalog.versions]
        self._catalog.settle(marks, uncounted_from)
        notes = self._catalog.take()
        try:
            if self.file.is_bloated:
                await worker.run(self.file.replace, self._whole())
            else:
                await worker.run(partial(self.file.append, notes, is_durable=named != self._noted))
        except BaseException:
            self._catalog.give_back(notes)
            raise
        self._noted = named

    async def forget(self, ledger_ids: Sequence[int], worker: Worker) -> None:
        """Note durably that these ledgers have no file. Raises: OSError, DiskFull; SyncFailed."""
        await self.move(worker)
        for ledger_id in ledger_ids:
            self._catalog.delete(ledger_id)
        if not (notes := self._catalog.take()):
            return
        try:
            await worker.run(partial(self.file.append, notes, is_durable=True))
        except BaseException:
            self._catalog.give_back(notes)
            raise

    def _whole(self) -> list[bytes]:
        return list(catalog_format.pack(self._catalog.contents()))
