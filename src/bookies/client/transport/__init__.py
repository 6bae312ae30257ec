"""Connections to bookies, and the list of registered bookies."""

from __future__ import annotations

from bookies.client.transport.pool import BookiePool
from bookies.client.transport.watcher import BookieStatus, BookieWatcher

__all__ = ["BookiePool", "BookieStatus", "BookieWatcher"]
