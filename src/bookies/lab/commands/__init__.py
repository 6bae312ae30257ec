"""Command groups `bk bench`, `chaos`, `demo` and `sim`. Loaded when the group is used."""
