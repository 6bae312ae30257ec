"""Offline verification of a whole bookie: every slot leads to its entry, every entry has a slot, no file is damaged.

Reads only. Rows are as in `inspection`: "progress" with the file being read, "finding" with a problem and its cost
(`ledger`, `entries`, `remedy`), and one "total". Memory: about 100 bytes per entry.

Source: storage 5.8, 9.2, 10.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing

from msgspec import Struct, field

from bookies.errors import CorruptRecord
from bookies.runtime.ports import Disk
from bookies.storage.engine.replay import looks_intact
from bookies.storage.entry_log import entry_log_format
from bookies.storage.index import catalog_format, index_format
from bookies.storage.offline import inspection
from bookies.storage.offline.inspection import Row
from bookies.storage.offline.offline_bookie import Offline, bookie_at
from bookies.storage.records import Batch, EndKind
from bookies.storage.sealing.sealed_format import key_id_of

REPLICAS = "copy them from other replicas: `bk ledger repair LEDGER`; many ledgers: `bk spark scrub`, `bk spark repair`"
REBUILT = "the bookie rebuilds it from its entry logs when the ledger is used"


class _Records(Struct):
    """The records of one ledger in all logs. `places`: location to entry id. `intact`: number with a matching checksum.

    `unproven`: entries without one.
    """

    places: dict[int, int] = field(default_factory=dict)
    intact: int = 0
    unproven: list[int] = field(default_factory=list)


def describe(finding: Row) -> str:
    """Return a row "finding" as a sentence."""
    where = finding.get("path") or f"ledger {finding['ledger']}"
    return f"finding: {where}: {finding['problem']}{'; ' + finding['remedy'] if 'remedy' in finding else ''}"


def verify_rows(disk: Disk, path: str) -> Iterator[Row]:
    """Verify the bookie that has `path` as one of its directories. Yield the rows."""
    bookie = bookie_at(disk, path)
    total: Row = {"row": "total", "journals": 0, "logs": 0, "ledgers": 0, "entries": 0, "unchecked_digests": 0}
    findings = 0
    for place, problem in bookie.problems.items():
        findings += 1
        yield {"row": "finding", "path": place, "problem": problem, "remedy": "restore it, or mount the disk"}
    for row in _all_rows(disk, bookie, total):
        findings += row["row"] == "finding"
        yield row
    yield total | {"findings": findings}


def _all_rows(disk: Disk, bookie: Offline, total: Row) -> Iterator[Row]:
    journals, ledgers, indexes = bookie.journals, bookie.ledgers, bookie.indexes
    for directory in dict.fromkeys([*journals, *ledgers, *indexes]):
        for row in inspection.directory_rows(disk, directory):
            if row["row"] == "finding" or ("problem" in row and row["kind"] in ("cookie", "mark", "last log id")):
                yield {"row": "finding", "path": directory, "problem": row["problem"]}
    for directory in journals:
        yield from _journal_findings(disk, directory, total)
    records: dict[int, _Records] = {}
    for directory in ledgers:
        yield from _log_findings(disk, directory, total, records)
    yield from _digest_findings(records, total)
    if indexes:
        yield from _index_findings(disk, bookie, records, total)


def _journal_findings(disk: Disk, directory: str, total: Row) -> Iterator[Row]:
    for _, path in inspection.journals_of(disk, directory):
        yield {"row": "progress", "path": path}
        total["journals"] += 1
        try:
            for row in inspection.journal_rows(disk, path):
                if inspection.is_damaged(row):
                    problem = f"from byte {row['offset']:,} on: {row['problem']}"
                    remedy = "if it is after the mark, the bookie skips it and reports no entry as missing; " + REPLICAS
                    yield {"row": "finding", "path": path, "problem": problem, "remedy": remedy}
        except CorruptRecord as error:
            yield {"row": "finding", "path": path, "problem": str(error), "remedy": REPLICAS}


def _log_findings(disk: Disk, directory: str, total: Row, records: dict[int, _Records]) -> Iterator[Row]:
    for log_id, path in inspection.entry_logs_of(disk, directory):
        yield {"row": "progress", "path": path}
        total["logs"] += 1
        with closing(disk.open(path, "r")) as file:
            size = file.size()
            try:
                header = entry_log_format.parse_header(file.pread(entry_log_format.HEADER_SIZE, 0), path=path)
            except CorruptRecord as error:
                header = None
                yield {"row": "finding", "path": path, "problem": str(error), "remedy": "reads do not need it"}
            sealed = inspection.SealedBodies(disk) if header is not None and header.keys else None
            if header is not None and header.map_offset and entry_log_format.read_ledgers_map(file.pread, size) is None:
                problem = f"its ledgers map at byte {header.map_offset:,} is not valid"
                yield {"row": "finding", "path": path, "problem": problem, "remedy": "the log is scanned instead"}
            for item in entry_log_format.scan(file.pread, size):
                if isinstance(item, Batch):
                    _collect(item, log_id, records, sealed)
                elif item.kind is EndKind.CORRUPT:
                    problem = f"from byte {item.offset:,} on: {item.problem}"
                    yield {"row": "finding", "path": path, "problem": problem, "remedy": REPLICAS}


def _collect(batch: Batch, log_id: int, records: dict[int, _Records], sealed: inspection.SealedBodies | None) -> None:
    """Collect the places and proofs of records. `sealed`: of a sealed log; without its keys nothing is proven."""
    for index, (ledger_id, entry_id) in enumerate(batch.ids):
        of_ledger = records.setdefault(ledger_id, _Records())
        location = entry_log_format.location(log_id, batch.offset + batch.records.starts[index] + 4)
        of_ledger.places[location] = entry_id
        body = batch.records.body(index)
        if sealed is None:
            is_intact = looks_intact(body)
        elif sealed.opener is None or not sealed.opener.has(key_id_of(body)):
            continue
        else:
            is_intact = sealed.opener.open_body(body) is not None
        if is_intact:
            of_ledger.intact += 1
        else:
            of_ledger.unproven.append(entry_id)


def _digest_findings(records: dict[int, _Records], total: Row) -> Iterator[Row]:
    """Yield ledgers with wrong digests.

    All entries of a ledger have the same digest type. If some match a CRC32 checksum, those that do not are damaged.
    """
    for ledger_id, of_ledger in sorted(records.items()):
        total["entries"] += len(of_ledger.places)
        if not of_ledger.intact:
            total["unchecked_digests"] += len(of_ledger.unproven)
        elif of_ledger.unproven:
            row: Row = {"row": "finding", "ledger": ledger_id, "entries": len(of_ledger.unproven)}
            yield row | {
                "problem": f"{len(of_ledger.unproven)} entries, the first {of_ledger.unproven[0]}, fail their digest",
                "remedy": REPLICAS,
            }


def _index_findings(disk: Disk, bookie: Offline, records: dict[int, _Records], total: Row) -> Iterator[Row]:
    catalog = None
    path = os.path.join(inspection.current_of(disk, bookie.indexes[0]), catalog_format.FILE_NAME)
    if disk.exists(path):
        data = disk.read_bytes(path)
        catalog = catalog_format.parse(data, int.from_bytes(data[8:12], "big"))
        if catalog.problem:
            yield {
                "row": "finding",
                "path": path,
                "problem": catalog.problem,
                "remedy": "index files are used without it",
            }
    ledger_ids: set[int] = set()
    for directory in bookie.indexes:
        for ledger_id, path in inspection.index_files_of(disk, directory):
            yield {"row": "progress", "path": path}
            ledger_ids.add(ledger_id)
            known = catalog.ledgers.get(ledger_id) if catalog is not None and not catalog.problem else None
            size = catalog.page_size if catalog is not None else 0
            yield from _ledger_findings(disk, ledger_id, path, known, size, records.get(ledger_id) or _Records())
    total["ledgers"] = len(ledger_ids)
    if catalog is not None and bookie.has_all_indexes:  # Otherwise a file may be on a disk that is not mounted.
        for ledger_id, known in sorted(catalog.ledgers.items()):
            if ledger_id not in ledger_ids and not known.is_fresh:
                count = len(set((records.get(ledger_id) or _Records()).places.values()))
                row: Row = {"row": "finding", "ledger": ledger_id, "entries": count}
                yield row | {"problem": "its index file is missing", "remedy": REBUILT}


def _ledger_findings(
    disk: Disk, ledger_id: int, path: str, known: catalog_format.Known | None, page_size: int, records: _Records
) -> Iterator[Row]:
    slots: dict[int, int] = {}
    about: Row = {"row": "finding", "path": path, "ledger": ledger_id}
    try:
        for row in inspection.index_rows(disk, path):
            if row["row"] == "slot":
                slots[row["entry"]] = entry_log_format.location(row["log"], row["offset"])
    except CorruptRecord as error:
        yield about | {"problem": str(error), "remedy": REBUILT}
        return
    if known is not None:
        with closing(disk.open(path, "r")) as file:
            for page in sorted(known.pages):
                if not known.is_right(
                    page, file.pread(page_size, index_format.page_offset(page, page_size)), page_size
                ):
                    yield about | {"problem": f"the checksum of page {page} is wrong", "remedy": REBUILT}
    lost = [entry_id for entry_id, location in slots.items() if records.places.get(location) != entry_id]
    if lost:
        problem = f"{len(lost)} entries, the first {lost[0]}, are missing at the places that it names"
        yield about | {"entries": len(lost), "problem": problem, "remedy": REPLICAS}
    unnamed = {entry_id for entry_id in records.places.values() if entry_id not in slots}
    if unnamed:
        problem = f"{len(unnamed)} entries of the logs, the first {min(unnamed)}, have no slot in it"
        remedy = "none needed if the journal has them (the bookie was killed); otherwise a rebuild adds them"
        yield about | {"entries": len(unnamed), "problem": problem, "remedy": remedy}
