"""`bk inspect`: contents of a bookie's files, offline and without changing them; also of Apache's bookies' files.

Exit status 1 if a file is damaged. A torn end of the newest journal, or of an entry log that was being written, is what
a crash leaves; it does not count as damage.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from bookies.admin.shared import Progress, UsageError
from bookies.admin.shared.command_line import MACHINE, Option, Verb, verb
from bookies.admin.shared.common import print_table, size_text, time_text

if TYPE_CHECKING:
    from bookies.admin.shared.report import Report
    from bookies.encoding.envelope import Record
    from bookies.protocol.log.records import LogRecord
    from bookies.runtime.ports import Disk
    from bookies.storage.offline.inspection import Row
    from bookies.storage.rocksdb.rocksdb_port import RocksDatabases

_COLUMNS = (("offset", 14, ">"), ("size", 10, ">"), ("ledger", 20, ">"), ("kind", 12, "<"), ("entry", 10, ">"))


Inspection = Callable[["Disk", argparse.Namespace], "Report | int"]


def _of_disk(body: Inspection) -> Callable[[argparse.Namespace], Report | int]:
    """Return the function of a verb that inspects `path`. It raises `UsageError` for a path that does not exist."""

    def run(arguments: argparse.Namespace) -> Report | int:
        from bookies.runtime.files import OsDisk

        disk = OsDisk()
        if not disk.exists(arguments.path):
            raise UsageError(f"{arguments.path} does not exist")
        return body(disk, arguments)

    return run


def _journal(disk: Disk, arguments: argparse.Namespace) -> int:
    from bookies.storage.offline import inspection

    return _records(disk, arguments, inspection.journals_of, inspection.journal_rows, "journal files (*.txn)")


def _entry_log(disk: Disk, arguments: argparse.Namespace) -> int:
    from bookies.storage.offline import inspection

    return _records(disk, arguments, inspection.entry_logs_of, inspection.entry_log_rows, "entry logs (*.log)")


def _records(
    disk: Disk,
    arguments: argparse.Namespace,
    files_of: Callable[[Disk, str], list[tuple[int, str]]],
    rows_of: Callable[..., Iterator[Row]],
    files_text: str,
) -> int:
    """Print the records of one file or of all files of a directory, or their summary."""
    from bookies.errors import StorageError

    paths = [arguments.path]
    if disk.is_directory(arguments.path):
        paths = [path for _, path in files_of(disk, arguments.path)]
        if not paths:
            raise StorageError(f"{arguments.path} holds no {files_text}")
    settings: dict[str, Any] = {}
    if arguments.record_size_max is not None:
        settings["record_size_max"] = arguments.record_size_max
    if arguments.records is not None and not arguments.summary:
        settings["decode"] = _DECODERS[arguments.records]
    rows: Iterator[Row] = itertools.chain.from_iterable(rows_of(disk, path, **settings) for path in paths)
    if arguments.ledger is not None:
        rows = (row for row in rows if row.get("ledger", arguments.ledger) == arguments.ledger)
    if (ids := arguments.entries) is not None:
        rows = (row for row in rows if row["row"] != "record" or row.get("entry", -1) in ids)
    if (offsets := arguments.offsets) is not None:
        rows = (row for row in rows if row["row"] != "record" or row["offset"] in offsets)
    if arguments.summary:
        rows = _summarized(rows)
    return _print_json(rows) if arguments.json else _print_records(rows)


def _summarized(rows: Iterable[Row]) -> Iterator[Row]:
    """Replace the record rows by one "ledger" row with totals per ledger, before the "end" row of each file."""
    totals: dict[int, Row] = {}
    for row in rows:
        if row["row"] == "record":
            total = totals.get(row["ledger"])
            if total is None:
                total = {"row": "ledger", "ledger": row["ledger"], "entries": 0, "size": 0, "first": None, "last": None}
                totals[row["ledger"]] = total
            if row["kind"] == "entry":
                total["entries"] += 1
                total["size"] += row["size"]
                total["first"] = row["entry"] if total["first"] is None else min(total["first"], row["entry"])
                total["last"] = row["entry"] if total["last"] is None else max(total["last"], row["entry"])
            else:
                total[row["kind"]] = total.get(row["kind"], 0) + 1
            continue
        if row["row"] == "end":
            yield from (totals[ledger_id] for ledger_id in sorted(totals))
            totals = {}
        yield row


def _print_json(rows: Iterable[Row]) -> int:
    """Print the rows as one JSON array, row by row. Return the exit status."""
    from bookies.storage.offline.inspection import is_damaged

    status = 0
    separator = "["
    for row in rows:
        sys.stdout.write(separator + "\n " + json.dumps(row))
        separator = ","
        status = 1 if is_damaged(row) else status
    sys.stdout.write("[]\n" if separator == "[" else "\n]\n")
    return status


def _print_records(rows: Iterable[Row]) -> int:
    from bookies.storage.offline.inspection import is_damaged

    status = 0
    has_heading = False
    for row in rows:
        status = 1 if is_damaged(row) else status
        row_type = row["row"]
        if row_type == "file":
            print(_file_line(row))
            has_heading = False
        elif row_type == "record":
            if not has_heading:
                print("  ".join(f"{name:{align}{width}}" for name, width, align in _COLUMNS) + "  about")
                has_heading = True
            cells = (f"{row.get(name, ''):{align}{width}}" for name, width, align in _COLUMNS)
            print(f"{'  '.join(cells)}  {_about(row)}".rstrip())
            for record in row.get("records", ()):
                print("    " + ", ".join(f"{name} {value}" for name, value in record.items()))
        elif row_type == "ledger":
            notes = "".join(f", {row[name]} {name}" for name in ("ledger_key", "fence", "explicit_lac") if name in row)
            span = f" {row['first']} to {row['last']}" if row["entries"] else ""
            print(f"  ledger {row['ledger']}: {row['entries']:,} entries{span}, {size_text(row['size'])}{notes}")
        elif row_type == "map":
            print(f"  ledgers map: ledger {row['ledger']} {row['size']:,} bytes")
        else:
            print(f"  {row['state']} end at byte {row['offset']:,}: {row['problem']}{_after_end(row)}")
    return status


def _after_end(row: Row) -> str:
    """Return a warning if records seem to follow the end of a journal."""
    offset = row.get("next_record")
    if offset is None or row["state"] == "corrupt":
        return ""
    return f"; but a group of records seems to begin at byte {offset:,}: the records between are lost"


def _file_line(row: Row) -> str:
    line = f"{row['path']}: version {row['version']}, {size_text(row['size'])}"
    if "is_newest" in row:
        return line + (", the newest" if row["is_newest"] else "")
    if row["version"] is None:
        return f"{row['path']}: empty, {row['size']} bytes"
    if row["map_offset"]:
        validity = "valid" if row["has_valid_map"] else "not valid"
        return f"{line}, closed, ledgers map at byte {row['map_offset']:,} ({validity})"
    return f"{line}, not closed"


def _about(row: Row) -> str:
    parts = []
    if "last_add_confirmed" in row:
        parts.append(f"last add confirmed {row['last_add_confirmed']}")
    if "length" in row:
        parts.append(f"length {row['length']:,}")
    if "master_key" in row:
        parts.append(f"key {row['master_key'] or '(empty)'}")
    if "problem" in row:
        parts.append(row["problem"])
    return ", ".join(parts)


def _records_of_distributedlog(payload: bytes) -> Row:
    """Return the records of an entry of DistributedLog. Segments of before version 4 have no envelope around them."""
    from bookies.distributedlog.formats.entries import CONTROL, END_OF_STREAM, parse_entry
    from bookies.errors import LogRecordCorrupt

    kinds = {0: "record", CONTROL: "control", END_OF_STREAM: "end of stream"}
    try:
        records = parse_entry(payload)
    except LogRecordCorrupt as error:
        return {"problem": error.message}
    return {
        "records": [
            {
                "slot": record.slot,
                "kind": kinds.get(record.flags, f"flags {record.flags}"),
                "txid": record.txid,
                "position": record.position,
                "size": len(record.payload),
            }
            for record in records
        ]
    }


def _record_of_envelope(payload: bytes) -> Row:
    from bookies.encoding.envelope import parse_record
    from bookies.errors import MetadataCorrupt

    try:
        return {"records": [_fields_of(parse_record(payload))]}
    except MetadataCorrupt as error:
        return {"problem": error.message}


def _records_of_set(payload: bytes) -> Row:
    from bookies.errors import LogRecordCorrupt
    from bookies.protocol.log.log_model import SETS
    from bookies.protocol.log.records import Decoder

    rows: list[Row] = []
    records = Decoder("", SETS).records(0, (0,), (payload,))
    try:
        rows += ({"slot": record.slot, **_fields_of(record)} for record in records)
    except LogRecordCorrupt as error:
        return {"records": rows, "problem": error.message} if rows else {"problem": error.message}
    return {"records": rows}


def _fields_of(record: Record | LogRecord) -> Row:
    headers = {name: None if value is None else _text(value) for name, value in record.headers or ()}
    fields = {
        "key": None if record.key is None else _text(record.key),
        "headers": headers or None,
        "time": None if record.timestamp_us is None else time_text(record.timestamp_us // 1000),
        "size": None if record.value is None else len(record.value),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def _payload(encode: Callable[[bytes], str]) -> Callable[[bytes], Row]:
    return lambda payload: {"records": [{"payload": encode(payload)}]}


def _interval(text: str) -> range:
    """Return FIRST-LAST, both included, or one number, as a range."""
    first, dash, last = text.partition("-")
    if not all(number.isascii() and number.isdigit() for number in ((first, last) if dash else (first,))):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor FIRST-LAST")
    return range(int(first), int(last or first) + 1)


_DECODERS: dict[str, Callable[[bytes], Row]] = {
    "distributedlog": _records_of_distributedlog,
    "envelope": _record_of_envelope,
    "hex": _payload(bytes.hex),
    "sets": _records_of_set,
    "text": _payload(_text),
}


def _databases(disk: Disk, path: str) -> tuple[RocksDatabases | None, str]:
    """Return (RocksDB databases, `current`). The first is None if the index is in files, or RocksDB is unavailable."""
    from bookies.storage.offline import inspection, rocksdb_inspection
    from bookies.storage.rocksdb.rocksdb_port import RocksDatabases, is_available

    databases, current = RocksDatabases(), inspection.current_of(disk, path)
    return (databases if is_available() and rocksdb_inspection.is_rocksdb(databases, current) else None), current


def _rows_of_ledger(disk: Disk, path: str, ledger_id: int) -> Iterator[Row]:
    from bookies.storage.offline import inspection, rocksdb_inspection

    databases, current = _databases(disk, path)
    if databases is not None:
        return rocksdb_inspection.index_rows(databases, current, ledger_id)
    index_files = dict(inspection.index_files_of(disk, path))
    if ledger_id not in index_files:
        raise UsageError(f"{path} has no index of ledger {ledger_id}")
    return inspection.index_rows(disk, index_files[ledger_id])


def _index(disk: Disk, arguments: argparse.Namespace) -> int:
    from bookies.storage.offline import inspection, rocksdb_inspection

    if not disk.is_directory(arguments.path):
        rows = inspection.index_rows(disk, arguments.path)
    elif arguments.ledger is None:
        databases, current = _databases(disk, arguments.path)
        if databases is None:
            rows = inspection.ledger_rows(disk, arguments.path)
        else:
            rows = rocksdb_inspection.ledger_rows(databases, current)
        return _print_json(rows) if arguments.json else _print_ledgers(list(rows))
    else:
        rows = _rows_of_ledger(disk, arguments.path, arguments.ledger)
    if arguments.json:
        return _print_json(rows)
    head = next(rows)
    print(f"{head['path']}: ledger {head['ledger']}, version {head['version']}, {size_text(head['size'])}")
    print(f"  master key {head['master_key'] or '(empty)'}")
    print(f"  state {head['state']:#x}{', fenced' if head['is_fenced'] else ''}{_limbo(head)}")
    if "explicit_lac_body" in head:
        print(f"  explicit last add confirmed {head.get('last_add_confirmed')}: {head['explicit_lac_body']}")
    print_table(
        [(row["entry"], row["log"], f"{row['offset']:,}") for row in rows], ("entry", "log", "offset"), right=(0, 1, 2)
    )
    return 0


def _limbo(row: Row) -> str:
    return ", in limbo" if row["is_in_limbo"] else ""


def _print_ledgers(rows: list[Row]) -> int:
    cells: list[tuple[Any, ...]] = []
    for row in rows:
        if "problem" in row:
            cells.append((row["ledger"], "", "", row["problem"]))
            continue
        last = "" if row["last_entry"] is None else row["last_entry"]
        if "is_deleted" in row:
            cells.append((row["ledger"], row["entries"], last, "deleted"))
            continue
        state = "fenced" if row["is_fenced"] else "" if not row["state"] else f"{row['state']:#x}"
        cells.append((row["ledger"], row["entries"], last, state + _limbo(row)))
    print_table(cells, ("ledger", "entries", "last", "state"), right=(0, 1, 2))
    return 1 if any("problem" in row for row in rows) else 0


def _last_mark(disk: Disk, arguments: argparse.Namespace) -> int:
    from bookies.errors import StorageError
    from bookies.storage.offline import inspection

    rows = list(inspection.mark_rows(disk, arguments.path))
    if not rows:
        raise StorageError(f"{arguments.path} holds no mark (lastMark): the next start replays all journals")
    if arguments.json:
        return _print_json(rows)
    for row in rows:
        where = row.get("problem") or f"{row['journal_file']} (id {row['journal']}) from byte {row['offset']:,} on"
        print(f"{row['path']}: {where}")
    return 1 if any("problem" in row for row in rows) else 0


def _cookie(disk: Disk, arguments: argparse.Namespace) -> int:
    from bookies.errors import StorageError
    from bookies.storage.offline import inspection

    try:
        row = inspection.cookie_row(disk, arguments.path)
    except FileNotFoundError as error:
        raise StorageError(f"{arguments.path} has no cookie (VERSION): it is new, or was wiped") from error
    if arguments.json:
        return _print_json([row])
    print(f"{row['path']}: layout {row['layout']}")
    for name in ("bookie", "instance_id", "journal_directories", "ledger_directories", "index_directories"):
        value = row[name]
        text = ", ".join(value) if isinstance(value, list) else str(value or "-")
        print(f"  {name.replace('_', ' '):20} {text}")
    return 0


def _directory(disk: Disk, arguments: argparse.Namespace) -> int:
    from bookies.storage.offline import inspection, rocksdb_inspection

    if not disk.is_directory(arguments.path):
        raise UsageError(f"{arguments.path} is not a directory")
    if arguments.verify:
        return _verify(disk, arguments)
    rows = inspection.directory_rows(disk, arguments.path)
    databases, current = _databases(disk, arguments.path)
    if databases is not None:
        rows = itertools.chain(rows, rocksdb_inspection.summary_rows(databases, current))
    if arguments.json:
        return _print_json(rows)
    items = list(rows)
    table = [
        (
            row["name"],
            row["kind"],
            f"{row['size']:,}" if "size" in row else "",
            row.get("problem") or row.get("detail", ""),
        )
        for row in items
        if row["row"] == "item"
    ]
    print(os.path.normpath(inspection.current_of(disk, arguments.path)))
    print_table(table, ("name", "kind", "bytes", "about"), right=(2,))
    findings = [row["problem"] for row in items if row["row"] == "finding"]
    for problem in findings:
        print(f"finding: {problem}")
    return 1 if any("problem" in row for row in items) else 0


def _verify(disk: Disk, arguments: argparse.Namespace) -> int:
    """Check all files of the bookie and print the findings. A terminal shows the number of files read."""
    from bookies.storage.offline.verification import describe, verify_rows

    progress = Progress("files", None, quiet=arguments.json)
    findings: list[Row] = []
    total: Row = {}
    files = 0
    for row in verify_rows(disk, arguments.path):
        if row["row"] == "progress":
            files += 1
            progress.update(files, row["path"])
        elif row["row"] == "finding":
            findings.append(row)
        else:
            total = row
    progress.clear()
    if _databases(disk, arguments.path)[0] is not None:
        text = f"bk bookie convert {arguments.path} --to index-files --dry-run"
        progress.note(f"the index is in RocksDB and was not checked entry by entry: {text} does that")
    if arguments.json:
        _print_json([*findings, total])
    else:
        for row in findings:
            print(describe(row))
        print(", ".join(f"{total[name]:,} {name.replace('_', ' ')}" for name in total if name != "row"))
    return 1 if findings else 0


_RECORDS = (
    Option("--ledger ID", "print only this ledger's records", int),
    Option("--entries FIRST-LAST", "print only records of entries with these ids", _interval),
    Option("--offsets FIRST-LAST", "print only records that begin at these bytes of their file", _interval),
    Option("--summary", "print the totals of each ledger, not its records", bool),
    Option("--record-size-max BYTES", "size in bytes above which a record counts as damaged", int),
    Option(
        "--records FORMAT",
        "also print what is in each entry: distributedlog, envelope (logs with key, headers and time), sets, or its "
        "payload as text or hex",
        choices=tuple(_DECODERS),
    ),
)


def _row(name: str, text: str, example: str, body: Inspection, *options: Option) -> Verb:
    path = Option("path PATH", "a file or a directory (with or without its `current`)")
    return verb(name, text, example, _of_disk(body), path, *options, description=text, shared=MACHINE)


VERBS = (
    _row(
        "inspect journal",
        "print the records of a journal file, or of all journals in a directory",
        "bk inspect journal bk-data/b1/journal",
        _journal,
        *_RECORDS,
    ),
    _row(
        "inspect entrylog",
        "print the entries of an entry log, or of all entry logs in a directory",
        "bk inspect entrylog b1/ledgers/current/0.log",
        _entry_log,
        *_RECORDS,
    ),
    _row(
        "inspect index",
        "print the locations of a ledger's entries, or the ledgers of a directory",
        "bk inspect index b1/ledgers --json",
        _index,
        Option("--ledger ID", "print only this ledger of a directory", int),
    ),
    _row(
        "inspect lastmark",
        "print the mark from which journals are replayed",
        "bk inspect lastmark bk-data/b1/ledgers",
        _last_mark,
    ),
    _row(
        "inspect cookie",
        "print the cookie: the bookie that owns a directory",
        "bk inspect cookie bk-data/b1/journal",
        _cookie,
    ),
    _row(
        "inspect directory",
        "list the files in one of a bookie's directories",
        "bk inspect directory bk-data/b1/ledgers",
        _directory,
        Option(
            "--verify",
            "check all files of the bookie that owns it: records, digests, index, marks, and their agreement",
            bool,
        ),
    ),
)
