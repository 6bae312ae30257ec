"""Retention, compaction and roll-up of one log, carried out.

A removal of retention is one transaction: the swap of the list, the check of the cursors, and the row of the history.
So each removal is in the history, and a consumer that moves its cursor meanwhile is never overtaken. See
`protocol/log/retention.py`.

A compaction scans, rewrites and swaps. The new ledgers of at most `SWAP_EXTENTS` extents are written
and sealed before one swap lists them. A compaction that stops in between leaves up to that number of ledgers, which
`Log.reap` deletes after a day. The replaced ledgers are deleted as those of a truncation. Two compactions at a time do
no harm: the first swap of an extent counts. See `protocol/log/compaction.py`.

A roll-up does the same with one new ledger at a time. It copies entries unchanged, and reads the copy back before the
swap.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import accumulate, groupby
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from bookies.client.base.arguments import milliseconds, whole_number
from bookies.client.base.iteration import Batches
from bookies.client.base.metadata_loop import repeated
from bookies.client.log.base.cursor_store import HISTORY
from bookies.client.log.base.log_operations import LogContext, discard, sweep
from bookies.client.log.base.seeking import created_ms_of, points_of
from bookies.client.log.transaction import read_ledgers
from bookies.client.read import LedgerReader
from bookies.client.read.kept_entries import extent_batches, stored_entries
from bookies.client.read.offloaded import content_of
from bookies.client.write import LedgerWriter
from bookies.errors import (
    BookKeeperError,
    CursorBehind,
    DigestMismatch,
    InvalidArgument,
    LedgerNotFound,
    LogInUse,
    LogTruncated,
    RecordNotFound,
)
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.driver import LedgerAt, LedgerDeletion, RecordAt, RecordWrite, Step
from bookies.model import BookieId
from bookies.protocol.ledger.offload import Content, offload_of
from bookies.protocol.log import Manifest
from bookies.protocol.log.compaction import (
    KEYS_MAX,
    KeyScan,
    Rewritten,
    check_compaction,
    check_rewritable,
    compactable,
    compacted,
    expired_ordinal,
    merged_runs,
    ordinals,
    small_ledgers,
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
from bookies.protocol.pacing import RateLimit

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
                created_ms = await created_ms_of(self._parts, later)
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


class LogRollUp(Struct, frozen=True):
    """Result of a roll-up, or with `dry_run` its forecast.

    `ledgers`: that held the entries of the log before. `merged`: those of them that new ones replace. `runs`: the new
    ones to be written. `created`: those that were. `bytes`: payload of the merged ones. `offloaded`: small ledgers that
    stay, because their copy is in files of their own.
    """

    ledgers: int
    merged: int
    runs: int
    created: int
    bytes: int
    offloaded: int

    @property
    def left(self) -> int:
        """Return how many ledgers hold the entries of the log afterwards, if all are merged."""
        return self.ledgers - self.merged + self.runs


class CompactionBasis(NamedTuple):
    """Closed extents that a compaction scans, their ordinals, and the ordinal before which tombstones may go."""

    extents: Sequence[Extent]
    starts: Mapping[int, int]
    expired: int


RollUpProgress = Callable[[int, int], None]  # payload bytes written, and of all
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
        extents, starts, expired = await self.basis()
        scan = KeyScan(starts[-1], expired, self._keys_max)
        async with self._as_listed():
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
        return LogCompaction(entries, size, scan.entries_removed, scan.bytes_removed, tuple(replaced), scan.passes)

    async def roll_up(
        self, below: int, pace: RateLimit, *, is_dry: bool = False, progress: RollUpProgress | None = None
    ) -> LogRollUp:
        """Merge small ledgers. See `Log.roll_up`. Raises as `run` does, and `DigestMismatch`."""
        manifest = self._parts.records.current
        check_rewritable(self._parts.records.name, manifest)
        extents = compactable(manifest)
        small = [unit[0].storage for unit in small_ledgers(extents, below)]
        records = await read_ledgers(self._driver, list(dict.fromkeys(small)))
        offloaded = {one for one, record in records.items() if record is not None and offload_of(record.metadata)}
        runs = merged_runs(extents, below, offloaded)
        merged = dict.fromkeys(extent.storage for run in runs for extent in run)
        size = sum(extent.bytes or 0 for run in runs for extent in run)
        result = LogRollUp(len({*manifest.storages}), len(merged), len(runs), 0, size, len(offloaded))
        if is_dry:
            return result
        done = 0

        async def moved(read: int, _: Sequence[BookieId], copied: int) -> None:
            nonlocal done
            done += copied
            if progress is not None:
                progress(done, size)
            await asyncio.sleep(pace.charge(read, asyncio.get_running_loop().time()))

        async with self._as_listed():
            for run in runs:
                await self.swap(await self._merged(run, moved))
                result = replace(result, created=result.created + 1)
        return result

    @asynccontextmanager
    async def _as_listed(self) -> AsyncIterator[None]:
        """Report a missing ledger that left the list meanwhile as such. Raises `LogTruncated`."""
        manifest = self._parts.records.current
        try:
            yield
        except LedgerNotFound as error:
            if (await self._parts.records.refresh()).storages == manifest.storages:
                raise
            raise LogTruncated(
                f"log {self._parts.records.name} was truncated or compacted meanwhile: the part that was swapped "
                "before is done; repeat it for the rest"
            ) from error

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
                async with self.opened(extent) as (_, batches):
                    async for batch in batches:
                        payloads = batch.payloads()
                        for entry_id, entry in zip(batch.entry_ids, payloads, strict=True):
                            scan.add(shift + entry_id, entry, may_be_numbered=extent.txn is None)
                        if scan.passes == 1:
                            entries, size = entries + len(payloads), size + sum(map(len, payloads))
            scan.end()
        scan.finish()
        return entries, size

    @asynccontextmanager
    async def opened(self, extent: Extent) -> AsyncIterator[tuple[LedgerReader, Batches]]:
        """Open a closed extent: the ledger that holds it, and an iterator over its entries. Raises `LedgerNotFound`."""
        assert extent.last is not None
        async with self._parts.client.open(extent.storage, password=self._parts.password) as ledger:
            yield ledger, await extent_batches(ledger, extent, extent.first, extent.last)

    # -- rewriting -----------------------------------------------------------------------------------------------
    async def swap(self, rewritten: Sequence[Rewritten]) -> list[int]:
        """Swap rewritten extents in, the oldest first; return the ledgers that they replace.

        Raises `LogInUse`: another process has changed one of them, so this one and the following are not swapped.
        """
        swapped = await self._swap(rewritten)  # If it fails, `Log.reap` finds the new ledgers that are not listed.
        # A repetition of a job may list one as well: its record goes only if the list is still the one without it.
        seen = RecordAt(self._parts.records.record, self._parts.records.version)
        for ledger_id in dict.fromkeys(change.ledger_id for change in rewritten):
            if ledger_id in swapped.storages:
                continue
            with contextlib.suppress(BookKeeperError):
                version = (await self._driver.read_ledger(ledger_id)).version
                await self._driver.transact([seen, LedgerDeletion(ledger_id, version)])
        await sweep(self._parts)
        listed = {extent.seq: extent.storage for extent in swapped.extents}
        if any(listed.get(change.basis.seq, change.ledger_id) != change.ledger_id for change in rewritten):
            raise LogInUse(
                f"log {self._parts.records.name} was compacted by another process, or held, meanwhile: this one has "
                "stopped before that part; repeat it"
            )
        return [change.basis.storage for change in rewritten if change.basis.seq in listed]

    async def written(self, extent: Extent, goes: Sequence[int], moved: Moved | None = None) -> Rewritten:
        """Write and close the ledger of what stays of an extent. `goes`: 1 for each entry that does not.

        `moved`: is awaited after each batch, with the bytes read, the bookies of the new ledger, and the bytes of all
        copies written to them.
        """
        ids: list[int] = []
        size = 0
        async with self._new_ledger(extent) as writer:
            async with self.opened(extent) as (ledger, batches):
                async for batch in batches:
                    rows = zip(batch.entry_ids, batch.payloads(), strict=True)
                    kept = [(entry_id, entry) for entry_id, entry in rows if not goes[entry_id - extent.first]]
                    kept_size = sum(len(entry) for _, entry in kept)
                    if kept:
                        await writer.append_many([entry for _, entry in kept])
                        ids += [entry_id for entry_id, _ in kept]
                        size += kept_size
                    if moved is not None:
                        record = writer.metadata
                        await moved(batch.size, record.last_ensemble, kept_size * record.write_quorum)
            for entry in pack_kept(ids):
                await writer.append(entry)
            await writer.seal()
        return Rewritten(extent, writer.ledger_id, len(ids), size, None, ledger.metadata.ctime_ms)

    async def _merged(self, run: Sequence[Extent], moved: Moved) -> list[Rewritten]:
        """Write, close and verify the ledger of several extents. `moved`: of payload bytes, once each when written."""
        merged: list[Rewritten] = []
        content = Content()
        async with self._new_ledger(run[0]) as writer:
            for storage, unit in groupby(run, key=lambda extent: extent.storage):
                async with self._parts.client.open(storage, password=self._parts.password) as ledger:
                    for extent in unit:
                        shift, stored = content.rows, stored_entries(extent)
                        place = writer.ledger_id, extent.kept, extent.bytes, shift
                        merged.append(Rewritten(extent, *place, ledger.metadata.ctime_ms))
                        if not stored:
                            continue
                        async for batch in ledger.read_batches(stored.start, stored.stop - 1):
                            payloads = batch.payloads()
                            await writer.push_many(payloads)
                            content = _extended(content, payloads)
                            await moved(batch.size, writer.metadata.last_ensemble, sum(map(len, payloads)))
            await writer.seal()
            await self._verify(writer.ledger_id, content, moved)
        return merged

    async def _verify(self, ledger_id: int, content: Content, moved: Moved) -> None:
        """Read a copy back. `content`: of what was read to write it. Raises `DigestMismatch`."""
        stored = Content()
        async with self._parts.client.open(ledger_id, password=self._parts.password) as ledger:
            if content.rows:
                async for batch in ledger.read_batches():
                    stored = stored.joined(content_of(batch))
                    await moved(batch.size, ledger.metadata.last_ensemble, 0)
            if (ledger.last_add_confirmed, ledger.length) != (content.rows - 1, content.size) or stored != content:
                raise DigestMismatch(
                    f"the copy of entries of log {self._parts.records.name} differs from what was read, so the log is "
                    "unchanged: check the memory of this machine and the bookies, and repeat the roll-up",
                    ledger_id=ledger_id,
                )

    @asynccontextmanager
    async def _new_ledger(self, extent: Extent) -> AsyncIterator[LedgerWriter]:
        """Create a ledger for the entries of an extent, or of several. After an error it is deleted."""
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
        try:
            yield writer
        except BaseException:
            await discard(self._parts, writer)
            raise

    async def _swap(self, rewritten: Sequence[Rewritten]) -> Manifest:
        """Replace the ledgers of extents in the list, as long as the new ones exist and are closed."""

        async def conditions(current: Manifest) -> list[LedgerAt]:
            steps = []
            for ledger_id in dict.fromkeys(change.ledger_id for change in rewritten):
                # It was closed here. A server of the store that lags behind has another version, and the swap repeats.
                record = await self._driver.read_ledger(ledger_id)
                steps.append(LedgerAt(ledger_id, record.version))
            return steps

        return await self._parts.records.update(lambda current: compacted(current, rewritten), conditions)


def _flags(scan: KeyScan, extent: Extent, starts: Mapping[int, int]) -> Sequence[int]:
    """Return a flag for each entry of an extent: 1, it goes."""
    assert extent.last is not None
    start = starts[extent.seq]
    return scan.goes(start, start + max(0, extent.last - extent.first + 1))


def _extended(content: Content, payloads: Sequence[bytes]) -> Content:
    """Return the content of a ledger with these entries appended."""
    ends = [*accumulate(map(len, payloads), initial=content.size)][1:]
    return content.extended(b"".join(payloads), struct.pack(f"<{len(ends)}q", *ends))
