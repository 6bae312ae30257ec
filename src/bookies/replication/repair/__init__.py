"""The worker that repairs marked ledgers, and the part that fetches what a bookie has lost."""

from __future__ import annotations

from bookies.replication.repair.owed_entries import OwedEntries
from bookies.replication.repair.worker import Worker

__all__ = ["OwedEntries", "Worker"]
