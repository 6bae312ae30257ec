"""`bk ledger`: create, append, read, tail, show, explain, list, verify, repair, recover, seal, delete.

`append` takes one entry per line of stdin (or `--input FILE`), `read` and `tail` give one line per entry: the shell's
view of a ledger. `--raw` on `read` writes the payloads without line ends.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from bookies.admin.shared import Progress, UsageError
from bookies.admin.shared.common import (
    add_common,
    add_rate,
    opened_input,
    print_json,
    print_table,
    say_unreadable,
    size_text,
    time_text,
    with_client,
    with_session,
)

if TYPE_CHECKING:
    from bookies.client.base.fragment_placement import FragmentPlacement
    from bookies.client.client import Client
    from bookies.client.write import LedgerWriter
    from bookies.errors import MetadataCorrupt
    from bookies.model import LedgerMetadata


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, text: str, example: str, *, ledger: bool = True) -> argparse.ArgumentParser:
        each = verbs.add_parser(name, help=text, epilog=f"example:  {example}")
        add_common(each)
        if ledger:
            each.add_argument("ledger", type=_ledger_id, metavar="LEDGER")
        return each

    def password(each: argparse.ArgumentParser) -> None:
        each.add_argument("--password", default="", help="the ledger's password (default: empty)")

    create = verb("create", "create an empty ledger and print its id", "id=$(bk ledger create)", ledger=False)
    append = verb(
        "append", "append the lines of stdin", "id=$(zcat access.log.gz | bk ledger append --new)", ledger=False
    )
    append.add_argument(
        "ledger", type=_ledger_id, metavar="LEDGER", nargs="?", help="not possible: a ledger has one writer"
    )
    append.add_argument("--new", action="store_true", help="create a ledger, append, seal it, print its id")
    append.add_argument("--input", metavar="FILE", help="read from FILE instead of stdin")
    append.add_argument("--keep-open", action="store_true", help="do not seal at the end (recover it later)")
    for each in (create, append):
        each.add_argument("--ensemble", type=int, default=3, help="bookies of the ledger (default 3)")
        each.add_argument("--write-quorum", type=int, default=None, help="replicas of each entry (default: ensemble)")
        each.add_argument(
            "--ack-quorum", type=int, default=None, help="replicas on disk before an answer (default: majority)"
        )
        each.add_argument("--digest", default="crc32c", choices=("crc32c", "crc32", "hmac", "dummy"))
        each.add_argument("--label", action="append", default=[], metavar="NAME=VALUE", help="may be repeated")
        password(each)
    read = verb("read", "write the entries to stdout", "bk ledger read 7 --first 100 --last 199")
    read.add_argument("--first", type=int, default=0)
    read.add_argument("--last", type=int, default=None, help="(default: the last confirmed entry)")
    read.add_argument("--raw", action="store_true", help="no line end after each entry")
    tail = verb("tail", "write entries as they are confirmed, until the ledger is sealed", "bk ledger tail 7 | jq .")
    tail.add_argument("--from", dest="first", type=int, default=None, help="first entry (default: the next one)")
    show = verb("show", "its metadata", "bk ledger show 7")
    explain = verb(
        "explain",
        "every replica, of the whole or of one entry: where, how good, and what is done about it",
        "bk ledger explain 17:1041",
        ledger=False,
    )
    explain.add_argument("what", type=_ledger_and_entry, metavar="LEDGER[:ENTRY]")
    recover = verb("recover", "stop its writer, find its end, seal it", "bk ledger recover 7")
    seal = verb("seal", "the same as recover: end it for ever at its last confirmed entry", "bk ledger seal 7")
    for each in (read, tail, recover, seal):
        password(each)
    list_parser = verb("list", "all ledgers", "bk ledger list --label app=demo", ledger=False)
    list_parser.add_argument("--label", metavar="NAME=VALUE", default=None, help="only these")
    verify = verb("verify", "check every replica of ledgers", "bk ledger verify 7 8", ledger=False)
    repair = verb("repair", "check ledgers and copy again what is lost", "bk ledger repair 7", ledger=False)
    for each in (verify, repair):
        each.add_argument("ledgers", type=_ledger_id, metavar="LEDGER", nargs="*", help="(default: all)")
        each.add_argument(
            "--percentage",
            type=_percentage,
            default=100.0,
            help="of the entries of each replica to read and check, beside its first and last (default 100: all)",
        )
    repair.add_argument(
        "--lost", metavar="ID", action="append", default=[], help="take this bookie for lost, without waiting"
    )
    repair.add_argument("--dry-run", action="store_true", help="check, and only say what would be done")
    add_rate(repair)
    delete = verb("delete", "delete a ledger for ever", "bk ledger delete 7 --yes")
    delete.add_argument("--yes", action="store_true", help="do not ask")
    delete.add_argument("--dry-run", action="store_true", help="say what would be deleted")
    del show


def run(arguments: argparse.Namespace) -> int:
    handlers = {
        "create": _create, "read": _read, "tail": _tail, "show": _show,
        "list": _list, "verify": _verify, "recover": _recover, "seal": _recover, "delete": _delete,
    }  # fmt: skip
    if arguments.verb == "append":
        if arguments.ledger is not None or not arguments.new:
            raise UsageError(
                "append needs --new: a ledger has one writer for its whole life, so appending starts a new one "
                "(a log that goes on is made of many ledgers)"
            )
        with opened_input(arguments.input, "nothing was created") as descriptor:
            return with_client(arguments, lambda client: _append(client, arguments, descriptor))
    if arguments.verb == "explain":
        from bookies.admin.verbs.explain import explain

        ledger_id, entry_id = arguments.what
        return with_session(arguments, lambda session: explain(session, ledger_id, entry_id, arguments))
    if arguments.verb == "repair":
        from bookies.admin.verbs.replication import repair_ledgers

        return with_session(arguments, lambda session: repair_ledgers(session, arguments))
    return with_client(arguments, lambda client: handlers[arguments.verb](client, arguments))


def _ledger_id(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a ledger id (a whole number, 0 or more)")
    return int(text)


def _ledger_and_entry(text: str) -> tuple[int, int | None]:
    ledger, colon, entry = text.partition(":")
    for number in (ledger, entry) if colon else (ledger,):
        if not (number.isascii() and number.isdigit()):
            raise argparse.ArgumentTypeError(f"{text!r} is neither LEDGER nor LEDGER:ENTRY (whole numbers, 0 or more)")
    return int(ledger), int(entry) if colon else None


def _percentage(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage (0 to 100)")
    return value


def _labels(pairs: list[str]) -> dict[str, str]:
    labels = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise UsageError(f"--label {pair}: expected NAME=VALUE")
        if name in labels:
            raise UsageError(f"--label {pair}: {name} is given twice; a ledger has one value of each name")
        labels[name] = value
    return labels


async def _new(client: Client, arguments: argparse.Namespace) -> LedgerWriter:
    write_quorum = arguments.ensemble if arguments.write_quorum is None else arguments.write_quorum
    return await client.create(
        ensemble=arguments.ensemble,
        write_quorum=write_quorum,
        ack_quorum=write_quorum // 2 + 1 if arguments.ack_quorum is None else arguments.ack_quorum,
        digest=arguments.digest,
        password=arguments.password.encode(),
        labels=_labels(arguments.label),
    )


async def _create(client: Client, arguments: argparse.Namespace) -> int:
    ledger = await _new(client, arguments)
    await ledger.close()
    if arguments.json:
        print_json(describe(ledger.metadata))
    else:
        print(ledger.ledger_id)
    return 0


async def _append(client: Client, arguments: argparse.Namespace, descriptor: int) -> int:
    from bookies.admin.shared.lines import append_lines

    progress = Progress("appended", None)
    ledger = await _new(client, arguments)
    if sys.stderr.isatty():
        print(f"appending to ledger {ledger.ledger_id}", file=sys.stderr, flush=True)
    try:
        count = await append_lines(ledger, descriptor, progress.update)
        progress.clear()
        if arguments.keep_open:
            await ledger.close()
        else:
            await ledger.seal()
    except BaseException:
        progress.clear()
        await ledger.close()
        print(_left_open(ledger), file=sys.stderr)
        raise
    if arguments.json:
        print_json({"ledger": ledger.ledger_id, "entries": count, "length": ledger.length})
    else:
        print(ledger.ledger_id)
    return 0


def _left_open(ledger: LedgerWriter) -> str:
    """What has become of a ledger whose appends were interrupted."""
    count = ledger.last_add_confirmed + 1
    confirmed = f"{count:,} confirmed {'entry' if count == 1 else 'entries'}"
    if ledger.metadata.is_closed:
        return f"ledger {ledger.ledger_id} is sealed with {confirmed}"
    return (
        f"ledger {ledger.ledger_id} is left open with {confirmed}; "
        f"`bk ledger recover {ledger.ledger_id}` ends it without losing any"
    )


async def _read(client: Client, arguments: argparse.Namespace) -> int:
    out = sys.stdout.buffer
    end = b"" if arguments.raw else b"\n"
    async with client.open(arguments.ledger, password=arguments.password.encode()) as ledger:
        async for batch in ledger.read_batches(arguments.first, arguments.last):
            payloads = batch.payloads()
            if arguments.json:
                for entry_id, payload in enumerate(payloads, batch.first_entry_id):
                    print_json({"entry": entry_id, "payload": payload})
            else:
                out.write(end.join(payloads) + end)
        out.flush()
    return 0


async def _tail(client: Client, arguments: argparse.Namespace) -> int:
    out = sys.stdout.buffer
    async with client.open(arguments.ledger, password=arguments.password.encode()) as ledger:
        first = arguments.first if arguments.first is not None else ledger.last_add_confirmed + 1
        async for entry in ledger.tail(first=first):
            if arguments.json:
                print_json({"entry": entry.id, "payload": entry.payload})
                sys.stdout.flush()
            else:
                out.write(entry.payload + b"\n")
                out.flush()
    return 0


def quorums(metadata: LedgerMetadata) -> str:
    return f"E{metadata.ensemble_size}/Qw{metadata.write_quorum}/Qa{metadata.ack_quorum}"


def describe(metadata: LedgerMetadata) -> dict[str, object]:
    """A ledger's record for JSON: stable names, never the password."""
    return {
        "ledger": metadata.ledger_id,
        "state": metadata.state.name,
        "ensemble": metadata.ensemble_size,
        "write_quorum": metadata.write_quorum,
        "ack_quorum": metadata.ack_quorum,
        "digest": metadata.digest_type.name.lower() if metadata.digest_type else None,
        "last_entry": metadata.last_entry_id if metadata.is_closed else None,
        "length": metadata.length if metadata.is_closed else None,
        "fragments": [{"first_entry": first, "bookies": list(ensemble)} for first, ensemble in metadata.ensembles],
        "created_ms": metadata.ctime_ms,
        "labels": {name: value.decode("utf-8", "backslashreplace") for name, value in metadata.custom_metadata.items()},
    }


async def _show(client: Client, arguments: argparse.Namespace) -> int:
    metadata = await client.metadata(arguments.ledger)
    placement = await client.placement(arguments.ledger)
    row = describe(metadata) | {"fragments": list(map(_fragment, placement))}
    if arguments.json:
        print_json(row)
        return 0
    print(
        f"ledger {metadata.ledger_id}  {metadata.state.name}  {quorums(metadata)}  {row['digest'] or 'unknown digest'}"
    )
    if metadata.ctime_ms:
        print(f"created    {time_text(metadata.ctime_ms)}")
    if metadata.is_closed:
        print(f"entries    {metadata.last_entry_id + 1:,}  ({size_text(metadata.length)} of payload)")
    for name, value in metadata.custom_metadata.items():
        print(f"label      {name}={value.decode('utf-8', 'backslashreplace')}")
    for each in placement:
        bookies = ", ".join(f"{bookie} ({location})" if location else bookie for bookie, location in each.replicas)
        print(f"fragment   from entry {each.first_entry:,}: {bookies}")
        for finding in each.findings:
            print(f"           {finding}")
    return 0


def _fragment(each: FragmentPlacement) -> dict[str, object]:
    """For JSON."""
    return {
        "first_entry": each.first_entry,
        "bookies": [bookie for bookie, _ in each.replicas],
        "locations": [location for _, location in each.replicas],
        "adherence": each.adherence,
        "findings": list(each.findings),
    }


async def _list(client: Client, arguments: argparse.Namespace) -> int:
    label = None
    if arguments.label is not None:
        [label] = _labels([arguments.label]).items()
    unreadable: list[MetadataCorrupt] = []
    rows = [metadata async for metadata in client.ledgers(label=label, unreadable=unreadable)]
    if arguments.json:
        print_json([describe(metadata) for metadata in rows])
        return say_unreadable("ledger", unreadable)
    print_table(
        [
            (
                each.ledger_id,
                each.state.name,
                quorums(each),
                each.last_entry_id + 1 if each.is_closed else "-",
                size_text(each.length) if each.is_closed else "-",
                len(each.ensembles),
                " ".join(
                    f"{name}={value.decode('utf-8', 'backslashreplace')}"
                    for name, value in each.custom_metadata.items()
                ),
            )
            for each in rows
        ],
        ("ledger", "state", "quorums", "entries", "payload", "fragments", "labels"),
        right=(0, 3, 4, 5),
    )
    return say_unreadable("ledger", unreadable)


async def _verify(client: Client, arguments: argparse.Namespace) -> int:
    from bookies.admin.verbs.replication import verify_ledgers

    return await verify_ledgers(client, arguments.ledgers, arguments.percentage, as_json=arguments.json)


async def _recover(client: Client, arguments: argparse.Namespace) -> int:
    ledger = await client.recover(arguments.ledger, password=arguments.password.encode())
    metadata = ledger.metadata
    await ledger.close()
    if arguments.json:
        print_json(describe(metadata))
    else:
        print(
            f"ledger {metadata.ledger_id} is sealed: {metadata.last_entry_id + 1:,} entries, "
            f"{size_text(metadata.length)} of payload"
        )
    return 0


async def _delete(client: Client, arguments: argparse.Namespace) -> int:
    metadata = await client.metadata(arguments.ledger)
    what = f"ledger {metadata.ledger_id} ({metadata.state.name}, {max(metadata.last_entry_id, -1) + 1:,} entries)"
    if arguments.dry_run:
        print(f"would delete {what}")
        return 0
    if not arguments.yes:
        if not sys.stdin.isatty():
            raise UsageError(f"delete {what}? This cannot be undone; say --yes")
        print(f"delete {what} for ever? type its number: ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip() != str(metadata.ledger_id):
            print("nothing was deleted", file=sys.stderr)
            return 1
    await client.delete(arguments.ledger)
    if arguments.json:
        print_json({"deleted": metadata.ledger_id})
    else:
        print(f"deleted {what}", file=sys.stderr)
    return 0
