"""Tailing: the entries of a ledger as they are confirmed, until it is sealed. Source: client-protocol 3.6.

A round asks one bookie after the other for a long poll: the bookie answers when its last add confirmed passes what we
have, or after a while with nothing. A bookie that stays silent gets company after a moment, so a slow one does not
slow the tail. News that are many entries are then read as any range; a single entry comes with the answer.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from bookies.client.connection import Outcome
from bookies.client.entries import EntryBatch
from bookies.client.fetch import RangeFetch
from bookies.client.keys import Keys
from bookies.client.pool import BookiePool
from bookies.errors import BookKeeperError, ClientClosed, LedgerNotFound
from bookies.kernels import Records
from bookies.model import BookieId
from bookies.protocol.quorum import ensemble_set
from bookies.protocol.read import NEGATIVE, LongPollRound, is_growth_trusted, replica_order
from bookies.wire.messages import ReadResponse

if TYPE_CHECKING:
    from bookies.client.reader import LedgerReader

LONG_POLL_MS = 2_000  # how long a bookie holds an answer back when there is nothing new
LONG_POLL_STAGGER_S = 0.25  # the next bookie is asked as well when the one before has been silent for so long
IDLE_ROUND_S = 0.1  # a round of long polls without news is not repeated sooner
RECOVERY_POLL_S = 1.0  # how often the metadata is read while somebody recovers the ledger
PATIENCE_S = 30.0  # a tail gives up when no bookie has answered for so long
PAUSES_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # between rounds in which every bookie failed


class TailSource:
    """The batches of one `LedgerReader.tail`, from entry `first` on."""

    def __init__(self, reader: LedgerReader, pool: BookiePool, keys: Keys, first: int) -> None:
        self._reader = reader
        self._pool = pool
        self._keys = keys
        self._next = first
        self._fetch: RangeFetch | None = None
        self._failures = 0
        self._failing_since = 0.0

    async def next_batch(self) -> EntryBatch | None:
        reader = self._reader
        while True:
            reader.check_open()
            try:
                await reader.follow_metadata()
                batch = await self._readable()
                if batch is None and reader.is_sealed:
                    return None
                error = None
                if batch is None:
                    batch, error = await self._awaited()
            except LedgerNotFound:
                raise
            except BookKeeperError as raised:
                if not raised.retriable:
                    raise
                batch, error = None, raised
            if batch is not None:
                self._failures = 0
                self._next = batch.last_entry_id + 1
                return batch
            if error is None:
                self._failures = 0
            else:
                await self._pause(error)

    async def _awaited(self) -> tuple[EntryBatch | None, BookKeeperError | None]:
        """Wait for news of the next entry, without haste when the bookies have none to give."""
        reader, now = self._reader, asyncio.get_running_loop().time
        if not is_growth_trusted(reader.metadata):
            await reader.wait_for_change(RECOVERY_POLL_S)
            reader.mark_stale()
            return None, None
        begun = now()
        batch, error = await self._poll(self._next)
        if batch is None and error is None and reader.last_add_confirmed < self._next and now() - begun < IDLE_ROUND_S:
            await reader.wait_for_change(IDLE_ROUND_S)  # They did not hold their answers back: fenced, for example.
        return batch, error

    async def _poll(self, entry_id: int) -> tuple[EntryBatch | None, BookKeeperError | None]:
        """One round of long polls for `entry_id`: (the entry when one brought it, error when every bookie failed).

        Ends early when the last add confirmed reaches the entry or the metadata changes. Source: client-protocol 3.6.
        """
        reader = self._reader
        record = reader.metadata
        ensemble = record.last_ensemble
        positions = ensemble_set(entry_id, len(ensemble))
        order = replica_order([ensemble[position] for position in positions], self._pool.is_suspect)
        polls = LongPollRound(record, order)
        waiting: dict[BookieId, asyncio.Future[Outcome]] = {}
        change = asyncio.ensure_future(reader.wait_for_change(None))
        has_more = True
        try:
            while True:
                following = polls.next() if has_more else None
                has_more = following is not None
                if following is not None:
                    waiting[following] = self._pool.start_long_poll(
                        following, record.ledger_id, entry_id - 1, LONG_POLL_MS
                    )
                if not waiting:
                    return None, polls.failure()
                stagger = LONG_POLL_STAGGER_S if has_more else None
                futures: list[asyncio.Future[Any]] = [change, *waiting.values()]
                await asyncio.wait(futures, timeout=stagger, return_when=asyncio.FIRST_COMPLETED)
                for bookie in [bookie for bookie, poll in waiting.items() if poll.done()]:
                    try:
                        batch = self._polled(bookie, waiting.pop(bookie).result(), entry_id)
                    except ClientClosed:
                        raise
                    except BookKeeperError as error:
                        polls.failed(bookie, error)
                        continue
                    if batch is not None or reader.last_add_confirmed >= entry_id:
                        return batch, None
                    polls.empty()
                if change.done():
                    return None, None
        finally:
            change.cancel()
            for poll in waiting.values():
                poll.cancel()

    def _polled(self, bookie: BookieId, outcome: Outcome, entry_id: int) -> EntryBatch | None:
        """Take in one answer to a long poll; the entry, verified, when it came along and may be read."""
        response = self._pool.check(bookie, outcome, ReadResponse, self._reader.ledger_id, entry_id)
        batch = None
        if response.entry_id == entry_id and response.body is not None:
            batch = self._keys.verified(bookie, Records.of([bytes(response.body)]).data, entry_id, entry_id)
        if response.max_lac is not None:
            self._reader.learn(response.max_lac)
        return batch if self._reader.last_add_confirmed >= entry_id else None

    async def _readable(self) -> EntryBatch | None:
        """The next entries that are confirmed already."""
        if self._fetch is None and self._next <= self._reader.last_add_confirmed:
            self._fetch = self._reader.range_fetch(self._next, self._reader.last_add_confirmed)
        if self._fetch is None:
            return None
        try:
            batch = await self._fetch.next_batch()
        except BookKeeperError:
            self._fetch = None
            raise
        if batch is None:
            self._fetch = None
            return await self._readable()
        return batch

    async def _pause(self, error: BookKeeperError) -> None:
        """Wait before the next try; raises `error` when none has succeeded for too long."""
        now = asyncio.get_running_loop().time()
        if self._failures == 0 or isinstance(error, NEGATIVE):
            self._failing_since = now  # That no bookie knows the ledger only says that nothing was written yet.
        elif now - self._failing_since >= PATIENCE_S:
            raise error
        pause = PAUSES_S[min(self._failures, len(PAUSES_S) - 1)]
        self._failures += 1
        self._reader.mark_stale()  # The ensemble may have been replaced, or the watch lost.
        await self._reader.wait_for_change(pause)
