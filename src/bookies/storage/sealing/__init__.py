"""Encryption at rest: keys, sealed entries, and which files have them."""
