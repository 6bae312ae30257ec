"""Commit, abort and reap transactions: the shell of `protocol/log/transaction.py`.

Each operation reads the lists, gets a decision, and carries it out with one conditional write to the metadata store.
When the write finds a change, or its answer is lost, the operation begins again; it keeps no state.

Source: spark 4.3, 4.5.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from bookies.client.base.metadata_loop import PROMPT_CONFLICTS, back_off
from bookies.client.base.segments import LOGS, LogStore
from bookies.client.log.base.cursor_store import LogCursors
from bookies.client.log.base.log_operations import LogContext, last_password, sweep
from bookies.client.log.base.time_index import TimeIndex
from bookies.client.write.manifest import ManifestLoop
from bookies.errors import (
    BookKeeperError,
    InvalidArgument,
    LedgerNotFound,
    LogError,
    LogInUse,
    LogNotFound,
    MetadataError,
    RecordExists,
    RecordNotFound,
    TransactionRefused,
    VersionConflict,
)
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.driver import (
    TRANSACTION_STEPS_MAX,
    LedgerAt,
    LedgerDeletion,
    RecordAt,
    RecordWrite,
    Step,
    Versioned,
)
from bookies.protocol.log import Manifest
from bookies.protocol.log.log_model import LedgerEnd, parse_manifest
from bookies.protocol.log.log_segments import stored
from bookies.protocol.log.transaction import (
    ORPHAN_GRACE_MS,
    REPLAY_GRACE_MS,
    Committed,
    Fate,
    OpenTail,
    Swap,
    Transaction,
    decide,
    fate,
    label,
    unfitness,
)
from bookies.runtime.ports import Runtime

if TYPE_CHECKING:
    from bookies.client.log.base.ledger_client import LedgerClient

READS_AT_ONCE = 32  # of ledgers' records
DELETIONS_MAX = 256  # ledgers in one conditional deletion: the work that a conflict repeats
COMMIT_TIMEOUT_S = 120.0
COMMIT_CONFLICTS_MAX = 100
OnOpenTail = Literal["fail", "fence"]
ConditionFailed = (VersionConflict, LedgerNotFound, RecordNotFound, RecordExists)


class TransactionContext(NamedTuple):
    """Everything needed to work on transactions. `password`: of the ledgers."""

    client: LedgerClient
    runtime: Runtime
    driver: MetadataDriver
    password: bytes


class Found(NamedTuple):
    """A log's list as read. `manifest` None, `version` 0: the log does not exist."""

    manifest: Manifest | None
    version: int


class Reaped(NamedTuple):
    """One row of the reaper. `outcome`: "listed", "young", "migrated" (a copy from another cluster, left alone),
    "left out" (only this former source has its rows; left alone), "garbage" (of a dry run), "deleted", or why it was
    not deleted."""

    ledger_id: int
    app: str
    version: str
    partition: str
    age_ms: int
    size: int
    outcome: str


async def read_head(driver: MetadataDriver, log: str) -> Manifest | None:
    """Return a log's record, in which the older extents may be missing; None: the log does not exist."""
    try:
        data, _ = await driver.read_record(LOGS + log)
    except RecordNotFound:
        return None
    return parse_manifest(log, data)


async def read_log(store: LogStore) -> Found:
    """Return a log's whole list. Raises `MetadataError`."""
    try:
        return Found(*await store.read())
    except RecordNotFound:
        return Found(None, 0)


# -- commit ----------------------------------------------------------------------------------------------------------


async def commit(
    parts: TransactionContext,
    txn: Transaction,
    *,
    on_open_tail: OnOpenTail = "fail",
    timeout: float | None = COMMIT_TIMEOUT_S,
    conflicts_max: int = COMMIT_CONFLICTS_MAX,
) -> bool:
    """Append a transaction's ledgers to its logs, all or none; False when that had been done before.

    `on_open_tail`: the action when a leader writes the last ledger of a log: "fail", or "fence" it. `timeout`:
    seconds. Ledgers of another attempt at a transaction that was committed are deleted.

    Raises `TransactionRefused` (never will be committed), `LogInUse`, `LogNotFound`; and `LogError` when it could not
    be done in time: then it may or may not have been committed, and a repetition finds out.
    """
    if on_open_tail not in get_args(OnOpenTail):
        raise InvalidArgument(f"on_open_tail={on_open_tail!r}: expected 'fail' or 'fence'")
    if not txn.ledgers:
        raise InvalidArgument("a transaction of no log")
    try:
        async with asyncio.timeout(timeout):
            return await _Commit(parts, txn, on_open_tail, conflicts_max).run()
    except TimeoutError:
        raise LogError(
            f"transaction {txn.name} was not confirmed within {timeout:g} s: it may or may not be in "
            f"{_logs(txn)}; repeat it with the same identity to find out"
        ) from None


def _logs(txn: Transaction) -> str:
    return f"log {', '.join(txn.ledgers)}" if len(txn.ledgers) == 1 else f"logs {', '.join(txn.ledgers)}"


class _Again(Exception):
    """The records read are inconsistent, or not complete yet."""


class _Commit:
    """One commit. `_ends`: of ledgers at the end of logs, decided once and for ever."""

    def __init__(
        self, parts: TransactionContext, txn: Transaction, on_open_tail: OnOpenTail, conflicts_max: int
    ) -> None:
        self._parts = parts
        self._txn = txn
        self._is_fencing = on_open_tail == "fence"
        self._conflicts_max = conflicts_max
        self._stores = {log: LogStore(parts.driver, log) for log in txn.ledgers}
        self._ends: dict[int, LedgerEnd] = {}
        self._missing_at: dict[str, int] | None = None  # the lists' versions when one of the ledgers was missing

    async def run(self) -> bool:
        conflicts = failures = 0
        while True:
            try:
                return await self._attempt()
            except (_Again, *ConditionFailed) as error:
                conflicts += 1
                failures = 0
                if conflicts > self._conflicts_max:
                    raise LogError(
                        f"transaction {self._txn.name} met {conflicts} conflicts in a row: too many writers commit to "
                        f"{_logs(self._txn)}; it is not committed"
                    ) from error
            except BookKeeperError as error:
                failures += 1
                if not error.retriable:
                    raise
            if (count := max(0, conflicts - PROMPT_CONFLICTS) + failures) > 0:
                await back_off(self._parts.runtime, count)

    async def _attempt(self) -> bool:
        """Try once. The numbers are those of spark 4.3. Raises `_Again`, `ConditionFailed`: begin again."""
        logs = await self._read()  # (2)
        now_ms = self._parts.runtime.clock.wall_ms()
        manifests = {log: state.manifest for log, state in logs.items() if state.manifest is not None}
        decision = decide(manifests, self._txn, self._ends, now_ms)
        if isinstance(decision, Committed):  # (3)
            with contextlib.suppress(BookKeeperError):  # It is committed, even if the garbage stays.
                await _delete_unlisted(self._parts, decision.unlisted)
            return False
        if isinstance(decision, OpenTail):
            await self._end(decision)
            raise _Again
        await self._swap(logs, decision)
        if self._txn.is_replacing:
            await self._sweep()
        return True

    async def _read(self) -> Mapping[str, Found]:
        logs = {}
        for log in self._txn.ledgers:
            logs[log] = await read_log(self._stores[log])
            manifest = logs[log].manifest
            if manifest is None:
                raise LogNotFound(f"there is no log {log}: create it first")
            if self._txn.tokens.get(log, manifest.token) != manifest.token:
                raise TransactionRefused(
                    f"log {log} was deleted and recreated while transaction {self._txn.name} was written for it"
                )
        return logs

    async def _end(self, tail: OpenTail) -> None:
        """Read the ends of open ledgers, or decide them."""
        for log, ledger_ids in tail.ledgers.items():
            for ledger_id in ledger_ids:
                try:
                    metadata = await self._parts.client.metadata(ledger_id)
                    if not metadata.is_closed and not self._is_fencing:
                        raise LogInUse(
                            f"ledger {ledger_id}, the last one of log {log}, is being written by a leader, or was left "
                            "open by one: close the writer, or end it with onOpenTail=fence"
                        )
                    if not metadata.is_closed:
                        ledger = await self._parts.client.recover(ledger_id, password=self._parts.password)
                        await ledger.close()
                        metadata = ledger.metadata
                except LedgerNotFound:
                    raise _Again from None  # Truncated meanwhile, or lost: the list tells.
                self._ends[ledger_id] = LedgerEnd(metadata.last_entry_id, metadata.length)

    async def _swap(self, logs: Mapping[str, Found], swap: Swap) -> None:
        steps: list[Step] = list(await self._checked_ledgers(logs))  # (5)
        layouts = {log: stored(log, manifest) for log, manifest in swap.manifests.items()}
        for log, layout in layouts.items():
            steps += await self._stores[log].prepare(layout)
            steps.append(RecordWrite(LOGS + log, layout.head, logs[log].version))
        version = await self._parts.driver.transact(steps)  # (6)
        for log, layout in layouts.items():
            with contextlib.suppress(MetadataError):  # Otherwise the next sweep does it.
                await self._stores[log].delete(layout.dropped, version)

    async def _checked_ledgers(self, logs: Mapping[str, Found]) -> Sequence[LedgerAt]:
        """Return every ledger of the transaction at the version at which it matched its task's report."""
        records = await read_ledgers(self._parts.driver, self._txn.ledger_ids)
        steps = []
        for log, written in self._txn.ledgers.items():
            manifest = None if self._txn.is_replacing else logs[log].manifest
            password = None if manifest is None else await last_password(self._parts.client, manifest)
            for part in written:
                record = records[part.ledger_id]
                if record is None:
                    raise self._missing(part.ledger_id, {name: at.version for name, at in logs.items()})
                if why := unfitness(record.metadata, self._txn, log, part, password):
                    raise TransactionRefused(
                        f"ledger {part.ledger_id} is not what transaction {self._txn.name} wrote: {why}"
                    )
                if not record.metadata.is_closed:
                    raise _Again  # Its end is still being replicated inside the store.
                steps.append(LedgerAt(part.ledger_id, record.version))
        return steps

    def _missing(self, ledger_id: int, versions: dict[str, int]) -> Exception:
        """Decide about a missing ledger: given up, unless the lists have changed meanwhile and contain it."""
        if self._missing_at != versions:
            self._missing_at = versions
            return _Again()
        return TransactionRefused(
            f"ledger {ledger_id} of transaction {self._txn.name} does not exist any more: an abort or the reaper gave "
            f"the transaction up, or it was committed to {_logs(self._txn)} and truncated since; nothing was changed"
        )

    async def _sweep(self) -> None:
        """Delete replaced ledgers. Best effort: the next truncation or leader of the log does it."""
        for log in self._txn.ledgers:
            with contextlib.suppress(BookKeeperError):
                client, runtime, driver, password = self._parts
                records = ManifestLoop(runtime, driver, log)
                await records.refresh()
                cursors, times = LogCursors(runtime, driver, records), TimeIndex(runtime, driver, records)
                await sweep(LogContext(client, runtime, records, cursors, times, password))


async def read_ledgers(driver: MetadataDriver, ledger_ids: Sequence[int]) -> dict[int, Versioned | None]:
    """Return the records; None: there is none. Raises `MetadataError`."""

    async def read(ledger_id: int) -> Versioned | None:
        try:
            return await driver.read_ledger(ledger_id)
        except LedgerNotFound:
            return None

    records: dict[int, Versioned | None] = {}
    for start in range(0, len(ledger_ids), READS_AT_ONCE):
        batch = ledger_ids[start : start + READS_AT_ONCE]
        records.update(zip(batch, await asyncio.gather(*map(read, batch)), strict=True))
    return records


# -- abort -----------------------------------------------------------------------------------------------------------


async def abort(parts: TransactionContext, txn: Transaction, *, timeout: float | None = COMMIT_TIMEOUT_S) -> bool:
    """Delete those ledgers of a transaction that its logs do not name; report whether that was done.

    After a commit that took effect, even if its caller got an error, nothing is deleted. Never raises for errors of
    the store or a bookie: remaining ledgers are garbage, for the reaper.
    """
    try:
        async with asyncio.timeout(timeout):
            await _delete_unlisted(parts, {log: [part.ledger_id for part in txn.ledgers[log]] for log in txn.ledgers})
    except (BookKeeperError, TimeoutError):
        return False
    return True


async def _delete_unlisted(parts: TransactionContext, ledgers: Mapping[str, Sequence[int]]) -> None:
    """Delete ledgers as long as the lists do not name them."""
    for log, ledger_ids in ledgers.items():
        for start in range(0, len(ledger_ids), DELETIONS_MAX):
            await _delete_batch(parts, log, ledger_ids[start : start + DELETIONS_MAX])


async def _delete_batch(parts: TransactionContext, log: str, ledger_ids: Sequence[int]) -> None:
    count = 0
    store = LogStore(parts.driver, log)
    while True:
        try:
            state = await read_log(store)
            listed = () if state.manifest is None else (*state.manifest.storages, *state.manifest.deleting)
            unlisted = [ledger_id for ledger_id in ledger_ids if ledger_id not in listed]
            records = await read_ledgers(parts.driver, unlisted)
            existing = {ledger_id: record.version for ledger_id, record in records.items() if record is not None}
            if existing:
                await _delete_at(parts.driver, log, state.version, existing)
            return
        except (*ConditionFailed, MetadataError) as error:
            if not isinstance(error, ConditionFailed) and not error.retriable:
                raise
            count += 1
            if count > COMMIT_CONFLICTS_MAX:
                raise
        await back_off(parts.runtime, count)


async def _delete_at(driver: MetadataDriver, log: str, version: int, ledgers: Mapping[int, int]) -> None:
    """Delete ledgers at their versions, as long as the log's list has its own version."""
    assert len(ledgers) < TRANSACTION_STEPS_MAX
    deletions = [LedgerDeletion(ledger_id, at) for ledger_id, at in ledgers.items()]
    await driver.transact([RecordAt(LOGS + log, version), *deletions])


# -- the reaper ------------------------------------------------------------------------------------------------------


async def reap(
    parts: TransactionContext,
    log: str,
    *,
    app: str | None = None,
    is_dry_run: bool = False,
    orphan_grace_ms: int = ORPHAN_GRACE_MS,
    replay_grace_ms: int = REPLAY_GRACE_MS,
) -> AsyncIterator[Reaped]:
    """Find the ledgers that transactions wrote for a log, and delete those that no transaction will commit.

    Reads the records of all ledgers of the cluster. `app`: only of this application. An open one is recovered first,
    so that a writer that is still alive stops. Yields one row per ledger that the log does not list.
    """
    state = await read_log(LogStore(parts.driver, log))  # Each is checked again before it is deleted.
    async for metadata in parts.client.ledgers(label=("sink.app", app) if app is not None else ("sink.log", log)):
        if label(metadata, "log") != log:
            continue
        now_ms = parts.runtime.clock.wall_ms()
        decided = fate(
            state.manifest, metadata, now_ms, orphan_grace_ms=orphan_grace_ms, replay_grace_ms=replay_grace_ms
        )
        if decided is Fate.LISTED:
            continue
        outcome = decided.value
        if decided is Fate.GARBAGE and not is_dry_run:
            outcome = await _reap_one(parts, log, metadata.ledger_id)
        created = label(metadata, "created")
        yield Reaped(
            metadata.ledger_id,
            label(metadata, "app"),
            label(metadata, "version"),
            label(metadata, "partition"),
            now_ms - int(created) if created.isdigit() else now_ms,
            metadata.length if metadata.is_closed else 0,
            outcome,
        )


async def _reap_one(parts: TransactionContext, log: str, ledger_id: int) -> str:
    """Return the outcome: "deleted", or why it was not."""
    try:
        if not await parts.client.is_sealed(ledger_id):
            await (await parts.client.recover(ledger_id, password=parts.password)).close()
        await _delete_batch(parts, log, [ledger_id])
    except LedgerNotFound:
        return "deleted"
    except BookKeeperError as error:
        return f"{type(error).__name__}: {error}"
    state = await read_log(LogStore(parts.driver, log))
    return "listed" if state.manifest is not None and ledger_id in state.manifest.storages else "deleted"


__all__ = ["OnOpenTail", "TransactionContext", "Reaped", "abort", "commit", "read_head", "read_ledgers", "reap"]
