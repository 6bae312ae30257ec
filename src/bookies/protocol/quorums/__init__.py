"""Arithmetic of write sets, ack sets and sets of entry ids."""

from __future__ import annotations

from bookies.protocol.quorums.intervals import IdSet
from bookies.protocol.quorums.quorum import write_set

__all__ = ["IdSet", "write_set"]
