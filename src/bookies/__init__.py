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
    CursorMoved,
    DataUnknown,
    DigestMismatch,
    DirectoryInUse,
    DiskFull,
    EntryError,
    EntryExists,
    EntryNotFound,
    FragmentNotFinished,
    InvalidArgument,
    LeaseError,
    LeaseHeld,
    LeaseLost,
    LedgerClosed,
    LedgerError,
    LedgerExists,
    LedgerFenced,
    LedgerLocked,
    LedgerNotFound,
    LedgerUnknownToBookie,
    LocalProtocolError,
    LogEnded,
    LogError,
    LogExists,
    LogFenced,
    LogInUse,
    LogNotFound,
    LogRecordCorrupt,
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
    RegisteredElsewhere,
    RemoteProtocolError,
    ReplicationFailed,
    SchemaError,
    SchemaIncompatible,
    SchemaNotFound,
    SchemaRegistryFailed,
    SequenceGap,
    SessionExpired,
    StorageError,
    TlsFailed,
    TransactionRefused,
    TxidOutOfOrder,
    Unauthorized,
    VersionConflict,
    WriteFailed,
    WrongExpectedLast,
)

TYPE_CHECKING = False  # As typing's, which type checkers know by name; importing typing would double the cost.
if TYPE_CHECKING:
    from bookies import apache as apache
    from bookies import metrics as metrics
    from bookies.admin.cluster.local_cluster import local as local
    from bookies.client.base.entries import Entry as Entry
    from bookies.client.base.entries import EntryBatch as EntryBatch
    from bookies.client.base.entries import LastConfirmedAndEntry as LastConfirmedAndEntry
    from bookies.client.base.fragment_placement import FragmentPlacement as FragmentPlacement
    from bookies.client.base.iteration import Batches as Batches
    from bookies.client.base.iteration import Entries as Entries
    from bookies.client.base.opening import Opening as Opening
    from bookies.client.blocking import blocking
    from bookies.client.client import Client as Client
    from bookies.client.connect import connect as connect
    from bookies.client.log.base.log_reader import LogReader as LogReader
    from bookies.client.log.consumers import ConsumerState as ConsumerState
    from bookies.client.log.consumers import LogConsumer as LogConsumer
    from bookies.client.log.consumers import MemberState as MemberState
    from bookies.client.log.log import Log as Log
    from bookies.client.log.log_writer import LogWriter as LogWriter
    from bookies.client.log.records.log_records import LogEntries as LogEntries
    from bookies.client.log.records.log_records import LogRecords as LogRecords
    from bookies.client.log.records.log_records import LogSets as LogSets
    from bookies.client.log.records.open_sets import SetAppend as SetAppend
    from bookies.client.log.retaining import LogCompaction as LogCompaction
    from bookies.client.log.retaining import LogRollUp as LogRollUp
    from bookies.client.log.sequenced import Appended as Appended
    from bookies.client.log.sequenced import SequencedWriter as SequencedWriter
    from bookies.client.log.transaction import Reaped as Reaped
    from bookies.client.log.transaction_writer import LogTransaction as LogTransaction
    from bookies.client.read.reader import LedgerReader as LedgerReader
    from bookies.client.repair.administration import Administration as Administration
    from bookies.client.repair.replica_tools import LedgerCheck as LedgerCheck
    from bookies.client.repair.replication import CopyProgress as CopyProgress
    from bookies.client.repair.replication import Move as Move
    from bookies.client.repair.replication import Obstacle as Obstacle
    from bookies.client.repair.replication import RecoveryReport as RecoveryReport
    from bookies.client.repair.scan import BadRun as BadRun
    from bookies.client.repair.scan import ReplicaScan as ReplicaScan
    from bookies.client.transport.watcher import BookieStatus as BookieStatus
    from bookies.client.turns.lease import Election as Election
    from bookies.client.turns.lease import Lease as Lease
    from bookies.client.write.advanced import AdvancedLedgerWriter as AdvancedLedgerWriter
    from bookies.client.write.writer import LedgerWriter as LedgerWriter
    from bookies.config import BookieConfig as BookieConfig
    from bookies.config import ClientConfig as ClientConfig
    from bookies.encoding.envelope import Record as Record
    from bookies.encoding.record_sets import RecordSet as RecordSet
    from bookies.encoding.record_sets import Rows as Rows
    from bookies.metadata.interface.driver import BookieSet as BookieSet
    from bookies.metadata.interface.driver import Versioned as Versioned
    from bookies.metadata.interface.recovery_store import LedgerLock as LedgerLock
    from bookies.metadata.interface.watches import Watch as Watch
    from bookies.model import BookieId as BookieId
    from bookies.model import BookieInfo as BookieInfo
    from bookies.model import BookieMode as BookieMode
    from bookies.model import DigestType as DigestType
    from bookies.model import Endpoint as Endpoint
    from bookies.model import LedgerMetadata as LedgerMetadata
    from bookies.model import LedgerState as LedgerState
    from bookies.protocol.log.cursors import Cursor as Cursor
    from bookies.protocol.log.lag import Lag as Lag
    from bookies.protocol.log.log_model import Address as Address
    from bookies.protocol.log.log_model import Extent as Extent
    from bookies.protocol.log.log_model import LedgerEnd as LedgerEnd
    from bookies.protocol.log.log_model import Manifest as Manifest
    from bookies.protocol.log.log_model import Position as Position
    from bookies.protocol.log.log_model import Segment as Segment
    from bookies.protocol.log.records import LogRecord as LogRecord
    from bookies.protocol.log.retention import LogRemoval as LogRemoval
    from bookies.protocol.log.retention import Retention as Retention
    from bookies.protocol.log.retention import RetentionDecision as RetentionDecision
    from bookies.protocol.payloads.schemas import LogSchema as LogSchema
    from bookies.protocol.payloads.schemas import LogSchemas as LogSchemas
    from bookies.protocol.repair.fragments import Fragment as Fragment
    from bookies.protocol.repair.fragments import FragmentVerdict as FragmentVerdict
    from bookies.protocol.repair.fragments import ReplicaState as ReplicaState
    from bookies.protocol.repair.fragments import ReplicaVerdict as ReplicaVerdict
    from bookies.protocol.repair.replicate import Replacement as Replacement
    from bookies.runtime.aio import run as run
    from bookies.spark.dataset import Dataset as Dataset
    from bookies.spark.dataset import dataset as dataset

# Public name -> module that defines it.
_LAZY = {
    "Administration": "bookies.client.repair.administration",
    "AdvancedLedgerWriter": "bookies.client.write.advanced",
    "Appended": "bookies.client.log.sequenced",
    "BadRun": "bookies.client.repair.scan",
    "Batches": "bookies.client.base.iteration",
    "BookieConfig": "bookies.config",
    "BookieId": "bookies.model",
    "BookieInfo": "bookies.model",
    "BookieMode": "bookies.model",
    "BookieSet": "bookies.metadata.interface.driver",
    "BookieStatus": "bookies.client.transport.watcher",
    "Client": "bookies.client.client",
    "ClientConfig": "bookies.config",
    "ConsumerState": "bookies.client.log.consumers",
    "CopyProgress": "bookies.client.repair.replication",
    "Cursor": "bookies.protocol.log.cursors",
    "Dataset": "bookies.spark.dataset",
    "DigestType": "bookies.model",
    "Election": "bookies.client.turns.lease",
    "Endpoint": "bookies.model",
    "Entries": "bookies.client.base.iteration",
    "Entry": "bookies.client.base.entries",
    "EntryBatch": "bookies.client.base.entries",
    "Extent": "bookies.protocol.log.log_model",
    "Fragment": "bookies.protocol.repair.fragments",
    "FragmentPlacement": "bookies.client.base.fragment_placement",
    "FragmentVerdict": "bookies.protocol.repair.fragments",
    "Lag": "bookies.protocol.log.lag",
    "LastConfirmedAndEntry": "bookies.client.base.entries",
    "Lease": "bookies.client.turns.lease",
    "LedgerCheck": "bookies.client.repair.replica_tools",
    "LedgerEnd": "bookies.protocol.log.log_model",
    "LedgerLock": "bookies.metadata.interface.recovery_store",
    "LedgerMetadata": "bookies.model",
    "LedgerReader": "bookies.client.read.reader",
    "LedgerState": "bookies.model",
    "LedgerWriter": "bookies.client.write.writer",
    "Log": "bookies.client.log.log",
    "LogCompaction": "bookies.client.log.retaining",
    "LogRollUp": "bookies.client.log.retaining",
    "LogConsumer": "bookies.client.log.consumers",
    "LogEntries": "bookies.client.log.records.log_records",
    "LogReader": "bookies.client.log.base.log_reader",
    "LogRecord": "bookies.protocol.log.records",
    "LogRecords": "bookies.client.log.records.log_records",
    "Rows": "bookies.encoding.record_sets",
    "RecordSet": "bookies.encoding.record_sets",
    "SetAppend": "bookies.client.log.records.open_sets",
    "LogSets": "bookies.client.log.records.log_records",
    "Address": "bookies.protocol.log.log_model",
    "LogRemoval": "bookies.protocol.log.retention",
    "LogSchema": "bookies.protocol.payloads.schemas",
    "LogSchemas": "bookies.protocol.payloads.schemas",
    "LogTransaction": "bookies.client.log.transaction_writer",
    "LogWriter": "bookies.client.log.log_writer",
    "Manifest": "bookies.protocol.log.log_model",
    "MemberState": "bookies.client.log.consumers",
    "Move": "bookies.client.repair.replication",
    "Obstacle": "bookies.client.repair.replication",
    "Opening": "bookies.client.base.opening",
    "Position": "bookies.protocol.log.log_model",
    "Reaped": "bookies.client.log.transaction",
    "Record": "bookies.encoding.envelope",
    "RecoveryReport": "bookies.client.repair.replication",
    "Replacement": "bookies.protocol.repair.replicate",
    "ReplicaScan": "bookies.client.repair.scan",
    "ReplicaState": "bookies.protocol.repair.fragments",
    "ReplicaVerdict": "bookies.protocol.repair.fragments",
    "Retention": "bookies.protocol.log.retention",
    "RetentionDecision": "bookies.protocol.log.retention",
    "Segment": "bookies.protocol.log.log_model",
    "SequencedWriter": "bookies.client.log.sequenced",
    "Versioned": "bookies.metadata.interface.driver",
    "Watch": "bookies.metadata.interface.watches",
    "apache": "bookies",
    "blocking": "bookies.client",
    "connect": "bookies.client.connect",
    "dataset": "bookies.spark.dataset",
    "local": "bookies.admin.cluster.local_cluster",
    "metrics": "bookies",
    "run": "bookies.runtime.aio",
}

__all__ = [
    "AckQuorumTimeout",
    "Administration",
    "AdvancedLedgerWriter",
    "Appended",
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
    "ConsumerState",
    "CookieExists",
    "CookieMismatch",
    "CookieNotFound",
    "CopyProgress",
    "CorruptRecord",
    "Cursor",
    "CursorBehind",
    "CursorMoved",
    "DataUnknown",
    "Dataset",
    "DigestMismatch",
    "DigestType",
    "DirectoryInUse",
    "DiskFull",
    "Election",
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
    "Lag",
    "LastConfirmedAndEntry",
    "Lease",
    "LeaseError",
    "LeaseHeld",
    "LeaseLost",
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
    "LogCompaction",
    "LogRollUp",
    "LogConsumer",
    "LogEnded",
    "LogEntries",
    "LogError",
    "LogExists",
    "LogFenced",
    "LogInUse",
    "LogNotFound",
    "LogReader",
    "LogRecord",
    "LogRecordCorrupt",
    "LogRecords",
    "Rows",
    "RecordSet",
    "SetAppend",
    "LogSets",
    "Address",
    "LogRemoval",
    "LogSchema",
    "LogSchemas",
    "LogTransaction",
    "LogTruncated",
    "LogWriter",
    "Manifest",
    "MemberState",
    "MetadataCorrupt",
    "MetadataError",
    "Move",
    "NoCluster",
    "NotConfirmed",
    "NotEnoughBookies",
    "NotSupported",
    "Obstacle",
    "Opening",
    "Position",
    "ProtocolError",
    "QuorumError",
    "ReadFailed",
    "Reaped",
    "Record",
    "RecordExists",
    "RecordNotFound",
    "RecoveryFailed",
    "RecoveryReport",
    "RegisteredElsewhere",
    "RemoteProtocolError",
    "Replacement",
    "ReplicaScan",
    "ReplicaState",
    "ReplicaVerdict",
    "ReplicationFailed",
    "Retention",
    "RetentionDecision",
    "Segment",
    "SchemaError",
    "SchemaIncompatible",
    "SchemaNotFound",
    "SchemaRegistryFailed",
    "SequenceGap",
    "SequencedWriter",
    "SessionExpired",
    "StorageError",
    "TlsFailed",
    "TransactionRefused",
    "TxidOutOfOrder",
    "Unauthorized",
    "VersionConflict",
    "Versioned",
    "Watch",
    "WriteFailed",
    "WrongExpectedLast",
    "apache",
    "blocking",
    "connect",
    "dataset",
    "local",
    "metrics",
    "run",
]


if not TYPE_CHECKING:  # It would hide misspelled names.

    def __getattr__(name: str) -> object:
        module = _LAZY.get(name)
        if module is None:
            raise AttributeError(f"module 'bookies' has no attribute {name!r}")
        value = (
            import_module(f"{module}.{name}")
            if name in ("apache", "blocking", "metrics")
            else getattr(import_module(module), name)
        )
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return __all__
