"""Real processes under faults, behind `bk chaos`."""

from __future__ import annotations

from bookies.lab.chaos.chaos_run import Chaos

__all__ = ["Chaos"]
