"""Scans of length-framed records in a file."""

from __future__ import annotations

from bookies.storage.records.record_scan import Batch, EndKind

__all__ = ["Batch", "EndKind"]
