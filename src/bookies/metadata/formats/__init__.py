"""Formats of metadata: ledger records, bookie records, auto-recovery's records."""

from __future__ import annotations

from bookies.metadata.formats.serde import as_stored, pack_ledger, parse_ledger

__all__ = ["as_stored", "pack_ledger", "parse_ledger"]
