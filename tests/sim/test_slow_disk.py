"""A journal device whose syncs take two seconds now and then: adds wait, nothing fails, one word per episode."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from bookies.lab.sim.world.workers import SimWorkers
from bookies.storage.store import LedgerStore

Body = Callable[..., bytes]


def test_adds_wait_and_the_journal_says_so_once(
    machine: Any, body: Body, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="bookies.storage.journal")
    made = machine()
    is_slow = False
    usual = SimWorkers.delay_s
    monkeypatch.setattr(SimWorkers, "delay_s", lambda self: usual(self) + (1.0 if is_slow else 0))

    async def script(store: LedgerStore, promises: Any) -> None:
        nonlocal is_slow
        loop = asyncio.get_running_loop()
        entry_id = 0
        for episode in range(2):
            for number in range(30):
                is_slow = number % 3 == 1
                begin = loop.time()
                await promises.add(store, 1, {entry_id: body(1, entry_id)})
                entry_id += 1
                assert (loop.time() - begin > 1.9) is is_slow
                assert (store.stats()["journal_last_ms"] > 1900) is is_slow
            is_slow = False
            await asyncio.sleep(70)
            await promises.add(store, 2, {episode: body(2, episode)})
        assert store.stats()["journal_slow_groups"] == 20
        assert store.is_writable

    assert made.live(script)
    assert not made.failures
    said = [record.message.partition(" ")[0] for record in caplog.records if record.name == "bookies.storage.journal"]
    assert said == ["journal.slow", "journal.quick_again"] * 2
    made.check()
