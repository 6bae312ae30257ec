"""Fetch of a range of entries: several requests in flight, each response verified, bad and late replicas passed over.

The range is cut at fragment boundaries into *asks*, and an ask into *parts*, one request each. If every bookie of the
ensemble stores every entry, an ask is one batch read, and successive asks go to different bookies. In a striped ledger
a bookie holds a few consecutive entries, which a part then requests. Without batch reads (protocol v3, old bookies) a
part is a single read. Asks are planned ahead in a window that is bounded in bytes and in requests.

A part whose bookie fails, or is late by that bookie's own standard, is requested from its next replica; the first good
response counts and the others are ignored. Only the ask that the caller waits for is treated like this, because no
caller is delayed by the others. No task runs in the background: read-ahead consists of responses in flight, so an
iteration that is dropped half-way leaves no work behind. Source: client-protocol 3.3, 3.4, 3.7 and 3.8.
"""

from __future__ import annotations

import asyncio
import struct
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct, field

from bookies.client.base import EntryBatch
from bookies.client.base.bookie_ranking import READ, READ_BATCH
from bookies.client.read.context import ReadContext
from bookies.client.read.offloaded import OffloadedFetch
from bookies.client.read.read_one import PendingRead
from bookies.client.transport.unanswered import Outcome
from bookies.config import KIB
from bookies.errors import BookieUnreachable, BookKeeperError, ClientClosed, DigestMismatch, MetadataError
from bookies.model import BookieId, Ensemble, LedgerMetadata
from bookies.protocol.ledger.offload import is_given_up
from bookies.protocol.ledger.read import (
    ReplicaReads,
    is_connection_failure,
    longest_run_first,
    read_ranges,
    replica_order,
    run_size,
    why_unreadable,
)
from bookies.protocol.quorums import write_set
from bookies.wire.messages import BatchReadResponse, ReadResponse

BATCH_SIZE = 1024 * KIB  # bytes per request: with less, the cost of a request is measurable
FILL = 0.75  # planned share of BATCH_SIZE, so that few responses stop at the size limit
ASK_REQUESTS_MAX = 128  # requests of one ask
REQUESTS_FIRST = 32  # requests in flight, until the first entries have shown their size
REQUESTS_MAX = 512  # requests in flight
REPAIRS_MAX = 32  # parts requested elsewhere at a time: a client that is slow itself must not flood the bookies
LATE_S = 1.0  # seconds that a late bookie is asked last
GRACE_S = 0.002  # to process responses that have already arrived
_record_head = struct.Struct(">I").pack


class _Part(Struct):
    """Entries first..last, requested from one replica of `first` after the other, by position.

    `data`: the response, whose records begin at `start`: at least one, possibly not all, unverified. `error`: every
    replica failed.
    """

    first: int
    last: int
    ensemble: Ensemble
    order: Sequence[int]
    reads: ReplicaReads
    is_batch: bool
    may_repeat: bool = True  # once, on other connections
    asked: dict[int, tuple[asyncio.Future[Outcome], bool]] = field(default_factory=dict)  # (answer, is a batch read)
    asked_at: float = 0.0  # when the last request was sent
    position: int = -1  # of the replica that sent `data`
    data: bytes | None = None
    start: int = 0
    error: BookKeeperError | None = None


class _Ask(Struct):
    """Consecutive parts that are awaited and delivered together."""

    parts: deque[_Part]


class FetchWindow:
    """The amount that a fetch requests ahead, in asks, requests and bytes. It follows the size of the entries.

    `entry_size`: payload bytes of a typical entry, an estimate. `size_max`: bytes; read only one batch, as large as
    possible.
    """

    def __init__(self, context: ReadContext, entry_size: float, size_max: int | None = None) -> None:
        ahead = context.config.read_ahead_size
        self.batch_size = size_max or min(BATCH_SIZE, ahead // 2)
        self.depth = 1 if size_max else ahead // self.batch_size
        self.requests_max = REQUESTS_FIRST
        self._fill = 1.0 if size_max else FILL
        self._record_size = entry_size + 4 + context.keys.header_size  # bytes of a typical record

    @property
    def batch_count(self) -> int:
        """Return the number of entries that fill one batch."""
        return int(self._fill * self.batch_size / self._record_size)

    def measured(self, batch: EntryBatch) -> None:
        """Update the estimated size of entries: growth at once, because it costs memory, shrinking slowly."""
        size = batch.size / len(batch)
        self._record_size = max(size, 0.75 * self._record_size + 0.25 * size)
        self.requests_max = min(REQUESTS_MAX, 2 * self.requests_max)


class RangeFetch:
    """Entries first..last of one ledger, in order, as verified batches. The caller has checked the bounds.

    `is_parallel`: ask all replicas at once.
    """

    def __init__(
        self,
        context: ReadContext,
        metadata: LedgerMetadata,
        first: int,
        last: int,
        window: FetchWindow,
        *,
        is_parallel: bool = False,
    ) -> None:
        self._context = context
        self._metadata = metadata
        self._last = last
        self._is_single = first == last
        self._window = window
        self._is_parallel = is_parallel
        self._sticky = context.sticky if metadata.ensemble_size == metadata.write_quorum else None
        self._rest: OffloadedFetch | None = None  # delivers the remaining entries instead of the bookies
        self._ranges = read_ranges(metadata, first, last, self._planned_count)
        self._ahead: deque[_Ask] = deque()
        self._in_flight = 0  # parts in `_ahead`
        self._turn = first  # Starting at `first` spreads many short ranges over the replicas, too.
        self._late_until: dict[BookieId, float] = {}
        self._loop = asyncio.get_running_loop()

    def begin_with(self, asked: PendingRead) -> None:
        """Adopt a pending read of the first entry, which is also the last. Call before everything else."""
        first, last, ensemble = next(self._ranges)
        assert first == last == self._last
        others = write_set(asked.position, len(ensemble), self._metadata.write_quorum)[1:]
        order = [asked.position, *(replica_order(others, ensemble, self._ranking(None)) if others else ())]
        part = _Part(first, last, ensemble, order, ReplicaReads(order), is_batch=False)
        part.reads.due()
        part.asked[asked.position], part.asked_at = (asked.answer, False), asked.at
        self._context.counts.requests += 1
        self._ahead.append(_Ask(deque((part,))))
        self._in_flight += 1

    async def next_batch(self) -> EntryBatch | None:
        """Return the next entries, None at the end of the range. May be called again after a cancellation or failure.

        Raises what client-protocol 3.4 chooses if every replica of an entry failed.
        """
        while self._rest is None:
            self._ask_ahead()
            if not self._ahead:
                return None
            ask = self._ahead[0]
            try:
                await self._answered(ask)
            except asyncio.CancelledError:
                self._forget_silent(ask)
                raise
            if ask.parts[0].error is not None:
                await self._follow_replacements(ask.parts[0])
                continue
            batch = self._take(ask)
            if batch is not None:
                if not ask.parts:
                    self._ahead.popleft()
                self._window.measured(batch)
                self._ask_ahead()
                return batch
        return await self._rest.next_batch()

    # -- planning ------------------------------------------------------------------------------------------------
    def _planned_count(self, ensemble: Ensemble) -> int:
        """Return the number of entries of the next ask."""
        count, write_quorum = self._window.batch_count, self._metadata.write_quorum
        has_batches = all(self._knows_batches(bookie) for bookie in ensemble)
        if has_batches and len(ensemble) == write_quorum:
            return count
        return min(count, (write_quorum if has_batches else 1) * min(ASK_REQUESTS_MAX, self._window.requests_max))

    def _ask_ahead(self) -> None:
        while len(self._ahead) < self._window.depth and self._in_flight < self._window.requests_max:
            part = next(self._ranges, None)
            if part is None:
                return
            first, last, ensemble = part
            self._ahead.append(_Ask(deque(self._parts(first, last, ensemble, self._turn))))
            self._turn += 1

    def _parts(
        self, first: int, last: int, ensemble: Ensemble, turn: int, avoided: BookieId | None = None
    ) -> Iterator[_Part]:
        """Request the entries. `turn` spreads the load over the replicas. `avoided` has just sent a bad record."""
        size, write_quorum = len(ensemble), self._metadata.write_quorum
        is_striped, knows = size != write_quorum, self._knows_batches
        rank = self._ranking(avoided)
        orders: list[Sequence[int] | None] = [None] * size  # Orders repeat every `size` ids.
        at = first
        while at <= last:
            order = orders[at % size]
            if order is None:
                positions: Sequence[int]
                if self._sticky is not None:
                    positions = write_set(self._sticky.position, size, write_quorum)
                elif is_striped and self._context.pool.has_batch_reads:
                    positions = longest_run_first(at, size, write_quorum)
                else:
                    positions = write_set(at if is_striped else turn + at - first, size, write_quorum)
                order = orders[at % size] = replica_order(positions, ensemble, rank)
            is_batch = knows(ensemble[order[0]])
            run = run_size(order[0], at, size, write_quorum) if is_batch else 1
            if is_striped and is_batch and at == first:
                # Otherwise runs that divide the ensemble skip half the bookies.
                run = min(run, turn % write_quorum + 1)
            end = min(last, at + run - 1) if run else last
            part = _Part(at, end, ensemble, order, ReplicaReads(order, is_parallel=self._is_parallel), is_batch)
            for position in part.reads.due():
                self._start(part, position)
            self._in_flight += 1
            yield part
            at = end + 1

    def _knows_batches(self, bookie: BookieId) -> bool:
        return self._context.pool.has_batch_reads and self._context.pool.batch_support.knows(bookie)

    def _ranking(self, avoided: BookieId | None) -> Callable[[BookieId], int]:
        """Return the sort key of bookies: healthy first, then those not late, then those that support batch reads."""
        rank, late, now = self._context.pool.health.rank, self._late_until, self._loop.time()

        def ranked(bookie: BookieId) -> int:
            is_late = late.get(bookie, 0.0) > now or bookie == avoided
            return 4 * rank(bookie) + 2 * is_late + (not self._knows_batches(bookie))

        return ranked

    # -- requests ------------------------------------------------------------------------------------------------
    def _start(self, part: _Part, position: int) -> None:
        bookie, ledger_id = part.ensemble[position], self._metadata.ledger_id
        count = part.last - part.first + 1
        if held := run_size(position, part.first, len(part.ensemble), self._metadata.write_quorum):
            count = min(count, held)
        trace = self._context.pool.trace() if self._is_single else ""
        is_batch = part.is_batch and self._knows_batches(bookie) and not trace  # A batch read has no place for it.
        part.asked_at = self._loop.time()
        self._context.counts.requests += 1
        if is_batch:
            answer = self._context.pool.start_read_batch(bookie, ledger_id, part.first, count, self._window.batch_size)
        else:
            answer = self._context.pool.start_read_entry(bookie, ledger_id, part.first, trace=trace)
        part.asked[position] = answer, is_batch

    async def _answered(self, ask: _Ask) -> None:
        """Wait until every part has a response or has failed at every replica. Late parts are hedged."""
        progress = -1
        while not self._is_parallel and (unanswered := self._unanswered(ask)):
            before, progress = progress, self._progress(ask)
            if progress == before:
                break  # The bookies that were asked have answered no other request either.
            delay = self._patience(ask) if self._context.config.hedged_reads else None
            # Unlike awaiting them, a cancellation here does not cancel them.
            await asyncio.wait(unanswered, timeout=delay)
        for part in ask.parts:
            if part.data is None:
                self._take_answers(part)
        troubled = [part for part in ask.parts if part.data is None and part.error is None]
        for start in range(0, len(troubled), REPAIRS_MAX):
            repairs = [self._repair(part) for part in troubled[start : start + REPAIRS_MAX]]
            if len(repairs) == 1:
                await repairs[0]
                continue
            for result in await asyncio.gather(*repairs, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result

    def _unanswered(self, ask: _Ask) -> list[asyncio.Future[Outcome]]:
        return [answer for part in ask.parts for answer, _ in part.asked.values() if not answer.done()]

    def _patience(self, ask: _Ask) -> float:
        """Return the seconds until the first part is late."""
        now = self._loop.time()
        delays: dict[tuple[BookieId, bool], float] = {}
        for part in ask.parts:
            for position, (answer, is_batch) in part.asked.items():
                key = part.ensemble[position], is_batch
                if not answer.done() and key not in delays:
                    delays[key] = part.asked_at + self._delay_s(*key) - now
        return max(GRACE_S, min(delays.values()))

    def _delay_s(self, bookie: BookieId, is_batch: bool) -> float:
        return self._context.pool.health.hedge_delay_s(bookie, READ_BATCH if is_batch else READ)

    def _progress(self, head: _Ask) -> int:
        """Count the responses that have come from the bookies that `head` still waits for."""
        silent = dict.fromkeys(
            part.ensemble[position]
            for part in head.parts
            for position, (answer, _) in part.asked.items()
            if not answer.done()
        )
        return sum(
            part.ensemble[position] in silent and answer.done()
            for ask in self._ahead
            for part in ask.parts
            for position, (answer, _) in part.asked.items()
        )

    async def _repair(self, part: _Part) -> None:
        """Ask further replicas until one delivers or all have failed. Source: client-protocol 3.4."""
        while part.data is None and part.error is None:
            for position in part.reads.due():
                self._start(part, position)
            if part.reads.has_failed:
                self._give_up(part)
                continue
            delay = None
            if self._context.config.hedged_reads and part.reads.has_more:
                position, (_, is_batch) = list(part.asked.items())[-1]
                delay = part.asked_at + self._delay_s(part.ensemble[position], is_batch) - self._loop.time()
            answers = [answer for answer, _ in part.asked.values()]
            if delay is None or delay > 0:
                done, _ = await asyncio.wait(answers, timeout=delay, return_when=asyncio.FIRST_COMPLETED)
            else:
                done = {answer for answer in answers if answer.done()}
            if done:
                self._take_answers(part)
                continue
            for position in part.asked:
                self._late_until[part.ensemble[position]] = self._loop.time() + LATE_S
            for position in part.reads.late():
                self._context.counts.hedges += 1
                self._start(part, position)

    def _give_up(self, part: _Part) -> None:
        """Repeat a part once if its connections may be the cause, else fail it: no replica could deliver.

        The connections may have been dead for a long time, or have ended because of a batch read: old bookies drop the
        connection when they receive one, with all its requests in flight. So the second time single entries are
        requested. Source: client-protocol 3.8 (X-63).
        """
        error = part.reads.error
        if part.may_repeat and is_connection_failure(error):
            part.may_repeat = part.is_batch = False
            part.reads = ReplicaReads(part.order, is_parallel=self._is_parallel)
        else:
            part.error = error

    # -- responses -----------------------------------------------------------------------------------------------
    def _take_answers(self, part: _Part) -> None:
        """Process the responses that have come; after a good one the others are ignored.

        They are not cancelled: their latency, or their absence, is counted for their bookies.
        """
        for position in list(part.asked):
            answer, is_batch = part.asked[position]
            if not answer.done():
                continue
            del part.asked[position]
            bookie = part.ensemble[position]
            try:
                data, start = self._records(bookie, part.first, answer.result(), is_batch)
                if part.asked:  # Before the others are forgotten.
                    self._context.keys.verified(bookie, data, part.first, part.last, start)
            except ClientClosed:
                raise
            except BookKeeperError as error:
                self._failed(part, position, error)
                continue
            self._late_until.pop(bookie, None)
            part.data, part.start, part.position = data, start, position
            part.asked.clear()
            return

    def _records(self, bookie: BookieId, entry_id: int, outcome: Outcome, is_batch: bool) -> tuple[bytes, int]:
        """Return a response's unverified data and where its records begin. Raises the error that the bookie reports."""
        ledger_id, support = self._metadata.ledger_id, self._context.pool.batch_support
        if isinstance(outcome, BookieUnreachable):
            if is_batch and outcome.was_connected:
                support.dropped(bookie)
            raise outcome.with_traceback(None)
        if is_batch:
            support.answered_batch(bookie)
            batch = self._context.pool.check(bookie, outcome, BatchReadResponse, ledger_id, entry_id)
            return bytes(batch.records), batch.start
        support.answered_single(bookie)
        response = self._context.pool.check(bookie, outcome, ReadResponse, ledger_id, entry_id)
        if response.max_lac is not None:
            self._context.learn(response.max_lac)
        body = bytes(response.body or b"")
        return _record_head(len(body)) + body, 0

    def _failed(self, part: _Part, position: int, error: BookKeeperError) -> None:
        self._context.counts.failures += 1
        self._context.counts.digest_failures += isinstance(error, DigestMismatch)
        part.reads.failed(part.ensemble[position], error)
        if self._sticky is not None:
            self._sticky.failed(position)

    def _take(self, ask: _Ask) -> EntryBatch | None:
        """Verify and remove the good entries at the front; return None if the first one is bad."""
        chunks: list[bytes] = []
        for part in ask.parts:
            if part.data is None:
                break
            chunks.append(part.data)
        head, tail = ask.parts[0], ask.parts[len(chunks) - 1]
        data, start = chunks[0], head.start
        if len(chunks) > 1:
            chunks = [chunk[part.start :] for chunk, part in zip(chunks, ask.parts, strict=False)]
            data, start = b"".join(chunks), 0
        try:
            batch = self._context.keys.verified(head.ensemble[head.position], data, head.first, tail.last, start)
        except BookKeeperError as error:
            head.data = None
            self._failed(head, head.position, error)
            return None
        verified_end = batch.starts[-1]
        end = 0
        for chunk in chunks:
            end += len(chunk)
            part = ask.parts.popleft()
            self._in_flight -= 1
            # The last verified entry of this part.
            got = batch.first_entry_id + bisect_left(batch.starts, min(end, verified_end)) - 1
            if got < part.last:
                # The response stopped at a size limit or at an entry that the bookie lacks, or the next one is bad.
                avoided = part.ensemble[part.position] if verified_end < end else None
                rest = list(self._parts(got + 1, part.last, part.ensemble, self._turn, avoided))
                ask.parts.extendleft(reversed(rest))
            if got != part.last or end >= verified_end:
                # Entries that the bookie sent beyond the request are ignored.
                return batch.slice(batch.first_entry_id, min(got, part.last))
        raise AssertionError("verified more than there was")

    # -- if no replica delivers ----------------------------------------------------------------------------------
    def _forget_silent(self, ask: _Ask) -> None:
        """Reset parts after the caller gave up waiting: where every replica was asked, the next call asks again."""
        for part in ask.parts:
            if part.data is None and not part.reads.has_more:
                for answer, _ in part.asked.values():
                    answer.cancel()
                part.asked.clear()
                part.reads = ReplicaReads(part.order, is_parallel=self._is_parallel)

    async def _follow_replacements(self, part: _Part) -> None:
        """Restart with the current metadata; raise the part's error if its replicas have not moved."""
        failure, causes = part.error, part.reads.causes
        assert failure is not None
        part.error, part.reads = (
            None,
            ReplicaReads(part.order, is_parallel=self._is_parallel),
        )  # The next call tries again.
        error = why_unreadable(failure, causes, self._metadata.ledger_id, part.first)
        try:
            metadata = await self._context.refresh()
        except MetadataError:
            raise error from failure
        if self._context.files is not None and is_given_up(metadata):
            self._rest = self._context.files(metadata, part.first, self._last)
            self.stop()
            return
        if metadata.ensemble_at(part.first) == part.ensemble:
            raise error
        self._metadata = metadata
        self.stop()
        self._ranges = read_ranges(metadata, part.first, self._last, self._planned_count)

    def stop(self) -> None:
        """Cancel the pending requests."""
        for ask in self._ahead:
            for part in ask.parts:
                for answer, _ in part.asked.values():
                    answer.cancel()
        self._ahead.clear()
        self._in_flight = 0
