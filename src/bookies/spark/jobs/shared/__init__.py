"""Shared parts of all jobs: options, work items, progress, reports."""
