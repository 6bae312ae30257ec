"""Appends outlast their requests, within a memory for all of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.unit.bookie.conftest import World

from bookies.config import GatewayConfig
from bookies.web.data.writers import APPEND_S, Writers
from bookies.web.messages import Problem

LIMIT = 8 << 20


def test_appends_in_progress_are_bounded_and_a_slow_one_has_an_unknown_outcome() -> None:
    async def main(world: World) -> None:
        nothing: Any = None
        writers = Writers(world.runtime("gateway"), nothing, GatewayConfig(gateway_appends_size=LIMIT))
        stored: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def append() -> str:
            return await asyncio.shield(stored)

        first = asyncio.ensure_future(writers.append(append(), LIMIT - 1))
        await asyncio.sleep(0)
        with pytest.raises(Problem, match="gateway_appends_size") as full:
            await writers.append(append(), 2)
        assert (full.value.status, full.value.headers) == (429, {"Retry-After": "1"})
        with pytest.raises(Problem, match=f"not durable after {APPEND_S:.0f} s: the entries may or may not") as slow:
            await first
        assert (slow.value.status, slow.value.headers["Bk-Outcome"]) == (504, "unknown")
        assert writers.pending_size == LIMIT - 1  # it goes on
        other = asyncio.ensure_future(writers.append(append(), 1))
        await asyncio.sleep(0)
        stored.set_result("stored")
        assert await other == "stored"
        await asyncio.sleep(0)
        assert writers.pending_size == 0

    World().run(main)
