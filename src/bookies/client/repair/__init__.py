"""Recovery of ledgers, checks and copies of replicas, administration."""

from __future__ import annotations

from bookies.client.repair.administration import Administration

__all__ = ["Administration"]
