"""Tasks that are started again when they die: what auto-recovery runs as, so that nothing of it ends in silence.

A task that fails is counted and started again after a pause, which grows while it fails soon and often. Nothing that
it raises gets out, whatever it is, for the process has other things to do. Source: pains 33.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from bookies.errors import BookKeeperError
from bookies.metadata.interface.request_counts import asking_as
from bookies.runtime.events import Events

PAUSE_FIRST_S, PAUSE_MAX_S = 0.5, 30.0
SOUND_S = 60.0  # a task that lived for so long is not one that fails again and again


@dataclass(slots=True)
class Supervised:
    """A task's life so far. `error`: that ended it last."""

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
    """Run `work` again and again until cancelled. `jitter(a, b)`: a random number between."""
    loop = asyncio.get_running_loop()
    pause_s = PAUSE_FIRST_S
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
            pause_s = PAUSE_FIRST_S
        await asyncio.sleep(pause_s * jitter(0.5, 1.0))
        pause_s = min(PAUSE_MAX_S, 2 * pause_s)


async def _ended(task: asyncio.Task[None]) -> BaseException | None:
    """Wait for its end: what it died of. Whoever cancels this cancels the task, and waits for that, however often."""
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
