"""Auto-recovery's state as items that move from store to store: marks and settings. Locks and votes do not move."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

from msgspec import Struct

from bookies.metadata.interface import RecoveryStore
from bookies.metadata.interface.recovery_store import AuditKind, Mark
from bookies.model import BookieId

_BEYOND = 1 << 63  # larger than every ledger id


class UnderReplicated(Struct, frozen=True):
    """A mark of a ledger, see `Mark`."""

    ledger_id: int
    replicas: tuple[BookieId, ...]
    ctime_ms: int | None


class RecoverySettings(Struct, frozen=True):
    """Auto-recovery's settings. `delay_s`: the lost-bookie delay, None if it is not set. `checked_at_ms`: completion
    times of checks, wall clock.
    """

    is_enabled: bool = True
    delay_s: int | None = None
    checked_at_ms: tuple[tuple[AuditKind, int], ...] = ()


async def read_settings(recovery: RecoveryStore) -> RecoverySettings:
    checked = [(kind, await recovery.checked_at_ms(kind)) for kind in AuditKind]
    return RecoverySettings(
        await recovery.is_enabled(),
        await recovery.lost_bookie_delay_s(),
        tuple((kind, at_ms) for kind, at_ms in checked if at_ms is not None),
    )


async def put_settings(recovery: RecoveryStore, wanted: RecoverySettings) -> None:
    """Write the settings. Repeatable. A setting that `wanted` does not have stays as it is."""
    await (recovery.enable() if wanted.is_enabled else recovery.disable())
    stored = await read_settings(recovery)
    if wanted.delay_s not in (None, stored.delay_s):
        assert wanted.delay_s is not None
        await recovery.set_lost_bookie_delay_s(wanted.delay_s)
    for check in wanted.checked_at_ms:
        if check not in stored.checked_at_ms:
            await recovery.set_checked_at_ms(*check)


def agree(wanted: RecoverySettings, stored: RecoverySettings) -> bool:
    """Report whether every setting of `wanted` is stored."""
    return (
        wanted.is_enabled is stored.is_enabled
        and wanted.delay_s in (None, stored.delay_s)
        and all(check in stored.checked_at_ms for check in wanted.checked_at_ms)
    )


async def read_marks(recovery: RecoveryStore) -> AsyncIterator[Sequence[UnderReplicated]]:
    async for page in recovery.marks():
        yield [_item(mark) for mark in page]


def _item(mark: Mark) -> UnderReplicated:
    return UnderReplicated(mark.ledger_id, mark.replicas, mark.ctime_ms)


async def put_mark(recovery: RecoveryStore, wanted: UnderReplicated, confirm: Callable[[], Awaitable[None]]) -> None:
    """Write a mark, replacing the ledger's earlier one. Repeatable. The store must have no other users meanwhile.

    `confirm`: called between the read and the change, raises if the change must not be made.
    """
    stored = await recovery.mark_of(wanted.ledger_id)
    if stored is not None and _item(stored) == wanted:
        return
    await confirm()
    if stored is not None:
        await recovery.unmark(stored)
    await recovery.mark(wanted.ledger_id, wanted.replicas, wanted.ctime_ms)


async def remove_mark(recovery: RecoveryStore, ledger_id: int, confirm: Callable[[], Awaitable[None]]) -> None:
    """Delete a mark. `confirm`: see `put_mark`."""
    mark = await recovery.mark_of(ledger_id)
    await confirm()
    if mark is not None:
        await recovery.unmark(mark)


async def paired_marks(
    one: RecoveryStore, other: RecoveryStore
) -> AsyncIterator[tuple[UnderReplicated | None, UnderReplicated | None]]:
    """Yield the marks of two stores in pairs, by ledger, without keeping all in memory; None: no mark in that store."""
    marks_of_one, marks_of_other = _marks(one), _marks(other)
    left, right = await anext(marks_of_one, None), await anext(marks_of_other, None)
    while left is not None or right is not None:
        left_id = _BEYOND if left is None else left.ledger_id
        right_id = _BEYOND if right is None else right.ledger_id
        first = min(left_id, right_id)
        yield left if left_id == first else None, right if right_id == first else None
        if left_id == first:
            left = await anext(marks_of_one, None)
        if right_id == first:
            right = await anext(marks_of_other, None)


async def _marks(recovery: RecoveryStore) -> AsyncIterator[UnderReplicated]:
    async for page in read_marks(recovery):
        for mark in page:
            yield mark
