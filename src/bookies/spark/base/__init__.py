"""Shared parts of reading, writing and jobs: options, positions, sessions."""
