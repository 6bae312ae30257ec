"""Tailing: the entries of a ledger as they are confirmed, until it is sealed. Source: client-protocol 3.6.

Rounds of long polls follow each other (`longpoll.py`). News of several entries is then read as a range; a single entry
comes with the answer.
"""

from __future__ import annotations

import asyncio

from bookies.client.base import EntryBatch
from bookies.client.read.fetch import RangeFetch
from bookies.client.read.offloaded import OffloadedFetch
from bookies.client.read.reader_state import ReaderState
from bookies.errors import BookKeeperError, ClientClosed, LedgerNotFound, Unauthorized
from bookies.protocol.ledger.lac import is_growth_trusted
from bookies.protocol.ledger.read import NEGATIVE

LONG_POLL_S = 2.0  # seconds that bookies delay an answer without news
IDLE_ROUND_S = 0.1  # a round of long polls without news is not repeated sooner
RECOVERY_POLL_S = 1.0  # between reads of the metadata while the ledger is in recovery
METADATA_POLL_S = 30.0  # between reads of the metadata without a notification: a watch may have been lost
PATIENCE_S = 30.0  # seconds without an answer from any bookie until a tail gives up
PAUSES_S = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # between rounds in which every bookie failed


class TailSource:
    """The batches of one `LedgerReader.tail`, from entry `first` on."""

    def __init__(self, state: ReaderState, first: int) -> None:
        self._state = state
        self._next = first
        self._fetch: RangeFetch | OffloadedFetch | None = None
        self._failures = 0
        self._failing_since = 0.0
        self._followed_at: float | None = None

    async def next_batch(self) -> EntryBatch | None:
        state = self._state
        while True:
            state.check_open()
            try:
                await self._follow()
                batch = await self._readable()
            except LedgerNotFound:
                raise
            except BookKeeperError as error:
                if not error.retriable:
                    raise
                await self._pause(error)
                continue
            if batch is None and state.is_sealed:
                return None
            if batch is None:
                begun = asyncio.get_running_loop().time()
                try:
                    batch = await self._awaited()
                except (ClientClosed, Unauthorized):
                    raise
                except BookKeeperError as error:
                    if isinstance(error, NEGATIVE) and asyncio.get_running_loop().time() - begun >= IDLE_ROUND_S:
                        self._failures = 0  # No entry was written yet, and the bookies have delayed their answers.
                        state.mark_stale()
                    else:
                        await self._pause(error)
                    continue
            self._failures = 0
            if batch is not None:
                self._next = batch.last_entry_id + 1
                return batch

    async def _follow(self) -> None:
        """Read the metadata if it has changed, and every `METADATA_POLL_S` even without a notification."""
        now = asyncio.get_running_loop().time()
        if self._followed_at is None:
            self._followed_at = now
        if now - self._followed_at >= METADATA_POLL_S:
            self._state.mark_stale()
            self._followed_at = now
        await self._state.follow_metadata()

    async def _awaited(self) -> EntryBatch | None:
        """Wait for news of the next entry; pause if the bookies answer early without news."""
        state, now = self._state, asyncio.get_running_loop().time
        begun = now()
        batch = await state.wait_for_news(
            self._next, LONG_POLL_S if is_growth_trusted(state.metadata) else RECOVERY_POLL_S
        )
        if batch is None and state.last_add_confirmed < self._next and now() - begun < IDLE_ROUND_S:
            # The bookies did not delay their answers, for example because the ledger is fenced.
            await state.wait_for_change(IDLE_ROUND_S)
        return batch

    async def _readable(self) -> EntryBatch | None:
        """Return the next entries that are confirmed already."""
        if self._fetch is None and self._next <= self._state.last_add_confirmed:
            self._fetch = self._state.range_fetch(self._next, self._state.last_add_confirmed)
        if self._fetch is None:
            return None
        try:
            batch = await self._fetch.next_batch()
        except BookKeeperError:
            self._fetch.stop()
            self._fetch = None
            raise
        if batch is None:
            self._fetch = None
            return await self._readable()
        return batch

    async def _pause(self, error: BookKeeperError) -> None:
        """Wait before the next attempt; raise `error` if none has succeeded for `PATIENCE_S`."""
        now = asyncio.get_running_loop().time()
        if self._failures == 0 or isinstance(error, NEGATIVE):
            self._failing_since = now  # If no bookie knows the ledger, no entry may have been written yet.
        elif now - self._failing_since >= PATIENCE_S:
            raise error
        pause = PAUSES_S[min(self._failures, len(PAUSES_S) - 1)]
        self._failures += 1
        self._state.mark_stale()  # The ensemble may have been replaced, or the watch lost.
        await self._state.wait_for_change(pause)
