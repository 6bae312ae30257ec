"""Writes to a bookie's storage: adds, fences, explicit LACs, forces.

The path of an entry: it is checked against its ledger (key, fence), inserted into the write cache, queued for the
journal, and answered when its group is synced.

Invariants
- R-7: insert in storage first, then queue for the journal, for every record type. This allows a checkpoint to drop
  journals.
- F-7: log LEDGER_KEY before the first record of a ledger in this process, fences and explicit LACs included.
- R-5: answer a fence only after its journal record is fsynced. F-42: this holds for any response to a fencing read, and
  for a fence of a ledger that is being fenced already.

Source: storage 2.6, 5.7, 8.3.
"""

from __future__ import annotations

import asyncio
import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Protocol, TypeVar

from bookies.errors import (
    BookieBusy,
    BookieReadOnly,
    DataUnknown,
    InvalidArgument,
    LedgerFenced,
    StorageError,
    Unauthorized,
)
from bookies.kernels import Records
from bookies.runtime.ports import Buffer
from bookies.storage.cache.write_cache import AddRun
from bookies.storage.engine.opening import StorageParts
from bookies.storage.engine.store_access import StoreAccess
from bookies.storage.index.index_format import EXPLICIT_LAC_SIZE_MIN, STATE_FENCED, IndexHeader
from bookies.storage.index.index_ledger import Ledger, is_vacant
from bookies.storage.journal import Journal, journal_format
from bookies.storage.journal.journal import Done

ENTRY_ID_MAX = (1 << 40) - 1  # the index file of a ledger has 8 bytes for every entry id up to its highest
MASTER_KEY_SIZE_MAX = 512  # bytes; key and explicit LAC share a header of 1024
EXPLICIT_LAC_SIZE_MAX = 256


class Batch(Protocol):
    """Adds of one ledger. `last_add_confirmed`: the greatest LAC in their bodies."""

    @property
    def ledger_id(self) -> int: ...

    @property
    def entry_ids(self) -> Sequence[int]: ...

    @property
    def records(self) -> Records: ...

    @property
    def last_add_confirmed(self) -> int: ...


B = TypeVar("B", bound=Batch)


class StoreWrites(StoreAccess):
    """Writes that are decided at the call, and whose durability is reported later. All calls on the loop's thread."""

    _entry_count = 0  # entries added since the start
    _misses_journal = False  # a journal's disk has no space for its first file

    @property
    @abstractmethod
    def is_writable(self) -> bool:
        """Report whether ordinary adds are accepted."""

    @property
    @abstractmethod
    def takes_priority(self) -> bool:
        """Report whether adds of recovery are accepted."""

    @property
    @abstractmethod
    def read_only_reason(self) -> str:
        """Return why ordinary adds are refused; empty while they are accepted."""

    def add(
        self,
        ledger_id: int,
        master_key: bytes,
        entry_ids: Sequence[int],
        records: Records,
        last_add_confirmed: int,
        *,
        is_recovery: bool,
        is_deferred_sync: bool,
        done: Done,
    ) -> None:
        """Store entries; `done(None)` when they are durable, `done(error)` for an error that is detected later.

        One id per record, in any order. An unknown ledger is created with the key. A deferred sync is answered like any
        other add. Raises: Unauthorized, LedgerFenced (never for recovery), BookieReadOnly, InvalidArgument,
        StorageError, BookieBusy (the cache is full and flushes fail).

        A full cache accepts adds while flushes succeed: received requests are in memory anyhow, and the caller stops
        receiving while `is_congested`.
        """
        parts = self._open()
        if not self.is_writable and not (is_recovery and self.takes_priority):
            raise BookieReadOnly(self.read_only_reason, ledger_id=ledger_id)
        if records.size * 2 < len(records.data):
            records = records.alone()  # otherwise a few bytes would keep a large buffer alive that is not counted
        low, high = _extent(entry_ids)
        if ledger_id < 0 or low < 0 or high > ENTRY_ID_MAX:
            raise InvalidArgument("ids out of range", ledger_id=ledger_id, entry_id=low)
        ledger = parts.index.get(ledger_id)
        if ledger is not None and ledger.header.master_key == master_key and ledger_id not in self._waiting:
            # The most frequent case: equivalent to `_add`, without a lookup, a creation or a wait.
            self._insert(parts, ledger, done, entry_ids, records, high, last_add_confirmed, is_recovery)
            return
        self._with_header(
            ledger_id, done, self._add, master_key, entry_ids, records, high, last_add_confirmed, is_recovery
        )

    def _add(
        self,
        ledger_id: int,
        done: Done,
        master_key: bytes,
        entry_ids: Sequence[int],
        records: Records,
        last_entry_id: int,
        last_add_confirmed: int,
        is_recovery: bool,
    ) -> None:
        parts = self._open()
        ledger = parts.index.get(ledger_id)
        if ledger is not None:
            self._check_key(ledger, master_key)
        self._check_add(parts, ledger, ledger_id, entry_ids, is_recovery)
        ledger = self._authorized(ledger_id, master_key)
        self._insert(parts, ledger, done, entry_ids, records, last_entry_id, last_add_confirmed, is_recovery)

    @staticmethod
    def _check_add(
        parts: StorageParts, ledger: Ledger | None, ledger_id: int, entry_ids: Sequence[int], is_recovery: bool
    ) -> None:
        parts.removals.check_add(ledger_id, entry_ids[0], is_recovery=is_recovery)
        if ledger is None:
            if parts.index.catalog.holes and not is_recovery:
                raise DataUnknown("the ledger may have been fenced here", ledger_id=ledger_id, entry_id=entry_ids[0])
        elif ledger.header.state and not is_recovery:
            if ledger.header.is_uncertain:
                # Not "fenced", because the writer may continue with another bookie.
                raise DataUnknown("the ledger may have been fenced here", ledger_id=ledger_id, entry_id=entry_ids[0])
            if ledger.header.is_fenced:
                raise LedgerFenced("the ledger is fenced", ledger_id=ledger_id, entry_id=entry_ids[0])
        if parts.cache.is_exhausted and parts.checkpointer.is_failing:
            # Only recovery adds get here; others are refused because the bookie is read-only.
            problem = parts.checkpointer.problem
            raise BookieBusy(
                f"the write cache is full and cannot be flushed: {problem}", ledger_id=ledger_id, entry_id=entry_ids[0]
            )

    def _insert(
        self,
        parts: StorageParts,
        ledger: Ledger,
        done: Done,
        entry_ids: Sequence[int],
        records: Records,
        last_entry_id: int,
        last_add_confirmed: int,
        is_recovery: bool,
    ) -> None:
        """Insert into the cache, then queue for the journal.

        R-7: insert in storage first, then queue for the journal, so all records before a mark can be flushed.
        """
        self._check_add(parts, ledger, ledger.ledger_id, entry_ids, is_recovery)
        parts.cache.current.add(ledger.ledger_id, entry_ids, records)
        if last_entry_id > ledger.last_entry_id:
            ledger.last_entry_id = last_entry_id
        self._journal(ledger, _buffer_of(records), records.size, done)
        self._entry_count += len(entry_ids)
        if last_add_confirmed > ledger.last_add_confirmed:
            ledger.last_add_confirmed = last_add_confirmed
            if self._watchers:
                self._watchers.wake(ledger.ledger_id, last_add_confirmed)
        parts.checkpointer.inserted()

    def add_many(
        self,
        master_key: bytes,
        batches: Sequence[B],
        *,
        is_recovery: bool,
        accepted: Callable[[int], None],
        done: Callable[[Sequence[B], int, BaseException | None], None],
    ) -> list[B]:
        """Store the batches, of several ledgers and in one buffer, that need no special handling; return the others.

        For each journal `accepted(bytes)` is called at once, and `done(batches, bytes, None)` when they are durable.
        The caller passes the returned batches to `add` one by one. They include all later batches of their ledgers,
        which keeps the order within a ledger. Never raises the error of a batch.
        """
        plain, others = self._partition(master_key, batches, is_recovery=is_recovery)
        if not plain:
            return others
        parts = self._open()
        held, is_failing = sum([batch.records.size for _, batch in plain]), parts.checkpointer.is_failing
        is_shared = held * 2 >= len(plain[0][1].records.data)  # otherwise they would keep an uncounted buffer alive
        stored: list[list[B]] = [[] for _ in parts.journals]
        add, journal_count, watchers = parts.cache.current.add, len(parts.journals), self._watchers
        try:
            for number, (ledger, batch) in enumerate(plain):
                if is_failing and parts.cache.is_exhausted:
                    others += [other for _, other in plain[number:]]
                    break
                entry_ids, last_add_confirmed = batch.entry_ids, batch.last_add_confirmed
                add(ledger.ledger_id, entry_ids, batch.records if is_shared else batch.records.alone())
                if entry_ids[-1] > ledger.last_entry_id:
                    ledger.last_entry_id = entry_ids[-1]
                stored[ledger.ledger_id % journal_count].append(batch)
                self._entry_count += len(entry_ids)
                if last_add_confirmed > ledger.last_add_confirmed:
                    ledger.last_add_confirmed = last_add_confirmed
                    if watchers:
                        watchers.wake(ledger.ledger_id, last_add_confirmed)
        finally:  # all cached entries must be journaled, even after an exception
            for journal, journal_batches in zip(parts.journals, stored, strict=True):
                if journal_batches:
                    buffers, size = _stretches(journal_batches)
                    journal.append(buffers, size, partial(done, journal_batches, size))
                    accepted(size)
        parts.checkpointer.inserted()
        return others

    def add_mixed(
        self,
        master_key: bytes,
        mixed: AddRun,
        lacs: Sequence[int],
        *,
        is_recovery: bool,
        accepted: Callable[[int], None],
        done: Callable[[AddRun, BaseException | None], None],
    ) -> list[int]:
        """Store entries of a mixed run as `add_many` does; return the indices of the others.

        Ids must not be negative. `lacs`: the last add confirmed in each body. `done`: called once for each journal.
        """
        ledgers, others = self._plain_ledgers(master_key, mixed, is_recovery=is_recovery)
        if not ledgers:
            return others
        parts = self._open()
        if parts.checkpointer.is_failing:
            return list(range(len(mixed)))  # `add` accepts them one by one while there is space
        if others:
            left = set(others)
            chosen = [index for index in range(len(mixed)) if index not in left]
            mixed, lacs = mixed.picked(chosen), [lacs[index] for index in chosen]
        parts.cache.current.add_mixed(mixed)
        try:
            watchers = self._watchers
            for ledger, entry_id, lac in zip(ledgers, mixed.entry_ids, lacs, strict=True):
                if entry_id > ledger.last_entry_id:
                    ledger.last_entry_id = entry_id
                if lac > ledger.last_add_confirmed:
                    ledger.last_add_confirmed = lac
                    if watchers:
                        watchers.wake(ledger.ledger_id, lac)
            self._entry_count += len(mixed)
        finally:  # all cached entries must be journaled, even after an exception
            for journal, run in _by_journal(parts.journals, mixed):
                journal.append((run.records.data,), run.records.size, partial(done, run))
                accepted(run.records.size)
        parts.checkpointer.inserted()
        return others

    def _plain_ledgers(self, master_key: bytes, mixed: AddRun, *, is_recovery: bool) -> tuple[list[Ledger], list[int]]:
        """Return the ledgers of entries that need no special handling, and the indices of the other entries."""
        parts = self._open_for_adds(is_recovery=is_recovery)
        if parts is None:
            return [], list(range(len(mixed)))
        plain: list[Ledger] = []
        others: list[int] = []
        for index, ledger_id in enumerate(mixed.ledger_ids):
            ledger = self._plain_ledger(parts, ledger_id, master_key)
            if ledger is None or mixed.entry_ids[index] > ENTRY_ID_MAX:
                others.append(index)
            else:
                plain.append(ledger)
        return plain, others

    def _partition(
        self, master_key: bytes, batches: Sequence[B], *, is_recovery: bool
    ) -> tuple[list[tuple[Ledger, B]], list[B]]:
        """Return the batches that need no special handling, and the others; see `add_many`."""
        parts = self._open_for_adds(is_recovery=is_recovery)
        if parts is None:
            return [], list(batches)
        plain: list[tuple[Ledger, B]] = []
        others: list[B] = []
        behind: set[int] = set()  # ledgers with a batch among the others
        for batch in batches:
            ledger_id, entry_ids = batch.ledger_id, batch.entry_ids
            ledger = self._plain_ledger(parts, ledger_id, master_key)
            if (
                ledger is None
                or not isinstance(entry_ids, range)
                or entry_ids.step < 0
                or not 0 <= entry_ids[0] <= entry_ids[-1] <= ENTRY_ID_MAX
                or ledger_id in behind
            ):
                others.append(batch)
                behind.add(ledger_id)
            else:
                plain.append((ledger, batch))
        return plain, others

    def _open_for_adds(self, *, is_recovery: bool) -> StorageParts | None:
        """Return the parts; None while such adds are refused (`add` raises the reason)."""
        try:
            parts = self._open()
        except StorageError:
            return None
        return parts if self.is_writable or (is_recovery and self.takes_priority) else None

    def _plain_ledger(self, parts: StorageParts, ledger_id: int, master_key: bytes) -> Ledger | None:
        """Return the ledger if entries with this key need no special handling; None: use `add`."""
        ledger = parts.index.get(ledger_id)
        if (
            ledger is None
            or not ledger.is_key_logged
            or ledger.header.state
            or ledger.header.master_key != master_key
            or ledger_id in self._waiting
            or parts.removals.get(ledger_id) is not None
        ):
            return None
        return ledger

    def fence(self, ledger_id: int, master_key: bytes, done: Done) -> None:
        """Refuse ordinary adds from now on; `done(None)` when that is durable. Creates an unknown ledger.

        Raises: Unauthorized, InvalidArgument, StorageError.
        """
        self._open()
        if ledger_id < 0:
            raise InvalidArgument("ids out of range", ledger_id=ledger_id)
        self._check_journal()
        self._with_header(ledger_id, done, self._fence, master_key)

    def _fence(self, ledger_id: int, done: Done, master_key: bytes) -> None:
        self._open().removals.check_note(ledger_id)
        ledger = self._authorized(ledger_id, master_key)
        if ledger.is_fence_pending:
            self._journal_of(ledger_id).append((), 0, done)
            return
        if ledger.header.is_fenced:
            asyncio.get_running_loop().call_soon(done, None)
            return

        def durable(error: BaseException | None) -> None:
            ledger.is_fence_pending = False
            done(error)

        ledger.is_fence_pending = True
        self._open().index.set_header(ledger, ledger.header.with_state(STATE_FENCED))
        record = journal_format.pack_fence(ledger_id)
        self._journal(ledger, record, len(record), durable)
        self._watchers.wake(ledger_id, None)

    def write_lac(self, ledger_id: int, master_key: bytes, last_add_confirmed: int, body: bytes, done: Done) -> None:
        """Store an explicit LAC, which replaces the previous one. Creates an unknown ledger; accepts fenced ledgers.

        `last_add_confirmed`: the LAC in `body`. Raises: Unauthorized, BookieReadOnly, InvalidArgument, StorageError.
        """
        self._open()
        if not self.is_writable:
            raise BookieReadOnly(self.read_only_reason, ledger_id=ledger_id)
        if ledger_id < 0 or not EXPLICIT_LAC_SIZE_MIN <= len(body) <= EXPLICIT_LAC_SIZE_MAX:
            raise InvalidArgument(f"an explicit LAC of {len(body):,} bytes", ledger_id=ledger_id)
        self._with_header(ledger_id, done, self._write_lac, master_key, last_add_confirmed, body)

    def _write_lac(self, ledger_id: int, done: Done, master_key: bytes, last_add_confirmed: int, body: bytes) -> None:
        self._open().removals.check_note(ledger_id)
        ledger = self._authorized(ledger_id, master_key)
        self._open().index.set_explicit_lac(ledger, body)
        record = journal_format.pack_explicit_lac(ledger_id, body)
        self._journal(ledger, record, len(record), done)
        self._watchers.wake(ledger_id, last_add_confirmed)

    def force(self, ledger_id: int, done: Done) -> None:
        """Call `done(None)` when all earlier accepted writes of the ledger are durable. Raises: StorageError."""
        self._open()
        self._check_journal()
        self._with_header(ledger_id, done, self._force, is_needed=False)

    def _check_journal(self) -> None:
        """Raise StorageError while a journal is missing, so that its records cannot become durable."""
        if self._misses_journal:
            raise StorageError(self.read_only_reason)

    def _force(self, ledger_id: int, done: Done) -> None:
        self._journal_of(ledger_id).append((), 0, done)

    def _check_key(self, ledger: Ledger, master_key: bytes) -> None:
        """Raise Unauthorized for a wrong key. F-23: accept a new key only if the stored one is empty or zeros."""
        stored = ledger.header.master_key
        if stored != master_key and not is_vacant(stored):
            raise Unauthorized("wrong password", ledger_id=ledger.ledger_id)

    def _authorized(self, ledger_id: int, master_key: bytes) -> Ledger:
        """Check or adopt the key and return the ledger, created if it is unknown."""
        index = self._open().index
        ledger = index.get(ledger_id)
        if ledger is None:
            if len(master_key) > MASTER_KEY_SIZE_MAX:
                raise InvalidArgument(f"a master key of {len(master_key):,} bytes", ledger_id=ledger_id)
            return index.create(ledger_id, IndexHeader(master_key))
        self._check_key(ledger, master_key)
        if ledger.header.master_key != master_key and len(master_key) <= MASTER_KEY_SIZE_MAX:
            index.set_header(ledger, dataclasses.replace(ledger.header, master_key=master_key))
            ledger.is_key_logged = False
        return ledger

    def _journal_of(self, ledger_id: int) -> Journal:
        journals = self._open().journals
        return journals[ledger_id % len(journals)]

    def _journal(self, ledger: Ledger, record: Buffer, size: int, done: Done) -> None:
        """Queue a record that is already in the storage, after the ledger's key (F-7)."""
        buffers: tuple[Buffer, ...] = (record,)
        if not ledger.is_key_logged:
            ledger.is_key_logged = True
            key = journal_format.pack_ledger_key(ledger.ledger_id, ledger.header.master_key)
            buffers = (key, record)
            size += len(key)
        self._journal_of(ledger.ledger_id).append(buffers, size, done)


def _by_journal(journals: Sequence[Journal], mixed: AddRun) -> Iterator[tuple[Journal, AddRun]]:
    """Yield each journal with its part of the run; with a single journal the run itself."""
    if len(journals) == 1:
        yield journals[0], mixed
        return
    chosen: list[list[int]] = [[] for _ in journals]
    for index, ledger_id in enumerate(mixed.ledger_ids):
        chosen[ledger_id % len(journals)].append(index)
    for journal, indices in zip(journals, chosen, strict=True):
        if indices:
            yield journal, mixed.picked(indices)


def _extent(entry_ids: Sequence[int]) -> tuple[int, int]:
    """Return (lowest, highest)."""
    if isinstance(entry_ids, range) and entry_ids.step > 0:
        return entry_ids[0], entry_ids[-1]
    return min(entry_ids), max(entry_ids)


def _buffer_of(records: Records) -> Buffer:
    if records.size == len(records.data):
        return records.data
    return memoryview(records.data)[records.starts[0] : records.starts[-1]]


def _stretches(batches: Sequence[Batch]) -> tuple[list[Buffer], int]:
    """Return (pieces of the buffer, bytes) for batches that lie in one buffer, in its order."""
    data = batches[0].records.data
    pieces: list[Buffer] = []
    start = stop = batches[0].records.starts[0]
    size = 0
    for batch in batches:
        starts = batch.records.starts
        if starts[0] != stop:
            pieces.append(memoryview(data)[start:stop])
            size += stop - start
            start = starts[0]
        stop = starts[-1]
    pieces.append(data if stop - start == len(data) else memoryview(data)[start:stop])
    return pieces, size + stop - start
