"""`bk ledger`: create, append, read, tail, show, explain, list, verify, repair, recover, seal, delete.

`append` stores one entry per line of stdin (or `--input FILE`); `read` and `tail` print one line per entry. `read
--raw` writes the payloads without line ends.
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
    report_unreadable,
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
        verb_parser = verbs.add_parser(name, help=text, epilog=f"example:  {example}")
        add_common(verb_parser)
        if ledger:
            verb_parser.add_argument("ledger", type=_ledger_id, metavar="LEDGER", help="ledger id")
        return verb_parser

    def password(verb_parser: argparse.ArgumentParser) -> None:
        verb_parser.add_argument("--password", default="", help="password of the ledger (default: empty)")

    create = verb("create", "create an empty ledger and print its id", "id=$(bk ledger create)", ledger=False)
    append = verb(
        "append",
        "append the lines of stdin to a new ledger",
        "id=$(zcat access.log.gz | bk ledger append --new)",
        ledger=False,
    )
    append.add_argument(
        "ledger", type=_ledger_id, metavar="LEDGER", nargs="?", help="not accepted: a ledger has one writer; use --new"
    )
    append.add_argument("--new", action="store_true", help="create a ledger, append, seal it, print its id")
    append.add_argument("--input", metavar="FILE", help="read from FILE instead of stdin")
    append.add_argument("--keep-open", action="store_true", help="leave the ledger open at the end (recover it later)")
    for verb_parser in (create, append):
        _configure_replicas(verb_parser)
        password(verb_parser)
    read = verb("read", "print the entries to stdout", "bk ledger read 7 --first 100 --last 199")
    read.add_argument("--first", type=int, default=0, help="id of the first entry to print (default 0)")
    read.add_argument(
        "--last", type=int, default=None, help="id of the last entry to print (default: the last confirmed entry)"
    )
    read.add_argument("--raw", action="store_true", help="print no line end after each entry")
    tail = verb("tail", "print entries as they are confirmed, until the ledger is sealed", "bk ledger tail 7 | jq .")
    tail.add_argument(
        "--from", dest="first", type=int, default=None, help="id of the first entry to print (default: the next one)"
    )
    show = verb("show", "print a ledger's metadata", "bk ledger show 7")
    explain = verb(
        "explain",
        "report every replica of a ledger or of one entry: location, state, pending repair",
        "bk ledger explain 17:1041",
        ledger=False,
    )
    explain.add_argument(
        "what", type=_ledger_and_entry, metavar="LEDGER[:ENTRY]", help="ledger id, or ledger and entry id"
    )
    recover = verb("recover", "recover a ledger: fence its writer, find its end, seal it", "bk ledger recover 7")
    seal = verb("seal", "seal a ledger at its last confirmed entry; the same as recover", "bk ledger seal 7")
    for verb_parser in (read, tail, recover, seal):
        password(verb_parser)
    list_parser = verb("list", "list all ledgers", "bk ledger list --label app=demo", ledger=False)
    list_parser.add_argument("--label", metavar="NAME=VALUE", default=None, help="list only ledgers with this label")
    verify = verb("verify", "check every replica of ledgers", "bk ledger verify 7 8", ledger=False)
    repair = verb("repair", "check ledgers and recreate their lost replicas", "bk ledger repair 7", ledger=False)
    _configure_repair(verify, repair)
    delete = verb("delete", "delete a ledger permanently", "bk ledger delete 7 --yes")
    delete.add_argument("--yes", action="store_true", help="delete without confirmation")
    delete.add_argument("--dry-run", action="store_true", help="report what would be deleted")
    del show


def _configure_replicas(verb_parser: argparse.ArgumentParser) -> None:
    verb_parser.add_argument("--ensemble", type=int, default=3, help="number of bookies of the ledger (default 3)")
    verb_parser.add_argument(
        "--write-quorum", type=int, default=None, help="number of replicas of each entry (default: ensemble)"
    )
    verb_parser.add_argument(
        "--ack-quorum",
        type=int,
        default=None,
        help="number of replicas on disk before an add is confirmed (default: majority of the write quorum)",
    )
    verb_parser.add_argument(
        "--digest",
        default="crc32c",
        choices=("crc32c", "crc32", "hmac", "dummy"),
        help="checksum of each entry (default crc32c)",
    )
    verb_parser.add_argument(
        "--label", action="append", default=[], metavar="NAME=VALUE", help="label of the ledger; may be repeated"
    )


def _configure_repair(verify: argparse.ArgumentParser, repair: argparse.ArgumentParser) -> None:
    for verb_parser in (verify, repair):
        verb_parser.add_argument(
            "ledgers", type=_ledger_id, metavar="LEDGER", nargs="*", help="ledger ids (default: all)"
        )
        verb_parser.add_argument(
            "--percentage",
            type=_percentage,
            default=100.0,
            help="percentage of each replica's entries to read, besides its first and last (default 100)",
        )
    repair.add_argument(
        "--lost",
        metavar="ID",
        action="append",
        default=[],
        help="bookie to treat as lost without delay; may be repeated",
    )
    repair.add_argument("--dry-run", action="store_true", help="check, and report what would be repaired")
    add_rate(repair)


def run(arguments: argparse.Namespace) -> int:
    handlers = {
        "create": _create, "read": _read, "tail": _tail, "show": _show,
        "list": _list, "verify": _verify, "recover": _recover, "seal": _recover, "delete": _delete,
    }  # fmt: skip
    if arguments.verb == "append":
        if arguments.ledger is not None or not arguments.new:
            raise UsageError(
                "append needs --new: a ledger has one writer for its whole life, so appending creates a new one "
                "(`bk log append` continues a log, which is a list of ledgers)"
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
            raise UsageError(f"--label {pair}: {name} is given twice; a label has one value")
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
    """Return the state of a ledger whose appends were interrupted."""
    count = ledger.last_add_confirmed + 1
    confirmed = f"{count:,} confirmed {'entry' if count == 1 else 'entries'}"
    if ledger.metadata.is_closed:
        return f"ledger {ledger.ledger_id} is sealed with {confirmed}"
    return (
        f"ledger {ledger.ledger_id} is left open with {confirmed}; "
        f"`bk ledger recover {ledger.ledger_id}` seals it without losing any"
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
    """Return ensemble size, write quorum and ack quorum, such as `E3/Qw3/Qa2`."""
    return f"E{metadata.ensemble_size}/Qw{metadata.write_quorum}/Qa{metadata.ack_quorum}"


def describe(metadata: LedgerMetadata) -> dict[str, object]:
    """Return a ledger's record for JSON: stable names, without the password."""
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
    for fragment in placement:
        bookies = ", ".join(f"{bookie} ({location})" if location else bookie for bookie, location in fragment.replicas)
        print(f"fragment   from entry {fragment.first_entry:,}: {bookies}")
        for finding in fragment.findings:
            print(f"           {finding}")
    return 0


def _fragment(fragment: FragmentPlacement) -> dict[str, object]:
    """Return a fragment's placement for JSON."""
    return {
        "first_entry": fragment.first_entry,
        "bookies": [bookie for bookie, _ in fragment.replicas],
        "locations": [location for _, location in fragment.replicas],
        "adherence": fragment.adherence,
        "findings": list(fragment.findings),
    }


async def _list(client: Client, arguments: argparse.Namespace) -> int:
    label = None
    if arguments.label is not None:
        [label] = _labels([arguments.label]).items()
    unreadable: list[MetadataCorrupt] = []
    rows = [metadata async for metadata in client.ledgers(label=label, unreadable=unreadable)]
    if arguments.json:
        print_json([describe(metadata) for metadata in rows])
        return report_unreadable("ledger", unreadable)
    print_table(
        [
            (
                record.ledger_id,
                record.state.name,
                quorums(record),
                record.last_entry_id + 1 if record.is_closed else "-",
                size_text(record.length) if record.is_closed else "-",
                len(record.ensembles),
                " ".join(
                    f"{name}={value.decode('utf-8', 'backslashreplace')}"
                    for name, value in record.custom_metadata.items()
                ),
            )
            for record in rows
        ],
        ("ledger", "state", "quorums", "entries", "payload", "fragments", "labels"),
        right=(0, 3, 4, 5),
    )
    return report_unreadable("ledger", unreadable)


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
    ledger_text = (
        f"ledger {metadata.ledger_id} ({metadata.state.name}, {max(metadata.last_entry_id, -1) + 1:,} entries)"
    )
    if arguments.dry_run:
        print(f"would delete {ledger_text}")
        return 0
    if not arguments.yes:
        if not sys.stdin.isatty():
            raise UsageError(f"delete {ledger_text}? This cannot be undone; confirm with --yes")
        print(f"delete {ledger_text} permanently? Type its id to confirm: ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip() != str(metadata.ledger_id):
            print("nothing was deleted", file=sys.stderr)
            return 1
    await client.delete(arguments.ledger)
    if arguments.json:
        print_json({"deleted": metadata.ledger_id})
    else:
        print(f"deleted {ledger_text}", file=sys.stderr)
    return 0
