"""Foundations shared by the whole client: entries, handles, argument checks, access to one ledger's record."""

from __future__ import annotations

from bookies.client.base.entries import Entry, EntryBatch
from bookies.client.base.opening import Opening

__all__ = ["Entry", "EntryBatch", "Opening"]
