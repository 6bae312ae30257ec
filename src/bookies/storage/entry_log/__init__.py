"""Entry logs: format, writing, reading by location, usage of each log."""

from __future__ import annotations

from bookies.storage.entry_log.log_usage import LogUsage

__all__ = ["LogUsage"]
