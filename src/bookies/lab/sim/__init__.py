"""The simulator: a whole cluster in one process, on virtual time, with injected faults."""
