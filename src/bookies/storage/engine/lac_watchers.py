"""Waiters for a ledger's LAC to advance. Owned by the loop's thread.

Source: storage 5.7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class LacWatchers:
    """Callbacks of one bookie's ledgers; each is called once."""

    def __init__(self) -> None:
        self._watchers: dict[int, dict[int, tuple[int, Callable[[], None]]]] = {}
        self._count = 0

    def __bool__(self) -> bool:
        """Report whether there are waiters."""
        return bool(self._watchers)

    def add(self, ledger_id: int, previous_lac: int, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back once, on the loop, when the LAC is above `previous_lac` or all are woken; return a canceller."""
        self._count += 1
        number = self._count
        self._watchers.setdefault(ledger_id, {})[number] = (previous_lac, callback)

        def cancel() -> None:
            watchers = self._watchers.get(ledger_id)
            if watchers is not None and watchers.pop(number, None) is not None and not watchers:
                del self._watchers[ledger_id]

        return cancel

    def wake(self, ledger_id: int, last_add_confirmed: int | None) -> None:
        """Wake the waiters for this LAC; None: all of the ledger."""
        watchers = self._watchers.get(ledger_id)
        if watchers is None:
            return
        loop = asyncio.get_running_loop()
        for number, (previous_lac, callback) in list(watchers.items()):
            if last_add_confirmed is None or last_add_confirmed > previous_lac:
                del watchers[number]
                loop.call_soon(callback)
        if not watchers:
            del self._watchers[ledger_id]
