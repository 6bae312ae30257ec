"""Databases that are plain files of a simulated disk: a snapshot, and a line with a checksum for each batch after it.

A crash may cut off the last line. Any other damage is an error, as in RocksDB.
"""

from __future__ import annotations

import json
import posixpath
import re
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from bookies.errors import CorruptRecord, DiskFull, StorageError
from bookies.lab.sim.world.disk import SimDisk
from bookies.runtime.ports import Disk

MAGIC = b"FAKE"


class SimReader:
    """One database, opened for reading."""

    def __init__(self, pairs: dict[bytes, bytes], identity: int, version: int) -> None:
        self._pairs = pairs
        self._identity = identity
        self._version = version
        self._keys = sorted(pairs)

    def version(self) -> tuple[int, int]:
        """Return (its identity, the number of batches so far)."""
        return self._identity, self._version

    def pieces(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yield all (keys, values) as one batch."""
        if self._pairs:
            yield list(self._keys), [self._pairs[key] for key in self._keys]

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key."""
        return self._pairs.get(key)

    def from_key(self, key: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) from a key on."""
        return ((name, self._pairs[name]) for name in self._keys[bisect_left(self._keys, key) :])

    def close(self) -> None:
        """Do nothing."""


class SimWriter:
    """A new database, which gets its name when it is complete."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._pairs: dict[bytes, bytes] = {}

    def put(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Put keys."""
        self._pairs.update(zip(keys, values, strict=True))

    def finish(self) -> None:
        """Make it durable."""
        self._disk.replace_bytes(self._path, pack(self._pairs))

    def close(self) -> None:
        """Do nothing: an unfinished database has no name."""


class SimDatabase(SimReader):
    """A database in use."""

    def __init__(self, disk: SimDisk, path: str, *, may_be_cut: bool) -> None:
        self._path = path
        if not disk.exists(path):
            disk.replace_bytes(path, pack({}, disk.random.getrandbits(32)))
        data = disk.read_bytes(path)
        pairs, version, self._end = _read(data, path, may_be_cut=may_be_cut)
        super().__init__(pairs, _identity_of(data), version)
        self._file = disk.open(path, "r+")
        self._file.truncate(self._end)
        self._is_open = True
        self._is_refusing = False  # since a full disk has stopped it

    def _check(self) -> None:
        if not self._is_open:
            raise StorageError(f"{self._path} is closed")

    def get(self, key: bytes) -> bytes | None:
        """Return the value of a key."""
        self._check()
        return super().get(key)

    def get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key."""
        return [self.get(key) for key in keys]

    def last_before(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the last key below each of these."""
        self._check()
        places = [bisect_left(self._keys, key) for key in keys]
        return [self._keys[at - 1] if at else None for at in places]

    def between(self, start: bytes, stop: bytes, count_max: int) -> tuple[list[bytes], list[bytes]]:
        """Return up to `count_max` (keys, values) from `start` to before `stop`."""
        self._check()
        low = bisect_left(self._keys, start)
        keys = self._keys[low : min(bisect_left(self._keys, stop), low + count_max)]
        return keys, [self._pairs[key] for key in keys]

    def write(
        self, keys: Sequence[bytes], values: Sequence[bytes], deleted: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        """Append a batch and sync it. Raises: DiskFull, StorageError."""
        self._check()
        assert not self._is_refusing, "it has to be opened again"
        puts = dict(zip(keys, values, strict=True))
        line = _line(puts, deleted)
        try:
            self._file.pwrite(line, self._end)
            self._file.fdatasync()
        except DiskFull:
            self._is_refusing = True
            raise
        except (OSError, StorageError) as error:
            raise StorageError(f"{self._path}: {error}") from error
        self._end += len(line)
        self._version += 1
        _change(self._pairs, puts, deleted)
        self._keys = sorted(self._pairs)

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._is_open:
            self._is_open = False
            self._file.close()


class SimFullDatabase(SimDatabase):
    """A database in use that was opened on a full disk."""

    def write(
        self, keys: Sequence[bytes], values: Sequence[bytes], deleted: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        """Refuse: raises DiskFull."""
        raise DiskFull(f"{self._path}: it was opened for reads only")


class SimLock:
    """A lock that is always free: a simulated bookie has locked its directories."""

    def release(self) -> None:
        """Do nothing."""


class SimDatabases:
    """Databases on a simulated disk, by path."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk

    def exists(self, path: str) -> bool:
        """Report whether the file is a database, damaged or not."""
        return self._disk.exists(path) and not self._disk.read_bytes(path).startswith(b"The index")

    def lock(self, path: str) -> SimLock:
        """Return a lock."""
        return SimLock()

    def read(self, path: str, *, is_exact: bool = False) -> SimReader:
        """Open a database for reading. Raises CorruptRecord."""
        data = self._disk.read_bytes(path)
        pairs, version, _ = _read(data, path)
        return SimReader(pairs, _identity_of(data), version)

    def create(self, path: str, *, is_large: bool) -> SimWriter:
        """Begin a new database."""
        assert not self._disk.exists(path)
        return SimWriter(self._disk, path)

    def open(self, path: str, *, is_large: bool, may_be_cut: bool) -> SimDatabase:
        """Open a database, or create one. Raises: CorruptRecord; DiskFull, because RocksDB writes when it opens one."""
        if self._disk.usage(posixpath.dirname(path))[1] <= 0:
            raise DiskFull(f"{path}: no space")
        return SimDatabase(self._disk, path, may_be_cut=may_be_cut)

    def open_full(self, path: str, *, may_be_cut: bool) -> SimDatabase:
        """Open a database for reads. Raises CorruptRecord."""
        return SimFullDatabase(self._disk, path, may_be_cut=may_be_cut)

    def rename(self, path: str, target: str) -> None:
        """Give it another name, durably."""
        self._disk.rename(path, target)
        self._disk.sync_directory(posixpath.dirname(path))

    def remove(self, path: str) -> None:
        """Delete a file, or a folder with all that is in it."""
        if not self._disk.is_directory(path):
            if self._disk.exists(path):
                self._disk.unlink(path)
            return
        for name in self._disk.list(path):
            self.remove(posixpath.join(path, name))
        self._disk.sync_directory(path)
        self._disk.remove_directory(path)


def pack(pairs: dict[bytes, bytes], identity: int = 0) -> bytes:
    """Return the file of a database with these pairs."""
    return MAGIC + b"%08x\n" % identity + (_line(pairs, ()) if pairs else b"")


def _identity_of(data: bytes) -> int:
    return int(data[len(MAGIC) : len(MAGIC) + 8], 16)


def parse(data: bytes) -> dict[bytes, bytes]:
    """Return the pairs of a database's file. Raises CorruptRecord."""
    return _read(data, "database")[0]


def _line(puts: dict[bytes, bytes], deleted: Sequence[tuple[bytes, bytes]]) -> bytes:
    facts = [{key.hex(): value.hex() for key, value in puts.items()}, [[a.hex(), b.hex()] for a, b in deleted]]
    body = json.dumps(facts).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


def _read(data: bytes, path: str, *, may_be_cut: bool = False) -> tuple[dict[bytes, bytes], int, int]:
    """Return (pairs, version, end of the last whole line). Raises CorruptRecord.

    `may_be_cut`: the first damaged line is the end.
    """
    start = re.match(MAGIC + b"[0-9a-f]{8}\n", data)
    if start is None:
        raise CorruptRecord("it is no database", path=path, offset=0)
    pairs: dict[bytes, bytes] = {}
    version, at = 0, start.end()
    while (end := data.find(b"\n", at) + 1) > 0:
        line = data[at : end - 1]
        if line[:8] != b"%08x" % zlib.crc32(line[9:]):
            if may_be_cut:
                break
            raise CorruptRecord("a batch has a wrong checksum", path=path, offset=at)
        puts, deleted = json.loads(line[9:])
        pairs_put = {bytes.fromhex(key): bytes.fromhex(value) for key, value in puts.items()}
        _change(pairs, pairs_put, [(bytes.fromhex(a), bytes.fromhex(b)) for a, b in deleted])
        version, at = version + 1, end
    return pairs, version, at


def _change(pairs: dict[bytes, bytes], puts: dict[bytes, bytes], deleted: Sequence[tuple[bytes, bytes]]) -> None:
    for start, stop in deleted:
        for key in [key for key in pairs if start <= key < stop]:
            del pairs[key]
    pairs.update(puts)
