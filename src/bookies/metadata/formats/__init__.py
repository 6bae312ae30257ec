"""Formats of metadata: ledger records, bookie records, auto-recovery's records."""

from __future__ import annotations

from bookies.metadata.formats.serde import pack_ledger, parse_ledger

__all__ = ["pack_ledger", "parse_ledger"]
