"""The command groups of `bk`, one file a group. Loaded when the group is used."""
