"""State of a log's consumers: their processes and their lag, for which bookies are asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from bookies.client.base.metadata_loop import repeated
from bookies.client.log.lease import Contest
from bookies.client.log.log_operations import LogContext
from bookies.client.log.log_reader import LogReader
from bookies.encoding.envelope import parse_record
from bookies.errors import BookKeeperError, InvalidArgument
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.cursors import Cursor
from bookies.protocol.log.lag import Lag, rows_and_bytes
from bookies.protocol.log.lease import LeaseQueue
from bookies.protocol.log.log_model import ENVELOPE, LedgerEnd


class ConsumerState(NamedTuple):
    """State of one consumer of a log. `processes`: the one that consumes, then those that wait, by their texts."""

    cursor: Cursor
    lag: Lag
    processes: tuple[str, ...]


async def consumer_states(parts: LogContext, contest_of: Callable[[str], Contest]) -> dict[str, ConsumerState]:
    """Return the state of each consumer that has a cursor. Raises `LogNotFound`, `MetadataError`."""
    cursors = (await repeated(parts.runtime, parts.cursors.read))[0]
    measured = await lags(parts, {name: cursor.position for name, cursor in cursors.items()})
    states = {}
    for name, cursor in cursors.items():
        try:
            queue, _ = await repeated(parts.runtime, contest_of(name).queue)
        except InvalidArgument:
            queue = LeaseQueue()  # The names of log and cursor are too long together, so none can consume under them.
        states[name] = ConsumerState(
            cursor, measured[name], tuple(participant.text for participant in queue.participants)
        )
    return states


async def lags(parts: LogContext, positions: Mapping[str, Position]) -> dict[str, Lag]:
    """Return the lag of consumers that will read from these positions on. Raises `LogNotFound`, `MetadataError`."""
    manifest = await repeated(parts.runtime, parts.records.refresh)
    ends = await _open_ends(parts, manifest) if positions else {}
    measured = {}
    for name, position in positions.items():
        rows, size = rows_and_bytes(position, manifest, ends) or (None, None)
        measured[name] = Lag(rows, size, 0.0 if rows == 0 else await _age_s(parts, manifest, position))
    return measured


async def _open_ends(parts: LogContext, manifest: Manifest) -> dict[int, LedgerEnd]:
    """Return the confirmed ends of ledgers without an end in the list, except for those that cannot be read."""
    ends: dict[int, LedgerEnd] = {}
    for ledger_id in manifest.open_ledgers:
        try:
            async with parts.client.open(ledger_id, password=parts.password) as ledger:
                ends[ledger_id] = LedgerEnd(ledger.last_add_confirmed, ledger.length)
        except BookKeeperError:
            continue  # It has a password, or its bookies do not answer.
    return ends


async def _age_s(parts: LogContext, manifest: Manifest, position: Position) -> float | None:
    """Return the age of the first entry from a position on, by its timestamp; None: it has none."""
    if manifest.record_format != ENVELOPE:
        return None
    try:
        async with LogReader(parts) as reader:
            entry = await anext(reader.read(position), None)
        timestamp_us = None if entry is None else parse_record(entry.payload).timestamp_us
    except BookKeeperError:
        return None
    if timestamp_us is None:
        return None
    return max(0.0, parts.runtime.clock.wall_ms() / 1000 - timestamp_us / 1_000_000)
