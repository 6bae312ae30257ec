"""Metrics: one table of names for registration, exposition and documentation."""
