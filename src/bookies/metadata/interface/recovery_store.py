"""The interface of auto-recovery's state in a metadata store: marks, locks, the switch, the delay, the election.

A ledger that lacks replicas is *marked*. A worker that repairs it holds the ledger's *lock*, which ends with the
session at the latest. The worker deletes the mark at the version that it read before its check. Every report of damage
writes the mark, so damage reported during the repair is kept. Locks and votes belong to the driver's session, and end
when it is lost (`on_session_expired`).

`MetadataDriver.recovery` returns a driver's implementation. Source: metadata 8 and 11, rows 18 to 29.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence

from msgspec import Struct

from bookies.errors import SessionExpired
from bookies.metadata.interface.watches import Watch
from bookies.model import BookieId
from bookies.protocol.repair.agenda import UNREAD as UNREAD


class Mark(Struct, frozen=True):
    """A ledger that lacks replicas.

    `replicas`: bookies believed lost when the ledger was marked, in that order. Only a hint; empty if the stored mark
    cannot be read. `ctime_ms`: wall-clock time of the last write, None if none is stored. `version`: grows with
    every write; `UNREAD`: the mark was listed without its data.
    """

    ledger_id: int
    replicas: tuple[BookieId, ...]
    ctime_ms: int | None
    version: int


class LedgerLock(Struct, frozen=True):
    """A lock that this driver took. `owner`: shown to operators. `mark_version`: version of the mark as read under the
    lock, None if the lock was taken without a mark. `session`: the session in the store that the lock ends with.
    """

    ledger_id: int
    owner: str
    mark_version: int | None
    session: int


def lock_lost(ledger_id: int) -> SessionExpired:
    """Return the error for work under a lock that has ended with its session."""
    return SessionExpired(
        "the session with the metadata store was lost and the ledger's lock with it, so another process may hold the "
        "lock by now; entries that were copied are not used, repeat the operation",
        ledger_id=ledger_id,
    )


class AuditKind(enum.Enum):
    """Checks of the auditor whose last time of completion is stored."""

    ALL_LEDGERS = "all ledgers"
    PLACEMENT = "placement"
    REPLICAS = "replicas"


class Candidacy(ABC):
    """One process's candidacy for auditor, from `RecoveryStore.campaign` until `resign`.

    The oldest vote leads. A candidate whose vote is deleted, with its session or by an operator, stops leading and
    votes again, after all others.
    """

    @property
    @abstractmethod
    def is_leader(self) -> bool:
        """Report whether this candidate leads. False as soon as its vote or session is known to have ended."""

    @abstractmethod
    async def resign(self) -> None:
        """Withdraw the vote; the next candidate leads. Idempotent. If the store does not answer, the vote ends with the
        session.
        """


class RecoveryStore(ABC):
    """Auto-recovery's state in a metadata store, through one driver's session.

    All waiting calls accept cancellation; a cancelled call leaves no lock behind. Callbacks run on the event loop and
    must not raise. Every call raises the errors listed at `MetadataDriver`.
    """

    # -- marks ---------------------------------------------------------------------------------------------------
    @abstractmethod
    async def mark(
        self,
        ledger_id: int,
        replicas: Sequence[BookieId],
        now_ms: int | None,
        *,
        is_damage: bool = False,
        stands_ms: int | None = None,
    ) -> bool:
        """Mark a ledger, or add replicas to its mark. True: the mark was written, and its version grew.

        `replicas`: may be empty, which requests a check of the ledger. `now_ms`: wall clock; None: no time is stored.
        `is_damage`: entries are missing or damaged on bookies that are there. A repair may have checked these already,
            and be about to delete the mark. So the mark is written even if it names them: the deletion fails, and the
            next repair checks them again. A lost bookie needs no such write: every repair checks for it at its end.
        `stands_ms`: the `now_ms` of the caller's earlier report of damage, to limit the writes while the damage stays.
            A mark of this time that names all replicas stands for this report too, and is not written, unless the
            ledger is locked.
        """

    @abstractmethod
    async def mark_of(self, ledger_id: int) -> Mark | None: ...

    @abstractmethod
    def marks(self, needs: Callable[[int], bool] | None = None) -> AsyncIterator[Sequence[Mark]]:
        """Yield all marks in pages, by ledger id. Marks that exist during the whole call are included; others may be.
        Reads one page at a time, several marks concurrently.

        `needs`: reports whether a ledger's mark has to be read. If reading costs one request per mark, other marks are
        not read: their version is `UNREAD`, and some of them may have been deleted already.
        """

    @abstractmethod
    def marked_ids(self) -> AsyncIterator[Sequence[int]]:
        """Yield the ids of marked ledgers, like `marks`, without reading the marks."""

    @abstractmethod
    async def unmark(self, mark: Mark) -> bool:
        """Delete a mark that no longer holds. False: it has another version, or is missing. Take the lock first."""

    @abstractmethod
    def watch_marks(self, callback: Callable[[], None]) -> Watch:
        """Call back soon after there may be work: a ledger was marked, or the lock of a marked ledger was released.

        Several changes may become one call, and there may be calls without a change. The first call comes soon after
        the watch begins.
        """

    # -- locks ---------------------------------------------------------------------------------------------------
    @abstractmethod
    async def lock(
        self, ledger_id: int, owner: str, *, needs_mark: bool, mark_version: int | None = None
    ) -> LedgerLock | None:
        """Take a ledger's lock for the life of this session. Never waits for another holder.

        Returns None if another process, or another task of this driver, holds the lock, or if `needs_mark` and the
        ledger is not marked (any more). `owner`: shown to operators; the host name, as Apache writes it.
        `mark_version`: version of the mark as listed; the mark is not read again. If it was changed or deleted since,
        `done` returns False.
        """

    @abstractmethod
    async def unlock(self, lock: LedgerLock) -> None:
        """Release a lock if it is still ours. Idempotent. Continues in the background if the store does not answer, or
        if this call is cancelled.
        """

    @abstractmethod
    def is_held(self, lock: LedgerLock) -> bool:
        """Report whether this driver has neither released the lock nor lost its session. Raises `ClientClosed`."""

    @abstractmethod
    async def done(self, lock: LedgerLock) -> bool:
        """Delete the mark of a repaired ledger, then release the lock, also if the deletion fails.

        False: the ledger was marked again meanwhile, or is no longer marked, or the lock was lost. The lock must have
        been taken with a mark.
        """

    @abstractmethod
    async def locks(self) -> dict[int, str]:
        """Return the locked ledgers, ascending, with the owner of each lock."""

    @abstractmethod
    async def locked_ids(self) -> list[int]:
        """Return the ids of locked ledgers, ascending, without reading the owners."""

    # -- the switch ----------------------------------------------------------------------------------------------
    @abstractmethod
    async def is_enabled(self) -> bool:
        """Report whether auto-recovery is enabled, that is, repairs ledgers without a command; the default is true."""

    @abstractmethod
    async def enable(self) -> bool:
        """Enable auto-recovery. False: it was enabled already."""

    @abstractmethod
    async def disable(self) -> bool:
        """Disable auto-recovery. False: it was disabled already."""

    @abstractmethod
    def watch_switch(self, callback: Callable[[], None]) -> Watch:
        """Call back soon after the watch begins, and soon after each change of the switch."""

    # -- the lost-bookie delay -----------------------------------------------------------------------------------
    @abstractmethod
    async def lost_bookie_delay_s(self) -> int | None:
        """Return the delay in seconds; None: it is not set. Raises `MetadataCorrupt`."""

    @abstractmethod
    async def set_lost_bookie_delay_s(self, delay_s: int) -> None:
        """Set the delay. Writing the stored value again requests an audit at once."""

    @abstractmethod
    async def init_lost_bookie_delay_s(self, delay_s: int) -> int:
        """Set the delay if it is not set; return the stored delay."""

    @abstractmethod
    def watch_lost_bookie_delay(self, callback: Callable[[], None]) -> Watch:
        """Call back soon after the watch begins, and soon after each write, also of an equal value."""

    # -- times of checks -----------------------------------------------------------------------------------------
    @abstractmethod
    async def checked_at_ms(self, kind: AuditKind) -> int | None:
        """Return when the check was completed last, wall clock; None: never."""

    @abstractmethod
    async def set_checked_at_ms(self, kind: AuditKind, at_ms: int) -> None:
        """Store when a check was completed. The last writer wins."""

    # -- the auditor ---------------------------------------------------------------------------------------------
    @abstractmethod
    async def campaign(self, bookie: BookieId, on_change: Callable[[], None]) -> Candidacy:
        """Become a candidate for auditor. The vote is stored when this returns. `on_change`: called after `is_leader`
        has changed.
        """

    @abstractmethod
    async def auditor(self) -> BookieId | None:
        """Return the current leader; None: there is no candidate."""

    @abstractmethod
    async def candidates(self) -> list[BookieId]:
        """Return all candidates for auditor, the leader first. These are the live participants of auto-recovery,
        because a vote ends with its session.
        """

    @abstractmethod
    async def queue_position(self) -> tuple[int, int]:
        """Return the position of this driver's vote, from 0, and the number of votes; (0, 1) without a vote.

        Every worker is also a candidate, so this divides work among workers without communication between them.
        """
