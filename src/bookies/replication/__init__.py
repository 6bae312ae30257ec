"""Auto-recovery: auditor, workers, and the operator's own repairs, drains and balances."""
