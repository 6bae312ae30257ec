"""Backpressure: who pauses, who waits, who goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from bookies.bookie.pressure import READS_WAITING_MAX, Intake, ReadBudget


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


def test_reads_wait_in_order_for_bytes() -> None:
    async def main() -> None:
        budget = ReadBudget(100)
        order: list[str] = []

        async def read(name: str, size: int) -> None:
            await budget.wait_take(size)
            order.append(name)

        await budget.wait_take(60)
        large = asyncio.create_task(read("large", 90))
        small = asyncio.create_task(read("small", 10))
        await asyncio.sleep(0)
        assert not budget.maybe_take(1), "nobody overtakes those who wait"
        budget.release(60)
        await asyncio.gather(large, small)
        assert order == ["large", "small"]
        assert budget.size == 100

    asyncio.run(main())


def test_one_answer_always_fits() -> None:
    async def main() -> None:
        budget = ReadBudget(100)
        await budget.wait_take(5000)
        assert budget.size == 5000
        assert not budget.maybe_take(1)
        budget.release(5000)
        assert budget.maybe_take(100)

    asyncio.run(main())


def test_clients_that_leave_the_queue_leave_no_debt() -> None:
    async def main() -> None:
        budget = ReadBudget(100)
        budget.take(100)
        first = asyncio.create_task(budget.wait_take(50))
        second = asyncio.create_task(budget.wait_take(60))
        third = asyncio.create_task(budget.wait_take(70))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        budget.release(100)  # It is the second's turn, which leaves before it hears of it.
        second.cancel()
        await asyncio.wait([first, second, third])
        assert third.done()
        assert not third.cancelled()
        assert budget.size == 70

    asyncio.run(main())


def test_an_absurd_queue_is_refused() -> None:
    async def main() -> None:
        budget = ReadBudget(10)
        budget.take(10)
        tasks = [asyncio.create_task(budget.wait_take(1)) for _ in range(READS_WAITING_MAX)]
        await asyncio.sleep(0)
        assert budget.is_overrun
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    asyncio.run(main())
