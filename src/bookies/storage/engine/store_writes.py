"""Writes to a bookie's storage: adds, fences, explicit LACs, forces.

The path of an entry: it is checked against its ledger (key, fence), inserted into the write cache, queued for the
journal, and answered when its group is synced.

Invariants
- R-7: insert in storage first, then queue for the journal, for every record type. This allows a checkpoint to drop
  journals.
- F-7: log LEDGER_KEY before the first record of a ledger in this process, fences and explicit LACs included. The keys
  of a batch precede its records in one append to the journal, which is durable as a whole or not acknowledged.
- Each stretch of a batch is decided separately, after all earlier calls for its ledger: it waits if one of these waits.
- F-44: accept an ordinary add to a ledger whose fence may be lost here only after its record was found to be OPEN.
- R-5: answer a fence only after its journal record is fsynced. F-42: this holds for any response to a fencing read, and
  for a fence of a ledger that is being fenced already.

Source: storage 2.6, 5.7, 8.3, 9.7.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from bookies.errors import (
    BookieBusy,
    BookieReadOnly,
    BookKeeperError,
    DataUnknown,
    InvalidArgument,
    LedgerFenced,
    StorageError,
    Unauthorized,
)
from bookies.kernels import Adds
from bookies.protocol.quorums import IdSet
from bookies.runtime.ports import Buffer
from bookies.storage.engine.storage_parts import StorageParts
from bookies.storage.engine.store_access import StoreAccess
from bookies.storage.index.index_format import ENTRY_ID_MAX, EXPLICIT_LAC_SIZE_MIN, STATE_FENCED, IndexHeader
from bookies.storage.index.index_ledger import CHECK_DUE, KEY_DUE, Ledger, is_vacant
from bookies.storage.journal import Journal, journal_format
from bookies.storage.journal.journal import Done

MASTER_KEY_SIZE_MAX = 512  # bytes; key and explicit LAC share a header of 1024
EXPLICIT_LAC_SIZE_MAX = 256


AddsDone = Callable[[Adds, BaseException | None], None]  # stretches that are durable, or could not become so
RefusedAdds = tuple[Adds, BookKeeperError]


class _Source(Struct, frozen=True):
    """Where adds come from. `accepted`, `done`: see `StoreWrites.add`."""

    master_key: bytes
    is_recovery: bool
    accepted: Callable[[int], None]
    done: AddsDone


class LedgerUnchecked(BookKeeperError):
    """The ledger may have ended before this bookie was emptied. Read its record, `note_open`, and repeat the add."""


class StoreWrites(StoreAccess):
    """Writes that are decided at the call, and whose durability is reported later. All calls on the loop's thread.

    `former_ledgers`: ids of ledgers whose fences these directories may lack, see `storage.identity`. `on_fences_lost`:
    called with runs of ids that are added to them, [start, stop): earlier reads of their records do not count.
    """

    former_ledgers = IdSet(0)
    on_fences_lost: Callable[[Sequence[tuple[int, int]]], None] | None = None
    _entry_count = 0  # entries added since the start
    _entry_size = 0  # bytes of them
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
        adds: Adds,
        master_key: bytes,
        *,
        is_recovery: bool,
        is_deferred_sync: bool,
        accepted: Callable[[int], None],
        done: AddsDone,
    ) -> list[RefusedAdds]:
        """Store entries of one or more ledgers; return the stretches that are refused, with the reasons.

        `accepted(bytes)` is called at once for stretches that are not refused, later `done(part, None)` when they are
        durable or `done(part, error)` for an error. Every stretch is returned or reported, once. Sealing a stretch that
        has waited adds bytes: then `accepted` is called again, so that its sum is what is reported. An unknown ledger
        is created with the key. A deferred sync is answered like any other add. Reasons: Unauthorized, LedgerFenced
        (never for recovery), BookieReadOnly, InvalidArgument, DataUnknown, StorageError, BookieBusy (the cache is full
        and flushes fail), LedgerUnchecked (never for recovery).

        Accepted stretches are stored together, also the first ones of new ledgers. Stretches whose ledgers have left
        memory wait until these are loaded, all at once, and are stored together then. The order within a ledger stays.

        A full cache accepts adds while flushes succeed: received requests are in memory anyhow, and the caller stops
        receiving while `is_congested`.
        """
        try:
            parts = self._open()
        except StorageError as error:
            return [(adds, error)]
        if not self.is_writable and not (is_recovery and self.takes_priority):
            return [(adds, BookieReadOnly(self.read_only_reason, ledger_id=adds.first_ledger_id))]
        return self._add(parts, adds, _Source(master_key, is_recovery, accepted, done))

    def _add(self, parts: StorageParts, adds: Adds, source: _Source) -> list[RefusedAdds]:
        """Do as `add` while the bookie takes them."""
        has_problem = bool(parts.checkpointer.flusher.problem)
        if has_problem and adds.stretch_count > 1:  # each one needs space in the cache
            return [refusal for part in adds.parts() for refusal in self._add(parts, part, source)]
        ledgers: list[Ledger] = []
        refused: dict[int, BookKeeperError] = {}  # by number of the stretch
        held: list[int] = []  # numbers of stretches that wait for their ledger
        due = 0 if source.is_recovery else CHECK_DUE
        # Lookups without a call: with one entry for each ledger this loop is a third of the work of a bookie's loop.
        ledger_of, removals, waiting = parts.index.ledgers.get, parts.removals.states, self._waiting
        for number, (ledger_id, greatest_id) in enumerate(zip(adds.ledger_ids, adds.greatest_ids, strict=True)):
            ledger = ledger_of(ledger_id)
            if (
                ledger is None
                or ledger.due & due
                or ledger.header.state
                or ledger.header.master_key != source.master_key
                or greatest_id > ENTRY_ID_MAX
                or ledger_id in waiting
                or ledger_id in removals
                or has_problem
            ):
                try:
                    ledger = self._admitted(parts, adds, number, source)
                except BookKeeperError as error:
                    refused[number] = error
                    continue
                if ledger is None:
                    held.append(number)
                    continue
            ledgers.append(ledger)
        if not refused and not held:
            self._store(parts, ledgers, adds, source)
            return []
        if ledgers:
            others = refused.keys() | held
            plain = adds.picked([number for number in range(adds.stretch_count) if number not in others])
            self._store(parts, ledgers, plain, source)
        if held:
            self._hold(adds.picked(held), source)
        return [(adds.picked((number,)), error) for number, error in refused.items()]

    def _admitted(self, parts: StorageParts, adds: Adds, number: int, source: _Source) -> Ledger | None:
        """Return the ledger of a stretch, created if it is unknown; None if it has to be loaded. Raises as `add`.

        The ledger may be unknown, not in memory, fenced or quarantined, or have another key.
        """
        ledger_id, entry_ids = adds.stretch_ids(number)
        if ledger_id < 0 or min(entry_ids) < 0 or max(entry_ids) > ENTRY_ID_MAX:
            raise InvalidArgument("ids out of range", ledger_id=ledger_id, entry_id=min(entry_ids))
        ledger, is_recovery = parts.index.get(ledger_id), source.is_recovery
        if ledger_id in self._waiting or (ledger is None and parts.index.is_known(ledger_id)):
            return None
        if ledger is not None:
            self._check_key(ledger, source.master_key)
        self._check_add(parts, ledger, ledger_id, entry_ids[0], is_recovery=is_recovery)
        if not is_recovery and (ledger is None or ledger.due & CHECK_DUE):
            self._check_former(ledger_id, entry_ids[0])
        ledger = self._authorized(ledger_id, source.master_key)
        if not is_recovery:
            ledger.due &= ~CHECK_DUE
            self._found_open.discard(ledger_id)
        return ledger

    def _hold(self, adds: Adds, source: _Source) -> None:
        """Let stretches wait for their ledgers: behind the calls that do, or for one load of all others."""
        behind: list[int] = []
        first: list[int] = []
        for number, ledger_id in enumerate(adds.ledger_ids):
            (behind if ledger_id in self._waiting else first).append(number)
        for number in behind:
            part = adds.picked((number,))
            done = partial(source.done, part)
            self._waiting[part.first_ledger_id].append((self._add_waiting, done, (part, source)))
        if first:
            part = adds.picked(first)
            self._start_load(dict.fromkeys(part.ledger_ids), partial(self._add_loaded, part, source))
        source.accepted(adds.records.size)

    def _add_waiting(self, ledger_id: int, done: Done, part: Adds, source: _Source) -> None:
        self._resume(part, source)

    def _add_loaded(self, adds: Adds, source: _Source, failures: Mapping[int, BookKeeperError]) -> None:
        """Store stretches whose ledgers were loaded, and refuse those whose ledgers were not."""
        numbers: list[int] = []
        for number, ledger_id in enumerate(adds.ledger_ids):
            if (failure := failures.get(ledger_id)) is None:
                numbers.append(number)
            else:
                source.done(adds.picked((number,)), failure)
        if numbers:
            self._resume(adds.picked(numbers), source)

    def _resume(self, adds: Adds, source: _Source) -> None:
        """Store stretches that have waited, and report those that are refused."""
        try:
            refused = self._add(self._open(), adds, source)
        except StorageError as error:
            refused = [(adds, error)]
        # They were counted as sent. Those that are stored have been counted again, as sealed: so they are reported.
        source.accepted(sum(part.records.size for part, _ in refused) - adds.records.size)
        for refusal in refused:
            source.done(*refusal)

    def _check_former(self, ledger_id: int, entry_id: int) -> None:
        """F-44: raise LedgerUnchecked for a ledger that may be older than the directories, unless it was found open."""
        if ledger_id in self.former_ledgers and ledger_id not in self._found_open:
            raise LedgerUnchecked("the ledger may have ended", ledger_id=ledger_id, entry_id=entry_id)

    def note_open(self, ledger_id: int) -> None:
        """Note that the ledger's record was OPEN after this bookie's directories were made. Recovery announces itself
        in the record first, so later fences reach these directories."""
        self._found_open.add(ledger_id)

    @staticmethod
    def _check_add(
        parts: StorageParts, ledger: Ledger | None, ledger_id: int, entry_id: int, *, is_recovery: bool
    ) -> None:
        parts.removals.check_add(ledger_id, entry_id, is_recovery=is_recovery)
        if ledger is None:
            if parts.index.catalog.holes and not is_recovery:
                raise DataUnknown("the ledger may have been fenced here", ledger_id=ledger_id, entry_id=entry_id)
        elif ledger.header.state and not is_recovery:
            if ledger.header.is_uncertain:
                # Not "fenced", because the writer may continue with another bookie.
                raise DataUnknown("the ledger may have been fenced here", ledger_id=ledger_id, entry_id=entry_id)
            if ledger.header.is_fenced:
                raise LedgerFenced("the ledger is fenced", ledger_id=ledger_id, entry_id=entry_id)
        if parts.cache.is_exhausted and (problem := parts.checkpointer.flusher.problem):
            # Only recovery adds get here; others are refused because the bookie is read-only.
            raise BookieBusy(
                f"the write cache is full and cannot be flushed: {problem}", ledger_id=ledger_id, entry_id=entry_id
            )

    def _store(
        self,
        parts: StorageParts,
        ledgers: Sequence[Ledger],
        adds: Adds,
        source: _Source,
    ) -> None:
        """Seal if the bookie does, insert into the cache, then queue for the journal. `ledgers`: one for each stretch.

        R-7: insert in storage first, then queue for the journal, so all records before a mark can be flushed.
        """
        if parts.keys is not None and parts.keys.sealer.seals:
            adds = parts.keys.sealer.seal_adds(adds)
        parts.cache.current.add(adds)
        size = adds.records.size
        try:
            watchers, is_watched = self._watchers, bool(self._watchers)
            for ledger, greatest_id, lac in zip(ledgers, adds.greatest_ids, adds.lacs, strict=True):
                if greatest_id > ledger.last_entry_id:
                    ledger.last_entry_id = greatest_id
                if lac > ledger.last_add_confirmed:
                    ledger.last_add_confirmed = lac
                    if is_watched:
                        watchers.wake(ledger.ledger_id, lac)
            self._entry_count += len(adds)
            self._entry_size += size
        finally:  # all cached entries must be journaled, even after an exception
            if len(ledgers) == 1:
                self._journal(ledgers[0], adds.records.tobytes(), size, partial(source.done, adds))
                source.accepted(size)
            else:
                for journal, part, its_ledgers in _by_journal(parts.journals, adds, ledgers):
                    keys = _due_keys(its_ledgers)
                    buffers = (keys, part.records.data) if keys else (part.records.data,)
                    journal.append(buffers, len(keys) + part.records.size, partial(source.done, part))
                    source.accepted(part.records.size)
        parts.checkpointer.flusher.inserted()

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
        # A fence that damage has set may be in memory only: the first request for it needs a record.
        if ledger.header.is_fenced and ledger.is_fence_durable:
            asyncio.get_running_loop().call_soon(done, None)
            return

        def durable(error: BaseException | None) -> None:
            ledger.is_fence_pending = False
            ledger.is_fence_durable = error is None
            done(error)

        ledger.is_fence_pending = True
        self._open().index.set_header(ledger, ledger.header.with_state(STATE_FENCED))
        record = journal_format.pack_fence(ledger_id)
        self._journal(ledger, record, len(record), durable)
        self._watchers.wake(ledger_id, None)

    def write_lac(self, ledger_id: int, master_key: bytes, last_add_confirmed: int, body: bytes, done: Done) -> None:
        """Store an explicit LAC, which replaces the previous one. Creates an unknown ledger; accepts fenced ledgers.

        Waiting readers are woken at once. The record shares the journal's next group, or is written alone after
        `journal.PATIENCE_S`, so it costs no sync of its own between adds.

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
        self._journal(ledger, record, len(record), done, is_patient=True)
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
            index.set_header(ledger, replace(ledger.header, master_key=master_key))
            ledger.due |= KEY_DUE
        return ledger

    def _journal_of(self, ledger_id: int) -> Journal:
        journals = self._open().journals
        return journals[ledger_id % len(journals)]

    def _journal(self, ledger: Ledger, record: Buffer, size: int, done: Done, *, is_patient: bool = False) -> None:
        """Queue a record that is already in the storage, after the ledger's key (F-7)."""
        keys = _due_keys((ledger,)) if ledger.due & KEY_DUE else b""
        journal = self._journal_of(ledger.ledger_id)
        append = journal.append_patiently if is_patient else journal.append
        append((keys, record) if keys else (record,), len(keys) + size, done)


def _due_keys(ledgers: Sequence[Ledger]) -> bytes:
    """Return the LEDGER_KEY records that must precede the next records of these ledgers (F-7)."""
    keys: list[bytes] = []
    for ledger in ledgers:
        if ledger.due & KEY_DUE:
            ledger.due &= ~KEY_DUE
            keys.append(journal_format.pack_ledger_key(ledger.ledger_id, ledger.header.master_key))
    return b"".join(keys)


def _by_journal(
    journals: Sequence[Journal], adds: Adds, ledgers: Sequence[Ledger]
) -> Iterator[tuple[Journal, Adds, Sequence[Ledger]]]:
    """Yield each journal with its stretches and their ledgers; with a single journal the adds themselves."""
    if len(journals) == 1:
        yield journals[0], adds, ledgers
        return
    chosen: list[list[int]] = [[] for _ in journals]
    for number, ledger_id in enumerate(adds.ledger_ids):
        chosen[ledger_id % len(journals)].append(number)
    for journal, numbers in zip(journals, chosen, strict=True):
        if numbers:
            yield journal, adds.picked(numbers), [ledgers[number] for number in numbers]
