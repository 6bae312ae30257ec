"""`recover_ledger`: fence a ledger's writer, find its end, re-replicate the tail, publish the end.

The shell of `protocol/ledger/fence.py` and `protocol/ledger/recover.py`, which give the reasons; the steps here carry
their names. It may be cancelled or killed anywhere: a decision is visible only after the last swap, the ledger stays in
recovery, and the next recovery starts over. Any number may run at once; one end wins and the others adopt it.

Reads run ahead of the write-back, limited by the memory for the entries. If every bookie stores every entry, a
read requests as many entries as fit into one response, each verified separately. A bookie that runs out of entries
reports the first one it lacks, which the other bookies then decide. Striped ledgers are read entry by entry, several at
once. Bookies answer the fencing round with their last entries. After the highest of these, as many replicas are asked
at once as must report an entry as missing.

Source: client-protocol 4.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeVar

from msgspec import Struct, field

from bookies.client.base.metadata_loop import MetadataLoop
from bookies.client.transport.client_counts import RECOVERY_STAGES
from bookies.client.write.adds import AddChannel, AddPool, LedgerFrames, SendWindow
from bookies.config import ClientConfig
from bookies.errors import (
    BookieTimeout,
    BookieUnreachable,
    BookKeeperError,
    ClientClosed,
    DataUnknown,
    DigestMismatch,
    LedgerClosed,
    LedgerNotFound,
    LocalProtocolError,
    MetadataCorrupt,
    NotEnoughBookies,
    Unauthorized,
)
from bookies.kernels import verify_records
from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.driver import Versioned
from bookies.model import (
    ENTRY_HEADER_SIZE,
    INVALID_ENTRY_ID,
    LAST_ENTRY,
    BookieId,
    DigestType,
    Ensemble,
    LedgerMetadata,
)
from bookies.protocol.ledger import AddPipeline
from bookies.protocol.ledger.add import ChangeEnsemble, CloseLedger
from bookies.protocol.ledger.bookie_health import no_rank
from bookies.protocol.ledger.fence import Fenced, FenceRound, NotFenced, recovery_start
from bookies.protocol.ledger.ledger import (
    announcement_needed,
    close_recovered,
    in_recovery,
    recovery_close_needed,
)
from bookies.protocol.ledger.read import NEGATIVE
from bookies.protocol.ledger.recover import EndOfLedger, EntryRead, TailScan, Undecided, Verdict, recovery_error
from bookies.protocol.placement.placement import changed_ensemble
from bookies.protocol.quorums import write_set
from bookies.runtime.histogram import Stages
from bookies.runtime.ports import Runtime
from bookies.wire.digest import EntryHeader, mac_key, master_key, verify_entry
from bookies.wire.messages import ReadResponse

T = TypeVar("T")
STRIPED_READS = 64  # ids of a striped ledger read at once
BATCH_COUNT_MAX = 10_000  # entries asked for in one batch read
BATCH_SIZE_MAX = 1 << 20  # bytes asked for in one batch read
SPECULATION_S = 0.25  # seconds without an answer until another replica is asked too
# Errors of a batch read that a plain read of its first entry would only repeat.
DEFINITE = (*NEGATIVE, BookieTimeout, Unauthorized, ClientClosed, DataUnknown, DigestMismatch)
_LENGTH_OFFSET = 28  # of the accumulated length in a record, which begins with its size
_I64 = struct.Struct(">q")


class RecoveryPool(AddPool, Protocol):
    """The methods of a `BookiePool` that a recovery needs."""

    @property
    def has_batch_reads(self) -> bool: ...

    async def read_entry(
        self,
        bookie: BookieId,
        ledger_id: int,
        entry_id: int,
        *,
        key: bytes | None = None,
        is_high_priority: bool = False,
    ) -> ReadResponse: ...

    async def read_batch(
        self,
        bookie: BookieId,
        ledger_id: int,
        first: int,
        count_max: int,
        size_max: int,
        *,
        key: bytes | None = None,
    ) -> bytes: ...


class RecoveryParts(Struct, frozen=True):
    """Parts of a client that a recovery uses.

    `candidates`: writable bookies in order of preference. `stages`: durations of its steps. `rank`: of bookies, in the
    order in which replicas are asked.
    """

    runtime: Runtime
    config: ClientConfig
    pool: RecoveryPool
    driver: MetadataDriver
    candidates: Callable[[], Sequence[BookieId]]
    stages: Stages = field(default_factory=lambda: Stages(*RECOVERY_STAGES))
    rank: Callable[[BookieId], int] = no_rank


async def recover_ledger(
    parts: RecoveryParts, ledger_id: int, *, password: bytes, digest_type: DigestType = DigestType.CRC32C
) -> Versioned:
    """Fence the writer, find the end, close the ledger; return the CLOSED record.

    Returns at once if the ledger is closed.

    `digest_type` is used only for ledgers whose record has none.

    Raises `LedgerNotFound`; `Unauthorized` (wrong password); `ClientClosed`; `BookieTimeout` and `RecoveryFailed` (with
    its cause): the end is undecided and no data is lost, repeat when more bookies answer.
    """
    versioned = await _read_record(parts.driver, ledger_id)
    stored = versioned.metadata.password
    if stored is not None and stored != password:
        raise Unauthorized("the password is not the ledger's", ledger_id=ledger_id)
    if versioned.metadata.is_closed:
        return versioned
    recovery = _Recovery(parts, versioned, password, digest_type)
    try:
        return await recovery.run()
    except BookKeeperError as cause:
        error = recovery_error(cause, ledger_id)
        if error is cause:
            raise
        raise error from cause
    finally:
        await recovery.stop()


async def _read_record(driver: MetadataDriver, ledger_id: int) -> Versioned:
    """Return the ledger's record. Raises `LedgerNotFound` only if a majority of the store's servers has none.

    Callers give up a ledger that does not exist, so a server that lags behind must not report it.
    """
    try:
        return await driver.read_ledger(ledger_id)
    except LedgerNotFound:
        [record] = await driver.current_ledgers([ledger_id])
        if record is None:
            raise
    if isinstance(record, MetadataCorrupt):
        raise record
    return record


class _Entries(NamedTuple):
    """Consecutive verified entries. `lengths`: the ledger's accumulated length after each."""

    first: int
    payloads: list[bytes]
    lengths: list[int]

    @property
    def last(self) -> int:
        return self.first + len(self.payloads) - 1

    def chains(self) -> Iterator[tuple[int, list[bytes]]]:
        """Cut where lengths do not add up (ids chosen by the writer); yield (length before, payloads) of each part."""
        start, length = 0, self.lengths[0]
        for index in range(1, len(self.payloads)):
            length += len(self.payloads[index])
            if length != self.lengths[index]:
                yield self.lengths[start] - len(self.payloads[start]), self.payloads[start:index]
                start, length = index, self.lengths[index]
        yield self.lengths[start] - len(self.payloads[start]), self.payloads[start:]


class _Recovery:
    """One run over one ledger that is not closed."""

    def __init__(self, parts: RecoveryParts, versioned: Versioned, password: bytes, digest_type: DigestType) -> None:
        self._parts = parts
        self._pool = parts.pool
        self._record = MetadataLoop(parts.runtime, parts.driver, versioned)
        self._ledger_id = versioned.metadata.ledger_id
        self._digest_type = versioned.metadata.digest_type or digest_type
        self._password = password
        self._key = master_key(password)
        self._mac_key = mac_key(password)
        self._may_batch = parts.pool.has_batch_reads
        self._last_seen = INVALID_ENTRY_ID  # highest entry in the answers to the fencing round
        self._suspects: frozenset[BookieId] = frozenset()  # could not be reached in this recovery: asked last
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._write_back: _WriteBack | None = None

    async def run(self) -> Versioned:
        stages, now_s = self._parts.stages, self._parts.runtime.clock.monotonic
        began_s = now_s()
        announced = await self._record.update(announcement_needed, in_recovery)  # S1
        metadata = announced.metadata
        if metadata.is_closed:
            return announced
        began_s = stages.end("announce", began_s, now_s())
        fenced = await self._fence(metadata)  # S2
        began_s = stages.end("fence", began_s, now_s())
        start = recovery_start(metadata, fenced.last_add_confirmed)  # S3
        pipeline = AddPipeline(metadata, recovery_start=start)
        frames = LedgerFrames(
            self._ledger_id,
            self._digest_type,
            self._password,
            SendWindow(pipeline.last_add_pushed + 1, fenced.length),
            length=fenced.length,
            is_recovery=True,
        )
        write_back = _WriteBack(self._parts, pipeline, frames)
        self._write_back = write_back
        end = await self._read_tail(metadata, start, write_back)  # S4
        began_s = stages.end("read", began_s, now_s())
        await write_back.wait_confirmed()  # S5
        began_s = stages.end("write", began_s, now_s())
        length = write_back.length_at(end) if end > start else await self._length_at(metadata, end, fenced.length)
        fragments = write_back.fragments
        closed = await self._record.update(  # S6
            recovery_close_needed,
            lambda record: close_recovered(record, metadata.last_fragment_first_entry, fragments, end, length),
        )
        stages.end("close", began_s, now_s())
        return closed

    async def stop(self) -> None:
        """Cancel everything pending. Late answers to fencing requests matter only to the bookies."""
        if self._write_back is not None:
            self._write_back.stop()
        running = list(self._tasks)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(coroutine, name=f"recover ledger {self._ledger_id}")
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return task

    # -- requests to one bookie-----------------------------------------------------------------------------------

    async def _ask(self, bookie: BookieId, entry_id: int, is_batch: bool) -> _Entries | BookKeeperError:
        """Fence the ledger and read the entry, in a batch with those after it; return them or the error."""
        try:
            if is_batch and self._may_batch:
                try:
                    return await self._ask_batch(bookie, entry_id)
                except DEFINITE:
                    raise
                except BookKeeperError:
                    # Bookies without batch reads close the connection, which also carries the adds: try only once.
                    # The plain read reports the error.
                    self._may_batch = False
            body, header = await self._read(bookie, entry_id, self._key)
            return _Entries(entry_id, [body[header.payload_offset :]], [header.length])
        except BookKeeperError as error:
            if isinstance(error, BookieUnreachable):
                self._suspects |= {bookie}
            return error

    async def _ask_batch(self, bookie: BookieId, first: int) -> _Entries:
        data = await self._pool.read_batch(
            bookie, self._ledger_id, first, BATCH_COUNT_MAX, BATCH_SIZE_MAX, key=self._key
        )
        starts, problem = verify_records(
            data, 0, len(data), self._ledger_id, first, BATCH_COUNT_MAX, self._digest_type, self._mac_key
        )
        if len(starts) < 2:
            raise DigestMismatch(f"unusable entry: {problem}", ledger_id=self._ledger_id, entry_id=first, bookie=bookie)
        skip = 4 + ENTRY_HEADER_SIZE + self._digest_type.size
        payloads = [data[start + skip : stop] for start, stop in pairwise(starts)]
        return _Entries(first, payloads, [_I64.unpack_from(data, start + _LENGTH_OFFSET)[0] for start in starts[:-1]])

    async def _read(self, bookie: BookieId, entry_id: int, key: bytes | None) -> tuple[bytes, EntryHeader]:
        """Return a verified entry body and its header. Raises `DigestMismatch` and what the pool raises."""
        is_numbered = entry_id != LAST_ENTRY
        response = await self._pool.read_entry(
            bookie, self._ledger_id, entry_id, key=key, is_high_priority=is_numbered and key is not None
        )
        body = bytes(response.body or b"")
        expected = entry_id if is_numbered else None
        return body, verify_entry(self._digest_type, self._mac_key, body, self._ledger_id, expected)

    # -- S2: fence -----------------------------------------------------------------------------------------------

    async def _fence(self, metadata: LedgerMetadata) -> Fenced:
        """Ask all bookies at once. Requests still pending at the verdict continue to fence while the tail is read."""
        fencing = FenceRound(metadata)
        asked = {
            self._start(self._ask_last(bookie)): position for position, bookie in enumerate(metadata.last_ensemble)
        }
        while True:
            for task in await _first_done(asked):
                position, answer = asked.pop(task), task.result()
                if isinstance(answer, BookKeeperError):
                    verdict = fencing.failed(position, answer)
                else:
                    self._last_seen = max(self._last_seen, answer.entry_id)
                    verdict = fencing.found(position, answer.last_add_confirmed, answer.length)
                if isinstance(verdict, NotFenced):
                    raise verdict.error
                if verdict is not None:
                    return verdict

    async def _ask_last(self, bookie: BookieId) -> EntryHeader | BookKeeperError:
        try:
            return (await self._read(bookie, LAST_ENTRY, self._key))[1]
        except BookKeeperError as error:
            if isinstance(error, BookieUnreachable):
                self._suspects |= {bookie}
            return error

    # -- S4: read the tail ---------------------------------------------------------------------------------------

    async def _read_tail(self, metadata: LedgerMetadata, start: int, write_back: _WriteBack) -> int:
        """Read and hand over entry after entry; return the last one to keep."""
        is_batch = metadata.write_quorum == metadata.ensemble_size and self._may_batch
        scan = TailScan(start, 1 if is_batch else STRIPED_READS)
        end = max(start, self._last_seen) + 1  # the first entry that no bookie has reported
        reading: dict[asyncio.Task[_Decision], None] = {}
        decisions: dict[int, _Decision] = {}  # by first id, until handed over
        while True:
            for entry_id in scan.reads():
                reading[self._start(self._decide(metadata, entry_id, is_batch, entry_id == end))] = None
            for task in await _first_done(reading):
                del reading[task]
                decision = task.result()
                decisions[decision.first] = decision
                for effect in scan.decided(decision.first, decision.last, decision.verdict):
                    if isinstance(effect, EndOfLedger):
                        return effect.last_entry_id
                    if isinstance(effect, Undecided):
                        raise decisions[effect.entry_id].error
                    first = effect.first
                    while first <= effect.last:
                        entries = decisions.pop(first).entries
                        await write_back.add(entries)
                        first = entries.last + 1

    async def _decide(self, metadata: LedgerMetadata, entry_id: int, is_batch: bool, is_end: bool) -> _Decision:
        """Ask replicas of the announced record until the entry is found, absent or undecided.

        `is_end`: it is probably absent.
        """
        reading = EntryRead(metadata, entry_id, self._suspects, self._parts.rank)
        asked: dict[asyncio.Task[_Entries | BookKeeperError], BookieId] = {}
        late = 0  # late requests, for each of which another replica is asked
        try:
            while reading.verdict is None:
                wanted = late + max(1, reading.negatives_missing if is_end else 0)
                while len(asked) < wanted and (bookie := reading.next()) is not None:
                    asked[self._start(self._ask(bookie, entry_id, is_batch))] = bookie
                done = await _first_done(asked, SPECULATION_S if reading.has_more else None)
                late += not done
                for task in done:
                    bookie, answer = asked.pop(task), task.result()
                    if isinstance(answer, BookKeeperError):
                        reading.failed(bookie, answer)
                    elif reading.found() is Verdict.FOUND:
                        return _Decision(Verdict.FOUND, answer, None)
            return _Decision(reading.verdict, _Entries(entry_id, [b""], [0]), reading.error)
        finally:
            for task in asked:
                task.cancel()

    async def _length_at(self, metadata: LedgerMetadata, end: int, otherwise: int) -> int:
        """Return the length up to an entry that was not written back, from its header; `otherwise` if unreadable.

        The length may be inaccurate, see D-10.
        """
        if end < 0:
            return 0
        ensemble = metadata.ensemble_at(end)
        for position in write_set(end, metadata.ensemble_size, metadata.write_quorum):
            try:
                return (await self._read(ensemble[position], end, None))[1].length
            except BookKeeperError:
                continue  # Only the length's accuracy depends on it, never the recovery.
        return otherwise


class _Decision(NamedTuple):
    """Outcome of one read. `entries`: those found, or a placeholder that names the id."""

    verdict: Verdict
    entries: _Entries
    cause: BookKeeperError | None

    @property
    def first(self) -> int:
        return self.entries.first

    @property
    def last(self) -> int:
        return self.entries.last

    @property
    def error(self) -> BookKeeperError:
        assert self.cause is not None
        return self.cause


class _WriteBack:
    """S5: write the tail's entries back to the bookies. An `AddOwner`."""

    def __init__(
        self,
        parts: RecoveryParts,
        pipeline: AddPipeline,
        frames: LedgerFrames,
    ) -> None:
        self._pipeline = pipeline
        self._channel = AddChannel(parts.pool, pipeline, self, frames, parts.config.add_timeout_ms / 1000)
        self._candidates = parts.candidates
        self._limit = parts.config.memory_limit
        self._held = 0  # bytes of frames not answered by every replica
        self._loop = asyncio.get_running_loop()
        self._news: asyncio.Future[None] | None = None  # entry confirmed or released, or failure

    @property
    def fragments(self) -> dict[int, Ensemble]:
        return self._pipeline.fragments

    def length_at(self, entry_id: int) -> int:
        return self._channel.length_at(entry_id)

    async def add(self, entries: _Entries) -> None:
        """Send the next entries, once there is memory for them. Raises the error that ended the write-back."""
        self._check()
        if entries.first != self._pipeline.last_add_pushed + 1:
            raise LocalProtocolError("entries are written back out of order", entry_id=entries.first)
        for length, payloads in entries.chains():
            size = sum(map(len, payloads)) + len(payloads) * self._channel.frames.overhead
            while self._pipeline.is_open and self._held and self._held + size > self._limit:
                await self._wait_news()
            self._check()
            self._held += size
            self._channel.add(payloads, length)

    async def wait_confirmed(self) -> None:
        """Wait until every entry is on its ack quorum. Raises the error that ended the write-back."""
        while self._pipeline.is_open and self._pipeline.pending_count:
            await self._wait_news()
        self._check()

    def stop(self) -> None:
        """Stop sending; late answers are ignored."""
        self._channel.carry_out(self._pipeline.abandon(LedgerClosed("the recovery has ended")))

    def _check(self) -> None:
        if self._pipeline.error is not None:
            raise self._pipeline.error

    async def _wait_news(self) -> None:
        self._news = self._loop.create_future()
        await self._news

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def on_confirmed(self, first: int, last: int) -> None:
        self._wake()

    def on_failed(self, first: int, last: int, error: BookKeeperError) -> None:
        self._wake()

    def on_released(self, size: int) -> None:
        self._held -= size
        self._wake()

    def on_change(self, change: ChangeEnsemble) -> None:
        self._loop.call_soon(self._choose, change)

    def on_close(self, close: CloseLedger) -> None:
        raise LocalProtocolError("a write-back asked to close the ledger")

    def _choose(self, change: ChangeEnsemble) -> None:
        try:
            ensemble = changed_ensemble(self._pipeline.metadata, change, self._candidates())
        except NotEnoughBookies as error:
            self._channel.carry_out(self._pipeline.change_failed(error))
        else:
            self._channel.ensemble_chosen(ensemble)


async def _first_done(tasks: dict[asyncio.Task[T], Any], timeout: float | None = None) -> list[asyncio.Task[T]]:
    """Wait for tasks to finish and return them in the order in which they were started.

    Returns none after `timeout` seconds.
    """
    done, _ = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    return [task for task in tasks if task in done]
