"""The channel from the event loop to the thread that iterates: bounded, in order, and never in the loop's way."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncGenerator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from bookies.config import ClientConfig
from bookies.model import BookieId
from bookies.runtime.memory import TRACKED_MIN
from bookies.spark.base.runtime import Worker, _Ahead

PATIENCE_S = 20.0


@pytest.fixture
def worker() -> Iterator[Any]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield SimpleNamespace(loop=loop)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_the_loop_goes_on_while_the_channel_is_full(worker: Any) -> None:
    """The item that waits is larger than what is left, though not more than half of the room is taken."""
    sizes = [8, 9, 8, 20, 1, 16]

    async def make() -> AsyncGenerator[int, None]:
        for size in sizes:
            yield size

    async def ask() -> int:
        await asyncio.sleep(0)
        return 7

    taken = []
    for size in _Ahead(worker, make, lambda size: size, 16).items():
        taken.append(size)
        assert asyncio.run_coroutine_threadsafe(ask(), worker.loop).result(PATIENCE_S) == 7
    assert taken == sizes


def test_no_more_is_fetched_than_there_is_room_for(worker: Any) -> None:
    made: list[int] = []

    async def make() -> AsyncGenerator[int, None]:
        for number in range(100):
            made.append(number)
            yield number

    async def settle() -> None:
        for _ in range(50):
            await asyncio.sleep(0)

    for count, number in enumerate(_Ahead(worker, make, lambda _: 4, 16).items()):
        assert number == count
        asyncio.run_coroutine_threadsafe(settle(), worker.loop).result(PATIENCE_S)
        assert len(made) <= count + 5, "four in the channel, and the one that waits for room"
    assert len(made) == 100


def test_who_stops_taking_stops_the_fetching(worker: Any) -> None:
    """A `limit` closes the generator: nothing may go on asking for what nobody will take. Source: spark 3.5."""
    has_ended = threading.Event()

    async def make() -> AsyncGenerator[int, None]:
        try:
            while True:
                yield 1
                await asyncio.sleep(0)
        finally:
            has_ended.set()

    items = _Ahead(worker, make, lambda _: 1, 16).items()
    assert next(items) == 1
    items.close()  # type: ignore[attr-defined]
    assert has_ended.wait(PATIENCE_S)


def test_a_worker_s_process_looks_for_cycles_rarely() -> None:
    """There are many objects in it, Spark's and Arrow's modules, and hardly ever a cycle."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    try:
        worker = Worker()
        worker.loop.call_soon_threadsafe(worker.loop.stop)
        assert gc.get_threshold()[0] >= TRACKED_MIN
    finally:
        gc.set_threshold(*before)


# -- near replicas -------------------------------------------------------------------------------------------------
ADDRESSES = {
    "b1": ("127.0.0.1", 3181, "/east/r1"),
    "b2": ("10.9.9.2", 3181, "/east/r2"),
    "b3": ("10.9.9.3", 3181, "/west/r1"),
    "b4": ("10.9.9.4", 3181, ""),
}


def pooled(monkeypatch: pytest.MonkeyPatch, config: ClientConfig, **environment: str) -> list[str]:
    """The nearness of the bookies to a task with these settings, whose executor has these variables."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    worker = Worker()

    async def act() -> list[str]:
        worker.pool("memory:near", config, {"b1": ADDRESSES["b1"]})
        pool = worker.pool("memory:near", config, ADDRESSES)
        assert pool is worker.pool("memory:near", config, {"b2": ADDRESSES["b2"]}), "the others stay known"
        return [pool.nearby.nearness(BookieId(bookie)).label for bookie in ADDRESSES]

    try:
        return worker.run(act())
    finally:
        worker.loop.call_soon_threadsafe(worker.loop.stop)


def test_a_task_orders_replicas_by_the_place_of_its_executor(monkeypatch: pytest.MonkeyPatch) -> None:
    on_host = ["host", "region", "other", "unknown"]
    assert pooled(monkeypatch, ClientConfig()) == on_host, "that of the bookie on its host"
    assert pooled(monkeypatch, ClientConfig(fault_domains="127.0.0.1=/west/r1")) == [
        "other",
        "other",
        "rack",
        "unknown",
    ]
    assert pooled(monkeypatch, ClientConfig(), BK_LOCATION="/west/r9") == ["other", "other", "region", "unknown"]
    assert pooled(monkeypatch, ClientConfig(location="/east/r2")) == ["region", "rack", "other", "unknown"]
