"""`AdvancedLedgerWriter`: the caller chooses the entry ids, in any order.

It suits callers that have numbers of their own (positions in a log, keys of a queue) and write them from several places
at once. An entry is confirmed when it and every smaller id are stored. A hole, an id that is never written, holds back
all ids above it, and the ledger ends before the first hole. A hole is no failure of the bookies, so
`add_quorum_timeout_ms` does not count while the next id to confirm has not been written: give `write` a `timeout`.
Never write two different payloads under one id: this writer refuses the second attempt, but a crash forgets what was
sent, and a ledger cannot be resumed.

Source: client-protocol 2.14, D-15.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence

from bookies.client.base.arguments import whole_number
from bookies.client.transport.open_ledgers import AddOptions
from bookies.client.write.adds import FRAME_OVERHEAD, AddChannel, LedgerFrames
from bookies.client.write.quorum_timeout import deadline_of
from bookies.client.write.write_context import WriteContext
from bookies.client.write.writer import LedgerWriter, Payload
from bookies.errors import NotSupported
from bookies.model import DigestType, LedgerMetadata
from bookies.protocol.ledger.add_advanced import AdvancedAddPipeline


class ScatteredWindow:
    """The frames of entries in any order. `overhead`: bytes of a frame that are not payload."""

    def __init__(self, overhead: int) -> None:
        self._overhead = overhead
        self._frames: dict[int, bytes] = {}
        self._ids: list[int] = []  # ascending
        self._released_length = 0

    def push(self, first: int, frames: bytes, starts: Sequence[int]) -> None:
        """Keep the frame of one entry."""
        self._frames[first] = frames
        insort(self._ids, first)

    def frames(self, entry_ids: Sequence[int]) -> bytes:
        """Return the frames of these ids, in this order."""
        return b"".join([self._frames[entry_id] for entry_id in entry_ids])

    def length_at(self, entry_id: int) -> int:
        """Return the payload bytes of the entries up to and including this one (D-15: unlike the header lengths)."""
        held = self._ids[: bisect_left(self._ids, entry_id + 1)]
        return self._released_length + sum(len(self._frames[held_id]) - self._overhead for held_id in held)

    def may_release(self, last: int) -> bool:
        """Report whether the first entry is this one or before it."""
        return bool(self._ids) and self._ids[0] <= last

    def release(self, bound: int) -> int:
        """Drop the entries below `bound`; return the bytes freed."""
        count = bisect_left(self._ids, bound)
        dropped = [self._frames.pop(entry_id) for entry_id in self._ids[:count]]
        del self._ids[:count]
        size = sum(map(len, dropped))
        self._released_length += size - count * self._overhead
        return size


class AdvancedChannel(AddChannel):
    """An `AddChannel` whose entries come one at a time with their ids."""

    pipeline: AdvancedAddPipeline

    def write(self, entry_id: int, payload: bytes) -> None:
        """Send an entry that the pipeline's `check` has accepted."""
        self.note_trace(entry_id)
        self._package(entry_id, [payload])
        self.carry_out(self.pipeline.write(entry_id))


class AdvancedLedgerWriter(LedgerWriter):
    """A writer whose caller chooses the entry ids, in any order. Created by `Client.create(advanced=True)`.

    An entry is confirmed when it and every smaller id are stored. A hole, an id that is never written, holds back all
    ids above it for as long as it exists: `add_quorum_timeout_ms` counts only while bookies do not answer. The ledger
    ends before the first hole.
    """

    _pipeline: AdvancedAddPipeline
    _channel: AdvancedChannel

    def _make_pipeline(self, context: WriteContext, metadata: LedgerMetadata, password: bytes) -> None:
        digest_type = metadata.digest_type or DigestType.CRC32C
        self._by_id: dict[int, asyncio.Future[int]] = {}  # futures of pending entries
        self._pipeline = AdvancedAddPipeline(metadata, rules=self._rules)
        window = ScatteredWindow(FRAME_OVERHEAD + digest_type.size)
        self._channel = AdvancedChannel(
            self._pool,
            self._pipeline,
            self,
            LedgerFrames(metadata.ledger_id, digest_type, password, window),
            context.config.add_timeout_ms / 1000,
            AddOptions(self._proof, self._rules.is_deferred_sync),
        )

    async def write(self, entry_id: int, payload: Payload, *, timeout: float | None = None) -> int:
        """Append one entry under this id; return the id once the entry and all before it are durable on the ack quorum.

        `timeout`: seconds. Raises `EntryExists` (the id is pending or acknowledged; the entry was not sent), and as
        `LedgerWriter.append`.
        """
        deadline = None if timeout is None else deadline_of(timeout)
        future = await self._start(entry_id, payload, deadline)
        if deadline is None:
            return await self._outcome(future)
        return await self._confirmed_in_time(future, deadline)

    async def _start(self, entry_id: int, payload: Payload, deadline: float | None) -> asyncio.Future[int]:
        data = self._accepted(payload)
        entry_id = whole_number("entry_id", entry_id, None)
        self._check_open()
        self._pipeline.check(entry_id)
        size = len(data) + self._overhead
        if entry_id == self._pipeline.head + 1:
            # All other entries may be waiting for this one, so it must not wait for their memory.
            self._budget.take(size)
        elif not self._budget.try_acquire(size):
            waiting = self._budget.acquire(size)
            if deadline is None:
                await waiting
            else:
                await self._in_time(waiting, deadline)
            try:
                self._check_open()
                self._pipeline.check(entry_id)
            except BaseException:
                self._budget.release(size)
                raise
        future = self._by_id[entry_id] = self._loop.create_future()
        self._channel.write(entry_id, data)
        self._quorum_timeout.watch()
        return future

    def append_nowait(self, payload: Payload) -> asyncio.Future[int]:
        """Raise `NotSupported`: on an advanced ledger use `write`."""
        raise self._unnumbered()

    async def append(self, payload: Payload, *, timeout: float | None = None) -> int:
        """Raise `NotSupported`: on an advanced ledger use `write`."""
        raise self._unnumbered()

    async def append_many(self, payloads: Iterable[Payload], *, timeout: float | None = None) -> int:
        """Raise `NotSupported`: on an advanced ledger use `write`."""
        raise self._unnumbered()

    async def push_many(self, payloads: Iterable[Payload]) -> asyncio.Future[int]:
        """Raise `NotSupported`: on an advanced ledger use `write`."""
        raise self._unnumbered()

    def _unnumbered(self) -> NotSupported:
        return NotSupported(
            "entries of an advanced ledger have ids: use write(entry_id, payload)", ledger_id=self.ledger_id
        )

    def _take_waiting(self, last: int) -> Iterator[tuple[int, asyncio.Future[int]]]:
        for entry_id in sorted(entry_id for entry_id in self._by_id if entry_id <= last):
            yield entry_id, self._by_id.pop(entry_id)
