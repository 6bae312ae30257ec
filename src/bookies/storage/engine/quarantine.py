"""Ledgers on their way out of this bookie: quarantine, deletion, and the memory of what was deleted.

    (stored) --quarantine--> QUARANTINED --delete--> DELETED --forget--> (never heard of)
                                 |   ^
                               lift  +-- or PINNED, by an operator: stored again, and left alone

A quarantined ledger is still read, but takes no entry and no fence: its metadata is gone, so nobody may rely on what
would be promised. It is never called unknown, because it may come back. Of a deleted one the id stays: whatever a late
writer sends is refused, instead of making a new ledger that knows nothing of the old one's fence (R-23).

Invariants
- A state is durable before anything follows from it, and DELETED before the index file goes: a start removes what a
  crash left of a deleted ledger, and replay skips its records.
- A deleted ledger leaves index and memory while no index write is under way, after a checkpoint that emptied the cache
  of it, so nothing that was in flight can bring it back (R-21).
- An id is forgotten only after another checkpoint: no journal that would be replayed speaks of it any more.

Owned by the loop's thread. Source: storage 4.8, 7.2.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence

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
from bookies.storage.disks.durable_files import replace_copies, unlink_all
from bookies.storage.engine import quarantine_format as layout
from bookies.storage.engine.checkpoint import Checkpointer
from bookies.storage.engine.quarantine_format import QuarantineRecord, QuarantineState
from bookies.storage.identity import cookie
from bookies.storage.index import LedgerIndex


class QuarantineFiles:
    """The copies in the ledger directories. Blocks; confined to the checkpoint's worker."""

    def __init__(self, disk: Disk, directories: Sequence[str]) -> None:
        self.damaged: list[CorruptRecord] = []
        self._disk = disk
        self._identity = b""  # of this bookie, as its cookie has it
        self._paths = [posixpath.join(directory, layout.FILE_NAME) for directory in directories]
        self._sequence = 0

    def read(self) -> dict[int, QuarantineRecord]:
        """What the newest copy says. Without a good one nothing is on its way out, which keeps everything."""
        found: dict[int, QuarantineRecord] = {}
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
                self._sequence, found = sequence, removals
        return found

    def _read_identity(self) -> bytes:
        """Whose directories these are; empty without a cookie."""
        for path in self._paths:
            stamp = posixpath.join(posixpath.dirname(path), cookie.FILE_NAME)
            if self._disk.exists(stamp):
                try:
                    owner = cookie.parse(self._disk.read_bytes(stamp), path=stamp)
                except CorruptRecord:
                    continue  # Who starts a bookie has compared all of them, and decides about that.
                return layout.identity_of(owner.bookie, owner.instance_id)
        return b""

    def write(self, removals: Mapping[int, QuarantineRecord]) -> None:
        """Replace every copy. Raises DiskFull when no directory takes one; SyncFailed."""
        self._sequence += 1
        data = layout.pack(self._sequence, removals, self._identity)
        try:
            replace_copies(self._disk, self._paths, data)
        except (OSError, DiskFull) as error:
            raise DiskFull(f"no ledger directory takes {layout.FILE_NAME}: {error}") from error


class Quarantine:
    """States by ledger, and the moves between them.

    `on_refused(ledger_id)`: somebody wanted to write to a quarantined ledger. `on_deleted(ledger_id)`: it is gone.
    """

    def __init__(
        self, disk: Disk, directories: Sequence[str], index: LedgerIndex, checkpointer: Checkpointer, cache: WriteCache
    ) -> None:
        self.on_refused: Callable[[int], None] | None = None
        self.on_deleted: Callable[[int], None] | None = None
        self.files = QuarantineFiles(disk, directories)
        self.leftovers: list[int] = []  # deleted ledgers that still had an index file at the start
        self._disk = disk
        self._index = index
        self._checkpointer = checkpointer
        self._cache = cache
        self._states: dict[int, QuarantineRecord] = {}
        self._lock = asyncio.Lock()

    async def load(self, paths: dict[int, str], worker: Worker) -> dict[int, str]:
        """Read the states at the start; index files by ledger without those of deleted ones, which go."""
        self._states = await worker.run(self.files.read)
        leftovers = {ledger_id: path for ledger_id, path in paths.items() if self.is_deleted(ledger_id)}
        self.leftovers = list(leftovers)
        if leftovers:
            await worker.run(unlink_all, self._disk, list(leftovers.values()))
        return {ledger_id: path for ledger_id, path in paths.items() if ledger_id not in leftovers}

    # -- questions -----------------------------------------------------------------------------------------------
    def get(self, ledger_id: int) -> QuarantineRecord | None:
        return self._states.get(ledger_id)

    def is_deleted(self, ledger_id: int) -> bool:
        removal = self._states.get(ledger_id)
        return removal is not None and removal.state is QuarantineState.DELETED

    def in_state(self, *states: QuarantineState) -> dict[int, QuarantineRecord]:
        """Ledgers in one of these states, in the order of their ids."""
        return {
            ledger_id: self._states[ledger_id]
            for ledger_id in sorted(self._states)
            if self._states[ledger_id].state in states
        }

    def check_add(self, ledger_id: int, entry_id: int, *, is_recovery: bool) -> None:
        """Raises LedgerFenced for an add to a ledger on its way out; StorageError while it may still come back."""
        removal = self._states.get(ledger_id)
        if removal is None or removal.state is QuarantineState.PINNED:
            return
        self._tell(ledger_id, removal)
        if is_recovery and removal.is_quarantined:
            # Neither stored nor refused for good: the recovery or the copying has to come back later.
            raise StorageError("the ledger is in quarantine", ledger_id=ledger_id, entry_id=entry_id)
        what = "in quarantine" if removal.is_quarantined else "deleted"
        raise LedgerFenced(f"the ledger is {what}", ledger_id=ledger_id, entry_id=entry_id)

    def check_note(self, ledger_id: int) -> None:
        """Fences and explicit LACs: raises LedgerUnknownToBookie for a deleted ledger, DataUnknown in quarantine.

        "No such ledger" would be false of a quarantined one, and a recovery would conclude from it.
        """
        removal = self._states.get(ledger_id)
        if removal is None or removal.state is QuarantineState.PINNED:
            return
        self._tell(ledger_id, removal)
        if removal.is_quarantined:
            raise DataUnknown("the ledger is in quarantine", ledger_id=ledger_id)
        raise LedgerUnknownToBookie("the ledger is deleted", ledger_id=ledger_id)

    def _tell(self, ledger_id: int, removal: QuarantineRecord) -> None:
        if removal.is_quarantined and self.on_refused is not None:
            self.on_refused(ledger_id)

    # -- moves ---------------------------------------------------------------------------------------------------
    async def quarantine(self, ledger_ids: Iterable[int], state: QuarantineState, now_ms: int) -> None:
        """Refuse entries and fences of these ledgers from now on. Raises what keeps it from being durable."""
        async with self._lock:
            chosen = [each for each in ledger_ids if each not in self._states and self._index.is_known(each)]
            await self._change(dict.fromkeys(chosen, QuarantineRecord(state, now_ms)))

    async def lift(self, ledger_ids: Iterable[int]) -> None:
        """Quarantined ledgers, and pinned ones, are like all others again: their metadata is there."""
        async with self._lock:
            await self._change(
                {each: None for each in ledger_ids if each in self._states and not self.is_deleted(each)}
            )

    async def pin(self, ledger_id: int, now_ms: int) -> None:
        """Bring a ledger back from quarantine, and keep it whatever the metadata says. Raises InvalidArgument."""
        async with self._lock:
            if self.is_deleted(ledger_id):
                raise InvalidArgument("it was deleted here, and cannot be brought back", ledger_id=ledger_id)
            if not self._index.is_known(ledger_id):
                raise InvalidArgument("this bookie has nothing of it", ledger_id=ledger_id)
            if ledger_id not in self._states:
                raise InvalidArgument("it is not in quarantine; nothing was changed", ledger_id=ledger_id)
            await self._change({ledger_id: QuarantineRecord(QuarantineState.PINNED, now_ms)})

    async def delete(self, ledger_ids: Iterable[int], now_ms: int) -> list[int]:
        """Delete those of them that are still in quarantine; which. Raises what prevented it; then it goes on later."""
        async with self._lock:
            chosen = [each for each in ledger_ids if each in self._states and self._states[each].is_quarantined]
            surplus = [each for each in chosen if self._states[each].state is QuarantineState.SURPLUS]
            await self._change(dict.fromkeys(chosen, QuarantineRecord(QuarantineState.DELETED, now_ms)))
            await self._finish()
            if surplus:
                # Those exist, and may be copied here again one day.
                await self._forget(surplus)
        return chosen

    async def forget(self, ledger_ids: Iterable[int]) -> None:
        """Forget deleted ledgers."""
        async with self._lock:
            await self._finish()
            await self._forget([each for each in ledger_ids if self.is_deleted(each)])

    async def _forget(self, ledger_ids: Sequence[int]) -> None:
        if ledger_ids:
            await self._checkpointer.checkpoint()
            await self._change(dict.fromkeys(ledger_ids, None))

    async def _finish(self) -> None:
        """Drop what is still there of deleted ledgers."""
        deleted = [each for each in self.in_state(QuarantineState.DELETED) if self._index.is_known(each)]
        if not deleted:
            return
        if any(self._cache.holds(each) for each in deleted):
            await self._checkpointer.checkpoint()
        await self._checkpointer.drop_ledgers(deleted)
        for ledger_id in deleted:
            if self.on_deleted is not None:
                self.on_deleted(ledger_id)

    async def _change(self, changes: Mapping[int, QuarantineRecord | None]) -> None:
        """Take over new states, or none of them if they cannot be made durable."""
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
