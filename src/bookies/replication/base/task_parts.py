"""Parts of a process that its auditor and its worker share."""

from __future__ import annotations

from msgspec import Struct

from bookies.client.client import Client
from bookies.config import RecoveryConfig
from bookies.metadata.interface import MetadataDriver
from bookies.replication.base.membership import Membership
from bookies.replication.base.recovery_switch import Switch
from bookies.runtime.events import Events
from bookies.runtime.ports import Runtime


class TaskParts(Struct, frozen=True):
    """Connections, settings and knowledge of one process in auto-recovery. `owner`: name in its locks."""

    runtime: Runtime
    client: Client
    driver: MetadataDriver
    config: RecoveryConfig
    owner: str
    membership: Membership
    switch: Switch
    events: Events
