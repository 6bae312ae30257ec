"""RocksDB databases in real directories, through the binding `rocksdict`. See `rocksdb_format` for their contents.

Reading never changes a database. RocksDB and the binding write their own files (a log, a configuration) wherever they
open a database, also for reading. So a database is read through a temporary directory of symbolic links. A database is
written completely under a temporary name. The binding is imported when a database is opened.
"""

from __future__ import annotations

import fcntl
import importlib
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from bookies.errors import ConfigError, CorruptRecord, DirectoryInUse, StorageError

PIECE_COUNT = 10_000  # keys fetched at once
_OWN_FILES = ("LOCK", "LOG", "rocksdict-config.json")  # prefixes of files that a reader does not need
_WRITE_BUFFER_SIZE = 64 << 20  # bytes, as Apache's
_TABLE_SIZE = 64 << 20
_BLOCK_SIZE = 64 << 10
_FORMAT_VERSION = 5  # of tables: the newest one that all supported releases of Apache's bookie write and read
_BLOOM_BITS = 10  # per key


def is_available() -> bool:
    """Report whether the binding is installed."""
    return importlib.util.find_spec("rocksdict") is not None


def _binding(path: str) -> Any:
    try:
        return importlib.import_module("rocksdict")
    except ImportError as error:
        raise ConfigError(
            f"{path} is a RocksDB database; to read it, install the binding: pip install 'bookies[rocksdb]'"
        ) from error


class RocksReader:
    """One database, opened for reading. Blocks. See `Databases.read` for `is_exact`."""

    def __init__(self, path: str, *, is_exact: bool) -> None:
        binding = _binding(path)
        self._path = path
        self._links = tempfile.TemporaryDirectory(prefix="bookies-rocksdb-")
        whole = os.path.abspath(path)
        for name in os.listdir(whole):
            if not name.startswith(_OWN_FILES):
                os.symlink(os.path.join(whole, name), os.path.join(self._links.name, name))
        options = binding.Options(raw_mode=True)
        options.create_if_missing(False)
        modes = binding.DBRecoveryMode
        exact, tolerant = modes.absolute_consistency(), modes.tolerate_corrupted_tail_records()
        options.set_wal_recovery_mode(exact if is_exact else tolerant)
        try:
            access = binding.AccessType.read_only(False)
            self._database = binding.Rdict(self._links.name, options, access_type=access)
        except Exception as error:
            self._links.cleanup()
            remedy = "; if its bookie was killed, start it and shut it down cleanly first" if is_exact else ""
            raise _damaged(path, error, remedy) from error

    def pieces(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yield (keys, values) of the whole database, in the order of the keys. Raises CorruptRecord."""
        items = self._database.items()
        last = None
        while batch := list(islice(items, PIECE_COUNT)):
            keys, values = map(list, zip(*batch, strict=True))
            last = keys[-1]
            yield keys, values
        # The iterator also ends silently at damage.
        cursor = self._database.iter()
        if last is None:
            cursor.seek_to_first()
        else:
            cursor.seek(last)
            if cursor.valid():
                cursor.next()
        self._check(cursor)

    def _check(self, cursor: Any) -> None:
        try:
            cursor.status()
        except Exception as error:
            raise _damaged(self._path, error) from error
        if cursor.valid():
            raise CorruptRecord("the database was not read to its end", path=self._path, offset=0)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key. Raises CorruptRecord."""
        try:
            value: bytes | None = self._database.get(key)
        except Exception as error:
            raise _damaged(self._path, error) from error
        return value

    def from_key(self, key: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) from a key on, in order. Raises CorruptRecord."""
        cursor = self._database.iter()
        cursor.seek(key)
        while cursor.valid():
            yield cursor.key(), cursor.value()
            cursor.next()
        self._check(cursor)

    def close(self) -> None:
        self._database.close()
        self._links.cleanup()


class RocksWriter:
    """A new database, written in the order of the keys. Blocks. No key is durable before `finish`."""

    def __init__(self, path: str, *, is_large: bool) -> None:
        self._binding = binding = _binding(path)
        self._path = path
        tables = binding.BlockBasedOptions()
        tables.set_format_version(_FORMAT_VERSION)
        tables.set_checksum_type(binding.ChecksumType.xxhash())
        options = binding.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_error_if_exists(True)
        options.set_keep_log_file_num(30)
        if is_large:
            tables.set_block_size(_BLOCK_SIZE)
            tables.set_bloom_filter(_BLOOM_BITS, False)
            tables.set_cache_index_and_filter_blocks(True)
            options.set_compression_type(binding.DBCompressionType.lz4())
            options.set_write_buffer_size(_WRITE_BUFFER_SIZE)
            options.set_target_file_size_base(_TABLE_SIZE)
            options.set_max_bytes_for_level_base(256 << 20)
            options.set_level_compaction_dynamic_level_bytes(True)
        else:
            options.set_compression_type(binding.DBCompressionType.none())
        options.set_block_based_table_factory(tables)
        self._unlogged = binding.WriteOptions()
        self._unlogged.disable_wal = True  # `finish` makes it durable, and it is not read before
        try:
            self._database = binding.Rdict(path, options)
        except Exception as error:
            raise StorageError(f"{path}: cannot create a RocksDB database: {error}") from error

    def put(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Put keys in ascending order. Raises StorageError."""
        batch = self._binding.WriteBatch(raw_mode=True)
        for key, value in zip(keys, values, strict=True):
            batch[key] = value
        try:
            self._database.write(batch, self._unlogged)
        except Exception as error:
            raise StorageError(f"{self._path}: {error}") from error

    def finish(self) -> None:
        """Make the database durable and close it. Raises StorageError."""
        try:
            self._database.flush(True)
        except Exception as error:
            raise StorageError(f"{self._path}: {error}") from error
        self.close()
        os.unlink(os.path.join(self._path, "rocksdict-config.json"))
        _sync_directory(self._path)
        _sync_directory(os.path.dirname(self._path) or ".")

    def close(self) -> None:
        self._database.close()


class RocksLock:
    """RocksDB's own lock, which keeps other processes from opening the database.

    A database without a lock file is a copy, which no process has open.
    """

    def __init__(self, path: str) -> None:
        name = os.path.join(path, "LOCK")
        self._file = open(name, "r+") if os.path.exists(name) else None  # noqa: SIM115 - held until `release`
        try:
            if self._file is not None:
                fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.release()
            raise DirectoryInUse(f"{path} is in use by another process") from error

    def release(self) -> None:
        """Release the lock. Idempotent."""
        if self._file is not None:
            self._file.close()


class RocksDatabases:
    """RocksDB databases by path; implements `Databases`."""

    def exists(self, path: str) -> bool:
        return os.path.isfile(os.path.join(path, "CURRENT"))

    def lock(self, path: str) -> RocksLock:
        return RocksLock(path)

    def read(self, path: str, *, is_exact: bool = False) -> RocksReader:
        return RocksReader(path, is_exact=is_exact)

    def create(self, path: str, *, is_large: bool) -> RocksWriter:
        return RocksWriter(path, is_large=is_large)

    def remove(self, path: str) -> None:
        if os.path.isdir(path):
            shutil.rmtree(path)
            _sync_directory(os.path.dirname(path) or ".")


def _damaged(path: str, error: Exception, remedy: str = "") -> CorruptRecord:
    return CorruptRecord(f"the RocksDB database cannot be read: {error}{remedy}", path=path, offset=0)


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
