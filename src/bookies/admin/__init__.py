"""The command `bk`: shared helpers, the local cluster, verbs, command groups."""
