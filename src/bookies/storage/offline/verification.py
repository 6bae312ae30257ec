"""A whole bookie verified offline: does every slot lead to its entry, is every entry found, is anything damaged?

Nothing is changed. Rows are as those of `inspection`: "progress" with the file that is being read, "finding" with what
is wrong and what it costs (`ledger`, `entries`, `remedy`), and one "total". Memory: some 100 bytes an entry.

Source: storage 5.8, 9.2, 10.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

from bookies.errors import CorruptRecord
from bookies.runtime.ports import Disk
from bookies.storage.engine.replay import looks_intact
from bookies.storage.entry_log import entry_log_format
from bookies.storage.index import catalog_format, index_format
from bookies.storage.offline import inspection
from bookies.storage.offline.inspection import Row
from bookies.storage.offline.offline_bookie import Offline, bookie_at
from bookies.storage.records import Batch, EndKind

REPLICAS = "other replicas should have them: bk spark scrub finds and bk spark repair copies what is missing"
REBUILT = "the bookie builds it again from its entry logs when it is asked for the ledger"


@dataclass
class _Records:
    """Of one ledger: location to entry id, of every record in the logs; how many carry a checksum that proves them."""

    places: dict[int, int] = field(default_factory=dict)
    intact: int = 0
    doubtful: list[int] = field(default_factory=list)  # entries without such a checksum


def describe(finding: Row) -> str:
    """A row "finding" as a sentence."""
    where = finding.get("path") or f"ledger {finding['ledger']}"
    return f"finding: {where}: {finding['problem']}{'; ' + finding['remedy'] if 'remedy' in finding else ''}"


def verify_rows(disk: Disk, path: str) -> Iterator[Row]:
    """Everything about the bookie that `path` is a directory of."""
    bookie = bookie_at(disk, path)
    total: Row = {"row": "total", "journals": 0, "logs": 0, "ledgers": 0, "entries": 0, "unchecked_digests": 0}
    findings = 0
    for place, problem in bookie.problems.items():
        findings += 1
        yield {"row": "finding", "path": place, "problem": problem, "remedy": "put it back, or mount the disk"}
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
                    remedy = "if it is behind the mark the bookie goes on behind it, and denies nothing; " + REPLICAS
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
                yield {"row": "finding", "path": path, "problem": str(error), "remedy": "it is not needed for reading"}
            if header is not None and header.map_offset and entry_log_format.read_ledgers_map(file.pread, size) is None:
                problem = f"its ledgers map at byte {header.map_offset:,} is not valid"
                yield {"row": "finding", "path": path, "problem": problem, "remedy": "the log is scanned instead"}
            for item in entry_log_format.scan(file.pread, size):
                if isinstance(item, Batch):
                    _collect(item, log_id, records)
                elif item.kind is EndKind.CORRUPT:
                    problem = f"from byte {item.offset:,} on: {item.problem}"
                    yield {"row": "finding", "path": path, "problem": problem, "remedy": REPLICAS}


def _collect(batch: Batch, log_id: int, records: dict[int, _Records]) -> None:
    for index, (ledger_id, entry_id) in enumerate(batch.ids):
        of_ledger = records.setdefault(ledger_id, _Records())
        location = entry_log_format.location(log_id, batch.offset + batch.records.starts[index] + 4)
        of_ledger.places[location] = entry_id
        if looks_intact(batch.records.body(index)):
            of_ledger.intact += 1
        else:
            of_ledger.doubtful.append(entry_id)


def _digest_findings(records: dict[int, _Records], total: Row) -> Iterator[Row]:
    """A ledger has one type of digest: where some are CRC32s that prove their entry, the others are wrong."""
    for ledger_id, of_ledger in sorted(records.items()):
        total["entries"] += len(of_ledger.places)
        if not of_ledger.intact:
            total["unchecked_digests"] += len(of_ledger.doubtful)
        elif of_ledger.doubtful:
            row: Row = {"row": "finding", "ledger": ledger_id, "entries": len(of_ledger.doubtful)}
            yield row | {
                "problem": f"{len(of_ledger.doubtful)} entries, the first {of_ledger.doubtful[0]}, fail their digest",
                "remedy": REPLICAS,
            }


def _index_findings(disk: Disk, bookie: Offline, records: dict[int, _Records], total: Row) -> Iterator[Row]:
    catalog = None
    path = os.path.join(inspection.current_of(disk, bookie.indexes[0]), catalog_format.FILE_NAME)
    if disk.exists(path):
        data = disk.read_bytes(path)
        catalog = catalog_format.parse(data, int.from_bytes(data[8:12], "big"))
        if catalog.problem:
            yield {"row": "finding", "path": path, "problem": catalog.problem, "remedy": "index files are believed"}
    found: set[int] = set()
    for directory in bookie.indexes:
        for ledger_id, path in inspection.index_files_of(disk, directory):
            yield {"row": "progress", "path": path}
            found.add(ledger_id)
            known = catalog.ledgers.get(ledger_id) if catalog is not None and not catalog.problem else None
            size = catalog.page_size if catalog is not None else 0
            yield from _ledger_findings(disk, ledger_id, path, known, size, records.get(ledger_id) or _Records())
    total["ledgers"] = len(found)
    if catalog is not None and bookie.has_all_indexes:  # Otherwise it may be where nothing is mounted.
        for ledger_id, known in sorted(catalog.ledgers.items()):
            if ledger_id not in found and not known.is_fresh:
                count = len(set((records.get(ledger_id) or _Records()).places.values()))
                row: Row = {"row": "finding", "ledger": ledger_id, "entries": count}
                yield row | {"problem": "its index file is gone", "remedy": REBUILT}


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
                    yield about | {"problem": f"page {page} is not what was written", "remedy": REBUILT}
    lost = [entry_id for entry_id, location in slots.items() if records.places.get(location) != entry_id]
    if lost:
        problem = f"{len(lost)} entries, the first {lost[0]}, are not where it says"
        yield about | {"entries": len(lost), "problem": problem, "remedy": REPLICAS}
    unnamed = {entry_id for entry_id in records.places.values() if entry_id not in slots}
    if unnamed:
        problem = f"{len(unnamed)} entries of the logs, the first {min(unnamed)}, are not in it"
        remedy = "none is needed if the journal has them (the bookie was killed); else they are built in again"
        yield about | {"entries": len(unnamed), "problem": problem, "remedy": remedy}
