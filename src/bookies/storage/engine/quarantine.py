"""Removal of ledgers from this bookie: quarantine, deletion, and the record of deleted ledgers.

The states and events are the table in `quarantine_states`.

A quarantined ledger is readable, but accepts no entry and no fence: its metadata is deleted, so a client must not rely
on an acknowledgement. It is never reported as unknown, because it may come back. R-23: remember deleted ledgers and
refuse writes to them. Otherwise a late writer would create a new ledger without the old one's fence.

Invariants
- A state is durable before it has an effect, and DELETED before the index file is deleted. Replay skips the records of
  a deleted ledger that this bookie wrote.
- A note of an earlier process proves no deletion: Apache's bookie may have served the directories since, and stored the
  ledger again. What a start finds of such a ledger is in quarantine and in limbo until the metadata store was asked.
- A deleted ledger leaves index and memory while no index write is in progress, after a checkpoint that removed it from
  the cache, so no operation in flight can resurrect it. R-21: deletion marks the in-memory object; every writer checks
  the mark under the same lock.
- An id is forgotten only after another checkpoint, when no journal that would be replayed contains it, and after
  `on_forget`: the ledger's fence is lost, so its adds need the check of former ledgers from then on (F-44).

Owned by the loop's thread. Source: storage 4.8, 7.2.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

from bookies.errors import (
    CorruptRecord,
    DataUnknown,
    DiskFull,
    InvalidArgument,
    LedgerFenced,
    StorageError,
)
from bookies.runtime.ports import Disk, Worker
from bookies.storage.cache import WriteCache
from bookies.storage.checkpoint import Checkpointer
from bookies.storage.checkpoint.index_writes import StorageObserver
from bookies.storage.disks.durable_files import replace_copies
from bookies.storage.engine import quarantine_format as layout
from bookies.storage.engine.quarantine_format import QuarantineRecord, QuarantineState
from bookies.storage.engine.quarantine_states import TRANSITIONS, QuarantineEvent, after
from bookies.storage.identity import cookie
from bookies.storage.index import LedgerIndex


class QuarantineFiles:
    """The copies of `removedLedgers` in the ledger directories. Blocks; confined to the checkpoint's worker."""

    def __init__(self, disk: Disk, directories: Sequence[str]) -> None:
        self.damaged: list[CorruptRecord] = []
        self._disk = disk
        self._identity = b""  # of this bookie, from its cookie
        self._paths = [posixpath.join(directory, layout.FILE_NAME) for directory in directories]
        self._sequence = 0

    def read(self) -> dict[int, QuarantineRecord]:
        """Return the records of the newest valid copy. Without one no ledger is quarantined or deleted."""
        newest: dict[int, QuarantineRecord] = {}
        self._identity = self._read_identity()
        for path in self._paths:
            if not self._disk.exists(path):
                continue
            try:
                sequence, removals = layout.parse(self._disk.read_bytes(path), path=path, identity=self._identity)
            except CorruptRecord as error:
                self.damaged.append(error)
                continue
            if sequence > self._sequence:
                self._sequence, newest = sequence, removals
        return newest

    def _read_identity(self) -> bytes:
        """Return the identity in the directories' cookie; empty without a cookie."""
        for path in self._paths:
            stamp = posixpath.join(posixpath.dirname(path), cookie.FILE_NAME)
            if self._disk.exists(stamp):
                try:
                    owner = cookie.parse(self._disk.read_bytes(stamp), path=stamp)
                except CorruptRecord:
                    continue  # the start check compares all cookies and handles this one
                return layout.identity_of(owner.bookie, owner.instance_id)
        return b""

    def write(self, removals: Mapping[int, QuarantineRecord]) -> None:
        """Replace every copy. Raises DiskFull if no directory accepts one; SyncFailed."""
        self._sequence += 1
        data = layout.pack(self._sequence, removals, self._identity)
        try:
            replace_copies(self._disk, self._paths, data)
        except (OSError, DiskFull) as error:
            raise DiskFull(f"no ledger directory accepts {layout.FILE_NAME}: {error}") from error


class Quarantine:
    """States by ledger, and the transitions between them.

    `on_refused(ledger_id)`: called when a write to a quarantined ledger was refused. `on_deleted(ledger_id)`: called
    when a ledger was deleted. `on_forget(ledger_ids)`: called before deleted ledgers are forgotten.
    """

    def __init__(
        self, disk: Disk, directories: Sequence[str], index: LedgerIndex, checkpointer: Checkpointer, cache: WriteCache
    ) -> None:
        self.on_refused: Callable[[int], None] | None = None
        self.on_deleted: Callable[[int], None] | None = None
        self.on_forget: Callable[[Sequence[int]], Awaitable[None]] | None = None
        self.observer = StorageObserver()
        self.files = QuarantineFiles(disk, directories)
        self.found: dict[int, None] = {}  # deleted or lost ledgers of which there is data or a record again
        self._index = index
        self._checkpointer = checkpointer
        self._cache = cache
        self._states: dict[int, QuarantineRecord] = {}
        self._inherited: set[int] = set()  # ledgers that an earlier process has deleted
        self._lock = asyncio.Lock()

    async def load(self, ledger_ids: Collection[int], worker: Worker) -> None:
        """Read the states at the start. `ledger_ids`: ledgers that have an index file."""
        self._states = await worker.run(self.files.read)
        self._inherited = {*self.in_state(QuarantineState.DELETED)}
        for ledger_id in sorted(self._inherited.intersection(ledger_ids)):
            self._find(ledger_id, self._states[ledger_id].since_ms)

    def skips(self, ledger_id: int, *, is_own: bool) -> bool:
        """Report whether replay skips a record, because its ledger is deleted. `is_own`: this bookie wrote the record.

        It wrote none after the deletion. Another program may have.
        """
        if not self.is_deleted(ledger_id):
            return False
        if not is_own:
            self._find(ledger_id, self._states[ledger_id].since_ms)
        return is_own

    def _find(self, ledger_id: int, since_ms: int) -> None:
        """Put a deleted or lost ledger into quarantine. Every start does so with a deleted one until it is decided."""
        state = after(self._state_of(ledger_id), QuarantineEvent.FOUND)
        assert state is not None
        self._states[ledger_id] = QuarantineRecord(state, since_ms)
        self.found[ledger_id] = None
        self._inherited.discard(ledger_id)

    def doubted(self) -> list[int]:
        """Return the found ledgers after the replay. Of those that the index lacks nothing was found: they are deleted.

        Their ids were in records of an unknown kind, or in what a crash has cut off.
        """
        for ledger_id in [ledger_id for ledger_id in self.found if not self._index.is_known(ledger_id)]:
            self._states[ledger_id] = self._durable(ledger_id, self._states[ledger_id])
            self._inherited.add(ledger_id)
            del self.found[ledger_id]
        return list(self.found)

    # -- queries -------------------------------------------------------------------------------------------------
    @property
    def states(self) -> Mapping[int, QuarantineRecord]:
        """Return the states of ledgers that have one, by id."""
        return self._states

    def get(self, ledger_id: int) -> QuarantineRecord | None:
        return self._states.get(ledger_id)

    def is_deleted(self, ledger_id: int) -> bool:
        removal = self._states.get(ledger_id)
        return removal is not None and removal.state is QuarantineState.DELETED

    def is_proven(self, ledger_id: int) -> bool:
        """Report whether this process has deleted the ledger, so what the entry logs have of it is garbage."""
        return self.is_deleted(ledger_id) and ledger_id not in self._inherited

    def in_state(self, *states: QuarantineState) -> dict[int, QuarantineRecord]:
        """Return the ledgers in one of these states, ascending by id."""
        return {
            ledger_id: self._states[ledger_id]
            for ledger_id in sorted(self._states)
            if self._states[ledger_id].state in states
        }

    def check_add(self, ledger_id: int, entry_id: int, *, is_recovery: bool) -> None:
        """Refuse an add to a quarantined or deleted ledger.

        Raises LedgerFenced; StorageError for a recovery add, because the ledger may come back, and DataUnknown for
        another one to a found ledger, because its writer may continue with another bookie.
        """
        removal = self._states.get(ledger_id)
        if removal is None or removal.state is QuarantineState.PINNED:
            return
        if (is_recovery or removal.is_quarantined) and self.on_refused is not None:
            self.on_refused(ledger_id)
        if is_recovery:
            # Refused for now: the recovery or the copying, which has read the record, has to retry later.
            raise StorageError(f"the ledger is {_name_of(removal)} here", ledger_id=ledger_id, entry_id=entry_id)
        if ledger_id in self.found:
            raise DataUnknown("the ledger may have been fenced here", ledger_id=ledger_id, entry_id=entry_id)
        raise LedgerFenced(f"the ledger is {_name_of(removal)}", ledger_id=ledger_id, entry_id=entry_id)

    def check_note(self, ledger_id: int) -> None:
        """Refuse a fence or explicit LAC of a quarantined or deleted ledger: raises DataUnknown.

        Who fences a ledger has read its record, so it may be back. "No such ledger" would be false then, because the
        bookie has acknowledged entries, and a recovery would draw conclusions from it.
        """
        removal = self._states.get(ledger_id)
        if removal is None or removal.state is QuarantineState.PINNED:
            return
        if self.on_refused is not None:
            self.on_refused(ledger_id)
        raise DataUnknown(f"the ledger is {_name_of(removal)} here", ledger_id=ledger_id)

    # -- transitions ---------------------------------------------------------------------------------------------
    async def quarantine(self, ledger_ids: Iterable[int], state: QuarantineState, now_ms: int) -> None:
        """Refuse entries and fences of these ledgers from now on. Raises: DiskFull, SyncFailed."""
        async with self._lock:
            event = QuarantineEvent.GONE if state is QuarantineState.QUARANTINED else QuarantineEvent.LEFT
            known = [ledger_id for ledger_id in ledger_ids if self._index.is_known(ledger_id)]
            await self._take(self._ready_for(event, known), event, now_ms)

    async def lift(self, ledger_ids: Iterable[int]) -> None:
        """Return quarantined and pinned ledgers to normal: their metadata exists."""
        async with self._lock:
            chosen = self._ready_for(QuarantineEvent.RETURNED, ledger_ids)
            await self._settle(chosen)
            await self._take(chosen, QuarantineEvent.RETURNED)

    async def pin(self, ledger_id: int, now_ms: int) -> None:
        """Bring a ledger back from quarantine and keep it regardless of the metadata. Raises InvalidArgument."""
        async with self._lock:
            if self.is_deleted(ledger_id):
                raise InvalidArgument("this bookie has deleted it, and cannot bring it back", ledger_id=ledger_id)
            if not self._index.is_known(ledger_id):
                raise InvalidArgument("this bookie has no data of it", ledger_id=ledger_id)
            if ledger_id not in self._states:
                raise InvalidArgument("it is not in quarantine; nothing was changed", ledger_id=ledger_id)
            await self._settle([ledger_id])
            await self._take([ledger_id], QuarantineEvent.PIN, now_ms)

    async def _settle(self, ledger_ids: Sequence[int]) -> None:
        """Make durable that found ledgers are in limbo, before their notes end."""
        if any(ledger_id in self.found for ledger_id in ledger_ids):
            await self._checkpointer.checkpoint()
            for ledger_id in ledger_ids:
                self.found.pop(ledger_id, None)

    async def find(self, ledger_id: int, now_ms: int) -> None:
        """Put a deleted or lost ledger into quarantine. The caller has its index rebuilt; `lift` makes that durable.

        On disk it counts as deleted until then: so it refuses what would create it anew, also after a crash. Raises:
        StorageError, OSError.
        """
        async with self._lock:
            await self._finish()
            if self._ready_for(QuarantineEvent.FOUND, [ledger_id]) and not self._index.is_known(ledger_id):
                self._find(ledger_id, now_ms)

    async def delete(self, ledger_ids: Iterable[int], now_ms: int) -> list[int]:
        """Delete the ledgers that are still in quarantine; return these. After a failure a later call completes it."""
        async with self._lock:
            chosen = self._ready_for(QuarantineEvent.DELETE, ledger_ids)
            surplus = [ledger_id for ledger_id in chosen if self._states[ledger_id].state is QuarantineState.SURPLUS]
            await self._take(chosen, QuarantineEvent.DELETE, now_ms)
            for ledger_id in chosen:
                self.found.pop(ledger_id, None)
            await self._finish()
            if surplus:
                # Surplus ledgers exist, and may be copied to this bookie again.
                await self._forget(surplus)
        return chosen

    async def forget(self, ledger_ids: Iterable[int]) -> None:
        """Forget deleted ledgers."""
        async with self._lock:
            await self._finish()
            await self._forget(self._ready_for(QuarantineEvent.FORGET, ledger_ids))

    async def _forget(self, ledger_ids: Sequence[int]) -> None:
        if ledger_ids:
            await self._checkpointer.checkpoint()
            if self.on_forget is not None:
                await self.on_forget(ledger_ids)
            await self._take(ledger_ids, QuarantineEvent.FORGET)
            self._inherited.difference_update(ledger_ids)

    async def finish(self) -> None:
        """Complete deletions that failed: writes may not find the index files. Raises: StorageError, OSError."""
        async with self._lock:
            await self._finish()

    async def _finish(self) -> None:
        """Remove the remaining data of deleted ledgers."""
        deleted = [candidate for candidate in self.in_state(QuarantineState.DELETED) if self._index.is_known(candidate)]
        if not deleted:
            return
        if any(self._cache.holds(candidate) for candidate in deleted):
            await self._checkpointer.checkpoint()
        self.observer.deletion_begins(deleted)
        try:
            await self._checkpointer.index_writer.drop_ledgers(deleted)
        finally:
            for ledger_id in deleted:
                if self.on_deleted is not None and not self._index.is_known(ledger_id):
                    self.on_deleted(ledger_id)

    def _ready_for(self, event: QuarantineEvent, ledger_ids: Iterable[int]) -> list[int]:
        """Return the ledgers in a state in which the event can happen."""
        return [ledger_id for ledger_id in ledger_ids if (self._state_of(ledger_id), event) in TRANSITIONS]

    def _state_of(self, ledger_id: int) -> QuarantineState | None:
        record = self._states.get(ledger_id)
        return None if record is None else record.state

    async def _take(self, ledger_ids: Iterable[int], event: QuarantineEvent, now_ms: int = 0) -> None:
        """Make these ledgers take the transition. Raises: DiskFull, SyncFailed; KeyError if the table lacks it."""
        states = {ledger_id: after(self._state_of(ledger_id), event) for ledger_id in ledger_ids}
        await self._change(
            {
                ledger_id: None if state is None else QuarantineRecord(state, now_ms)
                for ledger_id, state in states.items()
            }
        )

    async def _change(self, changes: Mapping[int, QuarantineRecord | None]) -> None:
        """Apply new states durably, or none of them if that fails. A ledger is ordinary only afterwards."""
        if not changes:
            return
        before = {ledger_id: self._states.get(ledger_id) for ledger_id in changes}
        self._apply({ledger_id: removal for ledger_id, removal in changes.items() if removal is not None})
        noted = {
            ledger_id: self._durable(ledger_id, removal)
            for ledger_id, removal in self._states.items()
            if changes.get(ledger_id, removal)
        }
        try:
            await self._checkpointer.worker.run(self.files.write, noted)
        except BaseException:
            self._apply(before)
            raise
        self._apply(changes)

    def _durable(self, ledger_id: int, removal: QuarantineRecord) -> QuarantineRecord:
        """Return the state to note. A found ledger stays deleted there: it may not be in limbo durably."""
        return QuarantineRecord(QuarantineState.DELETED, removal.since_ms) if ledger_id in self.found else removal

    def _apply(self, changes: Mapping[int, QuarantineRecord | None]) -> None:
        for ledger_id, removal in changes.items():
            if removal is None:
                self._states.pop(ledger_id, None)
            else:
                self._states[ledger_id] = removal


def _name_of(removal: QuarantineRecord) -> str:
    return "in quarantine" if removal.is_quarantined else "deleted"
