"""RocksDB databases in real directories, through the binding `rocksdict`. See `rocksdb_format` for their contents.

Reading never changes a database. RocksDB and the binding write their own files (a log, a configuration) wherever they
open a database, also for reading. So a database is read through a temporary directory of symbolic links. A database is
written completely under a temporary name. The binding is imported when a database is opened.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import importlib.util
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from bookies.errors import ConfigError, CorruptRecord, DirectoryInUse, DiskFull, StorageError

PIECE_COUNT = 10_000  # keys fetched at once
READ_TRIES = 5  # of a range, while others write or after failures that pass
_CONFIGURATION = "rocksdict-config.json"  # a file of the binding
_OWN_FILES = ("LOCK", "LOG", _CONFIGURATION)  # prefixes of files that a reader does not need
_SIGNS_OF_DAMAGE = ("Corruption", "Input/output error", "No such file")  # in messages of RocksDB
_MEMORY, _LINKS = "/dev/shm", "bookies-rocksdb-"
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
        self._links = _linked(path)
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
        self._identity = _identity_of(path)

    def version(self) -> tuple[int, int]:
        return self._identity, int(self._database.latest_sequence_number())

    def pieces(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yield (keys, values) of the whole database, in the order of the keys. Raises CorruptRecord."""
        return _pieces(self._database, self._path)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key. Raises CorruptRecord."""
        return _get(self._database, self._path, key)

    def from_key(self, key: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) from a key on, in order. Raises CorruptRecord."""
        cursor = self._database.iter()
        cursor.seek(key)
        while cursor.valid():
            yield cursor.key(), cursor.value()
            cursor.next()
        _check_end(cursor, self._path)

    def close(self) -> None:
        self._database.close()
        self._links.cleanup()


class RocksWriter:
    """A new database, written in the order of the keys. Blocks. No key is durable before `finish`."""

    def __init__(self, path: str, *, is_large: bool) -> None:
        self._binding = binding = _binding(path)
        self._path = path
        options = _options(binding, is_large=is_large)
        options.set_error_if_exists(True)
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
        os.unlink(os.path.join(self._path, _CONFIGURATION))
        _sync_directory(self._path)
        _sync_directory(os.path.dirname(self._path) or ".")

    def close(self) -> None:
        self._database.close()


class RocksDatabase:
    """One database in use. Blocks. One worker writes; any thread may read.

    Its files stay as Apache's bookie reads them. A batch is made durable by a sync of the write-ahead log outside of
    the binding, which would hold Python's lock meanwhile.
    """

    def __init__(self, path: str, *, is_large: bool, may_be_cut: bool) -> None:
        self._binding = binding = _binding(path)
        self._path = path
        options = _options(binding, is_large=is_large)
        _tolerate(binding, options, may_be_cut=may_be_cut)
        try:
            self._database = binding.Rdict(path, options)
        except Exception as error:
            if "LOCK" in str(error) and os.path.exists(os.path.join(path, "LOCK")):
                raise DirectoryInUse(f"{path} is in use by another process: {error}") from error
            raise _error(path, error) from error
        self._is_open = True
        self._identity = _identity_of(path)
        _sync_directory(path)
        _sync_directory(os.path.dirname(path) or ".")

    def version(self) -> tuple[int, int]:
        return self._identity, int(self._database.latest_sequence_number())

    def pieces(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yield (keys, values) of the whole database, in the order of the keys. Raises CorruptRecord."""
        return _pieces(self._database, self._path)

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key. Raises CorruptRecord."""
        return _get(self._database, self._path, key)

    def get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key. Raises CorruptRecord."""
        try:
            values: list[bytes | None] = self._database.get(list(keys))
        except Exception as error:
            raise _error(self._path, error) from error
        return values

    def last_before(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the last key below each of these, which ascend. Raises CorruptRecord."""
        lower: list[bytes | None] = []
        try:
            cursor = self._database.iter()
            for key in keys:
                cursor.seek_for_prev(key)
                if cursor.valid() and cursor.key() == key:
                    cursor.prev()
                cursor.status()
                lower.append(cursor.key() if cursor.valid() else None)
        except Exception as error:
            raise _error(self._path, error) from error
        return lower

    def between(self, start: bytes, stop: bytes, count_max: int) -> tuple[list[bytes], list[bytes]]:
        """Return up to `count_max` (keys, values) from `start` to before `stop`. Raises CorruptRecord."""
        try:
            bounds = self._binding.ReadOptions()
            bounds.set_iterate_upper_bound(stop)
            for _ in range(READ_TRIES):
                pairs = list(islice(self._database.items(from_key=start, read_opt=bounds), count_max))
                if len(pairs) == count_max or self._is_end(bounds, pairs[-1][0] if pairs else None, start):
                    return [key for key, _ in pairs], [value for _, value in pairs]
        except Exception as error:
            raise _error(self._path, error) from error
        raise StorageError(f"{self._path}: a range was not read to its end in {READ_TRIES} tries")

    def _is_end(self, bounds: Any, last: bytes | None, start: bytes) -> bool:
        """Report whether no key follows: iterators end silently at failures. A key may have been written meanwhile."""
        cursor = _cursor_behind(self._database.iter(bounds), last, start)
        cursor.status()
        return not cursor.valid()

    def write(
        self, keys: Sequence[bytes], values: Sequence[bytes], deleted: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        """Do as `Database.write`. Raises: CorruptRecord, DiskFull, StorageError."""
        batch = self._binding.WriteBatch(raw_mode=True)
        for start, stop in deleted:
            batch.delete_range(start, stop)
        for key, value in zip(keys, values, strict=True):
            batch[key] = value
        try:
            self._database.write(batch)
        except Exception as error:
            raise _error(self._path, error) from error
        try:
            self._sync_log()
        except OSError as error:
            raise StorageError(f"{self._path}: sync failed: {error}") from error

    def _sync_log(self) -> None:
        """Sync the write-ahead logs. One that is missing by now is in tables, which RocksDB has synced."""
        for name in os.listdir(self._path):
            if name.endswith(".log"):
                with contextlib.suppress(FileNotFoundError):
                    _sync(os.path.join(self._path, name), os.O_RDONLY)
        _sync_directory(self._path)

    def close(self) -> None:
        """Close it, without the binding's own file. Idempotent."""
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(Exception):  # It fails after a failed write, and nothing waits for a sync here.
                self._database.close()
            self._database = _Closed()  # the binding's object would keep the lock after a failure
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self._path, _CONFIGURATION))


class RocksFullDatabase(RocksDatabase):
    """One database in use whose disk has no space to open it for writing: a write has to wait until there is some.

    RocksDB applies the write-ahead log in memory. The database's lock keeps other processes out.
    """

    def __init__(self, path: str, *, may_be_cut: bool) -> None:
        self._binding = binding = _binding(path)
        self._path = path
        with contextlib.ExitStack() as held:
            held.callback(RocksLock(path).release)
            links = _linked(path)
            held.callback(links.cleanup)
            options = _options(binding, is_large=False)
            options.create_if_missing(False)
            _tolerate(binding, options, may_be_cut=may_be_cut)
            try:
                access = binding.AccessType.read_only(False)
                self._database = binding.Rdict(links.name, options, access_type=access)
            except Exception as error:
                raise _error(path, error) from error
            self._is_open = True
            self._identity = _identity_of(path)
            self._held = held.pop_all()

    def write(
        self, keys: Sequence[bytes], values: Sequence[bytes], deleted: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        """Refuse: raises DiskFull."""
        raise DiskFull(f"{self._path}: the disk had no space to open it for writing")

    def close(self) -> None:
        """Close it. Idempotent."""
        super().close()
        self._held.close()


class _Closed:
    """In place of a database that was closed."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("it is closed")


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

    def open(self, path: str, *, is_large: bool, may_be_cut: bool) -> RocksDatabase:
        return RocksDatabase(path, is_large=is_large, may_be_cut=may_be_cut)

    def open_full(self, path: str, *, may_be_cut: bool) -> RocksFullDatabase:
        return RocksFullDatabase(path, may_be_cut=may_be_cut)

    def rename(self, path: str, target: str) -> None:
        os.rename(path, target)
        _sync_directory(os.path.dirname(path) or ".")

    def remove(self, path: str) -> None:
        if os.path.isdir(path):
            shutil.rmtree(path)
            _sync_directory(os.path.dirname(path) or ".")


def _linked(path: str) -> tempfile.TemporaryDirectory[str]:
    """Return a directory of links to the files of a database, in memory if possible: disks may be full."""
    try:
        links = tempfile.TemporaryDirectory(prefix=_LINKS, dir=_MEMORY)
    except OSError:  # Not every system has it, or lets processes write there.
        links = tempfile.TemporaryDirectory(prefix=_LINKS)
    whole = os.path.abspath(path)
    for name in os.listdir(whole):
        if not name.startswith(_OWN_FILES):
            os.symlink(os.path.join(whole, name), os.path.join(links.name, name))
    return links


def _tolerate(binding: Any, options: Any, *, may_be_cut: bool) -> None:
    """Set what counts as damage of a database in use. `may_be_cut`: see `Databases.open`."""
    modes = binding.DBRecoveryMode
    options.set_wal_recovery_mode(modes.point_in_time() if may_be_cut else modes.tolerate_corrupted_tail_records())
    options.set_paranoid_checks(True)


def _identity_of(path: str) -> int:
    """Return a number that identifies the database; 0 if a copy lacks its identity."""
    with contextlib.suppress(FileNotFoundError), open(os.path.join(path, "IDENTITY"), "rb") as file:
        return zlib.crc32(file.read())
    return 0


def _damaged(path: str, error: Exception, remedy: str = "") -> CorruptRecord:
    return CorruptRecord(f"the RocksDB database cannot be read: {error}{remedy}", path=path, offset=0)


def _error(path: str, error: Exception) -> StorageError:
    """Return what a failed call means: damage, or a failure that says nothing about the content."""
    text = str(error)
    if "No space left" in text:
        return DiskFull(f"{path}: {text}")
    if any(sign in text for sign in _SIGNS_OF_DAMAGE):
        return _damaged(path, error)
    return StorageError(f"{path}: {text}")


def _options(binding: Any, *, is_large: bool) -> Any:
    """Return the options of a database that is written, as Apache's bookie has them."""
    tables = binding.BlockBasedOptions()
    tables.set_format_version(_FORMAT_VERSION)
    tables.set_checksum_type(binding.ChecksumType.xxhash())
    options = binding.Options(raw_mode=True)
    options.create_if_missing(True)
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
    return options


def _get(database: Any, path: str, key: bytes) -> bytes | None:
    try:
        value: bytes | None = database.get(key)
    except Exception as error:
        raise _error(path, error) from error
    return value


def _pieces(database: Any, path: str) -> Iterator[tuple[list[bytes], list[bytes]]]:
    items = database.items()
    last = None
    while batch := list(islice(items, PIECE_COUNT)):
        keys, values = map(list, zip(*batch, strict=True))
        last = keys[-1]
        yield keys, values
    # The iterator also ends silently at damage.
    _check_end(_cursor_behind(database.iter(), last, b""), path)


def _cursor_behind(cursor: Any, last: bytes | None, start: bytes) -> Any:
    """Move a cursor to the first key after `last`; None: from `start` on. Return it."""
    cursor.seek(start if last is None else last)
    if last is not None and cursor.valid():
        cursor.next()
    return cursor


def _check_end(cursor: Any, path: str) -> None:
    """Raise CorruptRecord unless the cursor has come to the end of the database."""
    try:
        cursor.status()
    except Exception as error:
        raise _error(path, error) from error
    if cursor.valid():
        raise CorruptRecord("the database was not read to its end", path=path, offset=0)


def _sync_directory(path: str) -> None:
    _sync(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync(path: str, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
