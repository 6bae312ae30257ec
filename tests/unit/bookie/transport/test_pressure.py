"""Backpressure: who pauses, who waits, who goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bookies.bookie.transport.pressure import (
    READS_AT_DISK_MAX,
    READS_WAITING_MAX,
    SIZE_GUESS_MIN,
    Intake,
    ReadBudget,
    ReadShare,
)


class FakeStore:
    def __init__(self) -> None:
        self.is_congested = False
        self.waiting: list[Callable[[], None]] = []

    def recover(self) -> None:
        self.is_congested = False
        waiting, self.waiting = self.waiting, []
        for callback in waiting:
            callback()


class FakeConnection:
    def __init__(self, intake: Intake) -> None:
        self.intake = intake
        self.seen: list[bool] = []

    def update_reading(self) -> None:
        self.seen.append(self.intake.is_paused)

    def close(self) -> None:
        self.intake.left(self)

    abort = close


def new_intake(store: FakeStore, size_max: int = 100) -> Intake:
    return Intake(size_max, lambda: store.is_congested, store.waiting.append)


def test_adds_above_the_limit_pause_until_half_are_answered() -> None:
    intake = new_intake(FakeStore())
    connection = FakeConnection(intake)
    intake.joined(connection)
    intake.accepted(100)
    intake.check()
    assert not intake.is_paused
    intake.accepted(1)
    intake.check()
    intake.check()
    assert intake.is_paused
    intake.answered(50)
    assert intake.is_paused
    intake.answered(1)
    assert not intake.is_paused
    assert connection.seen == [True, False]


def test_a_congested_store_pauses_until_it_says_otherwise() -> None:
    store = FakeStore()
    intake = new_intake(store)
    store.is_congested = True
    intake.accepted(10)
    intake.check()
    assert intake.is_paused
    intake.answered(10)
    assert intake.is_paused
    store.recover()
    assert not intake.is_paused


def test_both_reasons_at_once() -> None:
    store = FakeStore()
    intake = new_intake(store)
    store.is_congested = True
    intake.accepted(200)
    intake.check()
    store.recover()
    assert intake.is_paused, "200 bytes are still unanswered"
    intake.answered(160)
    assert not intake.is_paused


def test_congestion_that_begins_while_paused_is_waited_for() -> None:
    store = FakeStore()
    intake = new_intake(store)
    intake.accepted(200)
    intake.check()
    store.is_congested = True
    intake.answered(200)
    assert intake.is_paused
    store.recover()
    assert not intake.is_paused


def test_a_stopped_intake_never_resumes_and_says_when_all_is_answered() -> None:
    async def main() -> None:
        intake = new_intake(FakeStore())
        connection = FakeConnection(intake)
        intake.joined(connection)
        intake.accepted(10)
        intake.stop()
        idle = asyncio.create_task(intake.wait_idle())
        await asyncio.sleep(0)
        assert not idle.done()
        intake.answered(10)
        await idle
        assert intake.is_paused
        empty = asyncio.create_task(intake.wait_empty())
        await asyncio.sleep(0)
        connection.close()
        await empty
        await intake.wait_idle()
        await intake.wait_empty()

    asyncio.run(main())


def new_taker(budget: ReadBudget) -> ReadShare:
    """The share of a connection that has taken an answer."""
    share = budget.new_share()
    share.take(1)
    share.sent(1)
    return share


async def turns() -> None:
    """Long enough for everybody who may go on."""
    for _ in range(5):
        await asyncio.sleep(0)


def test_connections_take_turns() -> None:
    async def main() -> None:
        budget = ReadBudget(1600)
        order: list[str] = []

        async def read(name: str, share: ReadShare, size: int) -> None:
            await share.wait_begin(size)
            order.append(name)
            share.end(size, 0)

        busy = [new_taker(budget) for _ in range(8)]
        for share in busy:
            share.take(100)
        greedy, modest = new_taker(budget), new_taker(budget)
        tasks = [asyncio.create_task(read(f"greedy {number}", greedy, 150)) for number in range(3)]
        await turns()
        tasks.append(asyncio.create_task(read("modest", modest, 200)))
        await turns()
        assert not modest.maybe_take(1), "nobody overtakes those who wait"
        assert budget.waiting == 4
        busy[0].release(100)
        busy[1].release(100)
        await asyncio.gather(*tasks)
        assert order == ["greedy 0", "modest", "greedy 1", "greedy 2"]
        assert budget.size == 6 * 100

    asyncio.run(main())


def test_one_answer_always_fits() -> None:
    async def main() -> None:
        budget = ReadBudget(1600)
        for share in (budget.new_share(), new_taker(budget)):
            await share.wait_begin(5000)
            share.end(5000, 6000)
            assert not share.maybe_take(1)
            share.release(6000)
            assert share.maybe_take(100)

    asyncio.run(main())


def test_a_newcomer_gets_little_and_who_takes_it_an_eighth() -> None:
    async def main() -> None:
        budget = ReadBudget(800)
        share = budget.new_share()
        assert share.maybe_take(10)
        assert not share.maybe_take(10)
        share.sent(10)
        assert share.maybe_take(90)
        assert share.maybe_take(10)
        assert not share.maybe_take(1)
        assert budget.size == 100

    asyncio.run(main())


def test_newcomers_who_take_nothing_cost_nobody_else_anything() -> None:
    async def main() -> None:
        budget = ReadBudget(1600)
        good = new_taker(budget)
        shares = [budget.new_share() for _ in range(50)]
        tasks = [asyncio.create_task(share.wait_begin(100)) for share in shares for _ in range(3)]
        await turns()
        assert budget.size == 800
        assert shares[0].is_pressed
        assert not good.is_pressed
        for _ in range(20):
            await asyncio.wait_for(good.wait_begin(100), 60)
            good.end(100, 80)
            good.sent(80)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    asyncio.run(main())


def test_a_connection_that_leaves_its_answers_gets_no_more_and_holds_up_nobody() -> None:
    async def main() -> None:
        budget = ReadBudget(1600)
        slow, good = new_taker(budget), new_taker(budget)
        slow.take(50)
        slow.stuck(True)
        task = asyncio.create_task(slow.wait_begin(50))
        await turns()
        assert not task.done()
        assert not good.is_pressed
        assert good.maybe_take(200)
        slow.sent(50)
        slow.stuck(False)
        await task
        assert budget.size == 250

    asyncio.run(main())


def test_few_reads_of_unknown_size_are_at_the_disk() -> None:
    async def main() -> None:
        budget = ReadBudget(1 << 30)
        shares = [new_taker(budget) for _ in range(4)]
        tasks = [asyncio.create_task(share.wait_begin(1)) for share in shares for _ in range(READS_AT_DISK_MAX)]
        await turns()
        assert sum(task.done() for task in tasks) == READS_AT_DISK_MAX
        assert not shares[0].is_pressed
        for share in shares:
            share.end(1, 1000)
        await turns()
        assert sum(task.done() for task in tasks) == READS_AT_DISK_MAX + 4
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    asyncio.run(main())


def test_entries_are_taken_for_as_large_as_those_before() -> None:
    share = new_taker(ReadBudget(1 << 20))
    share.learn(5 << 20)
    assert share.size_guess == 5 << 20
    for _ in range(20):
        share.learn(100)
    assert share.size_guess == SIZE_GUESS_MIN


def test_clients_that_leave_the_queue_leave_no_debt() -> None:
    async def main() -> None:
        budget = ReadBudget(200)
        other, gone, third = budget.new_share(), budget.new_share(), budget.new_share()
        other.take(100)
        first = asyncio.create_task(gone.wait_begin(50))
        second = asyncio.create_task(gone.wait_begin(60))
        last = asyncio.create_task(third.wait_begin(70))
        await turns()
        first.cancel()
        await turns()
        other.release(100)  # It is the second's turn, which leaves before it hears of it.
        second.cancel()
        await asyncio.wait([first, second, last])
        assert last.done()
        assert not last.cancelled()
        assert budget.size == 70
        assert budget.waiting == 0

    asyncio.run(main())


def test_a_stuck_connection_that_leaves_is_forgotten() -> None:
    async def main() -> None:
        budget = ReadBudget(200)
        share = new_taker(budget)
        share.take(10)
        share.stuck(True)
        tasks = [asyncio.create_task(share.wait_begin(1)) for _ in range(10)]
        await turns()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        share.release(10)
        assert budget.waiting == budget.size == 0

    asyncio.run(main())


def test_an_absurd_queue_is_refused_to_those_who_made_it() -> None:
    async def main() -> None:
        budget = ReadBudget(10)
        share = budget.new_share()
        share.take(10)
        tasks = [asyncio.create_task(share.wait_begin(1)) for _ in range(READS_WAITING_MAX)]
        await turns()
        assert share.is_overrun(10)
        assert not share.is_overrun(9)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert not share.is_overrun(10)

    asyncio.run(main())
