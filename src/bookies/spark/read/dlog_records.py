"""Records of DistributedLog in the entries of a segment, as rows. Source: distributedlog 3 and 5."""

from __future__ import annotations

import pyarrow as pa

from bookies.distributedlog.formats.dlsn import Dlsn
from bookies.distributedlog.formats.entries import CONTROL, END_OF_STREAM, parse_entry
from bookies.distributedlog.formats.segment import PARTLY_TRUNCATED
from bookies.errors import LogRecordCorrupt
from bookies.spark.base.arrow import Stretch
from bookies.spark.read.decode import Decoded, Malformed

IGNORED = CONTROL | END_OF_STREAM


def opened(stretch: Stretch, entries: pa.Array, mode: str) -> Decoded:
    """Return value, transaction id and address of each record. A damaged entry is one row of nulls, or as `mode` says.

    Control and end-of-stream records, and truncated ones, are left out. Raises `Malformed`.
    """
    segment = stretch.origin.segment
    assert segment is not None
    is_cut = segment.truncation == PARTLY_TRUNCATED
    values: list[bytes | None] = []
    txids: list[int | None] = []
    addresses: list[str | None] = []
    taken: list[int] = []
    for index, entry in enumerate(entries.to_pylist()):
        entry_id = stretch.entry_of(index)
        try:
            records = parse_entry(entry, is_enveloped=segment.is_enveloped)
        except LogRecordCorrupt as error:
            if mode == "FAILFAST":
                raise Malformed(
                    f"segment {segment.lssn}: {error.message}: choose mode=PERMISSIVE or mode=DROPMALFORMED",
                    ledger_id=stretch.ledger_id,
                    entry_id=entry_id,
                ) from None
            if mode == "PERMISSIVE":
                values.append(None)
                txids.append(None)
                addresses.append(None)
                taken.append(index)
            continue
        least = segment.min_slot if is_cut and entry_id == segment.min_entry else 0
        for record in records:
            if record.flags & IGNORED or record.slot < least:
                continue
            values.append(record.payload)
            txids.append(record.txid)
            addresses.append(str(Dlsn(segment.lssn, entry_id, record.slot)))
            taken.append(index)
    columns = {
        "value": pa.array(values, pa.binary()),
        "txid": pa.array(txids, pa.int64()),
        "dlsn": pa.array(addresses, pa.string()),
    }
    return Decoded(columns, pa.array(taken, pa.int64()))
