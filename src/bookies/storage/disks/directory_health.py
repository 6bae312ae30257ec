"""Health of ledger and index directories, and the choice of a directory for new files.

Any worker reports a failure; the event loop collects failures with `take_new_failures`. Fields are replaced as a whole,
or only ever added to, so no thread sees half of a change.

Source: storage 8.2, 8.4.
"""

from __future__ import annotations

from collections.abc import Sequence

READ_FAILURES_MAX = 8  # unreadable places after which a directory has failed; fewer are damaged files
PLACE_SIZE = 1 << 20  # bytes of a file that count as one place, however often a read of them fails


class DirectoryHealth:
    """Failed and crowded directories of a bookie.

    `failed`: `current` directory to the reason why writes to it are refused; final until the process ends. `crowded`:
    directories that are almost full or full. `usable`: bytes by directory, as last measured. The last ledger directory
    and the last index directory never count as failed here: the bookie cannot continue without them.
    """

    def __init__(self, ledgers: Sequence[str], indexes: Sequence[str], *, keeps_going: bool) -> None:
        self.failed: dict[str, str] = {}
        self.crowded: frozenset[str] = frozenset()
        self.usable: dict[str, int] = {}
        self._ledgers = list(dict.fromkeys(ledgers))
        self._indexes = list(dict.fromkeys(indexes))
        self._keeps_going = keeps_going
        self._reported: set[str] = set()
        self._unreadable: dict[str, set[tuple[str, int]]] = {}  # by directory: (file, number of the place)

    def root_of(self, path: str) -> str | None:
        """Return the directory that a file belongs to, None if it is not watched."""
        for root in (*self._ledgers, *self._indexes):
            if path == root or path.startswith(root + "/"):
                return root
        return None

    def is_failed(self, path: str) -> bool:
        """Report whether a file belongs to a failed directory."""
        return bool(self.failed) and self.root_of(path) in self.failed

    def healthy(self, directories: Sequence[str]) -> list[str]:
        """Return the directories that have not failed."""
        return [path for path in directories if path not in self.failed]

    def candidates(self, directories: Sequence[str]) -> list[str]:
        """Return the directories for new files: those that are not crowded or, if all are, all healthy ones."""
        good = self.healthy(directories)
        return [path for path in good if path not in self.crowded] or good

    def pick(self, directories: Sequence[str], number: int) -> str:
        """Return the directory for the `number`-th new file: round robin or, if all are crowded, the emptiest one."""
        places = self.candidates(directories)
        if places[0] in self.crowded:
            places.sort(key=lambda path: self.usable.get(path, 0), reverse=True)
            return places[0]
        return places[number % len(places)]

    def should_leave(self, directory: str, directories: Sequence[str]) -> bool:
        """Report whether writing should move from this directory to one with more free space."""
        return directory in self.crowded and self.candidates(directories)[0] not in self.crowded

    def fail(self, path: str, reason: str) -> bool:
        """Mark the directory of this path as failed. Return False if the bookie cannot continue without it."""
        root = self.root_of(path)
        if root is None or not self._keeps_going:
            return False
        if root not in self.failed:
            left = [other for other in (*self._ledgers, *self._indexes) if other != root and other not in self.failed]
            if not (set(left) & set(self._ledgers) and set(left) & set(self._indexes)):
                return False
            self.failed[root] = reason
        return True

    def read_failed(self, path: str, offset: int, reason: str) -> None:
        """Record a failed read; the directory fails once reads failed at `READ_FAILURES_MAX` places.

        It fails at once if its own names cannot be read: then it is unknown which files it has.
        """
        root = self.root_of(path)
        if root is not None:
            places = self._unreadable.setdefault(root, set())
            places.add((path, offset // PLACE_SIZE))
            if len(places) >= READ_FAILURES_MAX or path == root:
                self.fail(path, reason)

    @property
    def has_new_failures(self) -> bool:
        return len(self._reported) < len(self.failed)

    def take_new_failures(self) -> list[str]:
        """Return the directories that have failed since the last call."""
        new = [root for root in list(self.failed) if root not in self._reported]
        self._reported.update(new)
        return new
