"""The metadata store: one driver interface, with embedded, ZooKeeper and etcd implementations."""
