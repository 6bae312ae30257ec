"""The storage engine: start, replay, adds, reads, checkpoints, failover, quarantine."""

from __future__ import annotations

from bookies.storage.engine.opening import StorageParts, open_storage

__all__ = ["StorageParts", "open_storage"]
