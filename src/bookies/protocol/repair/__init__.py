"""Re-replication: which fragments lack replicas, what to copy and in which order."""

from __future__ import annotations

from bookies.protocol.repair.fragments import Fragment, FragmentVerdict

__all__ = ["Fragment", "FragmentVerdict"]
