"""One ledger: adds, reads, LAC, fencing, recovery, legal changes of its record."""

from __future__ import annotations

from bookies.protocol.ledger.add import AddPipeline

__all__ = ["AddPipeline"]
