"""The reader of a ledger: ranges, single entries, tails, LAC, offloaded ledgers."""

from __future__ import annotations

from bookies.client.read.reader import LedgerReader

__all__ = ["LedgerReader"]
