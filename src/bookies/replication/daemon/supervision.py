"""Supervised tasks: the parts of auto-recovery are restarted when they end, so that none stops silently.

A failure is counted, and the task is restarted after a pause that grows while failures follow each other quickly. No
exception of a task reaches the process, which has other work. Source: pains 33.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Struct

from bookies.errors import BookKeeperError
from bookies.metadata.interface.request_counts import asking_as
from bookies.protocol.pacing import Backoff
from bookies.runtime.events import Events

PAUSE_FIRST_S, PAUSE_MAX_S = 0.5, 30.0
SOUND_S = 60.0  # runtime of a task after which the pause is reset


class Supervised(Struct):
    """Counters of a supervised task. `error`: the last that ended it."""

    name: str
    starts: int = 0
    failures: int = 0
    error: str | None = None


async def supervise(
    task: Supervised,
    work: Callable[[], Coroutine[Any, Any, None]],
    events: Events,
    jitter: Callable[[float, float], float],
) -> None:
    """Run `work`, and restart it, until cancelled. `jitter(a, b)`: a random number between a and b."""
    loop = asyncio.get_running_loop()
    backoff = Backoff(PAUSE_FIRST_S, PAUSE_MAX_S, jitter)
    while True:
        task.starts += 1
        begun = loop.time()
        error = await _ended(loop.create_task(work(), name=task.name, context=asking_as(task.name)))
        if error is not None:
            task.failures += 1
            task.error = f"{type(error).__name__}: {error}"
            log = events.warning if isinstance(error, BookKeeperError | OSError) else events.error
            log("recovery.task_failed", task=task.name, failures=task.failures, error=error)
        if loop.time() - begun >= SOUND_S:
            backoff.reset()
        await asyncio.sleep(backoff.next_s())


async def _ended(task: asyncio.Task[None]) -> BaseException | None:
    """Wait for the end of a task; return its error. Cancelling this cancels the task, and waits for its end."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as cancellation:
            cancelled = cancellation
            task.cancel()
    error = None if task.cancelled() else task.exception()
    if cancelled is not None:
        raise cancelled
    return error
