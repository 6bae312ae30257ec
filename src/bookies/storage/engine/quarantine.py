"""Removal of ledgers from this bookie: quarantine, deletion, and the record of deleted ledgers.

The states and events are the table in `quarantine_states`.

A quarantined ledger is readable, but accepts no entry and no fence: its metadata is deleted, so a client must not rely
on an acknowledgement. It is never reported as unknown, because it may come back. R-23: remember deleted ledgers and
refuse writes to them. Otherwise a late writer would create a new ledger without the old one's fence.

Invariants
- A state is durable before it has an effect, and DELETED before the index file is deleted. A start removes what a crash
  left of a deleted ledger, and replay skips its records.
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
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from bookies.errors import (
    CorruptRecord,
    DataUnknown,
    DiskFull,
    InvalidArgument,
    LedgerFenced,
    LedgerUnknownToBookie,
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
        self.leftovers: list[int] = []  # deleted ledgers that still had an index file at the start
        self._index = index
        self._checkpointer = checkpointer
        self._cache = cache
        self._states: dict[int, QuarantineRecord] = {}
        self._lock = asyncio.Lock()

    async def load(self, paths: dict[int, str], worker: Worker) -> dict[int, str]:
        """Read the states at the start and delete the index files of deleted ledgers; return the other files."""
        self._states = await worker.run(self.files.read)
        leftovers = {ledger_id: path for ledger_id, path in paths.items() if self.is_deleted(ledger_id)}
        self.leftovers = list(leftovers)
        if leftovers:
            await worker.run(self._index.remove_files, list(leftovers.values()))
        return {ledger_id: path for ledger_id, path in paths.items() if ledger_id not in leftovers}

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

    def in_state(self, *states: QuarantineState) -> dict[int, QuarantineRecord]:
        """Return the ledgers in one of these states, ascending by id."""
        return {
            ledger_id: self._states[ledger_id]
            for ledger_id in sorted(self._states)
            if self._states[ledger_id].state in states
        }

    def check_add(self, ledger_id: int, entry_id: int, *, is_recovery: bool) -> None:
        """Refuse an add to a quarantined or deleted ledger.

        Raises LedgerFenced; StorageError for a recovery add in quarantine, because the ledger may come back.
        """
        removal = self._states.get(ledger_id)
        if removal is None or removal.state is QuarantineState.PINNED:
            return
        self._notify_refused(ledger_id, removal)
        if is_recovery and removal.is_quarantined:
            # Refused for now: the recovery or the copying has to retry later.
            raise StorageError("the ledger is in quarantine", ledger_id=ledger_id, entry_id=entry_id)
        reason = "in quarantine" if removal.is_quarantined else "deleted"
        raise LedgerFenced(f"the ledger is {reason}", ledger_id=ledger_id, entry_id=entry_id)

    def check_note(self, ledger_id: int) -> None:
        """Refuse a fence or explicit LAC: raises LedgerUnknownToBookie for a deleted ledger, DataUnknown in quarantine.

        "No such ledger" would be false for a quarantined ledger, and a recovery would draw conclusions from it.
        """
        removal = self._states.get(ledger_id)
        if removal is None or removal.state is QuarantineState.PINNED:
            return
        self._notify_refused(ledger_id, removal)
        if removal.is_quarantined:
            raise DataUnknown("the ledger is in quarantine", ledger_id=ledger_id)
        raise LedgerUnknownToBookie("the ledger is deleted", ledger_id=ledger_id)

    def _notify_refused(self, ledger_id: int, removal: QuarantineRecord) -> None:
        if removal.is_quarantined and self.on_refused is not None:
            self.on_refused(ledger_id)

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
            await self._take(self._ready_for(QuarantineEvent.RETURNED, ledger_ids), QuarantineEvent.RETURNED)

    async def pin(self, ledger_id: int, now_ms: int) -> None:
        """Bring a ledger back from quarantine and keep it regardless of the metadata. Raises InvalidArgument."""
        async with self._lock:
            if self.is_deleted(ledger_id):
                raise InvalidArgument("this bookie has deleted it, and cannot bring it back", ledger_id=ledger_id)
            if not self._index.is_known(ledger_id):
                raise InvalidArgument("this bookie has no data of it", ledger_id=ledger_id)
            if ledger_id not in self._states:
                raise InvalidArgument("it is not in quarantine; nothing was changed", ledger_id=ledger_id)
            await self._take([ledger_id], QuarantineEvent.PIN, now_ms)

    async def delete(self, ledger_ids: Iterable[int], now_ms: int) -> list[int]:
        """Delete the ledgers that are still in quarantine; return these. After a failure a later call completes it."""
        async with self._lock:
            chosen = self._ready_for(QuarantineEvent.DELETE, ledger_ids)
            surplus = [ledger_id for ledger_id in chosen if self._states[ledger_id].state is QuarantineState.SURPLUS]
            await self._take(chosen, QuarantineEvent.DELETE, now_ms)
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

    async def _finish(self) -> None:
        """Remove the remaining data of deleted ledgers."""
        deleted = [candidate for candidate in self.in_state(QuarantineState.DELETED) if self._index.is_known(candidate)]
        if not deleted:
            return
        if any(self._cache.holds(candidate) for candidate in deleted):
            await self._checkpointer.checkpoint()
        self.observer.deletion_begins(deleted)
        await self._checkpointer.index_writer.drop_ledgers(deleted)
        for ledger_id in deleted:
            if self.on_deleted is not None:
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
        """Apply new states durably, or none of them if that fails."""
        if not changes:
            return
        before = {ledger_id: self._states.get(ledger_id) for ledger_id in changes}
        self._apply(changes)
        try:
            await self._checkpointer.worker.run(self.files.write, dict(self._states))
        except BaseException:
            self._apply(before)
            raise

    def _apply(self, changes: Mapping[int, QuarantineRecord | None]) -> None:
        for ledger_id, removal in changes.items():
            if removal is None:
                self._states.pop(ledger_id, None)
            else:
                self._states[ledger_id] = removal
