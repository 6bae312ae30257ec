"""The HTTP server of a bookie or of auto-recovery: probes, metrics, Apache's endpoints, users and their roles."""
