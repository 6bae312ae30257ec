"""Benchmarks of `bk bench`."""
