"""`bk log`: create, append, read, tail, truncate, cursors, reap, show, list, delete.

A log is an ordered list of ledgers changed by compare-and-swap. `append` takes the lead and appends one entry per line
of stdin; it may be repeated. Positions are `LEDGER:ENTRY`.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from bookies.admin.shared import Progress, UsageError
from bookies.admin.shared.common import (
    add_common,
    opened_input,
    print_json,
    print_table,
    size_text,
    time_text,
    with_client,
)
from bookies.errors import LogTruncated

if TYPE_CHECKING:
    from bookies.client.base import EntryBatch
    from bookies.client.base.iteration import Entries
    from bookies.client.client import Client
    from bookies.client.log import Log
    from bookies.protocol.log import Manifest, Position


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(
        name: str, text: str, example: str, *, log: bool = True, password: bool = False
    ) -> argparse.ArgumentParser:
        verb_parser = verbs.add_parser(name, help=text, epilog=f"example:  {example}")
        add_common(verb_parser)
        if log:
            verb_parser.add_argument("log", metavar="LOG", help="name of the log")
        if password:
            verb_parser.add_argument("--password", default="", help="password of the log's ledgers (default: empty)")
        return verb_parser

    create = verb("create", "create a log", "bk log create orders")
    _configure_create(create)
    append = verb(
        "append",
        "become the log's leader and append the lines of stdin",
        "zcat access.log.gz | bk log append web",
        password=True,
    )
    append.add_argument("--input", metavar="FILE", help="read from FILE instead of stdin")
    append.add_argument(
        "--roll-size",
        type=int,
        default=256 << 20,
        metavar="BYTES",
        help="size of a ledger, in bytes, before the log continues in a new one (default 256 MiB)",
    )
    read = verb("read", "print the entries to stdout", "bk log read orders --from 17:1041", password=True)
    read.add_argument("--raw", action="store_true", help="print no line end after each entry")
    tail = verb(
        "tail", "print entries as they are confirmed, until interrupted", "bk log tail orders | jq .", password=True
    )
    for verb_parser, default in ((read, "the beginning"), (tail, "the next entry")):
        verb_parser.add_argument(
            "--from",
            dest="start",
            metavar="POSITION",
            default=None,
            help=f"LEDGER:ENTRY, the first entry to print (default: {default})",
        )
    truncate = verb(
        "truncate", "delete the entries before a position", "bk log truncate orders --before 17:1042", password=True
    )
    truncate.add_argument("--before", metavar="POSITION", required=True, help="LEDGER:ENTRY, the first entry to keep")
    truncate.add_argument("--dry-run", action="store_true", help="report what would be deleted")
    truncate.add_argument("--force", action="store_true", help="truncate even if a cursor is before the position")
    cursors = verb(
        "cursors",
        "list, move or delete cursors: positions of named consumers that hold truncation back",
        "bk log cursors orders",
    )
    cursors.add_argument(
        "--move", metavar="NAME=POSITION", help="set a cursor to an entry; create it if it does not exist"
    )
    cursors.add_argument("--delete", metavar="NAME", help="delete a cursor: truncation no longer respects it")
    reap = verb(
        "reap", "delete the ledgers of transactions that will not commit", "bk log reap orders --dry-run", password=True
    )
    reap.add_argument("--dry-run", action="store_true", help="report what would be deleted")
    reap.add_argument("--app", default=None, help="reap only transactions of this application (txnAppId)")
    reap.add_argument(
        "--orphan-grace", type=float, default=24.0, metavar="HOURS",
        help="age in hours at which the ledgers of an uncommitted transaction are deleted (default 24)",
    )  # fmt: skip
    verb("show", "print a log's settings and ledgers", "bk log show orders")
    list_parser = verb("list", "list all logs", "bk log list --prefix web", log=False)
    list_parser.add_argument("--prefix", default="", help="list only names with this prefix")
    delete = verb("delete", "delete a log and its ledgers permanently", "bk log delete orders --yes", password=True)
    delete.add_argument("--yes", action="store_true", help="delete without confirmation")
    delete.add_argument("--dry-run", action="store_true", help="report what would be deleted")


def _configure_create(create: argparse.ArgumentParser) -> None:
    create.add_argument("--ensemble", type=int, default=3, help="number of bookies of each ledger (default 3)")
    create.add_argument(
        "--write-quorum", type=int, default=None, help="number of replicas of each entry (default: ensemble)"
    )
    create.add_argument(
        "--ack-quorum",
        type=int,
        default=None,
        help="number of replicas on disk before an add is confirmed (default: majority of the write quorum)",
    )
    create.add_argument(
        "--digest",
        default="crc32c",
        choices=("crc32c", "crc32", "hmac", "dummy"),
        help="checksum of each entry (default crc32c)",
    )
    create.add_argument(
        "--format",
        default="raw",
        choices=("raw", "envelope"),
        help="raw: an entry is the value; envelope: an entry has key, headers and value (default raw)",
    )
    create.add_argument("--exist-ok", action="store_true", help="succeed if a log of that name exists")


def run(arguments: argparse.Namespace) -> int:
    handlers = {
        "create": _create, "read": _read, "tail": _tail, "truncate": _truncate, "cursors": _cursors, "reap": _reap,
        "show": _show, "list": _list, "delete": _delete,
    }  # fmt: skip
    if arguments.verb == "append":
        with opened_input(arguments.input, "nothing was appended") as descriptor:
            return with_client(arguments, lambda client: _append(client, arguments, descriptor))
    return with_client(arguments, lambda client: handlers[arguments.verb](client, arguments))


def _log(client: Client, arguments: argparse.Namespace) -> Log:
    return client.log(arguments.log, password=getattr(arguments, "password", "").encode())


def _position(text: str | None) -> Position | None:
    from bookies.protocol.log.log_model import parse_position

    return None if text is None else parse_position(text)


async def _create(client: Client, arguments: argparse.Namespace) -> int:
    log = _log(client, arguments)
    await log.create(
        ensemble=arguments.ensemble,
        write_quorum=arguments.write_quorum,
        ack_quorum=arguments.ack_quorum,
        digest=arguments.digest,
        record_format=arguments.format,
        exist_ok=arguments.exist_ok,
    )
    if arguments.json:
        print_json(describe(log.name, await log.manifest()))
    return 0


async def _append(client: Client, arguments: argparse.Namespace, descriptor: int) -> int:
    from bookies.admin.shared.lines import append_lines

    progress = Progress("appended", None)
    done = 0

    def confirmed(count: int) -> None:
        nonlocal done
        done = count
        progress.update(count)

    try:
        async with _log(client, arguments).lead(roll_size=arguments.roll_size) as writer:
            begin = f"{writer.ledger_id}:0"
            count = await append_lines(writer, descriptor, confirmed)
    except BaseException:
        progress.clear()
        if done:
            print(
                f"the first {done:,} lines are in log {arguments.log}; further lines may or may not be", file=sys.stderr
            )
        raise
    progress.clear()
    if arguments.json:
        print_json({"log": arguments.log, "entries": count, "first": begin, "epoch": writer.epoch})
    elif sys.stderr.isatty():
        print(f"appended {count:,} entries to log {arguments.log}, beginning at {begin}", file=sys.stderr)
    return 0


async def _read(client: Client, arguments: argparse.Namespace) -> int:
    async with _log(client, arguments).open() as reader:
        await _write(reader.read(_position(arguments.start)), arguments.json, b"" if arguments.raw else b"\n")
    return 0


async def _tail(client: Client, arguments: argparse.Namespace) -> int:
    async with _log(client, arguments).open() as reader:
        await _write(reader.tail(_position(arguments.start)), arguments.json, b"\n", is_live=True)
    return 0


async def _write(entries: Entries, as_json: bool, end: bytes, *, is_live: bool = False) -> None:
    out = sys.stdout.buffer
    async for batch in entries.batches():
        if as_json:
            _write_json(batch)
        else:
            out.write(end.join(batch.payloads()) + end)
        if is_live:
            sys.stdout.flush()
            out.flush()
    out.flush()


def _write_json(batch: EntryBatch) -> None:
    for entry in batch.entries():
        print_json({"position": str(entry.position), "payload": entry.payload})


def describe(name: str, manifest: Manifest) -> dict[str, object]:
    """Return a log's record for JSON: stable names."""
    return {
        "log": name,
        "ensemble": manifest.ensemble,
        "write_quorum": manifest.write_quorum,
        "ack_quorum": manifest.ack_quorum,
        "digest": manifest.digest.name.lower(),
        "record_format": manifest.record_format,
        "epoch": manifest.epoch,
        "created_ms": manifest.created_ms,
        "extents": [
            {
                "seq": extent.seq,
                "ledger": extent.ledger_id,
                "first": extent.first,
                "last": extent.last,
                "bytes": extent.bytes,
            }
            for extent in manifest.extents
        ],
        "deleting": list(manifest.deleting),
    }


async def _show(client: Client, arguments: argparse.Namespace) -> int:
    manifest = await _log(client, arguments).manifest()
    if arguments.json:
        print_json(describe(arguments.log, manifest))
        return 0
    quorums = f"E{manifest.ensemble}/Qw{manifest.write_quorum}/Qa{manifest.ack_quorum}"
    created = time_text(manifest.created_ms)
    print(f"log {arguments.log}  {quorums}  {manifest.digest.name.lower()}  epoch {manifest.epoch}  created {created}")
    if manifest.deleting:
        print(f"still to be deleted: ledgers {', '.join(map(str, manifest.deleting))}")
    print_table(
        [
            (
                extent.ledger_id,
                extent.first,
                "open" if extent.last is None else extent.last,
                "-" if extent.last is None else f"{max(0, extent.last - extent.first + 1):,}",
                "-" if extent.bytes is None else size_text(extent.bytes),
            )
            for extent in manifest.extents
        ],
        ("ledger", "first", "last", "entries", "payload"),
        right=(0, 1, 2, 3, 4),
    )
    return 0


async def _reap(client: Client, arguments: argparse.Namespace) -> int:
    log = _log(client, arguments)
    rows = [
        row
        async for row in log.reap(
            app=arguments.app, dry_run=arguments.dry_run, orphan_grace=arguments.orphan_grace * 3600
        )
    ]
    if arguments.json:
        print_json([row._asdict() for row in rows])
        return 0
    print_table(
        [
            (
                row.ledger_id,
                f"{row.app}:{row.version}",
                row.partition,
                row.age_ms // 1000,
                size_text(row.size),
                row.outcome,
            )
            for row in rows
        ],
        ("ledger", "transaction", "partition", "age, s", "payload", "outcome"),
        right=(0, 2, 3, 4),
    )
    return 0 if all(row.outcome in ("listed", "young", "migrated", "garbage", "deleted") for row in rows) else 1


async def _list(client: Client, arguments: argparse.Namespace) -> int:
    names = await client.logs(arguments.prefix)
    if arguments.json:
        print_json(names)
    else:
        for name in names:
            print(name)
    return 0


async def _truncate(client: Client, arguments: argparse.Namespace) -> int:
    log = _log(client, arguments)
    before = _position(arguments.before)
    assert before is not None
    if arguments.dry_run:
        manifest = await log.manifest()
        target = manifest.find(before)
        if target is None:
            raise LogTruncated(f"position {before} is not in log {log.name}")
        deleted = [extent.ledger_id for extent in manifest.extents[:-2] if extent.seq < target.seq]
        action = f"delete ledgers {', '.join(map(str, deleted))}" if deleted else "delete no ledger yet"
        print(f"would let log {log.name} begin at {before}, and {action}")
        return 0
    await log.truncate(before, force=arguments.force)
    if arguments.json:
        print_json(describe(log.name, await log.manifest()))
    return 0


async def _cursors(client: Client, arguments: argparse.Namespace) -> int:
    from bookies.protocol.log.cursors import is_lost
    from bookies.protocol.log.log_model import parse_position

    log = _log(client, arguments)
    if arguments.move:
        name, equals, position = arguments.move.partition("=")
        if not equals:
            raise UsageError(f"--move {arguments.move}: expected NAME=LEDGER:ENTRY")
        await log.move_cursor(name, parse_position(position))
    if arguments.delete:
        await log.delete_cursor(arguments.delete)
    manifest = await log.manifest()
    cursors = list((await log.cursors()).values())
    if arguments.json:
        print_json(
            [
                {"cursor": cursor.name, "position": str(cursor.position), "moved_ms": cursor.moved_ms,
                 "is_truncated": is_lost(cursor.position, manifest)}
                for cursor in cursors
            ]
        )  # fmt: skip
        return 0
    print_table(
        [
            (
                cursor.name,
                f"{cursor.position} (truncated)" if is_lost(cursor.position, manifest) else str(cursor.position),
                time_text(cursor.moved_ms),
            )
            for cursor in cursors
        ],
        ("cursor", "position", "moved"),
    )
    return 0


async def _delete(client: Client, arguments: argparse.Namespace) -> int:
    log = _log(client, arguments)
    if log.name not in await client.logs(log.name):
        await log.manifest()  # Raises the error that describes why the log is not listed.
    manifests = [] if arguments.yes else [await log.manifest()]
    log_text = f"log {log.name}" + "".join(f" (ledgers: {len(manifest.extents)})" for manifest in manifests)
    if arguments.dry_run:
        print(f"would delete {log_text}")
        return 0
    if not arguments.yes:
        if not sys.stdin.isatty():
            raise UsageError(f"delete {log_text}? This cannot be undone; confirm with --yes")
        print(f"delete {log_text} permanently? Type its name to confirm: ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip() != log.name:
            print("nothing was deleted", file=sys.stderr)
            return 1
    await log.delete()
    if arguments.json:
        print_json({"deleted": log.name})
    else:
        print(f"deleted {log_text}", file=sys.stderr)
    return 0
