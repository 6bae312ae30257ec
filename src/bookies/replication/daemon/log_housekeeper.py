"""Housekeeping of logs by a bookie without auto-recovery: the elected bookie applies retention.

The election is a lease, `elections/bk-log-housekeeping`, so Apache's processes do not see it, and no bookie
becomes an auditor. While the auditor is a process of ours, the elected bookie leaves the work to it.
"""

from __future__ import annotations

import asyncio

from bookies.client.client import Client
from bookies.config import RecoveryConfig
from bookies.metadata.interface import MetadataDriver
from bookies.model import BookieId
from bookies.replication.auditor.log_retention import LogRetention
from bookies.replication.base.recovery_switch import Switch
from bookies.replication.operator.status import HOUSEKEEPING, PREFIX
from bookies.runtime.events import Events

TTL_S = 60.0  # after which a bookie that died is replaced


class LogHousekeeper:
    """Candidate for the housekeeping of logs. `client`, `driver`: open; not closed here."""

    def __init__(
        self, client: Client, driver: MetadataDriver, config: RecoveryConfig, bookie: BookieId, events: Events
    ) -> None:
        self._switch = Switch(driver.recovery)
        self.retention = LogRetention(client, self._switch, config, events)
        self._driver = driver
        self._election = client.election(HOUSEKEEPING)
        self._interval_s = config.log_retention_interval_s
        self._bookie = bookie

    async def run(self) -> None:
        """Keep logs while elected, until cancelled. Raises `LeaseHeld`, `LeaseLost`, `MetadataError`; call it again."""
        try:
            await self._switch.start()
            async with self._election.lead(ttl=TTL_S, text=self._bookie):
                while True:
                    if not await self._has_auditor():
                        await self.retention.apply()
                    await asyncio.sleep(self._interval_s)
        finally:
            self._switch.stop()

    async def _has_auditor(self) -> bool:
        """Report whether the auditor applies retention: Apache's does not, and has no status record."""
        auditor = await self._driver.recovery.auditor()
        if auditor is None:
            return False
        names = await self._driver.record_names(f"{PREFIX}{auditor}")
        return any(name.removeprefix(PREFIX).partition("@")[0] == auditor for name in names)
