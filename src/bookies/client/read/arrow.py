"""Batches of entries as an Arrow table, without an object per entry. Needs pyarrow (`pip install bookies[spark]`)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bookies.client.base import EntryBatch
from bookies.errors import NotSupported

if TYPE_CHECKING:
    import pyarrow


def table_of(batches: Sequence[EntryBatch]) -> pyarrow.Table:
    """Return columns ledger_id and entry_id (int64) and value (binary), one chunk per batch. Raises `NotSupported`."""
    try:
        import pyarrow as pa
    except ImportError as error:
        raise NotSupported("read_arrow needs pyarrow: pip install 'bookies[spark]'") from error
    schema = pa.schema(
        [
            pa.field("ledger_id", pa.int64(), nullable=False),
            pa.field("entry_id", pa.int64(), nullable=False),
            pa.field("value", pa.binary(), nullable=False),
        ]
    )
    parts = []
    for batch in batches:
        count = len(batch)
        payloads, offsets = batch.arrow_buffers()
        ledger_ids = array("q", [batch.ledger_id]) * count
        columns = [
            pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(ledger_ids)]),
            pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(array("q", batch.entry_ids))]),
            pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(payloads)]),
        ]
        parts.append(pa.RecordBatch.from_arrays(columns, schema=schema))
    return pa.Table.from_batches(parts, schema=schema)
