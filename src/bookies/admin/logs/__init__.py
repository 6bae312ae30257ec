"""Verbs of `bk log` that need more than a few lines."""
