"""Auto-recovery: auditor and workers; repairs, drains and balances by operators."""
