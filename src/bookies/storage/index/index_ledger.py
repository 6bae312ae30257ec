"""One ledger of the index in memory: its header, the path of its file, pages of its slots.

No cycle contains a ledger or a page, and there may be hundreds of thousands: the interpreter's collector skips them.

Source: storage 4.4 to 4.6.
"""

from __future__ import annotations

from msgspec import Struct, field

from bookies.storage.index import index_format as layout
from bookies.storage.index.rebuild_states import RebuildEvent, RebuildState, after

KEY_DUE = 1  # no LEDGER_KEY record of this process precedes the records that are queued from now on
CHECK_DUE = 2  # it is not known yet whether the ledger ended before the bookie was emptied (F-44)


class Page(Struct, gc=False):
    """Slots of consecutive entries. `data` may be shorter than a page: the rest is missing entries.

    `low`, `high`: the slots from `low` to before `high` may have changed since the page was written. `is_partial`:
    `data` begins with slot `first`, and where it has no slot, a database may have one. Such a page is always dirty.
    """

    data: bytearray
    is_dirty: bool = False
    is_frozen: bool = False  # `data` is being written: copy it before changing it
    is_partial: bool = False
    first: int = 0
    low: int = 0
    high: int = 0

    def changed_slots(self) -> bytearray:
        """Return a copy of the slots from `low` to before `high`."""
        return self.data[(self.low - self.first) * layout.SLOT_SIZE : (self.high - self.first) * layout.SLOT_SIZE]


class Ledger(Struct, gc=False):
    """The in-memory state of one ledger.

    `path`: of the index file, None until there is one; `size`: its bytes. `last_add_confirmed`: the greatest LAC seen
    in this process. While `is_lac_known` is False, the LAC in the last entry of the index counts too.
    """

    ledger_id: int
    header: layout.IndexHeader
    path: str | None = None
    size: int = 0
    last_entry_id: int = -1
    last_add_confirmed: int = -1
    is_lac_known: bool = True
    is_header_dirty: bool = False
    due: int = KEY_DUE | CHECK_DUE  # steps before the next add, none for most adds
    is_fence_pending: bool = False  # its FENCE record may not be durable yet
    is_fence_durable: bool = False  # the file had the fence, or a FENCE record of this process is durable
    rebuild: RebuildState = RebuildState.COMPLETE  # changed by `take` alone
    is_deleted: bool = False  # removed from the index; holders of this object must drop it
    users: int = 0  # `with` blocks that hold this object across an await
    pages: dict[int, Page] = field(default_factory=dict)
    frozen: dict[int, tuple[int, bytearray]] | None = None  # by page: number of the first slot to be written, slots

    def __enter__(self) -> None:
        """Keep the ledger in memory until the end of the block, although the block awaits."""
        self.users += 1

    def __exit__(self, *_: object) -> None:
        self.users -= 1

    @property
    def lacks_entries(self) -> bool:
        """Report whether readable entry logs may have entries without a slot: the ledger is being rebuilt."""
        return self.rebuild is RebuildState.DOUBTED

    @property
    def has_unsaved_slots(self) -> bool:
        """Report whether slots found in the entry logs are not durable, so the file keeps STATE_REBUILDING."""
        return self.rebuild in (RebuildState.FOUND, RebuildState.SAVING)

    def take(self, event: RebuildEvent) -> None:
        """Change the state of the rebuild. Raises KeyError for an event that the table lacks."""
        self.rebuild = after(self.rebuild, event)


def is_vacant(key: bytes) -> bool:
    """Report whether a stored master key is empty or all zeros.

    F-23: compare; accept a new key only if the stored one is empty or zeros.
    """
    return not key.strip(b"\0")


def lac_of(explicit_lac: bytes) -> int:
    return int.from_bytes(explicit_lac[8:16], "big", signed=True)
