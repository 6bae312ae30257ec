"""A metadata driver whose requests are timed, for slow requests. Without a need for that, no driver is wrapped."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, cast

from bookies.metadata.interface.driver import MetadataDriver

UNTIMED = ("open", "close")


def timed(
    driver: MetadataDriver, now_s: Callable[[], float], on_answer: Callable[[str, float, float], None]
) -> MetadataDriver:
    """Return the driver with its requests timed. `on_answer`: called with name, beginning and end in seconds."""
    return cast(MetadataDriver, _Timed(driver, now_s, on_answer))


class _Timed:
    """Passes everything to the driver, and times the coroutines."""

    def __init__(
        self, driver: MetadataDriver, now_s: Callable[[], float], on_answer: Callable[[str, float, float], None]
    ) -> None:
        self._driver = driver
        self._now_s = now_s
        self._on_answer = on_answer

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._driver, name)
        if not inspect.iscoroutinefunction(value) or name in UNTIMED:
            return value

        @functools.wraps(value)
        async def request(*arguments: Any, **named: Any) -> Any:
            began_s = self._now_s()
            try:
                return await value(*arguments, **named)
            finally:
                self._on_answer(name, began_s, self._now_s())

        return request

    def __repr__(self) -> str:
        return repr(self._driver)
