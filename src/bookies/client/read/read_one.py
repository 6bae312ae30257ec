"""One entry by itself: the short way, as long as nothing goes wrong.

Reads at random are many and small, and what a `RangeFetch` plans ahead is of no use to them. One replica is asked, and
when it answers in time and the entry verifies, that is all. Whatever else happens, a `RangeFetch` takes over, with the
answer that is still to come. Which replica is decided by the entry's id: entries at random are spread over the whole
ensemble, and one that is read again is in that bookie's memory. Source: client-protocol 3.3, 3.4 and 3.7.
"""

from __future__ import annotations

import asyncio
import functools
import struct
from collections.abc import Callable
from typing import NamedTuple

from bookies.client.base import EntryBatch
from bookies.client.base.bookie_ranking import READ
from bookies.client.base.keys import Keys
from bookies.client.transport import BookiePool
from bookies.client.transport.connection import Outcome
from bookies.errors import BookKeeperError, Status
from bookies.model import LedgerMetadata
from bookies.protocol.ledger.read import StickyPosition
from bookies.wire.messages import ReadResponse

_record_head = struct.Struct(">I").pack


class Asked(NamedTuple):
    """A single read that a replica was asked for, `at` a time of the loop; its answer may have come."""

    position: int
    answer: asyncio.Future[Outcome]
    at: float


async def look_up(
    pool: BookiePool,
    keys: Keys,
    metadata: LedgerMetadata,
    entry_id: int,
    *,
    sticky: StickyPosition | None,
    is_hedging: bool,
    learn: Callable[[int], object],
) -> EntryBatch | Asked | None:
    """The verified entry; what was asked, if it is late or was answered otherwise; None: nobody was asked.

    The latter when the replica whose turn it is has failed lately. For the rest see `RangeFetch`.
    """
    size = metadata.ensemble_size
    position = (entry_id if sticky is None or size != metadata.write_quorum else sticky.position) % size
    bookie = metadata.ensemble_at(entry_id)[position]
    if pool.health.rank(bookie):
        return None
    loop = asyncio.get_running_loop()
    asked = Asked(position, pool.start_read_entry(bookie, metadata.ledger_id, entry_id), loop.time())
    try:
        await _in_time(loop, asked.answer, pool.health.hedge_delay_s(bookie, READ) if is_hedging else None)
    except asyncio.CancelledError:
        if metadata.write_quorum == 1:
            asked.answer.cancel()  # Who asks again has no other replica, and had better not wait for this answer.
        raise
    outcome = asked.answer.result() if asked.answer.done() else None
    if not isinstance(outcome, ReadResponse) or outcome.status is not Status.OK or outcome.body is None:
        return asked
    try:
        batch = keys.verified(bookie, _record_head(len(outcome.body)) + outcome.body, entry_id, entry_id)
    except BookKeeperError:
        return asked
    pool.batch_support.answered_single(bookie)
    if outcome.max_lac is not None:
        learn(outcome.max_lac)
    return batch


async def _in_time(loop: asyncio.AbstractEventLoop, answer: asyncio.Future[Outcome], patience_s: float | None) -> None:
    """Until the answer is there, or for so long; None: however long that takes. Being cancelled does not cancel it."""
    waiter: asyncio.Future[None] = loop.create_future()
    wake = functools.partial(_wake, waiter)
    answer.add_done_callback(wake)
    timer = None if patience_s is None else loop.call_later(patience_s, wake, None)
    try:
        await waiter
    finally:
        if timer is not None:
            timer.cancel()
        answer.remove_done_callback(wake)


def _wake(waiter: asyncio.Future[None], _: asyncio.Future[Outcome] | None) -> None:
    if not waiter.done():
        waiter.set_result(None)
