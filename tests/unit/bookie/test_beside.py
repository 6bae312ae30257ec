"""What runs beside a bookie in its process: it ends with the bookie, and its failure is its own affair."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from bookies.bookie import main
from bookies.bookie.server import BookieServer
from bookies.lab.sim.world.loop import SimLoop
from bookies.runtime.ports import Runtime

SERVER, RUNTIME = cast(BookieServer, object()), cast(Runtime, object())


def on_loop(body: object) -> None:
    loop = SimLoop()  # type: ignore[abstract]
    try:
        loop.run(body())  # type: ignore[operator]
        assert not loop.errors
    finally:
        loop.close()


def test_it_runs_while_the_bookie_serves_and_ends_with_it() -> None:
    told: list[object] = []

    async def beside(server: BookieServer, runtime: Runtime) -> None:
        told.append((server, runtime))
        try:
            await asyncio.sleep(1_000)
        finally:
            await asyncio.sleep(1)
            told.append("ended")

    async def body() -> None:
        async with main._running_beside(beside, SERVER, RUNTIME):
            await asyncio.sleep(5)
            assert told == [(SERVER, RUNTIME)]
        assert told[1:] == ["ended"]

    on_loop(body)


def test_that_it_fails_does_not_touch_the_bookie(caplog: pytest.LogCaptureFixture) -> None:
    async def beside(server: BookieServer, runtime: Runtime) -> None:
        await asyncio.sleep(1)
        raise RuntimeError("a mistake")

    async def body() -> None:
        async with main._running_beside(beside, SERVER, RUNTIME):
            await asyncio.sleep(5)

    on_loop(body)
    assert "the task that runs beside the bookie has failed" in caplog.text


def test_the_bookie_does_not_wait_for_it_for_ever() -> None:
    async def beside(server: BookieServer, runtime: Runtime) -> None:
        while True:
            try:
                await asyncio.sleep(3)
            except asyncio.CancelledError:
                await asyncio.sleep(60)
                return

    async def body() -> None:
        loop = asyncio.get_running_loop()
        async with main._running_beside(beside, SERVER, RUNTIME):
            await asyncio.sleep(1)
        assert loop.time() == 1 + main.BESIDE_S
        await asyncio.sleep(60)

    on_loop(body)


def test_without_it_there_is_nothing_to_wait_for() -> None:
    async def body() -> None:
        async with main._running_beside(None, SERVER, RUNTIME):
            await asyncio.sleep(1)

    on_loop(body)
