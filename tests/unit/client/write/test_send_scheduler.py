"""When writers send, and when they announce."""

from __future__ import annotations

import asyncio

from tests.fakes.pool import Stage, on_stage

from bookies.client.write import LedgerWriter
from bookies.client.write.lac_announcer import AT_ONCE, LacAnnouncer
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


class _Writer:
    """Counts what it is asked."""

    def __init__(self, is_busy: bool = False) -> None:
        self.is_busy = is_busy
        self.at: list[float] = []

    def announce(self) -> bool:
        self.at.append(asyncio.get_running_loop().time())
        return True


@on_stage()
async def test_idle_writers_announce_once_and_busy_ones_when_they_are_idle(stage: Stage) -> None:
    announcer = LacAnnouncer(0.2)
    idle, busy = _Writer(), _Writer(is_busy=True)
    start = stage.loop.time()
    for writer in (idle, busy, idle):
        announcer.later(writer)
    await asyncio.sleep(1)
    busy.is_busy = False
    await asyncio.sleep(1)
    assert [round(at - start, 1) for at in idle.at] == [0.2]
    assert [round(at - start, 1) for at in busy.at] == [1.2]
    announcer.later(idle)
    announcer.later(busy)
    announcer.forget(idle)
    announcer.stop()
    announcer.later(idle)
    await asyncio.sleep(1)
    assert (len(idle.at), len(busy.at)) == (1, 1)


@on_stage()
async def test_many_announce_in_steps(stage: Stage) -> None:
    announcer = LacAnnouncer(0.2)
    writers = [_Writer() for _ in range(AT_ONCE * 3)]
    for writer in writers:
        announcer.later(writer)
    await asyncio.sleep(0.21)
    assert sum(len(writer.at) for writer in writers) == AT_ONCE
    await asyncio.sleep(1)
    assert all(len(writer.at) == 1 for writer in writers)
