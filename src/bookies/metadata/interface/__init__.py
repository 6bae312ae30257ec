"""The interface of metadata drivers."""

from __future__ import annotations

from bookies.metadata.interface.driver import MetadataDriver
from bookies.metadata.interface.recovery_store import RecoveryStore
from bookies.metadata.interface.watches import Watch

__all__ = ["MetadataDriver", "RecoveryStore", "Watch"]
