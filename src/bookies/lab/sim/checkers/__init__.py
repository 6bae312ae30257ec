"""Checkers: programs that watch a run from outside and report broken promises."""

from __future__ import annotations

from bookies.lab.sim.checkers.history import History, Story

__all__ = ["History", "Story"]
