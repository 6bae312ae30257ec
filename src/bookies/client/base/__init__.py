"""What every part of the client uses: entries, handles, argument checks, settings of one ledger."""

from __future__ import annotations

from bookies.client.base.entries import Entry, EntryBatch
from bookies.client.base.opening import Opening

__all__ = ["Entry", "EntryBatch", "Opening"]
