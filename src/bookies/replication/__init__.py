"""Auto-recovery: one auditor of a cluster finds and marks ledgers that lack replicas, workers repair them."""
