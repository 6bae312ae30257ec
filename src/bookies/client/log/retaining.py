"""Retention and compaction of one log, carried out.

A removal of retention is one transaction: the swap of the list, the check of the cursors, and the row of the history.
So each removal is in the history, and a consumer that moves its cursor meanwhile is never overtaken. See
`protocol/log/retention.py`.

A compaction scans, rewrites and swaps. The new ledgers of at most `SWAP_EXTENTS` extents are written
and sealed before one swap lists them. A compaction that stops in between leaves up to that number of ledgers, which
`Log.reap` deletes after a day. The replaced ledgers are deleted as those of a truncation. Two compactions at a time do
no harm: the first swap of an extent counts. See `protocol/log/compaction.py`.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from bookies.client.base.arguments import milliseconds, whole_number
from bookies.client.base.iteration import Batches
from bookies.client.base.metadata_loop import repeated
from bookies.client.log.base.cursor_store import HISTORY
from bookies.client.log.base.log_operations import LogContext, discard, sweep
from bookies.client.log.base.seeking import points_of
from bookies.client.read.kept_entries import extent_batches
from bookies.errors import (
    BookKeeperError,
    CursorBehind,
    InvalidArgument,
    LedgerNotFound,
    LogInUse,
    LogTruncated,
    RecordNotFound,
)
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.driver import LedgerAt, LedgerDeletion, RecordAt, RecordWrite, Step
from bookies.model import BookieId
from bookies.protocol.log import Manifest
from bookies.protocol.log.compaction import (
    KEYS_MAX,
    KeyScan,
    Rewritten,
    check_compaction,
    compactable,
    compacted,
    expired_ordinal,
    ordinals,
)
from bookies.protocol.log.kept import pack_kept
from bookies.protocol.log.log_model import Extent, truncated
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
from bookies.protocol.log.transaction import Origin, labels_of

SWAP_EXTENTS = 32  # whose new ledgers wait for one swap
APP = "bk-compaction"  # application in the labels of new ledgers


def policy_of(**limits: float | None) -> Retention:
    """Return the policy with the limits that `Log.set_retention` documents. Raises `InvalidArgument`."""
    known = ("age", "size", "rows", "cursor_age")
    if unknown := [name for name in limits if name not in known]:
        raise InvalidArgument(f"retention: no limit {unknown[0]!r}; expected {', '.join(known)}")
    size, rows = limits.get("size"), limits.get("rows")
    return Retention(
        age_ms=milliseconds("age", limits.get("age")),
        size=None if size is None else whole_number("size", size, None),
        rows=None if rows is None else whole_number("rows", rows, None),
        cursor_age_ms=milliseconds("cursor_age", limits.get("cursor_age")),
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
                if later.stored is not None:
                    continue  # Its first ledger is deleted, with the time of its creation.
                created_ms = (await self._parts.client.metadata(later.ledger_id)).ctime_ms
                if created_ms is not None and later.txn is None:
                    ends[extent.seq] = created_ms
            if ends.get(extent.seq, now_ms) >= now_ms - min(ages):
                break  # The others are younger.
        return ends


# -- compaction -------------------------------------------------------------------------------------------------------


class LogCompaction(Struct, frozen=True):
    """Result of a compaction. `entries`, `bytes`: scanned; `removed`, `bytes_removed`: those that went, or would go.

    `ledgers`: replaced ledgers. `passes`: how often the log was read to find them.
    """

    entries: int
    bytes: int
    removed: int
    bytes_removed: int
    ledgers: tuple[int, ...]
    passes: int


class CompactionBasis(NamedTuple):
    """Closed extents that a compaction scans, their ordinals, and the ordinal before which tombstones may go."""

    extents: Sequence[Extent]
    starts: Mapping[int, int]
    expired: int


Moved = Callable[[int, Sequence[BookieId], int], Awaitable[None]]


class Compactor:
    """One compaction of a log. `tombstone_ms`: time for which the last record of a key stays if it has no value."""

    def __init__(
        self, parts: LogContext, driver: MetadataDriver, tombstone_ms: int, *, keys_max: int = KEYS_MAX
    ) -> None:
        self._parts = parts
        self._driver = driver
        self._tombstone_ms = tombstone_ms
        self._keys_max = keys_max

    async def run(self, *, is_dry: bool = False) -> LogCompaction:
        """Compact the log. Raises `InvalidArgument`, `LogFenced`, `LogTruncated`, and the errors of reading."""
        manifest = self._parts.records.current
        extents, starts, expired = await self.basis()
        scan = KeyScan(starts[-1], expired, self._keys_max)
        try:
            entries, size = await self._scan(scan, extents, starts)
            changed = [extent for extent in extents if any(_flags(scan, extent, starts))]
            replaced: list[int] = []
            if is_dry:
                replaced = [extent.storage for extent in changed]
            else:
                for at in range(0, len(changed), SWAP_EXTENTS):
                    part = changed[at : at + SWAP_EXTENTS]
                    written = [await self.written(extent, _flags(scan, extent, starts)) for extent in part]
                    replaced += await self.swap(written)
        except LedgerNotFound as error:
            if (await self._parts.records.refresh()).storages == manifest.storages:
                raise
            raise LogTruncated(
                f"log {self._parts.records.name} was truncated or compacted meanwhile: the part that was swapped "
                "before is compacted; repeat the compaction for the rest"
            ) from error
        return LogCompaction(entries, size, scan.entries_removed, scan.bytes_removed, tuple(replaced), scan.passes)

    async def basis(self) -> CompactionBasis:
        """Return what there is to scan. Raises `InvalidArgument`, `LogFenced`, `MetadataError`."""
        manifest = self._parts.records.current
        check_compaction(self._parts.records.name, manifest)
        extents = compactable(manifest)
        starts = ordinals(extents)
        before_ms = self._parts.runtime.clock.wall_ms() - self._tombstone_ms
        ends = ended_ms(manifest, await points_of(self._parts))
        return CompactionBasis(extents, starts, expired_ordinal(extents, starts, ends, before_ms))

    async def _scan(self, scan: KeyScan, extents: Sequence[Extent], starts: Mapping[int, int]) -> tuple[int, int]:
        """Mark the entries that go; return how many there are, and their bytes."""
        entries = size = 0
        while scan.begin():
            for extent in extents:
                shift = starts[extent.seq] - extent.first
                async with self.opened(extent) as batches:
                    async for batch in batches:
                        payloads = batch.payloads()
                        for entry_id, entry in zip(batch.entry_ids, payloads, strict=True):
                            scan.add(shift + entry_id, entry)
                        if scan.passes == 1:
                            entries, size = entries + len(payloads), size + sum(map(len, payloads))
            scan.end()
        scan.finish()
        return entries, size

    @asynccontextmanager
    async def opened(self, extent: Extent) -> AsyncIterator[Batches]:
        """Open a closed extent: an iterator over its entries. Raises `LedgerNotFound`."""
        assert extent.last is not None
        async with self._parts.client.open(extent.storage, password=self._parts.password) as ledger:
            yield await extent_batches(ledger, extent, extent.first, extent.last)

    # -- rewriting -----------------------------------------------------------------------------------------------
    async def swap(self, rewritten: Sequence[Rewritten]) -> list[int]:
        """Swap rewritten extents in, the oldest first; return the ledgers that they replace.

        Raises `LogInUse`: another process has changed one of them, so this one and the following are not swapped.
        """
        swapped = await self._swap(rewritten)  # If it fails, `Log.reap` finds the new ledgers that are not listed.
        unlisted = [change for change in rewritten if change.ledger_id not in swapped.storages]
        # A repetition of a job may list one as well: its record goes only if the list is still the one without it.
        seen = RecordAt(self._parts.records.record, self._parts.records.version)
        for change in unlisted:
            with contextlib.suppress(BookKeeperError):
                version = (await self._driver.read_ledger(change.ledger_id)).version
                await self._driver.transact([seen, LedgerDeletion(change.ledger_id, version)])
        await sweep(self._parts)
        listed = {extent.seq for extent in swapped.extents}
        if any(change.basis.seq in listed for change in unlisted):
            raise LogInUse(
                f"log {self._parts.records.name} was compacted by another process, or held, meanwhile: this one has "
                "stopped before that part; repeat it"
            )
        return [change.basis.storage for change in rewritten if change not in unlisted]

    async def written(self, extent: Extent, goes: Sequence[int], moved: Moved | None = None) -> Rewritten:
        """Write and close the ledger of what stays of an extent. `goes`: 1 for each entry that does not.

        `moved`: is awaited after each batch, with the bytes read, the bookies of the new ledger, and the bytes of all
        copies written to them.
        """
        name, like = self._parts.records.name, self._parts.records.current
        now_ms = self._parts.runtime.clock.wall_ms()
        attempt = f"{self._parts.runtime.random.getrandbits(64):016x}"
        writer = await self._parts.client.create(
            ensemble=like.ensemble,
            write_quorum=like.write_quorum,
            ack_quorum=like.ack_quorum,
            digest=like.digest,
            password=self._parts.password,
            labels=labels_of(Origin(APP, now_ms, "", extent.seq, attempt), name, like.token, now_ms),
        )
        ids: list[int] = []
        size = 0
        try:
            async with self.opened(extent) as batches:
                async for batch in batches:
                    rows = zip(batch.entry_ids, batch.payloads(), strict=True)
                    kept = [(entry_id, entry) for entry_id, entry in rows if not goes[entry_id - extent.first]]
                    kept_size = sum(len(entry) for _, entry in kept)
                    if kept:
                        await writer.append_many([entry for _, entry in kept])
                        ids += [entry_id for entry_id, _ in kept]
                        size += kept_size
                    if moved is not None:
                        await moved(batch.size, writer.metadata.last_ensemble, kept_size * like.write_quorum)
            for record in pack_kept(ids):
                await writer.append(record)
            await writer.seal()
        except BaseException:
            await discard(self._parts, writer)
            raise
        return Rewritten(extent, writer.ledger_id, len(ids), size)

    async def _swap(self, rewritten: Sequence[Rewritten]) -> Manifest:
        """Replace the ledgers of extents in the list, as long as the new ones exist and are closed."""

        async def conditions(current: Manifest) -> list[LedgerAt]:
            steps = []
            for change in rewritten:
                # It was closed here. A server of the store that lags behind has another version, and the swap repeats.
                record = await self._driver.read_ledger(change.ledger_id)
                steps.append(LedgerAt(change.ledger_id, record.version))
            return steps

        return await self._parts.records.update(lambda current: compacted(current, rewritten), conditions)


def _flags(scan: KeyScan, extent: Extent, starts: Mapping[int, int]) -> Sequence[int]:
    """Return a flag for each entry of an extent: 1, it goes."""
    assert extent.last is not None
    start = starts[extent.seq]
    return scan.goes(start, start + max(0, extent.last - extent.first + 1))
