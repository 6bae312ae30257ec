"""The parts that several drivers share: sessions, auto-recovery's state, notes, watches."""

from __future__ import annotations

from bookies.metadata.shared.bookie_notes import BookieNotes

__all__ = ["BookieNotes"]
