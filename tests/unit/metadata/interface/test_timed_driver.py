"""Requests to a metadata store are timed, and everything else passes through."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from bookies.metadata.interface import MetadataDriver
from bookies.metadata.interface.timed_driver import timed


class Driver:
    uri = "memory:"

    async def open(self) -> None: ...

    async def read_ledger(self, ledger_id: int) -> int:
        if ledger_id < 0:
            raise LookupError(ledger_id)
        return ledger_id

    def __repr__(self) -> str:
        return "<Driver>"


def test_coroutines_are_timed_also_if_they_fail() -> None:
    seen: list[tuple[str, float, float]] = []
    now = iter((1.0, 2.0, 3.0, 5.0))
    driver: Any = timed(cast(MetadataDriver, Driver()), lambda: next(now), lambda *facts: seen.append(facts))

    async def body() -> None:
        await driver.open()
        assert await driver.read_ledger(4) == 4
        with pytest.raises(LookupError):
            await driver.read_ledger(-1)

    asyncio.run(body())
    assert seen == [("read_ledger", 1.0, 2.0), ("read_ledger", 3.0, 5.0)]
    assert (driver.uri, repr(driver)) == ("memory:", "<Driver>")
