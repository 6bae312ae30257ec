"""Rows for the inspection of the RocksDB index of Apache's DbLedgerStorage, as `inspection` yields for index files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import groupby

from bookies.errors import CorruptRecord, LedgerUnknownToBookie
from bookies.storage.entry_log.entry_log_format import split_location
from bookies.storage.index.index_format import SLOT_SIZE, IndexHeader
from bookies.storage.offline.inspection import Row, explicit_lac_fields
from bookies.storage.rocksdb import rocksdb_format


def is_rocksdb(databases: rocksdb_format.Databases, directory: str) -> bool:
    """Report whether the index in this `current` directory is in databases."""
    return all(databases.exists(path) for path in rocksdb_format.paths_in(directory))


def ledger_rows(databases: rocksdb_format.Databases, directory: str) -> Iterator[Row]:
    """Yield a row "ledger" for each ledger, ascending. A ledger that only `locations` has is deleted.

    Raises CorruptRecord.
    """
    locations, ledgers = rocksdb_format.paths_in(directory)
    with closing(databases.read(ledgers)) as reader:
        headers = rocksdb_format.ledgers_of(reader, ledgers)
    counts: dict[int, tuple[int, int]] = {}
    with closing(databases.read(locations)) as reader:
        for ledger_id, runs in groupby(rocksdb_format.runs_of(reader, locations), key=lambda run: run.ledger_id):
            count, last = 0, -1
            for run in runs:
                count, last = count + len(run.entry_ids), run.entry_ids[-1]
            counts[ledger_id] = count, last
    for ledger_id in sorted(headers.keys() | counts.keys()):
        count, last = counts.get(ledger_id, (0, -1))
        row: Row = {"row": "ledger", "ledger": ledger_id, "path": ledgers, "entries": count}
        row["last_entry"] = last if count else None
        if ledger_id not in headers:
            row["is_deleted"] = True  # Apache's garbage collection removes its locations later.
        else:
            row |= _header_fields(headers[ledger_id])
        yield row


def index_rows(databases: rocksdb_format.Databases, directory: str, ledger_id: int) -> Iterator[Row]:
    """Yield a row "file" with the header of a ledger, then a row "slot" for each entry.

    Raises CorruptRecord; LedgerUnknownToBookie.
    """
    locations, ledgers = rocksdb_format.paths_in(directory)
    with closing(databases.read(ledgers)) as reader:
        value = reader.get(rocksdb_format.pack_key(ledger_id)) or reader.get(
            rocksdb_format.pack_key(ledger_id) + bytes(8)
        )
    if value is None:
        raise LedgerUnknownToBookie(f"no such ledger in {ledgers}", ledger_id=ledger_id)
    header = rocksdb_format.parse_ledger_data(value, ledgers, ledger_id)
    yield {"row": "file", "path": ledgers, "size": len(value), "ledger": ledger_id} | _header_fields(header)
    with closing(databases.read(locations)) as reader:
        for run in rocksdb_format.runs_of_ledger(reader, ledger_id):
            for index, entry_id in enumerate(run.entry_ids):
                slot = run.slots[index * SLOT_SIZE : (index + 1) * SLOT_SIZE]
                log_id, offset = split_location(int.from_bytes(slot, "big"))
                yield {"row": "slot", "entry": entry_id, "log": log_id, "offset": offset}


def summary_rows(databases: rocksdb_format.Databases, directory: str) -> Iterator[Row]:
    """Yield a row "item" with totals, and a row "finding" for damage or an unfinished integrity check."""
    try:
        rows = list(ledger_rows(databases, directory))
        ledgers = rocksdb_format.paths_in(directory)[1]
        with closing(databases.read(ledgers)) as reader:
            is_checking = rocksdb_format.needs_integrity_check(reader)
    except CorruptRecord as error:
        yield {"row": "finding", "problem": str(error)}
        return
    known = [row for row in rows if "is_deleted" not in row]
    fenced, limbo = (sum(bool(row[name]) for row in known) for name in ("is_fenced", "is_in_limbo"))
    detail = f"{len(known):,} ledgers, {fenced:,} fenced, {sum(row['entries'] for row in known):,} entries"
    if limbo:
        detail += f", {limbo:,} in limbo"
    if deleted := len(rows) - len(known):
        detail += f"; {deleted:,} more were deleted"
    yield {"row": "item", "name": "ledgers/ locations/", "kind": "index", "detail": detail}
    if is_checking:
        yield {"row": "finding", "problem": f"{ledgers}: Apache's integrity check has not finished"}


def _header_fields(header: IndexHeader) -> Row:
    return {
        "version": header.version,
        "master_key": header.master_key.hex(),
        "state": header.state,
        "is_fenced": header.is_fenced,
        "is_in_limbo": header.is_in_limbo,
        **(explicit_lac_fields(header.explicit_lac) if header.explicit_lac else {}),
    }
