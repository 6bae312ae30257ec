"""The state of a log's consumers: cursors, lag, and the processes that consume."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from bookies.client.base.metadata_loop import repeated
from bookies.client.log.base.log_operations import LogContext
from bookies.client.log.base.log_reader import LogReader
from bookies.client.turns.lease import Contest
from bookies.errors import BookKeeperError, InvalidArgument
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.cursors import Cursor
from bookies.protocol.log.lag import Lag, rows_and_bytes
from bookies.protocol.log.lease import LeaseQueue
from bookies.protocol.log.log_model import RAW, LedgerEnd
from bookies.protocol.log.records import Decoder
from bookies.protocol.log.sequences import CURSOR as SEQUENCES_CURSOR
from bookies.protocol.log.shares import Shares


class MemberState(NamedTuple):
    """One process of a shared consumer. `first`, `last`: the entries that it has claimed; None: none."""

    process: str
    first: Position | None
    last: Position | None


class ConsumerState(NamedTuple):
    """State of one consumer of a log.

    `processes`: the one that consumes, then those that wait, by their texts. `members`: those of them that share it.
    """

    cursor: Cursor
    lag: Lag
    processes: tuple[str, ...]
    members: tuple[MemberState, ...] = ()


async def consumer_states(parts: LogContext, contest_of: Callable[[str], Contest]) -> dict[str, ConsumerState]:
    """Return the state of each consumer that has a cursor. Raises `LogNotFound`, `MetadataError`."""
    cursors = (await repeated(parts.runtime, parts.cursors.read))[0]
    cursors.pop(SEQUENCES_CURSOR, None)
    queues, positions = {}, {}
    for name, cursor in cursors.items():
        try:
            queues[name], _ = await repeated(parts.runtime, contest_of(name).queue)
        except InvalidArgument:
            queues[name] = LeaseQueue()  # The names of log and cursor are too long together to consume under them.
        positions[name] = cursor.position
        if (shares := _shares_of(queues[name])) is not None:
            positions[name] = shares.position or cursor.position
    measured = await lags(parts, positions)
    return {name: _state(cursor, measured[name], queues[name]) for name, cursor in cursors.items()}


def _shares_of(queue: LeaseQueue) -> Shares | None:
    """Return the shares that processes hold at present."""
    return queue.shares if any(row.is_shared for row in queue.participants) else None


def _state(cursor: Cursor, lag: Lag, queue: LeaseQueue) -> ConsumerState:
    processes, shares = tuple(row.text for row in queue.participants), _shares_of(queue)
    if shares is None:
        return ConsumerState(cursor, lag, processes)
    claims = {row.token: row for row in shares.ranges}
    members = []
    for row in queue.participants:
        claim = claims.get(row.token)
        first, last = (None, None) if claim is None else claim.positions
        if row.is_shared:
            members.append(MemberState(row.text, first, last))
    return ConsumerState(cursor, lag.without(shares.handled_count), processes, tuple(members))


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
    if manifest.record_format == RAW:
        return None
    decode = Decoder(parts.records.name, manifest.record_format)
    try:
        async with LogReader(parts) as reader:
            entry = await anext(reader.read(position), None)
        records = iter(()) if entry is None else decode.intact(entry.ledger_id, (entry.id,), (entry.payload,))
        record = next(records, None)
    except BookKeeperError:
        return None
    if record is None or record.timestamp_us is None:
        return None
    return max(0.0, parts.runtime.clock.wall_ms() / 1000 - record.timestamp_us / 1_000_000)
