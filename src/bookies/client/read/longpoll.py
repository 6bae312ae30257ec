"""A round of long polls: bookies answer when the last add confirmed passes a value. Source: client-protocol 3.6.

A bookie delays its answer until there is news or the time is up. The bookies are asked one after the other, or all at
once. If a bookie stays silent, the next one is asked too after a moment, so a bookie that is slow, or learns of news
later, does not delay the reader. A single new entry comes with the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from bookies.client.base import EntryBatch
from bookies.client.read.context import ReadContext
from bookies.client.transport import BookiePool
from bookies.client.transport.unanswered import Answer, Outcome
from bookies.errors import BookKeeperError, ClientClosed
from bookies.kernels import Records
from bookies.model import BookieId, LedgerMetadata
from bookies.protocol.ledger.lac import LongPollRound
from bookies.protocol.ledger.read import replica_order
from bookies.protocol.quorums.quorum import ensemble_set, write_set
from bookies.wire.messages import ReadResponse

_HEALTH, _NO_HOLDER = 1 << 21, 1 << 20  # above the ranks of nearness
STAGGER_S = 0.25  # seconds without an answer until the next bookie is asked as well


async def wait_for_entry(
    context: ReadContext,
    record: LedgerMetadata,
    entry_id: int,
    wait_s: float,
    change: asyncio.Future[None],
    *,
    is_parallel: bool = False,
) -> EntryBatch | None:
    """Wait until the entry is confirmed and return it if it came with the answer.

    None: confirmed without it, not confirmed within `wait_s`, or `change` is done.

    `wait_s`: seconds that bookies may delay their answers. Raises the error chosen if every bookie failed.
    """
    pool = context.pool
    ensemble = record.last_ensemble
    order = replica_order(ensemble_set(entry_id, len(ensemble)), ensemble, _ranking(pool, record, entry_id))
    polls = LongPollRound(record, order, is_parallel=is_parallel)
    waiting: dict[int, Answer] = {}
    loop = asyncio.get_running_loop()
    end = loop.time() + wait_s

    def ask(position: int) -> None:
        hold_ms = max(0, round(1000 * (end - loop.time())))
        waiting[position] = pool.start_long_poll(ensemble[position], record.ledger_id, entry_id - 1, hold_ms)

    try:
        while True:
            for position in polls.due():
                ask(position)
            if polls.is_over:
                error = polls.failure()
                if error is not None:
                    raise error
                return None
            stagger = STAGGER_S if polls.has_more else None
            await _first_of(loop, change, waiting.values(), stagger)
            answered = [position for position, poll in waiting.items() if poll.done()]
            for position in answered:
                bookie, outcome = ensemble[position], waiting.pop(position).result()
                try:
                    last_add_confirmed, batch = _polled(context, bookie, outcome, entry_id)
                except ClientClosed:
                    raise
                except BookKeeperError as error:
                    polls.failed(bookie, error)
                    continue
                if last_add_confirmed >= entry_id:
                    return batch
                polls.empty()
            if change.done():
                return None
            if not answered:
                for position in polls.late():
                    ask(position)
    finally:
        for poll in waiting.values():
            poll.cancel()


async def _first_of(
    loop: asyncio.AbstractEventLoop, change: asyncio.Future[None], polls: Iterable[Answer], patience_s: float | None
) -> None:
    """Wait for an answer, for `change`, or for that many seconds; a cancellation cancels none of them."""
    waiter = loop.create_future()

    def wake(_: asyncio.Future[None] | None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    for poll in polls:
        poll.waiter = waiter
        if poll.done():
            wake(None)
    change.add_done_callback(wake)
    timer = None if patience_s is None else loop.call_later(patience_s, wake, None)
    try:
        await waiter
    finally:
        change.remove_done_callback(wake)
        if timer is not None:
            timer.cancel()


def _ranking(pool: BookiePool, record: LedgerMetadata, entry_id: int) -> Callable[[BookieId], int]:
    """Return the sort key of bookies: healthy ones first, then those that store the entry, then near ones."""
    ensemble = record.last_ensemble
    holders = {ensemble[position] for position in write_set(entry_id, len(ensemble), record.write_quorum)}
    health, order_rank = pool.health, pool.nearby.order_rank
    return lambda bookie: _HEALTH * health.rank(bookie) + _NO_HOLDER * (bookie not in holders) + order_rank(bookie)


def _polled(context: ReadContext, bookie: BookieId, outcome: Outcome, entry_id: int) -> tuple[int, EntryBatch | None]:
    """Process one answer: (the last add confirmed that is trusted, the verified entry if it came along)."""
    keys = context.keys
    response = context.pool.check(bookie, outcome, ReadResponse, keys.ledger_id, entry_id)
    batch = None
    if response.entry_id == entry_id and response.body is not None:
        batch = keys.verified(bookie, Records.of([bytes(response.body)]).data, entry_id, entry_id)
    return context.learn(-1 if response.max_lac is None else response.max_lac), batch
