"""Helpers of all commands: options, sessions, tables, progress, messages."""

from __future__ import annotations

from bookies.admin.shared.common import Progress, Session
from bookies.admin.shared.usage import UsageError

__all__ = ["Progress", "Session", "UsageError"]
