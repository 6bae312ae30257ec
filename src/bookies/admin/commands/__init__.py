"""Command groups of `bk`, one file per group. Loaded when the group is used."""
