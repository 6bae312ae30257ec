"""The worker that repairs marked ledgers, the part that fetches what a bookie has lost, and moves that balance data."""

from __future__ import annotations

from bookies.replication.repair.balance import Balance
from bookies.replication.repair.owed_entries import OwedEntries
from bookies.replication.repair.worker import Worker

__all__ = ["Balance", "OwedEntries", "Worker"]
