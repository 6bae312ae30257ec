"""When writers announce their last add confirmed."""

from __future__ import annotations

import asyncio

from tests.fakes.pool import Stage, on_stage

from bookies.client.write import LedgerWriter
from bookies.client.write.lac_announcer import (
    AT_ONCE,
    AT_ONCE_BUSY,
    CROWD,
    MOMENT_S,
    REPEAT_MAX_S,
    STEP_S,
    LacAnnouncer,
)
from bookies.protocol.ledger.announcement import MISSES_MAX

INTERVAL_S = 0.2


class _Writer:
    """Counts what it is asked. Entry `last` is confirmed, and readers were told `told`."""

    def __init__(self, *, is_busy: bool = False, has_readers: bool = False) -> None:
        self.is_busy = is_busy
        self.has_readers = has_readers
        self.last, self.told = 0, -1
        self.has_queued = False
        self.repeats = 0
        self.early: list[float] = []
        self.again: list[float] = []
        self.late: list[float] = []

    def news(self) -> int | None:
        return None if self.has_queued or self.last <= self.told else self.last

    def is_untold(self, last_add_confirmed: int) -> bool:
        return last_add_confirmed > self.told

    def at_once(self) -> bool:
        self.told = self.last
        self.early.append(asyncio.get_running_loop().time())
        return True

    def when_idle(self) -> bool:
        self.told = self.last
        self.late.append(asyncio.get_running_loop().time())
        return True

    def repeat(self) -> None:
        self.repeats += 1
        self.again.append(asyncio.get_running_loop().time())


@on_stage()
async def test_idle_writers_announce_once_and_busy_ones_when_they_are_idle(stage: Stage) -> None:
    announcer = LacAnnouncer(INTERVAL_S)
    idle, busy = _Writer(), _Writer(is_busy=True)
    start = stage.loop.time()
    for writer in (idle, busy, idle):
        announcer.confirmed(writer)
    await asyncio.sleep(1)
    busy.is_busy = False
    await asyncio.sleep(1)
    assert (idle.early, [round(at - start, 1) for at in idle.late]) == ([start], [0.2])
    assert [round(at - start, 1) for at in busy.late] == [1.2]
    assert [round(at - start, 1) for at in busy.early] == [0.2, 0.4, 0.6, 0.8, 1.0], "to learn whether readers wait"
    announcer.confirmed(idle)
    announcer.confirmed(busy)
    announcer.forget(idle)
    announcer.stop()
    announcer.confirmed(idle)
    await asyncio.sleep(1)
    assert (len(idle.early), len(idle.late), len(busy.late)) == (1, 1, 1)


@on_stage()
async def test_only_where_readers_wait_every_confirmation_is_announced(stage: Stage) -> None:
    announcer = LacAnnouncer(INTERVAL_S)
    writers = [_Writer(), _Writer(has_readers=True)]
    for _ in range(5):
        for writer in writers:
            writer.last += 1
            announcer.confirmed(writer)
            announcer.confirmed(writer)
        await stage.settle()
    assert [len(writer.early) for writer in writers] == [1, 5]


@on_stage()
async def test_what_a_queued_entry_is_about_to_carry_is_not_announced(stage: Stage) -> None:
    announcer = LacAnnouncer(INTERVAL_S)
    writer = _Writer(has_readers=True)
    announcer.confirmed(writer)
    writer.has_queued = True
    await stage.settle()
    assert writer.early == []


@on_stage()
async def test_the_next_entry_of_a_busy_writer_gets_a_moment_to_carry_the_news(stage: Stage) -> None:
    announcer = LacAnnouncer(INTERVAL_S)
    lone, flowing, unread = [_Writer(is_busy=True, has_readers=readers) for readers in (True, True, False)]
    start = stage.loop.time()
    for writer in (lone, flowing, unread):
        announcer.confirmed(writer)
    await stage.settle()
    lone.last = 1  # The moment counts from the first confirmation.
    announcer.confirmed(lone)
    flowing.told = 0
    await asyncio.sleep(MOMENT_S)
    assert lone.early == [start + MOMENT_S]
    assert flowing.early == unread.early == []
    announcer.confirmed(flowing)
    flowing.last = 1
    await stage.settle()
    announcer.stop()
    await asyncio.sleep(1)
    assert flowing.early == []


@on_stage()
async def test_in_a_crowd_only_known_readers_are_told_at_once(stage: Stage) -> None:
    announcer = LacAnnouncer(INTERVAL_S)
    writers = [_Writer(has_readers=number == 3) for number in range(CROWD + 1)]
    for writer in writers:
        announcer.confirmed(writer)
    await stage.settle()
    assert [len(writer.early) for writer in writers] == [number == 3 for number in range(CROWD + 1)]


@on_stage()
async def test_many_announce_in_steps(stage: Stage) -> None:
    announcer = LacAnnouncer(INTERVAL_S)
    writers = [_Writer() for _ in range(AT_ONCE * 3)]
    busy = [_Writer(is_busy=True) for _ in range(AT_ONCE)]
    for writer in writers + busy:
        announcer.confirmed(writer)
    await asyncio.sleep(INTERVAL_S + STEP_S / 2)
    assert sum(len(writer.late) for writer in writers) == AT_ONCE
    await asyncio.sleep(STEP_S * 3)
    assert all(len(writer.late) == 1 for writer in writers)
    assert sum(len(writer.early) for writer in busy) == AT_ONCE_BUSY


@on_stage()
async def test_what_failed_is_repeated_with_growing_pauses_until_it_succeeds(stage: Stage) -> None:
    announcer = LacAnnouncer(INTERVAL_S)
    failing, once = _Writer(), _Writer()
    start = stage.loop.time()
    announcer.failed(once)
    for _ in range(9):
        announcer.failed(failing)
        announcer.failed(failing)
        await asyncio.sleep(REPEAT_MAX_S)
    pauses = [round(at - start - number * REPEAT_MAX_S, 1) for number, at in enumerate(failing.again)]
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0]
    assert len(once.again) == 1
    for end in (lambda: announcer.forget(failing), announcer.stop):
        announcer.failed(failing)
        end()
        await asyncio.sleep(2 * REPEAT_MAX_S)
    announcer.failed(failing)
    await asyncio.sleep(2 * REPEAT_MAX_S)
    assert len(failing.again) == 9


@on_stage()
async def test_an_announcement_that_fails_first_does_not_wait_for_the_pause_of_an_earlier_one(stage: Stage) -> None:
    announcer = LacAnnouncer(INTERVAL_S)
    writer = _Writer()
    start = stage.loop.time()
    writer.repeats = 5
    announcer.failed(writer)  # a pause of 6.4 s
    writer.repeats = 0
    announcer.failed(writer)
    await asyncio.sleep(REPEAT_MAX_S)
    assert [round(at - start, 1) for at in writer.again] == [0.2]


# -- with a writer -------------------------------------------------------------------------------------------------


async def _append(stage: Stage, ledger: LedgerWriter) -> list[tuple[str, int]]:
    """Append one entry; what is announced of it at once."""
    before = len(stage.pool.announced)
    await ledger.append(b"x")
    await stage.settle()
    return stage.pool.announced[before:]


def _readers(stage: Stage, has_readers: bool | None, *names: str) -> None:
    for name in names:
        stage.pool[name].has_readers = has_readers


@on_stage()
async def test_a_writer_announces_at_once_while_readers_wait(stage: Stage) -> None:
    ledger = await stage.create()
    assert await _append(stage, ledger) == [("a", 0)], "nothing was confirmed before"
    assert await _append(stage, ledger) == [], "nobody was there a moment ago"
    await asyncio.sleep(1)
    assert stage.pool.announced[1:] == [("b", 1), ("c", 1), ("a", 1)]
    _readers(stage, True, "a", "b", "c")
    assert await _append(stage, ledger) == [("c", 2)]
    assert await _append(stage, ledger) == [("a", 3)]
    _readers(stage, False, "a", "b", "c")
    found = [await _append(stage, ledger) for _ in range(MISSES_MAX + 3)]
    assert found[: MISSES_MAX + 1] == [[("bca"[number % 3], 4 + number)] for number in range(MISSES_MAX)] + [[]]
    await ledger.seal()
    await ledger.close()


@on_stage()
async def test_a_bookie_that_does_not_say_whether_readers_wait_is_told_everything(stage: Stage) -> None:
    _readers(stage, None, "a", "b", "c")
    ledger = await stage.create()
    assert [await _append(stage, ledger) for _ in range(4)] == [[("abca"[number], number)] for number in range(4)]
    await ledger.close()


@on_stage()
async def test_announcements_need_no_answer(stage: Stage) -> None:
    """Bookies that are down, silent or cancelled, and a client that has closed, harm nothing."""
    _readers(stage, True, "a", "b", "c")
    ledger = await stage.create()
    assert await _append(stage, ledger) == [("a", 0)]
    stage.pool["b"].is_down = True
    ledger._announcements._answered("a", 0, 0, True, _cancelled())  # type: ignore[arg-type]
    assert ledger._announcements.at_once() is False
    stage.pool.is_closed = True
    ledger._announcer.confirmed(ledger._announcements)
    await stage.settle()
    assert stage.pool.announced == [("a", 0)]
    await ledger.close()
    assert ledger._announcements.when_idle() is False


@on_stage(explicit_lac_interval_ms=200)
async def test_a_bookie_that_was_down_is_told_when_it_is_back(stage: Stage) -> None:
    """Also if no entry follows. It is not told what a later entry has carried meanwhile."""
    _readers(stage, True, "a", "b", "c")
    ledger = await stage.create()
    stage.pool["a"].misses_lac = True
    await _append(stage, ledger)
    await asyncio.sleep(3)
    assert stage.pool.announced.count(("a", 0)) == 5, "after 0, 0.2, 0.6, 1.4 and 3 s"
    stage.pool["a"].misses_lac = False
    await asyncio.sleep(20)
    assert stage.pool.announced.count(("a", 0)) == 6
    assert [stage.pool.announced.count((name, 0)) for name in "bc"] == [1, 1]
    stage.pool["b"].misses_lac = True
    await _append(stage, ledger)
    await _append(stage, ledger)
    stage.pool["b"].misses_lac = False
    await asyncio.sleep(20)
    assert stage.pool.announced.count(("b", 1)) == 1, "the entry after it has told it"
    stage.pool["a"].misses_lac = True
    await _append(stage, ledger)
    await ledger.close()
    before = len(stage.pool.announced)
    await asyncio.sleep(20)
    assert len(stage.pool.announced) == before


def _cancelled() -> asyncio.Future[object]:
    answer = asyncio.get_running_loop().create_future()
    answer.cancel()
    return answer


@on_stage()
async def test_what_was_acknowledged_but_not_forced_is_not_announced(stage: Stage) -> None:
    """I-13 with deferred sync."""
    _readers(stage, True, "a", "b", "c")
    ledger = await stage.create(deferred_sync=True)
    assert await _append(stage, ledger) == []
    await ledger.force()
    await stage.settle()
    assert stage.pool.announced == [("a", 0)]
    await ledger.close()


@on_stage(explicit_lac_interval_ms=0)
async def test_announcements_can_be_switched_off(stage: Stage) -> None:
    _readers(stage, True, "a", "b", "c")
    ledger = await stage.create()
    assert await _append(stage, ledger) == []
    await asyncio.sleep(10)
    assert stage.pool.announced == []
    await ledger.close()


@on_stage()
async def test_repetitions_of_several_writers_are_spread(stage: Stage) -> None:
    shares = iter((0.0, 0.5, 1.0))
    announcer = LacAnnouncer(INTERVAL_S, lambda low, high: low + next(shares) * (high - low))
    writers = [_Writer() for _ in range(3)]
    start = stage.loop.time()
    for writer in writers:
        announcer.failed(writer)
    await asyncio.sleep(2 * INTERVAL_S)
    assert [round((writer.again[0] - start) / INTERVAL_S, 6) for writer in writers] == [0.5, 0.75, 1.0]
