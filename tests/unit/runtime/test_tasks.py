"""Supervised tasks: a death is its owner's, an end is not. Several at once: all or none."""

from __future__ import annotations

import asyncio

import pytest

from bookies.runtime.tasks import Tasks, all_of


async def wait_forever() -> None:
    await asyncio.get_running_loop().create_future()


async def fail(error: Exception) -> None:
    await asyncio.sleep(0)
    raise error


def test_the_first_death_is_reported_once_with_the_task_s_name() -> None:
    async def main() -> None:
        causes: list[BaseException] = []
        tasks = Tasks(causes.append)
        first = ValueError("first")
        tasks.start(fail(first), "pump")
        tasks.start(fail(ValueError("second")), "other")
        survivor = tasks.start(wait_forever(), "survivor")
        await asyncio.sleep(0.001)
        assert causes == [first]
        assert "in task 'pump'" in first.__notes__
        assert len(tasks) == 1, "the owner decides what happens to the others"
        await tasks.stop()
        assert survivor.cancelled()

    asyncio.run(main())


def test_orderly_ends_are_no_deaths() -> None:
    async def main() -> None:
        causes: list[BaseException] = []
        tasks = Tasks(causes.append)
        tasks.start(asyncio.sleep(0), "short")
        task = tasks.start(wait_forever(), "long")
        await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait([task])
        await tasks.stop()
        await tasks.stop()
        assert not causes
        assert len(tasks) == 0

    asyncio.run(main())


def test_stop_waits_for_clean_up_and_reports_a_failing_one() -> None:
    async def main() -> None:
        causes: list[BaseException] = []
        cleaned: list[str] = []

        async def careful(name: str, error: Exception | None) -> None:
            try:
                await wait_forever()
            finally:
                await asyncio.sleep(0)
                cleaned.append(name)
                if error is not None:
                    raise error

        tasks = Tasks(causes.append)
        tasks.start(careful("old", None), "old")
        tasks.start(careful("young", OSError("no")), "young")
        await asyncio.sleep(0)
        await tasks.stop()
        assert cleaned == ["young", "old"]
        assert [str(cause) for cause in causes] == ["no"]

    asyncio.run(main())


def test_a_task_may_stop_its_own_group() -> None:
    async def main() -> None:
        tasks = Tasks(lambda cause: None)
        other = tasks.start(wait_forever(), "other")
        await tasks.start(tasks.stop(), "stopper")
        assert other.cancelled()

    asyncio.run(main())


def test_all_of_them_or_none() -> None:
    async def main() -> None:
        async def give(value: int) -> int:
            await asyncio.sleep(0)
            return value

        assert await all_of(map(give, (3, 1, 2))) == [3, 1, 2]
        assert await all_of(iter(())) == []
        ended: list[str] = []

        async def note_the_end(name: str) -> None:
            try:
                await wait_forever()
            finally:
                await asyncio.sleep(0)
                ended.append(name)

        with pytest.raises(ValueError, match="first"):
            await all_of([note_the_end("a"), fail(ValueError("first")), note_the_end("b"), fail(ValueError("next"))])
        assert ended == ["a", "b"], "nothing goes on behind the caller's back"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await all_of([note_the_end("c")])
        assert ended[-1] == "c"

    asyncio.run(main())
