"""When a disk is full: what follows from how many bytes are usable, directory by directory.

Four marks, in percent of a file system in use. `warn`, almost full: new files go elsewhere if there is elsewhere.
`low_water`: below it a disk that was full has room again. `full`: no ordinary adds. `priority`: not even those of
recoveries and replication; what is left is for replay, for deletion and for the copies that compaction makes.
Percentages are of `size_max` bytes where a file system is larger.

No IO, no clock. Source: storage 8.1 to 8.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from bookies.config import BookieConfig


@dataclass(frozen=True)
class Marks:
    """See above. `size_max` 0: percentages are of the whole file system."""

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
        """Bytes that have to be usable, of a file system of `total` bytes, to stay below a mark."""
        counted = min(total, self.size_max) if self.size_max else total
        return counted * (100 - percent) // 100


@dataclass(frozen=True)
class Space:
    """One directory. `total`, `usable`: bytes of its file system."""

    path: str
    total: int
    usable: int
    is_almost_full: bool = False
    is_full: bool = False
    has_priority_room: bool = True

    @classmethod
    def of(cls, path: str, total: int, usable: int, marks: Marks, *, was_full: bool) -> Space:
        """Level, not edge: it follows from this measurement, but for the margin before `is_full` is withdrawn."""
        mark = marks.low_water if was_full else marks.full
        return cls(
            path,
            total,
            usable,
            usable < marks.needed(marks.warn, total),
            usable < marks.needed(mark, total),
            usable >= marks.needed(marks.priority, total),
        )


@dataclass(frozen=True)
class DiskSpace:
    """All directories of a bookie that can be used. A directory may have several roles.

    `any_full`: one full ledger or index directory is enough to be read-only; otherwise it takes all of them. Every
    journal has to have room in any case, because a ledger's journal is fixed.
    """

    spaces: Mapping[str, Space] = field(default_factory=dict)
    ledgers: Sequence[str] = ()
    indexes: Sequence[str] = ()
    journals: Sequence[str] = ()
    any_full: bool = True

    @property
    def full(self) -> list[Space]:
        """Directories that are full."""
        return [space for space in self.spaces.values() if space.is_full]

    @property
    def is_full(self) -> bool:
        """Whether ordinary adds have no room."""
        stores = [self._of(self.ledgers), self._of(self.indexes)]
        decide = any if self.any_full else all
        return any(each.is_full for each in self._of(self.journals)) or any(
            decide(each.is_full for each in group) for group in stores if group
        )

    @property
    def has_priority_room(self) -> bool:
        """Whether adds of recoveries and replication have room."""
        stores = [self._of(self.ledgers), self._of(self.indexes)]
        return all(each.has_priority_room for each in self._of(self.journals)) and all(
            any(each.has_priority_room for each in group) for group in stores if group
        )

    @property
    def is_almost_full(self) -> bool:
        return any(space.is_almost_full for space in self.spaces.values())

    @property
    def crowded(self) -> frozenset[str]:
        """Directories where nothing new should begin while there are others."""
        return frozenset(path for path, space in self.spaces.items() if space.is_almost_full or space.is_full)

    def totals(self) -> tuple[int, int]:
        """(total, usable) bytes of the ledger directories; those of one file system report the same, and count once."""
        distinct = list(dict.fromkeys((each.total, each.usable) for each in self._of(self.ledgers)))
        return sum(total for total, _ in distinct), sum(usable for _, usable in distinct)

    def reason(self, marks: Marks) -> str:
        """Why there is no room, and when there is again; empty while there is."""
        if not self.is_full:
            return ""
        return "; ".join(
            f"{each.path}: the disk is full, {each.usable:,} of {each.total:,} bytes are usable; adds are taken again "
            f"from {marks.needed(marks.low_water, each.total):,} on"
            for each in self.full
        )

    def _of(self, paths: Iterable[str]) -> list[Space]:
        return [self.spaces[path] for path in dict.fromkeys(paths) if path in self.spaces]
