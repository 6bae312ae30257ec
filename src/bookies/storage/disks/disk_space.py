"""Disk-full decisions, computed from the usable bytes of each directory.

There are four marks, in percent of a file system in use. `warn`: the disk is almost full, and new files are created on
other disks if there are any. `low_water`: a disk that was full becomes writable again below it. `full`: ordinary adds
are refused. `priority`: adds of recovery and replication are refused too. The rest is for replay, deletion and the
copies that compaction writes. Percentages are of `size_max` bytes where a file system is larger.

No IO, no clock. Source: storage 8.1 to 8.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, field

from bookies.config import BookieConfig
from bookies.units import size_text


class Marks(Struct, frozen=True):
    """The four marks, in percent. `size_max`: bytes; 0: percentages are of the whole file system."""

    warn: int
    low_water: int
    full: int
    priority: int
    size_max: int

    @classmethod
    def of(cls, config: BookieConfig) -> Marks:
        return cls(
            config.disk_usage_warn_threshold,
            config.disk_usage_lwm_threshold,
            config.disk_usage_threshold,
            config.disk_usage_priority_threshold,
            config.disk_usage_size_max,
        )

    def needed(self, percent: int, total: int) -> int:
        """Return the bytes that must be usable, of a file system of `total` bytes, to stay below a mark."""
        counted = min(total, self.size_max) if self.size_max else total
        return counted * (100 - percent) // 100


class Space(Struct, frozen=True):
    """Free space of one directory. `total`, `usable`: bytes of its file system."""

    path: str
    total: int
    usable: int
    is_almost_full: bool = False
    is_full: bool = False
    has_priority_room: bool = True

    @classmethod
    def of(cls, path: str, total: int, usable: int, marks: Marks, *, was_full: bool) -> Space:
        """Return the state of a directory. `was_full`: it stays full until usage falls below the low-water mark."""
        mark = marks.low_water if was_full else marks.full
        return cls(
            path,
            total,
            usable,
            usable < marks.needed(marks.warn, total),
            usable < marks.needed(mark, total),
            usable >= marks.needed(marks.priority, total),
        )


class DiskSpace(Struct, frozen=True):
    """Free space of all usable directories of a bookie. A directory may have several roles.

    `any_full`: one full ledger or index directory makes the bookie read-only; otherwise all of them have to be full.
    One full journal always does, because a ledger's journal is fixed.
    `needs_each`: so is the directory of a ledger, so recovery needs free space in all of them.
    """

    spaces: Mapping[str, Space] = field(default_factory=dict)
    ledgers: Sequence[str] = ()
    indexes: Sequence[str] = ()
    journals: Sequence[str] = ()
    any_full: bool = True
    needs_each: bool = False

    @property
    def full(self) -> list[Space]:
        """Return the directories that are full."""
        return [space for space in self.spaces.values() if space.is_full]

    @property
    def is_full(self) -> bool:
        """Report whether ordinary adds must be refused."""
        stores = [self._of(self.ledgers), self._of(self.indexes)]
        decide = any if self.any_full else all
        return any(space.is_full for space in self._of(self.journals)) or any(
            decide(space.is_full for space in group) for group in stores if group
        )

    @property
    def has_priority_room(self) -> bool:
        """Report whether there is space for adds of recovery and replication."""
        stores = [self._of(self.ledgers), self._of(self.indexes)]
        decide = all if self.needs_each else any
        return all(space.has_priority_room for space in self._of(self.journals)) and all(
            decide(space.has_priority_room for space in group) for group in stores if group
        )

    @property
    def is_almost_full(self) -> bool:
        return any(space.is_almost_full for space in self.spaces.values())

    @property
    def crowded(self) -> frozenset[str]:
        """Return the directories to avoid for new files while there are others."""
        return frozenset(path for path, space in self.spaces.items() if space.is_almost_full or space.is_full)

    def totals(self) -> tuple[int, int]:
        """Return (total, usable) bytes of the ledger directories.

        Directories with equal figures are taken to be on one file system and count once.
        """
        distinct = list(dict.fromkeys((space.total, space.usable) for space in self._of(self.ledgers)))
        return sum(total for total, _ in distinct), sum(usable for _, usable in distinct)

    def reason(self, marks: Marks) -> str:
        """Return why adds are refused, and the usable bytes that end it; empty while they are accepted."""
        if not self.is_full:
            return ""
        paths: dict[tuple[int, int], list[str]] = {}
        for space in self.full:  # Directories of one file system have the same figures.
            paths.setdefault((space.usable, space.total), []).append(space.path)
        return "; ".join(
            f"{', '.join(names)}: the disk is full, {size_text(usable)} of {size_text(total)} are usable; adds are "
            f"accepted again when {size_text(marks.needed(marks.low_water, total))} are usable"
            for (usable, total), names in paths.items()
        )

    def _of(self, paths: Iterable[str]) -> list[Space]:
        return [self.spaces[path] for path in dict.fromkeys(paths) if path in self.spaces]
