"""ZooKeeper: the client port, and a driver with Apache's layout."""

from __future__ import annotations

from bookies.metadata.zookeeper.zookeeper_driver import ZkCluster, ZooKeeperDriver

__all__ = ["ZkCluster", "ZooKeeperDriver"]
