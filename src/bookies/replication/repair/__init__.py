"""The worker that repairs marked ledgers."""

from __future__ import annotations

from bookies.replication.repair.worker import Worker

__all__ = ["Worker"]
