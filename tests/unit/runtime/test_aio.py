"""The network port on asyncio and uvloop, and the clock, where they differ from what simulated ones could show."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from bookies.runtime import aio


@pytest.mark.parametrize("run", [asyncio.run, aio.run])
@pytest.mark.parametrize(
    ("host", "port"), [("a..b", 3181), ("x" * 70 + ".example", 3181), ("127.0.0.1", 70_000), ("127.0.0.1", -5)]
)
def test_what_is_no_address_is_an_error_as_any_other(run: Callable[[Any], None], host: str, port: int) -> None:
    """A bookie may have published it; whoever connects expects OSError."""

    async def main() -> None:
        with pytest.raises(OSError, match=r"is no address|refused|[Ii]nvalid"):
            await aio.AsyncioNetwork().connect(host, port, asyncio.Protocol)

    run(main())


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="the system has no such clock")
def test_the_clock_with_sleep_is_the_one_that_does_not_stand_still() -> None:
    clock = aio.runtime(1).clock
    began = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert began <= clock.with_sleep() <= time.clock_gettime(time.CLOCK_BOOTTIME)
