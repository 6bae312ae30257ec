"""The writer of a ledger: batching, adds in flight, ensemble changes, closing."""

from __future__ import annotations

from bookies.client.write.advanced import AdvancedLedgerWriter
from bookies.client.write.writer import LedgerWriter, TracedLedgerWriter

__all__ = ["AdvancedLedgerWriter", "LedgerWriter", "TracedLedgerWriter"]
