"""The places of a bookie's index files: which path, in which directory, and where the next write puts a new file.

Owned by the loop's thread. Source: storage 4.1, 4.7, 8.2.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from random import Random

from bookies.storage.disks import DirectoryHealth
from bookies.storage.index.index_files import NewFiles


class IndexPlaces:
    """Path of each ledger's index file. `directories`: of index files, the first one for files that are missing.

    `new_files`: returns a reader or writer of them. `paths`: of existing files, and of those that are rebuilt.
    `abandoned`: paths in failed directories, of ledgers that are not rebuilt yet. `moving`: paths where there may be a
    file that the next write replaces: the one to leave its directory, and those of writes with an unknown outcome.
    `rivals`: further files that the start has found, of ledgers that are not loaded yet; none may be trusted.
    """

    def __init__(
        self,
        directories: Sequence[str],
        health: DirectoryHealth | None,
        random: Random,
        new_files: NewFiles,
    ) -> None:
        self.directories = list(directories)
        self.new_files = new_files
        self.health = health or DirectoryHealth(directories, directories, keeps_going=False)
        self.paths: dict[int, str] = {}
        self.abandoned: dict[int, str] = {}
        self.moving: dict[int, tuple[str, ...]] = {}
        self.rivals: dict[int, list[str]] = {}
        self._random = random
        self._files = new_files(1, "r")
        self._path_of = self._files.path_of

    def expect(self, ledger_id: int) -> None:
        """Give a ledger without a file the path of a file that is missing."""
        home = self._files.home_of(ledger_id) or self.directories[0]
        self.paths.setdefault(ledger_id, posixpath.join(home, self._path_of(ledger_id)))

    def forget(self, ledger_id: int) -> None:
        """Drop a ledger whose file was removed."""
        self.paths.pop(ledger_id, None)
        self.moving.pop(ledger_id, None)
        self.rivals.pop(ledger_id, None)

    def note_attempt(self, ledger_id: int, path: str) -> None:
        """Note a new file that may be there, or come: its write has failed, or its outcome is lost.

        The next write may choose another directory.
        """
        if self.paths.get(ledger_id) != path and not self._files.checks_itself:
            self.moving[ledger_id] = tuple(dict.fromkeys((*self.moving.get(ledger_id, ()), path)))

    def all_of(self, ledger_id: int) -> list[str]:
        """Return the paths where there may be a file of the ledger."""
        path, others = self.paths.get(ledger_id), (*self.moving.get(ledger_id, ()), *self.rivals.get(ledger_id, ()))
        return list(dict.fromkeys(others if path is None else (path, *others)))

    def abandon(self, directory: str) -> list[int]:
        """Return the ledgers whose file is in this directory, which has failed, and is not about to leave it."""
        paths = {
            ledger_id: path
            for ledger_id, path in self.paths.items()
            if path.startswith(directory + "/") and ledger_id not in self.moving
        }
        self.abandoned |= paths
        return list(paths)

    def last_known(self, ledger_id: int) -> str:
        """Return the path where the ledger's file is or should be."""
        return self.abandoned.get(ledger_id, self.paths[ledger_id])

    def for_write(self, ledger_id: int, path: str | None) -> tuple[str, tuple[str, ...]]:
        """Return (the path of the next write, the files that it may replace). `path`: of the file in use."""
        target, moving = path or self.paths.get(ledger_id), self.moving.get(ledger_id, ())
        if target is None or (path is None and (moving or self.health.is_failed(target))):
            home = self._files.home_of(ledger_id)
            directory = home or self._random.choice(self.health.candidates(self.directories))
            target = posixpath.join(directory, self._path_of(ledger_id))
        return target, tuple(replaced for replaced in moving if not self.health.is_failed(replaced))

    @property
    def is_crowded(self) -> bool:
        """Report whether files should move out of some directory."""
        if self._files.checks_itself:
            return False  # Databases decide the place of each ledger.
        return any(self.health.should_leave(root, self.directories) for root in self.health.healthy(self.directories))

    def should_move(self, path: str) -> bool:
        """Report whether this file should move to another directory."""
        root = self.health.root_of(path)
        return root is not None and not self.health.is_failed(path) and self.health.should_leave(root, self.directories)
