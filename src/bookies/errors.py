"""Every exception of the package, and the one table between wire status and exception.

A class says what the caller can do about it; fields say what it is about. Statuses travel only on the wire:
`Status` is the version-independent enumeration, `wire/v2.py` and `wire/v3.py` hold the numbers.

Source: wire-protocol 2.5 and 6.1, style 5.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence


class Status(enum.Enum):
    """Outcome of one request at a bookie, independent of the protocol version. Source: wire-protocol 2.5."""

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
        """The message and what it is about, as far as the message, perhaps made of another's, does not say so."""
        said = f" {self.message} ".replace("(", " ").replace(")", " ").replace(",", " ").replace(": ", " ")
        facts = [
            f"{name} {value}"
            for name, value in (("ledger", self.ledger_id), ("entry", self.entry_id), ("bookie", self.bookie))
            if value is not None and f" {name} {value} " not in said
        ]
        return self.message + (f" ({', '.join(facts)})" if facts else "")


class LedgerError(BookKeeperError):
    """Something about one ledger as a whole."""


class LedgerNotFound(LedgerError):
    """The metadata store has no record of the ledger."""

    code = -25


class LedgerUnknownToBookie(LedgerError):
    """This bookie has never heard of the ledger; a definite negative answer."""

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
    """The end of the ledger could not be decided; nothing was lost, repeat when more bookies answer."""

    code = -10
    retriable = True


class FragmentNotFinished(LedgerError):
    """The fragment can still receive entries, so it must not be copied; seal or recover the ledger first."""

    code = -103


class LedgerLocked(LedgerError):
    """Somebody else has the ledger's lock, and may be copying it; repeat it when that is done.

    `owner`: who, for people; None: not known.
    """

    code = -103
    retriable = True

    def __init__(self, message: str = "", *, ledger_id: int | None = None, owner: str | None = None) -> None:
        super().__init__(message, ledger_id=ledger_id)
        self.owner = owner


class ReplicationFailed(LedgerError):
    """Entries could not be copied to other bookies; what the record says is still true. Repeat it.

    `causes`: one error for each fragment that failed; what else was asked for is done: `moves`, each a `Move`.
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
    """Something about one entry."""


class EntryNotFound(EntryError):
    """Definite: whoever answered does not hold the entry, and never acknowledged it."""

    code = -13


class DigestMismatch(EntryError):
    """The entry's digest, ledger id or entry id does not verify."""

    code = -5


class ReadFailed(EntryError):
    """A bookie could not read the entry: an I/O error, which says nothing about whether it holds it."""

    code = -1
    retriable = True


class NotConfirmed(ReadFailed):
    """The entry is beyond the last add confirmed, which `last_add_confirmed` says; no bookie was asked for it."""

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
    """The bookie cannot tell whether it should hold the data (limbo); never a negative answer."""

    code = -108
    retriable = True


class QuorumError(BookKeeperError):
    """Not enough bookies did their part. `causes`: what each bookie answered."""

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
    """Something about one bookie."""


class BookieUnreachable(BookieError):
    """No connection. `was_connected`: there was one, and it was lost while the request was under way."""

    code = -8
    retriable = True
    was_connected = False


class BookieTimeout(BookieUnreachable):
    """No answer in time; the request may or may not have taken effect."""

    code = -23


class TlsFailed(BookieUnreachable):
    """The connection could not be encrypted: no TLS there, or a certificate that one of the two does not accept."""

    code = -24


class BookieReadOnly(BookieError):
    """The bookie takes no new entries, for want of room; it serves reads."""

    code = -104


class BookieBusy(BookieError):
    """A limit in bytes is reached, the bookie's or the client's; nothing was stored. Wait and repeat."""

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
    """The session with the metadata store was lost; what was under way may or may not have happened."""

    code = -9


class MetadataCorrupt(MetadataError):
    """A record of the metadata store cannot be read."""

    code = -107
    retriable = False


class NoCluster(MetadataError):
    """There is no cluster, or not even a store, where the metadata URI says."""

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
    """Something about one log, a list of ledgers."""


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
    """A leader writes the last ledger of the log, so that nothing can be put behind it before that is ended."""

    code = -101


class TransactionRefused(LogError):
    """The transaction was not committed, and never will be: what it wrote is gone, or its name is another's."""

    code = -17


class CursorBehind(LogError):
    """A truncation would take away what a named cursor of the log has not come to."""

    code = -100


class ProtocolError(BookKeeperError):
    """Somebody does not keep to the protocol."""

    code = -16


class LocalProtocolError(ProtocolError):
    """Our own bug: the code asked for something the protocol forbids."""


class RemoteProtocolError(ProtocolError):
    """Bytes from the peer that no correct peer sends; the connection is closed."""


class StorageError(BookKeeperError):
    """A bookie's own disks."""


class CorruptRecord(StorageError):
    """Bytes on disk that are not what was written there. Says where."""

    def __init__(self, message: str = "", *, path: str, offset: int, ledger_id: int | None = None) -> None:
        super().__init__(f"{path} at byte {offset:,}: {message}", ledger_id=ledger_id)
        self.path = path
        self.offset = offset


class CookieMismatch(StorageError):
    """The directories do not belong to this bookie, or one of them is missing or was wiped."""


class DirectoryInUse(StorageError):
    """Another process holds the directory."""


class DiskFull(StorageError):
    """No room; nothing of the write counts."""


class ConfigError(BookKeeperError):
    """A setting that cannot be; the message names it, its value and what would do."""

    code = -14


class InvalidArgument(BookKeeperError, ValueError):
    """An argument out of its documented range."""

    code = -14


class ClientClosed(BookKeeperError):
    """The client was closed; nothing was sent."""

    code = -19


class NotSupported(BookKeeperError):
    """Known to the protocol, not (yet) offered here; the message says what to use instead."""

    code = -100


# Status <-> exception. EIO and EBADREQ depend on what was asked: a failed add is a WriteFailed, a failed read a
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
    """The exception a client raises for a status other than OK."""
    assert status is not Status.OK
    kind = ERROR_OF_STATUS.get(status, WriteFailed if is_write else ReadFailed)
    return kind(f"bookie answered {status.value}", ledger_id=ledger_id, entry_id=entry_id, bookie=bookie)


def status_of_error(error: BaseException) -> Status:
    """The status a bookie answers for an exception raised while serving a request.

    Whatever is not a definite statement becomes IO_ERROR, never a negative answer (storage R-3).
    """
    for status, kind in ERROR_OF_STATUS.items():
        if type(error) is kind:
            return status
    if isinstance(error, InvalidArgument | LocalProtocolError | RemoteProtocolError):
        return Status.BAD_REQUEST
    return Status.IO_ERROR
