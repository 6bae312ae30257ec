"""Benchmarks behind `bk bench`."""
