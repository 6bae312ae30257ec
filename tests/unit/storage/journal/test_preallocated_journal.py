"""Preparation of journal files: a failure ends it in silence, whenever the result arrives."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from random import Random
from typing import Any, cast

import pytest

from bookies.config import BookieConfig
from bookies.errors import DiskFull
from bookies.runtime.ports import Clock, Disk, File, Network, Runtime, Worker, Workers
from bookies.storage.journal import preallocated_journal


class FullFile:
    """A file that nothing can be written to."""

    def pwrite(self, data: bytes, offset: int) -> None:
        raise DiskFull("no room")

    def close(self) -> None:
        return


class FullDisk:
    """A disk that claims to have room."""

    def usage(self, path: str) -> tuple[int, int]:
        return 1 << 40, 1 << 40

    def open(self, path: str, mode: str) -> File:
        return cast(File, FullFile())


class SlowWorker:
    """Runs calls at once and delivers results when the test says so."""

    def __init__(self) -> None:
        self.undelivered: list[Callable[[], None]] = []

    def start(self, name: str) -> Worker:
        return cast(Worker, self)

    def run(self, call: Callable[..., Any], *arguments: Any) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            result = call(*arguments)
        except DiskFull as error:
            failure = error
            self.undelivered.append(lambda: future.set_exception(failure))
        else:
            self.undelivered.append(lambda: future.set_result(result))
        return future

    def close(self) -> None:
        return

    async def deliver(self) -> None:
        self.undelivered.pop(0)()
        await asyncio.sleep(0)
        await asyncio.sleep(0)


@pytest.mark.parametrize("is_closed_first", [False, True], ids=["while open", "after a close"])
def test_a_failure_to_prepare_is_never_logged_as_a_traceback(is_closed_first: bool) -> None:
    reported: list[dict[str, Any]] = []

    async def prepare() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: reported.append(context))
        worker = SlowWorker()
        runtime = Runtime(
            clock=cast(Clock, None),
            network=cast(Network, None),
            disk=cast(Disk, FullDisk()),
            workers=cast(Workers, worker),
            random=Random(1),
        )
        spares = preallocated_journal.Spares(runtime, "journal", "spare", BookieConfig(journal_preallocate_size=4096))
        spares.prepare()
        await worker.deliver()  # the file is open, and the write of zeros has failed
        if is_closed_first:
            spares.close()
        await worker.deliver()
        assert spares.ready is None
        del spares, worker, runtime
        gc.collect()

    asyncio.run(prepare())
    assert not reported
