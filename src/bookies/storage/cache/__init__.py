"""The write cache: entries that are journaled and not flushed yet."""

from __future__ import annotations

from bookies.storage.cache.write_cache import WriteCache

__all__ = ["WriteCache"]
