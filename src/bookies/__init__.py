"""A replicated log store: ledgers, bookies, and their data pipeline on Spark.

The public names, loaded when they are first used: `import bookies` itself costs nearly nothing.
"""

from __future__ import annotations

from importlib import import_module

from bookies.errors import (
    AckQuorumTimeout,
    BookieBusy,
    BookieError,
    BookieReadOnly,
    BookieTimeout,
    BookieUnreachable,
    BookKeeperError,
    ClientClosed,
    ConfigError,
    CookieExists,
    CookieMismatch,
    CookieNotFound,
    CorruptRecord,
    CursorBehind,
    DataUnknown,
    DigestMismatch,
    DirectoryInUse,
    DiskFull,
    EntryError,
    EntryExists,
    EntryNotFound,
    FragmentNotFinished,
    InvalidArgument,
    LedgerClosed,
    LedgerError,
    LedgerExists,
    LedgerFenced,
    LedgerLocked,
    LedgerNotFound,
    LedgerUnknownToBookie,
    LocalProtocolError,
    LogError,
    LogExists,
    LogFenced,
    LogInUse,
    LogNotFound,
    LogTruncated,
    MetadataCorrupt,
    MetadataError,
    NoCluster,
    NotConfirmed,
    NotEnoughBookies,
    NotSupported,
    ProtocolError,
    QuorumError,
    ReadFailed,
    RecordExists,
    RecordNotFound,
    RecoveryFailed,
    RemoteProtocolError,
    ReplicationFailed,
    SessionExpired,
    StorageError,
    TlsFailed,
    TransactionRefused,
    Unauthorized,
    VersionConflict,
    WriteFailed,
)

TYPE_CHECKING = False  # As typing's, which type checkers know by name; importing typing would double the cost.
if TYPE_CHECKING:
    from bookies import apache as apache
    from bookies.admin.local_cluster import local as local
    from bookies.client import blocking as blocking
    from bookies.client.administration import Administration as Administration
    from bookies.client.administration import LedgerCheck as LedgerCheck
    from bookies.client.advanced import AdvancedLedgerWriter as AdvancedLedgerWriter
    from bookies.client.client import Client as Client
    from bookies.client.connect import connect as connect
    from bookies.client.entries import Entry as Entry
    from bookies.client.entries import EntryBatch as EntryBatch
    from bookies.client.entries import LastConfirmedAndEntry as LastConfirmedAndEntry
    from bookies.client.iteration import Batches as Batches
    from bookies.client.iteration import Entries as Entries
    from bookies.client.log import Log as Log
    from bookies.client.log_reader import LogReader as LogReader
    from bookies.client.log_writer import LogWriter as LogWriter
    from bookies.client.opening import Opening as Opening
    from bookies.client.reader import LedgerReader as LedgerReader
    from bookies.client.receipt import FragmentPlacement as FragmentPlacement
    from bookies.client.replication import CopyProgress as CopyProgress
    from bookies.client.replication import Move as Move
    from bookies.client.replication import Obstacle as Obstacle
    from bookies.client.replication import RecoveryReport as RecoveryReport
    from bookies.client.scan import BadRun as BadRun
    from bookies.client.scan import ReplicaScan as ReplicaScan
    from bookies.client.transaction import Reaped as Reaped
    from bookies.client.transaction_writer import LogTransaction as LogTransaction
    from bookies.client.watcher import BookieStatus as BookieStatus
    from bookies.client.writer import LedgerWriter as LedgerWriter
    from bookies.config import BookieConfig as BookieConfig
    from bookies.config import ClientConfig as ClientConfig
    from bookies.metadata.driver import BookieSet as BookieSet
    from bookies.metadata.driver import Versioned as Versioned
    from bookies.metadata.driver import Watch as Watch
    from bookies.metadata.recovery_store import LedgerLock as LedgerLock
    from bookies.model import BookieId as BookieId
    from bookies.model import BookieInfo as BookieInfo
    from bookies.model import BookieMode as BookieMode
    from bookies.model import DigestType as DigestType
    from bookies.model import Endpoint as Endpoint
    from bookies.model import LedgerMetadata as LedgerMetadata
    from bookies.model import LedgerState as LedgerState
    from bookies.protocol.cursors import Cursor as Cursor
    from bookies.protocol.fragments import Fragment as Fragment
    from bookies.protocol.fragments import FragmentVerdict as FragmentVerdict
    from bookies.protocol.fragments import ReplicaState as ReplicaState
    from bookies.protocol.fragments import ReplicaVerdict as ReplicaVerdict
    from bookies.protocol.log import Extent as Extent
    from bookies.protocol.log import LedgerEnd as LedgerEnd
    from bookies.protocol.log import Manifest as Manifest
    from bookies.protocol.log import Position as Position
    from bookies.protocol.log import Segment as Segment
    from bookies.protocol.replicate import Replacement as Replacement
    from bookies.runtime.aio import run as run

# Public name -> module that defines it.
_LAZY = {
    "Administration": "bookies.client.administration",
    "AdvancedLedgerWriter": "bookies.client.advanced",
    "BadRun": "bookies.client.scan",
    "Batches": "bookies.client.iteration",
    "BookieConfig": "bookies.config",
    "BookieId": "bookies.model",
    "BookieInfo": "bookies.model",
    "BookieMode": "bookies.model",
    "BookieSet": "bookies.metadata.driver",
    "BookieStatus": "bookies.client.watcher",
    "Client": "bookies.client.client",
    "ClientConfig": "bookies.config",
    "CopyProgress": "bookies.client.replication",
    "Cursor": "bookies.protocol.cursors",
    "DigestType": "bookies.model",
    "Endpoint": "bookies.model",
    "Entries": "bookies.client.iteration",
    "Entry": "bookies.client.entries",
    "EntryBatch": "bookies.client.entries",
    "Extent": "bookies.protocol.log",
    "Fragment": "bookies.protocol.fragments",
    "FragmentPlacement": "bookies.client.receipt",
    "FragmentVerdict": "bookies.protocol.fragments",
    "LastConfirmedAndEntry": "bookies.client.entries",
    "LedgerCheck": "bookies.client.administration",
    "LedgerEnd": "bookies.protocol.log",
    "LedgerLock": "bookies.metadata.recovery_store",
    "LedgerMetadata": "bookies.model",
    "LedgerReader": "bookies.client.reader",
    "LedgerState": "bookies.model",
    "LedgerWriter": "bookies.client.writer",
    "Log": "bookies.client.log",
    "LogReader": "bookies.client.log_reader",
    "LogTransaction": "bookies.client.transaction_writer",
    "LogWriter": "bookies.client.log_writer",
    "Manifest": "bookies.protocol.log",
    "Move": "bookies.client.replication",
    "Obstacle": "bookies.client.replication",
    "Opening": "bookies.client.opening",
    "Position": "bookies.protocol.log",
    "Reaped": "bookies.client.transaction",
    "RecoveryReport": "bookies.client.replication",
    "Replacement": "bookies.protocol.replicate",
    "ReplicaScan": "bookies.client.scan",
    "ReplicaState": "bookies.protocol.fragments",
    "ReplicaVerdict": "bookies.protocol.fragments",
    "Segment": "bookies.protocol.log",
    "Versioned": "bookies.metadata.driver",
    "Watch": "bookies.metadata.driver",
    "apache": "bookies",
    "blocking": "bookies.client",
    "connect": "bookies.client.connect",
    "local": "bookies.admin.local_cluster",
    "run": "bookies.runtime.aio",
}

__all__ = [
    "AckQuorumTimeout",
    "Administration",
    "AdvancedLedgerWriter",
    "BadRun",
    "Batches",
    "BookKeeperError",
    "BookieBusy",
    "BookieConfig",
    "BookieError",
    "BookieId",
    "BookieInfo",
    "BookieMode",
    "BookieReadOnly",
    "BookieSet",
    "BookieStatus",
    "BookieTimeout",
    "BookieUnreachable",
    "Client",
    "ClientClosed",
    "ClientConfig",
    "ConfigError",
    "CookieExists",
    "CookieMismatch",
    "CookieNotFound",
    "CopyProgress",
    "CorruptRecord",
    "Cursor",
    "CursorBehind",
    "DataUnknown",
    "DigestMismatch",
    "DigestType",
    "DirectoryInUse",
    "DiskFull",
    "Endpoint",
    "Entries",
    "Entry",
    "EntryBatch",
    "EntryError",
    "EntryExists",
    "EntryNotFound",
    "Extent",
    "Fragment",
    "FragmentNotFinished",
    "FragmentPlacement",
    "FragmentVerdict",
    "InvalidArgument",
    "LastConfirmedAndEntry",
    "LedgerCheck",
    "LedgerClosed",
    "LedgerEnd",
    "LedgerError",
    "LedgerExists",
    "LedgerFenced",
    "LedgerLock",
    "LedgerLocked",
    "LedgerMetadata",
    "LedgerNotFound",
    "LedgerReader",
    "LedgerState",
    "LedgerUnknownToBookie",
    "LedgerWriter",
    "LocalProtocolError",
    "Log",
    "LogError",
    "LogExists",
    "LogFenced",
    "LogInUse",
    "LogNotFound",
    "LogReader",
    "LogTransaction",
    "LogTruncated",
    "LogWriter",
    "Manifest",
    "MetadataCorrupt",
    "MetadataError",
    "Move",
    "NoCluster",
    "NotEnoughBookies",
    "NotSupported",
    "Obstacle",
    "Opening",
    "Position",
    "ProtocolError",
    "QuorumError",
    "NotConfirmed",
    "ReadFailed",
    "Reaped",
    "RecordExists",
    "RecordNotFound",
    "RecoveryFailed",
    "RecoveryReport",
    "RemoteProtocolError",
    "Replacement",
    "ReplicaScan",
    "ReplicaState",
    "ReplicaVerdict",
    "ReplicationFailed",
    "Segment",
    "SessionExpired",
    "StorageError",
    "TlsFailed",
    "TransactionRefused",
    "Unauthorized",
    "VersionConflict",
    "Versioned",
    "Watch",
    "WriteFailed",
    "apache",
    "blocking",
    "connect",
    "local",
    "run",
]


if not TYPE_CHECKING:  # It would hide misspelled names.

    def __getattr__(name: str) -> object:
        module = _LAZY.get(name)
        if module is None:
            raise AttributeError(f"module 'bookies' has no attribute {name!r}")
        value = (
            import_module(f"{module}.{name}")
            if name in ("apache", "blocking")
            else getattr(import_module(module), name)
        )
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__
