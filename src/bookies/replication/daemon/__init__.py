"""The process of auto-recovery and its supervision."""

from __future__ import annotations

from bookies.replication.daemon.daemon import AutoRecovery

__all__ = ["AutoRecovery"]
