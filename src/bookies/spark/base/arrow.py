"""Columns and record batches of the source. Builds verified entries into Arrow record batches from buffers.

A record batch must match the schema that Spark expects exactly: same order, nullable fields, `timestamp[us, UTC]`,
`binary`. Source: spark 3.2 and 3.5.
"""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from bookies.client.base import EntryBatch
from bookies.errors import InvalidArgument
from bookies.kernels import gather_payloads
from bookies.model import ENTRY_HEADER_SIZE
from bookies.spark.base.plan import Gap, Range
from bookies.spark.base.settings import ReadOptions

BATCH_SIZE_MAX = 8 << 20  # bytes of records in one record batch; a single larger entry is a batch of its own
STRETCH_SIZE_MAX = 1 << 30  # upper limit of bytes of records in one record batch: offsets have 31 bits
CONSTANTS_MAX = 64  # cached columns of one constant value

_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_GAP = pa.struct(
    [
        pa.field("from_seq", pa.int64()),
        pa.field("from_entry", pa.int64()),
        pa.field("until_seq", pa.int64()),
        pa.field("until_entry", pa.int64()),
        pa.field("rows", pa.int64()),
        pa.field("reason", pa.string()),
    ]
)
# name -> (Spark's type, Arrow's type); the order is the order of the columns.
COLUMNS: Mapping[str, tuple[str, pa.DataType]] = {
    "log": ("STRING", pa.string()),
    "ledger_id": ("BIGINT", pa.int64()),
    "entry_id": ("BIGINT", pa.int64()),
    "offset": ("BIGINT", pa.int64()),
    "timestamp": ("TIMESTAMP", pa.timestamp("us", tz="UTC")),
    "key": ("BINARY", pa.binary()),
    "value": ("BINARY", pa.binary()),
    "headers": ("ARRAY<STRUCT<key: STRING, value: BINARY>>", pa.list_(pa.field("element", _HEADER))),
    "length": ("BIGINT", pa.int64()),
    "lac": ("BIGINT", pa.int64()),
    "crc32c": ("INT", pa.int32()),
    "gap": (
        "STRUCT<from_seq: BIGINT, from_entry: BIGINT, until_seq: BIGINT, until_entry: BIGINT, rows: BIGINT, "
        "reason: STRING>",
        _GAP,
    ),
}
# Of records of DistributedLog. Other logs leave these names to their payloads.
DLOG_COLUMNS: Mapping[str, tuple[str, pa.DataType]] = {"txid": ("BIGINT", pa.int64()), "dlsn": ("STRING", pa.string())}
_ALL_COLUMNS = {**COLUMNS, **DLOG_COLUMNS}
# Types of tables, by Spark's names.
TYPES: Mapping[str, pa.DataType] = {
    "BIGINT": pa.int64(),
    "INT": pa.int32(),
    "DOUBLE": pa.float64(),
    "STRING": pa.string(),
    "BINARY": pa.binary(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "ARRAY<BINARY>": pa.list_(pa.field("element", pa.binary(), nullable=True)),
    "ARRAY<STRING>": pa.list_(pa.field("element", pa.string(), nullable=True)),
    "MAP<STRING, STRING>": pa.map_(pa.string(), pa.string()),
}
METADATA_COLUMNS = ("length", "lac", "crc32c")
ENVELOPE_COLUMNS = ("timestamp", "key", "value", "headers")  # columns inside the payload of an envelope
_constants: dict[tuple[int | str | None, pa.DataType], pa.Array] = {}


def known_columns(options: ReadOptions) -> Mapping[str, tuple[str, pa.DataType]]:
    """Return the columns of the source, by name."""
    return COLUMNS if options.namespace is None else _ALL_COLUMNS


def columns_of(options: ReadOptions) -> tuple[str, ...]:
    """Return the columns that the options select. Raises `InvalidArgument`."""
    with_gap, known = not options.fails_on_loss, known_columns(options)
    if options.columns:
        names = tuple(name.strip() for name in options.columns.split(","))
        for name in names:
            if name not in known:
                raise InvalidArgument(f"option columns: no column {name!r}; there are {', '.join(known)}")
        return tuple(name for name in known if name in names or (name == "gap" and with_gap))
    left_out = {
        "value": not options.includes_value,
        "headers": not options.includes_headers,
        "gap": not with_gap,
    } | dict.fromkeys(METADATA_COLUMNS, not options.includes_metadata)
    if options.namespace is not None:
        left_out |= dict.fromkeys(("offset", "timestamp", "key", "headers"), True)
    return tuple(name for name in known if not left_out.get(name, False))


def spark_schema(columns: Sequence[str]) -> str:
    """Return the schema as Spark's DDL."""
    return ", ".join(f"{name} {_ALL_COLUMNS[name][0]}" for name in columns)


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([pa.field(name, _ALL_COLUMNS[name][1], nullable=True) for name in columns])


def schema_of_ddl(ddl: str) -> pa.Schema:
    """Return Arrow's schema of Spark's DDL, for columns of `TYPES`."""
    columns = (column.split(" ", 1) for column in re.split(r", (?=\w+ )", ddl))
    return pa.schema([pa.field(name, TYPES[spark_type], nullable=True) for name, spark_type in columns])


def schema_of_spark(schema: Any) -> pa.Schema:
    """Return Spark's schema as Arrow's, with timestamps in UTC."""
    from inspect import signature

    from pyspark.sql.pandas.types import to_arrow_schema

    has_zone = "timezone" in signature(to_arrow_schema).parameters  # Before Spark 4.2 it is always UTC.
    options: Any = {"timezone": "UTC"} if has_zone else {}
    arrow_schema: pa.Schema = to_arrow_schema(schema, **options)
    return arrow_schema


def parts(batch: EntryBatch) -> Iterator[EntryBatch]:
    """Split the entries into batches of at most `BATCH_SIZE_MAX` bytes, or of one entry."""
    if batch.size <= BATCH_SIZE_MAX:
        yield batch
        return
    first, last = batch.first_entry_id, batch.last_entry_id
    while first <= last:
        index = first - batch.first_entry_id
        limit = batch.starts[index] + BATCH_SIZE_MAX
        high = index + 1
        if batch.starts[-1] <= limit:
            high = len(batch)
        else:
            while high < len(batch) and batch.starts[high + 1] <= limit:
                high += 1
        part = batch.slice(first, batch.first_entry_id + high - 1)
        yield part
        first = part.last_entry_id + 1


class Stretch(Struct, frozen=True):
    """Consecutive entries of one range, in the batches that they arrived in. Becomes one record batch.

    `taken`: for each value the index of its entry; None: one value for each entry, in order.
    """

    origin: Range
    batches: Sequence[EntryBatch]
    taken: pa.Array | None = None

    def __len__(self) -> int:
        return len(self.stored)

    @property
    def ledger_id(self) -> int:
        return self.origin.ledger_id

    @property
    def stored(self) -> range:
        """Return the ids of the entries in the ledger that holds them."""
        return range(self.batches[0].first_entry_id, self.batches[-1].last_entry_id + 1)

    @property
    def entry_ids(self) -> Sequence[int]:
        """Return the ids of the entries."""
        stored, ids = self.stored, self.origin.ids
        return stored if ids is None else ids[stored.start : stored.stop]

    def entry_of(self, index: int) -> int:
        """Return the id of the entry that a value is from."""
        stored = self.stored.start + (index if self.taken is None else self.taken[index].as_py())
        return stored if self.origin.ids is None else self.origin.ids[stored]


def stretches(items: Iterable[tuple[Range, EntryBatch] | Gap], size_max: int) -> Iterator[Stretch | Gap]:
    """Join batches up to `size_max` bytes of records, and split those above `BATCH_SIZE_MAX`.

    Empty batches are left out. Shares the entries' data.
    """
    size_max = min(size_max, STRETCH_SIZE_MAX)
    origin: Range | None = None
    waiting: list[EntryBatch] = []
    size = 0
    for item in items:
        batches = () if isinstance(item, Gap) else parts(item[1])
        if waiting and (isinstance(item, Gap) or item[0] is not origin):
            assert origin is not None
            yield Stretch(origin, waiting)
            waiting, size = [], 0
        if isinstance(item, Gap):
            yield item
            continue
        origin = item[0]
        for batch in batches:
            if waiting and size + batch.size > size_max:
                yield Stretch(origin, waiting)
                waiting, size = [], 0
            waiting.append(batch)
            size += batch.size
    if waiting:
        assert origin is not None
        yield Stretch(origin, waiting)


def record_batch(rows: Stretch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the entries as rows."""
    return pa.RecordBatch.from_arrays([column(rows, name) for name in schema.names], schema=schema)


def column(rows: Stretch, name: str) -> pa.Array:
    """Return one column of the source."""
    count, origin = len(rows), rows.origin
    if name == "value":
        return values(rows.batches)
    if name == "entry_id":
        return id_column(rows.entry_ids)
    if name == "offset" and (row := origin.row_of(0)) is not None:
        return id_column(rows.entry_ids, row)
    if name == "ledger_id":
        return _repeated(rows.ledger_id, pa.int64(), count)
    if name == "log" and origin.log is not None:
        return _repeated(origin.log, pa.string(), count)
    if name in METADATA_COLUMNS:
        return pa.concat_arrays([header_column(batch, name) for batch in rows.batches])
    return _repeated(None, COLUMNS[name][1], count)


def _repeated(value: int | str | None, data_type: pa.DataType, count: int) -> pa.Array:
    """Return `count` times the same value, from a cached column: a constant only costs its transfer."""
    constant = _constants.get((value, data_type))
    if constant is None or len(constant) < count:
        if len(_constants) >= CONSTANTS_MAX:
            _constants.clear()
        scalar = pa.scalar(value, data_type)
        constant = _constants[value, data_type] = pa.repeat(scalar, count)
    return constant.slice(0, count)


def header_column(batch: EntryBatch, name: str) -> pa.Array:
    """Return a field of the entries' own headers: `entry_id`, `length`, `lac` or `crc32c`."""
    if name == "entry_id":
        return pa.arange(batch.first_entry_id, batch.last_entry_id + 1)
    if name == "crc32c":
        return _checksums(batch)
    return _int64(_fields(batch, {"lac": 16, "length": 24}[name]))


def values(batches: Sequence[EntryBatch]) -> pa.Array:
    """Return the payloads of batches of one ledger as a `binary` column."""
    data, offsets = gather_payloads([(batch.data, batch.starts) for batch in batches], batches[0].header_size)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.BinaryArray.from_buffers(pa.binary(), len(offsets) - 1, buffers)


def gap_batch(gap: Gap, schema: pa.Schema) -> pa.RecordBatch:
    """Return one row that describes the gap; its other columns are null."""
    gap_fields: dict[str, int | str | None] = {
        "from_seq": gap.from_seq,
        "from_entry": gap.from_entry,
        "until_seq": gap.until_seq,
    }
    gap_fields |= {"until_entry": gap.until_entry, "rows": gap.rows, "reason": gap.reason}
    row = {"log": gap.log, "ledger_id": gap.ledger_id, "offset": gap.row, "gap": gap_fields}
    return pa.RecordBatch.from_arrays([pa.array([row.get(field.name)], field.type) for field in schema], schema=schema)


def id_column(ids: Sequence[int], more: int = 0) -> pa.Array:
    """Return ids, each increased by `more`, as a column."""
    if isinstance(ids, range):
        return pa.arange(ids.start + more, ids.stop + more)
    return pc.add(_int64(array("q", ids)), more)


def _int64(numbers: array[int]) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def _fields(batch: EntryBatch, offset: int) -> array[int]:
    """Return an int64 of every entry's header, `offset` bytes into the body."""
    at = 4 + offset
    numbers = array("q", b"".join([batch.data[start + at : start + at + 8] for start in batch.starts[:-1]]))
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers


def _checksums(batch: EntryBatch) -> Any:
    """Return the stored CRC-32C as a signed int32; null for ledgers with another digest."""
    if batch.header_size != ENTRY_HEADER_SIZE + 4:
        return pa.nulls(len(batch), pa.int32())
    at = 4 + ENTRY_HEADER_SIZE
    numbers = array("i", b"".join([batch.data[start + at : start + at + 4] for start in batch.starts[:-1]]))
    if sys.byteorder == "little":
        numbers.byteswap()
    return pa.Array.from_buffers(pa.int32(), len(numbers), [None, pa.py_buffer(numbers)])
