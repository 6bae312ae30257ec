"""What a bookie may do, and what it should be registered as: a small machine without IO.

    STARTING --started--> SERVING --stopping--> STOPPING

While SERVING the mode follows facts, looked at afresh each time (level, not edge): READ_ONLY while the storage cannot
take entries or an operator says so, otherwise WRITABLE. The registration follows the mode: `registration_due` says
what is missing, the shell does it and reports `registered`. A lost session makes it due again; requests are served
meanwhile, because being unknown to newcomers is no reason to fail those who are connected.

Source: storage 8.3, metadata 6.1, wire-protocol 5.12.
"""

from __future__ import annotations

import enum

from bookies.model import BookieMode


class Phase(enum.Enum):
    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"


class BookieState:
    """The mode of one bookie. All inputs are facts; none may be missed, but any may be repeated."""

    def __init__(self) -> None:
        self.phase = Phase.STARTING
        self.registered_as: BookieMode | None = None
        self._is_storage_writable = True
        self._is_held_read_only = False

    # -- facts ---------------------------------------------------------------------------------------------------
    def started(self) -> None:
        """Storage is ready and the port answers."""
        assert self.phase is Phase.STARTING
        self.phase = Phase.SERVING

    def stopping(self) -> None:
        """Final."""
        self.phase = Phase.STOPPING

    def storage_is(self, writable: bool) -> None:
        self._is_storage_writable = writable

    def hold_read_only(self, held: bool) -> None:
        """An operator's wish; only an operator ends it."""
        self._is_held_read_only = held

    def registered(self, mode: BookieMode) -> None:
        self.registered_as = mode

    def registration_lost(self) -> None:
        """The metadata session ended; so did the registration."""
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
        """The mode to register now; None when nothing is to be done."""
        if self.phase is not Phase.SERVING or self.registered_as is self.mode:
            return None
        return self.mode

    def may_serve(self) -> bool:
        """Whether connections are accepted and requests answered."""
        return self.phase is Phase.SERVING

    def may_add(self, is_high_priority: bool) -> bool:
        """Priority alone, not the recovery flag, is an exemption from read-only; the storage has the last word."""
        return self.phase is Phase.SERVING and (is_high_priority or self.mode is BookieMode.WRITABLE)

    def may_write_lac(self) -> bool:
        """An explicit LAC is never so urgent."""
        return self.phase is Phase.SERVING and self.mode is BookieMode.WRITABLE

    def __repr__(self) -> str:
        known = self.registered_as.value if self.registered_as else "not registered"
        return f"<BookieState {self.phase.value} {self.mode.value}, {known}>"
