"""Fetch a range of confirmed entries: big batches, several in flight, each verified, bad replicas passed over.

The range is cut at fragment boundaries. Where every bookie of the ensemble stores every entry (ensemble = write
quorum) one request brings a batch of consecutive entries, and successive batches go to different bookies; elsewhere
an ask is many single reads in flight at once. Nothing runs in the background: what is asked ahead are answers on
their way, so an iteration that is dropped half-way leaves nothing behind. Source: client-protocol 3.3, 3.4 and 3.8.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from bookies.client.connection import Outcome
from bookies.client.entries import EntryBatch
from bookies.client.keys import Keys
from bookies.client.pool import BookiePool
from bookies.config import KIB, ClientConfig
from bookies.errors import (
    BookieUnreachable,
    BookKeeperError,
    ClientClosed,
    EntryNotFound,
    MetadataError,
)
from bookies.kernels import Records
from bookies.model import BookieId, Ensemble, LedgerMetadata
from bookies.protocol.quorum import write_set
from bookies.protocol.read import ReplicaChoice, read_ranges, replica_order
from bookies.wire.messages import BatchReadResponse, ReadResponse

BATCH_SIZE = 256 * KIB  # bytes asked for at once; measured best of 64 KiB to 1 MiB: its copies stay in a core's cache
FILL = 0.75  # of BATCH_SIZE that a batch is planned to take, so that few answers stop at the size limit
SINGLES_MAX = 256  # single reads of one ask


@dataclass(slots=True)
class _Ask:
    """Entries first..last of one fragment, asked for: a batch (one bookie, one answer) or single entries."""

    first: int
    last: int
    ensemble: Ensemble
    turn: int  # which replica is the first to be asked, for batches
    bookies: Sequence[BookieId]
    answers: Sequence[asyncio.Future[Outcome]]
    is_batch: bool


class RangeFetch:
    """Entries first..last of one ledger, in order, as verified batches.

    `refresh`: reads the ledger's metadata anew, for when no replica delivers (they may have been replaced).
    `entry_size`: payload bytes of a typical entry, as far as known.
    """

    def __init__(
        self,
        pool: BookiePool,
        config: ClientConfig,
        keys: Keys,
        metadata: LedgerMetadata,
        first: int,
        last: int,
        *,
        refresh: Callable[[], Awaitable[LedgerMetadata]],
        entry_size: float,
    ) -> None:
        self._pool = pool
        self._keys = keys
        self._metadata = metadata
        self._last = last
        self._refresh = refresh
        self._batch_size = min(BATCH_SIZE, config.read_ahead_size // 2)
        self._depth = config.read_ahead_size // self._batch_size
        self._has_batches = pool.has_batch_reads and metadata.ensemble_size == metadata.write_quorum
        self._record_size = entry_size + 4 + keys.header_size  # bytes of a typical record
        self._ranges = read_ranges(metadata, first, last, self._planned_count)
        self._ahead: deque[_Ask] = deque()
        self._turn = 0

    async def next_batch(self) -> EntryBatch | None:
        """The next entries, None at the end of the range. Safe to call again after it was cancelled.

        Raises what client-protocol 3.4 chooses when every replica of an entry failed.
        """
        self._ask_ahead()
        if not self._ahead:
            return None
        ask = self._ahead[0]
        if unanswered := [answer for answer in ask.answers if not answer.done()]:
            await asyncio.wait(unanswered)  # Unlike awaiting them, being cancelled here does not give them up.
        self._ahead.popleft()
        self._ask_ahead()
        batch = self._verified(ask)
        if batch is None:
            try:
                batch = await self._from_another(ask)
            except BaseException:
                self._ahead.appendleft(ask)
                raise
        if batch is None:
            return await self.next_batch()
        if batch.last_entry_id < ask.last:
            self._ahead.appendleft(self._ask(batch.last_entry_id + 1, ask.last, ask.ensemble, ask.turn + 1))
        self._record_size = 0.75 * self._record_size + 0.25 * batch.size / len(batch)
        return batch

    # -- asking --------------------------------------------------------------------------------------------------
    def _planned_count(self) -> int:
        count = int(FILL * self._batch_size / self._record_size)
        return count if self._has_batches else min(count, SINGLES_MAX)

    def _ask_ahead(self) -> None:
        while len(self._ahead) < self._depth:
            part = next(self._ranges, None)
            if part is None:
                return
            first, last, ensemble = part
            self._ahead.append(self._ask(first, last, ensemble, self._turn))
            self._turn += 1

    def _ask(self, first: int, last: int, ensemble: Ensemble, turn: int) -> _Ask:
        if self._has_batches:
            bookie = self._order(ensemble, turn)[0]
            return _Ask(first, last, ensemble, turn, (bookie,), (self._start_batch(bookie, first, last),), True)
        size = len(ensemble)
        chosen = [self._order(ensemble, residue)[0] for residue in range(size)]  # The order repeats with the id.
        bookies = [chosen[entry_id % size] for entry_id in range(first, last + 1)]
        ledger_id = self._metadata.ledger_id
        answers = [
            self._pool.start_read_entry(bookie, ledger_id, entry_id) for entry_id, bookie in enumerate(bookies, first)
        ]
        return _Ask(first, last, ensemble, turn, bookies, answers, False)

    def _order(self, ensemble: Ensemble, turn: int) -> Sequence[BookieId]:
        positions = write_set(turn, len(ensemble), self._metadata.write_quorum)
        return replica_order([ensemble[position] for position in positions], self._pool.is_suspect)

    def _start_batch(self, bookie: BookieId, first: int, last: int) -> asyncio.Future[Outcome]:
        count = last - first + 1
        return self._pool.start_read_batch(bookie, self._metadata.ledger_id, first, count, self._batch_size)

    # -- answers -------------------------------------------------------------------------------------------------
    def _verified(self, ask: _Ask) -> EntryBatch | None:
        """The good entries at the front of an ask, None when already the first is not."""
        try:
            return self._checked_batch(ask) if ask.is_batch else self._checked_singles(ask)
        except ClientClosed:
            raise
        except BookKeeperError:
            return None

    def _checked_batch(self, ask: _Ask) -> EntryBatch:
        outcome, bookie = ask.answers[0].result(), ask.bookies[0]
        response = self._pool.check(bookie, outcome, BatchReadResponse, self._metadata.ledger_id, ask.first)
        return self._keys.verified(bookie, bytes(response.records), ask.first, ask.last)

    def _checked_singles(self, ask: _Ask) -> EntryBatch:
        bodies: list[bytes] = []
        for entry_id, bookie, answer in zip(range(ask.first, ask.last + 1), ask.bookies, ask.answers, strict=True):
            try:
                bodies.append(self._body(bookie, answer.result(), entry_id))
            except BookKeeperError:
                if not bodies:
                    raise
                break
        return self._keys.verified(ask.bookies[0], Records.of(bodies).data, ask.first, ask.last)

    def _body(self, bookie: BookieId, outcome: Outcome, entry_id: int) -> bytes:
        response = self._pool.check(bookie, outcome, ReadResponse, self._metadata.ledger_id, entry_id)
        return bytes(response.body or b"")

    # -- when the first replica fails ----------------------------------------------------------------------------
    async def _from_another(self, ask: _Ask) -> EntryBatch | None:
        """Entries from `ask.first` on from whichever replica has them; None when it starts again elsewhere."""
        try:
            return await self._from_replicas(ask.first, ask.last, ask.ensemble, ask)
        except ClientClosed:
            raise
        except BookKeeperError as error:
            try:
                metadata = await self._refresh()
            except MetadataError:
                raise error from None
            if metadata.ensemble_at(ask.first) == ask.ensemble:
                raise
        # The fragment has moved since the ranges were cut.
        self._metadata = metadata
        self._ahead.clear()
        self._ranges = read_ranges(metadata, ask.first, self._last, self._planned_count)
        return None

    async def _from_replicas(self, first: int, last: int, ensemble: Ensemble, asked: _Ask | None) -> EntryBatch:
        """One replica after the other; `asked` holds the answer of the first of them. Source: client-protocol 3.4."""
        is_batch = self._has_batches
        order = self._order(ensemble, asked.turn if is_batch and asked is not None else first)
        if asked is not None:
            order = [asked.bookies[0], *(bookie for bookie in order if bookie != asked.bookies[0])]
        choice = ReplicaChoice(order)
        while (bookie := choice.next()) is not None:
            try:
                if asked is not None and bookie == asked.bookies[0]:
                    return self._checked_batch(asked) if asked.is_batch else self._checked_singles(asked)
                if is_batch:
                    outcome = await self._start_batch(bookie, first, last)
                    response = self._pool.check(bookie, outcome, BatchReadResponse, self._metadata.ledger_id, first)
                    return self._keys.verified(bookie, bytes(response.records), first, last)
                outcome = await self._pool.start_read_entry(bookie, self._metadata.ledger_id, first)
                body = self._body(bookie, outcome, first)
                return self._keys.verified(bookie, Records.of([body]).data, first, first)
            except ClientClosed:
                raise
            except BookKeeperError as error:
                choice.failed(bookie, error)
        if is_batch and type(choice.error) is BookieUnreachable:
            # Bookies before 4.17 drop the connection when they meet a batch read.
            self._has_batches = False
            return await self._from_replicas(first, first, ensemble, None)
        raise self._failure(first, choice)

    def _failure(self, entry_id: int, choice: ReplicaChoice) -> BookKeeperError:
        """The chosen error, saying what each replica answered."""
        answers = "; ".join(f"{bookie}: {error.message}" for bookie, error in choice.causes.items())
        what = "no replica holds the entry" if isinstance(choice.error, EntryNotFound) else "no replica could deliver"
        error = type(choice.error)(f"{what}: {answers}", ledger_id=self._metadata.ledger_id, entry_id=entry_id)
        error.__cause__ = choice.error
        return error
