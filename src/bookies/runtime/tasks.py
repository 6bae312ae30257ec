"""Tasks: background work of one owner, which fails with the first failed task; several at once; pauses for a rate."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Tasks:
    """The background tasks of one owner.

    A task that ends with an exception is a failure of its owner: `on_death` is called once with the first cause, on
    the loop, and the owner decides how to stop. Cancellation and a plain return are orderly ends.
    """

    def __init__(self, on_death: Callable[[BaseException], None]) -> None:
        self._on_death = on_death
        self._running: dict[asyncio.Task[Any], None] = {}
        self._has_died = False
        self._is_stopping = False

    def start(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run a task until it ends or `stop` is called."""
        assert not self._is_stopping, f"{name} was started while its owner stops"
        task = asyncio.get_running_loop().create_task(coroutine, name=name)
        self._running[task] = None
        task.add_done_callback(self._ended)
        return task

    async def stop(self) -> None:
        """Cancel every task, the youngest first, and wait until all have ended. Idempotent.

        A task that fails while it is cancelled still reports to `on_death`. The calling task is left alone.
        """
        self._is_stopping = True
        current = asyncio.current_task()
        while remaining := [task for task in self._running if task is not current]:
            for task in reversed(remaining):
                task.cancel()
            await asyncio.wait(remaining)

    def __len__(self) -> int:
        return len(self._running)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        del self._running[task]
        if task.cancelled() or (cause := task.exception()) is None or self._has_died:
            return
        self._has_died = True
        cause.add_note(f"in task {task.get_name()!r}")
        self._on_death(cause)


async def all_of(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines at once and return their results in order. The first failure cancels the others, and is raised
    when they have ended."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Limit(Protocol):
    """Rate limit, as `protocol/pacing/rate_limit.py` has it."""

    def charge(self, amount: float, now: float) -> float:
        """Count `amount` units; return the seconds to wait."""


async def throttle(limit: Limit, amount: float) -> None:
    """Count `amount` units, and wait as long as the limit demands."""
    await pause(limit.charge(amount, asyncio.get_running_loop().time()))


async def pause(seconds: float) -> None:
    """Sleep, or go on at once if there is nothing to wait for."""
    if seconds > 0:
        await asyncio.sleep(seconds)
