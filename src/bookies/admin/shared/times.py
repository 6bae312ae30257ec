"""Options that name a range of a log by time, and the entries of such a range."""

from __future__ import annotations

import argparse
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from bookies.admin.shared.command_line import Option
from bookies.admin.shared.usage import UsageError
from bookies.units import parse_duration, parse_time

if TYPE_CHECKING:
    from bookies.client.base import EntryBatch
    from bookies.client.log import Log, LogReader
    from bookies.client.log.records.log_records import LogEntries
    from bookies.protocol.log import Position
    from bookies.protocol.log.log_model import Address

_TIME = "a duration before now, such as 10m, or a time such as 2026-11-27T10:00 (local without a zone)"
SINCE = Option("--since TIME", f"begin with the entries of this time: {_TIME}")
UNTIL = Option("--until TIME", f"end before the entries of this time: {_TIME}")


def moment_of(name: str, text: str) -> float:
    """Return the seconds since 1970 of an option's value; 0 for earlier times. Raises `UsageError`."""
    moment = parse_time(text, time.time())
    if moment is None:
        raise UsageError(f"{name} {text}: must be {_TIME}")
    return max(0.0, moment)


def seconds_of(name: str, text: str) -> float:
    """Return the seconds of an option's duration. Raises `UsageError`."""
    seconds = parse_duration(text)
    if not seconds:
        raise UsageError(f"{name} {text}: must be a duration such as 12h or 7d")
    return seconds


async def start_of(
    log: Log, arguments: argparse.Namespace, start: Position | Address | None
) -> Position | Address | None:
    """Return where `--since` lets a read begin, or else `start`."""
    if arguments.since is None:
        return start
    return await log.at(moment_of("--since", arguments.since))


async def end_of(log: Log, arguments: argparse.Namespace) -> Position | None:
    """Return where `--until` lets a read end; None: nowhere, or the log has no ledger."""
    return None if arguments.until is None else await log.at(moment_of("--until", arguments.until), is_end=True)


class Before:
    """Entries up to a position. `batches`, `decode` and `start` replace those of `LogEntries`."""

    def __init__(self, reader: LogReader, entries: LogEntries, end: Position) -> None:
        self._reader = reader
        self.decode = entries.decode
        self.start = entries.start
        self._entries = entries
        self._end = end

    async def batches(self) -> AsyncIterator[EntryBatch]:
        """Iterate over the batches before the position."""
        from bookies.protocol.log import Position

        async for batch in self._entries.batches():
            manifest = self._reader.manifest
            extent, stop = manifest.find(Position(batch.ledger_id, batch.first_entry_id)), manifest.find(self._end)
            if extent is None or stop is None or extent.seq > stop.seq:
                return
            if extent.seq == stop.seq and batch.last_entry_id >= self._end.entry_id:
                if batch.first_entry_id < self._end.entry_id:
                    yield batch.slice(batch.first_entry_id, self._end.entry_id - 1)
                return
            yield batch
