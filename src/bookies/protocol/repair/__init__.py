"""Re-replication: which fragments lack replicas, what to copy, in which order, and at which rate."""

from __future__ import annotations

from bookies.protocol.repair.fragments import Fragment, FragmentVerdict
from bookies.protocol.repair.replicate import RateLimit

__all__ = ["Fragment", "FragmentVerdict", "RateLimit"]
