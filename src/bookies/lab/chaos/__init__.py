"""Chaos tests behind `bk chaos`: a cluster of real processes under faults."""

from __future__ import annotations

from bookies.lab.chaos.chaos_run import Chaos
from bookies.lab.chaos.chaos_surroundings import Proxied

__all__ = ["Chaos", "Proxied"]
