"""Retention of all logs: one elected process removes what their limits allow, once in an interval.

It is the auditor, or the bookie that `daemon/log_housekeeper.py` elects. A log with another problem does not delay the
others. Two processes at a time do no harm: see `client/log/retaining.py`.
"""

from __future__ import annotations

import asyncio

from msgspec import Struct

from bookies.client.client import Client
from bookies.config import RecoveryConfig
from bookies.errors import BookKeeperError, LogNotFound
from bookies.protocol.log.retention import LogRemoval
from bookies.protocol.pacing import RateLimit
from bookies.replication.base.recovery_switch import Switch
from bookies.runtime.events import Events
from bookies.runtime.tasks import throttle


class Removed(Struct):
    """Totals of what retention has removed. `size`: bytes."""

    ledgers: int = 0
    entries: int = 0
    size: int = 0


class LogRetention:
    """Retention of all logs by one process. `removed`: what it has removed."""

    def __init__(self, client: Client, switch: Switch, config: RecoveryConfig, events: Events) -> None:
        self.removed = Removed()
        self._client = client
        self._switch = switch
        self._interval_s = config.log_retention_interval_s
        self._rate = RateLimit(config.audit_metadata_rate)
        self._events = events

    async def run(self) -> None:
        """Apply the limits of all logs again and again, until cancelled. Raises `MetadataError`."""
        while self._interval_s:
            await self.apply()
            await asyncio.sleep(self._interval_s)

    async def apply(self) -> None:
        """Apply the limits of all logs once, as soon as and while auto-recovery is enabled. Raises `MetadataError`."""
        await self._switch.wait_on()
        for name in await self._client.logs():
            await throttle(self._rate, 1)
            if await self._switch.is_off():
                return
            await self._apply(name)

    async def _apply(self, name: str) -> None:
        try:
            removals = await self._client.log(name).apply_retention()
        except LogNotFound:
            return  # It was deleted meanwhile.
        except BookKeeperError as error:
            self._events.warning("log.retention_failed", log=name, error=error)
            return
        for removal in removals:
            self._count(name, removal)

    def _count(self, name: str, removal: LogRemoval) -> None:
        self.removed.ledgers += len(removal.ledgers)
        self.removed.entries += removal.rows
        self.removed.size += removal.size
        self._events.info(
            "log.ledgers_removed",
            log=name,
            before=str(removal.before),
            ledgers=len(removal.ledgers),
            entries=removal.rows,
            bytes=removal.size,
            limits="+".join(removal.reasons),
            passed_cursors="+".join(removal.passed),
        )
