"""Cluster on one machine: `bk up`, `bookies.local`."""

from __future__ import annotations

from bookies.admin.cluster.local_cluster import LocalCluster

__all__ = ["LocalCluster"]
