"""`bk log`: its verbs, as `COMMANDS` in `admin/shared/nouns.py` lists them.

A log is an ordered list of ledgers changed by compare-and-swap. `append` takes the lead and appends one entry per line
of stdin, in the log's record format; it may be repeated. Positions are `LEDGER:ENTRY`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING, Any

from bookies.admin.logs import log_mirror, log_retention
from bookies.admin.shared import Progress, UsageError
from bookies.admin.shared.command_line import ACK_QUORUM, DIGEST, WRITE_QUORUM, OneOf, Option, Run, verb
from bookies.admin.shared.common import (
    OnCluster,
    on_client,
    opened_input,
    print_json,
    size_text,
    time_text,
    with_client,
)
from bookies.admin.shared.operators import is_deletion_confirmed, report_deleted
from bookies.admin.shared.report import Report, Table
from bookies.admin.shared.times import SINCE, UNTIL, Before, end_of, start_of
from bookies.errors import LogTruncated

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bookies.admin.shared.lines import Parse, WrongLine
    from bookies.client.base import EntryBatch
    from bookies.client.client import Client
    from bookies.client.log import Log
    from bookies.client.log.records.log_records import LogEntries
    from bookies.encoding.envelope import Header, Record
    from bookies.protocol.log import Manifest, Position
    from bookies.protocol.log.log_model import Address, Extent
    from bookies.protocol.log.records import Decoder


def _log(client: Client, arguments: argparse.Namespace) -> Log:
    return client.log(arguments.log, password=getattr(arguments, "password", "").encode())


def _start(default: str) -> Option:
    text = f"LEDGER:ENTRY, or LEDGER:ENTRY:SLOT of a record in a set, the first to print (default: {default})"
    return Option("--from POSITION", text, field="start")


def _address(text: str | None) -> Position | Address | None:
    """Return where a read begins."""
    from bookies.protocol.log.log_model import parse_address

    address = None if text is None else parse_address(text)
    return address.position if address is not None and not address.slot else address


def _position(text: str | None) -> Position | None:
    from bookies.protocol.log.log_model import parse_position

    return None if text is None else parse_position(text)


async def _create(client: Client, arguments: argparse.Namespace) -> Report:
    log = _log(client, arguments)
    await log.create(
        ensemble=arguments.ensemble,
        write_quorum=arguments.write_quorum,
        ack_quorum=arguments.ack_quorum,
        digest=arguments.digest,
        record_format=arguments.format,
        compression=arguments.compression,
        retention=log_retention.limits_of(arguments),
        compaction=arguments.compaction,
        exist_ok=arguments.exist_ok,
    )
    return await _described(log, arguments)


async def _described(log: Log, arguments: argparse.Namespace) -> Report:
    """Return the log's record. Without `--json` it is not printed, and therefore not read."""
    return Report(describe(log.name, await log.manifest()) if arguments.json else {})


def _append(arguments: argparse.Namespace) -> Report:
    with opened_input(arguments.input, "nothing was appended") as descriptor:
        return with_client(arguments, lambda client: _append_from(client, arguments, descriptor))


async def _append_from(client: Client, arguments: argparse.Namespace, descriptor: int) -> Report:
    from bookies.admin.shared.lines import WrongLine, append_lines, preceded, read_lines

    log, (key, headers) = _log(client, arguments), _record_fields(arguments)
    parse = _parser(arguments.format, key, headers)
    pieces = read_lines(descriptor)
    # What the log cannot hold must not stop its leader.
    if key is not None or headers is not None or arguments.format == "json":
        record_format = (await log.manifest()).record_format
        _check_fields(log.name, record_format, key, headers)
        if arguments.format == "json" and (first := await anext(pieces, None)) is not None:
            _check_lines(log.name, record_format, first)
            pieces = preceded(first, pieces)
    progress = Progress("appended", None)
    count = done = 0
    wrong: WrongLine | None = None

    def confirmed(count: int) -> None:
        nonlocal done
        done = count
        progress.update(count)

    try:
        async with log.lead(roll_size=arguments.roll_size) as writer:
            begin = f"{writer.ledger_id}:0"
            try:
                count = await append_lines(writer, pieces, confirmed, parse)
            except WrongLine as error:  # The writer is closed in order, so the lines before it can be read at once.
                wrong = error
    except BaseException:
        progress.clear()
        if done:
            print(
                f"the first {done:,} lines are in log {arguments.log}; further lines may or may not be", file=sys.stderr
            )
        raise
    progress.clear()
    if wrong is not None:
        raise UsageError(f"{wrong}; the lines before it are in log {log.name}, and none from it on")
    if sys.stderr.isatty() and not arguments.json:
        print(f"appended {count:,} entries to log {arguments.log}, beginning at {begin}", file=sys.stderr)
    return Report({"log": arguments.log, "entries": count, "first": begin, "epoch": writer.epoch})


def _record_fields(arguments: argparse.Namespace) -> tuple[bytes | None, Sequence[Header] | None]:
    """Return the key and headers of records without their own."""
    for text in arguments.header:
        if "=" not in text:
            raise UsageError(f"--header {text}: expected NAME=VALUE")
    pairs = (text.partition("=") for text in arguments.header)
    headers: list[Header] = [(name, os.fsencode(value)) for name, _, value in pairs]
    return None if arguments.key is None else os.fsencode(arguments.key), headers or None


def _check_fields(log: str, record_format: str, key: bytes | None, headers: Sequence[Header] | None) -> None:
    from bookies.protocol.log.log_model import RAW
    from bookies.protocol.log.records import entry_of, value_of

    if record_format != RAW:
        entry_of(b"", 0, key, headers)
    else:
        value_of(log, b"", key, headers)


def _check_lines(log: str, record_format: str, lines: list[bytes]) -> None:
    """Check the first lines of JSON: nothing precedes them. Raises `InvalidArgument`, `UsageError`."""
    from bookies.protocol.log.log_model import RAW
    from bookies.protocol.log.records import value_of

    records, wrong = _parser("json", None, None)(lines)
    if wrong is not None and not records:
        raise UsageError(f"{wrong}; nothing was appended")
    for record in records if record_format == RAW else ():
        value_of(log, record)


def _parser(form: str, key: bytes | None, headers: Sequence[Header] | None) -> Parse:
    """Return the function that makes payloads of lines."""
    from bookies.admin.shared.lines import WrongLine, as_they_are
    from bookies.encoding.envelope import Record
    from bookies.protocol.log.record_json import parse_object

    if form == "text":
        if key is None and headers is None:
            return as_they_are
        return lambda lines: ([Record(line, key, headers) for line in lines], None)
    before = 0  # lines

    def parse(lines: list[bytes]) -> tuple[list[bytes | Record], WrongLine | None]:
        nonlocal before
        records: list[bytes | Record] = []
        for number, line in enumerate(lines, before + 1):
            if not line.strip():
                continue
            try:
                record = parse_object(line)
            except ValueError as error:
                return records, WrongLine(f"line {number:,}: {error}")
            own = key if record.key is None else record.key, headers if record.headers is None else record.headers
            records.append(Record(record.value, *own, record.timestamp_us))
        before += len(lines)
        return records, None

    return parse


async def _read(client: Client, arguments: argparse.Namespace) -> int:
    log = _log(client, arguments)
    async with log.open() as reader:
        entries = reader.read(await start_of(log, arguments, _address(arguments.start)))
        end = await end_of(log, arguments)
        await _write(entries if end is None else Before(reader, entries, end), _form(arguments), is_live=False)
    return 0


async def _tail(client: Client, arguments: argparse.Namespace) -> int:
    log = _log(client, arguments)
    async with log.open() as reader:
        start = await start_of(log, arguments, _address(arguments.start))
        await _write(reader.tail(start), _form(arguments), is_live=True)
    return 0


def _form(arguments: argparse.Namespace) -> str:
    """Return how entries are printed: `--format`, or "entries", which is `--json` alone."""
    if arguments.json and arguments.format not in (None, "json"):
        raise UsageError(f"--json prints JSON: omit it, or --format {arguments.format}")
    other = "entries" if arguments.json else "raw" if getattr(arguments, "raw", False) else "text"
    return str(arguments.format or other)


async def _write(entries: LogEntries | Before, form: str, *, is_live: bool) -> None:
    out = sys.stdout.buffer
    async for batch in entries.batches():
        try:
            if form == "raw":
                out.write(b"".join(batch.payloads()))
            elif form == "entries":
                for entry in batch.entries():
                    print_json({"position": str(entry.position), "payload": entry.payload})
            else:
                _write_records(batch, entries.decode, form, entries.start)
        finally:
            if is_live:
                sys.stdout.flush()
                out.flush()
    out.flush()


def _write_records(batch: EntryBatch, decode: Decoder, form: str, start: Address | None) -> None:
    """Print the records of a batch, up to one that is damaged. Raises `LogRecordCorrupt`."""
    from bookies.client.log.records.log_records import records_of
    from bookies.protocol.log.record_json import row_of

    rows: list[bytes] = []
    try:
        for record in records_of(batch, decode, start):
            is_json = form == "json"
            rows.append(json.dumps(row_of(str(record.address), record)).encode() if is_json else record.value or b"")
    finally:
        if rows:
            sys.stdout.buffer.write(b"\n".join(rows) + b"\n")


def describe(name: str, manifest: Manifest, begun: Mapping[int, int] | None = None) -> dict[str, object]:
    """Return a log's record for JSON: stable names. `begun`: times of extents, by number, in ms."""
    return {
        "log": name,
        "ensemble": manifest.ensemble,
        "write_quorum": manifest.write_quorum,
        "ack_quorum": manifest.ack_quorum,
        "digest": manifest.digest.name.lower(),
        "record_format": manifest.record_format,
        "compression": manifest.compression,
        "epoch": manifest.epoch,
        "created_ms": manifest.created_ms,
        "extents": [
            {
                "seq": extent.seq,
                "ledger": extent.ledger_id,
                "first": extent.first,
                "last": extent.last,
                "bytes": extent.bytes,
                "stored": extent.storage,
                "kept": extent.kept,
                "shift": extent.shift,
                "begun_ms": (begun or {}).get(extent.seq),
            }
            for extent in manifest.extents
        ],
        "deleting": list(manifest.deleting),
        "held": manifest.held or None,
    }


async def _show(client: Client, arguments: argparse.Namespace) -> Report:
    log = _log(client, arguments)
    manifest = await log.manifest()
    begun = await log.begun()
    return Report(describe(arguments.log, manifest, begun), _parts(arguments.log, manifest, begun))


def _parts(name: str, manifest: Manifest, begun: Mapping[int, int]) -> Iterator[str | Table]:
    quorums = f"E{manifest.ensemble}/Qw{manifest.write_quorum}/Qa{manifest.ack_quorum}"
    created = time_text(manifest.created_ms)
    yield f"log {name}  {quorums}  {manifest.digest.name.lower()}  epoch {manifest.epoch}  created {created}"
    if manifest.held:
        yield f"appends are refused: {manifest.held}"
    if manifest.deleting:
        yield f"still to be deleted: ledgers {', '.join(map(str, manifest.deleting))}"
    rows = [
        (
            extent.ledger_id,
            extent.first,
            "open" if extent.last is None else extent.last,
            _entry_count(extent),
            "-" if extent.bytes is None else size_text(extent.bytes),
            time_text(begun[extent.seq]) if extent.seq in begun else "-",
        )
        for extent in manifest.extents
    ]
    yield Table(("ledger", "first", "last", "entries", "payload", "begun"), rows, (0, 1, 2, 3, 4))


def _entry_count(extent: Extent) -> str:
    if extent.last is None:
        return "-"
    count = max(0, extent.last - extent.first + 1) if extent.kept is None else extent.kept
    return f"{count:,}" if extent.stored is None else f"{count:,} in ledger {extent.stored}"


async def _reap(client: Client, arguments: argparse.Namespace) -> Report:
    reaped = _log(client, arguments).reap(
        app=arguments.app, dry_run=arguments.dry_run, orphan_grace=arguments.orphan_grace * 3600
    )
    rows = [row async for row in reaped]
    cells = [
        (row.ledger_id, f"{row.app}:{row.version}", row.partition, row.age_ms // 1000, size_text(row.size), row.outcome)
        for row in rows
    ]
    table = Table(("ledger", "transaction", "partition", "age, s", "payload", "outcome"), cells, (0, 2, 3, 4))
    is_done = all(row.outcome in ("listed", "young", "migrated", "left out", "garbage", "deleted") for row in rows)
    return Report([row._asdict() for row in rows], [table], 0 if is_done or arguments.json else 1)


async def _list(client: Client, arguments: argparse.Namespace) -> Report:
    if arguments.limit is not None and arguments.limit < 1:
        raise UsageError(f"--limit {arguments.limit}: must be at least 1")
    names = [name for name in await client.logs(arguments.prefix) if name > arguments.after][: arguments.limit]
    return Report(names, names)


async def _truncate(client: Client, arguments: argparse.Namespace) -> Report | int:
    log = _log(client, arguments)
    before = _position(arguments.before)
    assert before is not None
    if arguments.dry_run:
        manifest = await log.manifest()
        target = manifest.find(before)
        if target is None:
            raise LogTruncated(f"position {before} is not in log {log.name}")
        kept = [one for one in manifest.extents if one.seq >= target.seq] + [*manifest.extents[-2:]]
        stay = {extent.storage for extent in kept}
        deleted = [ledger_id for ledger_id in dict.fromkeys(manifest.storages) if ledger_id not in stay]
        action = f"delete ledgers {', '.join(map(str, deleted))}" if deleted else "delete no ledger yet"
        print(f"would let log {log.name} begin at {before}, and {action}")
        return 0
    await log.truncate(before, force=arguments.force)
    return await _described(log, arguments)


async def _cursors(client: Client, arguments: argparse.Namespace) -> Report:
    from bookies.client.log.consumers import ConsumerState
    from bookies.protocol.log.cursors import is_lost
    from bookies.protocol.log.lag import Lag
    from bookies.protocol.log.log_model import parse_position

    log = _log(client, arguments)
    if arguments.move:
        name, equals, position = arguments.move.partition("=")
        if not equals:
            raise UsageError(f"--move {arguments.move}: expected NAME=LEDGER:ENTRY")
        await log.move_cursor(name, parse_position(position))
    if arguments.delete:
        await log.delete_cursor(arguments.delete)
    manifest, states = await log.manifest(), await log.consumers()
    for name, cursor in (await log.cursors()).items():  # One of numbered entries has no consumer.
        states.setdefault(name, ConsumerState(cursor, Lag(None, None, None), ()))
    facts = [
        {
            "cursor": name,
            "position": str(state.cursor.position),
            "moved_ms": state.cursor.moved_ms,
            "is_truncated": is_lost(state.cursor.position, manifest),
            "entries_behind": state.lag.rows,
            "bytes_behind": state.lag.bytes,
            "seconds_behind": state.lag.seconds,
            "processes": list(state.processes),
            "members": [
                {"process": member.process, "first": _text(member.first), "last": _text(member.last)}
                for member in state.members
            ],
        }
        for name, state in sorted(states.items())
    ]
    return Report(facts, [Table(_CURSOR_COLUMNS, [_cursor_cells(row) for row in facts], (2, 3, 4))])


def _text(position: Position | None) -> str | None:
    return None if position is None else str(position)


_CURSOR_COLUMNS = ("cursor", "position", "entries behind", "payload behind", "oldest", "consumer", "moved")


def _cursor_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    from bookies.protocol.log.sequences import CURSOR

    rows, size, age_s = row["entries_behind"], row["bytes_behind"], row["seconds_behind"]
    is_numbers = row["cursor"] == CURSOR  # It belongs to no consumer, and has no lag.
    missing = "-" if is_numbers else "unknown"
    return (
        row["cursor"],
        f"{row['position']} (truncated)" if row["is_truncated"] else row["position"],
        missing if rows is None else f"{rows:,}",
        missing if size is None else size_text(size),
        "-" if age_s is None else f"{age_s:,.0f} s",
        _process_text(row) or ("numbered entries" if is_numbers else "-"),
        time_text(row["moved_ms"]),
    )


def _process_text(row: Mapping[str, Any]) -> str:
    """Return the process that consumes and those that wait for it, or those that share the consumer."""
    if not row["members"]:
        return " <- ".join(row["processes"])
    claims = [f"{member['first']} to {member['last']}" if member["first"] else "-" for member in row["members"]]
    return ", ".join(f"{member['process']} ({claim})" for member, claim in zip(row["members"], claims, strict=True))


async def _delete(client: Client, arguments: argparse.Namespace) -> Report | int:
    log = _log(client, arguments)
    if log.name not in await client.logs(log.name):
        await log.manifest()  # Raises the error that describes why the log is not listed.
    manifests = [] if arguments.yes else [await log.manifest()]
    log_text = f"log {log.name}" + "".join(f" (ledgers: {len(manifest.extents)})" for manifest in manifests)
    if arguments.dry_run:
        print(f"would delete {log_text}")
        return 0
    if not (arguments.yes or is_deletion_confirmed(log_text, "name", log.name)):
        return 1
    await log.delete()
    return report_deleted(arguments, log.name, log_text)


def _either(own: Run, other: str) -> Run:
    """Return the function of a verb: `own`, or with `--namespace` the one of `namespace_log` that `other` names."""

    def run(arguments: argparse.Namespace) -> Report | int:
        if arguments.namespace is None:
            return own(arguments)
        from bookies.admin.logs import namespace_log

        return namespace_log.on_namespace(arguments, getattr(namespace_log, other))

    return OnCluster(run, own.within) if isinstance(own, OnCluster) else run


def _append_to_either(arguments: argparse.Namespace) -> Report | int:
    if arguments.namespace is None:
        return _append(arguments)
    from bookies.admin.logs import namespace_log

    return namespace_log.append(arguments)


def _recover(arguments: argparse.Namespace) -> Report | int:
    from bookies.admin.logs import namespace_log

    return namespace_log.recover(arguments)


_NAMESPACE = Option(
    "--namespace URI",
    "use a log of DistributedLog, with positions SEGMENT:ENTRY:SLOT or txid:NUMBER. URI: distributedlog://HOST/PATH, "
    "or METADATA_URI#NAME without ZooKeeper",
)
_LOG = Option("log LOG", "name of the log")
_DRY_RUN = Option("--dry-run", "report what would be deleted", bool)
_FORMAT = Option(
    "--format",
    "text: values, a line each; json: a line of JSON each, with position, value, key, headers and time; raw: entries "
    "as they are stored, without line ends (default text)",
    choices=("text", "json", "raw"),
)
VERBS = (
    verb(
        "log create",
        "create a log",
        "bk log create orders",
        on_client(_create),
        _LOG,
        Option("--ensemble", "number of bookies of each ledger (default 3)", int, default=3),
        WRITE_QUORUM,
        ACK_QUORUM,
        DIGEST,
        Option(
            "--format",
            "raw: an entry is the value; envelope: an entry has key, headers and value; sets: an entry has many such "
            "records (default raw)",
            default="raw",
            choices=("raw", "envelope", "sets"),
        ),
        Option("--compression", "codec of record sets (default: none)", choices=("zstd", "lz4")),
        *log_retention.LIMITS,
        Option(
            "--compaction",
            "key: bk log compact may remove all but the last record of each key (default: it may not)",
            default="",
            choices=("", "key"),
        ),
        Option("--exist-ok", "succeed if a log of that name exists", bool),
    ),
    verb(
        "log append",
        "become the log's leader and append the lines of stdin",
        "zcat access.log.gz | bk log append web",
        _append_to_either,
        _LOG,
        _NAMESPACE,
        log_retention.PASSWORD,
        Option("--input FILE", "read from FILE instead of stdin"),
        Option(
            "--format",
            "text: a line is a value; json: a line is an object with text, json or base64, and perhaps key, headers "
            "and time_ms, as log read prints them (default text)",
            default="text",
            choices=("text", "json"),
        ),
        Option("--key", "key of records without one (logs with record format envelope)"),
        Option("--header NAME=VALUE", "header of records without headers; may be repeated", may_repeat=True),
        Option(
            "--roll-size BYTES",
            "size of a ledger, in bytes, before the log continues in a new one (default 256 MiB)",
            int,
            default=256 << 20,
        ),
    ),
    verb(
        "log read",
        "print the entries to stdout",
        "bk log read orders --from 17:1041",
        _either(on_client(_read), "read"),
        _LOG,
        _NAMESPACE,
        log_retention.PASSWORD,
        OneOf(Option("--raw", "print no line end after each entry: --format raw", bool), _FORMAT),
        OneOf(_start("the beginning"), SINCE),
        UNTIL,
    ),
    verb(
        "log tail",
        "print entries as they are confirmed, until interrupted",
        "bk log tail orders | jq .",
        _either(on_client(_tail), "tail"),
        _LOG,
        _NAMESPACE,
        log_retention.PASSWORD,
        _FORMAT,
        OneOf(_start("the next entry"), SINCE),
    ),
    verb(
        "log truncate",
        "delete the entries before a position",
        "bk log truncate orders --before 17:1042",
        _either(on_client(_truncate), "truncate"),
        _LOG,
        _NAMESPACE,
        log_retention.PASSWORD,
        Option("--before POSITION", "LEDGER:ENTRY, the first entry to keep", is_required=True),
        _DRY_RUN,
        Option("--force", "truncate even if a cursor is before the position", bool),
    ),
    verb(
        "log cursors",
        "list, move or delete cursors: positions of named consumers that hold truncation back, their lag and process",
        "bk log cursors orders",
        on_client(_cursors),
        _LOG,
        log_retention.PASSWORD,
        Option("--move NAME=POSITION", "set a cursor to an entry; create it if it does not exist"),
        Option("--delete NAME", "delete a cursor: truncation no longer respects it"),
    ),
    *log_retention.VERBS,
    *log_mirror.VERBS,
    verb(
        "log recover",
        "complete a log of DistributedLog whose writer is gone, also if its end is damaged; a live writer is stopped",
        "bk log recover orders --namespace distributedlog://zk1:2181/messaging --skip-damaged",
        _recover,
        _LOG,
        _NAMESPACE,
        log_retention.PASSWORD,
        Option("--skip-damaged", "end the log before damaged entries, whose records are lost", bool),
    ),
    verb(
        "log reap",
        "delete the ledgers of transactions that will not commit",
        "bk log reap orders --dry-run",
        on_client(_reap),
        _LOG,
        log_retention.PASSWORD,
        _DRY_RUN,
        Option("--app", "reap only transactions of this application (txnAppId)"),
        Option(
            "--orphan-grace HOURS",
            "age in hours at which the ledgers of an uncommitted transaction are deleted (default 24)",
            float,
            default=24.0,
        ),
    ),
    verb(
        "log show",
        "print a log's settings and ledgers",
        "bk log show orders",
        _either(on_client(_show), "show"),
        _LOG,
        _NAMESPACE,
    ),
    verb(
        "log list",
        "list all logs",
        "bk log list --prefix web",
        _either(on_client(_list), "names"),
        _NAMESPACE,
        Option("--prefix", "list only names with this prefix", default=""),
        Option("--after NAME", "list only names after this one, in alphabetical order", default=""),
        Option("--limit COUNT", "list at most this number of logs", int),
    ),
    verb(
        "log delete",
        "delete a log and its ledgers permanently",
        "bk log delete orders --yes",
        _either(on_client(_delete), "delete"),
        _LOG,
        _NAMESPACE,
        log_retention.PASSWORD,
        Option("--yes", "delete without confirmation", bool),
        _DRY_RUN,
    ),
)
