"""The interface of a metadata store: ledgers, ids, registration, discovery, cookies, named records.

One abstract class, one conformance suite (`tests/conformance/test_metadata.py`), any number of drivers. Versions are
integers; versions of one key are totally ordered and strictly grow. "Linearizable" means that a successful operation
is visible to every later operation of any client. Auto-recovery's state (marks, locks, election) has an interface of
its own, `recovery_store`. Source: metadata 11; behaviour of single operations: metadata 5.1, 6 and 7.2.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence

from msgspec import Struct

from bookies.errors import InvalidArgument, LedgerNotFound, MetadataCorrupt
from bookies.metadata.interface.recovery_store import LedgerLock, RecoveryStore
from bookies.metadata.interface.request_counts import RequestCounts
from bookies.metadata.interface.watches import Watch
from bookies.model import NAME_CHARACTERS, BookieId, BookieInfo, BookieMode, LedgerMetadata
from bookies.runtime.tasks import all_of

RECORD_SIZE_MAX = (1 << 20) - (1 << 14)  # bytes; ZooKeeper refuses requests of 1 MiB and more, names included
RECORD_NAME_LENGTH_MAX = 255
READ_AT_ONCE = 64  # ledgers' records


class Versioned(Struct, frozen=True):
    """A ledger's record and its version in the store."""

    metadata: LedgerMetadata
    version: int


class BookieSet(Struct, frozen=True):
    """A set of bookies, sorted by id. `version`: grows with each change of the set."""

    bookies: tuple[BookieId, ...]
    version: int


class LedgerEvent(enum.Enum):
    """A change of a ledger's record that a watch reports."""

    CHANGED = "changed"
    DELETED = "deleted"


class LedgerAt(Struct, frozen=True):
    """Transaction step: check that the ledger's record has this version."""

    ledger_id: int
    version: int


class RecordAt(Struct, frozen=True):
    """Transaction step: check that the named record has this version; 0: that it is missing."""

    name: str
    version: int


class LedgerDeletion(Struct, frozen=True):
    """Transaction step: delete the ledger's record, which must have this version, and spend its id."""

    ledger_id: int
    version: int


class RecordWrite(Struct, frozen=True):
    """Transaction step: write the named record, which must have this version; 0: create it."""

    name: str
    data: bytes
    version: int


Step = LedgerAt | RecordAt | LedgerDeletion | RecordWrite


class GivenIds(Struct, frozen=True):
    """Ledger ids that a store never assigns again. They move with a cluster, like its records.

    `next_id`: larger than every id handed out so far. `spent`: ids of deleted ledgers, as runs (first, last), ascending
    and not adjacent.
    """

    next_id: int
    spent: tuple[tuple[int, int], ...] = ()


TRANSACTION_STEPS_MAX = 4096


class MetadataDriver(ABC):
    """One client's session with a metadata store. All waiting calls accept cancellation.

    Raises from any call: `MetadataError` (retriable), `SessionExpired`, `ClientClosed` after `close`.
    """

    uri: str
    operations: RequestCounts  # requests to the store so far

    # -- the store -----------------------------------------------------------------------------------------------
    @abstractmethod
    async def open(self) -> None:
        """Begin the session. Raises `MetadataError` if the store cannot be reached; the message names the next step."""

    @abstractmethod
    async def close(self) -> None:
        """End the session: registrations disappear, watches stop. Idempotent."""

    @abstractmethod
    async def initialize_cluster(self) -> str:
        """Create the cluster if there is none; return its instance id. Atomic; safe for concurrent callers."""

    @abstractmethod
    async def instance_id(self) -> str | None:
        """Return the cluster's instance id; None: there is no cluster."""

    @property
    def layout(self) -> str:
        """Name of the ledger layout, as in metadata URIs; empty for a store with a single layout."""
        return ""

    # -- moving a cluster from store to store, in the order that `transfer.py` describes ----------------------------
    @abstractmethod
    async def given_ids(self) -> GivenIds:
        """Return the ids that no new ledger gets. Changes nothing."""

    @abstractmethod
    async def restore_ids(self, ids: GivenIds) -> None:
        """Exclude these ids, in addition to those excluded already, from new ledgers. Repeatable.

        The first step of filling an empty store; also creates what must exist before ledgers. Raises `NotSupported` for
        ids that the store cannot exclude.
        """

    @abstractmethod
    async def restore_instance_id(self, instance_id: str) -> None:
        """Write the instance id, which makes the store this cluster: the last step of filling it.

        Raises `MetadataError` if the store belongs to another cluster.
        """

    @abstractmethod
    async def remove_cluster(self, instance_id: str) -> None:
        """Delete everything that this cluster has in the store, its ids handed out included.

        The instance id is deleted first, or in the same step. So no bookie starts on a half removed cluster, and none
        collects the data of ledgers whose records are deleted. Repeat the call after an interruption. Raises
        `MetadataError` if the store belongs to another cluster or holds what belongs to none, with nothing changed.
        """

    # -- ledgers -------------------------------------------------------------------------------------------------
    @abstractmethod
    async def next_ledger_id(self) -> int:
        """Return an id never returned before in the life of the store, also after deletions and restarts; gaps are
        allowed.
        """

    @abstractmethod
    async def create_ledger(self, metadata: LedgerMetadata) -> Versioned:
        """Create a record exclusively. A stored record with the same non-zero creator token is our own earlier attempt,
        and counts as success.

        A store that keeps no times puts the time of creation into the record (`stores_ctime`).
        Raises `LedgerExists`, also for every id that a deleted ledger had, whether chosen by a client or handed out.
        Such an id can never be used again. Bookies may hold the old entries for any length of time, also bookies that
        are unreachable now and return later. The old writer, unless it was fenced, continues to send entries under this
        id with the same key. Asking the bookies cannot rule this out, so the store remembers the ids. It stores them
        as runs, which need no more space than the remaining ledgers.
        """

    @abstractmethod
    async def read_ledger(self, ledger_id: int) -> Versioned:
        """Read a record. Linearizable: after a conflict, newer than the failed version. Raises `LedgerNotFound`."""

    async def read_ledgers(self, ledger_ids: Sequence[int]) -> list[Versioned | MetadataCorrupt | None]:
        """Read several records, in the order of the ids, in as few requests as the store allows; see `read_ledger`.

        None: there is no such ledger; an error: its record cannot be parsed. At most `READ_AT_ONCE` ids.
        """
        return await all_of(map(self._read_or_none, ledger_ids))

    async def current_ledgers(
        self, ledger_ids: Sequence[int], known: Sequence[Versioned] = ()
    ) -> list[Versioned | MetadataCorrupt | None]:
        """Read several records as `read_ledgers` does, each as it is at some moment during the call.

        A majority of the store's servers takes part, so the answer of a server that lags behind, or does not know yet
        that it is no longer the leader, does not count (metadata 11.1). Costs more than `read_ledgers`. `known`: the
        caller's copies, one for each id, or none. A store may check a copy's version for less than it reads a record.
        """
        return await self.read_ledgers(ledger_ids)

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
        """Write a record by compare-and-swap. With `lock`: only if the store holds the ledger's lock for this session
        at the moment of the change. The process may have been suspended, or the request delayed, so the store checks.

        Raises `VersionConflict`, `LedgerNotFound`, `SessionExpired` if the lock is lost.
        """

    @abstractmethod
    async def delete_ledger(self, ledger_id: int, expected_version: int | None = None) -> None:
        """Delete a record; a missing one counts as success. Raises `VersionConflict` if the record has another version.

        The same step spends the id for ever: see `create_ledger`.
        """

    @abstractmethod
    async def unspend_id(self, ledger_id: int) -> None:
        """Allow `create_ledger` for the id of a deleted ledger. Only to create the record of that same ledger again:
        bookies may hold its entries. A client that knows the old record cannot change the new one. Repeatable. Raises
        `NotSupported` if the store cannot tell them apart.
        """

    @abstractmethod
    def ledger_ids(self, after: int = -1) -> AsyncIterator[Sequence[int]]:
        """Yield all ledger ids above `after` in ranges, ascending and disjoint. Every id that exists during the whole
        call is included. Raises rather than end early.
        """

    @abstractmethod
    def watch_ledger(self, ledger_id: int, callback: Callable[[LedgerEvent], None]) -> Watch:
        """Call back at least once after each change or deletion; several changes may become one call."""

    # -- bookies -------------------------------------------------------------------------------------------------
    @abstractmethod
    async def register(self, bookie: BookieId, mode: BookieMode, info: BookieInfo) -> None:
        """Register a bookie for the life of this session. Replaces its registration in the other mode.

        Waits up to one session timeout for a predecessor with the same id. Raises `MetadataError` if that stays.
        """

    @abstractmethod
    async def unregister(self, bookie: BookieId) -> None: ...

    @abstractmethod
    async def bookies(self, mode: BookieMode) -> BookieSet: ...

    async def modes(self) -> dict[BookieId, BookieMode]:
        """Return every registered bookie and its mode. A bookie that changes its mode meanwhile counts as read-only."""
        return {bookie: mode for mode in BookieMode for bookie in (await self.bookies(mode)).bookies}

    @abstractmethod
    async def all_bookies(self) -> BookieSet:
        """Return every bookie with a cookie, running or not."""

    @abstractmethod
    async def bookie_info(self, bookie: BookieId) -> BookieInfo | None:
        """Return the information that a bookie publishes; None: it is not registered."""

    @abstractmethod
    def watch_bookies(self, mode: BookieMode, callback: Callable[[BookieSet], None]) -> Watch:
        """Deliver the present set soon, then the latest after each change; never an older set after a newer."""

    @abstractmethod
    def on_session_expired(self, callback: Callable[[], None]) -> Watch:
        """Call back once per lost session. Its registrations have ended; the owner has to register again."""

    # -- cookies -------------------------------------------------------------------------------------------------
    @abstractmethod
    async def create_cookie(self, bookie: BookieId, data: bytes) -> int:
        """Create a cookie exclusively; return its version. Raises `CookieExists`."""

    @abstractmethod
    async def read_cookie(self, bookie: BookieId) -> tuple[bytes, int]:
        """Return a cookie's data and version. Raises `CookieNotFound`."""

    @abstractmethod
    async def write_cookie(self, bookie: BookieId, data: bytes, expected_version: int) -> int:
        """Write by compare-and-swap; return the new version. Raises `VersionConflict`, `CookieNotFound`."""

    @abstractmethod
    async def delete_cookie(self, bookie: BookieId, expected_version: int) -> None:
        """Delete a cookie that has this version. Raises `VersionConflict`, `CookieNotFound`."""

    # -- named records beside the ledgers, for example the list of ledgers that forms a log --------------------------
    @abstractmethod
    async def create_record(self, name: str, data: bytes) -> int:
        """Create a record exclusively; return its version. `name`, `data`: see `check_record`.

        If the reply is lost, the caller cannot distinguish its record from another client's: put a unique token into
        the data. Raises `RecordExists`, `InvalidArgument`.
        """

    @abstractmethod
    async def read_record(self, name: str) -> tuple[bytes, int]:
        """Return data and version. Linearizable, like `read_ledger`. Raises `RecordNotFound`, `InvalidArgument`."""

    @abstractmethod
    async def write_record(self, name: str, data: bytes, expected_version: int) -> int:
        """Write by compare-and-swap; return the new version.

        Raises `VersionConflict`, `RecordNotFound`, `InvalidArgument`.
        """

    @abstractmethod
    async def delete_record(self, name: str, expected_version: int) -> None:
        """Delete a record that has this version. If the record is created again, its version is later.

        Raises `VersionConflict`, `RecordNotFound`, `InvalidArgument`.
        """

    @abstractmethod
    async def record_names(self, prefix: str) -> Sequence[str]:
        """Return all names that begin with `prefix`, sorted. Every record that exists during the whole call is
        included.
        """

    # -- transactions --------------------------------------------------------------------------------------------
    @abstractmethod
    async def transact(self, steps: Sequence[Step]) -> int:
        """Carry out all steps atomically, or none: every expected version holds at the moment of the changes.

        Returns the version of every record that it writes. No ledger and no record may be changed by two steps. A
        transaction without changes is allowed. If the reply is lost, the caller cannot distinguish its transaction
        from another client's: read the records that it was meant to write.

        Raises `VersionConflict`, `LedgerNotFound`, `RecordNotFound`, `RecordExists` (nothing was changed),
        `InvalidArgument` (more than `TRANSACTION_STEPS_MAX` steps, or see `check_record`).
        """

    @abstractmethod
    def watch_record(self, name: str, version: int, callback: Callable[[], None]) -> Watch:
        """Call back at least once after the record has a version other than `version`, or is missing; several changes
        may become one call.

        `version`: the one that the caller has read; 0 for a missing record.
        """

    # -- auto-recovery -------------------------------------------------------------------------------------------
    @property
    @abstractmethod
    def recovery(self) -> RecoveryStore:
        """Auto-recovery's state, accessed in this session."""


def check_record(name: str, data: bytes = b"") -> None:
    """Check that every store can hold the record. Raises `InvalidArgument`.

    `name`: parts joined by `/`, of letters, digits, `-`, `.` and `_`; at most `RECORD_NAME_LENGTH_MAX` characters.
    `data`: at most `RECORD_SIZE_MAX` bytes.
    """
    parts = name.split("/")
    if len(name) > RECORD_NAME_LENGTH_MAX or any(
        not part or part in (".", "..") or not NAME_CHARACTERS.issuperset(part) for part in parts
    ):
        raise InvalidArgument(
            f"{name!r} is not a record name: use at most {RECORD_NAME_LENGTH_MAX} characters, letters, digits, - . _ , "
            "in parts joined by /"
        )
    if len(data) > RECORD_SIZE_MAX:
        raise InvalidArgument(
            f"record {name} would have {len(data):,} bytes; a metadata store accepts at most {RECORD_SIZE_MAX:,}"
        )


def check_steps(steps: Sequence[Step]) -> None:
    """Check that every store can carry out the transaction. Raises `InvalidArgument`."""
    if len(steps) > TRANSACTION_STEPS_MAX:
        raise InvalidArgument(
            f"a transaction has {len(steps):,} steps; a metadata store accepts at most {TRANSACTION_STEPS_MAX:,}"
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
                raise InvalidArgument(f"a transaction changes {key} twice; combine the two steps")
            changed.add(key)
