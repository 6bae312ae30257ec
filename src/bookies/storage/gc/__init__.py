"""Garbage collection: deleted ledgers, compaction of entry logs."""

from __future__ import annotations

from bookies.storage.gc.collection_loop import CollectionLoop

__all__ = ["CollectionLoop"]
