"""Table `lag`: what consumers of logs, and streaming queries by their checkpoints, have not read yet. No Spark.

A checkpoint has one file for each batch: `offsets/N` with its end, and `commits/N` when it is done. A query continues
at the end of the last batch that is done.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow.fs

from bookies.encoding.documents import parse_json
from bookies.errors import BookKeeperError, InvalidArgument, LogNotFound
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.lag import Lag
from bookies.spark.base import offsets
from bookies.spark.base.files import absolute, system_of
from bookies.spark.base.offsets import At, Key, Offset

if TYPE_CHECKING:
    from bookies.client.client import Client

NOTHING, UNKNOWN = Lag(0, 0, 0.0), Lag(None, None, None)


def reached(checkpoint: str) -> Offset:
    """Return where a streaming query continues. Blocks. Raises `InvalidArgument`.

    `checkpoint`: its directory, as path or URI.
    """
    system, path = system_of(absolute(checkpoint))
    done, begun = _numbers(system, f"{path}/commits"), _numbers(system, f"{path}/offsets")
    if not begun:
        raise InvalidArgument(f"option checkpoint: {checkpoint} has no offsets of a streaming query")
    batch = max(done, default=min(begun))
    try:
        with system.open_input_stream(f"{path}/offsets/{batch}") as file:
            lines = file.read().decode().splitlines()
    except OSError as error:
        raise InvalidArgument(f"option checkpoint: {checkpoint} has no offsets of batch {batch}: {error}") from error
    ends = [end for line in lines if (end := _offset(line)) is not None]
    if not ends:
        raise InvalidArgument(f"option checkpoint: the query of {checkpoint} does not read the format bookkeeper")
    positions: dict[Key, At] = {}
    tokens: dict[Key, str] = {}
    for end in ends:
        positions |= end.positions if done else end.origin
        tokens |= end.tokens
    return Offset(positions, tokens=tokens)


def _numbers(system: Any, directory: str) -> list[int]:
    infos = system.get_file_info(pyarrow.fs.FileSelector(directory, allow_not_found=True))
    return [int(info.base_name) for info in infos if info.base_name.isdigit()]


def _offset(line: str) -> Offset | None:
    """Return the offset in a line of a checkpoint's file; None: it is none of this source."""
    try:
        return offsets.parse(parse_json(line))
    except (ValueError, AttributeError, InvalidArgument):
        return None


async def consumer_rows(client: Client, name: str, password: bytes) -> list[dict[str, Any]]:
    """Return a row for each cursor of a log; none if the log was deleted since it was listed."""
    try:
        states = await client.log(name, password=password).consumers()
    except LogNotFound:
        return []
    return [
        _row(name, None, cursor, str(state.cursor.position), state.lag, state.processes)
        for cursor, state in sorted(states.items())
    ]


async def query_rows(client: Client, query: Offset, password: bytes) -> AsyncGenerator[list[dict[str, Any]], None]:
    """Yield a row for each log and ledger that a streaming query reads."""
    for key, at in query.positions.items():
        if isinstance(key, str):
            position, lag = await _lag_of_log(client, key, at, query.tokens, password)
            yield [_row(key, None, None, None if position is None else str(position), lag)]
        else:
            yield [_row(None, key, None, f"{key}:{at[1]}", await _lag_of_ledger(client, key, at[1], password))]


async def _lag_of_log(
    client: Client, name: str, at: At, tokens: Mapping[Key, str], password: bytes
) -> tuple[Position | None, Lag]:
    log = client.log(name, password=password)
    try:
        manifest = await log.manifest()
        if tokens.get(name, manifest.token) != manifest.token:
            return None, UNKNOWN  # Another log has its name.
        position = position_of(manifest, at)
        return position, NOTHING if position is None else await log.lag(position)
    except LogNotFound:
        return None, UNKNOWN


def position_of(manifest: Manifest, at: At) -> Position | None:
    """Return the log's own form of a position, or its beginning if that is later; None: the end of the log."""
    for extent in manifest.extents:
        if extent.seq >= at[0]:
            return Position(extent.ledger_id, max(extent.first, at[1] if extent.seq == at[0] else 0))
    return None


async def _lag_of_ledger(client: Client, ledger_id: int, entry_id: int, password: bytes) -> Lag:
    try:
        async with client.open(ledger_id, password=password) as ledger:
            count = ledger.last_add_confirmed + 1
            rows = max(0, count - entry_id)
            return Lag(rows, ledger.length * rows // max(1, count), None if rows else 0.0)
    except BookKeeperError:
        return UNKNOWN


def _row(
    log: str | None, ledger_id: int | None, cursor: str | None, position: str | None, lag: Lag, processes: Any = ()
) -> dict[str, Any]:
    return {
        "log": log,
        "ledger_id": ledger_id,
        "cursor": cursor,
        "position": position,
        "rows": lag.rows,
        "bytes": lag.bytes,
        "seconds": lag.seconds,
        "processes": list(processes),
    }
