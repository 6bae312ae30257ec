"""When writers send."""

from __future__ import annotations

import asyncio

from tests.fakes.pool import Stage, on_stage

from bookies.client.write import LedgerWriter
from bookies.client.write.send_scheduler import CROWD, SendScheduler
from bookies.client.write.writer import HELD_MAX


async def _writers(stage: Stage, count: int) -> list[LedgerWriter]:
    turns = SendScheduler(stage.pool.flushes)
    ledgers = [await stage.create() for _ in range(count)]
    for ledger in ledgers:
        ledger._scheduler = turns
    return ledgers


def _batches(stage: Stage, ledger: LedgerWriter) -> list[int]:
    return stage.pool.batches["a", ledger.ledger_id]


@on_stage()
async def test_a_few_writers_do_not_wait_for_their_answers(stage: Stage) -> None:
    ledgers = await _writers(stage, 2)
    for bookie in "abc":
        stage.pool[bookie].is_held = True
    for _ in range(3):
        for ledger in ledgers:
            ledger.append_nowait(b"x")
        await stage.settle()
    assert [_batches(stage, ledger) for ledger in ledgers] == [[1, 1, 1]] * 2
    for ledger in ledgers:
        await ledger.close()


@on_stage()
async def test_one_entry_at_a_time_does_not_wait_for_the_end_of_the_iteration(stage: Stage) -> None:
    first, second = await _writers(stage, 2)
    await first.append(b"x")
    lone = first.append_nowait(b"y")
    assert _batches(stage, first) == [1, 1], "sent at once"
    first.append_nowait(b"z")
    first.append_nowait(b"z")
    assert _batches(stage, first) == [1, 1], "others are in flight"
    await first.append(b"z")
    assert lone.result() == 1
    assert _batches(stage, first) == [1, 1, 3]
    burst = [first.append_nowait(b"z") for _ in range(3)]
    assert _batches(stage, first) == [1, 1, 3], "the last batch was none of a single entry"
    await asyncio.gather(*burst)
    assert _batches(stage, first) == [1, 1, 3, 3]
    await first.append(b"x")
    await second.append(b"x")
    pair = first.append_nowait(b"x"), second.append_nowait(b"x")
    assert (_batches(stage, first), _batches(stage, second)) == ([1, 1, 3, 3, 1], [1]), "they take turns"
    assert await asyncio.gather(*pair) == [9, 1]
    for ledger in (first, second):
        await ledger.close()


@on_stage()
async def test_in_a_crowd_a_writer_gathers_while_it_waits(stage: Stage) -> None:
    ledgers = await _writers(stage, CROWD + 1)
    for bookie in "abc":
        stage.pool[bookie].is_held = True
    futures = []
    for _ in range(5):
        futures += [ledger.append_nowait(b"x") for ledger in ledgers]
        await stage.settle()
    assert _batches(stage, ledgers[0]) == [1]
    for bookie in "abc":
        stage.pool[bookie].is_held = False
        stage.pool[bookie].release()
    assert await asyncio.gather(*futures) == [round_ for round_ in range(5) for _ in ledgers]
    assert _batches(stage, ledgers[0]) == [1, 4]
    assert [await ledger.seal() for ledger in ledgers] == [4] * len(ledgers)
    for ledger in ledgers:
        await ledger.close()


@on_stage()
async def test_what_is_held_is_bounded_sealed_and_refused(stage: Stage) -> None:
    """Many entries go without waiting; a seal sends what is held; a failure ends it."""
    ledgers = await _writers(stage, CROWD + 1)
    many, sealed, failed = ledgers[:3]
    for bookie in "abc":
        stage.pool[bookie].is_held = True
    for _ in range(2):
        for ledger in ledgers:
            ledger.append_nowait(b"x")
        await stage.settle()
    rest = [many.append_nowait(b"y") for _ in range(HELD_MAX)]
    await stage.settle()
    assert _batches(stage, many) == [1, HELD_MAX + 1]
    sealing = asyncio.create_task(sealed.seal())
    await stage.settle()
    assert _batches(stage, sealed) == [1, 1]
    lost = failed.append_nowait(b"z")
    await failed.close()
    await stage.settle()
    assert lost.exception() is not None
    for bookie in "abc":
        stage.pool[bookie].is_held = False
        stage.pool[bookie].release()
    assert await sealing == 1
    assert await rest[-1] == HELD_MAX + 1
    for ledger in ledgers:
        await ledger.close()
