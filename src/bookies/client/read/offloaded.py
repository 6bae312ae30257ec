"""Reads of an offloaded ledger from its Parquet files, in the same batches that bookies would have sent.

The directory of a copy holds `part-....parquet` files, ordered by entry id, with the columns of `SCHEMA`, and
`_index-....json`, which lists the contents of each row group. Its name has the CRC-32C that the ledger's record has, so
the record names exactly the files of one attempt. Copies of earlier versions have `_index.json`. The columns are the
entry's header, so each entry is rebuilt as it was on the bookies and checked with its CRC-32C: a damaged file delivers
no entry. Any program that reads Parquet can read the directory as a table.

The calls of `OffloadedFiles` block; `OffloadedFetch` makes them through a worker. Needs pyarrow. Source: spark 5.3.
"""

from __future__ import annotations

import json
import struct
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from msgspec import Struct, to_builtins

from bookies.client.base import EntryBatch
from bookies.encoding.documents import parse_json
from bookies.errors import DigestMismatch, NotSupported, ReadFailed
from bookies.kernels import crc32c, verify_records
from bookies.model import ENTRY_HEADER_SIZE, DigestType, LedgerMetadata
from bookies.protocol.ledger.offload import Content, Offload, offload_of

if TYPE_CHECKING:
    from bookies.runtime.ports import Worker

INDEX = "_index.json"  # of earlier versions
COLUMNS = ("entry_id", "length", "lac", "crc32c", "value")
_head = struct.Struct(">Iqqqqi").pack  # of a record with a CRC-32C digest
_plain_head = struct.Struct(">Iqqqq").pack  # of one without a digest


def arrow() -> Any:
    """Return pyarrow with its Parquet and file system modules. Raises `NotSupported`."""
    try:
        import pyarrow
        import pyarrow.fs
        import pyarrow.parquet
    except ImportError as error:
        raise NotSupported(
            "the ledger is offloaded, and reading its Parquet files needs pyarrow: pip install 'bookies[spark]'"
        ) from error
    return pyarrow


class Group(Struct, frozen=True):
    """A row group: entries first..last.

    `below`, `above`: the ledger's length before the first and after the last of them.
    """

    file: str
    number: int
    first: int
    last: int
    below: int
    above: int


def index_name(crc: int) -> str:
    """Return the name of the index file with this CRC-32C."""
    return f"_index-{crc:08x}.json"


class Index(Struct, frozen=True):
    """The contents of a copy's files, in the order of entries."""

    ledger_id: int
    attempt: str
    groups: tuple[Group, ...]

    def pack(self) -> bytes:
        content = {
            "ledger": self.ledger_id,
            "attempt": self.attempt,
            "groups": [to_builtins(group) for group in self.groups],
        }
        return json.dumps(content, separators=(",", ":"), sort_keys=True).encode()


def parse_index(data: bytes) -> Index:
    """Parse an index. Raises ValueError, TypeError, KeyError."""
    content = parse_json(data)
    groups = tuple(Group(**group) for group in content["groups"])
    return Index(int(content["ledger"]), str(content["attempt"]), groups)


class OffloadedFiles:
    """The offloaded copy of one ledger. All calls block.

    They raise `ReadFailed` if a file is missing, damaged or not of this copy, and `DigestMismatch` if an entry in it
    does not verify.
    """

    def __init__(self, record: LedgerMetadata) -> None:
        copy = offload_of(record)
        if copy is None:
            raise NotSupported(
                "it is not offloaded: tier auto reads it from the bookies, `bk spark offload` copies it",
                ledger_id=record.ledger_id,
            )
        self.copy: Offload = copy
        self._ledger_id = record.ledger_id
        self._is_crc32c = record.digest_type is DigestType.CRC32C
        self._arrow = arrow()
        self._system, self._path = self._arrow.fs.FileSystem.from_uri(copy.uri)
        self._index: Index | None = None
        self._file: tuple[str, Any] | None = None

    def index(self) -> Index:
        """Read the index, once."""
        if self._index is None:
            path = f"{self._path}/{index_name(self.copy.index)}"
            try:
                try:
                    data = self._content_of(path)
                except FileNotFoundError:
                    data = self._content_of(f"{self._path}/{INDEX}")
                if crc32c(data) != self.copy.index:
                    raise ValueError("its CRC is not the one in the ledger's record")
                self._index = parse_index(data)
            except (OSError, ValueError, TypeError, KeyError) as error:
                raise self._damaged(path, error) from error
        return self._index

    def _content_of(self, path: str) -> bytes:
        with self._system.open_input_file(path) as file:
            return bytes(file.read())

    def group_at(self, entry_id: int) -> Group:
        """Return the row group that holds an entry."""
        for group in self.index().groups:
            if group.first <= entry_id <= group.last:
                return group
        raise self._damaged(self._path, ValueError(f"no row group holds entry {entry_id}"))

    def read(self, group: Group) -> EntryBatch:
        """Return the entries of a row group, verified."""
        path = f"{self._path}/{group.file}"
        try:
            if self._file is None or self._file[0] != path:
                self.close()
                self._file = path, self._arrow.parquet.ParquetFile(self._system.open_input_file(path))
            table = self._file[1].read_row_group(group.number, columns=list(COLUMNS))
            return entries_of(self._ledger_id, table, group, is_crc32c=self._is_crc32c)
        except (OSError, ValueError, KeyError, self._arrow.ArrowException) as error:
            raise self._damaged(path, error) from error

    def check(self) -> Content:
        """Read every entry and return the totals. Raises `ReadFailed` if they differ from the ledger's record."""
        content = Content()
        for group in self.index().groups:
            content = content.joined(content_of(self.read(group)))
        if (content.rows, content.size, content.crc) != (self.copy.rows, self.copy.bytes, self.copy.crc):
            raise self._damaged(self._path, ValueError(f"it has {content.rows:,} entries of {content.size:,} bytes"))
        return content

    def close(self) -> None:
        """Close the open file."""
        if self._file is not None:
            self._file[1].close(force=True)
            self._file = None

    def _damaged(self, path: str, error: Exception) -> ReadFailed:
        reason = " ".join(str(error).split())
        return ReadFailed(
            f"copy {self.copy.attempt} is damaged or gone, at {path}: {reason}; read the ledger from the bookies "
            "while they have it, and offload it again",
            ledger_id=self._ledger_id,
        )


def entries_of(ledger_id: int, table: Any, group: Group, *, is_crc32c: bool) -> EntryBatch:
    """Return the rows of a group as entries. Raises ValueError, `DigestMismatch`.

    `is_crc32c`: the digest of the ledger itself.
    """
    columns = [table.column(name).to_pylist() for name in COLUMNS]
    ids, lengths, lacs, crcs, values = columns
    if ids != list(range(group.first, group.last + 1)):
        raise ValueError(f"row group {group.number} does not hold entries {group.first} to {group.last}")
    if any(None in column for column in columns):
        raise ValueError(f"row group {group.number} has nulls")
    parts = []
    for entry_id, length, lac, crc, value in zip(ids, lengths, lacs, crcs, values, strict=True):
        size = ENTRY_HEADER_SIZE + 4 + len(value)
        parts += [_head(size, ledger_id, entry_id, lac, length, crc), value]
    data = b"".join(parts)
    starts, problem = verify_records(data, 0, len(data), ledger_id, group.first, len(ids), DigestType.CRC32C, b"")
    if len(starts) != len(ids) + 1:
        raise DigestMismatch(
            f"the entry in {group.file} does not verify ({problem})",
            ledger_id=ledger_id,
            entry_id=group.first + len(starts) - 1,
        )
    if is_crc32c:
        return EntryBatch(ledger_id, group.first, data, starts, ENTRY_HEADER_SIZE + 4)
    parts = []
    for entry_id, length, lac, value in zip(ids, lengths, lacs, values, strict=True):
        parts += [_plain_head(ENTRY_HEADER_SIZE + len(value), ledger_id, entry_id, lac, length), value]
    starts = list(accumulate((4 + ENTRY_HEADER_SIZE + len(value) for value in values), initial=0))
    return EntryBatch(ledger_id, group.first, b"".join(parts), starts, ENTRY_HEADER_SIZE)


def content_of(batch: EntryBatch) -> Content:
    """Return the totals of a batch of entries."""
    data, _ = batch.arrow_buffers()
    lengths = batch.lengths()
    return Content().extended(data, struct.pack(f"<{len(lengths)}q", *lengths))


class OffloadedFetch:
    """Entries first..last in order, a row group at a time. The counterpart of `RangeFetch`."""

    def __init__(self, worker: Worker, files: OffloadedFiles, first: int, last: int) -> None:
        self._worker, self._files = worker, files
        self._next, self._last = first, last

    async def next_batch(self) -> EntryBatch | None:
        """Return the next entries, None at the end. Raises as `OffloadedFiles` does."""
        if self._next > self._last:
            return None
        batch = await self._worker.run(self._read, self._next)
        self._next = batch.last_entry_id + 1
        return batch

    def _read(self, entry_id: int) -> EntryBatch:
        batch = self._files.read(self._files.group_at(entry_id))
        return batch.slice(entry_id, min(batch.last_entry_id, self._last))

    def stop(self) -> None:
        """Have no effect: no read is pending between batches."""
