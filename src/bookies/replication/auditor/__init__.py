"""The elected auditor, which checks ledgers and marks them."""

from __future__ import annotations

from bookies.replication.auditor.auditor import Auditor

__all__ = ["Auditor"]
