"""The embedded stores: SQLite file, memory."""

from __future__ import annotations

from bookies.metadata.embedded.embedded import EmbeddedDriver
from bookies.metadata.embedded.memory import MemoryDriver

__all__ = ["EmbeddedDriver", "MemoryDriver"]
