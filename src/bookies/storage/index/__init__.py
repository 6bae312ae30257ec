"""Index files: (ledger, entry) to location, the ledger cache, the catalog."""

from __future__ import annotations

from bookies.storage.index.index import LedgerIndex

__all__ = ["LedgerIndex"]
