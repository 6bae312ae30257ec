"""The interface of a metadata store: ledgers, ids, registration, discovery, cookies, named records.

One abstract class, one conformance suite (`tests/conformance/test_metadata.py`), any number of drivers. Versions are
integers; versions of one key are totally ordered and strictly grow. "Linearizable" means that a successful operation
is visible to every later operation of any client. What auto-recovery needs (marks, locks, election) is an interface of
its own, `recovery_store`. Source: metadata 11; behaviour of single operations: metadata 5.1, 6 and 7.2.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from bookies.errors import InvalidArgument, LedgerNotFound, MetadataCorrupt
from bookies.metadata.interface.recovery_store import LedgerLock, RecoveryStore
from bookies.metadata.interface.request_counts import RequestCounts
from bookies.metadata.interface.watches import Watch
from bookies.model import BookieId, BookieInfo, BookieMode, LedgerMetadata
from bookies.runtime.tasks import all_of

RECORD_SIZE_MAX = (1 << 20) - (1 << 14)  # bytes; ZooKeeper refuses requests of 1 MiB and more, names included
RECORD_NAME_LENGTH_MAX = 255
READ_AT_ONCE = 64  # ledgers' records
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._")


@dataclass(frozen=True, slots=True)
class Versioned:
    """A ledger's record and its version in the store."""

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class BookieSet:
    """Bookies in one mode, sorted by id. `version` grows with each change."""

    bookies: tuple[BookieId, ...]
    version: int


class LedgerEvent(enum.Enum):
    CHANGED = "changed"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class LedgerAt:
    """In a transaction: the ledger's record has this version."""

    ledger_id: int
    version: int


@dataclass(frozen=True, slots=True)
class RecordAt:
    """In a transaction: the named record has this version; 0: there is none."""

    name: str
    version: int


@dataclass(frozen=True, slots=True)
class LedgerDeletion:
    """In a transaction: the ledger's record, which has this version, is deleted, and its id spent."""

    ledger_id: int
    version: int


@dataclass(frozen=True, slots=True)
class RecordWrite:
    """In a transaction: the named record, which has this version, gets new data; 0: it is created."""

    name: str
    data: bytes
    version: int


Step = LedgerAt | RecordAt | LedgerDeletion | RecordWrite


@dataclass(frozen=True, slots=True)
class GivenIds:
    """The ids that a store will not give to a new ledger: what moves with a cluster besides what can be seen.

    `next_id`: larger than every id handed out so far. `spent`: ids of deleted ledgers, as runs (first, last), ascending
    and not touching.
    """

    next_id: int
    spent: tuple[tuple[int, int], ...] = ()


TRANSACTION_STEPS_MAX = 4096


class MetadataDriver(ABC):
    """One client's session with a metadata store. All waiting calls accept cancellation.

    Raises from any call: `MetadataError` (retriable), `SessionExpired`, `ClientClosed` after `close`.
    """

    uri: str
    operations: RequestCounts  # asked of the store so far

    # -- the store -----------------------------------------------------------------------------------------------
    @abstractmethod
    async def open(self) -> None:
        """Begin the session. Raises `MetadataError` when the store cannot be reached, naming the way out."""

    @abstractmethod
    async def close(self) -> None:
        """End the session: registrations disappear, watches stop. Idempotent."""

    @abstractmethod
    async def initialize_cluster(self) -> str:
        """Create the cluster if there is none; return its instance id. Atomic; safe to call by several at once."""

    @abstractmethod
    async def instance_id(self) -> str | None:
        """The cluster's instance id, None when there is no cluster."""

    @property
    def layout(self) -> str:
        """How the store arranges its ledgers, in the words of its URIs; empty where there is one way only."""
        return ""

    # -- moving a cluster from store to store: `transfer.py` says in which order -----------------------------------
    @abstractmethod
    async def given_ids(self) -> GivenIds:
        """Which ids no new ledger gets. Changes nothing."""

    @abstractmethod
    async def restore_ids(self, ids: GivenIds) -> None:
        """Give none of these away, besides those of before. The first step of filling an empty store: makes, too,
        what has to be there before ledgers. Can be repeated. Raises `NotSupported` for ids that do not fit.
        """

    @abstractmethod
    async def restore_instance_id(self, instance_id: str) -> None:
        """The last step: from now on this is that cluster. Raises `MetadataError` if it is another one already."""

    # -- ledgers -------------------------------------------------------------------------------------------------
    @abstractmethod
    async def next_ledger_id(self) -> int:
        """An id never returned before in the life of the store, also after deletions and restarts; gaps allowed."""

    @abstractmethod
    async def create_ledger(self, metadata: LedgerMetadata) -> Versioned:
        """Exclusive create. A stored record with the same non-zero creator token is our own earlier attempt: success.

        A store that keeps no times puts the time of creation into the record (`stores_ctime`).
        Raises `LedgerExists`, also for every id that a deleted ledger had, chosen or handed out. Such an id can never
        be used again: bookies may hold the old entries for any length of time, also those that cannot be asked now and
        come back later, and the old writer, if nobody fenced it, goes on sending entries under this id with the same
        key. No question to the bookies could prove the contrary, so the store remembers; as runs of ids, so that this
        takes no more room than the ledgers that are left.
        """

    @abstractmethod
    async def read_ledger(self, ledger_id: int) -> Versioned:
        """Linearizable: after a conflict, newer than the version that failed. Raises `LedgerNotFound`."""

    async def read_ledgers(self, ledger_ids: Sequence[int]) -> list[Versioned | MetadataCorrupt | None]:
        """The records of these, in their order: as `read_ledger`, in as few requests as the store allows.

        None: there is no such ledger; an error: its record says nothing. At most `READ_AT_ONCE`.
        """
        return await all_of(map(self._read_or_none, ledger_ids))

    async def _read_or_none(self, ledger_id: int) -> Versioned | MetadataCorrupt | None:
        try:
            return await self.read_ledger(ledger_id)
        except LedgerNotFound:
            return None
        except MetadataCorrupt as error:
            return error

    @abstractmethod
    async def write_ledger(
        self, metadata: LedgerMetadata, expected_version: int, lock: LedgerLock | None = None
    ) -> Versioned:
        """Compare-and-swap. With the ledger's lock: only if that is held at the moment of the change, whatever this
        process believes: it may have slept, or the request have been on its way for long.

        Raises `VersionConflict`, `LedgerNotFound`, `SessionExpired` when the lock is lost.
        """

    @abstractmethod
    async def delete_ledger(self, ledger_id: int, expected_version: int | None = None) -> None:
        """A missing record counts as success. With a version: raises `VersionConflict` when it is another.

        In the same step the id is spent for ever: see `create_ledger`.
        """

    @abstractmethod
    def ledger_ids(self) -> AsyncIterator[Sequence[int]]:
        """Ranges of ids, ascending and disjoint. Complete for every id that exists during the whole call.

        Raises rather than end early.
        """

    @abstractmethod
    def watch_ledger(self, ledger_id: int, callback: Callable[[LedgerEvent], None]) -> Watch:
        """At least one call after each change or deletion; several changes may become one call."""

    # -- bookies -------------------------------------------------------------------------------------------------
    @abstractmethod
    async def register(self, bookie: BookieId, mode: BookieMode, info: BookieInfo) -> None:
        """Announce a bookie for as long as this session lives. Replaces its registration in the other mode.

        Waits up to one session timeout for a predecessor with the same id. Raises `MetadataError` when it stays.
        """

    @abstractmethod
    async def unregister(self, bookie: BookieId) -> None: ...

    @abstractmethod
    async def bookies(self, mode: BookieMode) -> BookieSet: ...

    async def modes(self) -> dict[BookieId, BookieMode]:
        """Every registered bookie, and its mode; while one changes it, the one it may be in: read-only."""
        return {bookie: mode for mode in BookieMode for bookie in (await self.bookies(mode)).bookies}

    @abstractmethod
    async def all_bookies(self) -> BookieSet:
        """Every bookie with a cookie, whether it runs or not."""

    @abstractmethod
    async def bookie_info(self, bookie: BookieId) -> BookieInfo | None:
        """What a registered bookie publishes; None when it is not registered."""

    @abstractmethod
    def watch_bookies(self, mode: BookieMode, callback: Callable[[BookieSet], None]) -> Watch:
        """Deliver the present set soon, then the latest after each change; never an older set after a newer."""

    @abstractmethod
    def on_session_expired(self, callback: Callable[[], None]) -> Watch:
        """Called once per lost session; registrations are gone and have to be made again."""

    # -- cookies -------------------------------------------------------------------------------------------------
    @abstractmethod
    async def create_cookie(self, bookie: BookieId, data: bytes) -> int:
        """Exclusive create; its version. Raises `CookieExists`."""

    @abstractmethod
    async def read_cookie(self, bookie: BookieId) -> tuple[bytes, int]:
        """Raises `CookieNotFound`."""

    @abstractmethod
    async def write_cookie(self, bookie: BookieId, data: bytes, expected_version: int) -> int:
        """Compare-and-swap. Raises `VersionConflict`, `CookieNotFound`."""

    @abstractmethod
    async def delete_cookie(self, bookie: BookieId, expected_version: int) -> None:
        """Raises `VersionConflict`, `CookieNotFound`."""

    # -- named records: what is kept beside the ledgers, for example the list of ledgers that makes a log -----------
    @abstractmethod
    async def create_record(self, name: str, data: bytes) -> int:
        """Exclusive create; its version. `name`, `data`: see `check_record`. Raises `RecordExists`, `InvalidArgument`.

        Nobody can tell a creation whose reply was lost from somebody else's: put something of your own into the data.
        """

    @abstractmethod
    async def read_record(self, name: str) -> tuple[bytes, int]:
        """Data and version. Linearizable, as `read_ledger`. Raises `RecordNotFound`, `InvalidArgument`."""

    @abstractmethod
    async def write_record(self, name: str, data: bytes, expected_version: int) -> int:
        """Compare-and-swap; the new version. Raises `VersionConflict`, `RecordNotFound`, `InvalidArgument`."""

    @abstractmethod
    async def delete_record(self, name: str, expected_version: int) -> None:
        """Raises `VersionConflict`, `RecordNotFound`, `InvalidArgument`. A record made later has a later version."""

    @abstractmethod
    async def record_names(self, prefix: str) -> Sequence[str]:
        """All names that begin with `prefix`, sorted. Complete for every record that exists during the whole call."""

    # -- several at once -----------------------------------------------------------------------------------------
    @abstractmethod
    async def transact(self, steps: Sequence[Step]) -> int:
        """All of the steps, or none: at one moment every version is as said, and everything is changed.

        The version of every record it writes. No ledger and no record may be changed by two steps. A transaction that
        changes nothing is allowed. Raises `VersionConflict`, `LedgerNotFound`, `RecordNotFound`, `RecordExists` (and
        nothing was done), `InvalidArgument` (more than `TRANSACTION_STEPS_MAX` steps, or see `check_record`). Nobody
        can tell a transaction whose reply was lost from somebody else's: read what it was meant to write.
        """

    @abstractmethod
    def watch_record(self, name: str, version: int, callback: Callable[[], None]) -> Watch:
        """At least one call after the record has another version than `version`, or none; several changes may be one.

        `version`: what the caller has read; 0 for a record that is missing.
        """

    # -- auto-recovery -------------------------------------------------------------------------------------------
    @property
    @abstractmethod
    def recovery(self) -> RecoveryStore:
        """Marks, locks, the switch, the delay, the election; in this session."""


def check_record(name: str, data: bytes = b"") -> None:
    """What every store can hold: names of parts joined by `/`, of letters, digits, `-`, `.` and `_`; data up to a
    limit. Raises `InvalidArgument`.
    """
    parts = name.split("/")
    if len(name) > RECORD_NAME_LENGTH_MAX or any(
        not part or part in (".", "..") or not _NAME_CHARACTERS.issuperset(part) for part in parts
    ):
        raise InvalidArgument(
            f"{name!r} is no name of a record: at most {RECORD_NAME_LENGTH_MAX} characters, letters, digits, - . _ , "
            "in parts joined by /"
        )
    if len(data) > RECORD_SIZE_MAX:
        raise InvalidArgument(
            f"record {name} would have {len(data):,} bytes; a metadata store takes {RECORD_SIZE_MAX:,} at most"
        )


def check_steps(steps: Sequence[Step]) -> None:
    """What every store can do at once. Raises `InvalidArgument`."""
    if len(steps) > TRANSACTION_STEPS_MAX:
        raise InvalidArgument(
            f"a transaction of {len(steps):,} steps; a metadata store takes {TRANSACTION_STEPS_MAX:,}"
        )
    changed: set[int | str] = set()
    for step in steps:
        if isinstance(step, RecordWrite):
            check_record(step.name, step.data)
        elif isinstance(step, RecordAt):
            check_record(step.name)
        if isinstance(step, RecordWrite | LedgerDeletion):
            key = step.name if isinstance(step, RecordWrite) else step.ledger_id
            if key in changed:
                raise InvalidArgument(f"a transaction that changes {key} twice")
            changed.add(key)
