"""What several processes do with a log at once: take it over, truncate it, sweep up what was taken out of it.

Nothing here relies on being the only one who does it. Source: client-protocol 5.2, 5.4.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from bookies.client.base.metadata_loop import back_off
from bookies.client.log.cursor_store import LogCursors
from bookies.client.write.manifest import ManifestLoop
from bookies.errors import BookKeeperError, InvalidArgument, LedgerNotFound, LogFenced, LogNotFound, LogTruncated
from bookies.metadata.interface.driver import Step
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.log_model import OPEN_MAX, LedgerEnd, check_held, check_leader, swept, taken_over, truncated
from bookies.runtime.ports import Runtime

if TYPE_CHECKING:
    from bookies.client.log.ledger_client import LedgerClient
    from bookies.client.write import LedgerWriter

PATIENCE_S = 30.0  # a take-over gives up when it could not do a step for so long
DELETING_MAX = 2048  # ledgers that a truncation takes out of the list at a time: the record notes them
DUEL_PAUSE = 4  # `back_off` begins here after a lost swap: long enough for the other one to begin with its work

Guard = Callable[[Manifest], Awaitable[Sequence[Step]]]


class LogContext(NamedTuple):
    """What it takes to work on one log."""

    client: LedgerClient
    runtime: Runtime
    records: ManifestLoop
    cursors: LogCursors
    password: bytes


async def take_over(
    parts: LogContext, *, leader: int | None = None, is_candidate: Callable[[], bool] | None = None
) -> LedgerWriter:
    """Decide the ends of what is open, and put a ledger of our own behind it; that ledger, still empty.

    `leader`: the epoch of a leader who lost its ledger, and goes on only while nobody else took over. `is_candidate`:
    asked before every attempt. Raises `LogFenced` if either says no, `LogNotFound`, `LedgerNotFound` (a listed ledger
    is lost), and what keeps a step from succeeding for too long.
    """
    patience, lost = Patience(parts.runtime), 0
    while True:
        if is_candidate is not None and not is_candidate():
            raise LogFenced("another process was chosen to lead the log")
        try:
            taken = await _attempt(parts, leader)
        except BookKeeperError as error:
            await patience.pause(error)
            continue
        if taken is not None:
            return taken
        lost += 1
        await back_off(parts.runtime, DUEL_PAUSE + lost)


async def _attempt(parts: LogContext, leader: int | None) -> LedgerWriter | None:
    """None: somebody else changed the list meanwhile. The numbers are those of client-protocol 5.2."""
    basis = await parts.records.refresh()  # (1)
    if leader is not None:
        check_leader(basis, leader)
    if basis.is_deleting:
        raise LogNotFound(f"log {parts.records.name} is being deleted")
    check_held(basis)
    try:
        ends = {each: await end_of(parts, each) for each in basis.open_ledgers}  # (2)
    except LedgerNotFound:
        if await parts.records.refresh() is basis:
            raise
        return None  # It was truncated, or deleted with the log, while we looked.
    ledger = await new_ledger(parts, basis.epoch + 1)  # (3)
    try:
        await parts.records.update(lambda found: taken_over(found, basis, ledger.ledger_id, ends, leader=leader))  # (5)
    except LogFenced:
        await discard(parts, ledger)
        return None
    except InvalidArgument:
        await discard(parts, ledger)  # No store could hold the list with it.
        raise
    except BaseException:
        await ledger.close()  # It may or may not be in the list: whoever takes over next ends it.
        raise
    return ledger


async def end_of(parts: LogContext, ledger_id: int) -> LedgerEnd:
    """Stop a ledger's writer, if it is not closed, and decide its end."""
    ledger = await parts.client.recover(ledger_id, password=parts.password)
    await ledger.close()
    return LedgerEnd(ledger.metadata.last_entry_id, ledger.metadata.length)


async def new_ledger(parts: LogContext, epoch: int) -> LedgerWriter:
    """As the log's record says. Its labels tell whose garbage it is when it never gets into a list."""
    like = parts.records.current
    return await parts.client.create(
        ensemble=like.ensemble,
        write_quorum=like.write_quorum,
        ack_quorum=like.ack_quorum,
        digest=like.digest,
        password=parts.password,
        labels={"log": parts.records.name, "log.epoch": str(epoch)},
    )


async def discard(parts: LogContext, ledger: LedgerWriter) -> None:
    """Delete a ledger that is in no list and never will be. Best effort: what is left is garbage, and labelled."""
    await ledger.close()
    with contextlib.suppress(BookKeeperError):
        await parts.client.delete(ledger.ledger_id)


async def truncate(
    parts: LogContext, before: Position, own: LedgerWriter | None = None, *, is_forced: bool = False
) -> None:
    """Let the log begin at `before`. `own`: the ledger that the caller is writing. Raises as `Log.truncate`."""
    manifest = parts.records.current
    ends: dict[int, LedgerEnd] = {}
    for ledger_id in manifest.open_ledgers:
        metadata = await parts.client.metadata(ledger_id)
        if metadata.is_closed:
            ends[ledger_id] = LedgerEnd(metadata.last_entry_id, metadata.length)
    confirmed = await _last_add_confirmed(parts, manifest, before, ends, own)
    guard = None if is_forced else parts.cursors.guard(before, ends)
    while (nearer := _nearer(parts.records.current, before)) is not None:
        await _truncate_closed(parts, nearer, guard)
    await parts.records.update(lambda found: truncated(found, before, ends, confirmed), guard)
    await sweep(parts)


def _nearer(manifest: Manifest, before: Position) -> Position | None:
    """Where to truncate first when there are more ledgers before a position than one record can note."""
    if len(manifest.extents) <= DELETING_MAX + OPEN_MAX:
        return None
    extent, target = manifest.extents[DELETING_MAX], manifest.find(before)
    if target is None or target.seq <= extent.seq:
        return None
    return Position(extent.ledger_id, extent.first)


async def _truncate_closed(parts: LogContext, before: Position, guard: Guard | None) -> None:
    """Truncate before a ledger that is followed by more than those that may be open."""
    with contextlib.suppress(LogTruncated):  # Somebody else has been here meanwhile.
        await parts.records.update(lambda found: truncated(found, before, {}, before.entry_id), guard)
    await sweep(parts)


async def empty(parts: LogContext) -> None:
    """Delete all but the newest ledgers of a long list, some at a time, before it is deleted itself."""
    while len(parts.records.current.extents) > DELETING_MAX + OPEN_MAX:
        extent = parts.records.current.extents[DELETING_MAX]
        await _truncate_closed(parts, Position(extent.ledger_id, extent.first), None)


async def _last_add_confirmed(
    parts: LogContext, manifest: Manifest, before: Position, ends: Mapping[int, LedgerEnd], own: LedgerWriter | None
) -> int:
    """Of the ledger of a position; -1 when it is not in the list."""
    target = manifest.find(before)
    if target is None:
        return -1
    if target.last is not None:
        return target.last
    if target.ledger_id in ends:
        return ends[target.ledger_id].last_entry_id
    if own is not None and own.ledger_id == target.ledger_id:
        return own.last_add_confirmed
    async with parts.client.open(target.ledger_id, password=parts.password) as ledger:
        return await ledger.read_last_add_confirmed()


async def sweep(parts: LogContext) -> None:
    """Delete the ledgers that were taken out of the list."""
    gone = parts.records.current.deleting
    for ledger_id in gone:
        await parts.client.delete(ledger_id)
    await parts.records.update(lambda found: swept(found, gone))
    await parts.records.sweep()


class Patience:
    """For steps that may be repeated: pauses that grow, for as long as something may still come of it."""

    def __init__(self, runtime: Runtime, seconds: float = PATIENCE_S) -> None:
        self._runtime = runtime
        self._seconds = seconds
        self._count = 0
        self._since = 0.0

    async def pause(self, error: BookKeeperError) -> None:
        """Wait before the next try. Raises `error` when it will not pass, or has not passed for too long."""
        now = asyncio.get_running_loop().time()
        if self._count == 0:
            self._since = now
        if not error.retriable or now - self._since >= self._seconds:
            raise error
        self._count += 1
        await back_off(self._runtime, self._count)

    def reset(self) -> None:
        """A step succeeded."""
        self._count = 0
