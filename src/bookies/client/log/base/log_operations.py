"""Operations that several processes may run on a log at once: take-over, truncation, sweep of unlisted ledgers.

None of them relies on being the only one. Source: client-protocol 5.2, 5.4.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from bookies.client.base.arguments import named
from bookies.client.base.metadata_loop import back_off
from bookies.client.log.base.cursor_store import LogCursors
from bookies.client.log.base.time_index import TimeIndex
from bookies.client.write.manifest import ManifestLoop
from bookies.errors import (
    BookKeeperError,
    InvalidArgument,
    LedgerNotFound,
    LogFenced,
    LogNotFound,
    LogTruncated,
    MetadataCorrupt,
    Unauthorized,
)
from bookies.metadata.interface.driver import Step
from bookies.protocol.log import Manifest, Position
from bookies.protocol.log.log_model import OPEN_MAX, LedgerEnd, check_held, check_leader, swept, taken_over, truncated
from bookies.runtime.ports import Runtime

if TYPE_CHECKING:
    from bookies.client.log.base.ledger_client import LedgerClient
    from bookies.client.write import LedgerWriter

PATIENCE_S = 30.0  # seconds; a take-over gives up when one step has failed for this long
DELETING_MAX = 2048  # ledgers that a truncation removes from the list at a time: the record notes them
DUEL_PAUSE = 4  # `back_off` begins here after a lost swap: long enough for the winner to begin its work

Guard = Callable[[Manifest], Awaitable[Sequence[Step]]]


class LogContext(NamedTuple):
    """Everything needed to work on one log."""

    client: LedgerClient
    runtime: Runtime
    records: ManifestLoop
    cursors: LogCursors
    times: TimeIndex
    password: bytes


async def take_over(
    parts: LogContext, *, leader: int | None = None, is_candidate: Callable[[], bool] | None = None
) -> LedgerWriter:
    """Decide the ends of open ledgers, and append a new ledger to the list; return that ledger, still empty.

    `leader`: the epoch of a leader that lost its ledger, and continues only while no other took over. `is_candidate`:
    asked before every attempt. Raises `LogFenced` if either fails, `LogNotFound`, `LedgerNotFound` (a listed ledger
    is lost), `Unauthorized` (wrong password), and the error that prevents a step for too long.
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
    """Try once; None: another process changed the list meanwhile. The numbers are those of client-protocol 5.2."""
    basis = await parts.records.refresh()  # (1)
    if leader is not None:
        check_leader(basis, leader)
    if basis.is_deleting:
        raise LogNotFound(f"log {parts.records.name} is being deleted")
    check_held(basis)
    try:
        ends = {ledger_id: await end_of(parts, ledger_id) for ledger_id in basis.open_ledgers}  # (2)
    except LedgerNotFound:
        if await parts.records.refresh() is basis:
            raise
        return None  # It was truncated, or deleted with the log, meanwhile.
    if not ends:  # Otherwise a recovery has compared the password.
        expected = await last_password(parts.client, basis)
        if expected is not None and not hmac.compare_digest(expected, parts.password):
            raise Unauthorized(f"log {parts.records.name}: wrong password: pass the one that its ledgers have")
    ledger = await new_ledger(parts, basis.epoch + 1)  # (3)
    try:
        await parts.records.update(lambda now: taken_over(now, basis, ledger.ledger_id, ends, leader=leader))  # (5)
    except LogFenced:
        await discard(parts, ledger)
        return None
    except InvalidArgument:
        await discard(parts, ledger)  # No store could hold the list with it.
        raise
    except BaseException:
        await ledger.close()  # It may or may not be in the list: the next take-over seals it.
        raise
    if parts.records.current.epoch != basis.epoch + 1:
        # It is in the list, and another process has taken over since: that one's epoch must not become this one's.
        await ledger.close()
        return None
    return ledger


async def end_of(parts: LogContext, ledger_id: int) -> LedgerEnd:
    """Stop a ledger's writer, if it is not closed, and decide its end."""
    ledger = await parts.client.recover(ledger_id, password=parts.password)
    await ledger.close()
    return LedgerEnd(ledger.metadata.last_entry_id, ledger.metadata.length)


async def last_password(client: LedgerClient, manifest: Manifest) -> bytes | None:
    """Return the password of the last ledger in a list, which the next one must have: readers know one password.

    None: the list is empty, or the ledger's record is lost, damaged or without a password.
    """
    if manifest.extents:
        with contextlib.suppress(LedgerNotFound, MetadataCorrupt):
            return (await client.metadata(manifest.extents[-1].storage)).password
    return None


async def new_ledger(parts: LogContext, epoch: int) -> LedgerWriter:
    """Create a ledger with the settings of the log's record. Its labels name its owner in case it never gets into a
    list."""
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
    """Delete a ledger that is in no list and never will be. Best effort: a remaining one is labelled garbage."""
    await ledger.close()
    with contextlib.suppress(BookKeeperError):
        await parts.client.delete(ledger.ledger_id)


async def truncate(
    parts: LogContext, before: Position, own: LedgerWriter | None = None, *, is_forced: bool = False
) -> None:
    """Truncate the log before `before`. `own`: the ledger that the caller is writing. Raises like `Log.truncate`."""
    with named(parts.records.name):
        await _truncate(parts, before, own, is_forced=is_forced)


async def _truncate(parts: LogContext, before: Position, own: LedgerWriter | None, *, is_forced: bool) -> None:
    manifest = parts.records.current
    ends: dict[int, LedgerEnd] = {}
    for ledger_id in manifest.open_ledgers:
        metadata = await parts.client.metadata(ledger_id)
        if metadata.is_closed:
            ends[ledger_id] = LedgerEnd(metadata.last_entry_id, metadata.length)
    confirmed = await _last_add_confirmed(parts, manifest, before, ends, own)
    guard = parts.cursors.guard(before, ends, is_forced=is_forced)
    while (nearer := _nearer(parts.records.current, before)) is not None:
        await _truncate_closed(parts, nearer, guard)
    await parts.records.update(lambda current: truncated(current, before, ends, confirmed), guard)
    await sweep(parts)


def _nearer(manifest: Manifest, before: Position) -> Position | None:
    """Return the first position to truncate to when more ledgers precede a position than one record can note."""
    if len(manifest.extents) <= DELETING_MAX + OPEN_MAX:
        return None
    extent, target = manifest.extents[DELETING_MAX], manifest.find(before)
    if target is None or target.seq <= extent.seq:
        return None
    return Position(extent.ledger_id, extent.first)


async def _truncate_closed(parts: LogContext, before: Position, guard: Guard | None) -> None:
    """Truncate before a ledger that is followed by more than those that may be open."""
    with contextlib.suppress(LogTruncated):  # Another process was here meanwhile.
        await parts.records.update(lambda current: truncated(current, before, {}, before.entry_id), guard)
    await sweep(parts)


async def empty(parts: LogContext) -> None:
    """Delete all but the newest ledgers of a long list, a batch at a time, before the list itself is deleted."""
    while len(parts.records.current.extents) > DELETING_MAX + OPEN_MAX:
        extent = parts.records.current.extents[DELETING_MAX]
        await _truncate_closed(parts, Position(extent.ledger_id, extent.first), None)


async def _last_add_confirmed(
    parts: LogContext, manifest: Manifest, before: Position, ends: Mapping[int, LedgerEnd], own: LedgerWriter | None
) -> int:
    """Return the last add confirmed of a position's ledger; -1 when it is not in the list."""
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
    """Delete the ledgers that were removed from the list."""
    deleted = parts.records.current.deleting
    for ledger_id in deleted:
        await parts.client.delete(ledger_id)
    await parts.records.update(lambda manifest: swept(manifest, deleted))
    await parts.records.sweep()


class Patience:
    """Back-off for steps that may be repeated: growing pauses, as long as the step may still succeed."""

    def __init__(self, runtime: Runtime, seconds: float = PATIENCE_S) -> None:
        self._runtime = runtime
        self._seconds = seconds
        self._count = 0
        self._since = 0.0

    async def pause(self, error: BookKeeperError) -> None:
        """Wait before the next try. Raises `error` when it is permanent, or has lasted too long."""
        now = asyncio.get_running_loop().time()
        if self._count == 0:
            self._since = now
        if not error.retriable or now - self._since >= self._seconds:
            raise error
        self._count += 1
        await back_off(self._runtime, self._count)

    def reset(self) -> None:
        """Note that a step succeeded."""
        self._count = 0


class FutileLedgers:
    """Consecutive ledgers that failed before an entry was confirmed."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._count = 0
        self._since = 0.0

    async def pause(self, last_add_confirmed: int, failure: BaseException) -> None:
        """Pause after a ledger, so that empty ones do not fill the list.

        Raises the failure when it lasts too long. Raises `Unauthorized` at once: no pause gives a user the right.
        """
        if last_add_confirmed >= 0:
            self._count = 0
            return
        now = asyncio.get_running_loop().time()
        if self._count == 0:
            self._since = now
        if now - self._since >= PATIENCE_S or isinstance(failure, Unauthorized):
            raise failure
        self._count += 1
        await back_off(self._runtime, self._count)
