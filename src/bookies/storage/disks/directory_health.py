"""Which ledger and index directories can be used, and where something new should go.

Whoever meets a failure reports it, on whatever worker it is; the loop looks with `take_news`. Fields are replaced as a
whole and never changed in place, or only ever added to, so no thread sees half of a change.

Source: storage 8.2, 8.4.
"""

from __future__ import annotations

from collections.abc import Sequence

READ_FAILURES_MAX = 8  # places in one directory that cannot be read; fewer are damage of what lies there
PLACE_SIZE = 1 << 20  # bytes of a file that count as one place, however often they are tried


class DirectoryHealth:
    """`failed`: `current` directory to why nothing is written there any more; final until the process ends.

    `crowded`: where little room is left. `usable`: bytes by directory, as last measured. The last ledger directory
    and the last index directory never count as failed here: without them there is nothing to go on with.
    """

    def __init__(self, ledgers: Sequence[str], indexes: Sequence[str], *, keeps_going: bool) -> None:
        self.failed: dict[str, str] = {}
        self.crowded: frozenset[str] = frozenset()
        self.usable: dict[str, int] = {}
        self._ledgers = list(dict.fromkeys(ledgers))
        self._indexes = list(dict.fromkeys(indexes))
        self._keeps_going = keeps_going
        self._told: set[str] = set()
        self._unreadable: dict[str, set[tuple[str, int]]] = {}  # by directory: (file, number of the place)

    def root_of(self, path: str) -> str | None:
        """The directory that a file belongs to."""
        for root in (*self._ledgers, *self._indexes):
            if path == root or path.startswith(root + "/"):
                return root
        return None

    def is_failed(self, path: str) -> bool:
        """Whether a file belongs to a directory that has failed."""
        return bool(self.failed) and self.root_of(path) in self.failed

    def good(self, directories: Sequence[str]) -> list[str]:
        """Those that have not failed."""
        return [each for each in directories if each not in self.failed]

    def places(self, directories: Sequence[str]) -> list[str]:
        """Those where something new may begin: with room or, if none has, all of them."""
        good = self.good(directories)
        return [each for each in good if each not in self.crowded] or good

    def turn(self, directories: Sequence[str], number: int) -> str:
        """The place for the `number`-th of several things that take turns, or the one with the most room left."""
        places = self.places(directories)
        if places[0] in self.crowded:
            places.sort(key=lambda each: self.usable.get(each, 0), reverse=True)
            return places[0]
        return places[number % len(places)]

    def is_left(self, directory: str, directories: Sequence[str]) -> bool:
        """Whether what is there should go on elsewhere, where there is more room."""
        return directory in self.crowded and self.places(directories)[0] not in self.crowded

    def fail(self, path: str, reason: str) -> bool:
        """Use the directory of this path no more. False if that cannot be: then its failure is the bookie's."""
        root = self.root_of(path)
        if root is None or not self._keeps_going:
            return False
        if root not in self.failed:
            left = [each for each in (*self._ledgers, *self._indexes) if each != root and each not in self.failed]
            if not (set(left) & set(self._ledgers) and set(left) & set(self._indexes)):
                return False
            self.failed[root] = reason
        return True

    def read_failed(self, path: str, offset: int, reason: str) -> None:
        """A read in a directory has failed; at too many places, and it is the directory that has."""
        root = self.root_of(path)
        if root is not None:
            places = self._unreadable.setdefault(root, set())
            places.add((path, offset // PLACE_SIZE))
            if len(places) >= READ_FAILURES_MAX:
                self.fail(path, reason)

    @property
    def has_news(self) -> bool:
        return len(self._told) < len(self.failed)

    def take_news(self) -> list[str]:
        """Directories that have failed since the last call."""
        news = [root for root in list(self.failed) if root not in self._told]
        self._told.update(news)
        return news
