"""Connections that operators' commands and the automatic balance share."""

from __future__ import annotations

from typing import NamedTuple

from bookies.client.client import Client
from bookies.metadata.interface import MetadataDriver
from bookies.runtime.ports import Runtime


class Operator(NamedTuple):
    """Connections of an operator's command, or of a task in auto-recovery. `owner`: name in locks and announcements."""

    runtime: Runtime
    client: Client
    driver: MetadataDriver
    owner: str
