"""The bookie's mode, and the registration that it should have: a small state machine without IO.

`TRANSITIONS` is the table of its phases.

While SERVING the mode follows facts, which are checked again each time (level, not edge): READ_ONLY while the storage
cannot accept entries or an operator requested it, otherwise WRITABLE. The registration follows the mode:
`registration_due` names the missing one, the shell registers and reports `registered`. A lost session makes it due
again; requests are served meanwhile, because new clients that cannot find the bookie are no reason to fail the
connected ones.

Source: storage 8.3, metadata 6.1, wire-protocol 5.12.
"""

from __future__ import annotations

import enum

from bookies.model import BookieMode
from bookies.protocol.repair.owed import OwedCounts
from bookies.transitions import following


class Phase(enum.Enum):
    STARTING = "starting"
    SERVING = "serving"
    FAILED = "failed"
    STOPPING = "stopping"


class PhaseEvent(enum.Enum):
    STARTED = "the storage is ready and the port accepts connections"
    FAILED = "the journal or a background task failed; only the first failure counts"
    STOP = "a stop in order, or the end of a failed bookie or of one that could not start"


TRANSITIONS = {
    (Phase.STARTING, PhaseEvent.STARTED): Phase.SERVING,
    (Phase.STARTING, PhaseEvent.FAILED): Phase.FAILED,
    (Phase.STARTING, PhaseEvent.STOP): Phase.STOPPING,
    (Phase.SERVING, PhaseEvent.FAILED): Phase.FAILED,
    (Phase.SERVING, PhaseEvent.STOP): Phase.STOPPING,
    (Phase.FAILED, PhaseEvent.STOP): Phase.STOPPING,
    (Phase.STOPPING, PhaseEvent.FAILED): Phase.STOPPING,  # for example in the last checkpoint
    (Phase.STOPPING, PhaseEvent.STOP): Phase.STOPPING,  # an `abort` ends a stop that takes too long
}


class BookieState:
    """The mode of one bookie. All inputs are facts: none may be missed, but any may be repeated.

    `has_started`: it has served and was registered once. `owed`: entries that it has lost.
    """

    def __init__(self) -> None:
        self.phase = Phase.STARTING
        self.has_started = False
        self.registered_as: BookieMode | None = None
        self.owed = OwedCounts()
        self._is_storage_writable = True
        self._is_held_read_only = False

    # -- facts ---------------------------------------------------------------------------------------------------
    def started(self) -> None:
        """Note that the storage is ready and the port accepts connections."""
        self._follow(PhaseEvent.STARTED)

    def failed(self) -> None:
        """Note that the bookie failed: it answers no more requests, and has to be stopped."""
        self._follow(PhaseEvent.FAILED)

    def stopping(self) -> None:
        """Note that the bookie stops. Final."""
        self._follow(PhaseEvent.STOP)

    def _follow(self, event: PhaseEvent) -> None:
        self.phase = following(TRANSITIONS, self.phase, event)

    def storage_is(self, writable: bool) -> None:
        self._is_storage_writable = writable

    def hold_read_only(self, held: bool) -> None:
        """Note an operator's request; only an operator ends it."""
        self._is_held_read_only = held

    def registered(self, mode: BookieMode) -> None:
        self.registered_as = mode

    def registration_lost(self) -> None:
        """Note that the metadata session ended, and with it the registration."""
        self.registered_as = None

    # -- conclusions ---------------------------------------------------------------------------------------------
    @property
    def is_held_read_only(self) -> bool:
        return self._is_held_read_only

    @property
    def mode(self) -> BookieMode:
        is_writable = self._is_storage_writable and not self._is_held_read_only
        return BookieMode.WRITABLE if is_writable else BookieMode.READ_ONLY

    def registration_due(self) -> BookieMode | None:
        """Return the mode to register now; None when the registration is correct."""
        if self.phase is not Phase.SERVING or self.registered_as is self.mode:
            return None
        return self.mode

    def may_serve(self) -> bool:
        """Report whether connections are accepted and requests answered."""
        return self.phase is Phase.SERVING

    def may_add(self, is_high_priority: bool) -> bool:
        """Report whether an add is allowed. High priority exempts from read-only, the recovery flag does not; the
        storage decides last."""
        is_writable = self._is_storage_writable and not self._is_held_read_only
        return self.phase is Phase.SERVING and (is_high_priority or is_writable)

    def may_write_lac(self) -> bool:
        """Report whether an explicit LAC is allowed; it is never urgent."""
        return self.phase is Phase.SERVING and self.mode is BookieMode.WRITABLE

    def __repr__(self) -> str:
        known = self.registered_as.value if self.registered_as else "not registered"
        return f"<BookieState {self.phase.value} {self.mode.value}, {known}>"
