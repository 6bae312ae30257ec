"""A watch over the open files of this process: at their limit the system refuses connections, without an error."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
from collections.abc import Callable

from bookies.runtime.events import Events

CHECK_S = 10.0
FEW, ENOUGH = 0.9, 0.8  # of the limit: where the warning begins and ends
STEP = "raise the limit (`ulimit -n`, LimitNOFILE of a unit), or find out who opens the connections (`ss -tnp`)"


def lowest_free() -> int | None:
    """Return the lowest descriptor that is free: at least that many files are open. None: the limit is reached.

    It costs the same however many there are, which a list of /proc/self/fd does not.
    """
    try:
        descriptor = os.open(os.devnull, os.O_RDONLY)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            return None
        raise
    os.close(descriptor)
    return descriptor


def limit() -> float:
    """Return how many files this process may have open."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return float("inf") if soft == resource.RLIM_INFINITY else soft


class OpenFiles:
    """Open files of this process. `lowest_free`, `limit`: of the system."""

    def __init__(
        self,
        events: Events,
        lowest_free: Callable[[], int | None] = lowest_free,
        limit: Callable[[], float] = limit,
    ) -> None:
        self._events = events
        self._lowest_free = lowest_free
        self._limit = limit
        self._are_few = False

    async def watch(self) -> None:
        """Check every `CHECK_S` seconds, until cancelled."""
        while True:
            self.check()
            await asyncio.sleep(CHECK_S)

    def check(self) -> None:
        """Log an event when few descriptors are left, and one when there are enough again."""
        allowed = self._limit()
        used = self._lowest_free()
        share = 1.0 if used is None else used / allowed
        if share >= FEW and not self._are_few:
            self._are_few = True
            effect = "new connections are refused" if used is None else "at the limit new connections will be refused"
            self._events.warning(
                "process.few_files_left", open_at_least=used or allowed, limit=allowed, consequence=effect, step=STEP
            )
        elif share < ENOUGH and self._are_few:
            self._are_few = False
            self._events.info("process.enough_files_left", limit=allowed)
