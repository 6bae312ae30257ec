"""`LedgerWriter`: appends to an open ledger. The shell of `AddPipeline`: moves bytes, wakes waiters, decides nothing.

Appends of one event-loop iteration are packaged together and cost one write per bookie. `append_many` is the fast path;
`append_nowait` returns a future; `append` adds one entry and waits for it.

What a caller may rely on:

* An entry id is returned when `ack_quorum` bookies have the entry on disk and all earlier entries are as safe.
* Memory is bounded by `ClientConfig.memory_limit`, per client. An append waits *before* it gets an id, so no entry is
  ever half in the pipeline. The bytes count until every replica has answered or been replaced.
* An append that is cancelled, times out or fails is *unknown*: the entry may or may not be in the ledger. After a
  failure the writer accepts no more appends, and no later entry is in the ledger unless the failed entry is.
* `seal` waits for pending entries and ends the ledger permanently; `close` only releases the writer. Leaving the `async
  with` block normally seals; leaving it by an exception only closes, so that recovery determines the end.

A client first creates the metadata (`protocol.ledger.new_ledger`, `driver.create_ledger`), then the writer:

    LedgerWriter(one WriteContext per client, versioned, rules_of(config), password)

Source: client-protocol 2.3 to 2.13, 2.16, 2.21.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from types import TracebackType
from typing import Self, TypeVar

from bookies.client.base.arguments import TimeLimit, seconds, switch
from bookies.client.base.metadata_loop import MetadataLoop
from bookies.client.transport.open_ledgers import AddOptions
from bookies.client.write.adds import AddChannel, LedgerFrames, SendWindow, take_futures
from bookies.client.write.announcements import LedgerAnnouncements
from bookies.client.write.closing import LedgerCloser, OpenLedger, unknown_outcome
from bookies.client.write.quorum_timeout import QuorumTimeout, deadline_of, force_everywhere
from bookies.client.write.send_scheduler import FifoLock
from bookies.client.write.write_context import WriteContext, with_candidates
from bookies.errors import (
    AckQuorumTimeout,
    BookieBusy,
    BookKeeperError,
    ClientClosed,
    InvalidArgument,
    LedgerClosed,
    LocalProtocolError,
    NotSupported,
    WriteFailed,
)
from bookies.metadata.interface.driver import Versioned
from bookies.model import BookieId, DigestType, LedgerMetadata
from bookies.protocol.ledger import AddPipeline
from bookies.protocol.ledger.add import AddRules, ChangeEnsemble, CloseLedger
from bookies.protocol.ledger.ledger import change_needed, with_ensemble
from bookies.protocol.placement.placement import changed_ensemble
from bookies.runtime.tasks import Tasks

T = TypeVar("T")
Payload = bytes | bytearray | memoryview
BATCH_SIZE_MAX = 256 * 1024  # bytes packaged into one buffer: large enough to amortise, small enough to overlap
HELD_MAX = 256  # entries that are queued at most while others are in flight
V3_OVERHEAD = 96  # bytes that an add needs beyond its v2 frame when it is sent over v3


class LedgerWriter:
    """The only writer of a ledger, as `Client.create` returns it."""

    # An instance with more than 30 attributes would have a dictionary of 1.5 KiB of its own, and slower access to them.
    __slots__ = (
        "__weakref__", "_announcements", "_announcer", "_batch_size_max", "_bookies", "_budget", "_channel", "_closer",
        "_counts", "_failed_bookie", "_final_length", "_forced_length", "_futures", "_is_held", "_is_lone", "_latency",
        "_loop", "_memory", "_overhead", "_payload_size_max", "_payloads", "_pipeline", "_pool", "_proof",
        "_queue_for_memory", "_quorum_timeout", "_record", "_rules", "_scheduler", "_tasks", "_timed_last", "_timed_s",
        "_waiting",
    )  # fmt: skip

    def __init__(
        self,
        context: WriteContext,
        versioned: Versioned,
        rules: AddRules,
        password: bytes,
        point: int = -1,  # connections when the request that found the ledger open began, see `OpenProof`
    ) -> None:
        config = context.config
        self._record = MetadataLoop(context.runtime, context.driver, versioned)
        self._proof = context.open_ledgers.proof(self._record, point)
        self._bookies = context.bookies
        self._budget = context.budget
        self._rules = rules
        self._pool = context.pool
        self._make_pipeline(context, versioned.metadata, password)
        self._pipeline.allows_changes = config.ensemble_changes_allowed
        self._overhead = self._channel.frames.overhead
        v3_overhead = V3_OVERHEAD if config.wire == "v3" else 0
        self._payload_size_max = min(config.frame_size_max - v3_overhead, self._budget.limit) - self._overhead
        self._batch_size_max = min(BATCH_SIZE_MAX, self._budget.limit)
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks(self._task_died)
        self._queue_for_memory = FifoLock()  # of appends; entries get their ids in the order of the calls
        self._memory: list[asyncio.Future[int]] = []  # for which the first of them waits
        self._payloads: list[bytes] = []  # appends of this loop iteration, not packaged yet
        self._futures: list[asyncio.Future[int]] = []
        self._waiting: list[tuple[int, list[asyncio.Future[int]]]] = []  # first id, futures from it on
        ledger = OpenLedger(self._record, self._pipeline, self._channel, self._tasks)
        self._closer = LedgerCloser(
            self, ledger, self._queue_for_memory, self._flush, is_deferred_sync=rules.is_deferred_sync
        )
        self._scheduler = context.scheduler
        self._is_held = False  # queued entries wait for those in flight
        self._is_lone = False  # the last batch was a single entry
        self._announcer = context.announcer
        self._announcements = LedgerAnnouncements(self, ledger, self._closer, self._pool, context.announcer)
        self._counts = context.pool.counts
        self._latency = context.pool.latency
        self._timed_last = -1  # last entry of the batch that is being timed; -1: none
        self._timed_s = 0.0
        self._failed_bookie: BookieId | None = None  # while the timed batch was sent
        self._final_length: int | None = None  # of the confirmed prefix, once a pending entry has failed
        self._forced_length = 0  # deferred sync: payload bytes up to the last add confirmed
        self._quorum_timeout = QuorumTimeout(config.add_quorum_timeout_ms / 1000, self._pipeline, self._channel)

    def _make_pipeline(self, context: WriteContext, metadata: LedgerMetadata, password: bytes) -> None:
        self._pipeline = AddPipeline(metadata, rules=self._rules)
        window = SendWindow(self._pipeline.last_add_pushed + 1, 0)
        self._channel = AddChannel(
            self._pool,
            self._pipeline,
            self,
            LedgerFrames(metadata.ledger_id, metadata.digest_type or DigestType.CRC32C, password, window),
            context.config.add_timeout_ms / 1000,
            AddOptions(self._proof, self._rules.is_deferred_sync),
        )

    # -- state ---------------------------------------------------------------------------------------------------

    @property
    def ledger_id(self) -> int:
        """The ledger's id."""
        return self._record.current.metadata.ledger_id

    @property
    def metadata(self) -> LedgerMetadata:
        """The ledger's record as this writer last saw or wrote it."""
        return self._record.current.metadata

    @property
    def last_add_confirmed(self) -> int:
        """The last entry that is durable, with all entries before it; -1: none."""
        return self._pipeline.last_add_confirmed

    @property
    def length(self) -> int:
        """Payload bytes of the confirmed entries."""
        if self._final_length is not None:
            return self._final_length
        return self._confirmed_length()

    def _confirmed_length(self) -> int:
        if self._rules.is_deferred_sync:
            return self._forced_length
        return self._channel.length_at(self._pipeline.last_add_confirmed)

    @property
    def pending_count(self) -> int:
        """Entries appended but neither confirmed nor failed."""
        return self._pipeline.pending_count + len(self._payloads)

    def __repr__(self) -> str:
        metadata = self.metadata
        return (
            f"<Ledger {metadata.ledger_id} {self._state()} "
            f"E{metadata.ensemble_size}/Qw{metadata.write_quorum}/Qa{metadata.ack_quorum} "
            f"last_add_confirmed={self.last_add_confirmed} pending={self.pending_count} "
            f"ensemble=[{', '.join(self._pipeline.ensemble)}]>"
        )

    def _state(self) -> str:
        if self._record.current.metadata.is_closed:
            return "sealed"
        if self._pipeline.error is None:
            return "sealing" if self._closer.is_sealing else "open"
        if isinstance(self._pipeline.error, LedgerClosed):
            return "closed"
        return f"failed({type(self._pipeline.error).__name__})"

    # -- appending -----------------------------------------------------------------------------------------------

    async def append(self, payload: Payload, *, timeout: float | None = None) -> int:
        """Append one entry and return its id once it is durable on the ack quorum. `timeout`: seconds.

        Ids follow the order of the calls, including calls that wait for memory.

        Raises:

        * `LedgerClosed`, `LedgerFenced`, `NotEnoughBookies`, `Unauthorized`, `MetadataError`, `WriteFailed`: the writer
          has ended; the entry may or may not be stored.
        * `AckQuorumTimeout`: not confirmed within `timeout`; the entry may still be confirmed.
        * `BookieBusy`: no memory within `timeout`; the entry was not sent.
        * `InvalidArgument`: the entry is too large.
        """
        data = payload if type(payload) is bytes else _as_bytes(payload)
        if timeout is not None:
            deadline = deadline_of(timeout)
            future = self._try_enqueue(data)
            if future is None:
                future = await self._in_time(self._enqueue(data), deadline)
            return await self._confirmed_in_time(future, deadline)
        future = self._try_enqueue(data)
        if future is None:
            future = await self._enqueue(data)
        try:  # Inlined `_outcome`, which would cost another coroutine per entry.
            return await future
        except asyncio.CancelledError:
            raise asyncio.CancelledError(self._cancelled()) from None

    def append_nowait(self, payload: Payload) -> asyncio.Future[int]:
        """Append one entry without waiting. The future's result is the entry's id; it raises as `append` does.

        Raises `BookieBusy` if the memory limit is reached (await `wait_writable`, then repeat), `LedgerClosed`,
        `InvalidArgument`.
        """
        future = self._try_enqueue(payload if type(payload) is bytes else _as_bytes(payload))
        if future is None:
            raise BookieBusy(
                f"memory_limit of {self._budget.limit:,} bytes is used up by entries that not every replica has "
                "answered; await wait_writable(), or use append(), which waits",
                ledger_id=self.ledger_id,
            )
        return future

    def last_pushed(self) -> int:
        """Return the id of the last entry that it has accepted, confirmed or not; -1: none. Raises `LedgerClosed`."""
        self._check_open()
        return self._pipeline.last_add_pushed + len(self._payloads)

    async def append_many(self, payloads: Iterable[Payload], *, timeout: float | None = None) -> int:
        """Append entries with consecutive ids; return the last id once all are durable.

        The fast path. `timeout`: seconds.

        Raises as `append` does; then a prefix of the entries may be stored.
        """
        if timeout is None:
            return await self._outcome(await self.push_many(payloads))
        deadline = deadline_of(timeout)
        future = await self._in_time(self.push_many(payloads), deadline)
        return await self._confirmed_in_time(future, deadline)

    async def push_many(self, payloads: Iterable[Payload]) -> asyncio.Future[int]:
        """Append entries as `append_many` does, waiting only for memory. The future's result is the last id.

        It need not be awaited: `seal` raises the first failure.
        """
        if not isinstance(payloads, Iterable):
            raise InvalidArgument(f"append_many({payloads!r}): expected payloads, one after the other")
        batch = [_as_bytes(payload) for payload in payloads]
        if not batch:
            raise InvalidArgument("append_many needs at least one payload")
        self._check_size(max(map(len, batch)))
        return await self._enqueue_many(batch)

    async def wait_writable(self, *, timeout: float | None = None) -> None:
        """Wait until an entry of maximum size can be appended, behind the appends that wait for memory.

        `timeout`: seconds. Raises `BookieBusy` on timeout, `LedgerClosed`.
        """
        await (self._room() if timeout is None else self._in_time(self._room(), deadline_of(timeout)))

    async def _room(self) -> None:
        async with self._queue_for_memory:
            size = self._payload_size_max + self._overhead
            await self._acquire(size)
            self._budget.release(size)

    async def write(self, entry_id: int, payload: Payload, *, timeout: float | None = None) -> int:
        """Append an entry under an id that the caller chooses: see `AdvancedLedgerWriter`.

        Raises `NotSupported` on any other ledger.
        """
        raise NotSupported(
            "the ledger assigns entry ids automatically: use append(), or create it with advanced=True",
            ledger_id=self.ledger_id,
            entry_id=entry_id,
        )

    async def force(self, *, timeout: float | None = None) -> int:
        """Sync all entries acknowledged before the call to disk; return the last add confirmed.

        With `deferred_sync` an append is acknowledged before it is on disk, and only `force` confirms it, so that
        readers can read it. On any other ledger the entries are on disk already; `force` has every bookie sync again.
        `timeout`: seconds.

        Raises `LedgerClosed`, and the error of the first bookie that did not sync: no entry is confirmed then, and the
        call may be repeated. Raises `WriteFailed` if the connection to a bookie ended in between: the bookie may have
        lost acknowledged entries, so the writer ends after the last forced entry. Source: client-protocol 2.18.
        """
        self._check_open()
        self._flush()
        target = self._pipeline.head
        if target < 0:
            return self.last_add_confirmed
        length = self._channel.length_at(target)
        async with TimeLimit(timeout, f"force ledger {self.ledger_id}"):
            await force_everywhere(self._pool, self.ledger_id, list(dict.fromkeys(self._pipeline.ensemble)))
        if self._rules.is_deferred_sync and target > self._pipeline.last_add_confirmed:
            self._check_pipeline()
            self._check_unforced()
            self._pipeline.forced(target)
            if target == self._pipeline.last_add_pushed:
                self._channel.unforced.forced()
            self._forced_length = length
            self._announcer.confirmed(self._announcements)
        return self.last_add_confirmed

    def allow_ensemble_changes(self, allowed: bool) -> None:
        """Switch the replacement of failed bookies on or off (client-protocol 2.9)."""
        self._pipeline.allows_changes = switch("allow_ensemble_changes", allowed)

    def _check_pipeline(self) -> None:
        error = self._pipeline.error
        if error is not None:
            raise LedgerClosed(f"the writer has ended: {error}", ledger_id=self.ledger_id) from error

    def _check_unforced(self) -> None:
        """Raise `WriteFailed` and end the writer if a bookie may have lost entries that it acknowledged."""
        if (bookie := self._channel.unforced.lost_connection()) is None:
            return
        error = WriteFailed(
            f"the connection to bookie {bookie} ended before it was forced: entries that it acknowledged may be lost, "
            "and a ledger with deferred sync cannot replace it",
            ledger_id=self.ledger_id,
            bookie=bookie,
        )
        self._channel.carry_out(self._pipeline.fail(error))
        raise error

    def _check_open(self) -> None:
        error = self._pipeline.error
        if error is not None:
            raise LedgerClosed(f"the writer has ended, nothing was sent: {error}", ledger_id=self.ledger_id) from error
        if self._closer.is_sealing:
            raise LedgerClosed("the ledger is being sealed, nothing was sent", ledger_id=self.ledger_id)

    def _accepted(self, payload: Payload) -> bytes:
        """Return the payload as bytes. Raises `InvalidArgument` if it is too large."""
        data = _as_bytes(payload)
        if len(data) > self._payload_size_max:
            self._check_size(len(data))
        return data

    def _check_size(self, size: int) -> None:
        if size > self._payload_size_max:
            raise InvalidArgument(
                f"an entry of {size:,} bytes exceeds the limit of {self._payload_size_max:,}, which follows from "
                "frame_size_max and memory_limit; split it",
                ledger_id=self.ledger_id,
            )

    def _try_enqueue(self, data: bytes) -> asyncio.Future[int] | None:
        """Queue one entry for this loop iteration; return None if it has to wait for memory."""
        if self._pipeline.error is not None or self._closer.is_sealing:
            self._check_open()
        if len(data) > self._payload_size_max:
            self._check_size(len(data))
        if not self._queue_for_memory.is_empty or not self._budget.try_acquire(len(data) + self._overhead):
            return None
        return self._queue(data)

    def _queue(self, data: bytes) -> asyncio.Future[int]:
        future: asyncio.Future[int] = self._loop.create_future()
        self._payloads.append(data)
        self._futures.append(future)
        if len(self._payloads) == 1:
            if self._is_lone and not self._pipeline.has_undelivered:
                self._scheduler.send_alone(self)
            else:
                self._scheduler.join(self)
        elif self._is_held and len(self._payloads) == HELD_MAX:
            self._resume()
        return future

    async def _enqueue(self, data: bytes) -> asyncio.Future[int]:
        began_s = self._loop.time()
        async with self._queue_for_memory:
            await self._acquire(len(data) + self._overhead)
            self._had_memory(began_s)
            return self._queue(data)

    def _had_memory(self, began_s: float) -> None:
        if self._latency is not None:
            self._latency.memory_granted(began_s, self.ledger_id)

    async def _enqueue_many(self, batch: list[bytes]) -> asyncio.Future[int]:
        """Send a batch in pieces, as memory allows; return the future of its last entry."""
        began_s = self._loop.time()
        async with self._queue_for_memory:
            self._flush()
            future: asyncio.Future[int] = self._loop.create_future()
            start = 0
            for stop, size in self._pieces(batch):
                await self._acquire(size)
                piece = batch[start:stop] if stop - start < len(batch) else batch
                start = stop
                last = self._pipeline.last_add_pushed + len(piece)
                self._channel.note_trace(last)
                self._add(piece, size, last, [future] if stop == len(batch) else [])
                self._quorum_timeout.watch()
            self._had_memory(began_s)
            return future

    def _pieces(self, batch: list[bytes]) -> list[tuple[int, int]]:
        """Cut a batch into buffers: (index after the last entry, bytes) of each."""
        overhead = self._overhead
        if len(batch) == 1:
            return [(1, len(batch[0]) + overhead)]
        ends = list(accumulate([len(data) + overhead for data in batch]))
        if ends[-1] <= self._batch_size_max:
            return [(len(batch), ends[-1])]
        pieces: list[tuple[int, int]] = []
        start = size = 0
        while start < len(batch):
            stop = max(start + 1, bisect_right(ends, size + self._batch_size_max, start))
            pieces.append((stop, ends[stop - 1] - size))
            start, size = stop, ends[stop - 1]
        return pieces

    async def _acquire(self, size: int) -> None:
        self._check_open()
        if self._budget.try_acquire(size):
            return
        self._flush()  # Otherwise it could wait for memory that its own queue holds.
        self._memory = [self._loop.create_future()]
        await self._budget.acquire(size, self._memory[0])
        try:
            self._check_open()
        except LedgerClosed:
            self._budget.release(size)
            raise

    def send_queued(self, *, may_hold: bool) -> None:
        """Send the queue unless it may be held: see `send_scheduler.ScheduledWriter`."""
        self._is_held = may_hold and self._pipeline.pending_count > 0 and len(self._payloads) < HELD_MAX
        if not self._is_held:
            self._flush()

    def _resume(self) -> None:
        """End holding, since no entry is in flight: held entries are sent at the end of this loop iteration."""
        self._is_held = False
        if self._payloads:
            self._scheduler.join(self)

    def _flush(self) -> None:
        """Package and send the queued entries."""
        self._is_held = False
        if not self._payloads:
            return
        payloads, futures = self._payloads, self._futures
        self._payloads, self._futures = [], []
        self._is_lone = len(payloads) == 1
        start = 0
        for stop, size in self._pieces(payloads):
            if self._pipeline.error is not None:
                self._budget.release(size)
                self._refuse(futures[start:stop])
            else:
                self._add(payloads[start:stop], size, self._pipeline.last_add_pushed + 1, futures[start:stop])
            start = stop
        self._quorum_timeout.watch()

    def _add(self, payloads: list[bytes], size: int, first: int, futures: list[asyncio.Future[int]]) -> None:
        """Send a batch of `size` bytes. The futures are those of its entries from `first` on."""
        self._waiting.append((first, futures))
        self._time(len(payloads))
        pushed = self._pipeline.last_add_pushed
        try:
            self._channel.add(payloads)
        except Exception as cause:  # noqa: BLE001  (such as a MemoryError: what has ids is unknown, the rest not sent)
            if self._pipeline.last_add_pushed == pushed:
                self._waiting.pop()
                self._budget.release(size)
            self._task_died(cause)
            self._refuse(futures)

    def _time(self, count: int) -> None:
        """Time the batch of `count` entries that is sent next, unless one is being timed."""
        if self._timed_last < 0:
            self._timed_last, self._timed_s = self._pipeline.last_add_pushed + count, self._loop.time()

    def _refuse(self, futures: list[asyncio.Future[int]]) -> None:
        cause = self._pipeline.error
        for future in futures:
            if not future.done():
                error = LedgerClosed(f"the writer has ended, nothing was sent: {cause}", ledger_id=self.ledger_id)
                error.__cause__ = cause
                _fail(future, error)

    # -- waiting -------------------------------------------------------------------------------------------------

    async def _outcome(self, future: asyncio.Future[int]) -> int:
        try:
            return await future
        except asyncio.CancelledError:
            raise asyncio.CancelledError(self._cancelled()) from None

    def _cancelled(self) -> str:
        return f"append to ledger {self.ledger_id} cancelled: the entry may or may not be stored"

    async def _confirmed_in_time(self, future: asyncio.Future[int], deadline: float) -> int:
        try:
            async with asyncio.timeout_at(deadline):
                return await self._outcome(future)
        except TimeoutError:
            raise AckQuorumTimeout(
                "the entry was not confirmed in time; it may or may not be stored", ledger_id=self.ledger_id
            ) from None

    async def _in_time(self, waiting: Awaitable[T], deadline: float) -> T:
        try:
            async with asyncio.timeout_at(deadline):
                return await waiting
        except TimeoutError:
            raise BookieBusy(
                f"no memory within the memory_limit of {self._budget.limit:,} bytes in time; of this entry, or of the "
                "rest of this batch, nothing was sent",
                ledger_id=self.ledger_id,
            ) from None

    # -- decisions of the pipeline (AddOwner) --------------------------------------------------------------------

    def on_confirmed(self, first: int, last: int) -> None:
        self._counts.entries_confirmed += last - first + 1
        if 0 <= self._timed_last <= last:
            self._counts.appends.succeeded.record(self._loop.time() - self._timed_s)
            self._timed_last = -1
            if self._latency is not None:
                late_bookie = self._failed_bookie or self._channel.late_bookie
                self._latency.replica_answered("append", self._timed_s, late_bookie, self.ledger_id)
                self._failed_bookie = None
        for entry_id, future in self._take_waiting(last):
            if not future.done():
                future.set_result(entry_id)
        if (self._is_held or self._closer.waiters) and not self._pipeline.has_undelivered:
            self._closer.wake()
            self._resume()
        if not self._rules.is_deferred_sync:
            self._announcer.confirmed(self._announcements)

    def on_failed(self, first: int, last: int, error: BookKeeperError) -> None:
        self._counts.entries_failed += last - first + 1
        if 0 <= self._timed_last <= last:
            self._counts.appends.failed.record(self._loop.time() - self._timed_s)
            self._timed_last = -1
        self._final_length = self._confirmed_length()
        for entry_id, future in self._take_waiting(last):
            if not future.done():
                _fail(future, unknown_outcome(error, self.ledger_id, entry_id))
        self._closer.wake()
        self._refuse(self._memory)
        if self._is_held:
            self._resume()

    def on_change(self, change: ChangeEnsemble) -> None:
        self._counts.ensemble_changes += 1
        self._failed_bookie = change.failed[0][1] if change.failed else None
        self._tasks.start(self._change(change), f"change the ensemble of ledger {self.ledger_id}")

    def on_close(self, close: CloseLedger) -> None:
        self._refuse(self._memory)
        self._closer.begin(close)

    def on_released(self, size: int) -> None:
        self._budget.release(size)
        if self._closer.waiters:
            self._closer.wake()

    def _take_waiting(self, last: int) -> Iterator[tuple[int, asyncio.Future[int]]]:
        """Remove and yield the futures of entries up to `last`, in order, with their ids."""
        return take_futures(self._waiting, last)

    async def _change(self, change: ChangeEnsemble) -> None:
        """Commit replacements for the failed bookies, in spite of concurrent changes to the record."""

        def needed(record: LedgerMetadata) -> bool:
            return self._pipeline.is_open and change_needed(record, change.failed)

        def transform(candidates: Sequence[BookieId], record: LedgerMetadata) -> LedgerMetadata:
            return with_ensemble(record, change.first_entry_id, changed_ensemble(record, change, candidates))

        try:
            versioned = await with_candidates(
                self._bookies, lambda candidates: self._record.update(needed, partial(transform, candidates))
            )
        except BookKeeperError as error:
            self._channel.carry_out(self._pipeline.change_failed(self._channel.with_causes(error)))
        else:
            self._channel.metadata_changed(versioned.metadata)

    def _task_died(self, cause: BaseException) -> None:
        """End the writer: a background task failed unexpectedly, a programming error."""
        error = LocalProtocolError(f"the writer has failed: {cause!r}", ledger_id=self.ledger_id)
        error.__cause__ = cause
        if not self._closer.failed(error):
            self._channel.carry_out(self._pipeline.fail(error))

    # -- ending --------------------------------------------------------------------------------------------------

    async def seal(self, *, force: bool = True, timeout: float | None = None) -> int:
        """Wait until every appended entry is confirmed, then end the ledger permanently; return its last entry id.

        With `deferred_sync` acknowledged entries are forced first. With `force=False` the sealed ledger ends at the
        last forced entry. `timeout`: seconds.

        Raises the error of the first append that failed, if any did: the ledger then ends before that entry, or
        recovery determines its end. Raises `VersionConflict` if another client ended it at another entry. After a
        timeout or cancellation before the end is written, the writer stays open; after a later one, call `seal` again.
        Idempotent, with one outcome.
        """
        return await self._closer.seal(switch("force", force), seconds(timeout))

    async def close(self) -> None:
        """Release the writer without sealing the ledger; recovery determines its end. Pending entries become unknown.

        A seal that is already being written is finished first. Idempotent.
        """
        self._closer.is_abandoned = True
        error = LedgerClosed("the writer was closed", ledger_id=self.ledger_id)
        self._announcer.forget(self._announcements)
        self._quorum_timeout.stop()
        self._channel.carry_out(self._pipeline.abandon(error))
        self._flush()
        self._refuse(self._memory)
        async with self._queue_for_memory:  # What waited in it knows now that it was not sent.
            pass
        await self._closer.wait_written()
        await self._tasks.stop()

    def client_closed(self) -> None:
        """End the writer because its client closes: all pending entries become unknown, also those after a hole."""
        self._closer.is_abandoned = True
        self._quorum_timeout.stop()
        self._channel.carry_out(self._pipeline.abandon(ClientClosed("the client was closed", ledger_id=self.ledger_id)))
        self._flush()
        self._refuse(self._memory)

    async def wait_whole(self) -> None:
        """Wait until all replicas of the ledger's entries have answered, if it was sealed by this writer."""
        await self._closer.wait_whole()

    async def client_stopped(self) -> None:
        """Stop what the writer does in the background. Its client has closed the metadata store."""
        await self._tasks.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Seal after a normal end of the block; after an exception only close."""
        try:
            if error_type is None:
                await self.seal()
        finally:
            await self.close()


class TracedLedgerWriter(LedgerWriter):
    """A writer whose appends have the identity of their caller's span. Others need not ask for it at each append."""

    __slots__ = ()

    def _queue(self, data: bytes) -> asyncio.Future[int]:
        self._channel.note_trace(self._pipeline.last_add_pushed + len(self._payloads) + 1)
        return super()._queue(data)


def _as_bytes(payload: Payload) -> bytes:
    """Return the payload itself, or a copy if the caller could change it."""
    if type(payload) is bytes:
        return payload
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    raise InvalidArgument(f"a payload is bytes, bytearray or memoryview, not {type(payload).__name__}")


def _fail(future: asyncio.Future[int], error: BookKeeperError) -> None:
    """Fail an append that may never be awaited: `seal` reports the failure, so asyncio need not log each one."""
    future.set_exception(error)
    future.exception()
