"""The interface of what auto-recovery keeps in a metadata store: marks, locks, the switch, the delay, the election.

A ledger that lacks replicas is *marked*. Whoever repairs it holds its *lock* meanwhile, which ends with the session at
the latest, and deletes the mark at the version that it saw under the lock, so that damage noticed in between is not
forgotten. Locks and votes belong to the session of the driver: when that is lost (`on_session_expired`), they are gone.

`MetadataDriver.recovery` is a driver's. Source: metadata 8 and 11, rows 18 to 29.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from bookies.errors import SessionExpired
from bookies.metadata.interface.watches import Watch
from bookies.model import BookieId
from bookies.protocol.repair.agenda import UNREAD as UNREAD


@dataclass(frozen=True, slots=True)
class Mark:
    """A ledger that lacks replicas. `replicas`: bookies believed lost when it was marked, in that order; a hint, not to
    be relied on, and empty where what is stored cannot be read. `ctime_ms`: when something was added last, wall clock,
    None if nobody said. `version` grows with every addition; `UNREAD`: nobody has looked what is in it.
    """

    ledger_id: int
    replicas: tuple[BookieId, ...]
    ctime_ms: int | None
    version: int


@dataclass(frozen=True, slots=True)
class LedgerLock:
    """A lock that was taken. `owner`: as shown to people. `mark_version`: of the mark as it was seen under the lock,
    None if the lock was taken without one. `session`: the store's, that the lock ends with.
    """

    ledger_id: int
    owner: str
    mark_version: int | None
    session: int


def lock_lost(ledger_id: int) -> SessionExpired:
    """The error of whoever wants to go on under a lock that has ended with its session."""
    return SessionExpired(
        "the session with the metadata store was lost and the ledger's lock with it, so that somebody else may have it "
        "by now; what was copied is not used, repeat it",
        ledger_id=ledger_id,
    )


class AuditKind(enum.Enum):
    """Checks of the auditor that remember when they were finished last."""

    ALL_LEDGERS = "all ledgers"
    PLACEMENT = "placement"
    REPLICAS = "replicas"


class Candidacy(ABC):
    """Standing for auditor, from `RecoveryStore.campaign` until `resign`.

    First come, first served. Whose vote goes, with its session or by hand, leads no more and stands again at the end of
    the line.
    """

    @property
    @abstractmethod
    def is_leader(self) -> bool:
        """False from the moment that the vote or the session is known to be gone."""

    @abstractmethod
    async def resign(self) -> None:
        """Take the vote back: the next in line leads. Idempotent; a store that does not answer ends it by itself."""


class RecoveryStore(ABC):
    """Auto-recovery's state in a metadata store, through one driver's session.

    All waiting calls accept cancellation, and leave no lock behind when they are cancelled. Callbacks run on the event
    loop and must not raise. Raises from any call: as `MetadataDriver`.
    """

    # -- marks ---------------------------------------------------------------------------------------------------
    @abstractmethod
    async def mark(self, ledger_id: int, replicas: Sequence[BookieId], now_ms: int | None) -> bool:
        """Mark a ledger, or add replicas to its mark. True: something was new, and the version grew.

        `replicas` may be empty: the ledger is to be looked at. `now_ms`: wall clock; None: no time is stored.
        """

    @abstractmethod
    async def mark_of(self, ledger_id: int) -> Mark | None: ...

    @abstractmethod
    def marks(self, needs: Callable[[int], bool] | None = None) -> AsyncIterator[Sequence[Mark]]:
        """All of them in pages, by ledger id. Complete for marks that exist during the whole call; others may be there
        or not. Reads one page at a time, some reads at once.

        `needs`: what is in the marks of other ledgers is not read where that would be a request each; they are
        `UNREAD` then, and some may be the empty places of marks that are gone.
        """

    @abstractmethod
    def marked_ids(self) -> AsyncIterator[Sequence[int]]:
        """As `marks`, without reading what is in them."""

    @abstractmethod
    async def unmark(self, mark: Mark) -> bool:
        """Delete a mark that is not true any more. False: it has another version, or is gone. Take the lock first."""

    @abstractmethod
    def watch_marks(self, callback: Callable[[], None]) -> Watch:
        """Called soon after there may be something to repair: a ledger was marked, or the lock of a marked one freed.

        Several become one call, and there may be calls for nothing; one comes soon after the watch begins.
        """

    # -- locks ---------------------------------------------------------------------------------------------------
    @abstractmethod
    async def lock(
        self, ledger_id: int, owner: str, *, needs_mark: bool, mark_version: int | None = None
    ) -> LedgerLock | None:
        """Take a ledger's lock, for as long as this session lives. Never waits for another holder.

        None: somebody has it, perhaps another task of this driver; or `needs_mark`, and the ledger is not marked (any
        more). `owner`: shown to people; the host's name, as Apache's. `mark_version`: of the mark as it was listed,
        which is not looked at again: if it is another one by now, or gone, `done` will say so.
        """

    @abstractmethod
    async def unlock(self, lock: LedgerLock) -> None:
        """Give a lock back, if it is still ours. Idempotent. Goes on in the background while the store does not answer,
        or when this call is cancelled.
        """

    @abstractmethod
    def is_held(self, lock: LedgerLock) -> bool:
        """As far as we know: not given back, and its session not lost. Raises `ClientClosed`."""

    @abstractmethod
    async def done(self, lock: LedgerLock) -> bool:
        """The ledger is whole: delete its mark, then give the lock back (also when the first fails).

        False: it was marked again meanwhile, or is not marked any more, or the lock was lost. Needs a lock that was
        taken with a mark.
        """

    @abstractmethod
    async def locks(self) -> dict[int, str]:
        """Locked ledgers, ascending, and who has them."""

    @abstractmethod
    async def locked_ids(self) -> list[int]:
        """As `locks`, without reading who."""

    # -- the switch ----------------------------------------------------------------------------------------------
    @abstractmethod
    async def is_enabled(self) -> bool:
        """Whether ledgers may be repaired without anybody asking for it; true unless switched off."""

    @abstractmethod
    async def enable(self) -> bool:
        """False: it was already."""

    @abstractmethod
    async def disable(self) -> bool:
        """False: it was already."""

    @abstractmethod
    def watch_switch(self, callback: Callable[[], None]) -> Watch:
        """Called soon after the switch was changed, and once soon after the watch begins."""

    # -- how long a bookie may be away ---------------------------------------------------------------------------
    @abstractmethod
    async def lost_bookie_delay_s(self) -> int | None:
        """None: nobody has said. Raises `MetadataCorrupt`."""

    @abstractmethod
    async def set_lost_bookie_delay_s(self, delay_s: int) -> None:
        """Writing the value that is there asks the auditor to look at once."""

    @abstractmethod
    async def init_lost_bookie_delay_s(self, delay_s: int) -> int:
        """Write it if nobody has said; what is there then."""

    @abstractmethod
    def watch_lost_bookie_delay(self, callback: Callable[[], None]) -> Watch:
        """Called soon after it was written, the same value too; and once soon after the watch begins."""

    # -- when checks were finished -------------------------------------------------------------------------------
    @abstractmethod
    async def checked_at_ms(self, kind: AuditKind) -> int | None:
        """Wall clock; None: never."""

    @abstractmethod
    async def set_checked_at_ms(self, kind: AuditKind, at_ms: int) -> None:
        """The last writer wins."""

    # -- the auditor ---------------------------------------------------------------------------------------------
    @abstractmethod
    async def campaign(self, bookie: BookieId, on_change: Callable[[], None]) -> Candidacy:
        """Stand for auditor. The vote is there when this returns. `on_change`: `is_leader` has changed."""

    @abstractmethod
    async def auditor(self) -> BookieId | None:
        """Who leads at present."""

    @abstractmethod
    async def standing(self) -> list[BookieId]:
        """Everybody who stands for auditor, the one who leads first. Who takes part and lives is among them, for a vote
        ends with its session."""

    @abstractmethod
    async def queue_position(self) -> tuple[int, int]:
        """Where this driver's vote is among all, from 0, and how many there are; (0, 1) without one.

        Whoever repairs stands for auditor, too, so this divides work among workers without their talking to each other.
        """
