"""`bk ledger`: create, append, read, tail, show, explain, list, verify, repair, recover, seal, delete.

`append` stores one entry per line of stdin (or `--input FILE`); `read` and `tail` print one line per entry. `read
--raw` writes the payloads without line ends.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from bookies.admin.shared import Progress, UsageError
from bookies.admin.shared.command_line import ACK_QUORUM, DIGEST, LOST, RATE, WRITE_QUORUM, Option, verb
from bookies.admin.shared.common import (
    LIST_MAX,
    MORE,
    on_client,
    on_session,
    opened_input,
    print_json,
    report_unreadable,
    size_text,
    time_text,
    unreadable_lines,
    with_client,
)
from bookies.admin.shared.operators import is_deletion_confirmed, report_deleted
from bookies.admin.shared.report import Report, Table, print_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

    from bookies.admin.shared import Session
    from bookies.client.base.fragment_placement import FragmentPlacement
    from bookies.client.client import Client
    from bookies.client.write import LedgerWriter
    from bookies.errors import MetadataCorrupt
    from bookies.model import BookieId, LedgerMetadata
    from bookies.protocol.repair import Fragment


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


async def _create(client: Client, arguments: argparse.Namespace) -> Report:
    ledger = await _new(client, arguments)
    await ledger.close()
    return Report(describe(ledger.metadata), [str(ledger.ledger_id)])


def _append(arguments: argparse.Namespace) -> Report:
    if arguments.ledger is not None or not arguments.new:
        raise UsageError(
            "append needs --new: a ledger has one writer for its whole life, so appending creates a new one "
            "(`bk log append` continues a log, which is a list of ledgers)"
        )
    with opened_input(arguments.input, "nothing was created") as descriptor:
        return with_client(arguments, lambda client: _append_from(client, arguments, descriptor))


async def _append_from(client: Client, arguments: argparse.Namespace, descriptor: int) -> Report:
    from bookies.admin.shared.lines import append_lines, read_lines

    progress = Progress("appended", None)
    ledger = await _new(client, arguments)
    if sys.stderr.isatty():
        print(f"appending to ledger {ledger.ledger_id}", file=sys.stderr, flush=True)
    try:
        count = await append_lines(ledger, read_lines(descriptor), progress.update)
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
    facts = {"ledger": ledger.ledger_id, "entries": count, "length": ledger.length}
    return Report(facts, [str(ledger.ledger_id)])


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
    if arguments.bookie is not None:
        return await _read_from(client, arguments)
    async with client.open(arguments.ledger, password=arguments.password.encode()) as ledger:
        async for batch in ledger.read_batches(arguments.first, arguments.last):
            _print_payloads(batch.payloads(), batch.first_entry_id, arguments)
        sys.stdout.buffer.flush()
    return 0


async def _read_from(client: Client, arguments: argparse.Namespace) -> int:
    """Print the entries that one bookie holds, each verified. Return 1 if one of them cannot be read."""
    from bookies.client.base.arguments import bookie_id
    from bookies.errors import BookieUnreachable, BookKeeperError, ClientClosed, LedgerUnknownToBookie

    administration, bookie = client.administration(), bookie_id(arguments.bookie)
    ledger = await administration.record(arguments.ledger)
    replicas, has = administration.access.replicas(ledger.metadata), "has"
    try:
        held = await administration.list_entries(bookie, arguments.ledger)
    except LedgerUnknownToBookie:
        named = ", ".join(ledger.metadata.bookies)
        print(
            f"bk ledger: bookie {bookie} has no entry of ledger {arguments.ledger}; it is on {named}", file=sys.stderr
        )
        return 1
    except (BookieUnreachable, ClientClosed):
        raise
    except BookKeeperError:  # After damage it cannot list entries. It is asked for all that it should hold.
        held, has = _placed_on(bookie, await administration.fragments_of(ledger)), "should have"
    stop = arguments.last + 1 if arguments.last is not None else None
    wanted = [range(max(run.start, arguments.first), run.stop if stop is None else min(run.stop, stop)) for run in held]
    if not any(wanted):
        runs = ", ".join(f"{run.start:,} to {run.stop - 1:,}" for run in held[:3]) or "none"
        print(
            f"bk ledger: bookie {bookie} has no entry of ledger {arguments.ledger} in this range; it {has} {runs}"
            f"{' and others' if len(held) > 3 else ''}",
            file=sys.stderr,
        )
        return 1
    status = 0
    for run in wanted:
        at, end = run.start, run.stop
        while at < end:
            try:
                batch = await replicas.read_batch(bookie, range(at, end))
            except (BookieUnreachable, ClientClosed):
                raise
            except BookKeeperError as error:
                print(f"bk ledger: entry {at}: {error}", file=sys.stderr)
                at, status = at + 1, 1
                continue
            _print_payloads(batch.payloads(), batch.first_entry_id, arguments)
            at = batch.last_entry_id + 1
    sys.stdout.buffer.flush()
    return status


def _placed_on(bookie: BookieId, fragments: Sequence[Fragment]) -> list[range]:
    """Return the entries that belong on a bookie, as runs."""
    from bookies.protocol.repair.fragments import runs_of

    return [
        run
        for fragment in fragments
        if bookie in fragment.ensemble
        for run in runs_of(fragment.stored(fragment.ensemble.index(bookie)))
    ]


def _print_payloads(payloads: Sequence[bytes], first: int, arguments: argparse.Namespace) -> None:
    if arguments.json:
        for entry_id, payload in enumerate(payloads, first):
            print_json({"entry": entry_id, "payload": payload})
    else:
        end = b"" if arguments.raw else b"\n"
        sys.stdout.buffer.write(end.join(payloads) + end)


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
        "labels": _labels_of(metadata),
    }


def _labels_of(metadata: LedgerMetadata) -> dict[str, str]:
    return {name: value.decode("utf-8", "backslashreplace") for name, value in metadata.custom_metadata.items()}


async def _show(client: Client, arguments: argparse.Namespace) -> Report:
    metadata = await client.metadata(arguments.ledger)
    placement = await client.placement(arguments.ledger)
    facts = describe(metadata) | {"fragments": list(map(_fragment, placement))}
    return Report(facts, _lines(metadata, placement))


def _lines(metadata: LedgerMetadata, placement: Sequence[FragmentPlacement]) -> Iterator[str]:
    digest = metadata.digest_type.name.lower() if metadata.digest_type else "unknown digest"
    yield f"ledger {metadata.ledger_id}  {metadata.state.name}  {quorums(metadata)}  {digest}"
    if metadata.ctime_ms:
        yield f"created    {time_text(metadata.ctime_ms)}"
    if metadata.is_closed:
        yield f"entries    {metadata.last_entry_id + 1:,}  ({size_text(metadata.length)} of payload)"
    for name, value in _labels_of(metadata).items():
        yield f"label      {name}={value}"
    for fragment in placement:
        bookies = ", ".join(f"{bookie} ({location})" if location else bookie for bookie, location in fragment.replicas)
        yield f"fragment   from entry {fragment.first_entry:,}: {bookies}"
        for finding in fragment.findings:
            yield f"           {finding}"


def _fragment(fragment: FragmentPlacement) -> dict[str, object]:
    """Return a fragment's placement for JSON."""
    return {
        "first_entry": fragment.first_entry,
        "bookies": [bookie for bookie, _ in fragment.replicas],
        "locations": [location for _, location in fragment.replicas],
        "adherence": fragment.adherence,
        "findings": list(fragment.findings),
    }


async def _list(session: Session, arguments: argparse.Namespace) -> Report | int:
    if arguments.limit < 0:
        raise UsageError(f"--limit {arguments.limit}: must be at least 1, or 0 for all ledgers")
    unreadable: list[MetadataCorrupt] = []
    records: list[LedgerMetadata] = []
    is_first = True
    async for metadata in _matching(session, arguments, unreadable):
        if arguments.limit and len(records) == arguments.limit:
            more = f"{MORE}: bk ledger list --after {records[-1].ledger_id}"
            return _listed(records, int(bool(unreadable)), [*unreadable_lines("ledger", unreadable), more])
        records.append(metadata)
        if not arguments.limit and len(records) == LIST_MAX:  # All of them: in parts, or they would fill the memory.
            _print_part(records, is_first=is_first, as_json=arguments.json)
            records, is_first = [], False
    if is_first:
        return _listed(records, int(bool(unreadable)), unreadable_lines("ledger", unreadable))
    _print_part(records, is_first=False, as_json=arguments.json)
    if arguments.json:
        print("]")
    return report_unreadable("ledger", unreadable)


def _listed(records: Sequence[LedgerMetadata], status: int, remarks: Sequence[str]) -> Report:
    return Report(map(describe, records), [_table(records)], status, remarks)


def _table(records: Sequence[LedgerMetadata]) -> Table:
    headers = ("ledger", "state", "quorums", "entries", "payload", "fragments", "labels")
    return Table(headers, map(_row, records), (0, 3, 4, 5))


def _print_part(records: Sequence[LedgerMetadata], *, is_first: bool, as_json: bool) -> None:
    """Print a part of a long list, as a part of one JSON array or as a table."""
    if not as_json:
        print_text([_table(records)])
    elif records:
        print(("[" if is_first else ",") + ",\n".join(json.dumps(describe(record)) for record in records))


async def _matching(
    session: Session, arguments: argparse.Namespace, unreadable: list[MetadataCorrupt]
) -> AsyncIterator[LedgerMetadata]:
    """Yield the ledgers that the options select, by ascending id."""
    label = None
    if arguments.label is not None:
        [label] = _labels([arguments.label]).items()
    if arguments.under_replicated:
        wanted = {} if label is None else {label[0]: label[1].encode()}
        records = _marked(session, wanted, unreadable, arguments.after)
    else:
        records = session.client.ledgers(label=label, unreadable=unreadable, after=arguments.after)
    async for record in records:
        if arguments.state is not None and record.state.name.lower() != arguments.state:
            continue
        if arguments.bookie is None or record.names(arguments.bookie):
            yield record


async def _marked(
    session: Session, labels: Mapping[str, bytes], unreadable: list[MetadataCorrupt], after: int
) -> AsyncIterator[LedgerMetadata]:
    """Yield the ledgers that are marked under-replicated. Other records are not read."""
    from bookies.errors import MetadataCorrupt
    from bookies.metadata.interface.driver import READ_AT_ONCE

    async for ids in session.driver.recovery.marked_ids():
        later = [ledger_id for ledger_id in ids if ledger_id > after]
        for start in range(0, len(later), READ_AT_ONCE):
            for record in await session.driver.read_ledgers(later[start : start + READ_AT_ONCE]):
                if isinstance(record, MetadataCorrupt):
                    unreadable.append(record)
                elif record is not None and labels.items() <= record.metadata.custom_metadata.items():
                    yield record.metadata


def _row(record: LedgerMetadata) -> tuple[object, ...]:
    entries, payload = (record.last_entry_id + 1, size_text(record.length)) if record.is_closed else ("-", "-")
    labels = " ".join(f"{name}={value}" for name, value in _labels_of(record).items())
    return record.ledger_id, record.state.name, quorums(record), entries, payload, len(record.ensembles), labels


async def _verify(client: Client, arguments: argparse.Namespace) -> int:
    from bookies.admin.verbs.replication import verify_ledgers

    return await verify_ledgers(client, arguments.ledgers, arguments.percentage, as_json=arguments.json)


async def _repair(session: Session, arguments: argparse.Namespace) -> Report:
    from bookies.admin.verbs.replication import repair_ledgers

    return await repair_ledgers(session, arguments)


async def _explain(session: Session, arguments: argparse.Namespace) -> Report:
    from bookies.admin.verbs.explain import explain

    return await explain(session, *arguments.what)


async def _recover(client: Client, arguments: argparse.Namespace) -> Report:
    ledger = await client.recover(arguments.ledger, password=arguments.password.encode())
    metadata = ledger.metadata
    await ledger.close()
    end = f"{metadata.last_entry_id + 1:,} entries, {size_text(metadata.length)} of payload"
    return Report(describe(metadata), [f"ledger {metadata.ledger_id} is sealed: {end}"])


async def _delete(client: Client, arguments: argparse.Namespace) -> Report | int:
    metadata = await client.metadata(arguments.ledger)
    ledger_text = (
        f"ledger {metadata.ledger_id} ({metadata.state.name}, {max(metadata.last_entry_id, -1) + 1:,} entries)"
    )
    if arguments.dry_run:
        facts = {"dry_run": True, "would_delete": describe(metadata)}
        return Report(facts, [f"would delete {ledger_text}"])
    if not (arguments.yes or is_deletion_confirmed(ledger_text, "id", str(metadata.ledger_id))):
        return 1
    await client.delete(arguments.ledger)
    return report_deleted(arguments, metadata.ledger_id, ledger_text)


_LEDGER = Option("ledger LEDGER", "ledger id", _ledger_id)
_PASSWORD = Option("--password", "password of the ledger (default: empty)", default="")
_NEW = (
    Option("--ensemble", "number of bookies of the ledger (default 3)", int, default=3),
    WRITE_QUORUM,
    ACK_QUORUM,
    DIGEST,
    Option("--label NAME=VALUE", "label of the ledger; may be repeated", may_repeat=True),
    _PASSWORD,
)
_CHECKED = (
    Option("ledgers LEDGER", "ledger ids (default: all)", _ledger_id, values="*"),
    Option(
        "--percentage",
        "percentage of each replica's entries to read, besides its first and last (default 100)",
        _percentage,
        default=100.0,
    ),
)
VERBS = (
    verb(
        "ledger create", "create an empty ledger and print its id", "id=$(bk ledger create)", on_client(_create), *_NEW
    ),
    verb(
        "ledger append",
        "append the lines of stdin to a new ledger",
        "id=$(zcat access.log.gz | bk ledger append --new)",
        _append,
        Option("ledger LEDGER", "not accepted: a ledger has one writer; use --new", _ledger_id, values="?"),
        Option("--new", "create a ledger, append, seal it, print its id", bool),
        Option("--input FILE", "read from FILE instead of stdin"),
        Option("--keep-open", "leave the ledger open at the end (recover it later)", bool),
        *_NEW,
    ),
    verb(
        "ledger read",
        "print the entries to stdout",
        "bk ledger read 7 --first 100 --last 199",
        on_client(_read),
        _LEDGER,
        Option("--first", "id of the first entry to print (default 0)", int, default=0),
        Option("--last", "id of the last entry to print (default: the last confirmed entry)", int),
        Option("--bookie ID", "read only from this bookie, the entries that it lists, confirmed or not"),
        Option("--raw", "print no line end after each entry", bool),
        _PASSWORD,
    ),
    verb(
        "ledger tail",
        "print entries as they are confirmed, until the ledger is sealed",
        "bk ledger tail 7 | jq .",
        on_client(_tail),
        _LEDGER,
        Option("--from", "id of the first entry to print (default: the next one)", int, field="first"),
        _PASSWORD,
    ),
    verb("ledger show", "print a ledger's metadata", "bk ledger show 7", on_client(_show), _LEDGER),
    verb(
        "ledger explain",
        "report every replica of a ledger or of one entry: location, state, pending repair",
        "bk ledger explain 17:1041",
        on_session(_explain),
        Option("what LEDGER[:ENTRY]", "ledger id, or ledger and entry id", _ledger_and_entry),
    ),
    verb(
        "ledger recover",
        "recover a ledger: fence its writer, find its end, seal it",
        "bk ledger recover 7",
        on_client(_recover),
        _LEDGER,
        _PASSWORD,
    ),
    verb(
        "ledger seal",
        "seal a ledger at its last confirmed entry; the same as recover",
        "bk ledger seal 7",
        on_client(_recover),
        _LEDGER,
        _PASSWORD,
    ),
    verb(
        "ledger list",
        "list all ledgers",
        "bk ledger list --label app=demo",
        on_session(_list),
        Option("--label NAME=VALUE", "list only ledgers with this label"),
        Option("--bookie ID", "list only ledgers with a replica on this bookie, in any fragment"),
        Option("--state", "list only ledgers in this state", choices=("open", "in_recovery", "closed")),
        Option("--under-replicated", "list only ledgers that are marked because they lack replicas", bool),
        Option("--after LEDGER", "list only ledgers with a greater id", int, default=-1),
        Option("--limit COUNT", "list at most this number of ledgers (default 1000; 0: all)", int, default=LIST_MAX),
    ),
    verb("ledger verify", "check every replica of ledgers", "bk ledger verify 7 8", on_client(_verify), *_CHECKED),
    verb(
        "ledger repair",
        "check ledgers and recreate their lost replicas",
        "bk ledger repair 7",
        on_session(_repair),
        *_CHECKED,
        LOST,
        Option("--dry-run", "check, and report what would be repaired", bool),
        RATE,
    ),
    verb(
        "ledger delete",
        "delete a ledger permanently",
        "bk ledger delete 7 --yes",
        on_client(_delete),
        _LEDGER,
        Option("--yes", "delete without confirmation", bool),
        Option("--dry-run", "report what would be deleted", bool),
    ),
)
