"""What a bookie sees of its disks: add, fence, read, LAC, force; start and stop.

An entry's way: checked against its ledger (key, fence), inserted into the write cache, queued for the journal, answered
when its group is synced; later flushed to an entry log, its slot set in the index, and forgotten by the journal after a
checkpoint.

Invariants
- Whatever is journaled is in the storage before it is queued, for every kind of record (R-7). That is what allows a
  checkpoint to drop journals.
- Within a process a LEDGER_KEY record precedes the first record of a ledger in the journal, fences and explicit LACs
  included (F-7).
- Decisions about a ledger are taken one after the other on the loop, in the order of the calls. Calls for a ledger
  whose header has to be read wait in one queue, and reads wait behind them.
- A fence is answered only when its record is durable, also by those who come second (R-5, F-42).
- "No such ledger" and "no such entry" come only from an index and a cache that were both asked and are healthy; any
  failure is an error (R-3), and of an uncertain ledger everything negative is `DataUnknown`: a missing entry, the last
  one, what an explicit LAC was, and that the ledger is not fenced.
- After a failure that leaves the truth on the device unknown nobody is answered, nothing is written, and `on_fatal` is
  called (R-15).

Everything here is owned by the loop's thread. Workers get immutable buffers, and bring results back through futures.

Source: storage 2.6, 5.7, 8.3, 9.5, 9.6.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence

from bookies.config import BookieConfig
from bookies.errors import (
    BookieBusy,
    BookieReadOnly,
    BookKeeperError,
    DataUnknown,
    EntryNotFound,
    InvalidArgument,
    LedgerFenced,
    ReadFailed,
    StorageError,
    Unauthorized,
)
from bookies.kernels import Records
from bookies.model import LAST_ENTRY
from bookies.runtime.events import Events
from bookies.runtime.ports import Buffer, Runtime
from bookies.runtime.tasks import Tasks
from bookies.storage import journal_format
from bookies.storage.collector import Collector
from bookies.storage.directories import DiskWatch
from bookies.storage.garbage import LedgerRecords
from bookies.storage.index import Ledger, is_vacant
from bookies.storage.index_format import EXPLICIT_LAC_SIZE_MIN, SLOT_SIZE, STATE_FENCED, IndexHeader
from bookies.storage.journal import Done, Journal
from bookies.storage.opening import Opened, open_storage
from bookies.storage.replay import greatest_lac
from bookies.storage.slots import leading_present, merged, span

ENTRY_ID_MAX = (1 << 40) - 1  # the index file of a ledger has 8 bytes for each entry id up to its highest
MASTER_KEY_SIZE_MAX = 512  # bytes; key and explicit LAC share a header of 1024
EXPLICIT_LAC_SIZE_MAX = 256
STOP_S = 60.0  # an orderly stop waits so long for its last checkpoint


class LedgerStore:
    """The storage of one bookie. All calls on the loop's thread.

    `on_fatal` is called at most once, when the storage can answer nobody any more; the process should end. Until
    `start` has returned only `abort` may be called.
    """

    def __init__(self, runtime: Runtime, config: BookieConfig, on_fatal: Callable[[BaseException], None]) -> None:
        self._runtime = runtime
        self._config = config
        self._on_fatal = on_fatal
        self._events = Events("storage", runtime.clock)
        self._tasks = Tasks(self._fail)
        self._running: list[asyncio.Task[None]] = []
        self._parts: Opened | None = None
        self.collector: Collector | None = None
        self._collecting: asyncio.Task[None] | None = None
        self._disks = DiskWatch(runtime, config, self._changed)
        self._failure: BaseException | None = None
        self._is_stopping = False
        self._was_writable = True
        self._waiting: dict[int, list[tuple[Callable[..., None], Done, tuple[object, ...]]]] = {}
        self._watchers: dict[int, dict[int, tuple[int, Callable[[], None]]]] = {}
        self._watcher_count = 0
        self._mode_callbacks: list[Callable[[], None]] = []
        self._uncongested_callbacks: list[Callable[[], None]] = []
        self._entry_count = 0

    # -- start and stop ------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Lock the directories, replay, checkpoint, and serve.

        Raises: DirectoryInUse; CorruptRecord and other StorageError, OSError, with nothing left behind.
        """
        assert self._parts is None
        try:
            self._parts = parts = Opened(self._runtime, self._config, self._changed, self._fail)
            self._running.append(parts.checkpointer.start(self._tasks))
            await open_storage(parts, self._events)
            await self._disks.measure(parts.checkpointer.worker)
            self._running.append(parts.checkpointer.serve(self._tasks, parts.journals))
            self._running.append(self._tasks.start(self._disks.run(parts.checkpointer.worker), "disk watch"))
            self._running.append(self._tasks.start(parts.rebuilder.run(), "index rebuild"))
        except BaseException:
            self.abort()
            raise
        self._was_writable = self.is_writable

    def collect(self, records: LedgerRecords, bookie: str, instance_id: str | None = None) -> None:
        """Give back the space of ledgers that are deleted, from now on. `records`: the metadata store.

        `instance_id`: of the cluster that the bookie belongs to, if it is known.
        """
        assert self.collector is None
        parts = self._open()
        parts.removals.on_deleted = lambda ledger_id: self._wake(ledger_id, None)
        self.collector = Collector(self._runtime, self._config, parts, records, bookie, instance_id)
        self._collecting = self._tasks.start(self.collector.run(), "garbage collection")
        self._running.append(self._collecting)

    async def stop(self) -> None:
        """Flush, checkpoint, and let go of everything. Idempotent. After a failure: as `abort`.

        Raises what prevented the last checkpoint; the journals still have everything then.
        """
        parts = self._parts
        if parts is None or self._failure is not None:
            self.abort()
            return
        self._is_stopping = True
        try:
            if self._collecting is not None:
                self._collecting.cancel()
                await asyncio.wait([self._collecting])
            async with asyncio.timeout(STOP_S):
                for journal in parts.journals:
                    await journal.wait_idle()
                await parts.checkpointer.checkpoint()
                await parts.checkpointer.seal()
                for journal in parts.journals:
                    await journal.discard_spares()
                await parts.checkpointer.worker.run(parts.directories.mark_clean)
            await self._tasks.stop()
        finally:
            self.abort()

    def abort(self) -> None:
        """Let go of files, workers and locks; the directories stay as they are. Idempotent."""
        self._is_stopping = True
        for task in self._running:
            task.cancel()
        self._running.clear()
        parts, self._parts = self._parts, None
        if parts is not None:
            if self.collector is not None:
                self.collector.close()
            parts.checkpointer.abort(self._failure or StorageError("the storage was stopped"))
            parts.close()

    def _fail(self, error: BaseException) -> None:
        """The truth about the disks is unknown from here on."""
        if self._failure is None and self._parts is not None:
            self._failure = error
            self._parts.checkpointer.abort(error)
            self._events.error("storage.failed", error=error)
            self._on_fatal(error)

    def _open(self) -> Opened:
        if self._parts is None or self._failure is not None or self._is_stopping:
            raise StorageError(f"the storage {'has failed' if self._failure else 'is not running'}")
        return self._parts

    # -- writes --------------------------------------------------------------------------------------------------
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
        """Store entries; `done(None)` when they are durable, `done(error)` for what is found out only later.

        One id per record, in any order. An unknown ledger is created with the key. Deferred sync may be answered like
        any other add, and is. Raises: Unauthorized, LedgerFenced (never for recovery), BookieReadOnly, BookieBusy,
        InvalidArgument, StorageError.
        """
        parts = self._open()
        if not is_recovery and not self.is_writable:
            raise BookieReadOnly("the disks are full", ledger_id=ledger_id)
        low, high = _extent(entry_ids)
        if ledger_id < 0 or low < 0 or high > ENTRY_ID_MAX:
            raise InvalidArgument("ids out of range", ledger_id=ledger_id, entry_id=low)
        ledger = parts.index.get(ledger_id)
        if ledger is not None and ledger.header.master_key == master_key and ledger_id not in self._waiting:
            # Nearly always: nothing to look up, to create or to wait for. The same as `_add`, for less.
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
        parts: Opened, ledger: Ledger | None, ledger_id: int, entry_ids: Sequence[int], is_recovery: bool
    ) -> None:
        parts.removals.check_add(ledger_id, entry_ids[0], is_recovery=is_recovery)
        if ledger is None:
            if parts.index.catalog.holes and not is_recovery:
                raise DataUnknown("the ledger may have been fenced here", ledger_id=ledger_id, entry_id=entry_ids[0])
        elif ledger.header.state and not is_recovery:
            if ledger.header.is_uncertain:
                # Not "fenced": the writer may well go on, with another bookie.
                raise DataUnknown("the ledger may have been fenced here", ledger_id=ledger_id, entry_id=entry_ids[0])
            if ledger.header.is_fenced:
                raise LedgerFenced("the ledger is fenced", ledger_id=ledger_id, entry_id=entry_ids[0])
        if parts.cache.is_exhausted:
            raise BookieBusy("the write cache is full", ledger_id=ledger_id, entry_id=entry_ids[0])

    def _insert(
        self,
        parts: Opened,
        ledger: Ledger,
        done: Done,
        entry_ids: Sequence[int],
        records: Records,
        last_entry_id: int,
        last_add_confirmed: int,
        is_recovery: bool,
    ) -> None:
        """First the cache, then the journal: whatever a mark lies behind can be flushed."""
        self._check_add(parts, ledger, ledger.ledger_id, entry_ids, is_recovery)
        parts.cache.current.add(ledger.ledger_id, entry_ids, records)
        if last_entry_id > ledger.last_entry_id:
            ledger.last_entry_id = last_entry_id
        self._journal(ledger, _buffer_of(records), records.size, done)
        self._entry_count += len(entry_ids)
        if last_add_confirmed > ledger.last_add_confirmed:
            ledger.last_add_confirmed = last_add_confirmed
            if self._watchers:
                self._wake(ledger.ledger_id, last_add_confirmed)
        parts.checkpointer.inserted()

    def fence(self, ledger_id: int, master_key: bytes, done: Done) -> None:
        """Refuse ordinary adds from now on; `done(None)` when that is durable. Creates an unknown ledger.

        Raises: Unauthorized, InvalidArgument, StorageError.
        """
        self._open()
        if ledger_id < 0:
            raise InvalidArgument("ids out of range", ledger_id=ledger_id)
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
        self._wake(ledger_id, None)

    def write_lac(self, ledger_id: int, master_key: bytes, last_add_confirmed: int, body: bytes, done: Done) -> None:
        """Keep an explicit LAC; the latest replaces the one before. Creates an unknown ledger; fencing is no obstacle.

        `last_add_confirmed` is the one in `body`. Raises: Unauthorized, BookieReadOnly, InvalidArgument, StorageError.
        """
        self._open()
        if not self.is_writable:
            raise BookieReadOnly("the disks are full", ledger_id=ledger_id)
        if ledger_id < 0 or not EXPLICIT_LAC_SIZE_MIN <= len(body) <= EXPLICIT_LAC_SIZE_MAX:
            raise InvalidArgument(f"an explicit LAC of {len(body):,} bytes", ledger_id=ledger_id)
        self._with_header(ledger_id, done, self._write_lac, master_key, last_add_confirmed, body)

    def _write_lac(self, ledger_id: int, done: Done, master_key: bytes, last_add_confirmed: int, body: bytes) -> None:
        self._open().removals.check_note(ledger_id)
        ledger = self._authorized(ledger_id, master_key)
        self._open().index.set_explicit_lac(ledger, body)
        record = journal_format.pack_explicit_lac(ledger_id, body)
        self._journal(ledger, record, len(record), done)
        self._wake(ledger_id, last_add_confirmed)

    def force(self, ledger_id: int, done: Done) -> None:
        """`done(None)` when everything of the ledger that was accepted before is durable. Raises: StorageError."""
        self._open()
        self._with_header(ledger_id, done, self._force, is_needed=False)

    def _force(self, ledger_id: int, done: Done) -> None:
        self._journal_of(ledger_id).append((), 0, done)

    def _with_header(
        self, ledger_id: int, done: Done, call: Callable[..., None], *arguments: object, is_needed: bool = True
    ) -> None:
        """`call(ledger_id, done, *arguments)`, now or, in the order of arrival, when the ledger's header has been read.

        What it raises then goes to `done`. Without `is_needed` it only waits behind those who do.
        """
        waiting = self._waiting.get(ledger_id)
        if waiting is None:
            index = self._open().index
            if not is_needed or index.get(ledger_id) is not None or not index.is_known(ledger_id):
                call(ledger_id, done, *arguments)
                return
            waiting = self._waiting[ledger_id] = []
            self._tasks.start(self._load(ledger_id), f"load ledger {ledger_id}")
        waiting.append((call, done, arguments))

    async def _load(self, ledger_id: int) -> None:
        """Read a ledger's header, then do what waits for it, in order."""
        failure: BookKeeperError | None = None
        try:
            await self._open().index.load(ledger_id)
        except BookKeeperError as error:
            failure = error
        for call, done, arguments in self._waiting.pop(ledger_id):
            try:
                if failure is not None:
                    raise failure
                call(ledger_id, done, *arguments)
            except BookKeeperError as error:
                done(error)

    def _check_key(self, ledger: Ledger, master_key: bytes) -> None:
        """Raises Unauthorized unless it is the ledger's key, or the ledger has none yet (F-23)."""
        stored = ledger.header.master_key
        if stored != master_key and not is_vacant(stored):
            raise Unauthorized("wrong password", ledger_id=ledger.ledger_id)

    def _authorized(self, ledger_id: int, master_key: bytes) -> Ledger:
        """The ledger, created if it is unknown, after its key was checked or taken over."""
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
        """Queue what is already in the storage, behind the ledger's key."""
        buffers: tuple[Buffer, ...] = (record,)
        if not ledger.is_key_logged:
            ledger.is_key_logged = True
            key = journal_format.pack_ledger_key(ledger.ledger_id, ledger.header.master_key)
            buffers = (key, record)
            size += len(key)
        self._journal_of(ledger.ledger_id).append(buffers, size, done)

    # -- reads ---------------------------------------------------------------------------------------------------
    def read_cached(self, ledger_id: int, entry_id: int) -> bytes | None:
        """The body of an entry if it is in the write cache; no IO."""
        return self._open().cache.read(ledger_id, entry_id)

    async def read(self, ledger_id: int, entry_id: int) -> bytes:
        """The body of an entry; -1: of the highest. Raises: LedgerUnknownToBookie, EntryNotFound; ReadFailed."""
        parts, ledger = await self._ledger(ledger_id)
        if entry_id == LAST_ENTRY:
            if ledger.header.is_uncertain:
                raise _unknown(ledger_id, "which entry is the last")
            entry_id = ledger.last_entry_id
        body = parts.cache.read(ledger_id, entry_id)
        if body is not None:
            return body
        return (await self._read_stored(parts, ledger, entry_id, 1, 0))[4:]

    async def read_batch(self, ledger_id: int, first_entry_id: int, count_max: int, size_max: int) -> bytes:
        """Records of consecutive entries: at least the first, otherwise as many as are at hand and fit.

        `size_max` counts length words. Raises as `read` does for the first.
        """
        parts, ledger = await self._ledger(ledger_id)
        pieces = parts.cache.read_batch(ledger_id, first_entry_id, max(1, count_max), size_max)
        if pieces:
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return await self._read_stored(parts, ledger, first_entry_id, max(1, count_max), size_max)

    async def _read_stored(
        self, parts: Opened, ledger: Ledger, first_entry_id: int, count_max: int, size_max: int
    ) -> bytes:
        """As `read_batch`, from index and entry log. The cache has been asked, without an await in between."""
        ledger.users += 1
        try:
            while True:
                slots = b""
                if 0 <= first_entry_id <= ledger.last_entry_id:
                    slots = await self._slots(parts, ledger, first_entry_id, count_max, size_max)
                if not slots:
                    if ledger.header.is_uncertain:
                        raise _unknown(ledger.ledger_id, f"whether entry {first_entry_id} was here")
                    raise EntryNotFound("no such entry here", ledger_id=ledger.ledger_id, entry_id=first_entry_id)
                try:
                    return await parts.readers.read_records(ledger.ledger_id, first_entry_id, slots, size_max)
                except ReadFailed:
                    # The entry may have moved while this was waiting for its turn; then the index knows better.
                    if await self._slots(parts, ledger, first_entry_id, 1, 0) == slots[:SLOT_SIZE]:
                        raise
        finally:
            ledger.users -= 1

    async def _slots(self, parts: Opened, ledger: Ledger, first: int, count_max: int, size_max: int) -> bytes:
        """Slots of consecutive entries from `first` on, over as many pages as `size_max` bytes of log can need."""
        slots = b""
        while count_max > 0:
            part = await parts.index.slots(ledger, first, count_max)
            present = leading_present(part)
            slots = slots + part[: present * SLOT_SIZE] if slots else part[: present * SLOT_SIZE]
            first += present
            count_max -= present
            # At a page's end the next page goes on; anything else is a missing entry.
            if not present or first % parts.index.slots_per_page or span(slots) > size_max:
                break
        return slots

    async def last_add_confirmed(self, ledger_id: int) -> int:
        """The greatest LAC in entries and explicit LACs, or a smaller one if the ledger is uncertain.

        Raises: LedgerUnknownToBookie, ReadFailed.
        """
        _, ledger = await self._ledger(ledger_id)
        if not ledger.is_lac_known and not ledger.header.is_uncertain:
            last = Records.of([await self.read(ledger_id, LAST_ENTRY)])
            ledger.last_add_confirmed = max(ledger.last_add_confirmed, greatest_lac(last))
            ledger.is_lac_known = True
        return ledger.last_add_confirmed

    async def read_lac(self, ledger_id: int) -> tuple[bytes | None, bytes | None]:
        """(explicit LAC, body of the highest entry). Raises: LedgerUnknownToBookie; ReadFailed without either."""
        _, ledger = await self._ledger(ledger_id)
        if ledger.header.is_uncertain:
            raise _unknown(ledger_id, "what was last confirmed")
        explicit_lac = ledger.header.explicit_lac or None
        try:
            return explicit_lac, await self.read(ledger_id, LAST_ENTRY)
        except EntryNotFound:
            return explicit_lac, None
        except ReadFailed:
            if explicit_lac is None:
                raise
            return explicit_lac, None

    async def list_entries(self, ledger_id: int) -> list[range]:
        """Maximal runs of entry ids, ascending. Raises: LedgerUnknownToBookie, ReadFailed."""
        parts, ledger = await self._ledger(ledger_id)
        if ledger.header.is_uncertain:
            raise _unknown(ledger_id, "which entries were here")
        cached = [run.entry_ids for run in parts.cache.runs_of(ledger_id)]
        ledger.users += 1
        try:
            stored = await parts.index.entry_runs(ledger)
        finally:
            ledger.users -= 1
        return merged([*stored, *cached])

    async def _ledger(self, ledger_id: int) -> tuple[Opened, Ledger]:
        """The ledger, after whatever waits for its header has been done. Raises: LedgerUnknownToBookie, ReadFailed."""
        parts = self._open()
        while ledger_id in self._waiting:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._with_header(ledger_id, _resolver(turn), _call_done)
            await turn
            parts = self._open()
        return parts, await parts.index.load(ledger_id)

    # -- watching ------------------------------------------------------------------------------------------------
    def watch_lac(self, ledger_id: int, previous_lac: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back once, on the loop, when the LAC is above `previous_lac` or the ledger is fenced; to cancel, call.

        The caller has asked for the LAC before; one that is above already calls back at once.
        """
        parts = self._open()
        self._watcher_count += 1
        number = self._watcher_count
        self._watchers.setdefault(ledger_id, {})[number] = (previous_lac, callback)
        ledger = parts.index.get(ledger_id)
        if ledger is not None and ledger.last_add_confirmed > previous_lac:
            self._wake(ledger_id, ledger.last_add_confirmed)

        def cancel() -> None:
            watchers = self._watchers.get(ledger_id)
            if watchers is not None and watchers.pop(number, None) is not None and not watchers:
                del self._watchers[ledger_id]

        return cancel

    def _wake(self, ledger_id: int, last_add_confirmed: int | None) -> None:
        """Wake those who wait for this LAC; None: everybody."""
        watchers = self._watchers.get(ledger_id)
        if watchers is None:
            return
        loop = asyncio.get_running_loop()
        for number, (previous_lac, callback) in list(watchers.items()):
            if last_add_confirmed is None or last_add_confirmed > previous_lac:
                del watchers[number]
                loop.call_soon(callback)
        if not watchers:
            del self._watchers[ledger_id]

    # -- state ---------------------------------------------------------------------------------------------------
    @property
    def is_writable(self) -> bool:
        """Whether ordinary adds are taken: there is room, and flushes succeed."""
        return (
            self._parts is not None
            and self._failure is None
            and not self._disks.is_full
            and not self._parts.checkpointer.is_failing
        )

    def on_mode_change(self, callback: Callable[[], None]) -> None:
        """`callback()` whenever `is_writable` has changed."""
        self._mode_callbacks.append(callback)

    @property
    def is_congested(self) -> bool:
        """Both halves of the write cache are full: read no more requests from the sockets for now."""
        return self._parts is not None and self._parts.cache.is_congested

    def when_uncongested(self, callback: Callable[[], None]) -> None:
        """`callback()` once, when there is room again."""
        if self.is_congested:
            self._uncongested_callbacks.append(callback)
        else:
            asyncio.get_running_loop().call_soon(callback)

    def _changed(self) -> None:
        """Room was made, or the mode may have changed."""
        if self.collector is not None:
            self.collector.set_pressure(is_full=self._disks.is_full)
        if not self.is_congested:
            callbacks, self._uncongested_callbacks = self._uncongested_callbacks, []
            for callback in callbacks:
                callback()
        if self.is_writable != self._was_writable:
            self._was_writable = self.is_writable
            for callback in self._mode_callbacks:
                callback()

    @property
    def has_unknown_ledgers(self) -> bool:
        """A part of a journal was lost: there may be ledgers here of which nothing is known any more."""
        return bool(self._open().index.catalog.holes)

    async def settle_unknown_ledgers(self, ledger_ids: Iterable[int]) -> int:
        """These ledgers may have had something here, others have not; how many of them were not known.

        From now on only they are uncertain. Durable on return. Raises: StorageError, OSError.
        """
        parts = self._open()
        unknown = [ledger_id for ledger_id in ledger_ids if not parts.index.is_known(ledger_id)]
        for ledger_id in unknown:
            parts.index.create(ledger_id, IndexHeader(b""))
        await parts.checkpointer.checkpoint()
        parts.index.catalog.settle_holes()
        await parts.checkpointer.checkpoint()
        return len(unknown)

    async def repair(self) -> dict[str, int]:
        """Read every index file to its end, and build again what is damaged; counts of ledgers.

        Raises: StorageError, OSError.
        """
        parts = self._open()
        uncertain, ledger_ids = 0, sorted(parts.index.ledger_ids())
        for ledger_id in ledger_ids:
            with contextlib.suppress(DataUnknown, ReadFailed):
                await self.list_entries(ledger_id)
        await parts.rebuilder.wait_idle()
        for ledger_id in ledger_ids:
            uncertain += (await parts.index.load(ledger_id)).header.is_uncertain
        return {"ledgers": len(ledger_ids), "uncertain": uncertain, "rebuilt": parts.rebuilder.count}

    def ledger_ids(self) -> Iterator[int]:
        """Every ledger of which anything is stored, in no particular order."""
        return self._open().index.ledger_ids()

    def usage(self) -> tuple[int, int]:
        """(total, free) bytes of the ledger directories' file systems, each counted once, as last measured."""
        return self._disks.total, self._disks.free

    async def checkpoint(self) -> None:
        """Flush and checkpoint now. Raises what prevented it; nothing is lost then."""
        await self._open().checkpointer.checkpoint()

    def stats(self) -> dict[str, int]:
        """Counters and gauges since the start; sizes in bytes."""
        parts = self._open()
        return {
            "entries_added": self._entry_count,
            "journal_groups": sum(journal.group_count for journal in parts.journals),
            "journal_size": sum(journal.size for journal in parts.journals),
            "journal_queued_size": sum(journal.queued_size for journal in parts.journals),
            "write_cache_size": parts.cache.size,
            "index_dirty_size": parts.index.dirty_size,
            "index_clean_size": parts.index.clean_size,
            "flushes": parts.checkpointer.flush_count,
            "checkpoints": parts.checkpointer.checkpoint_count,
            "replayed_entries": parts.report.entry_count,
            "disk_total": self._disks.total,
            "disk_free": self._disks.free,
        }

    def __repr__(self) -> str:
        parts = self._parts
        if parts is None:
            return "<LedgerStore closed>"
        state = "failed" if self._failure else "writable" if self.is_writable else "read-only"
        return f"<LedgerStore {state} cache={parts.cache.size:,} checkpoints={parts.checkpointer.checkpoint_count}>"


def _unknown(ledger_id: int, what: str) -> DataUnknown:
    return DataUnknown(f"after damage it is not known {what}", ledger_id=ledger_id)


def _call_done(ledger_id: int, done: Done) -> None:
    done(None)


def _resolver(future: asyncio.Future[None]) -> Done:
    """Resolves whatever became of the load: the reader finds out by itself."""

    def done(error: BaseException | None) -> None:
        if not future.done():
            future.set_result(None)

    return done


def _extent(entry_ids: Sequence[int]) -> tuple[int, int]:
    """(lowest, highest)"""
    if isinstance(entry_ids, range) and entry_ids.step > 0:
        return entry_ids[0], entry_ids[-1]
    return min(entry_ids), max(entry_ids)


def _buffer_of(records: Records) -> Buffer:
    if records.size == len(records.data):
        return records.data
    return memoryview(records.data)[records.starts[0] : records.starts[-1]]
