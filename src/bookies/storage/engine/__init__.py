"""The storage engine: start, replay, adds, reads, rebuilding, quarantine."""

from __future__ import annotations

from bookies.storage.engine.opening import open_storage
from bookies.storage.engine.storage_parts import StorageParts

__all__ = ["StorageParts", "open_storage"]
