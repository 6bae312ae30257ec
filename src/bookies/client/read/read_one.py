"""The fast path for a single entry, as long as no step fails.

Random reads are many and small; the read-ahead of a `RangeFetch` is useless for them. One replica is asked. If it
answers in time and the entry verifies, the read is done. In every other case a `RangeFetch` takes over, with the
pending answer. The entry's id selects among the nearest replicas: random reads are spread over all of them, and an
entry that is read again is in that bookie's memory. Source: client-protocol 3.3, 3.4 and 3.7.
"""

from __future__ import annotations

import asyncio
import struct
from typing import NamedTuple

from bookies.client.base import EntryBatch
from bookies.client.base.bookie_ranking import READ
from bookies.client.read.context import ReadContext
from bookies.client.transport.unanswered import Answer
from bookies.errors import BookKeeperError, Status
from bookies.model import LedgerMetadata
from bookies.protocol.ledger.read import replica_order
from bookies.protocol.quorums import write_set
from bookies.wire.messages import ReadResponse

_record_head = struct.Struct(">I").pack


class PendingRead(NamedTuple):
    """A single read sent to a replica, `at` a time of the loop. Its answer may have arrived."""

    position: int
    answer: Answer
    at: float


async def look_up(context: ReadContext, metadata: LedgerMetadata, entry_id: int) -> EntryBatch | PendingRead | None:
    """Ask one replica for the entry. Returns the verified entry, or the pending read if it is late or failed.

    Returns None without asking if every replica has failed recently.
    """
    pool, sticky = context.pool, context.sticky
    health, size = pool.health, metadata.ensemble_size
    turn = entry_id if sticky is None or size != metadata.write_quorum else sticky.position
    ensemble, positions = metadata.ensemble_at(entry_id), write_set(turn, size, metadata.write_quorum)
    order = replica_order(positions, ensemble, health.read_ranking())
    position, bookie = order[0], ensemble[order[0]]
    if health.rank(bookie):
        return None
    loop = asyncio.get_running_loop()
    answer = pool.start_read_entry(bookie, metadata.ledger_id, entry_id, trace=pool.trace())
    began_s = loop.time()
    other = ensemble[order[1]] if len(order) > 1 else None
    if health.slow:
        pool.try_slow([ensemble[position] for position in order], metadata.ledger_id, entry_id, answer)
    patience_s = health.hedge_delay_s(bookie, READ, other) if context.config.hedged_reads else None
    answer.waiter = waiter = loop.create_future()
    timer = None if patience_s is None else loop.call_later(patience_s, answer.wake)
    try:
        if not answer.done():
            await waiter  # Unlike awaiting the answer, a cancellation here does not cancel it.
    except asyncio.CancelledError:
        if metadata.write_quorum == 1:
            answer.cancel()  # A repeated read has no other replica and must not wait for this answer.
        raise
    finally:
        if timer is not None:
            timer.cancel()
    outcome = answer.result() if answer.done() else None
    if not isinstance(outcome, ReadResponse) or outcome.status is not Status.OK or outcome.body is None:
        return PendingRead(position, answer, began_s)
    try:
        batch = context.keys.verified(bookie, _record_head(len(outcome.body)) + outcome.body, entry_id, entry_id)
    except BookKeeperError:
        return PendingRead(position, answer, began_s)
    pool.batch_support.answered_single(bookie)
    health.won_race(bookie)
    if outcome.max_lac is not None:
        context.learn(outcome.max_lac)
    return batch
