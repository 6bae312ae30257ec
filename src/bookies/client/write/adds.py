"""Execution of an `AddPipeline`'s effects: package entries, send them, and keep their bytes while a replica needs them.

A batch of entries is packaged once into one buffer of v2 ADD frames. Every bookie is sent that same buffer, or slices
of it if a striped ledger gives the bookie only some of the entries. Resending after an ensemble change sends the same
bytes again, so all replicas are identical. A batch is kept until each replica of each of its entries has answered or
been replaced.

`AddChannel` is shared by the writer and by the write-back of a recovery; it calls its owner for decisions about the
ledger as a whole.
"""

from __future__ import annotations

import asyncio
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Protocol, TypeVar

from msgspec import Struct

from bookies.client.transport.client_counts import ClientCounts
from bookies.client.transport.client_latency import ClientLatency
from bookies.client.transport.connection import Flushes
from bookies.client.transport.open_ledgers import NO_OPTIONS, AddOptions
from bookies.client.transport.unanswered import Outcome
from bookies.errors import BookieBusy, BookKeeperError, ClientClosed, NotEnoughBookies
from bookies.kernels import pack_add_frames
from bookies.model import BookieId, DigestType, Ensemble, LedgerMetadata
from bookies.protocol.ledger import AddPipeline
from bookies.protocol.ledger.add import ChangeEnsemble, CloseLedger, Confirmed, Effects, Failed, RetryLater, Send
from bookies.protocol.pacing.busy_backoff import delay_s, maybe_delay_s
from bookies.wire.digest import mac_key, master_key, package_lac
from bookies.wire.v2 import add_head

TRACED_MAX = 16  # entries of one batch whose identity of a trace a bookie is sent
FRAME_OVERHEAD = 60  # bytes of a frame that are neither digest nor payload: length word, packet header, key, header
_LENGTH_OFFSET = 52  # of the accumulated length in a frame
_I64 = struct.Struct(">q")


R = TypeVar("R")


class AddPool(Protocol):
    """The parts of a `BookiePool` that adds need."""

    connection_count: int
    counts: ClientCounts
    latency: ClientLatency | None

    def trace(self) -> str: ...

    @property
    def flushes(self) -> Flushes: ...

    def send_adds(
        self,
        bookie: BookieId,
        ledger_id: int,
        entry_ids: Sequence[int],
        frames: bytes,
        sink: AddReplica,
        options: AddOptions = ...,
    ) -> None: ...

    async def force(self, bookie: BookieId, ledger_id: int) -> None: ...

    def start_write_lac(
        self, bookie: BookieId, ledger_id: int, last_add_confirmed: int, master_key: bytes, body: bytes
    ) -> asyncio.Future[Outcome]: ...

    def check(self, bookie: BookieId, outcome: Outcome, response_type: type[R]) -> R: ...

    def ended_count(self, bookie: BookieId) -> int: ...


class AddOwner(Protocol):
    """Owner of an `AddChannel`. Called on the loop, in the order of the pipeline's effects; must not call back."""

    def on_confirmed(self, first: int, last: int) -> None: ...

    def on_failed(self, first: int, last: int, error: BookKeeperError) -> None: ...

    def on_change(self, change: ChangeEnsemble) -> None: ...

    def on_close(self, close: CloseLedger) -> None: ...

    def on_released(self, size: int) -> None:
        """Release the memory of frames of `size` bytes."""


class Window(Protocol):
    """The frames of entries that a replica may still need."""

    def push(self, first: int, frames: bytes, starts: Sequence[int]) -> None: ...

    def frames(self, entry_ids: Sequence[int]) -> bytes: ...

    def length_at(self, entry_id: int) -> int: ...

    def may_release(self, last: int) -> bool: ...

    def release(self, bound: int) -> int: ...


class _Batch(Struct, frozen=True, gc=False):
    """Entries first..last as frames. `starts`: offsets of the frames in `frames`, and the end of the last one."""

    first: int
    last: int
    frames: bytes
    starts: Sequence[int]


class SendWindow:
    """The frames of entries that a replica may still need, in batches of consecutive ids.

    `first`: the first id of the first batch. `length`: payload bytes of the ledger before it.
    """

    def __init__(self, first: int, length: int) -> None:
        self._batches: list[_Batch] = []
        self._released = first - 1
        self._released_length = length

    def may_release(self, last: int) -> bool:
        """Report whether the oldest batch ends at or before this id."""
        return bool(self._batches) and self._batches[0].last <= last

    def push(self, first: int, frames: bytes, starts: Sequence[int]) -> None:
        """Keep the frames of the next ids, from `first` on."""
        self._batches.append(_Batch(first, first + len(starts) - 2, frames, starts))

    def frames(self, entry_ids: Sequence[int]) -> bytes:
        """Return the frames of these ascending ids; for all ids of the newest batch its buffer itself."""
        newest = self._batches[-1]
        if len(entry_ids) == newest.last - newest.first + 1 and entry_ids[0] == newest.first:
            return newest.frames
        batches = [newest] if entry_ids[0] >= newest.first else self._batches
        parts: list[bytes] = []
        index = bisect_right(batches, entry_ids[0], key=_first_of) - 1
        for first, last in _runs(entry_ids):
            while batches[index].last < first:
                index += 1
            batch = batches[index]
            while batch.last < last:
                parts.append(batch.frames[batch.starts[first - batch.first] :])
                index += 1
                batch, first = batches[index], batch.last + 1
            parts.append(batch.frames[batch.starts[first - batch.first] : batch.starts[last - batch.first + 1]])
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def length_at(self, entry_id: int) -> int:
        """Return the payload bytes of the ledger up to and including this entry, held or the last one released."""
        if entry_id == self._released:
            return self._released_length
        batch = self._batches[bisect_right(self._batches, entry_id, key=_first_of) - 1]
        return _length_in(batch, entry_id)

    def release(self, bound: int) -> int:
        """Drop the batches whose ids are all below `bound`; return the bytes freed."""
        batches = self._batches
        if not batches or batches[0].last >= bound:
            return 0
        count = size = 0
        for batch in batches:
            if batch.last >= bound:
                break
            count += 1
            size += len(batch.frames)
        newest = batches[count - 1]
        self._released = newest.last
        self._released_length = _length_in(newest, newest.last)
        del batches[:count]
        return size


class LedgerFrames:
    """The frames of a ledger's entries: packed here, and kept in `window` while a replica may need them.

    `length`: payload bytes of the ledger with all entries packed. `overhead`: bytes of a frame besides its payload.
    """

    def __init__(
        self,
        ledger_id: int,
        digest_type: DigestType,
        password: bytes,
        window: Window,
        *,
        length: int = 0,
        is_recovery: bool = False,
    ) -> None:
        self.window = window
        self.length = length
        self.overhead = FRAME_OVERHEAD + digest_type.size
        self.ledger_id = ledger_id
        self._digest_type = digest_type
        self._mac_key = mac_key(password)
        self.master_key = master_key(password)
        self._head = add_head(self.master_key, is_recovery=is_recovery, is_high_priority=is_recovery)

    def pack(self, first: int, last_add_confirmed: int, payloads: Sequence[bytes]) -> bytes:
        """Return the frames of entries from `first` on, which are kept too."""
        frames: bytes
        frames, starts, self.length = pack_add_frames(
            self._head,
            self.ledger_id,
            first,
            last_add_confirmed,
            self.length,
            payloads,
            self._digest_type,
            self._mac_key,
        )
        self.window.push(first, frames, starts)
        return frames

    def lac_body(self, last_add_confirmed: int) -> bytes:
        """Return the body of an explicit last add confirmed."""
        return package_lac(self._digest_type, self._mac_key, self.ledger_id, last_add_confirmed)


class AddReplica:
    """One bookie at one position of the ensemble: the sink of its responses.

    Responses reach the pipeline with the position that the add was sent for, so a bookie that returns at another
    position cannot acknowledge for the former one (X-43).

    Entries that a busy bookie refuses are sent to it again, see `protocol/pacing/busy_backoff.py`. Meanwhile they are
    unanswered for the pipeline.
    """

    __slots__ = ("_attempt", "_channel", "_refused", "_refused_at", "bookie", "position")

    def __init__(self, channel: AddChannel, position: int, bookie: BookieId) -> None:
        self._channel = channel
        self.position = position
        self.bookie = bookie
        self._attempt = 0  # retries since it last accepted an entry
        self._refused: list[int] = []  # to be sent again, by a timer
        self._refused_at = 0.0  # loop time of the first refusal since it last accepted an entry

    def on_acknowledged(self, bookie: BookieId, entry_ids: Sequence[int]) -> None:
        if self._attempt:
            self._attempt = 0
        self._channel.on_acknowledged(self.position, bookie, entry_ids)

    def on_failed(self, bookie: BookieId, entry_ids: Sequence[int], error: BookKeeperError) -> None:
        if not isinstance(error, BookieBusy) or not self._schedule_retry(entry_ids, error):
            self._channel.on_failed(self.position, bookie, entry_ids, error)

    def _schedule_retry(self, entry_ids: Sequence[int], error: BookieBusy) -> bool:
        """Schedule a retry of these entries and return True, unless the bookie has been busy for too long."""
        channel = self._channel
        if not channel.is_in_use(self):
            return False
        if not self._refused:
            now = channel.loop.time()
            if self._attempt == 0:
                self._refused_at = now
            delay = maybe_delay_s(self._attempt, now - self._refused_at, channel.timeout_s)
            if delay is None:
                return False
            self._attempt += 1
            channel.loop.call_later(delay, self._resend, error)
        self._refused += entry_ids
        return True

    def _resend(self, error: BookieBusy) -> None:
        entry_ids, self._refused = sorted(set(self._refused)), []
        self._channel.send_again(self, entry_ids, error)


class Unforced:
    """Deferred sync: the bookies that received entries since the last force, and whether one may have lost them.

    A bookie answers such an add before the entry is on disk. It may lose power, restart, and sync what is left. So its
    answer to a force covers an entry only on the connection on which it received the entry (I-25).
    """

    def __init__(self, pool: AddPool) -> None:
        self._pool = pool
        self._counts: dict[BookieId, int] = {}  # connections that had ended when the first entry was sent

    def sent(self, bookie: BookieId) -> None:
        """Note that entries are about to be sent to a bookie."""
        if bookie not in self._counts:
            self._counts[bookie] = self._pool.ended_count(bookie)

    def forced(self) -> None:
        """Note that all entries sent until now are durable."""
        self._counts.clear()

    def lost_connection(self) -> BookieId | None:
        """Return a bookie whose connection has ended since it received entries; None: there is none."""
        for bookie, count in self._counts.items():
            if self._pool.ended_count(bookie) != count:
                return bookie
        return None


class AddChannel:
    """An `AddPipeline` with bytes. `timeout_s`: seconds; a bookie that has been busy for this time has failed."""

    def __init__(
        self,
        pool: AddPool,
        pipeline: AddPipeline,
        owner: AddOwner,
        frames: LedgerFrames,
        timeout_s: float,
        options: AddOptions = NO_OPTIONS,
    ) -> None:
        self._pool = pool
        self._options = options
        self._owner = owner
        self.timeout_s = timeout_s
        self._replicas = [AddReplica(self, position, bookie) for position, bookie in enumerate(pipeline.ensemble)]
        self._failures: dict[str, BookKeeperError] = {}  # last failure of each bookie
        self.unforced = Unforced(pool)
        self.frames = frames
        self._window = frames.window
        self.loop = asyncio.get_running_loop()
        self.pipeline = pipeline
        self.late_bookie = BookieId("")  # whose answer confirmed the last entries
        self.piggybacked = -1  # the last add confirmed that the newest entry carries
        self._traces: dict[int, str] = {}  # by entry, until no replica needs it

    def add(self, payloads: Sequence[bytes], length: int | None = None) -> None:
        """Add entries, with ids from `pipeline.last_add_pushed + 1` on.

        Uses the payloads' size and `LedgerFrames.overhead` per entry in memory.

        `length`: payload bytes of the ledger before them, if that differs from the sum of what was added (write-back).
        """
        if length is not None:
            self.frames.length = length
        pipeline = self.pipeline
        frames = self._package(pipeline.last_add_pushed + 1, payloads)
        entry_ids = pipeline.add_to_all(len(payloads))
        if entry_ids is None:
            self.carry_out(pipeline.add(len(payloads)))
            return
        for position, bookie in enumerate(pipeline.ensemble):
            self._send_frames(position, bookie, entry_ids, frames)

    def _package(self, first: int, payloads: Sequence[bytes]) -> bytes:
        """Create the frames of entries from `first` on, and keep them."""
        self.piggybacked = self.pipeline.header_last_add_confirmed
        return self.frames.pack(first, self.piggybacked, payloads)

    def note_trace(self, entry_id: int) -> None:
        """Note before an entry is added that its bookies are to know the caller's span, if that is traced."""
        if trace := self._pool.trace():
            self._traces[entry_id] = trace

    def length_at(self, entry_id: int) -> int:
        """Return the payload bytes of the ledger up to and including this entry, not before the confirmed end."""
        return self._window.length_at(entry_id)

    def metadata_changed(self, metadata: LedgerMetadata) -> None:
        """End the writer's ensemble change with the new record."""
        self.carry_out(self.pipeline.metadata_changed(metadata))
        self._release()

    def ensemble_chosen(self, ensemble: Ensemble) -> None:
        """End the recovery's ensemble change with the new ensemble."""
        self.carry_out(self.pipeline.ensemble_chosen(ensemble))
        self._release()

    def on_acknowledged(self, position: int, bookie: BookieId, entry_ids: Sequence[int]) -> None:
        pipeline = self.pipeline
        if effects := pipeline.acknowledged(position, bookie, entry_ids):
            self.late_bookie = bookie
            self.carry_out(effects)
        if self._window.may_release(pipeline.head) or pipeline.error is not None:
            self._release()

    def on_failed(self, position: int, bookie: BookieId, entry_ids: Sequence[int], error: BookKeeperError) -> None:
        self._failures[bookie] = error
        self.carry_out(self.pipeline.failed(position, bookie, entry_ids, error))
        self._release()

    def is_in_use(self, replica: AddReplica) -> bool:
        """Report whether entries are still sent to this replica."""
        pipeline = self.pipeline
        return (
            pipeline.is_open
            and self._replicas[replica.position] is replica
            and pipeline.ensemble[replica.position] == replica.bookie
        )

    def send_again(self, replica: AddReplica, entry_ids: Sequence[int], error: BookieBusy) -> None:
        """Resend entries, ascending, that the busy bookie refused, without those that no replica needs any more."""
        if not self.is_in_use(replica):
            self.on_failed(replica.position, replica.bookie, entry_ids, error)
        elif needed := entry_ids[bisect_left(entry_ids, self.pipeline.answered_bound) :]:
            self._send(Send(replica.position, replica.bookie, needed))

    def with_causes(self, error: BookKeeperError) -> BookKeeperError:
        """Return the error; if too few bookies are left, with the last failure of each failed bookie."""
        if not isinstance(error, NotEnoughBookies) or not self._failures:
            return error
        failures = "; ".join(f"{bookie}: {cause.message}" for bookie, cause in self._failures.items())
        explained = NotEnoughBookies(f"{error.message} ({failures})", causes=self._failures)
        explained.__cause__ = error
        return explained

    def carry_out(self, effects: Effects) -> None:
        """Carry out effects in order."""
        for effect in effects:
            if isinstance(effect, Send):
                self._send(effect)
            elif isinstance(effect, Confirmed):
                self._owner.on_confirmed(effect.first, effect.last)
            elif isinstance(effect, Failed):
                self._owner.on_failed(effect.first, effect.last, effect.error)
                self._release()  # Answered frames are not needed any more, even if they waited for the failed entry.
            elif isinstance(effect, ChangeEnsemble):
                self._owner.on_change(effect)
            elif isinstance(effect, RetryLater):
                self.loop.call_later(delay_s(effect.attempt), self._retry, effect)
            else:
                self._owner.on_close(effect)

    def _send(self, send: Send) -> None:
        self._send_frames(send.position, send.bookie, send.entry_ids, self._window.frames(send.entry_ids))

    def _send_frames(self, position: int, bookie: BookieId, entry_ids: Sequence[int], frames: bytes) -> None:
        replica = self._replicas[position]
        if replica.bookie != bookie:
            replica = self._replicas[position] = AddReplica(self, position, bookie)
        if self._options.is_deferred_sync:
            self.unforced.sent(bookie)
        try:
            if self._traces:
                entry_ids, frames = self._send_traced(replica, entry_ids, frames)
            if entry_ids:
                self._pool.send_adds(bookie, self.frames.ledger_id, entry_ids, frames, replica, self._options)
        except ClientClosed as error:
            self.loop.call_soon(replica.on_failed, bookie, entry_ids, error)

    def _send_traced(self, replica: AddReplica, entry_ids: Sequence[int], frames: bytes) -> tuple[Sequence[int], bytes]:
        """Send the entries that have a trace, one at a time; return the others, with their frames.

        In v3 an add costs more, at both ends. So these are few, and the others of a batch go as always.
        """
        traced = [entry_id for entry_id in entry_ids if entry_id in self._traces][:TRACED_MAX]
        if not traced:
            return entry_ids, frames
        for entry_id in traced:
            options, ids = self._options._replace(trace=self._traces[entry_id]), range(entry_id, entry_id + 1)
            frame = self._window.frames(ids)
            self._pool.send_adds(replica.bookie, self.frames.ledger_id, ids, frame, replica, options)
        others = [entry_id for entry_id in entry_ids if entry_id not in traced]
        return others, self._window.frames(others) if others else b""

    def _retry(self, retry: RetryLater) -> None:
        self.carry_out(self.pipeline.retry(retry.position, retry.bookie))

    def _release(self) -> None:
        bound = self.pipeline.answered_bound
        if size := self._window.release(bound):
            self._owner.on_released(size)
        # Only the oldest are visited: the others may be many, for as long as a bookie does not answer.
        while self._traces and (oldest := next(iter(self._traces))) < bound:
            del self._traces[oldest]


def _first_of(batch: _Batch) -> int:
    return batch.first


def _length_in(batch: _Batch, entry_id: int) -> int:
    return int(_I64.unpack_from(batch.frames, batch.starts[entry_id - batch.first] + _LENGTH_OFFSET)[0])


def _runs(entry_ids: Sequence[int]) -> Sequence[tuple[int, int]]:
    """Return the ids as (first, last) of consecutive ones."""
    if isinstance(entry_ids, range) and entry_ids.step == 1:
        return [(entry_ids[0], entry_ids[-1])]
    ends = [at for at, (this, following) in enumerate(pairwise(entry_ids)) if following - this != 1]
    ends.append(len(entry_ids) - 1)
    starts = [0, *[end + 1 for end in ends[:-1]]]
    return [(entry_ids[start], entry_ids[end]) for start, end in zip(starts, ends, strict=True)]


def take_futures(
    waiting: list[tuple[int, list[asyncio.Future[int]]]], last: int
) -> Iterator[tuple[int, asyncio.Future[int]]]:
    """Remove the futures of entries up to `last`, and yield them in order with their ids.

    `waiting`: first id, and the futures from it on; ascending.
    """
    bound = bisect_right(waiting, last, key=itemgetter(0))
    taken = waiting[:bound]
    del waiting[:bound]
    for first, futures in taken:
        count = last - first + 1
        if count < len(futures):
            waiting.insert(0, (last + 1, futures[count:]))
            futures = futures[:count]
        yield from enumerate(futures, first)
