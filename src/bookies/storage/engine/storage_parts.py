"""The components of a bookie's storage that own files or threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from msgspec.structs import replace

from bookies.config import ROCKSDB, BookieConfig
from bookies.runtime.activities import Activities
from bookies.runtime.ports import Runtime
from bookies.storage.cache import WriteCache
from bookies.storage.checkpoint import Checkpointer, Failover
from bookies.storage.checkpoint.index_writes import IndexWriter
from bookies.storage.checkpoint.indexed_log import IndexedLog
from bookies.storage.disks import DirectoryHealth
from bookies.storage.disks.directories import Directories
from bookies.storage.disks.disk_watch import DiskWatch
from bookies.storage.disks.observed_disk import WatchedDisk
from bookies.storage.engine.quarantine import Quarantine
from bookies.storage.engine.rebuild import Rebuilder
from bookies.storage.engine.replay import ReplayReport
from bookies.storage.entry_log.log_directories import LogDirectories
from bookies.storage.index import LedgerIndex
from bookies.storage.index.index_files import IndexFiles, NewFiles
from bookies.storage.index.index_readers import Readers
from bookies.storage.journal import Journal, LogMark, journal_format
from bookies.storage.rocksdb.database_files import DatabaseFiles, OpenDatabases
from bookies.storage.rocksdb.rocksdb_format import Databases
from bookies.storage.sealing.keys_file import KeysFile
from bookies.storage.sealing.sealer import Sealer


class StorageParts:
    """All components that own files or threads, from before they are opened until `close`.

    `databases`: of the index, by number of the directory; None if it is in files.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: BookieConfig,
        on_change: Callable[[], None],
        on_fatal: Callable[[BaseException], None],
        activities: Activities,
        databases: Databases,
    ) -> None:
        self.config = config
        self.keys = KeysFile(runtime, config.encryption_keys_file) if config.encryption_keys_file else None
        sealer = self.sealer
        self.directories = directories = Directories(runtime.disk, config)
        is_rocksdb = config.ledger_index == ROCKSDB
        logs = LogDirectories(directories.ledgers, is_split=is_rocksdb)
        # Databases place each ledger in one of the directories, so the bookie needs all of them.
        keeps_going = config.survive_failed_directory and not is_rocksdb
        health = DirectoryHealth(directories.ledgers, directories.indexes, keeps_going=keeps_going)
        version = journal_format.VERSION if sealer is None or not sealer.seals else journal_format.SEALED_VERSION
        self.journals = [
            Journal(runtime, directory, f"journal-{number}", config, on_fatal, version)
            for number, directory in enumerate(directories.journals)
        ]
        self.runtime = runtime = replace(runtime, disk=WatchedDisk(runtime.disk, health))
        self.disks = DiskWatch(runtime, config, directories, health, on_change)
        marks = tuple(LogMark() for _ in directories.journals)
        self.cache = WriteCache(config.write_cache_size, marks)
        self.databases: list[OpenDatabases] | None = None
        new_files: NewFiles = partial(IndexFiles, runtime.disk, config.index_page_size)
        if is_rocksdb:
            self.databases = [
                OpenDatabases(runtime.disk, databases, directory, logs, number)
                for number, directory in enumerate(directories.indexes)
            ]
            new_files = partial(DatabaseFiles, runtime.disk, config.index_page_size, self.databases)
        self.readers = Readers(runtime, config, logs, new_files, sealer)
        self.index = LedgerIndex(runtime, config, directories.indexes, self.readers, self.health, new_files)
        self.index.rebuilds.on_damaged = on_fatal
        stores = [*directories.ledgers, *directories.indexes]
        failover = Failover(runtime, stores, self.health, self.index)
        log = IndexedLog(runtime, logs, config, self.health, self.index, sealer)
        index_writer = IndexWriter(runtime, log, self.readers, self.health, failover)
        self.checkpointer = Checkpointer(runtime, config, self.cache, index_writer, on_change, activities)
        self.removals = Quarantine(runtime.disk, directories.ledgers, self.index, self.checkpointer, self.cache)
        self.rebuilder = Rebuilder(runtime, config, self.index, logs)
        self.report = ReplayReport()

    @property
    def health(self) -> DirectoryHealth:
        """Return which directories have failed."""
        return self.disks.health

    @property
    def sealer(self) -> Sealer | None:
        """Return the keys of the bookie, if it has any."""
        return None if self.keys is None else self.keys.sealer

    @property
    def logs(self) -> LogDirectories:
        """Return the ledger directories, with the meaning of log ids."""
        return self.readers.logs

    def close(self) -> None:
        """Close files, end workers, release locks. Blocks until current work is done."""
        for journal in self.journals:
            journal.close()
        self.readers.close()
        self.rebuilder.close()
        self.checkpointer.close()
        self.directories.release()
