"""Parquet files of offloaded ledgers: writes them, reads them back, and finds leftovers of lost attempts.

    TO/CLUSTER/ledger-ID/ATTEMPT/part-FIRST-WRITER.parquet  entries from FIRST on
    TO/CLUSTER/ledger-ID/ATTEMPT/_index-CRC.json            what each row group holds

A part is written under a temporary name, which readers ignore, and renamed when it is complete. Tasks that write the
same part, perhaps of another driver with the same run id, give it different names (WRITER), and indexes with different
content have different names too. So no task replaces a file of a copy that was committed meanwhile. A directory counts
only if the ledger's record names it, and of its files those that the index with the record's CRC names; otherwise it is
a lost attempt. Backups have the same layout, perhaps in the same
place. The digits at the end of ATTEMPT tell whose it is, so neither job deletes the other's files. All calls block.
Source: spark 5.3.
"""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
from msgspec import Struct, to_builtins

from bookies.client.base import EntryBatch
from bookies.client.read.offloaded import INDEX, Group, Index, content_of, entries_of, index_name
from bookies.errors import ReadFailed
from bookies.kernels import crc32c, digest
from bookies.model import ENTRY_HEADER_SIZE, DigestType
from bookies.protocol.ledger.offload import Content
from bookies.spark.base import arrow
from bookies.spark.base.files import absolute as absolute
from bookies.spark.base.files import system_of as system_of

GROUP_SIZE = 8 << 20  # bytes of payload: read even for a single entry
FILE_SIZE_MAX = 512 << 20
COMPRESSION = "zstd"
OFFLOAD_DIGITS, BACKUP_DIGITS = 8, 12  # hexadecimal, after the last dash of an attempt's name
SCHEMA = pa.schema(
    [
        pa.field("entry_id", pa.int64(), nullable=False),
        pa.field("length", pa.int64(), nullable=False),
        pa.field("lac", pa.int64(), nullable=False),
        pa.field("crc32c", pa.int32(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
    ]
)
_signed = struct.Struct(">i").unpack_from


class Part(Struct, frozen=True):
    """One file of a copy. `groups`: its row groups; `size`: bytes of the file."""

    file: str
    size: int
    groups: tuple[Group, ...]
    content: Content

    @property
    def first(self) -> int:
        return self.groups[0].first

    @property
    def last(self) -> int:
        return self.groups[-1].last

    def to_json(self) -> dict[str, Any]:
        return dict(to_builtins(self))

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Part:
        groups = tuple(Group(**group) for group in content["groups"])
        return cls(content["file"], content["size"], groups, Content(**content["content"]))


def table_of(batch: EntryBatch) -> pa.Table:
    """Return entries as rows of the files.

    The CRC-32C is the entry's own; for a ledger with another digest it is computed.
    """
    columns = [arrow.header_column(batch, name) for name in ("entry_id", "length", "lac", "crc32c")]
    if columns[-1].null_count:
        columns[-1] = pa.array(_computed_checksums(batch), pa.int32())
    return pa.Table.from_arrays([*columns, arrow.values([batch])], schema=SCHEMA)


def _computed_checksums(batch: EntryBatch) -> list[int]:
    """Compute the CRC-32C of each entry, as a signed number."""
    checksums = []
    for start, end in pairwise(batch.starts):
        body = start + 4
        head = batch.data[body : body + ENTRY_HEADER_SIZE]
        crc = digest(DigestType.CRC32C, b"", head, batch.data[body + batch.header_size : end])
        checksums.append(_signed(crc)[0])
    return checksums


class NewFile:
    """File under a temporary name, which readers ignore, until it is complete. All calls block and raise OSError."""

    def __init__(self, system: Any, directory: str, name: str) -> None:
        self.name, self.path = name, f"{directory}/{name}"
        self._system = system
        self._temporary = f"{directory}/_{name}.{uuid.uuid4().hex}"
        self.sink: Any = system.open_output_stream(self._temporary)
        self._tables: Any = None
        self._is_done = False

    def write_table(self, table: pa.Table, row_group_size: int | None = None, *, use_dictionary: bool = True) -> None:
        """Append a table to a Parquet file."""
        if self._tables is None:
            self._tables = pq.ParquetWriter(
                self.sink, table.schema, compression=COMPRESSION, use_dictionary=use_dictionary
            )
        self._tables.write_table(table, row_group_size=row_group_size)

    def finish(self) -> None:
        """Give the file its name."""
        self._close()
        self._system.move(self._temporary, self.path)
        self._is_done = True

    def discard(self) -> None:
        """Delete an incomplete file. Idempotent."""
        if not self._is_done:
            self._is_done = True
            self._close()
            self._system.delete_file(self._temporary)

    def _close(self) -> None:
        if self._tables is not None:
            self._tables.close()
        self.sink.close()


class PartsWriter:
    """Writer of the files of consecutive entries of one ledger. `directory`: of the attempt."""

    def __init__(self, directory: str, *, file_size_max: int = FILE_SIZE_MAX) -> None:
        self._system, self._path = system_of(directory)
        self._file_size_max = file_size_max
        self._file: NewFile | None = None
        self._groups: list[Group] = []
        self._content = Content()
        self._writer = uuid.uuid4().hex[:8]
        self._waiting: list[EntryBatch] = []
        self._size = 0  # approximate payload bytes of the waiting batches
        self.parts: list[Part] = []
        self._system.create_dir(self._path, recursive=True)

    def append(self, batch: EntryBatch) -> None:
        """Append the entries that follow. Raises OSError."""
        self._waiting.append(batch)
        self._size += batch.size
        if self._size >= GROUP_SIZE:
            self._flush()

    def _flush(self) -> None:
        if not self._waiting:
            return
        if self._file is not None and self._content.size + self._size > self._file_size_max:
            self._end_file(self._file)
        first, last = self._waiting[0].first_entry_id, self._waiting[-1].last_entry_id
        if self._file is None:
            self._file = NewFile(self._system, self._path, f"part-{first:012d}-{self._writer}.parquet")
        content = Content()
        for batch in self._waiting:
            content = content.joined(content_of(batch))
        above = self._waiting[-1].lengths()[-1]
        rows = pa.concat_tables(map(table_of, self._waiting))
        self._file.write_table(rows, last - first + 1, use_dictionary=False)
        self._groups.append(Group(self._file.name, len(self._groups), first, last, above - content.size, above))
        self._content = self._content.joined(content)
        self._waiting, self._size = [], 0

    def _end_file(self, file: NewFile) -> None:
        file.finish()
        size = self._system.get_file_info(file.path).size
        self.parts.append(Part(file.name, size, tuple(self._groups), self._content))
        self._file, self._groups, self._content = None, [], Content()

    def finish(self) -> list[Part]:
        """Complete the last file and return all parts."""
        self._flush()
        if self._file is not None:
            self._end_file(self._file)
        return self.parts

    def discard(self) -> None:
        """Close and delete an incomplete file."""
        if self._file is not None:
            self._file.discard()


def check_part(directory: str, ledger_id: int, part: Part) -> None:
    """Read a whole file back. Raises `ReadFailed`, `DigestMismatch`."""
    system, path = system_of(directory)
    path = f"{path}/{part.file}"
    content = Content()
    try:
        with system.open_input_file(path) as file, pq.ParquetFile(file) as parquet:
            if parquet.num_row_groups != len(part.groups):
                raise ValueError(f"it has {parquet.num_row_groups} row groups, not {len(part.groups)}")
            for group in part.groups:
                table = parquet.read_row_group(group.number)
                content = content.joined(content_of(entries_of(ledger_id, table, group, is_crc32c=True)))
        if content != part.content:
            raise ValueError("its content differs from what was read from the ledger")
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        raise ReadFailed(f"{path} cannot be read back as it was written: {error}", ledger_id=ledger_id) from error


def lost_parts(directory: str, parts: Sequence[Part]) -> list[str]:
    """Return the files that are missing, or whose size differs from the written one. Raises OSError."""
    system, path = system_of(directory)
    infos = system.get_file_info([f"{path}/{part.file}" for part in parts]) if parts else []
    return [
        part.file
        for part, info in zip(parts, infos, strict=True)
        if info.type is not pa.fs.FileType.File or info.size != part.size
    ]


def index_of(ledger_id: int, attempt: str, parts: Sequence[Part]) -> tuple[Index, Content]:
    """Return the index of a copy, and its content. Raises ValueError unless the parts are consecutive from entry 0."""
    content = Content()
    groups: list[Group] = []
    for part in sorted(parts, key=lambda part: part.first):
        if part.first != content.rows or part.groups[0].below != content.size:
            raise ValueError(f"file {part.file} does not follow on {content.rows:,} entries of {content.size:,} bytes")
        groups += part.groups
        content = content.joined(part.content)
    return Index(ledger_id, attempt, tuple(groups)), content


def write_index(directory: str, index: Index) -> int:
    """Write the index, and return its CRC-32C. Raises OSError."""
    system, path = system_of(directory)
    system.create_dir(path, recursive=True)
    data = index.pack()
    crc = int(crc32c(data))
    file = NewFile(system, path, index_name(crc))
    try:
        file.sink.write(data)
        file.finish()
    except BaseException:
        file.discard()
        raise
    return crc


def delete_others(directory: str, index: Index, crc: int) -> None:
    """Delete the files that other attempts have left beside a committed copy. Raises OSError.

    `index`, `crc`: as the ledger's record names it. Before the commit, the files of another attempt may be the ones
    that are committed.
    """
    system, path = system_of(directory)
    named = {group.file for group in index.groups} | {index_name(crc), INDEX}
    for info in system.get_file_info(pa.fs.FileSelector(path)):
        if info.base_name not in named and info.type is pa.fs.FileType.File:
            system.delete_file(info.path)


def put(system: Any, path: str, name: str, data: bytes) -> None:
    """Write a file in one step: under another name until it is complete. Raises OSError."""
    with system.open_output_stream(f"{path}/_new{name}") as file:
        file.write(data)
    system.move(f"{path}/_new{name}", f"{path}/{name}")


class Attempt(Struct, frozen=True):
    """Directory that holds, or held, a copy. `changed_s`: last write to one of its files, seconds since 1970."""

    ledger_id: int
    attempt: str
    path: str
    changed_s: float


def attempts(to: str, cluster: str, digits: int) -> Iterator[Attempt]:
    """Yield the directories of copies of a cluster's ledgers that one job wrote. `digits`: at the end of its names."""
    is_own = re.compile(rf".+-[0-9a-f]{{{digits}}}").fullmatch
    system, path = system_of(f"{to}/{cluster}")
    selector = pa.fs.FileSelector(path, allow_not_found=True)
    for ledger in sorted(system.get_file_info(selector), key=lambda info: str(info.path)):
        number = ledger.base_name.removeprefix("ledger-")
        if ledger.type is not pa.fs.FileType.Directory or not number.isdigit():
            continue
        for info in system.get_file_info(pa.fs.FileSelector(ledger.path)):
            if info.type is pa.fs.FileType.Directory and is_own(info.base_name):
                yield Attempt(int(number), info.base_name, info.path, changed_s(system, info))


def changed_s(system: Any, directory: Any) -> float:
    """Return the last write to a directory or one of its files, seconds since 1970. `directory`: its information."""
    inside = system.get_file_info(pa.fs.FileSelector(directory.path, allow_not_found=True))
    return max(info.mtime_ns or 0 for info in [directory, *inside]) / 1e9


def delete_attempt(to: str, attempt: Attempt) -> None:
    """Delete the directory of an attempt. Raises OSError."""
    system, _ = system_of(to)
    system.delete_dir(attempt.path)


def backup_name(run_id: str) -> str:
    """Return a name of an attempt of a backup that no other attempt has."""
    return f"{run_id}-{uuid.uuid4().hex[:BACKUP_DIGITS]}"


def offload_name(run_id: str, crc: int) -> str:
    """Return the name of an attempt of an offload. `crc`: of what it copies."""
    return f"{run_id}-{crc:0{OFFLOAD_DIGITS}x}"


def directory_of(to: str, cluster: str, ledger_id: int, attempt: str) -> str:
    return f"{to}/{cluster}/ledger-{ledger_id}/{attempt}"
