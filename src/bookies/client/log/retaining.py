"""Retention of one log, applied: the policy in its record, the removals, and their history.

A removal is one transaction: the swap of the list, the check of the cursors, and the row of the history. So each
removal is in the history, and a consumer that moves its cursor meanwhile is never overtaken. See
`protocol/log/retention.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from bookies.client.base.metadata_loop import repeated
from bookies.client.log.cursor_store import HISTORY
from bookies.client.log.log_operations import LogContext, sweep
from bookies.client.log.seeking import points_of
from bookies.errors import CursorBehind, LogTruncated, RecordNotFound
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.driver import RecordWrite, Step
from bookies.protocol.log import Manifest
from bookies.protocol.log.log_model import truncated
from bookies.protocol.log.log_times import ended_ms
from bookies.protocol.log.retention import (
    LEDGERS_MAX,
    LogRemoval,
    Retention,
    RetentionDecision,
    decide,
    pack_history,
    parse_history,
    retention_fields,
    retention_of,
)


class LogRetention:
    """Policy, decisions and history of one log."""

    def __init__(self, parts: LogContext, driver: MetadataDriver) -> None:
        self._parts = parts
        self._driver = driver
        self._record = HISTORY + parts.records.name

    @property
    def policy(self) -> Retention:
        """Return the policy. Raises `MetadataCorrupt`."""
        return retention_of(self._parts.records.current)

    async def set_policy(self, policy: Retention) -> None:
        """Store a policy. Raises `InvalidArgument`, `LogNotFound`."""
        limits = retention_fields(policy)

        def change(manifest: Manifest) -> Manifest | None:
            known = {
                name: limit for name, limit in manifest.retention.items() if name not in Retention.__struct_fields__
            }
            wanted = {**known, **limits}  # A later version's limits stay.
            return None if wanted == manifest.retention else replace(manifest, retention=wanted)

        await self._parts.records.update(change)

    async def history(self) -> list[LogRemoval]:
        """Return the latest removals, the oldest first. Raises `MetadataError`."""
        return (await self._history())[0]

    async def _history(self) -> tuple[list[LogRemoval], int]:
        try:
            data, version = await self._driver.read_record(self._record)
        except RecordNotFound:
            return [], 0
        return parse_history(self._parts.records.name, self._parts.records.current.token, data), version

    async def decide(self) -> RetentionDecision:
        """Decide what may go now. Raises `MetadataError`, `LedgerNotFound`."""
        return await self._decide(self._parts.records.current)

    async def _decide(self, manifest: Manifest) -> RetentionDecision:
        policy = retention_of(manifest)
        if not policy.has_limit:
            return RetentionDecision(None)
        cursors, _ = await repeated(self._parts.runtime, self._parts.cursors.read)
        now_ms = self._parts.runtime.clock.wall_ms()
        return decide(manifest, policy, await self._ends(manifest, policy, now_ms), cursors, now_ms)

    async def apply(self) -> list[LogRemoval]:
        """Remove what may go now, and return what went. Raises `LogNotFound`, `LogFenced`, and the store's errors."""
        removals = []
        while (decision := await self._decide(basis := self._parts.records.current)).removal is not None:
            try:
                if await self._remove(decision, decision.removal, basis):
                    removals.append(decision.removal)
            except (CursorBehind, LogTruncated):
                await self._parts.records.refresh()  # Another client was here meanwhile: the next time decides again.
                break
        if self._parts.records.current.deleting:
            await sweep(self._parts)
        return removals

    async def _remove(self, decision: RetentionDecision, removal: LogRemoval, basis: Manifest) -> bool:
        """Remove ledgers, as was decided for the list `basis`; False: this client has not, because of another one."""
        before = removal.before
        changed: Manifest | None = None
        check_cursors = self._parts.cursors.guard(before, {}, is_forced=False, stale=decision.stale)

        async def guard(manifest: Manifest) -> Sequence[Step]:
            removals, version = await self._history()
            row = RecordWrite(self._record, pack_history(manifest.token, [*removals, removal]), version)
            return [*await check_cursors(manifest), row]

        def change(current: Manifest) -> Manifest | None:
            nonlocal changed
            is_valid = current.retention == basis.retention and not current.held and not current.is_deleting
            # Its ledger begins there: nothing of it has to be confirmed.
            changed = truncated(current, before, {}, before.entry_id - 1) if is_valid else None
            return changed

        await self._parts.records.update(change, guard)
        await sweep(self._parts)
        # Without a change, the reply to an earlier attempt may have been lost.
        return changed is not None or removal in (await self._history())[0]

    async def _ends(self, manifest: Manifest, policy: Retention, now_ms: int) -> dict[int, int]:
        """Return when the oldest extents ended, as far as it matters for the policy."""
        ends = ended_ms(manifest, await points_of(self._parts))
        ages = [age_ms for age_ms in (policy.age_ms, policy.cursor_age_ms) if age_ms is not None]
        if not ages:
            return {}
        for index, extent in enumerate(manifest.extents[:LEDGERS_MAX]):
            if extent.seq not in ends and index + 2 < len(manifest.extents):
                # A leader creates the next but one ledger after the end of this one.
                later = manifest.extents[index + 2]
                created_ms = (await self._parts.client.metadata(later.ledger_id)).ctime_ms
                if created_ms is not None and later.txn is None:
                    ends[extent.seq] = created_ms
            if ends.get(extent.seq, now_ms) >= now_ms - min(ages):
                break  # The others are younger.
        return ends
