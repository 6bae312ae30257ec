"""Rows for the offline inspection of a bookie's files, including those of Apache's bookies.

Every function takes the `Disk` port and a path, changes no file, and yields dictionaries that JSON can hold. Bytes are
in hexadecimal, and `row` names the type of the row. A file that cannot be parsed raises `CorruptRecord`. Damage further
inside is in the row "end", whose `state` is clean, torn or corrupt.

Source: storage 1.2, 2 to 4, 9.2.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from typing import Any

from msgspec import Struct

from bookies.config import BookieConfig
from bookies.configuration import configured
from bookies.errors import CorruptRecord
from bookies.model import ENTRY_HEADER_SIZE
from bookies.runtime.ports import Disk
from bookies.storage.disks import (
    status_format,
)
from bookies.storage.disks.directories import HELD
from bookies.storage.engine import (
    quarantine_format,
)
from bookies.storage.engine.replay import proven_content
from bookies.storage.entry_log import (
    entry_log_format,
)
from bookies.storage.identity import (
    cookie,
)
from bookies.storage.index import (
    catalog_format,
    index_format,
)
from bookies.storage.journal import (
    journal_format,
    journal_place,
    log_mark_format,
)
from bookies.storage.journal.page_cache import SparseReader
from bookies.storage.records import Batch, EndKind
from bookies.storage.records.record_scan import RECORD_SIZE_MAX, RECORD_SIZE_MIN, ScanEnd
from bookies.storage.scrub import (
    scrub_format,
)
from bookies.storage.sealing.keys_file import read_opener
from bookies.storage.sealing.sealed_format import key_id_of, label_of

Row = dict[str, Any]
Decode = Callable[[bytes], Row]  # from the payload of an entry to fields of its row

_READ_SIZE = 1 << 20
_ENTRY = struct.Struct(">qqqq")
_LAC = struct.Struct(">qq")
_RECORD_TYPES = {
    journal_format.LEDGER_KEY: "ledger_key",
    journal_format.FENCE: "fence",
    journal_format.EXPLICIT_LAC: "explicit_lac",
}
_ROCKSDB = {
    "ledgers": "master keys and fences of ledgers, in RocksDB; bk bookie convert turns it into index files",
    "locations": "locations of entries, in RocksDB; bk bookie convert turns it into index files",
    "metadata-cache": "ledgers and bytes of entry logs, in RocksDB",
}
_ASIDE = ".before-conversion"


def current_of(disk: Disk, path: str) -> str:
    """Return the directory that holds the files: `path`/current if it exists, else `path`."""
    current = os.path.join(path, cookie.CURRENT)
    return current if disk.is_directory(current) else path


def journals_of(disk: Disk, path: str) -> list[tuple[int, str]]:
    """Return (id, path) of the journal files in a directory, in order of time."""
    directory = current_of(disk, path)
    names = ((journal_format.parse_file_name(name), name) for name in disk.list(directory))
    return sorted((journal_id, os.path.join(directory, name)) for journal_id, name in names if journal_id is not None)


def entry_logs_of(disk: Disk, path: str) -> list[tuple[int, str]]:
    """Return (id, path) of the entry logs in a directory, in order of id."""
    directory = current_of(disk, path)
    names = ((entry_log_format.parse_file_name(name), name) for name in disk.list(directory))
    return sorted((log_id, os.path.join(directory, name)) for log_id, name in names if log_id is not None)


def index_files_of(disk: Disk, path: str) -> list[tuple[int, str]]:
    """Return (ledger id, path) of the index files below a directory, in order of ledger id."""
    directory = current_of(disk, path)
    paths = []
    for relative in _walk(disk, directory):
        ledger_id = index_format.parse_path(relative)
        if ledger_id is not None:
            paths.append((ledger_id, os.path.join(directory, relative)))
    return sorted(paths)


def _walk(disk: Disk, directory: str) -> Iterator[str]:
    """Yield `g/p/x` of all names two levels down."""
    for group in disk.list(directory):
        for part in _listed(disk, os.path.join(directory, group)) if group not in _ROCKSDB else ():
            for name in _listed(disk, os.path.join(directory, group, part)):
                yield f"{group}/{part}/{name}"


def _listed(disk: Disk, path: str) -> list[str]:
    """Return the names in a folder; none if it is a file, or if the bookie, which runs, has removed it."""
    try:
        return disk.list(path)
    except (FileNotFoundError, NotADirectoryError):
        return []


def journal_rows(
    disk: Disk,
    path: str,
    *,
    is_newest: bool | None = None,
    record_size_max: int = RECORD_SIZE_MAX,
    decode: Decode | None = None,
) -> Iterator[Row]:
    """Yield the rows of one journal file: a row "file", a row "record" for each record, a row "end".

    `is_newest`: a torn end is what a crash leaves, not damage; None: True unless a younger file is in the directory.
    `decode`: describes payloads.
    """
    journal_id = journal_format.parse_file_name(os.path.basename(path))
    if is_newest is None:
        siblings = journals_of(disk, os.path.dirname(path) or ".")
        is_newest = journal_id is None or not any(other > journal_id for other, _ in siblings)
    with closing(disk.open(path, "r")) as file:
        size = file.size()
        version, start = journal_format.parse_header(file.pread(512, 0), size, path=path)
        sealed = SealedBodies(disk) if version == journal_format.SEALED_VERSION else None
        yield {"row": "file", "path": path, "size": size, "version": version, "is_newest": is_newest}
        for item in journal_format.scan(
            file.pread,
            size,
            start,
            version,
            is_newest=is_newest,
            journal_id=journal_id,
            record_size_max=record_size_max,
            search=SparseReader(file),
        ):
            if isinstance(item, Batch):
                yield from _record_rows(item, _journal_record, decode, sealed)
            else:
                yield _end_row(item)


def entry_log_rows(
    disk: Disk, path: str, *, record_size_max: int = RECORD_SIZE_MAX, decode: Decode | None = None
) -> Iterator[Row]:
    """Yield the rows of one entry log: "file", "record" for each record, "map" for each ledger of its map, "end".

    `decode`: describes payloads.
    """
    log_id = entry_log_format.parse_file_name(os.path.basename(path))
    with closing(disk.open(path, "r")) as file:
        size = file.size()
        header = entry_log_format.parse_header(file.pread(entry_log_format.HEADER_SIZE, 0), path=path)
        sealed = SealedBodies(disk) if header is not None and header.keys else None
        ledgers_map = entry_log_format.read_ledgers_map(file.pread, size)
        row: Row = {
            "row": "file",
            "path": path,
            "size": size,
            "log": log_id,
            "version": header.version if header else None,
            "map_offset": header.map_offset if header else 0,
            "ledger_count": header.ledger_count if header else 0,
            "has_valid_map": ledgers_map is not None,
        }
        if sealed is not None and header is not None:
            row |= {"keys": ", ".join(map(label_of, header.keys))}
        yield row
        for item in entry_log_format.scan(file.pread, size, record_size_max=record_size_max):
            if isinstance(item, Batch):
                yield from _record_rows(item, _entry_fields, decode, sealed)
            else:
                for ledger_id, bytes_of_ledger in sorted((ledgers_map or {}).items()):
                    yield {"row": "map", "ledger": ledger_id, "size": bytes_of_ledger}
                yield _end_row(item)


class SealedBodies:
    """Opens the entries of a sealed file with the keys of the environment's `encryption_keys_file`, if it is set."""

    def __init__(self, disk: Disk) -> None:
        self.opener = read_opener(disk, configured(BookieConfig).encryption_keys_file)

    def opened(self, body: bytes) -> tuple[bytes | None, Row]:
        """Return the body as the client sent it, None if it cannot be opened, and what a row says about it."""
        key_id = key_id_of(body)
        row: Row = {"key": label_of(key_id)}
        if self.opener is None or not self.opener.has(key_id):
            return None, row | {
                "problem": f"encrypted: BK_ENCRYPTION_KEYS_FILE names no file with key {label_of(key_id)}"
            }
        plain = self.opener.open_body(body)
        return plain, row if plain is not None else row | {"problem": "it does not authenticate"}


def _record_rows(
    batch: Batch,
    fields_of: Callable[[int, int, bytes], Row],
    decode: Decode | None,
    sealed: SealedBodies | None,
) -> Iterator[Row]:
    starts = batch.records.starts
    for index, (ledger_id, entry_id) in enumerate(batch.ids):
        row: Row = {
            "row": "record",
            "offset": batch.offset + starts[index],
            "size": starts[index + 1] - starts[index] - 4,
            "ledger": ledger_id,
        }
        body = batch.records.body(index)
        if sealed is not None and entry_id >= 0:
            plain, facts = sealed.opened(body)
            row |= facts
            if plain is None:
                yield row | {"kind": "entry", "entry": entry_id}
                continue
            body = plain
        row.update(fields_of(ledger_id, entry_id, body))
        if decode is not None and row["kind"] == "entry":
            content = proven_content(body)
            row |= {"problem": "no checksum proves its content"} if content is None else decode(content)
        yield row


def _journal_record(ledger_id: int, entry_id: int, body: bytes) -> Row:
    if entry_id >= 0:
        return _entry_fields(ledger_id, entry_id, body)
    record_type = _RECORD_TYPES.get(entry_id, "unknown")
    if record_type == "ledger_key":
        return {"kind": record_type, "master_key": journal_format.parse_special(body).hex()}
    if record_type == "explicit_lac":
        return {"kind": record_type, **explicit_lac_fields(journal_format.parse_special(body))}
    return {"kind": record_type} if record_type == "fence" else {"kind": record_type, "entry": entry_id}


def _entry_fields(ledger_id: int, entry_id: int, body: bytes) -> Row:
    row: Row = {"kind": "entry", "entry": entry_id}
    if len(body) >= ENTRY_HEADER_SIZE:
        _, _, row["last_add_confirmed"], row["length"] = _ENTRY.unpack_from(body)
    return row


def explicit_lac_fields(body: bytes) -> Row:
    """Return the fields of a row for an explicit LAC: its body, and the value in it."""
    row: Row = {"explicit_lac_body": body.hex()}
    if len(body) >= RECORD_SIZE_MIN:
        row["last_add_confirmed"] = _LAC.unpack_from(body)[1]
    return row


def _end_row(end: ScanEnd) -> Row:
    row: Row = {"row": "end", "state": end.kind.value, "offset": end.offset, "problem": end.problem}
    if end.next_record is not None:
        row["next_record"] = end.next_record
    return row


def index_rows(disk: Disk, path: str) -> Iterator[Row]:
    """Yield the rows of one index file: "file" with its header, then "slot" for each entry."""
    with closing(disk.open(path, "r")) as file:
        size = file.size()
        header = index_format.parse_header(file.pread(index_format.HEADER_SIZE, 0), path=path)
        yield {
            "row": "file",
            "path": path,
            "size": size,
            "ledger": index_format.parse_path(path),
            "version": header.version,
            "master_key": header.master_key.hex(),
            "state": header.state,
            "is_fenced": header.is_fenced,
            "is_in_limbo": header.is_in_limbo,
            **(explicit_lac_fields(header.explicit_lac) if header.explicit_lac else {}),
        }
        offset = index_format.HEADER_SIZE
        while data := file.pread(_READ_SIZE, offset):
            first_entry_id = (offset - index_format.HEADER_SIZE) // index_format.SLOT_SIZE
            for entry_id, number in index_format.iterate_slots(data, first_entry_id):
                log_id, body_offset = entry_log_format.split_location(number)
                yield {"row": "slot", "entry": entry_id, "log": log_id, "offset": body_offset}
            offset += len(data)


def ledger_rows(disk: Disk, path: str) -> Iterator[Row]:
    """Yield a row "ledger" for each index file below a directory: its header, and the number of its entries."""
    for ledger_id, file_path in index_files_of(disk, path):
        row: Row = {"row": "ledger", "ledger": ledger_id, "path": file_path, "entries": 0, "last_entry": None}
        try:
            for item in index_rows(disk, file_path):
                if item["row"] == "file":
                    row |= {name: value for name, value in item.items() if name not in ("row", "path", "ledger")}
                else:
                    row["entries"] += 1
                    row["last_entry"] = item["entry"]
        except CorruptRecord as error:
            row["problem"] = str(error)
        yield row


def mark_rows(disk: Disk, path: str) -> Iterator[Row]:
    """Yield a row "mark" for a mark file, or for each one in a directory."""
    if not disk.is_directory(path):
        yield _mark_row(disk, path)
        return
    directory = current_of(disk, path)
    for name in disk.list(directory):
        if log_mark_format.parse_file_name(name) is not None:
            yield _mark_row(disk, os.path.join(directory, name))


def _mark_row(disk: Disk, path: str) -> Row:
    data = disk.read_bytes(path)
    mark = log_mark_format.parse(data)
    row: Row = {"row": "mark", "path": path}
    if mark is None:
        return row | {"problem": f"not a mark: {len(data)} bytes, {data[: log_mark_format.SIZE].hex()}"}
    name = journal_format.file_name(mark.journal_id)
    return row | {"journal": mark.journal_id, "journal_file": name, "offset": mark.offset}


def cookie_row(disk: Disk, path: str) -> Row:
    """Return the cookie of a `VERSION` file, or of a directory. Raises CorruptRecord, FileNotFoundError."""
    if disk.is_directory(path):
        path = os.path.join(current_of(disk, path), cookie.FILE_NAME)
    parsed = cookie.parse(disk.read_bytes(path), path=path)
    return {
        "row": "cookie",
        "path": path,
        "layout": parsed.layout,
        "bookie": parsed.bookie,
        "journal_directories": parsed.journal_directories.split(","),
        "ledger_directories": list(parsed.ledger_directories),
        "index_directories": None if parsed.index_directories is None else list(parsed.index_directories),
        "instance_id": parsed.instance_id,
    }


def directory_rows(disk: Disk, path: str) -> Iterator[Row]:
    """Yield a row "item" for each name in one of a bookie's directories, then a row "finding" for each problem.

    Reads headers but no records; see `journal_rows` and `entry_log_rows`.
    """
    directory = current_of(disk, path)
    for name in disk.list(directory):
        row: Row = {"row": "item", "name": name, "kind": "unknown"}
        try:
            row |= _item(disk, os.path.join(directory, name), name)
        except CorruptRecord as error:
            row["problem"] = str(error)
        if row["kind"] != "index directory":
            yield row
    ledgers = list(ledger_rows(disk, directory))
    if ledgers:
        fenced = sum(bool(row.get("is_fenced")) for row in ledgers)
        entries = sum(row["entries"] for row in ledgers)
        detail = f"{len(ledgers):,} ledgers, {fenced:,} fenced, {entries:,} entries"
        yield {"row": "item", "name": "*/*/*.idx", "kind": "index", "detail": detail}
    for row in ledgers:
        if "problem" in row:
            yield {"row": "finding", "problem": row["problem"]}
    yield from _findings(disk, directory)


class _Opened(Struct, frozen=True):
    """File in `current`: its path and name, its size, and its first bytes (at most `index_format.HEADER_SIZE`)."""

    disk: Disk
    path: str
    name: str
    size: int
    first: bytes

    def read(self) -> bytes:
        return self.first if self.size <= len(self.first) else self.disk.read_bytes(self.path)


def _item(disk: Disk, path: str, name: str) -> Row:
    """Return kind, size and detail of one name in `current`."""
    if disk.is_directory(path):
        if name in _ROCKSDB:
            return {"kind": "rocksdb", "detail": f"Apache's DbLedgerStorage: {_ROCKSDB[name]}"}
        if name.endswith(_ASIDE):
            return {"kind": "put aside", "detail": "the old index; bk bookie convert --discard-old deletes it"}
        return {"kind": "index directory" if len(name) <= 2 else "unknown"}
    with closing(disk.open(path, "r")) as file:
        opened = _Opened(disk, path, name, file.size(), file.pread(index_format.HEADER_SIZE, 0))
    numbered = ((kind, detail) for parse_name, kind, detail in _NUMBERED if parse_name(name) is not None)
    kind, detail = next(numbered, None) or _NAMED.get(name, ("unknown", None))
    row: Row = {"kind": kind, "size": opened.size}
    return row if detail is None else row | {"detail": detail(opened) if callable(detail) else detail}


def _about_journal(file: _Opened) -> str:
    return f"version {journal_format.parse_header(file.first, file.size, path=file.path)[0]}"


def _about_entry_log(file: _Opened) -> str:
    header = entry_log_format.parse_header(file.first, path=file.path)
    if header is None:
        return "empty"
    return "closed" if header.map_offset else "open"


def _about_compaction(file: _Opened) -> str:
    compacted = entry_log_format.parse_compacted_name(file.name)
    assert compacted is not None
    return "being written" if compacted[1] is None else f"replaces log {compacted[1]}"


def _about_mark(file: _Opened) -> str:
    row = _mark_row(file.disk, file.path)
    return f"{row['journal_file']} at {row['offset']:,}" if "journal" in row else str(row["problem"])


def _about_cookie(file: _Opened) -> str:
    own = cookie.parse(file.read(), path=file.path)
    return f"bookie {own.bookie}, instance {own.instance_id}"


def _about_place(file: _Opened) -> str:
    place = journal_place.parse(file.first)
    return "damaged; the next start rewrites it" if place is None else f"journal {place[0] + 1} of {place[1]}"


def _about_removals(file: _Opened) -> str:
    _, removals = quarantine_format.parse(file.read(), path=file.path)
    return f"{len(removals):,} in quarantine or deleted"


def _about_scrub(file: _Opened) -> str:
    _, progress = scrub_format.parse(file.read(), path=file.path)
    damaged = sum(finding.entry_count for finding in progress.findings)
    return f"pass {progress.number:,}, {damaged:,} damaged entries known"


def _about_status(file: _Opened) -> str:
    held = ", held by an operator" if status_format.parse(file.first, path=file.path).is_held else ""
    return f"{file.first.decode().strip()}{held}"


_Detail = str | Callable[[_Opened], str] | None
# (function that recognizes the name of a numbered file, kind, detail)
_NUMBERED: tuple[tuple[Callable[[str], object], str, _Detail], ...] = (
    (journal_format.parse_file_name, "journal", _about_journal),
    (entry_log_format.parse_file_name, "entry log", _about_entry_log),
    (entry_log_format.parse_compacted_name, "compaction", _about_compaction),
    (log_mark_format.parse_file_name, "mark", _about_mark),
)
# name -> (kind, detail)
_NAMED: dict[str, tuple[str, _Detail]] = {
    **dict.fromkeys(_ROCKSDB, ("guard", "keeps Apache's bookie from creating an empty database here")),
    cookie.EMPTYING: ("format", "bk bookie format did not finish: repeat it"),
    cookie.FILE_NAME: ("cookie", _about_cookie),
    "lastId": ("last log id", lambda file: str(entry_log_format.parse_last_id(file.first))),
    "DIRTY": ("dirty", "running, or not shut down cleanly"),
    HELD: ("flag", "compaction is suspended: resume it with bk bookie gc --resume"),
    "CONVERSION": ("conversion", "bk bookie convert did not finish: repeat it"),
    catalog_format.FILE_NAME: ("catalog", "the list of index files, with checksums"),
    catalog_format.HOLES_NAME: ("flag", "a part of a journal is lost: the ledgers that were here are not known yet"),
    journal_place.FILE_NAME: ("journal place", _about_place),
    quarantine_format.FILE_NAME: ("removed ledgers", _about_removals),
    scrub_format.FILE_NAME: ("scrub", _about_scrub),
    status_format.FILE_NAME: ("status", _about_status),
}


def _findings(disk: Disk, directory: str) -> Iterator[Row]:
    """Yield the inconsistencies that one directory shows."""
    names = disk.list(directory)
    if cookie.EMPTYING in names:
        yield {"row": "finding", "problem": f"{directory} is being emptied: repeat bk bookie format"}
    elif cookie.FILE_NAME not in names:
        yield {"row": "finding", "problem": f"{directory} has no {cookie.FILE_NAME}: it is new, or was wiped"}
    for name in names:
        if name.endswith(".txn") and journal_format.parse_file_name(name) is None:
            yield {"row": "finding", "problem": f"{name} is not hexadecimal: Apache's bookie does not start with it"}
    ids = [journal_id for journal_id, _ in journals_of(disk, directory)]
    for before, after in pairwise(ids):
        if after != before + 1:
            gap = f"between {journal_format.file_name(before)} and {journal_format.file_name(after)}"
            yield {"row": "finding", "problem": f"journals are missing {gap}"}
    for row in mark_rows(disk, directory):
        if "problem" in row:
            yield {"row": "finding", "problem": f"{os.path.basename(row['path'])} is {row['problem']}"}
        elif ids and row["journal"] > 0 and row["journal"] not in ids:
            yield {"row": "finding", "problem": f"the mark names {row['journal_file']}, which is not here"}
    for relative in _walk(disk, directory):
        if index_format.parse_relocating_path(relative) is not None:
            yield {"row": "finding", "problem": f"{relative} is left of an interrupted move to this directory"}
        elif relative.endswith(".idx") and index_format.parse_path(relative) is None:
            yield {"row": "finding", "problem": f"{relative} is in the wrong subdirectory for its name"}


def is_damaged(row: Row) -> bool:
    """Report whether a row describes damage, rather than the traces of a crash."""
    if row["row"] == "end":
        return row["state"] == EndKind.CORRUPT.value or "next_record" in row
    return "problem" in row
