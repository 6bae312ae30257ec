"""The command `bk` and what it is made of: shared helpers, the local cluster, verbs, command groups."""
