"""The states of an index file between doubts about it and its rebuilt slots on disk, as a table; files to rebuild.

A file is doubted when it is missing, damaged or unreadable, when its directory has failed, or when its header says
that a rebuild has not ended. Until the entry logs have been read no entry of the ledger is reported as missing. The
journal lacks entries that were found in the logs, so the file says STATE_REBUILDING until their slots are durable.

Source: storage 4.6, F-43.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable

from bookies.storage.index.index_files import IndexDamaged


class RebuildState(enum.Enum):
    """The slots of a ledger that memory and file have."""

    __hash__ = object.__hash__  # several transitions for each ledger of a write; that of `Enum` is interpreted

    COMPLETE = "complete"  # all slots are in the file or in dirty pages
    DOUBTED = "doubted"  # entry logs may have entries without a slot
    PARTIAL = "partial"  # all logs that can be read have been read; the file still says rebuilding
    FOUND = "found"  # the logs have been read; their slots are not durable
    SAVING = "saving"  # these slots are being written


class RebuildEvent(enum.Enum):
    """An event in the life of an index file."""

    __hash__ = object.__hash__

    DOUBT = "doubt"
    PARTLY_READ = "partly read"  # logs are missing that could not be read, or of failed directories
    READ = "read"  # the logs; or the ledger has all that it must have
    FREEZE = "freeze"  # a write begins
    GIVE_UP = "give up"  # that write failed
    WRITTEN = "written"


_S, _E = RebuildState, RebuildEvent

TRANSITIONS: dict[tuple[RebuildState, RebuildEvent], RebuildState] = {
    (_S.COMPLETE, _E.DOUBT): _S.DOUBTED,
    (_S.COMPLETE, _E.PARTLY_READ): _S.COMPLETE,  # a second request for the same rebuild
    (_S.COMPLETE, _E.READ): _S.FOUND,  # likewise; it may have set slots
    (_S.COMPLETE, _E.FREEZE): _S.COMPLETE,
    (_S.COMPLETE, _E.GIVE_UP): _S.COMPLETE,
    (_S.COMPLETE, _E.WRITTEN): _S.COMPLETE,
    (_S.DOUBTED, _E.DOUBT): _S.DOUBTED,
    (_S.DOUBTED, _E.PARTLY_READ): _S.PARTIAL,
    (_S.DOUBTED, _E.READ): _S.FOUND,
    (_S.DOUBTED, _E.FREEZE): _S.DOUBTED,  # the header and what is in memory
    (_S.DOUBTED, _E.GIVE_UP): _S.DOUBTED,
    (_S.DOUBTED, _E.WRITTEN): _S.DOUBTED,
    (_S.PARTIAL, _E.DOUBT): _S.DOUBTED,
    (_S.PARTIAL, _E.PARTLY_READ): _S.PARTIAL,
    (_S.PARTIAL, _E.READ): _S.FOUND,
    (_S.PARTIAL, _E.FREEZE): _S.PARTIAL,
    (_S.PARTIAL, _E.GIVE_UP): _S.PARTIAL,
    (_S.PARTIAL, _E.WRITTEN): _S.PARTIAL,
    (_S.FOUND, _E.DOUBT): _S.DOUBTED,
    (_S.FOUND, _E.PARTLY_READ): _S.FOUND,
    (_S.FOUND, _E.READ): _S.FOUND,
    (_S.FOUND, _E.FREEZE): _S.SAVING,
    (_S.FOUND, _E.GIVE_UP): _S.FOUND,
    (_S.FOUND, _E.WRITTEN): _S.FOUND,  # the slots were found while the write was in progress
    (_S.SAVING, _E.DOUBT): _S.DOUBTED,
    (_S.SAVING, _E.PARTLY_READ): _S.FOUND,  # it may have set slots that are not in this write
    (_S.SAVING, _E.READ): _S.FOUND,
    (_S.SAVING, _E.GIVE_UP): _S.FOUND,
    (_S.SAVING, _E.WRITTEN): _S.COMPLETE,
}


def after(state: RebuildState, event: RebuildEvent) -> RebuildState:
    """Return the next state. Raises KeyError for an event that cannot happen: two writes never overlap."""
    return TRANSITIONS[state, event]


class RebuildQueue:
    """Ledgers whose slots have to be found in the entry logs. `wanted`: set while there are any.

    `on_damaged`: called for damage of the index that only a start can repair.
    """

    def __init__(self) -> None:
        self.on_damaged: Callable[[BaseException], None] = lambda error: None
        self.wanted = asyncio.Event()
        self._ledger_ids: dict[int, None] = {}

    def note_damage(self, error: Exception) -> None:
        """Report an error if it is such damage."""
        if isinstance(error, IndexDamaged):
            self.on_damaged(error)

    def want(self, ledger_id: int) -> None:
        self._ledger_ids[ledger_id] = None
        self.wanted.set()

    def forget(self, ledger_id: int) -> None:
        self._ledger_ids.pop(ledger_id, None)

    def take(self) -> list[int]:
        """Return the ledgers, and clear the queue."""
        self.wanted.clear()
        taken, self._ledger_ids = list(self._ledger_ids), {}
        return taken
