"""Records of record sets, as rows: a set is converted column by column."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from bookies.encoding.envelope import HAS_KEY, HAS_TIMESTAMP, HAS_VALUE, parse_headers
from bookies.encoding.record_sets import RecordSet, parse_set
from bookies.errors import LogRecordCorrupt, MetadataCorrupt
from bookies.spark.base.arrow import Stretch
from bookies.spark.base.envelope import COLUMNS, HEADERS_TYPE, TIMESTAMP_TYPE
from bookies.spark.read.decode import Decoded, Malformed


def opened(stretch: Stretch, entries: pa.Array, names: Sequence[str], mode: str) -> Decoded:
    """Return the columns of all records. A damaged set, or record, is one row of nulls, or as `mode` says.

    Raises `Malformed`.
    """
    parts: list[dict[str, pa.Array]] = []
    taken: list[pa.Array] = []
    for index, entry in enumerate(entries.to_pylist()):
        try:
            part = _columns(parse_set(entry), names, is_strict=mode == "FAILFAST")
        except LogRecordCorrupt as error:
            if mode == "FAILFAST":
                raise Malformed(
                    f"{error.message}: choose mode=PERMISSIVE or mode=DROPMALFORMED",
                    ledger_id=stretch.ledger_id,
                    entry_id=stretch.entry_of(index),
                ) from None
            if mode != "PERMISSIVE":
                continue
            part = {name: pa.nulls(1, COLUMNS[name]) for name in ("value", *names)}
        if mode == "DROPMALFORMED" and "bad" in part:
            good = pc.invert(part["bad"])
            part = {name: column.filter(good) for name, column in part.items()}
        parts.append(part)
        taken.append(pa.repeat(pa.scalar(index, pa.int64()), len(part["value"])))
    columns = {name: pa.concat_arrays([part[name] for part in parts] or [pa.nulls(0, COLUMNS[name])]) for name in names}
    return Decoded(columns, pa.concat_arrays(taken or [pa.nulls(0, pa.int64())]))


def _columns(records: RecordSet, names: Sequence[str], *, is_strict: bool) -> dict[str, pa.Array]:
    """Return the columns of a set, and of damaged headers a column `bad`. Raises `LogRecordCorrupt`."""
    values, keys, blobs = records.bounds()
    bits = pa.array(records.bits(), pa.uint8())
    columns = {"value": _binary(records, values, bits, HAS_VALUE), "key": _binary(records, keys, bits, HAS_KEY)}
    if "timestamp" in names:
        times = pa.Array.from_buffers(pa.int64(), len(records), [None, pa.py_buffer(array("q", records.times()))])
        columns["timestamp"] = _where(bits, HAS_TIMESTAMP, times.cast(TIMESTAMP_TYPE))
    if "headers" in names:
        bad = [False] * len(records)
        columns["headers"] = pa.nulls(len(records), HEADERS_TYPE)
        if blobs is not None:
            columns["headers"] = pa.array(_headers(records, bad, is_strict=is_strict), HEADERS_TYPE)
        if any(bad):
            columns["bad"] = pa.array(bad)
            for name, column in columns.items():
                if name != "bad":
                    columns[name] = pc.if_else(columns["bad"], pa.scalar(None, column.type), column)
    return columns


def _headers(records: RecordSet, bad: list[bool], *, is_strict: bool) -> list[list[dict[str, object]] | None]:
    """Return the headers of each record; `bad`: marks the damaged ones. Raises `LogRecordCorrupt` if `is_strict`."""
    rows: list[list[dict[str, object]] | None] = []
    for index, blob in enumerate(records.rows().headers or ()):
        try:
            pairs = None if blob is None else parse_headers(blob)
        except MetadataCorrupt as error:
            if is_strict:
                raise LogRecordCorrupt(f"record {index} of the set: {error.message}") from error
            pairs, bad[index] = None, True
        rows.append(None if pairs is None else [{"key": name, "value": value} for name, value in pairs])
    return rows


def _binary(records: RecordSet, offsets: array[int] | None, bits: pa.Array, bit: int) -> pa.Array:
    if offsets is None:
        return pa.nulls(len(records), pa.binary())
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(records.data)]
    return _where(bits, bit, pa.Array.from_buffers(pa.binary(), len(records), buffers))


def _where(bits: pa.Array, bit: int, column: pa.Array) -> pa.Array:
    """Return the column with nulls where records do not have it."""
    has = pc.not_equal(pc.bit_wise_and(bits, pa.scalar(bit, pa.uint8())), pa.scalar(0, pa.uint8()))
    return column if pc.all(has).as_py() else pc.if_else(has, column, pa.scalar(None, column.type))
