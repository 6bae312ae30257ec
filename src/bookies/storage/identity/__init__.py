"""Cookies: which bookie the directories belong to, and whether it may start on them."""

from __future__ import annotations

from bookies.storage.identity.cookie import Cookie

__all__ = ["Cookie"]
