"""Simulated workers, without threads: each call runs on the loop, in order, after a seeded delay in virtual time.

A call takes effect at one instant and returns its result a little later. A crash may therefore come before the effect,
between effect and result, or, at a call that `SimDisk` interrupts, in the middle of the effect.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar

from bookies.runtime.ports import Buffer, Ended, File, ReadEnded, Worker

T = TypeVar("T")


class SimWorker:
    """`runtime.ports.Worker` that runs one call at a time. Owned by the participant that started it."""

    def __init__(self, name: str, workers: SimWorkers) -> None:
        self._name = name
        self._workers = workers
        self._queue: deque[tuple[asyncio.Future[Any], Callable[..., Any], tuple[object, ...]]] = deque()
        self._is_busy = False
        self._is_closed = False

    def run(self, call: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if self._is_closed:
            future.set_exception(RuntimeError(f"worker {self._name} is closed"))
            return future
        self._queue.append((future, call, arguments))
        if not self._is_busy:
            self._is_busy = True
            loop.call_later(self._workers.delay_s(), self._perform)
        return future

    def write_durably(self, file: File, buffers: Sequence[Buffer], offset: int, done: Ended) -> None:
        self.run(file.write_durably, buffers, offset).add_done_callback(lambda future: done(future.exception()))

    def begin_read(self, file: File, size: int, offset: int, ended: ReadEnded) -> bool:
        if self._is_closed:
            return False
        try:
            data = file.pread(size, offset)  # at once: the file may be closed meanwhile
        except Exception:  # noqa: BLE001  (a thread reads again, and reports it)
            return False
        asyncio.get_running_loop().call_later(self._workers.delay_s(), ended, data)
        return True

    def close(self) -> None:
        """Run all queued calls immediately: closing blocks, so no virtual time can pass."""
        self._is_closed = True
        while self._queue:
            future, call, arguments = self._queue.popleft()
            _resolve(future, *_outcome(call, arguments))

    def _perform(self) -> None:
        if not self._queue:
            self._is_busy = False
            return
        future, call, arguments = self._queue.popleft()
        result, error = _outcome(call, arguments)
        asyncio.get_running_loop().call_later(self._workers.delay_s(), self._finish, future, result, error)

    def _finish(self, future: asyncio.Future[Any], result: object, error: Exception | None) -> None:
        _resolve(future, result, error)
        if self._queue:
            asyncio.get_running_loop().call_later(self._workers.delay_s(), self._perform)
        else:
            self._is_busy = False


def _outcome(call: Callable[..., Any], arguments: tuple[object, ...]) -> tuple[object, Exception | None]:
    try:
        return call(*arguments), None
    except Exception as error:  # noqa: BLE001
        return None, error  # The port's contract: the error becomes the future's exception.


def _resolve(future: asyncio.Future[Any], result: object, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)


class SimWorkers:
    """`runtime.ports.Workers` of one participant.

    `random` draws the delays before and after a call, each exponential with mean `mean_ms`. `slowness` multiplies the
    delays, to simulate a slow disk.
    """

    def __init__(self, random: Random, *, mean_ms: float = 0.1) -> None:
        self.slowness = 1.0
        self._random = random
        self._mean_ms = mean_ms

    def delay_s(self) -> float:
        """Draw a delay, seconds: until the worker wakes up, or until a call's result reaches the loop."""
        return self.slowness * self._random.expovariate(1 / self._mean_ms) / 1000

    def start(self, name: str) -> Worker:
        return SimWorker(name, self)
