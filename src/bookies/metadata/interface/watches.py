"""Registered callbacks with the version delivered last: the part of watches that all drivers share."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
T = TypeVar("T")

NEVER_SEEN = -1  # differs from every version, so the first observation is delivered
MISSING = 0  # "version" of a ledger or record that does not exist


class Watch(ABC):
    """A registered callback. It runs on the event loop and must not raise."""

    @abstractmethod
    def cancel(self) -> None:
        """End the watch: no call comes after this. Idempotent."""


class Subscription(Watch, Generic[K, T]):
    """A watch of one key. `known`: the version delivered last. `on_cancel`: called with the key."""

    def __init__(
        self,
        watches: dict[Subscription[K, T], None],
        key: K,
        callback: Callable[[T], None],
        known: int,
        on_cancel: Callable[[K], None] | None = None,
    ) -> None:
        self.key = key
        self.known = known
        self.callback = callback
        self._watches = watches
        self._on_cancel = on_cancel
        watches[self] = None

    def cancel(self) -> None:
        if self in self._watches:
            del self._watches[self]
            if self._on_cancel is not None:
                self._on_cancel(self.key)

    def deliver(self, value: T) -> None:
        """Call back from the event loop, so that a callback that raises does not affect others."""
        asyncio.get_running_loop().call_soon(self._run, value)

    def _run(self, value: T) -> None:
        if self in self._watches:  # otherwise cancelled meanwhile
            self.callback(value)
