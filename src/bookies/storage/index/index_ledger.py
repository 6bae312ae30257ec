"""What the index has of one ledger in memory: its header, where its file is, pages of its slots.

Source: storage 4.4 to 4.6.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bookies.storage.index import index_format as layout


class Page:
    """Slots of consecutive entries. `data` may be shorter than a page: the rest is missing entries."""

    __slots__ = ("data", "is_dirty", "is_frozen")

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.is_dirty = False
        self.is_frozen = False  # `data` is being written: copy it before changing it


@dataclass(slots=True)
class Ledger:
    """What this bookie knows of one ledger.

    `path`: of the index file, None until there is one; `size`: its bytes. `last_add_confirmed`: the greatest LAC seen
    in this process; what the last entry in the index says counts too while `is_lac_known` is False.
    """

    ledger_id: int
    header: layout.IndexHeader
    path: str | None = None
    size: int = 0
    last_entry_id: int = -1
    last_add_confirmed: int = -1
    is_lac_known: bool = True
    is_header_dirty: bool = False
    is_key_logged: bool = False  # a LEDGER_KEY record of this process precedes whatever is queued from now on
    is_fence_pending: bool = False  # its FENCE record may not be durable yet
    is_built: bool = False  # again, from all that can be read while a directory has failed; more may come back with it
    is_rebuilt: bool = False  # its slots were built again, and are not durable yet: the file goes on saying so
    is_proving: bool = False  # they are being written
    is_deleted: bool = False  # the index does not know it any more; whoever still holds this object has to let go
    users: int = 0  # coroutines that keep hold of this object while they wait
    pages: dict[int, Page] = field(default_factory=dict)
    frozen: dict[int, bytearray] | None = None

    @property
    def lacks_entries(self) -> bool:
        """Whether entry logs that can be read may have entries that have no slot: it is being built again."""
        return self.header.is_rebuilding and not self.is_built


def is_vacant(key: bytes) -> bool:
    """Whether a stored master key stands for "not known": it is empty or all zeros. Source: storage F-23."""
    return not key.strip(b"\0")


def lac_of(explicit_lac: bytes) -> int:
    return int.from_bytes(explicit_lac[8:16], "big", signed=True)
