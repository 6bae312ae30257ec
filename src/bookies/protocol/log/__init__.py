"""Replicated logs: list of ledgers, positions, cursors, transactions."""

from __future__ import annotations

from bookies.protocol.log.log_model import Manifest, Position

__all__ = ["Manifest", "Position"]
