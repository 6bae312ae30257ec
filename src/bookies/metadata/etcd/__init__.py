"""etcd: the client port, and a driver with Apache's layout."""

from __future__ import annotations

from bookies.metadata.etcd.etcd_driver import EtcdDriver

__all__ = ["EtcdDriver"]
