"""What Apache's DbLedgerStorage keeps in RocksDB: two databases in each index directory, `locations` and `ledgers`.

    locations   int64 ledger | int64 entry -> int64 location (log id and offset, as in index files)
    ledgers     int64 ledger               -> LedgerData: fenced, master key, explicit LAC, limbo

Keys are big-endian, so their order is that of the ids. A ledger belongs to directory number `ledger mod directories`,
as a whole: index, and entries, whose log ids count within that directory alone. Here a ledger's data is an
`IndexHeader`, and its entries are `Run`s of slots, which index files are made of too.

`Databases` is the interface to RocksDB, so that nothing here depends on a binding. Source: storage 6.3, 6.4, 12.4.
"""

from __future__ import annotations

import posixpath
import struct
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from bookies.encoding import protobuf
from bookies.errors import CorruptRecord
from bookies.storage.identity.index_kind import LOCATIONS
from bookies.storage.index.index_format import (
    EXPLICIT_LAC_SIZE_MIN,
    SLOT_SIZE,
    STATE_FENCED,
    STATE_LIMBO,
    IndexHeader,
)

LEDGERS = "ledgers"  # beside LOCATIONS
LOG_SUMMARIES = "metadata-cache"  # a third database, of entry log metadata, that its owner can always make again
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
    }
)

_ID_MAX = (1 << 63) - 1
_INT64 = struct.Struct(">q")
_PAIR = struct.Struct(">qq")


class Reader(Protocol):
    """A database opened for reading. All calls raise CorruptRecord for damage. Nothing of it is changed."""

    def pieces(self) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """(keys, values) of everything, in the order of the keys, many at a time."""

    def get(self, key: bytes) -> bytes | None: ...

    def from_key(self, key: bytes) -> Iterator[tuple[bytes, bytes]]: ...

    def close(self) -> None: ...


class Writer(Protocol):
    """A new database. Keys come in ascending order."""

    def put(self, keys: Sequence[bytes], values: Sequence[bytes]) -> None: ...

    def finish(self) -> None:
        """Make it durable and close it."""

    def close(self) -> None:
        """Without `finish`: it is not needed any more."""


class Lock(Protocol):
    def release(self) -> None: ...


class Databases(Protocol):
    """Databases by the path of their directory."""

    def exists(self, path: str) -> bool: ...

    def lock(self, path: str) -> Lock:
        """Keep other processes out. Raises DirectoryInUse."""

    def read(self, path: str, *, is_exact: bool = False) -> Reader:
        """Half a record at the end of its write-ahead log is what a crash leaves, and damage if it `is_exact`.

        Raises CorruptRecord; ConfigError when no binding is installed.
        """

    def create(self, path: str, *, is_large: bool) -> Writer: ...

    def remove(self, path: str) -> None:
        """With all its files, if it is there."""


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive entries of one ledger, and their locations as slots of an index file."""

    ledger_id: int
    entry_ids: range
    slots: bytes


def directory_of(ledger_id: int, count: int) -> int:
    """Number of the directory, of so many, that a ledger belongs to."""
    return ledger_id % count


def pack_key(ledger_id: int) -> bytes:
    return _INT64.pack(ledger_id)


def entry_keys(ledger_id: int, entry_ids: Sequence[int]) -> list[bytes]:
    """Keys in `locations`."""
    pack = _PAIR.pack
    return [pack(ledger_id, entry_id) for entry_id in entry_ids]


def pack_ledger_data(header: IndexHeader) -> bytes:
    """The value in `ledgers`. An uncertain ledger is one in limbo."""
    message: list[tuple[str, protobuf.Value]] = [
        ("exists", 1),
        ("fenced", int(header.is_fenced)),
        ("masterKey", header.master_key),
    ]
    if header.explicit_lac:
        message.append(("explicitLac", header.explicit_lac))
    if header.is_uncertain:
        message.append(("limbo", 1))
    return protobuf.pack(LEDGER_DATA, message)


def parse_ledger_data(data: bytes, path: str, ledger_id: int) -> IndexHeader:
    """Raises CorruptRecord."""
    try:
        fields = dict(protobuf.parse(LEDGER_DATA, data))
    except ValueError as error:
        raise CorruptRecord(f"ledger {ledger_id}: {error}", path=path, offset=0, ledger_id=ledger_id) from error
    key, explicit_lac = fields.get("masterKey"), fields.get("explicitLac", b"")
    if "exists" not in fields or "fenced" not in fields or not isinstance(key, bytes):
        raise CorruptRecord(f"ledger {ledger_id}: fields are missing", path=path, offset=0, ledger_id=ledger_id)
    assert isinstance(explicit_lac, bytes)
    if 0 < len(explicit_lac) < EXPLICIT_LAC_SIZE_MIN:
        problem = f"ledger {ledger_id}: an explicit LAC of {len(explicit_lac)} bytes"
        raise CorruptRecord(problem, path=path, offset=0, ledger_id=ledger_id)
    state = (STATE_FENCED if fields["fenced"] else 0) | (STATE_LIMBO if fields.get("limbo") else 0)
    return IndexHeader(key, state, explicit_lac)


def ledgers_of(reader: Reader, path: str) -> dict[int, IndexHeader]:
    """Every ledger, ascending. Keys may be 16 bytes long, of which the first 8 count (Q-10). Raises CorruptRecord."""
    found: dict[int, IndexHeader] = {}
    for keys, values in reader.pieces():
        for key, value in zip(keys, values, strict=True):
            if len(key) not in (8, 16):
                raise CorruptRecord(f"a key of {len(key)} bytes", path=path, offset=0)
            ledger_id = _INT64.unpack_from(key)[0]
            if ledger_id >= 0:
                header = parse_ledger_data(value, path, ledger_id)
                # Both forms of one key: a promise that either knows of counts.
                found[ledger_id] = header.with_state(found[ledger_id].state) if ledger_id in found else header
    return found


def needs_integrity_check(reader: Reader) -> bool:
    """Whether the directory's flags say that a check of what is missing had not ended. Source: storage 10.2."""
    value = reader.get(pack_key(FLAGS_LEDGER_ID))
    return value is not None and bool(int.from_bytes(value, "big") & NEEDS_INTEGRITY_CHECK)


def runs_of(reader: Reader, path: str) -> Iterator[Run]:
    """Every entry, in the order of ledgers and entries. Raises CorruptRecord."""
    for keys, values in reader.pieces():
        if set(map(len, keys)) != {16} or set(map(len, values)) != {SLOT_SIZE}:
            raise CorruptRecord("a key or a value is not as long as those of locations are", path=path, offset=0)
        ids = array("Q", b"".join(keys))  # unsigned: negative ids come behind all others, as the keys do
        if sys.byteorder == "little":
            ids.byteswap()
        yield from _split(ids[0::2], ids[1::2], b"".join(values))


def runs_of_ledger(reader: Reader, ledger_id: int) -> Iterator[Run]:
    """The entries of one ledger. Raises CorruptRecord."""
    for key, value in reader.from_key(_PAIR.pack(ledger_id, 0)):
        found, entry_id = _PAIR.unpack(key)
        if found != ledger_id:
            return
        yield Run(ledger_id, range(entry_id, entry_id + 1), value)


def _split(ledger_ids: array[int], entry_ids: array[int], slots: bytes) -> Iterator[Run]:
    """Runs of keys that are ascending. What was a negative id is not an entry."""
    start, count = 0, len(ledger_ids)
    while start < count:
        ledger_id, first = ledger_ids[start], entry_ids[start]
        stop = bisect_right(ledger_ids, ledger_id, start)
        # Within a ledger the distance of id and index only grows, so a run ends where it is no longer the same.
        positions = range(start, stop)
        end = start + bisect_right(positions, first - start, key=lambda at: entry_ids[at] - at)
        if ledger_id <= _ID_MAX and first <= _ID_MAX:
            run = range(first, first + end - start)
            yield Run(ledger_id, run, slots[start * SLOT_SIZE : end * SLOT_SIZE])
        start = end


def paths_in(directory: str) -> tuple[str, str]:
    """(`locations`, `ledgers`) of a `current` directory."""
    return posixpath.join(directory, LOCATIONS), posixpath.join(directory, LEDGERS)
