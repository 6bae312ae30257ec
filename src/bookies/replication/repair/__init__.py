"""The repair of one ledger, and the worker that repairs marked ledgers."""

from __future__ import annotations

from bookies.replication.repair.ledger_repair import LedgerRepair
from bookies.replication.repair.worker import Worker

__all__ = ["LedgerRepair", "Worker"]
