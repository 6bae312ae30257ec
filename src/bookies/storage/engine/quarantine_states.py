"""The states of a ledger's removal, as a table: quarantine, deletion, and the way back.

Source: storage 7.2.
"""

from __future__ import annotations

import enum

from bookies.storage.engine.quarantine_format import QuarantineState


class QuarantineEvent(enum.Enum):
    """An event in the life of a ledger that may be removed."""

    GONE = "gone"  # its metadata is deleted
    LEFT = "left"  # no ensemble of it contains this bookie
    RETURNED = "returned"  # the metadata names this bookie for it
    PIN = "pin"  # an operator brings it back
    DELETE = "delete"  # its time in quarantine is over
    FOUND = "found"  # a start finds data of it, which another program may have stored; or its record wants it here
    FORGET = "forget"  # no journal that may be replayed contains it


_S, _E = QuarantineState, QuarantineEvent

# (state, event) -> state. None: an ordinary ledger, or none. Other pairs do not happen: the ledger stays as it is.
TRANSITIONS: dict[tuple[QuarantineState | None, QuarantineEvent], QuarantineState | None] = {
    (None, _E.GONE): _S.QUARANTINED,
    (None, _E.LEFT): _S.SURPLUS,
    (_S.QUARANTINED, _E.RETURNED): None,
    (_S.SURPLUS, _E.RETURNED): None,
    (_S.PINNED, _E.RETURNED): None,
    (_S.QUARANTINED, _E.PIN): _S.PINNED,
    (_S.SURPLUS, _E.PIN): _S.PINNED,
    (_S.PINNED, _E.PIN): _S.PINNED,
    (_S.QUARANTINED, _E.DELETE): _S.DELETED,
    (_S.SURPLUS, _E.DELETE): _S.DELETED,
    (None, _E.FOUND): _S.QUARANTINED,  # the index has lost it
    (_S.DELETED, _E.FOUND): _S.QUARANTINED,
    (_S.DELETED, _E.FORGET): None,
}


def after(state: QuarantineState | None, event: QuarantineEvent) -> QuarantineState | None:
    """Return the next state. Raises KeyError for an event that cannot happen in this state."""
    return TRANSITIONS[state, event]
