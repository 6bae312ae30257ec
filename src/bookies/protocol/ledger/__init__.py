"""One ledger: adds, reads, LAC, fencing, recovery, and the legal changes of its metadata record."""

from __future__ import annotations

from bookies.protocol.ledger.add import AddPipeline

__all__ = ["AddPipeline"]
