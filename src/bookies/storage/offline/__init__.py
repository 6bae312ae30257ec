"""Access to the files of a stopped bookie."""

from __future__ import annotations

from bookies.storage.offline.offline_bookie import bookie_at

__all__ = ["bookie_at"]
