"""From the write cache to durable files: flushes, writes of the index, checkpoints, and failed directories."""

from bookies.storage.checkpoint.checkpoint import Checkpointer
from bookies.storage.checkpoint.failover import Failover

__all__ = ["Checkpointer", "Failover"]
