"""The RocksDB databases of Apache's DbLedgerStorage: `locations` and `ledgers` in each index directory.

    locations   int64 ledger | int64 entry -> int64 location (log id and offset, as in index files)
    ledgers     int64 ledger               -> LedgerData: fenced, master key, explicit LAC, limbo

Keys are big-endian, so their order is that of the ids. A ledger belongs to directory number `ledger mod directories`
with its index and its entries. Log ids are unique only within a directory. This module represents a ledger's data as
an `IndexHeader`, and its entries as `Run`s of slots, the units of index files.

`Databases` is the interface to RocksDB, independent of a binding. Source: storage 6.3, 6.4, 12.4.
"""

from __future__ import annotations

import posixpath
import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Protocol

from msgspec import Struct

from bookies.encoding import protobuf
from bookies.errors import CorruptRecord
from bookies.storage.identity.index_kind import LOCATIONS
from bookies.storage.index.index_format import (
    EXPLICIT_LAC_SIZE_MIN,
    SLOT_SIZE,
    STATE_FENCED,
    STATE_LIMBO,
    STATE_REBUILDING,
    IndexHeader,
)

LEDGERS = "ledgers"  # beside LOCATIONS
LOG_SUMMARIES = "metadata-cache"  # a third database, of entry log metadata, that its owner can always recreate
NAMES = (LOCATIONS, LEDGERS)
FLAGS_LEDGER_ID = -0xEEFD  # the key of the state flags in `ledgers`; no negative key is a ledger
NEEDS_INTEGRITY_CHECK = 1  # flag: entries that this bookie should hold may be missing

LEDGER_DATA = protobuf.Schema(
    {
        "exists": (1, "int"),
        "fenced": (2, "int"),
        "masterKey": (3, "bytes"),
        "explicitLac": (4, "bytes"),
        "limbo": (5, "int"),
        "rebuilding": (1000, "int"),
    }
)

ID_MAX = (1 << 63) - 1
_INT64 = struct.Struct(">q")
_PAIR = struct.Struct(">qq")


class Lookup(Protocol):
    """A database that is open. Raises CorruptRecord for damage."""

    def get(self, key: bytes) -> bytes | None: ...


class Reader(Lookup, Protocol):
    """A database opened for reading. All calls raise CorruptRecord for damage. Reading does not change the database."""

    def version(self) -> tuple[int, int]:
        """Return (a number that identifies the database, its changes so far)."""

    def pieces(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yield (keys, values) of the whole database, in the order of the keys, in batches."""

    def from_key(self, key: bytes) -> Iterator[tuple[bytes, bytes]]: ...

    def close(self) -> None: ...


class Writer(Protocol):
    """A new database. Keys are put in ascending order."""

    def put(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None: ...

    def finish(self) -> None:
        """Make it durable and close it."""

    def close(self) -> None:
        """Discard the database if `finish` was not called."""


class Database(Lookup, Protocol):
    """A database in use. One worker writes; any may read. All calls raise CorruptRecord for damage."""

    def version(self) -> tuple[int, int]:
        """Return (a number that identifies the database, its changes so far). The latter never decreases."""

    def pieces(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yield (keys, values) of the whole database, in the order of the keys, in batches."""

    def get_all(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the value of each key."""

    def last_before(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the last key below each of these, which ascend."""

    def between(self, start: bytes, stop: bytes, count_max: int) -> tuple[list[bytes], list[bytes]]:
        """Return up to `count_max` (keys, values) from `start` to before `stop`."""

    def write(
        self, keys: Sequence[bytes], values: Sequence[bytes], deleted: Sequence[tuple[bytes, bytes]] = ()
    ) -> None:
        """Delete these ranges [start, stop), then put keys: all of it durably, or none.

        Raises: DiskFull, after which it has to be opened again; StorageError: it is unknown what is durable.
        """

    def close(self) -> None:
        """Close it. Idempotent."""


class Lock(Protocol):
    def release(self) -> None: ...


class Databases(Protocol):
    """RocksDB databases, by the path of their directory."""

    def exists(self, path: str) -> bool: ...

    def lock(self, path: str) -> Lock:
        """Lock out other processes. Raises DirectoryInUse."""

    def read(self, path: str, *, is_exact: bool = False) -> Reader:
        """Open a database. `is_exact`: a cut-off record at the end of the write-ahead log is damage, not a trace of a
        crash.

        Raises CorruptRecord; ConfigError when no binding is installed.
        """

    def create(self, path: str, *, is_large: bool) -> Writer: ...

    def open(self, path: str, *, is_large: bool, may_be_cut: bool) -> Database:
        """Open a database for serving; create a missing one.

        `may_be_cut`: the write-ahead log ends at the first damaged batch, which a power failure has torn. Otherwise
        such a batch is damage, unless the log ends within it.

        Raises: DirectoryInUse, CorruptRecord, DiskFull, StorageError; ConfigError when no binding is installed.
        """

    def open_full(self, path: str, *, may_be_cut: bool) -> Database:
        """Open a database as `open` does whose disk has no space for that. Its writes raise DiskFull.

        Raises: DirectoryInUse, CorruptRecord, StorageError, OSError.
        """

    def rename(self, path: str, target: str) -> None:
        """Give a closed database another name, durably."""

    def remove(self, path: str) -> None:
        """Delete the database with all its files, if it exists."""


class Run(Struct, frozen=True):
    """Consecutive entries of one ledger, and their locations as slots of an index file."""

    ledger_id: int
    entry_ids: range
    slots: bytes


def version_problem(version: tuple[int, int], noted: Sequence[int]) -> str:
    """Return why a database cannot be the one whose version was `noted`; empty if it can, or without a note."""
    if not noted:
        return ""
    (identity, changes), (noted_identity, noted_changes) = version, noted
    if identity != noted_identity:
        return "it is another database"
    return f"it ends at change {changes:,} of {noted_changes:,}" if changes < noted_changes else ""


def pack_key(ledger_id: int) -> bytes:
    return _INT64.pack(ledger_id)


def entry_keys(ledger_id: int, entry_ids: Sequence[int]) -> list[bytes]:
    """Return the keys of entries in `locations`."""
    pack = _PAIR.pack
    return [pack(ledger_id, entry_id) for entry_id in entry_ids]


def pack_ledger_data(header: IndexHeader) -> bytes:
    """Return the value of a ledger in `ledgers`. An uncertain ledger is stored as in limbo.

    Apache's bookie ignores and keeps `rebuilding`: 1, or 2 if the ledger is in limbo for another reason too.
    """
    message: list[tuple[str, protobuf.Value]] = [
        ("exists", 1),
        ("fenced", int(header.is_fenced)),
        ("masterKey", header.master_key),
    ]
    if header.explicit_lac:
        message.append(("explicitLac", header.explicit_lac))
    if header.is_uncertain:
        message.append(("limbo", 1))
    if header.is_rebuilding:
        message.append(("rebuilding", 1 + header.is_in_limbo))
    return protobuf.pack(LEDGER_DATA, message)


def parse_ledger_data(data: bytes, path: str, ledger_id: int) -> IndexHeader:
    """Parse the value of a ledger in `ledgers`. Raises CorruptRecord."""
    try:
        fields = dict(protobuf.parse(LEDGER_DATA, data))
    except ValueError as error:
        raise CorruptRecord(f"ledger {ledger_id}: {error}", path=path, offset=0, ledger_id=ledger_id) from error
    key, explicit_lac = fields.get("masterKey"), fields.get("explicitLac", b"")
    if "exists" not in fields or "fenced" not in fields or not isinstance(key, bytes):
        raise CorruptRecord(f"ledger {ledger_id}: fields are missing", path=path, offset=0, ledger_id=ledger_id)
    assert isinstance(explicit_lac, bytes)
    if 0 < len(explicit_lac) < EXPLICIT_LAC_SIZE_MIN:
        problem = f"ledger {ledger_id}: the length of the explicit LAC, {len(explicit_lac)} bytes, is invalid"
        raise CorruptRecord(problem, path=path, offset=0, ledger_id=ledger_id)
    state = STATE_FENCED if fields["fenced"] else 0
    if fields.get("limbo"):
        rebuilding = fields.get("rebuilding", 0)
        state |= (STATE_REBUILDING if rebuilding else 0) | (STATE_LIMBO if rebuilding != 1 else 0)
    return IndexHeader(key, state, explicit_lac)


def ledgers_of(reader: Reader, path: str) -> dict[int, IndexHeader]:
    """Return every ledger, ascending. Raises CorruptRecord.

    Q-10: keys of the `ledgers` database may have 16 bytes, of which the first 8 count.
    """
    headers: dict[int, IndexHeader] = {}
    for keys, values in reader.pieces():
        for key, value in zip(keys, values, strict=True):
            if len(key) not in (8, 16):
                raise CorruptRecord(f"a key has {len(key)} bytes, not 8 or 16", path=path, offset=0)
            ledger_id = _INT64.unpack_from(key)[0]
            if ledger_id >= 0:
                header = parse_ledger_data(value, path, ledger_id)
                # If both forms of a key exist, a promise in either one counts.
                headers[ledger_id] = header.with_state(headers[ledger_id].state) if ledger_id in headers else header
    return headers


def needs_integrity_check(reader: Lookup) -> bool:
    """Report whether the directory's flags record an unfinished integrity check. Source: storage 10.2."""
    value = reader.get(pack_key(FLAGS_LEDGER_ID))
    return value is not None and bool(int.from_bytes(value, "big") & NEEDS_INTEGRITY_CHECK)


def runs_of(reader: Reader, path: str) -> Iterator[Run]:
    """Yield every entry, in the order of ledgers and entries. Raises CorruptRecord."""
    for keys, values in reader.pieces():
        if set(map(len, keys)) != {16} or set(map(len, values)) != {SLOT_SIZE}:
            raise CorruptRecord("a key does not have 16 bytes, or a value not 8", path=path, offset=0)
        ids = array("Q", b"".join(keys))  # unsigned: negative ids come after all others, as in the order of the keys
        if sys.byteorder == "little":
            ids.byteswap()
        yield from _split(ids[0::2], ids[1::2], b"".join(values))


def runs_of_ledger(reader: Reader, ledger_id: int) -> Iterator[Run]:
    """Yield the entries of one ledger. Raises CorruptRecord."""
    for key, value in reader.from_key(_PAIR.pack(ledger_id, 0)):
        key_ledger_id, entry_id = _PAIR.unpack(key)
        if key_ledger_id != ledger_id:
            return
        yield Run(ledger_id, range(entry_id, entry_id + 1), value)


def _split(ledger_ids: array[int], entry_ids: array[int], slots: bytes) -> Iterator[Run]:
    """Yield the runs of ascending keys, skipping negative ids."""
    start, count = 0, len(ledger_ids)
    while start < count:
        ledger_id, first = ledger_ids[start], entry_ids[start]
        stop = bisect_right(ledger_ids, ledger_id, start)
        # Within a ledger the difference of id and index never shrinks, so a run ends where it changes.
        positions = range(start, stop)
        end = start + bisect_right(positions, first - start, key=lambda at: entry_ids[at] - at)
        if ledger_id <= ID_MAX and first <= ID_MAX:
            run = range(first, first + end - start)
            yield Run(ledger_id, run, slots[start * SLOT_SIZE : end * SLOT_SIZE])
        start = end


def paths_in(directory: str) -> tuple[str, str]:
    """Return the paths of (`locations`, `ledgers`) in a `current` directory."""
    return posixpath.join(directory, LOCATIONS), posixpath.join(directory, LEDGERS)
