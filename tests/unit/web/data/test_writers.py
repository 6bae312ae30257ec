"""Appends outlast their requests, within a memory for all of them; writers that nobody uses are released."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.bookie.conftest import World

from bookies.config import GatewayConfig
from bookies.web.data.writers import APPEND_S, LEDGER_IDLE_S, LedLog, Writers
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


class Idle:
    """A writer of a log or a ledger. `ending`: what happens while it ends."""

    def __init__(self, ledger_id: int = 0, ending: Any = lambda: None) -> None:
        self.ledger_id = ledger_id
        self.is_closed = False
        self._ending = ending

    async def seal(self) -> None:
        self._ending()

    async def close(self) -> None:
        if not self.is_closed:
            self._ending()
        self.is_closed = True


def test_what_ends_or_is_led_again_while_another_writer_is_released_stays_as_it_is() -> None:
    async def main(world: World) -> None:
        nothing: Any = None
        writers = Writers(world.runtime("gateway"), nothing, GatewayConfig(gateway_idle_s=LEDGER_IDLE_S))

        def led(name: str, ending: Any = lambda: None) -> LedLog:
            log: Any = SimpleNamespace(name=name)
            writer: Any = Idle(ending=ending)
            return LedLog(log, b"", writer, writers.now())

        def change() -> None:
            writers.logs["b"] = again  # its append failed, and the next one leads the log again
            del writers.logs["c"]  # deleted
            del writers.ledgers[2]  # sealed by a request
            again.used_s = writers.now()

        def fail() -> None:
            raise RuntimeError("a mistake")

        again = led("b")
        writers.logs.update({"a": led("a", change), "b": led("b"), "c": led("c"), "d": led("d", fail), "e": led("e")})
        for ledger_id in (1, 2, 3):
            ledger: Any = Idle(ledger_id, (lambda: writers.ledgers.pop(3)) if ledger_id == 1 else lambda: None)
            writers.add_ledger(ledger, b"")
        writers.start()
        await asyncio.sleep(LEDGER_IDLE_S + 10)
        assert writers.logs == {"b": again}
        assert writers.ledgers == {}
        assert not again.writer.is_closed
        await writers.stop()
        assert again.writer.is_closed

    World().run(main)
