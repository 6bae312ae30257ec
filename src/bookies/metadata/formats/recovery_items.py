"""What auto-recovery keeps, as items that move from store to store: marks, and its settings. Locks and votes do not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from bookies.metadata.interface import RecoveryStore
from bookies.metadata.interface.recovery_store import AuditKind, Mark
from bookies.model import BookieId

_WHOLE = 1 << 63  # behind every ledger


@dataclass(frozen=True, slots=True)
class UnderReplicated:
    """A mark, see `Mark`."""

    ledger_id: int
    replicas: tuple[BookieId, ...]
    ctime_ms: int | None


@dataclass(frozen=True, slots=True)
class RecoverySettings:
    """The switch; the delay for lost bookies, None if nobody has said; when checks were finished, by kind."""

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
    """Repeatable. What nobody has said stays as it is."""
    await (recovery.enable() if wanted.is_enabled else recovery.disable())
    found = await read_settings(recovery)
    if wanted.delay_s not in (None, found.delay_s):
        assert wanted.delay_s is not None
        await recovery.set_lost_bookie_delay_s(wanted.delay_s)
    for each in wanted.checked_at_ms:
        if each not in found.checked_at_ms:
            await recovery.set_checked_at_ms(*each)


def agree(wanted: RecoverySettings, found: RecoverySettings) -> bool:
    """Whether everything that is said is there."""
    return (
        wanted.is_enabled is found.is_enabled
        and wanted.delay_s in (None, found.delay_s)
        and all(each in found.checked_at_ms for each in wanted.checked_at_ms)
    )


async def read_marks(recovery: RecoveryStore) -> AsyncIterator[Sequence[UnderReplicated]]:
    async for page in recovery.marks():
        yield [_item(mark) for mark in page]


def _item(mark: Mark) -> UnderReplicated:
    return UnderReplicated(mark.ledger_id, mark.replicas, mark.ctime_ms)


async def put_mark(recovery: RecoveryStore, wanted: UnderReplicated) -> None:
    """Repeatable; what is there of the ledger is replaced. For stores that nobody uses meanwhile."""
    found = await recovery.mark_of(wanted.ledger_id)
    if found is not None and _item(found) == wanted:
        return
    if found is not None:
        await recovery.unmark(found)
    await recovery.mark(wanted.ledger_id, wanted.replicas, wanted.ctime_ms)


async def remove_mark(recovery: RecoveryStore, ledger_id: int) -> None:
    found = await recovery.mark_of(ledger_id)
    if found is not None:
        await recovery.unmark(found)


async def paired_marks(
    one: RecoveryStore, other: RecoveryStore
) -> AsyncIterator[tuple[UnderReplicated | None, UnderReplicated | None]]:
    """The marks of two stores side by side, by ledger; not all in memory."""
    theirs, ours = _each(one), _each(other)
    there, here = await anext(theirs, None), await anext(ours, None)
    while there is not None or here is not None:
        next_there = _WHOLE if there is None else there.ledger_id
        next_here = _WHOLE if here is None else here.ledger_id
        first = min(next_there, next_here)
        yield there if next_there == first else None, here if next_here == first else None
        if next_there == first:
            there = await anext(theirs, None)
        if next_here == first:
            here = await anext(ours, None)


async def _each(recovery: RecoveryStore) -> AsyncIterator[UnderReplicated]:
    async for page in read_marks(recovery):
        for mark in page:
            yield mark
