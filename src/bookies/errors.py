"""Every exception of the package, and the one table between wire status and exception.

A class states what the caller can do; fields name the object. Statuses travel only on the wire: `Status` is the
version-independent enumeration, `wire/v2.py` and `wire/v3.py` hold the numbers.

Source: wire-protocol 2.5 and 6.1.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence


class Status(enum.Enum):
    """Outcome of one request at a bookie, independent of the protocol version. Source: wire-protocol 2.5."""

    __hash__ = object.__hash__  # `Enum`'s own is a Python function, called several times for a message of v3

    OK = "OK"
    NO_LEDGER = "NO_LEDGER"
    NO_ENTRY = "NO_ENTRY"
    BAD_REQUEST = "BAD_REQUEST"
    IO_ERROR = "IO_ERROR"
    UNAUTHORIZED = "UNAUTHORIZED"
    BAD_VERSION = "BAD_VERSION"
    FENCED = "FENCED"
    READ_ONLY = "READ_ONLY"
    TOO_MANY_REQUESTS = "TOO_MANY_REQUESTS"
    UNKNOWN_LEDGER_STATE = "UNKNOWN_LEDGER_STATE"


class BookKeeperError(Exception):
    """Base of all errors. `code` is the number Apache's clients report (client-protocol 6.3)."""

    code = -999
    retriable = False

    def __init__(
        self,
        message: str = "",
        *,
        ledger_id: int | None = None,
        entry_id: int | None = None,
        bookie: str | None = None,
    ) -> None:
        super().__init__(message or type(self).__name__)
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.bookie = bookie

    @property
    def message(self) -> str:
        return str(self.args[0])

    def __str__(self) -> str:
        """Return the message, followed by the ledger, entry and bookie unless the message already contains them."""
        spaced = f" {self.message} ".replace("(", " ").replace(")", " ").replace(",", " ").replace(": ", " ")
        facts = [
            f"{name} {value}"
            for name, value in (("ledger", self.ledger_id), ("entry", self.entry_id), ("bookie", self.bookie))
            if value is not None and f" {name} {value} " not in spaced
        ]
        return self.message + (f" ({', '.join(facts)})" if facts else "")


class LedgerError(BookKeeperError):
    """An error about one ledger as a whole."""


class LedgerNotFound(LedgerError):
    """The metadata store has no record of the ledger."""

    code = -25


class LedgerUnknownToBookie(LedgerError):
    """This bookie does not know the ledger; a definite negative answer."""

    code = -7


class LedgerExists(LedgerError):
    """The explicit ledger id is taken."""

    code = -20


class LedgerFenced(LedgerError):
    """Another client is recovering, or has recovered, the ledger; unacknowledged entries may or may not be in it."""

    code = -101


class LedgerClosed(LedgerError):
    """The handle is closed or the ledger is sealed."""

    code = -11


class RecoveryFailed(LedgerError):
    """The end of the ledger could not be decided; no entry was lost, repeat when more bookies answer."""

    code = -10
    retriable = True


class FragmentNotFinished(LedgerError):
    """The fragment can still receive entries, so it must not be copied; seal or recover the ledger first."""

    code = -103


class LedgerLocked(LedgerError):
    """Another process has the ledger's lock, and may be copying it; repeat when that is done.

    `owner`: the lock's owner, for operators; None: not known.
    """

    code = -103
    retriable = True

    def __init__(self, message: str = "", *, ledger_id: int | None = None, owner: str | None = None) -> None:
        super().__init__(message, ledger_id=ledger_id)
        self.owner = owner


class ReplicationFailed(LedgerError):
    """Entries could not be copied to other bookies; the ledger's record is unchanged for them. Repeat it.

    `causes`: one error for each fragment that failed. Other fragments were copied: `moves`, each a `Move`.
    """

    code = -10
    retriable = True

    def __init__(
        self,
        message: str = "",
        *,
        causes: Sequence[BaseException] = (),
        moves: Sequence[object] = (),
        ledger_id: int | None = None,
        entry_id: int | None = None,
        bookie: str | None = None,
    ) -> None:
        super().__init__(message, ledger_id=ledger_id, entry_id=entry_id, bookie=bookie)
        self.causes = tuple(causes)
        self.moves = tuple(moves)


class EntryError(BookKeeperError):
    """An error about one entry."""


class EntryNotFound(EntryError):
    """Definite: the bookie does not hold the entry, and never acknowledged it."""

    code = -13


class DigestMismatch(EntryError):
    """The entry's digest, ledger id or entry id does not verify."""

    code = -5


class ReadFailed(EntryError):
    """A bookie could not read the entry: an I/O error. The bookie may or may not hold it."""

    code = -1
    retriable = True


class NotConfirmed(ReadFailed):
    """The entry is beyond the last add confirmed, which `last_add_confirmed` holds; no bookie was asked for it."""

    retriable = False

    def __init__(
        self,
        message: str = "",
        *,
        last_add_confirmed: int = -1,
        ledger_id: int | None = None,
        entry_id: int | None = None,
        bookie: str | None = None,
    ) -> None:
        super().__init__(message, ledger_id=ledger_id, entry_id=entry_id, bookie=bookie)
        self.last_add_confirmed = last_add_confirmed


class EntryExists(EntryError):
    """The entry id was used before: the entry is pending or delivered. Nothing was sent."""

    code = -22


class WriteFailed(EntryError):
    """A bookie could not store the entry."""

    code = -12
    retriable = True


class DataUnknown(EntryError):
    """The bookie cannot determine whether it should hold the data (limbo); never a negative answer."""

    code = -108
    retriable = True


class QuorumError(BookKeeperError):
    """Too few bookies succeeded. `causes`: the answer of each bookie."""

    def __init__(
        self,
        message: str = "",
        *,
        causes: Mapping[str, BaseException] | None = None,
        ledger_id: int | None = None,
        entry_id: int | None = None,
        bookie: str | None = None,
    ) -> None:
        super().__init__(message, ledger_id=ledger_id, entry_id=entry_id, bookie=bookie)
        self.causes = dict(causes or {})


class NotEnoughBookies(QuorumError):
    """Fewer writable bookies than the ensemble needs, or none to replace one that failed."""

    code = -6
    retriable = True


class AckQuorumTimeout(QuorumError):
    """No ack quorum in time; the entry may or may not be stored."""

    code = -21
    retriable = True


class BookieError(BookKeeperError):
    """An error about one bookie."""


class BookieUnreachable(BookieError):
    """No connection. `was_connected`: it was lost while the request was in progress."""

    code = -8
    retriable = True
    was_connected = False


class BookieTimeout(BookieUnreachable):
    """No answer in time; the request may or may not have taken effect."""

    code = -23


class TlsFailed(BookieUnreachable):
    """The connection could not be encrypted: the peer has no TLS, or one side does not accept the other's
    certificate."""

    code = -24


class BookieReadOnly(BookieError):
    """The bookie accepts no new entries, because its disks are full or an operator made it read-only; it serves
    reads."""

    code = -104


class BookieBusy(BookieError):
    """A limit in bytes is reached, the bookie's or the client's; no entry was stored. Wait and repeat."""

    code = -105
    retriable = True


class Unauthorized(BookieError):
    """Wrong password or key, or authentication refused."""

    code = -102


class MetadataError(BookKeeperError):
    """The metadata store failed."""

    code = -18
    retriable = True


class VersionConflict(MetadataError):
    """A compare-and-swap met another version, or a close met another end."""

    code = -17


class SessionExpired(MetadataError):
    """The session with the metadata store was lost; operations in progress may or may not have happened."""

    code = -9


class RegisteredElsewhere(MetadataError):
    """Another process keeps the bookie registered for longer than a session that has ended would."""


class MetadataCorrupt(MetadataError):
    """A record of the metadata store cannot be read. `version`: of a ledger's record in the store."""

    code = -107
    retriable = False
    version: int | None = None


class NoCluster(MetadataError):
    """The metadata URI leads to no cluster, or to no store."""

    retriable = False


class CookieNotFound(MetadataError):
    """The metadata store has no cookie of this bookie."""

    retriable = False


class CookieExists(MetadataError):
    """The metadata store has a cookie of this bookie already."""

    retriable = False


class RecordNotFound(MetadataError):
    """The metadata store has no record of this name."""

    retriable = False


class RecordExists(MetadataError):
    """The metadata store has a record of this name already."""

    retriable = False


class LogError(BookKeeperError):
    """An error about one log, a list of ledgers."""


class LogNotFound(LogError):
    """There is no log of this name, or it is being deleted."""

    code = -25


class LogExists(LogError):
    """The name of the log is taken."""

    code = -20


class LogFenced(LogError):
    """Another process leads the log now; unacknowledged entries may or may not be in it."""

    code = -101


class LogTruncated(LogError):
    """The position is not in the log any more; what is left begins later."""

    code = -13


class LogInUse(LogError):
    """A leader writes the last ledger of the log, so no ledger can be appended to the list until it is sealed."""

    code = -101


class TransactionRefused(LogError):
    """The transaction was not committed, and never will be: its ledgers are deleted, or its name is taken."""

    code = -17


class CursorBehind(LogError):
    """A truncation would remove entries that a named cursor of the log has not reached."""

    code = -100


class CursorMoved(LogError):
    """The cursor is not at the position that its consumer expects: another one has moved it."""

    code = -17


class WrongExpectedLast(LogError):
    """The last entry of the log is not the one that a conditional append expects; nothing was appended.

    `last`: ledger and entry of the last one; (-1, -1): the log has no entry.
    """

    code = -17

    def __init__(self, message: str = "", *, last: tuple[int, int] = (-1, -1)) -> None:
        super().__init__(message)
        self.last = last


class SequenceGap(LogError):
    """A writer's number does not follow its last one. `expected`: the number that does."""

    code = -100

    def __init__(self, message: str = "", *, expected: int = 0) -> None:
        super().__init__(message)
        self.expected = expected


class LogEnded(LogError):
    """The log has an end-of-stream record: no record can follow it."""

    code = 512


class TxidOutOfOrder(LogError):
    """The transaction id is less than that of an earlier record of the log."""

    code = 513


class LogRecordCorrupt(LogError):
    """An entry of the log does not consist of records. `slot`: of the damaged record; None: the whole entry is."""

    code = 520
    slot: int | None = None


class SchemaError(BookKeeperError):
    """An error about the schema of payloads."""


class SchemaNotFound(SchemaError):
    """Neither the log nor the schema registry has a schema of this id or name."""

    code = -13


class SchemaIncompatible(SchemaError):
    """One schema cannot read what was written with another one, and the compatibility of the log demands it."""

    code = -100


class SchemaRegistryFailed(SchemaError):
    """The schema registry did not answer, or not as a registry does."""

    code = -23
    retriable = True


class LeaseError(BookKeeperError):
    """An error about a lock, an election, or the turn of a leader or a consumer."""


class LeaseHeld(LeaseError):
    """Another live process has the lease, and the caller does not want to wait, or too many others wait."""

    retriable = True


class LeaseLost(LeaseError):
    """The lease was not renewed in time, so another process may have it now."""


class ProtocolError(BookKeeperError):
    """A peer violates the protocol."""

    code = -16


class LocalProtocolError(ProtocolError):
    """A bug in this package: the code requested something that the protocol forbids."""


class RemoteProtocolError(ProtocolError):
    """Bytes from the peer that no correct peer sends; the connection is closed."""


class StorageError(BookKeeperError):
    """An error of a bookie's own disks."""


class CorruptRecord(StorageError):
    """Bytes on disk differ from what was written. The error names the place."""

    def __init__(self, message: str = "", *, path: str, offset: int, ledger_id: int | None = None) -> None:
        super().__init__(f"{path} at byte {offset:,}: {message}", ledger_id=ledger_id)
        self.path = path
        self.offset = offset


class CookieMismatch(StorageError):
    """The directories do not belong to this bookie, or one of them is missing or was wiped."""


class DirectoryInUse(StorageError):
    """Another process has locked the directory."""


class DiskFull(StorageError):
    """The disk is full; no part of the write counts."""


class ConfigError(BookKeeperError):
    """Invalid setting. The message names the setting, the value, and the accepted values."""

    code = -14


class InvalidArgument(BookKeeperError, ValueError):
    """An argument out of its documented range."""

    code = -14


class ClientClosed(BookKeeperError):
    """The client was closed; nothing was sent."""

    code = -19


class NotSupported(BookKeeperError):
    """Known to the protocol, not offered here; the message names the alternative."""

    code = -100


# Status <-> exception. EIO and EBADREQ depend on the request: a failed add is a WriteFailed, a failed read a
# ReadFailed (wire-protocol 6.1, "operation default").
ERROR_OF_STATUS: Mapping[Status, type[BookKeeperError]] = {
    Status.NO_LEDGER: LedgerUnknownToBookie,
    Status.NO_ENTRY: EntryNotFound,
    Status.UNAUTHORIZED: Unauthorized,
    Status.BAD_VERSION: ProtocolError,
    Status.FENCED: LedgerFenced,
    Status.READ_ONLY: BookieReadOnly,
    Status.TOO_MANY_REQUESTS: BookieBusy,
    Status.UNKNOWN_LEDGER_STATE: DataUnknown,
}


def error_of_status(
    status: Status,
    *,
    is_write: bool,
    ledger_id: int | None = None,
    entry_id: int | None = None,
    bookie: str | None = None,
) -> BookKeeperError:
    """Return the exception that a client raises for a status other than OK."""
    assert status is not Status.OK
    error_class = ERROR_OF_STATUS.get(status, WriteFailed if is_write else ReadFailed)
    return error_class(f"bookie answered {status.value}", ledger_id=ledger_id, entry_id=entry_id, bookie=bookie)


def status_of_error(error: BaseException) -> Status:
    """Return the status that a bookie answers for an exception raised while serving a request.

    R-3: an exception that is not a definite statement becomes IO_ERROR, never a negative answer.
    """
    for status, error_class in ERROR_OF_STATUS.items():
        if type(error) is error_class:
            return status
    if isinstance(error, InvalidArgument | LocalProtocolError | RemoteProtocolError):
        return Status.BAD_REQUEST
    return Status.IO_ERROR
