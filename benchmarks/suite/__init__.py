"""Apache BookKeeper and ours, or two revisions of ours, side by side on one machine: docs/internals/benchmarks.md."""
