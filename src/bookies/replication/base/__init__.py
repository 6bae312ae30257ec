"""Shared parts of auditor and workers: cluster membership, the switch of auto-recovery, records."""

from __future__ import annotations

from bookies.replication.base.membership import Membership

__all__ = ["Membership"]
