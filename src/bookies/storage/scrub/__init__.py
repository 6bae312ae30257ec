"""The scrub: a slow check of everything that is stored."""

from __future__ import annotations

from bookies.storage.scrub.scrubber import Scrubber

__all__ = ["Scrubber"]
