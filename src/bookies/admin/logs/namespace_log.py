"""`bk log ... --namespace`: the same verbs on logs of DistributedLog. Positions are `SEGMENT:ENTRY:SLOT`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from bookies.admin.shared import Progress, UsageError
from bookies.admin.shared.common import opened_input, print_json, run_async, time_text
from bookies.admin.shared.operators import is_deletion_confirmed, report_deleted
from bookies.admin.shared.report import Report, Table

if TYPE_CHECKING:
    from bookies.distributedlog import Dlog, Dlsn, Namespace, RecordBatches, Segment

TXID = "txid:"
_TRUNCATION = ("", "in part", "truncated", "unknown")
Body = Callable[["Namespace", argparse.Namespace], Awaitable["Report | int"]]


def on_namespace(arguments: argparse.Namespace, body: Body) -> Report | int:
    """Open the namespace that `--namespace` names and run `body`."""

    async def main() -> Report | int:
        from bookies.distributedlog import open_namespace

        if getattr(arguments, "since", None) or getattr(arguments, "until", None):
            raise UsageError("--since and --until are for logs without --namespace: give --from POSITION")
        password = getattr(arguments, "password", "").encode()
        async with open_namespace(arguments.namespace, password=password) as namespace:
            return await body(namespace, arguments)

    return run_async(main)


async def _position(log: Dlog, text: str | None) -> Dlsn | None:
    """Return the position that an option names: an address, or the first record of a transaction id."""
    from bookies.distributedlog import parse_dlsn

    if text is None:
        return None
    number = text.removeprefix(TXID)
    if text.startswith(TXID) and number.isascii() and number.isdigit():
        return await log.find(int(number))
    return parse_dlsn(text)


def append(arguments: argparse.Namespace) -> Report | int:
    """Append the lines of the input, with transaction ids that continue the log's."""
    if arguments.format != "text" or arguments.key is not None or arguments.header:
        raise UsageError(
            "--format json, --key and --header are for logs of this cluster: a record of DistributedLog is a value. "
            "Omit them, or omit --namespace"
        )
    with opened_input(arguments.input, "nothing was appended") as descriptor:
        return on_namespace(arguments, lambda namespace, _: _append(namespace, arguments, descriptor))


async def _append(namespace: Namespace, arguments: argparse.Namespace, descriptor: int) -> Report:
    from bookies.admin.shared.lines import append_lines, read_lines

    progress = Progress("appended", None)
    bookies = len(await namespace.client.bookies())
    async with namespace.log(arguments.log).lead(
        ensemble=max(1, min(3, bookies)), roll_size=arguments.roll_size
    ) as writer:
        try:
            count = await append_lines(writer, read_lines(descriptor), progress.update)
        finally:
            progress.clear()
    return Report({"log": arguments.log, "records": count, "last_txid": writer.last_txid})


async def read(namespace: Namespace, arguments: argparse.Namespace) -> int:
    """Print the records."""
    log = namespace.log(arguments.log)
    async with log.open() as reader:
        start = await _position(log, arguments.start)
        await _write(reader.read(start).batches(), arguments)
    return 0


async def tail(namespace: Namespace, arguments: argparse.Namespace) -> int:
    """Print records as they become visible."""
    log = namespace.log(arguments.log)
    async with log.open() as reader:
        start = await _position(log, arguments.start)
        await _write(reader.tail(start).batches(), arguments)
    return 0


async def _write(batches: RecordBatches, arguments: argparse.Namespace) -> None:
    if arguments.format == "json":
        raise UsageError("--format json is for logs of this cluster: --json prints the records of DistributedLog")
    out, as_json = sys.stdout.buffer, arguments.json
    end = b"" if arguments.format == "raw" or getattr(arguments, "raw", False) else b"\n"
    async for batch in batches:
        if as_json:
            for record in batch:
                print_json({"position": str(record.position), "txid": record.txid, "payload": record.payload})
            sys.stdout.flush()
        else:
            out.write(end.join(record.payload for record in batch) + end)
            out.flush()


async def show(namespace: Namespace, arguments: argparse.Namespace) -> Report:
    """Return the segments of a log."""
    log = namespace.log(arguments.log)
    segments = await log.segments()
    facts = {"log": log.name, "ended": await log.is_ended(), "segments": [_facts(segment) for segment in segments]}
    rows = [
        (
            segment.lssn,
            segment.ledger_id,
            segment.first_txid,
            "" if segment.last_txid is None else segment.last_txid,
            segment.record_count if segment.is_completed else "",
            "in progress" if segment.completed_ms is None else time_text(segment.completed_ms),
            _TRUNCATION[segment.truncation],
        )
        for segment in segments
    ]
    headers = ("segment", "ledger", "first txid", "last txid", "records", "completed", "truncated")
    return Report(facts, [Table(headers, rows, right=(0, 1, 2, 3, 4))])


def _facts(segment: Segment) -> dict[str, object]:
    return {
        "segment": segment.lssn,
        "ledger": segment.ledger_id,
        "version": segment.version,
        "first_txid": segment.first_txid,
        "last_txid": segment.last_txid,
        "completed_ms": segment.completed_ms,
        "records": segment.record_count if segment.is_completed else None,
        "last": str(segment.last_dlsn) if segment.is_completed else None,
        "begins_at": str(segment.min_dlsn),
        "truncation": _TRUNCATION[segment.truncation] or "none",
    }


async def names(namespace: Namespace, arguments: argparse.Namespace) -> Report:
    """Return the names of logs directly below a prefix."""
    listed = await namespace.logs(arguments.prefix.rstrip("/"))
    return Report(listed, listed)


async def truncate(namespace: Namespace, arguments: argparse.Namespace) -> Report | int:
    """Truncate a log."""
    log = namespace.log(arguments.log)
    before = await _position(log, arguments.before)
    assert before is not None
    if all(before.segment > segment.lssn for segment in await log.segments()):
        raise UsageError(f"--before {before}: log {log.name} has no such segment; `bk log show` lists them")
    if arguments.dry_run:
        print(f"would let log {log.name} begin at {before}, and delete no segment")
        return 0
    await log.truncate(before)
    return await show(namespace, arguments) if arguments.json else Report({})


def recover(arguments: argparse.Namespace) -> Report | int:
    """Complete the segments of a log without a writer."""
    if arguments.namespace is None:
        raise UsageError("bk log recover is for logs of DistributedLog: pass --namespace. Others recover with a writer")
    return on_namespace(arguments, _recover)


async def _recover(namespace: Namespace, arguments: argparse.Namespace) -> Report:
    log = namespace.log(arguments.log)
    await log.segments()  # Raises if there is no such log.
    skipped = await log.recover(skip_damaged=arguments.skip_damaged)
    facts = {"log": log.name, "skipped": [{"ledger": error.ledger_id, "entry": error.entry_id} for error in skipped]}
    lines = [f"skipped: {error}" for error in skipped]
    return Report(
        facts,
        [*lines, f"log {log.name} has no segment in progress; damaged entries that were skipped: {len(skipped):,}"],
    )


async def delete(namespace: Namespace, arguments: argparse.Namespace) -> Report | int:
    """Delete a log."""
    log = namespace.log(arguments.log)
    text = f"log {log.name} (segments: {len(await log.segments())})"
    if arguments.dry_run:
        print(f"would delete {text}")
        return 0
    if not (arguments.yes or is_deletion_confirmed(text, "name", log.name)):
        return 1
    await log.delete()
    return report_deleted(arguments, log.name, text)
