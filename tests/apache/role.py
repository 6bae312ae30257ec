"""One role of our auto-recovery without the other, what Role.java is for Apache's: role.py auditor|worker URI.

Settings: `BK_...` variables. Run as a process, until it is killed.
"""

from __future__ import annotations

import sys

from bookies.bookie.main import configure_logging
from bookies.client.client import Client
from bookies.config import RecoveryConfig
from bookies.configuration import configured
from bookies.metadata.uri import connect
from bookies.model import BookieId
from bookies.protocol.pacing import RateLimit
from bookies.replication.auditor import Auditor
from bookies.replication.auditor.election import lead
from bookies.replication.base import Membership
from bookies.replication.base.recovery_switch import Switch
from bookies.replication.base.task_parts import TaskParts
from bookies.replication.repair import Worker
from bookies.runtime import aio
from bookies.runtime.events import Events


async def main(role: str, uri: str) -> None:
    runtime, config = aio.runtime(), configured(RecoveryConfig)
    events, driver = Events("recovery", runtime.clock), connect(uri, runtime, may_create=False)
    async with Client(runtime, driver) as client:
        membership = Membership(driver, runtime.clock, config, events)
        switch = Switch(driver.recovery)
        await membership.start()
        await switch.start()
        parts = TaskParts(runtime, client, driver, config, "our-recovery", membership, switch, events)
        if role == "auditor":
            auditor = Auditor(parts)
            await lead(driver.recovery, BookieId("our-recovery"), auditor.run)
        else:
            worker = Worker(parts, RateLimit(None))
            await worker.run()


if __name__ == "__main__":
    configure_logging()
    aio.run(main(sys.argv[1], sys.argv[2]))
