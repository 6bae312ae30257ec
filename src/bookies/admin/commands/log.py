"""`bk log`: create, append, read, tail, truncate, cursors, reap, show, list, delete.

A log is a list of ledgers that goes on: `append` takes the lead, appends one entry per line of stdin, and may be
called again and again. Positions are `LEDGER:ENTRY`.
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
        each = verbs.add_parser(name, help=text, epilog=f"example:  {example}")
        add_common(each)
        if log:
            each.add_argument("log", metavar="LOG", help="its name")
        if password:
            each.add_argument("--password", default="", help="of the log's ledgers (default: empty)")
        return each

    create = verb("create", "make a log", "bk log create orders")
    create.add_argument("--ensemble", type=int, default=3, help="bookies of each ledger (default 3)")
    create.add_argument("--write-quorum", type=int, default=None, help="replicas of each entry (default: ensemble)")
    create.add_argument(
        "--ack-quorum", type=int, default=None, help="replicas on disk before an answer (default: majority)"
    )
    create.add_argument("--digest", default="crc32c", choices=("crc32c", "crc32", "hmac", "dummy"))
    create.add_argument(
        "--format", default="raw", choices=("raw", "envelope"), help="an entry is the value, or has key and headers too"
    )
    create.add_argument("--exist-ok", action="store_true", help="content with a log of that name")
    append = verb(
        "append", "take the lead and append the lines of stdin", "zcat access.log.gz | bk log append web", password=True
    )
    append.add_argument("--input", metavar="FILE", help="read from FILE instead of stdin")
    append.add_argument(
        "--roll-size", type=int, default=256 << 20, metavar="BYTES", help="of a ledger (default 256 MiB)"
    )
    read = verb("read", "write the entries to stdout", "bk log read orders --from 17:1041", password=True)
    read.add_argument("--raw", action="store_true", help="no line end after each entry")
    tail = verb(
        "tail", "write entries as they are confirmed, without an end", "bk log tail orders | jq .", password=True
    )
    for each, default in ((read, "the beginning"), (tail, "the next entry")):
        each.add_argument("--from", dest="start", metavar="POSITION", default=None, help=f"(default: {default})")
    truncate = verb(
        "truncate", "delete what is before a position", "bk log truncate orders --before 17:1042", password=True
    )
    truncate.add_argument("--before", metavar="POSITION", required=True, help="LEDGER:ENTRY, the first one to keep")
    truncate.add_argument("--dry-run", action="store_true", help="say what would be deleted")
    truncate.add_argument("--force", action="store_true", help="pass cursors that have not come so far")
    cursors = verb("cursors", "how far named consumers have come, which truncation respects", "bk log cursors orders")
    cursors.add_argument("--move", metavar="NAME=POSITION", help="put a cursor before an entry, making it if need be")
    cursors.add_argument("--delete", metavar="NAME", help="delete a cursor: it holds nothing back any more")
    reap = verb(
        "reap", "delete what transactions wrote and will not commit", "bk log reap orders --dry-run", password=True
    )
    reap.add_argument("--dry-run", action="store_true", help="say what would be deleted")
    reap.add_argument("--app", default=None, help="only of this application (txnAppId)")
    reap.add_argument(
        "--orphan-grace", type=float, default=24.0, metavar="HOURS",
        help="after which a transaction that nobody knows of is given up (default 24)",
    )  # fmt: skip
    verb("show", "its ledgers", "bk log show orders")
    list_parser = verb("list", "all logs", "bk log list --prefix web", log=False)
    list_parser.add_argument("--prefix", default="", help="only names that begin so")
    delete = verb("delete", "delete a log and its ledgers for ever", "bk log delete orders --yes", password=True)
    delete.add_argument("--yes", action="store_true", help="do not ask")
    delete.add_argument("--dry-run", action="store_true", help="say what would be deleted")


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
            print(f"the first {done:,} lines are in log {arguments.log}; some of the next may be", file=sys.stderr)
        raise
    progress.clear()
    if arguments.json:
        print_json({"log": arguments.log, "entries": count, "first": begin, "epoch": writer.epoch})
    elif sys.stderr.isatty():
        print(f"appended {count:,} entries to log {arguments.log}, from {begin} on", file=sys.stderr)
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
    """A log's record for JSON: stable names."""
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
            {"seq": each.seq, "ledger": each.ledger_id, "first": each.first, "last": each.last, "bytes": each.bytes}
            for each in manifest.extents
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
                each.ledger_id,
                each.first,
                "open" if each.last is None else each.last,
                "-" if each.last is None else f"{max(0, each.last - each.first + 1):,}",
                "-" if each.bytes is None else size_text(each.bytes),
            )
            for each in manifest.extents
        ],
        ("ledger", "first", "last", "entries", "payload"),
        right=(0, 1, 2, 3, 4),
    )
    return 0


async def _reap(client: Client, arguments: argparse.Namespace) -> int:
    log = _log(client, arguments)
    rows = [
        each
        async for each in log.reap(
            app=arguments.app, dry_run=arguments.dry_run, orphan_grace=arguments.orphan_grace * 3600
        )
    ]
    if arguments.json:
        print_json([each._asdict() for each in rows])
        return 0
    print_table(
        [
            (
                each.ledger_id,
                f"{each.app}:{each.version}",
                each.partition,
                each.age_ms // 1000,
                size_text(each.size),
                each.outcome,
            )
            for each in rows
        ],
        ("ledger", "transaction", "partition", "age, s", "payload", "outcome"),
        right=(0, 2, 3, 4),
    )
    return 0 if all(each.outcome in ("listed", "young", "migrated", "garbage", "deleted") for each in rows) else 1


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
        gone = [each.ledger_id for each in manifest.extents[:-2] if each.seq < target.seq]
        what = f"delete ledgers {', '.join(map(str, gone))}" if gone else "delete no ledger yet"
        print(f"would let log {log.name} begin at {before}, and {what}")
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
    found = list((await log.cursors()).values())
    if arguments.json:
        print_json(
            [
                {"cursor": each.name, "position": str(each.position), "moved_ms": each.moved_ms,
                 "is_truncated": is_lost(each.position, manifest)}
                for each in found
            ]
        )  # fmt: skip
        return 0
    print_table(
        [
            (
                each.name,
                f"{each.position} (truncated)" if is_lost(each.position, manifest) else str(each.position),
                time_text(each.moved_ms),
            )
            for each in found
        ],
        ("cursor", "position", "moved"),
    )
    return 0


async def _delete(client: Client, arguments: argparse.Namespace) -> int:
    log = _log(client, arguments)
    if log.name not in await client.logs(log.name):
        await log.manifest()  # It says what is wrong.
    manifests = [] if arguments.yes else [await log.manifest()]
    what = f"log {log.name}" + "".join(f" (ledgers: {len(each.extents)})" for each in manifests)
    if arguments.dry_run:
        print(f"would delete {what}")
        return 0
    if not arguments.yes:
        if not sys.stdin.isatty():
            raise UsageError(f"delete {what}? This cannot be undone; say --yes")
        print(f"delete {what} for ever? type its name: ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip() != log.name:
            print("nothing was deleted", file=sys.stderr)
            return 1
    await log.delete()
    if arguments.json:
        print_json({"deleted": log.name})
    else:
        print(f"deleted {what}", file=sys.stderr)
    return 0
