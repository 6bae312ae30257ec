"""Access to the files of a bookie that does not run."""

from __future__ import annotations

from bookies.storage.offline.offline_bookie import bookie_at

__all__ = ["bookie_at"]
